#include "table.h"

#define QG_DEFINE_LOOKUP(name, code_type, entry_type)                                      \
    static void name(const void *table, const void *codes, void *out, size_t count) {      \
        const entry_type *entries = table;                                                 \
        const code_type *from = codes;                                                     \
        entry_type *to = out;                                                              \
        for (size_t i = 0; i < count; i++) to[i] = entries[from[i]];                       \
    }

QG_DEFINE_LOOKUP(lookup_8_8, uint8_t, uint8_t)
QG_DEFINE_LOOKUP(lookup_8_16, uint8_t, uint16_t)
QG_DEFINE_LOOKUP(lookup_16_8, uint16_t, uint8_t)
QG_DEFINE_LOOKUP(lookup_16_16, uint16_t, uint16_t)

qg_lookup qg_choose_lookup(const struct qg_cpu *cpu, size_t code_bytes, size_t entry_bytes) {
    if (code_bytes == 2) return entry_bytes == 2 ? lookup_16_16 : lookup_16_8;
    if (entry_bytes == 2) return lookup_8_16;
#if defined(QG_X86)
    if (cpu->byte_permutes) return qg_lookup_avx512;
    if (cpu->path >= QG_PATH_AVX2) return qg_lookup_avx2;
#elif defined(QG_NEON)
    if (cpu->path >= QG_PATH_NEON) return qg_lookup_neon;
#endif
    (void)cpu;
    return lookup_8_8;
}
