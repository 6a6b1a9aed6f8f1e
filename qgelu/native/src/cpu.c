#include "cpu.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"portable", "neon", "avx2", "avx512", "avx512_ifma"};

#if defined(QG_X86)
static bool has_avx512(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

static bool is_offered(enum qg_path path) {
    switch (path) {
    case QG_PORTABLE:
        return true;
#if defined(QG_NEON)
    case QG_PATH_NEON:
        return true; /* part of the base architecture */
#endif
#if defined(QG_X86)
    case QG_PATH_AVX2:
        return __builtin_cpu_supports("avx2");
    case QG_PATH_AVX512:
        return has_avx512();
    case QG_PATH_AVX512_IFMA: /* what the package's other kernels make of it; here the same as the one before */
        return has_avx512() && __builtin_cpu_supports("avx512ifma");
#endif
    default:
        return false;
    }
}

const char *qg_find_cpu(struct qg_cpu *cpu) {
#if defined(QG_X86)
    __builtin_cpu_init();
#endif
    const char *wish = getenv("QGELU_KERNELS");
    bool wished = wish != NULL && *wish != '\0';
    bool found = false;
    cpu->path = QG_PORTABLE;
    for (int path = QG_PORTABLE; path <= QG_PATH_AVX512_IFMA && !found; path++) {
        bool offered = is_offered((enum qg_path)path);
        if (offered) cpu->path = (enum qg_path)path;
        found = wished && offered && strcmp(wish, names[path]) == 0;
    }
    cpu->byte_permutes = false;
#if defined(QG_X86)
    cpu->byte_permutes = cpu->path >= QG_PATH_AVX512 && __builtin_cpu_supports("avx512vbmi");
#endif
    if (wished && !found)
        return "environment variable QGELU_KERNELS names no path that this CPU offers: use portable, neon, avx2, "
               "avx512 or avx512_ifma, or leave it unset";
    return NULL;
}
