#include "narrow.h"

#include <stdlib.h>

enum { GROUP_CHANNELS = 512, LARGEST_SHIFT = 30, SEGMENTS = 16 };

static inline int32_t largest(int32_t a, int32_t b) {
    return a > b ? a : b;
}
static inline int32_t smallest(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* One step of (15): coefficient + floor(p fraction / 2^16), without shifting a negative number right. */
static inline int32_t next(int32_t coefficient, int32_t p, int32_t fraction) {
    uint32_t lifted = (uint32_t)(p * fraction) + ((uint32_t)1 << 30);
    return coefficient + (int32_t)(lifted >> 16) - (1 << 14);
}

static inline int32_t fraction_of(int32_t u) {
    return ((u & 4095) << 4) - 32768;
}

/* value + (value * multiplier >> 15), from the doubled multiplier: (13), (14). */
static inline int32_t grown(int32_t value, uint16_t doubled_multiplier) {
    return value + (int32_t)((uint32_t)value * doubled_multiplier >> 16);
}

enum { SIZE = 16 };

/* Loops over a few lanes each, without a branch: compilers turn some of them into vectors. */
static void run_block(const struct qg_narrow *narrow, const int32_t *words, const int32_t *accumulator, uint8_t *out) {
    const uint16_t *halves = (const uint16_t *)(const void *)(words + QG_WORDS * SIZE);
    int32_t amount[SIZE], u[SIZE], p[SIZE];
    for (int k = 0; k < SIZE; k++) {
        int32_t v = smallest(largest(accumulator[k], words[QG_LOWER * SIZE + k]), words[QG_UPPER * SIZE + k]);
        v = (v + words[QG_BIAS * SIZE + k]) * (1 << words[QG_LEFT_SHIFT * SIZE + k]); /* (10), (11) */
        int32_t positive = largest(v, 0), magnitude = largest(v, -v);
        amount[k] = (positive + words[QG_LINEAR_HALF * SIZE + k]) >> words[QG_LINEAR_SHIFT * SIZE + k]; /* (12) */
        u[k] = (magnitude + words[QG_ARGUMENT_HALF * SIZE + k]) >> words[QG_ARGUMENT_SHIFT * SIZE + k];
    }
    for (int k = 0; k < SIZE; k++) {
        amount[k] = grown(smallest(amount[k], 65535), halves[QG_DOUBLED_LINEAR_MULTIPLIER * SIZE + k]);
        amount[k] = smallest(amount[k] + halves[QG_OFFSET * SIZE + k], 65535); /* (13), (16) */
        u[k] = smallest(grown(smallest(u[k], 65535), halves[QG_DOUBLED_ARGUMENT_MULTIPLIER * SIZE + k]), 65535);
    }
    for (int k = 0; k < SIZE; k++) {
        const int16_t *c = narrow->by_segment[u[k] >> 12];
        int32_t fraction = fraction_of(u[k]);
        p[k] = largest(next(c[0], next(c[1], next(c[2], c[3], fraction), fraction), fraction), 0); /* (15) */
    }
    for (int k = 0; k < SIZE; k++) {
        int32_t scaled = (int32_t)((uint32_t)p[k] * halves[QG_TAIL_MULTIPLIER * SIZE + k] >> 16);
        int32_t code = largest(amount[k] - scaled, 0) >> 7; /* (17), (18) */
        out[k] = (uint8_t)(smallest(code, narrow->code_range) + narrow->code_minimum);
    }
}

static void run_portable(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                         void *out) {
    const struct qg_narrow *narrow = qg_narrow_of(blocks);
    for (size_t row = 0; row < span->rows; row++)
        for (size_t b = span->first; b < span->end; b++) {
            size_t element = row * span->width + qg_start(span, b, SIZE);
            const unsigned char *at = narrow->parameters + qg_parameters(span, b) * QG_NARROW_BLOCK_BYTES(SIZE);
            run_block(narrow, (const int32_t *)(const void *)at, accumulator + element, (uint8_t *)out + element);
        }
}

static void order_as_they_are(size_t *channels) {
    for (size_t lane = 0; lane < SIZE; lane++) channels[lane] = lane;
}

static const struct qg_narrow_path portable = {SIZE, order_as_they_are, run_portable};

#if defined(QG_X86)
void qg_order_in_lanes(size_t *channels, size_t words, size_t units) {
    for (size_t unit = 0; unit < units; unit++)
        for (size_t pair = 0; pair < 2; pair++)
            for (size_t lane = 0; lane < words / 4; lane++)
                for (size_t source = 0; source < 2; source++)
                    for (size_t element = 0; element < 4; element++)
                        *channels++ = unit * 4 * words + pair * 2 * words + source * words + 4 * lane + element;
}
#endif

static const struct qg_narrow_path *choose_path(const struct qg_cpu *cpu) {
#if defined(QG_X86)
    if (cpu->path >= QG_PATH_AVX512) return &qg_narrow_avx512;
    if (cpu->path >= QG_PATH_AVX2) return &qg_narrow_avx2;
#endif
    (void)cpu;
    return &portable;
}

static bool check_ranges(const struct qg_narrow_input *input, struct qg_problem *problem) {
    return qg_within(&input->sums.left_shift, 0, LARGEST_SHIFT, problem) &&
           qg_within(&input->linear_shift, 0, LARGEST_SHIFT, problem) &&
           qg_within(&input->argument_shift, 0, LARGEST_SHIFT, problem) &&
           qg_within(&input->linear_multiplier, 0, INT16_MAX, problem) &&
           qg_within(&input->argument_multiplier, 0, INT16_MAX, problem) &&
           qg_within(&input->tail_multiplier, 0, UINT16_MAX, problem) &&
           qg_within(&input->offset, 0, UINT16_MAX, problem);
}

static int32_t half_of(int32_t shift) {
    return (int32_t)(((uint32_t)1 << shift) >> 1);
}

static int32_t larger_shift(const struct qg_narrow_input *input, size_t c) {
    int32_t linear = qg_at(&input->linear_shift, c), argument = qg_at(&input->argument_shift, c);
    return linear > argument ? linear : argument;
}

static bool check_sums(const struct qg_narrow_input *input, struct qg_problem *problem) {
    for (size_t c = 0; c < input->channels; c++)
        if (qg_largest_magnitude(&input->sums, c) + half_of(larger_shift(input, c)) > INT32_MAX)
            return qg_complain(problem,
                               "inputs 'lower', 'upper' and 'bias' let sums of channel %zu leave 32 bits: write the "
                               "model again with qgelu",
                               c);
    return true;
}

static bool take_coefficients(struct qg_narrow *narrow, const int32_t *coefficients, struct qg_problem *problem) {
    int32_t low = 0, high = 0; /* of coefficients, and of all sums that 16-bit lanes must hold */
    for (int segment = 0; segment < SEGMENTS; segment++)
        for (int k = 0; k < 4; k++) {
            int32_t value = coefficients[4 * segment + k];
            low = smallest(low, value);
            high = largest(high, value);
            narrow->by_segment[segment][k] = narrow->by_degree[k][segment] = (int16_t)value;
        }
    for (int32_t u = 0; u < 65536 && low >= INT16_MIN && high <= INT16_MAX; u++) {
        const int16_t *c = narrow->by_segment[u >> 12];
        int32_t p = c[3];
        for (int k = 2; k >= 0 && low >= INT16_MIN && high <= INT16_MAX; k--) {
            p = next(c[k], p, fraction_of(u));
            low = smallest(low, p);
            high = largest(high, p);
        }
    }
    if (low < INT16_MIN || high > INT16_MAX)
        return qg_complain(problem, "input 'coefficients' leaves 16 bits: write the model again with qgelu");
    return true;
}

/* Whether one bound for all channels clamps nothing but what has saturated, and lets no sum overflow; writes it. */
static bool find_bound(const struct qg_narrow_input *input, int32_t *bound) {
    int64_t largest_bias = 0, largest_half = 0, needed = 0;
    for (size_t c = 0; c < input->channels; c++) {
        int64_t bias = qg_at(&input->sums.bias, c);
        int64_t lower = qg_at(&input->sums.lower, c), upper = qg_at(&input->sums.upper, c);
        int32_t shift = larger_shift(input, c);
        int64_t saturated = (int64_t)65536 << shift; /* both branches, from here on */
        int64_t magnitude = bias < 0 ? -bias : bias;
        if (qg_at(&input->sums.left_shift, c) > 0) return false;
        if (upper + bias < saturated && upper < INT32_MAX) return false;
        if (lower + bias > -saturated && lower > INT32_MIN) return false;
        if (magnitude > largest_bias) largest_bias = magnitude;
        if (half_of(shift) > largest_half) largest_half = half_of(shift);
        if (saturated > needed) needed = saturated;
    }
    int64_t found = INT32_MAX - largest_half - largest_bias;
    *bound = (int32_t)(found > 0 ? found : 0);
    return found >= needed + largest_bias;
}

static void write_block(const struct qg_narrow_input *input, const struct qg_narrow *narrow, const size_t *order,
                        size_t block) {
    size_t size = narrow->blocks.size;
    int32_t *words = (int32_t *)(void *)(narrow->parameters + block * QG_NARROW_BLOCK_BYTES(size));
    uint16_t *halves = (uint16_t *)(void *)(words + QG_WORDS * size);
    for (size_t lane = 0; lane < size; lane++) {
        size_t c = qg_channel(&narrow->blocks, block, lane);
        words[QG_BIAS * size + lane] = qg_at(&input->sums.bias, c);
        words[QG_LINEAR_HALF * size + lane] = half_of(qg_at(&input->linear_shift, c));
        words[QG_LINEAR_SHIFT * size + lane] = qg_at(&input->linear_shift, c);
        words[QG_ARGUMENT_HALF * size + lane] = half_of(qg_at(&input->argument_shift, c));
        words[QG_ARGUMENT_SHIFT * size + lane] = qg_at(&input->argument_shift, c);
        words[QG_LOWER * size + lane] = qg_at(&input->sums.lower, c);
        words[QG_UPPER * size + lane] = qg_at(&input->sums.upper, c);
        words[QG_LEFT_SHIFT * size + lane] = qg_at(&input->sums.left_shift, c);
        c = qg_channel(&narrow->blocks, block, order[lane]);
        halves[QG_DOUBLED_LINEAR_MULTIPLIER * size + lane] = (uint16_t)(2 * qg_at(&input->linear_multiplier, c));
        halves[QG_DOUBLED_ARGUMENT_MULTIPLIER * size + lane] = (uint16_t)(2 * qg_at(&input->argument_multiplier, c));
        halves[QG_TAIL_MULTIPLIER * size + lane] = (uint16_t)qg_at(&input->tail_multiplier, c);
        halves[QG_OFFSET * size + lane] = (uint16_t)qg_at(&input->offset, c);
    }
}

struct qg_narrow *qg_prepare_narrow(const struct qg_narrow_input *input, const struct qg_cpu *cpu,
                                    struct qg_problem *problem) {
    if (!check_ranges(input, problem) || !check_sums(input, problem)) return NULL;
    const struct qg_narrow_path *path = choose_path(cpu);
    struct qg_blocks blocks;
    qg_lay_out(&blocks, input->channels, path->size, GROUP_CHANNELS);
    blocks.code_bytes = 1;
    blocks.run = path->run;
    struct qg_narrow *narrow = calloc(1, sizeof *narrow);
    void *memory = malloc(blocks.stored * QG_NARROW_BLOCK_BYTES(blocks.size) + 64);
    if (narrow == NULL || memory == NULL || !take_coefficients(narrow, input->coefficients, problem)) {
        if (narrow == NULL || memory == NULL) qg_complain(problem, "out of memory");
        free(memory);
        free(narrow);
        return NULL;
    }
    narrow->blocks = blocks;
    narrow->memory = memory;
    narrow->parameters = (unsigned char *)memory + (64 - (uintptr_t)memory % 64);
    narrow->general = !find_bound(input, &narrow->bound);
    narrow->code_range = (uint8_t)(input->code_maximum - input->code_minimum);
    narrow->code_minimum = (uint8_t)input->code_minimum;
    size_t order[QG_LARGEST_BLOCK];
    path->order(order);
    for (size_t block = 0; block < blocks.stored; block++) write_block(input, narrow, order, block);
    return narrow;
}

void qg_free_narrow(struct qg_narrow *narrow) {
    if (narrow == NULL) return;
    free(narrow->memory);
    free(narrow);
}
