/* int32 accumulators to codes of 8 bits, in 16-bit lanes: equations (10) to (18) of docs/arithmetic.md. */
#ifndef QGELU_NARROW_H
#define QGELU_NARROW_H

#include <stdbool.h>

#include "blocks.h"
#include "channels.h"
#include "cpu.h"
#include "problem.h"

struct qg_narrow_input {
    size_t channels; /* 1 or more */
    struct qg_sums sums;
    struct qg_channels linear_shift, linear_multiplier, argument_shift, argument_multiplier, tail_multiplier, offset;
    const int32_t *coefficients;        /* [16, 4] */
    int32_t code_minimum, code_maximum; /* of a type of 8 bits */
};

/* Parameters of a block of n channels: QG_WORDS arrays of n int32, then QG_HALVES arrays of n uint16, these in the
   order in which the path's packing leaves the channels. */
enum {
    QG_BIAS,
    QG_LINEAR_HALF,
    QG_LINEAR_SHIFT,
    QG_ARGUMENT_HALF,
    QG_ARGUMENT_SHIFT,
    QG_LOWER, /* from here on only where `general` */
    QG_UPPER,
    QG_LEFT_SHIFT,
    QG_WORDS
};
enum {
    /* Doubled, a 15-bit multiplier's product is shifted by 16: the upper half of a 32-bit product. */
    QG_DOUBLED_LINEAR_MULTIPLIER,
    QG_DOUBLED_ARGUMENT_MULTIPLIER,
    QG_TAIL_MULTIPLIER,
    QG_OFFSET,
    QG_HALVES
};
#define QG_NARROW_BLOCK_BYTES(size) ((size) * (4 * QG_WORDS + 2 * QG_HALVES))

struct qg_narrow {
    struct qg_blocks blocks; /* first: run gets a pointer to it */
    bool general;            /* clamped per channel, or shifted left; else all accumulators are clamped by `bound` */
    int32_t bound;
    uint8_t code_range, code_minimum; /* largest code less smallest, and the smallest one's bit pattern */
    int16_t by_degree[4][16], by_segment[16][4];
    unsigned char *parameters; /* of blocks.stored blocks, from a multiple of 64 on */
    void *memory;
};

/* Returns NULL, with the problem, if the parameters are not what the arithmetic is proved for. */
struct qg_narrow *qg_prepare_narrow(const struct qg_narrow_input *input, const struct qg_cpu *cpu,
                                    struct qg_problem *problem);
void qg_free_narrow(struct qg_narrow *narrow);

static inline const struct qg_narrow *qg_narrow_of(const struct qg_blocks *blocks) {
    return (const struct qg_narrow *)blocks;
}

/* A path: its blocks, its channel in each 16-bit lane, and the function that runs it. */
struct qg_narrow_path {
    size_t size;
    void (*order)(size_t *channels);
    qg_run_span run;
};

#if defined(QG_X86)
extern const struct qg_narrow_path qg_narrow_avx512, qg_narrow_avx2;
/* The order of 16-bit lanes where packing works within 128-bit lanes; `words` int32 lanes a vector, `units` times four
   vectors a block. */
void qg_order_in_lanes(size_t *channels, size_t words, size_t units);
#endif

#endif
