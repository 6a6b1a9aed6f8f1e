/* 16 lanes of 32 bits, and twice 8 of 64 for the products; a coefficient of all 32 segments is two registers. */
#include "wide.h"

#if defined(QG_X86)
#include <immintrin.h>

#define QG_AVX512 QG_TARGET("avx512f,avx512bw,avx512vl")

enum { LANES = QG_WIDE_SIZE };

QG_AVX512 QG_INLINE __m512i word(const int32_t *words, int parameter) {
    return _mm512_load_si512(words + parameter * LANES);
}

QG_AVX512 QG_INLINE __m512i both(const int32_t *words, int parameter, int odd) {
    const int64_t *doubles = (const int64_t *)(const void *)(words + QG_WIDE_WORDS * LANES);
    return _mm512_load_si512(doubles + parameter * LANES + odd * LANES / 2);
}

/* The even or the odd lanes, where a 64-bit product looks for them. */
QG_AVX512 QG_INLINE __m512i half(__m512i value, int odd) {
    return odd ? _mm512_srli_epi64(value, 32) : value;
}

QG_AVX512 QG_INLINE __m512i joined(__m512i even, __m512i odd) {
    return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

struct constants {
    __m512i tables[5][2], code_range, code_minimum;
};

QG_AVX512 QG_INLINE __m512i coefficient(const struct constants *constants, int degree, __m512i segment) {
    return _mm512_permutex2var_epi32(constants->tables[degree][0], segment, constants->tables[degree][1]);
}

QG_AVX512 QG_INLINE __m512i codes(const struct constants *constants, const int32_t *words,
                                  const int32_t *accumulator) {
    __m512i parts[2];
    __m512i v = _mm512_loadu_si512(accumulator);
    v = _mm512_min_epi32(_mm512_max_epi32(v, word(words, QG_WIDE_LOWER)), word(words, QG_WIDE_UPPER));
    v = _mm512_add_epi32(v, word(words, QG_WIDE_BIAS));          /* (20) */
    v = _mm512_sllv_epi32(v, word(words, QG_WIDE_LEFT_SHIFT)); /* (21) */
    __m512i magnitude = _mm512_abs_epi32(v), multiplier = word(words, QG_WIDE_ARGUMENT_MULTIPLIER);
    for (int odd = 0; odd < 2; odd++) {
        __m512i product = _mm512_mul_epu32(half(magnitude, odd), half(multiplier, odd));
        product = _mm512_add_epi64(product, both(words, QG_WIDE_ARGUMENT_HALF, odd));
        product = _mm512_srlv_epi64(product, both(words, QG_WIDE_ARGUMENT_SHIFT, odd));
        parts[odd] = _mm512_min_epu64(product, _mm512_set1_epi64(1048575));
    }
    __m512i u = joined(parts[0], parts[1]); /* (22) */
    __m512i segment = _mm512_srli_epi32(u, 15);
    __m512i fraction = _mm512_and_si512(u, _mm512_set1_epi32(32767));
    fraction = _mm512_sub_epi32(fraction, _mm512_set1_epi32(16384));
    __m512i p = coefficient(constants, 4, segment);
    for (int k = 3; k >= 0; k--)
        p = _mm512_add_epi32(coefficient(constants, k, segment), _mm512_srai_epi32(_mm512_mullo_epi32(p, fraction), 15));
    p = _mm512_max_epi32(p, _mm512_setzero_si512()); /* (23) */
    __m512i positive = _mm512_max_epi32(v, _mm512_setzero_si512());
    __m512i linear = word(words, QG_WIDE_LINEAR_MULTIPLIER), tail = word(words, QG_WIDE_TAIL_MULTIPLIER);
    for (int odd = 0; odd < 2; odd++) {
        __m512i total = _mm512_mul_epu32(half(positive, odd), half(linear, odd));
        total = _mm512_add_epi64(total, both(words, QG_WIDE_OFFSET, odd));
        total = _mm512_sub_epi64(total, _mm512_mul_epu32(half(p, odd), half(tail, odd))); /* (24) */
        total = _mm512_max_epi64(total, _mm512_setzero_si512());
        total = _mm512_srlv_epi64(total, both(words, QG_WIDE_OUTPUT_SHIFT, odd));
        parts[odd] = _mm512_min_epu64(total, constants->code_range); /* (25) */
    }
    return _mm512_add_epi32(joined(parts[0], parts[1]), constants->code_minimum);
}

QG_AVX512 void qg_run_wide_avx512(const struct qg_blocks *blocks, const struct qg_span *span,
                                  const int32_t *accumulator, void *out) {
    const struct qg_wide *wide = qg_wide_of(blocks);
    struct constants constants;
    for (int k = 0; k < 5; k++)
        for (int upper = 0; upper < 2; upper++)
            constants.tables[k][upper] = _mm512_loadu_si512(wide->by_degree[k] + 16 * upper);
    constants.code_range = _mm512_set1_epi64(wide->code_range);
    constants.code_minimum = _mm512_set1_epi32(wide->code_minimum);
    for (size_t row = 0; row < span->rows; row++)
        for (size_t b = span->first; b < span->end; b++) {
            size_t element = row * span->width + qg_start(span, b, LANES);
            const unsigned char *at = wide->parameters + qg_parameters(span, b) * QG_WIDE_BLOCK_BYTES;
            __m512i found = codes(&constants, (const int32_t *)(const void *)at, accumulator + element);
            if (blocks->code_bytes == 1)
                _mm_storeu_si128((__m128i *)((uint8_t *)out + element), _mm512_cvtepi32_epi8(found));
            else
                _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)out + element), _mm512_cvtepi32_epi16(found));
        }
}
#else
typedef int qg_no_wide_avx512;
#endif
