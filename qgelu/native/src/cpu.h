/* Which instruction sets the kernels may use. */
#ifndef QGELU_CPU_H
#define QGELU_CPU_H

#include <stdbool.h>

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define QG_X86 1
/* Compiles one function for an instruction set that the rest of the library does not assume. */
#define QG_TARGET(features) __attribute__((target(features)))
#define QG_INLINE static inline __attribute__((always_inline))
#elif defined(__aarch64__) || defined(_M_ARM64)
#define QG_NEON 1
#endif

/* In rising order: each path's CPU offers the ones before it. */
enum qg_path { QG_PORTABLE, QG_PATH_NEON, QG_PATH_AVX2, QG_PATH_AVX512, QG_PATH_AVX512_IFMA };

struct qg_cpu {
    enum qg_path path;
    bool byte_permutes; /* AVX-512 VBMI */
};

/* Finds what the CPU offers and the environment variable QGELU_KERNELS allows. Returns NULL, or what is wrong with the
   variable. */
const char *qg_find_cpu(struct qg_cpu *cpu);

#endif
