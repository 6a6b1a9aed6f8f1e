/* Parameters per channel or per tensor, as an op's inputs give them. */
#ifndef QGELU_CHANNELS_H
#define QGELU_CHANNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "problem.h"

struct qg_channels {
    const char *name; /* the input's */
    const int32_t *values;
    size_t count; /* C, or 1 for all channels */
};

static inline int32_t qg_at(const struct qg_channels *input, size_t channel) {
    return input->values[input->count == 1 ? 0 : channel];
}

/* Whether every value lies in [low, high]. */
bool qg_within(const struct qg_channels *input, int64_t low, int64_t high, struct qg_problem *problem);

/* The sums of a clamped accumulator and the bias: (10) and (20) of docs/arithmetic.md. */
struct qg_sums {
    struct qg_channels bias, lower, upper, left_shift;
};

/* The largest magnitude of v << left_shift in a channel; needs a left_shift from 0 to 30. */
int64_t qg_largest_magnitude(const struct qg_sums *sums, size_t channel);

#endif
