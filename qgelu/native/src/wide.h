/* int32 accumulators to codes of up to 16 bits, with 64-bit products: equations (20) to (25) of docs/arithmetic.md. */
#ifndef QGELU_WIDE_H
#define QGELU_WIDE_H

#include "blocks.h"
#include "channels.h"
#include "cpu.h"
#include "problem.h"

struct qg_wide_input {
    size_t channels; /* 1 or more */
    struct qg_sums sums;
    struct qg_channels argument_multiplier, argument_shift, linear_multiplier, tail_multiplier, output_shift;
    const int64_t *offset; /* one for each channel, or one for all */
    size_t offset_count;
    const int32_t *coefficients; /* [32, 5] */
    int32_t code_minimum, code_maximum;
    size_t code_bytes;
};

/* Parameters of a block of 16 channels: QG_WIDE_WORDS arrays of 16 int32, then QG_WIDE_DOUBLES arrays of 16 int64, of the
   even channels and then the odd ones: 64-bit products are formed of even and odd lanes apart. */
enum {
    QG_WIDE_BIAS,
    QG_WIDE_LOWER,
    QG_WIDE_UPPER,
    QG_WIDE_LEFT_SHIFT,
    QG_WIDE_ARGUMENT_MULTIPLIER,
    QG_WIDE_LINEAR_MULTIPLIER,
    QG_WIDE_TAIL_MULTIPLIER,
    QG_WIDE_WORDS
};
enum { QG_WIDE_ARGUMENT_HALF, QG_WIDE_ARGUMENT_SHIFT, QG_WIDE_OFFSET, QG_WIDE_OUTPUT_SHIFT, QG_WIDE_DOUBLES };
enum { QG_WIDE_SIZE = 16, QG_WIDE_BLOCK_BYTES = QG_WIDE_SIZE * (4 * QG_WIDE_WORDS + 8 * QG_WIDE_DOUBLES) };

struct qg_wide {
    struct qg_blocks blocks; /* first: run gets a pointer to it */
    int32_t code_range, code_minimum;
    int32_t by_degree[5][32], by_segment[32][5];
    unsigned char *parameters; /* of blocks.stored blocks, from a multiple of 64 on */
    void *memory;
};

static inline const struct qg_wide *qg_wide_of(const struct qg_blocks *blocks) {
    return (const struct qg_wide *)(const void *)blocks;
}

#if defined(QG_X86)
/* For coefficients whose products in (23) fit 32 bits. */
void qg_run_wide_avx512(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                        void *out);
void qg_run_wide_avx2(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                      void *out);
#endif

/* Returns NULL, with the problem, if the parameters are not what the arithmetic is proved for. */
struct qg_wide *qg_prepare_wide(const struct qg_wide_input *input, const struct qg_cpu *cpu,
                                struct qg_problem *problem);
void qg_free_wide(struct qg_wide *wide);

#endif
