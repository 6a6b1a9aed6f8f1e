/* Codes to codes by a table: out[i] = table[codes[i]]. */
#ifndef QGELU_TABLE_H
#define QGELU_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "cpu.h"

/* Codes are read as bit patterns. Neither array has an alignment beyond its elements'; they do not overlap. */
typedef void (*qg_lookup)(const void *table, const void *codes, void *out, size_t count);

/* The fastest function for codes and entries of 1 or 2 bytes. */
qg_lookup qg_choose_lookup(const struct qg_cpu *cpu, size_t code_bytes, size_t entry_bytes);

#if defined(QG_X86)
void qg_lookup_avx512(const void *table, const void *codes, void *out, size_t count);
void qg_lookup_avx2(const void *table, const void *codes, void *out, size_t count);
#endif
#if defined(QG_NEON)
void qg_lookup_neon(const void *table, const void *codes, void *out, size_t count);
#endif

#endif
