/* 256 entries as 16 rows of 16 by PSHUFB, which gives 0 where an index has its top bit set.

   With y_r = code - 16 r modulo 256, r = 0 to 7, a code in row q < 8 has a clear top bit for all r <= q, and one in row
   q >= 8 for all r >= q - 7. Each half of the table holds differences (XOR) of neighbouring rows, so that the XOR of
   whatever takes part is the entry; the upper half starts from row 15. The code's top bit chooses the half. */
#include "table.h"

#if defined(QG_X86)
#include <immintrin.h>

#define QG_AVX2 QG_TARGET("avx2")

struct table {
    __m256i low[8], high[8];
};

QG_AVX2 QG_INLINE __m256i both_lanes(__m128i row) {
    return _mm256_broadcastsi128_si256(row);
}

QG_AVX2 QG_INLINE __m256i look_up(const struct table *table, __m256i code) {
    __m256i low = _mm256_shuffle_epi8(table->low[0], code);
    __m256i high = _mm256_shuffle_epi8(table->high[0], _mm256_and_si256(code, _mm256_set1_epi8(15)));
    __m256i index = code;
    for (int r = 1; r < 8; r++) {
        index = _mm256_sub_epi8(index, _mm256_set1_epi8(16));
        low = _mm256_xor_si256(low, _mm256_shuffle_epi8(table->low[r], index));
        high = _mm256_xor_si256(high, _mm256_shuffle_epi8(table->high[r], index));
    }
    return _mm256_blendv_epi8(low, high, code);
}

QG_AVX2 void qg_lookup_avx2(const void *entries, const void *codes, void *out, size_t count) {
    const uint8_t *from = codes;
    uint8_t *to = out;
    struct table table;
    __m128i rows[16];
    for (int r = 0; r < 16; r++) rows[r] = _mm_loadu_si128((const __m128i *)((const uint8_t *)entries + 16 * r));
    table.low[0] = both_lanes(rows[0]);
    table.high[0] = both_lanes(rows[15]);
    for (int r = 1; r < 8; r++) {
        table.low[r] = both_lanes(_mm_xor_si128(rows[r], rows[r - 1]));
        table.high[r] = both_lanes(_mm_xor_si128(rows[r + 7], rows[r + 8]));
    }
    size_t i = 0;
    for (; i + 64 <= count; i += 64) {
        __m256i first = look_up(&table, _mm256_loadu_si256((const __m256i *)(from + i)));
        __m256i second = look_up(&table, _mm256_loadu_si256((const __m256i *)(from + i + 32)));
        _mm256_storeu_si256((__m256i *)(to + i), first);
        _mm256_storeu_si256((__m256i *)(to + i + 32), second);
    }
    for (; i < count; i++) to[i] = ((const uint8_t *)entries)[from[i]];
}
#else
typedef int qg_no_table_avx2;
#endif
