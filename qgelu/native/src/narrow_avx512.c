/* 512-bit vectors; a coefficient of all 16 segments, twice, is one register, looked up by VPERMW. */
#include "narrow.h"

#if defined(QG_X86)
#include <immintrin.h>

#define QG_AVX512 QG_TARGET("avx512f,avx512bw,avx512vl")

enum { LANES = 16, UNITS = 2, SIZE = 4 * LANES * UNITS };

struct constants {
    __m512i tables[4], lower, upper, code_range, code_minimum, groups;
};

QG_AVX512 QG_INLINE __m512i word(const int32_t *words, int parameter, int vector) {
    return _mm512_load_si512(words + parameter * SIZE + vector * LANES);
}

QG_AVX512 QG_INLINE __m512i half(const int32_t *words, int parameter, int vector) {
    const uint16_t *halves = (const uint16_t *)(const void *)(words + QG_WORDS * SIZE);
    return _mm512_load_si512(halves + parameter * SIZE + vector * 2 * LANES);
}

QG_AVX512 QG_INLINE __m512i grown(__m512i value, __m512i doubled_multiplier) {
    return _mm512_adds_epu16(value, _mm512_mulhi_epu16(value, doubled_multiplier));
}

/* The result before the last pack, of two vectors of accumulators. */
QG_AVX512 QG_INLINE __m512i results(const struct constants *constants, const int32_t *words, const int32_t *accumulator,
                                    int pair, bool general) {
    __m512i linear[2], argument[2];
    for (int k = 0; k < 2; k++) {
        int vector = 2 * pair + k;
        __m512i lower = general ? word(words, QG_LOWER, vector) : constants->lower;
        __m512i upper = general ? word(words, QG_UPPER, vector) : constants->upper;
        __m512i v = _mm512_loadu_si512(accumulator + vector * LANES);
        v = _mm512_add_epi32(_mm512_min_epi32(_mm512_max_epi32(v, lower), upper), word(words, QG_BIAS, vector));
        if (general) v = _mm512_sllv_epi32(v, word(words, QG_LEFT_SHIFT, vector));
        linear[k] = _mm512_srav_epi32(_mm512_add_epi32(v, word(words, QG_LINEAR_HALF, vector)),
                                      word(words, QG_LINEAR_SHIFT, vector));
        argument[k] = _mm512_srlv_epi32(_mm512_add_epi32(_mm512_abs_epi32(v), word(words, QG_ARGUMENT_HALF, vector)),
                                        word(words, QG_ARGUMENT_SHIFT, vector));
    }
    /* Packing saturates, at 0 too: max(v, 0). */
    __m512i positive = grown(_mm512_packus_epi32(linear[0], linear[1]), half(words, QG_DOUBLED_LINEAR_MULTIPLIER, pair));
    __m512i u = grown(_mm512_packus_epi32(argument[0], argument[1]), half(words, QG_DOUBLED_ARGUMENT_MULTIPLIER, pair));
    __m512i segment = _mm512_srli_epi16(u, 12);
    __m512i fraction = _mm512_xor_si512(_mm512_slli_epi16(u, 4), _mm512_set1_epi16(INT16_MIN));
    __m512i p = _mm512_permutexvar_epi16(segment, constants->tables[3]);
    for (int k = 2; k >= 0; k--)
        p = _mm512_add_epi16(_mm512_permutexvar_epi16(segment, constants->tables[k]), _mm512_mulhi_epi16(p, fraction));
    p = _mm512_max_epi16(p, _mm512_setzero_si512());
    __m512i amount = _mm512_adds_epu16(positive, half(words, QG_OFFSET, pair));
    __m512i scaled = _mm512_mulhi_epu16(p, half(words, QG_TAIL_MULTIPLIER, pair));
    return _mm512_srli_epi16(_mm512_subs_epu16(amount, scaled), 7);
}

QG_AVX512 QG_INLINE void run(const struct qg_narrow *narrow, const struct qg_span *span, const int32_t *accumulator,
                             uint8_t *out, bool general) {
    struct constants constants;
    for (int k = 0; k < 4; k++)
        constants.tables[k] = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)narrow->by_degree[k]));
    constants.lower = _mm512_set1_epi32(-narrow->bound);
    constants.upper = _mm512_set1_epi32(narrow->bound);
    constants.code_range = _mm512_set1_epi8((char)narrow->code_range);
    constants.code_minimum = _mm512_set1_epi8((char)narrow->code_minimum);
    constants.groups = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (size_t row = 0; row < span->rows; row++)
        for (size_t b = span->first; b < span->end; b++) {
            size_t element = row * span->width + qg_start(span, b, SIZE);
            const unsigned char *at = narrow->parameters + qg_parameters(span, b) * QG_NARROW_BLOCK_BYTES(SIZE);
            const int32_t *words = (const int32_t *)(const void *)at;
            __m512i codes[UNITS];
            for (int unit = 0; unit < UNITS; unit++) {
                __m512i first = results(&constants, words, accumulator + element, 2 * unit, general);
                __m512i second = results(&constants, words, accumulator + element, 2 * unit + 1, general);
                __m512i code = _mm512_permutexvar_epi32(constants.groups, _mm512_packus_epi16(first, second));
                code = _mm512_min_epu8(code, constants.code_range);
                codes[unit] = _mm512_add_epi8(code, constants.code_minimum);
            }
            for (int unit = 0; unit < UNITS; unit++)
                _mm512_storeu_si512(out + element + unit * 4 * LANES, codes[unit]);
        }
}

QG_AVX512 static void run_span(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                               void *out) {
    const struct qg_narrow *narrow = qg_narrow_of(blocks);
    if (narrow->general)
        run(narrow, span, accumulator, out, true);
    else
        run(narrow, span, accumulator, out, false);
}

static void order(size_t *channels) {
    qg_order_in_lanes(channels, LANES, UNITS);
}

const struct qg_narrow_path qg_narrow_avx512 = {SIZE, order, run_span};
#else
typedef int qg_no_narrow_avx512;
#endif
