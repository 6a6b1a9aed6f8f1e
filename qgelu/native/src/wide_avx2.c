/* 8 lanes of 32 bits, and twice 4 of 64 for the products; coefficients by gathers. */
#include "wide.h"

#if defined(QG_X86)
#include <immintrin.h>

#define QG_AVX2 QG_TARGET("avx2")

enum { LANES = 8, SIZE = QG_WIDE_SIZE };

/* `part` is the first or the second half of a block. */
QG_AVX2 QG_INLINE __m256i word(const int32_t *words, int parameter, int part) {
    return _mm256_load_si256((const __m256i *)(const void *)(words + parameter * SIZE + part * LANES));
}

QG_AVX2 QG_INLINE __m256i both(const int32_t *words, int parameter, int part, int odd) {
    const int64_t *doubles = (const int64_t *)(const void *)(words + QG_WIDE_WORDS * SIZE);
    doubles += parameter * SIZE + odd * SIZE / 2 + part * LANES / 2;
    return _mm256_load_si256((const __m256i *)(const void *)doubles);
}

/* The even or the odd lanes, where a 64-bit product looks for them. */
QG_AVX2 QG_INLINE __m256i half(__m256i value, int odd) {
    return odd ? _mm256_srli_epi64(value, 32) : value;
}

QG_AVX2 QG_INLINE __m256i joined(__m256i even, __m256i odd) {
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

/* Of 64-bit lanes that are not negative. */
QG_AVX2 QG_INLINE __m256i smallest(__m256i value, int64_t limit) {
    __m256i most = _mm256_set1_epi64x(limit);
    return _mm256_blendv_epi8(value, most, _mm256_cmpgt_epi64(value, most));
}

QG_AVX2 QG_INLINE __m256i codes(const struct qg_wide *wide, const int32_t *words, const int32_t *accumulator,
                                int part) {
    __m256i parts[2];
    __m256i v = _mm256_loadu_si256((const __m256i *)(accumulator + part * LANES));
    v = _mm256_min_epi32(_mm256_max_epi32(v, word(words, QG_WIDE_LOWER, part)), word(words, QG_WIDE_UPPER, part));
    v = _mm256_add_epi32(v, word(words, QG_WIDE_BIAS, part));          /* (20) */
    v = _mm256_sllv_epi32(v, word(words, QG_WIDE_LEFT_SHIFT, part)); /* (21) */
    __m256i magnitude = _mm256_abs_epi32(v), multiplier = word(words, QG_WIDE_ARGUMENT_MULTIPLIER, part);
    for (int odd = 0; odd < 2; odd++) {
        __m256i product = _mm256_mul_epu32(half(magnitude, odd), half(multiplier, odd));
        product = _mm256_add_epi64(product, both(words, QG_WIDE_ARGUMENT_HALF, part, odd));
        parts[odd] = smallest(_mm256_srlv_epi64(product, both(words, QG_WIDE_ARGUMENT_SHIFT, part, odd)), 1048575);
    }
    __m256i u = joined(parts[0], parts[1]); /* (22) */
    __m256i segment = _mm256_srli_epi32(u, 15);
    __m256i fraction = _mm256_and_si256(u, _mm256_set1_epi32(32767));
    fraction = _mm256_sub_epi32(fraction, _mm256_set1_epi32(16384));
    __m256i p = _mm256_i32gather_epi32(wide->by_degree[4], segment, 4);
    for (int k = 3; k >= 0; k--)
        p = _mm256_add_epi32(_mm256_i32gather_epi32(wide->by_degree[k], segment, 4),
                             _mm256_srai_epi32(_mm256_mullo_epi32(p, fraction), 15));
    p = _mm256_max_epi32(p, _mm256_setzero_si256()); /* (23) */
    __m256i positive = _mm256_max_epi32(v, _mm256_setzero_si256());
    __m256i linear = word(words, QG_WIDE_LINEAR_MULTIPLIER, part), tail = word(words, QG_WIDE_TAIL_MULTIPLIER, part);
    for (int odd = 0; odd < 2; odd++) {
        __m256i total = _mm256_mul_epu32(half(positive, odd), half(linear, odd));
        total = _mm256_add_epi64(total, both(words, QG_WIDE_OFFSET, part, odd));
        total = _mm256_sub_epi64(total, _mm256_mul_epu32(half(p, odd), half(tail, odd))); /* (24) */
        total = _mm256_andnot_si256(_mm256_cmpgt_epi64(_mm256_setzero_si256(), total), total);
        total = _mm256_srlv_epi64(total, both(words, QG_WIDE_OUTPUT_SHIFT, part, odd));
        parts[odd] = smallest(total, wide->code_range); /* (25) */
    }
    return _mm256_add_epi32(joined(parts[0], parts[1]), _mm256_set1_epi32(wide->code_minimum));
}

QG_AVX2 void qg_run_wide_avx2(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                              void *out) {
    const struct qg_wide *wide = qg_wide_of(blocks);
    const __m256i low = _mm256_set1_epi32(65535);
    for (size_t row = 0; row < span->rows; row++)
        for (size_t b = span->first; b < span->end; b++) {
            size_t element = row * span->width + qg_start(span, b, SIZE);
            const unsigned char *at = wide->parameters + qg_parameters(span, b) * QG_WIDE_BLOCK_BYTES;
            const int32_t *words = (const int32_t *)(const void *)at;
            __m256i first = codes(wide, words, accumulator + element, 0);
            __m256i second = codes(wide, words, accumulator + element, 1);
            /* The lower halves of 32-bit lanes, as they are. */
            __m256i packed = _mm256_packus_epi32(_mm256_and_si256(first, low), _mm256_and_si256(second, low));
            packed = _mm256_permute4x64_epi64(packed, 0xd8);
            if (blocks->code_bytes == 2) {
                _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)out + element), packed);
            } else {
                packed = _mm256_and_si256(packed, _mm256_set1_epi16(255));
                packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(packed, packed), 0xd8);
                _mm_storeu_si128((__m128i *)((uint8_t *)out + element), _mm256_castsi256_si128(packed));
            }
        }
}
#else
typedef int qg_no_wide_avx2;
#endif
