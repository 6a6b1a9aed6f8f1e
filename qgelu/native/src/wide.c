#include "wide.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP_CHANNELS = 256, SEGMENTS = 32, DEGREE = 4 };

/* floor(value / 2^bits) without shifting a negative number right; |value| < 2^62. */
static int64_t floor_shift(int64_t value, int bits) {
    const int64_t lift = (int64_t)1 << 62;
    return (int64_t)(((uint64_t)value + (uint64_t)lift) >> bits) - (lift >> bits);
}

static int64_t tail(const int32_t coefficients[DEGREE + 1], int32_t u) {
    int64_t fraction = (u & 32767) - 16384;
    int64_t p = coefficients[DEGREE];
    for (int k = DEGREE - 1; k >= 0; k--) p = coefficients[k] + floor_shift(p * fraction, 15);
    return p > 0 ? p : 0;
}

static void run_portable(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                         void *out) {
    const struct qg_wide *wide = (const struct qg_wide *)(const void *)blocks;
    for (size_t row = 0; row < span->rows; row++)
        for (size_t b = span->first; b < span->end; b++) {
            size_t element = row * span->width + qg_start(span, b, 1);
            const struct qg_wide_channel *channel = &wide->channels[qg_parameters(span, b)];
            int32_t sum = accumulator[element];
            if (sum < channel->lower) sum = channel->lower;
            if (sum > channel->upper) sum = channel->upper;
            int64_t v = ((int64_t)sum + channel->bias) * ((int64_t)1 << channel->left_shift); /* (20), (21) */
            int64_t u = (v < 0 ? -v : v) * channel->argument_multiplier + channel->argument_half;
            u >>= channel->argument_shift;
            if (u > 1048575) u = 1048575; /* (22) */
            int64_t p = tail(wide->coefficients[u >> 15], (int32_t)u); /* (23) */
            int64_t result = (v > 0 ? v : 0) * channel->linear_multiplier + channel->offset;
            result -= p * channel->tail_multiplier; /* (24) */
            int64_t code = result > 0 ? result >> channel->output_shift : 0;
            if (code > wide->code_range) code = wide->code_range; /* (25) */
            code += wide->code_minimum;
            if (blocks->code_bytes == 1)
                ((uint8_t *)out)[element] = (uint8_t)code;
            else
                ((uint16_t *)out)[element] = (uint16_t)code;
        }
}

/* Bounds every sum of (23) for the fractions from -1/2 to 1/2: inner ones by 2^26, the last one by 2^31. */
static bool check_coefficients(const int32_t *coefficients, struct qg_problem *problem) {
    for (int segment = 0; segment < SEGMENTS; segment++) {
        int64_t bound = 0;
        for (int k = DEGREE; k >= 0; k--) {
            int64_t c = coefficients[(DEGREE + 1) * segment + k];
            bound = (c < 0 ? -c : c) + (bound + 1) / 2 + 1;
            if (bound >= (int64_t)1 << (k > 0 ? 26 : 31))
                return qg_complain(problem, "input 'coefficients' leaves its width in segment %d: write the model again "
                                   "with qgelu", segment);
        }
    }
    return true;
}

static bool check(const struct qg_wide_input *input, struct qg_problem *problem) {
    bool within = qg_within(&input->sums.left_shift, 0, 30, problem) &&
                  qg_within(&input->argument_multiplier, 0, INT32_MAX, problem) &&
                  qg_within(&input->argument_shift, 1, 62, problem) &&
                  qg_within(&input->linear_multiplier, 0, INT32_MAX, problem) &&
                  qg_within(&input->tail_multiplier, 0, INT32_MAX, problem) &&
                  qg_within(&input->output_shift, 1, 62, problem);
    if (!within || !check_coefficients(input->coefficients, problem)) return false;
    /* Products are below 2^62: with an offset of at most that no sum leaves 64 bits. */
    for (size_t c = 0; c < input->offset_count; c++)
        if (input->offset[c] > (int64_t)1 << 62 || input->offset[c] < -((int64_t)1 << 62))
            return qg_complain(problem, "input 'offset' is %" PRId64 " in channel %zu, beyond 2^62: write the model "
                               "again with qgelu", input->offset[c], c);
    for (size_t c = 0; c < input->channels; c++)
        if (qg_largest_magnitude(&input->sums, c) > INT32_MAX)
            return qg_complain(problem, "inputs 'lower', 'upper' and 'bias' let sums of channel %zu leave 32 bits: "
                               "write the model again with qgelu", c);
    return true;
}

struct qg_wide *qg_prepare_wide(const struct qg_wide_input *input, const struct qg_cpu *cpu,
                                struct qg_problem *problem) {
    (void)cpu;
    if (!check(input, problem)) return NULL;
    struct qg_blocks blocks;
    qg_lay_out(&blocks, input->channels, 1, GROUP_CHANNELS);
    blocks.code_bytes = input->code_bytes;
    blocks.run = run_portable;
    struct qg_wide *wide = malloc(sizeof *wide + blocks.stored * sizeof wide->channels[0]);
    if (wide == NULL) {
        qg_complain(problem, "out of memory");
        return NULL;
    }
    wide->blocks = blocks;
    wide->code_range = input->code_maximum - input->code_minimum;
    wide->code_minimum = input->code_minimum;
    memcpy(wide->coefficients, input->coefficients, sizeof wide->coefficients);
    for (size_t c = 0; c < input->channels; c++) {
        struct qg_wide_channel *channel = &wide->channels[c];
        channel->bias = qg_at(&input->sums.bias, c);
        channel->lower = qg_at(&input->sums.lower, c);
        channel->upper = qg_at(&input->sums.upper, c);
        channel->left_shift = qg_at(&input->sums.left_shift, c);
        channel->argument_multiplier = qg_at(&input->argument_multiplier, c);
        channel->argument_shift = qg_at(&input->argument_shift, c);
        channel->argument_half = (int64_t)1 << (channel->argument_shift - 1);
        channel->linear_multiplier = qg_at(&input->linear_multiplier, c);
        channel->tail_multiplier = qg_at(&input->tail_multiplier, c);
        channel->offset = input->offset[input->offset_count == 1 ? 0 : c];
        channel->output_shift = qg_at(&input->output_shift, c);
    }
    return wide;
}

void qg_free_wide(struct qg_wide *wide) {
    free(wide);
}
