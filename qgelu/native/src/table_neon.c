/* 256 entries as four tables of 64 by TBL and TBX, which leave lanes alone whose index is out of range. */
#include "table.h"

#if defined(QG_NEON)
#include <arm_neon.h>

static uint8x16_t look_up(const uint8x16x4_t parts[4], uint8x16_t code) {
    uint8x16_t found = vqtbl4q_u8(parts[0], code);
    for (int k = 1; k < 4; k++) {
        code = vsubq_u8(code, vdupq_n_u8(64));
        found = vqtbx4q_u8(found, parts[k], code);
    }
    return found;
}

void qg_lookup_neon(const void *entries, const void *codes, void *out, size_t count) {
    const uint8_t *from = codes, *table = entries;
    uint8_t *to = out;
    uint8x16x4_t parts[4];
    for (int k = 0; k < 4; k++)
        for (int r = 0; r < 4; r++) parts[k].val[r] = vld1q_u8(table + 64 * k + 16 * r);
    size_t i = 0;
    for (; i + 64 <= count; i += 64)
        for (int k = 0; k < 4; k++) vst1q_u8(to + i + 16 * k, look_up(parts, vld1q_u8(from + i + 16 * k)));
    for (; i < count; i++) to[i] = table[from[i]];
}
#else
typedef int qg_no_table_neon;
#endif
