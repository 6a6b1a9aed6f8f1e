#include "wide.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP_CHANNELS = 256, SEGMENTS = 32, DEGREE = 4, SIZE = QG_WIDE_SIZE };

/* Where the int64 parameters of a channel are: even ones first. */
static size_t place(size_t k) {
    return k % 2 * (SIZE / 2) + k / 2;
}

/* floor(value / 2^bits) without shifting a negative number right; |value| < 2^62. */
static int64_t floor_shift(int64_t value, int bits) {
    const int64_t lift = (int64_t)1 << 62;
    return (int64_t)(((uint64_t)value + (uint64_t)lift) >> bits) - (lift >> bits);
}

static inline int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}
static inline int64_t smallest(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t tail(const int32_t coefficients[DEGREE + 1], int64_t u) {
    int64_t fraction = (u & 32767) - 16384;
    int64_t p = coefficients[DEGREE];
    for (int k = DEGREE - 1; k >= 0; k--) p = coefficients[k] + floor_shift(p * fraction, 15);
    return largest(p, 0);
}

static void run_block(const struct qg_wide *wide, const unsigned char *parameters, const int32_t *accumulator,
                      uint16_t codes[SIZE]) {
    for (size_t k = 0; k < SIZE; k++) {
        const int32_t *word = (const int32_t *)(const void *)parameters + k;
        const int64_t *both = (const int64_t *)(const void *)(parameters + 4 * QG_WIDE_WORDS * SIZE) + place(k);
        int64_t v = smallest(largest(accumulator[k], word[QG_WIDE_LOWER * SIZE]), word[QG_WIDE_UPPER * SIZE]);
        v = (v + word[QG_WIDE_BIAS * SIZE]) * ((int64_t)1 << word[QG_WIDE_LEFT_SHIFT * SIZE]); /* (20), (21) */
        int64_t u = largest(v, -v) * word[QG_WIDE_ARGUMENT_MULTIPLIER * SIZE];
        u = (u + both[QG_WIDE_ARGUMENT_HALF * SIZE]) >> both[QG_WIDE_ARGUMENT_SHIFT * SIZE];
        u = smallest(u, 1048575); /* (22) */
        int64_t p = tail(wide->by_segment[u >> 15], u);
        int64_t result = largest(v, 0) * word[QG_WIDE_LINEAR_MULTIPLIER * SIZE] + both[QG_WIDE_OFFSET * SIZE];
        result = largest(result - p * word[QG_WIDE_TAIL_MULTIPLIER * SIZE], 0); /* (24) */
        int64_t code = smallest(result >> both[QG_WIDE_OUTPUT_SHIFT * SIZE], wide->code_range); /* (25) */
        codes[k] = (uint16_t)(code + wide->code_minimum);
    }
}

static void run_portable(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                         void *out) {
    const struct qg_wide *wide = qg_wide_of(blocks);
    for (size_t row = 0; row < span->rows; row++)
        for (size_t b = span->first; b < span->end; b++) {
            size_t element = row * span->width + qg_start(span, b, SIZE);
            const unsigned char *at = wide->parameters + qg_parameters(span, b) * QG_WIDE_BLOCK_BYTES;
            uint16_t codes[SIZE];
            run_block(wide, at, accumulator + element, codes);
            if (blocks->code_bytes == 2) {
                memcpy((uint16_t *)out + element, codes, sizeof codes);
            } else {
                for (size_t k = 0; k < SIZE; k++) ((uint8_t *)out)[element + k] = (uint8_t)codes[k];
            }
        }
}

/* A bound of the sums of (23) that are multiplied, for fractions from -1/2 to 1/2; *last gets one of the final sums. */
static int64_t bound_sums(const int32_t *coefficients, int64_t *last) {
    int64_t inner = 0;
    *last = 0;
    for (int segment = 0; segment < SEGMENTS; segment++) {
        int64_t bound = 0;
        for (int k = DEGREE; k >= 0; k--) {
            int64_t c = coefficients[(DEGREE + 1) * segment + k];
            if (bound > inner) inner = bound;
            bound = (c < 0 ? -c : c) + (bound + 1) / 2 + 1;
        }
        if (bound > *last) *last = bound;
    }
    return inner;
}

static bool check_coefficients(const int32_t *coefficients, struct qg_problem *problem) {
    int64_t last;
    bound_sums(coefficients, &last);
    if (last > INT32_MAX)
        return qg_complain(problem, "input 'coefficients' leaves its width: write the model again with qgelu");
    return true;
}

static qg_run_span choose_run(const int32_t *coefficients, const struct qg_cpu *cpu) {
#if defined(QG_X86)
    int64_t last;
    bool fits = bound_sums(coefficients, &last) < 1 << 17; /* times a fraction of at most 2^14 */
    if (fits && cpu->path >= QG_PATH_AVX512) return qg_run_wide_avx512;
    if (fits && cpu->path >= QG_PATH_AVX2) return qg_run_wide_avx2;
#endif
    (void)coefficients, (void)cpu;
    return run_portable;
}

static void write_block(const struct qg_wide_input *input, const struct qg_wide *wide, size_t block) {
    unsigned char *at = wide->parameters + block * QG_WIDE_BLOCK_BYTES;
    for (size_t k = 0; k < SIZE; k++) {
        size_t c = qg_channel(&wide->blocks, block, k);
        int32_t *word = (int32_t *)(void *)at + k;
        int64_t *both = (int64_t *)(void *)(at + 4 * QG_WIDE_WORDS * SIZE) + place(k);
        word[QG_WIDE_BIAS * SIZE] = qg_at(&input->sums.bias, c);
        word[QG_WIDE_LOWER * SIZE] = qg_at(&input->sums.lower, c);
        word[QG_WIDE_UPPER * SIZE] = qg_at(&input->sums.upper, c);
        word[QG_WIDE_LEFT_SHIFT * SIZE] = qg_at(&input->sums.left_shift, c);
        word[QG_WIDE_ARGUMENT_MULTIPLIER * SIZE] = qg_at(&input->argument_multiplier, c);
        word[QG_WIDE_LINEAR_MULTIPLIER * SIZE] = qg_at(&input->linear_multiplier, c);
        word[QG_WIDE_TAIL_MULTIPLIER * SIZE] = qg_at(&input->tail_multiplier, c);
        both[QG_WIDE_ARGUMENT_SHIFT * SIZE] = qg_at(&input->argument_shift, c);
        both[QG_WIDE_ARGUMENT_HALF * SIZE] = (int64_t)1 << (qg_at(&input->argument_shift, c) - 1);
        both[QG_WIDE_OFFSET * SIZE] = input->offset[input->offset_count == 1 ? 0 : c];
        both[QG_WIDE_OUTPUT_SHIFT * SIZE] = qg_at(&input->output_shift, c);
    }
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
    if (!check(input, problem)) return NULL;
    struct qg_blocks blocks;
    qg_lay_out(&blocks, input->channels, SIZE, GROUP_CHANNELS);
    blocks.code_bytes = input->code_bytes;
    blocks.run = choose_run(input->coefficients, cpu);
    struct qg_wide *wide = malloc(sizeof *wide);
    void *memory = malloc(blocks.stored * QG_WIDE_BLOCK_BYTES + 64);
    if (wide == NULL || memory == NULL) {
        free(memory);
        free(wide);
        qg_complain(problem, "out of memory");
        return NULL;
    }
    wide->blocks = blocks;
    wide->memory = memory;
    wide->parameters = (unsigned char *)memory + (64 - (uintptr_t)memory % 64);
    wide->code_range = input->code_maximum - input->code_minimum;
    wide->code_minimum = input->code_minimum;
    for (int segment = 0; segment < SEGMENTS; segment++)
        for (int k = 0; k <= DEGREE; k++)
            wide->by_segment[segment][k] = wide->by_degree[k][segment] =
                input->coefficients[(DEGREE + 1) * segment + k];
    for (size_t block = 0; block < blocks.stored; block++) write_block(input, wide, block);
    return wide;
}

void qg_free_wide(struct qg_wide *wide) {
    if (wide == NULL) return;
    free(wide->memory);
    free(wide);
}
