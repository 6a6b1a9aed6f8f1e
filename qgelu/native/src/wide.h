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

struct qg_wide_channel {
    int64_t offset, argument_half;
    int32_t bias, lower, upper, left_shift, argument_multiplier, argument_shift, linear_multiplier, tail_multiplier;
    int32_t output_shift;
};

struct qg_wide {
    struct qg_blocks blocks; /* first: run gets a pointer to it */
    int32_t code_range, code_minimum;
    int32_t coefficients[32][5];
    struct qg_wide_channel channels[]; /* of a row */
};

/* Returns NULL, with the problem, if the parameters are not what the arithmetic is proved for. */
struct qg_wide *qg_prepare_wide(const struct qg_wide_input *input, const struct qg_cpu *cpu,
                                struct qg_problem *problem);
void qg_free_wide(struct qg_wide *wide);

#endif
