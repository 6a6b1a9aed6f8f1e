/* 256-bit vectors; the low and the high bytes of a coefficient are one register each, looked up by PSHUFB. */
#include "narrow.h"

#if defined(QG_X86)
#include <immintrin.h>

#define QG_AVX2 QG_TARGET("avx2")

enum { LANES = 8, SIZE = 4 * LANES };

struct constants {
    __m256i low[4], high[4], lower, upper, code_range, code_minimum, groups;
};

QG_AVX2 QG_INLINE __m256i word(const int32_t *words, int parameter, int vector) {
    return _mm256_load_si256((const __m256i *)(const void *)(words + parameter * SIZE + vector * LANES));
}

QG_AVX2 QG_INLINE __m256i half(const int32_t *words, int parameter, int vector) {
    const uint16_t *halves = (const uint16_t *)(const void *)(words + QG_WORDS * SIZE);
    return _mm256_load_si256((const __m256i *)(const void *)(halves + parameter * SIZE + vector * 2 * LANES));
}

QG_AVX2 QG_INLINE __m256i grown(__m256i value, __m256i doubled_multiplier) {
    return _mm256_adds_epu16(value, _mm256_mulhi_epu16(value, doubled_multiplier));
}

/* One step of Horner's rule, (15). */
QG_AVX2 QG_INLINE __m256i next(__m256i coefficient, __m256i p, __m256i fraction) {
    return _mm256_add_epi16(coefficient, _mm256_mulhi_epi16(p, fraction));
}

QG_AVX2 QG_INLINE void run(const struct qg_narrow *narrow, const struct qg_span *span, const int32_t *accumulator,
                           uint8_t *out, bool general) {
    struct constants constants;
    const __m256i apart = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12,
                                           14, 1, 3, 5, 7, 9, 11, 13, 15);
    for (int k = 0; k < 4; k++) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)narrow->by_degree[k]);
        /* Low bytes of both halves of the table, then high bytes. */
        bytes = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(bytes, apart), 0xd8);
        constants.low[k] = _mm256_permute2x128_si256(bytes, bytes, 0x00);
        constants.high[k] = _mm256_permute2x128_si256(bytes, bytes, 0x11);
    }
    constants.lower = _mm256_set1_epi32(-narrow->bound);
    constants.upper = _mm256_set1_epi32(narrow->bound);
    constants.code_range = _mm256_set1_epi8((char)narrow->code_range);
    constants.code_minimum = _mm256_set1_epi8((char)narrow->code_minimum);
    constants.groups = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (size_t row = 0; row < span->rows; row++)
        for (size_t b = span->first; b < span->end; b++) {
            size_t element = row * span->width + qg_start(span, b, SIZE);
            const unsigned char *at = narrow->parameters + qg_parameters(span, b) * QG_NARROW_BLOCK_BYTES(SIZE);
            const int32_t *words = (const int32_t *)(const void *)at;
            __m256i linear[4], argument[4], positive[2], segment[2], fraction[2], p[2], result[2];
            for (int k = 0; k < 4; k++) {
                __m256i lower = general ? word(words, QG_LOWER, k) : constants.lower;
                __m256i upper = general ? word(words, QG_UPPER, k) : constants.upper;
                __m256i v = _mm256_loadu_si256((const __m256i *)(accumulator + element + k * LANES));
                v = _mm256_add_epi32(_mm256_min_epi32(_mm256_max_epi32(v, lower), upper), word(words, QG_BIAS, k));
                if (general) v = _mm256_sllv_epi32(v, word(words, QG_LEFT_SHIFT, k));
                linear[k] = _mm256_srav_epi32(_mm256_add_epi32(v, word(words, QG_LINEAR_HALF, k)),
                                              word(words, QG_LINEAR_SHIFT, k));
                argument[k] = _mm256_srlv_epi32(_mm256_add_epi32(_mm256_abs_epi32(v), word(words, QG_ARGUMENT_HALF, k)),
                                                word(words, QG_ARGUMENT_SHIFT, k));
            }
            for (int pair = 0; pair < 2; pair++) {
                /* Packing saturates, at 0 too: max(v, 0). */
                positive[pair] = grown(_mm256_packus_epi32(linear[2 * pair], linear[2 * pair + 1]),
                                       half(words, QG_DOUBLED_LINEAR_MULTIPLIER, pair));
                __m256i u = grown(_mm256_packus_epi32(argument[2 * pair], argument[2 * pair + 1]),
                                  half(words, QG_DOUBLED_ARGUMENT_MULTIPLIER, pair));
                segment[pair] = _mm256_srli_epi16(u, 12);
                fraction[pair] = _mm256_xor_si256(_mm256_slli_epi16(u, 4), _mm256_set1_epi16(INT16_MIN));
            }
            /* Bytes for both pairs at once, then joined: unpacking undoes the packing. */
            __m256i index = _mm256_packus_epi16(segment[0], segment[1]);
            for (int k = 3; k >= 0; k--) {
                __m256i low = _mm256_shuffle_epi8(constants.low[k], index);
                __m256i high = _mm256_shuffle_epi8(constants.high[k], index);
                __m256i first = _mm256_unpacklo_epi8(low, high), second = _mm256_unpackhi_epi8(low, high);
                p[0] = k == 3 ? first : next(first, p[0], fraction[0]);
                p[1] = k == 3 ? second : next(second, p[1], fraction[1]);
            }
            for (int pair = 0; pair < 2; pair++) {
                __m256i clamped = _mm256_max_epi16(p[pair], _mm256_setzero_si256());
                __m256i amount = _mm256_adds_epu16(positive[pair], half(words, QG_OFFSET, pair));
                __m256i scaled = _mm256_mulhi_epu16(clamped, half(words, QG_TAIL_MULTIPLIER, pair));
                result[pair] = _mm256_srli_epi16(_mm256_subs_epu16(amount, scaled), 7);
            }
            __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(result[0], result[1]), constants.groups);
            codes = _mm256_add_epi8(_mm256_min_epu8(codes, constants.code_range), constants.code_minimum);
            _mm256_storeu_si256((__m256i *)(out + element), codes);
        }
}

QG_AVX2 static void run_span(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                             void *out) {
    const struct qg_narrow *narrow = qg_narrow_of(blocks);
    if (narrow->general)
        run(narrow, span, accumulator, out, true);
    else
        run(narrow, span, accumulator, out, false);
}

static void order(size_t *channels) {
    qg_order_in_lanes(channels, LANES, 1);
}

const struct qg_narrow_path qg_narrow_avx2 = {SIZE, order, run_span};
#else
typedef int qg_no_narrow_avx2;
#endif
