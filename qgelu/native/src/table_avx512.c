/* 256 entries in four registers: two 128-entry byte permutes, and a blend on the code's top bit. */
#include "table.h"

#if defined(QG_X86)
#include <immintrin.h>

#define QG_VBMI QG_TARGET("avx512f,avx512bw,avx512vl,avx512vbmi")

struct table {
    __m512i parts[4];
};

QG_VBMI QG_INLINE __m512i look_up(const struct table *table, __m512i code) {
    __m512i low = _mm512_permutex2var_epi8(table->parts[0], code, table->parts[1]);
    __m512i high = _mm512_permutex2var_epi8(table->parts[2], code, table->parts[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(code), low, high);
}

QG_VBMI void qg_lookup_avx512(const void *entries, const void *codes, void *out, size_t count) {
    const uint8_t *from = codes;
    uint8_t *to = out;
    struct table table;
    for (int k = 0; k < 4; k++) table.parts[k] = _mm512_loadu_si512((const uint8_t *)entries + 64 * k);
    size_t i = 0;
    for (; i + 256 <= count; i += 256) {
        __m512i found[4];
        for (int k = 0; k < 4; k++) found[k] = look_up(&table, _mm512_loadu_si512(from + i + 64 * k));
        for (int k = 0; k < 4; k++) _mm512_storeu_si512(to + i + 64 * k, found[k]);
    }
    for (; i < count; i += 64) {
        __mmask64 lanes = count - i < 64 ? ((__mmask64)1 << (count - i)) - 1 : ~(__mmask64)0;
        __m512i code = _mm512_maskz_loadu_epi8(lanes, from + i);
        _mm512_mask_storeu_epi8(to + i, lanes, look_up(&table, code));
    }
}
#else
typedef int qg_no_table_avx512;
#endif
