#include "blocks.h"

#include <string.h>

void qg_lay_out(struct qg_blocks *blocks, size_t channels, size_t size, size_t group_channels) {
    size_t repeats = (size + channels - 1) / channels;
    /* At most an eighth of the lanes is wasted. */
    while ((channels * repeats + size - 1) / size * size > channels * repeats + channels * repeats / 8) repeats++;
    blocks->channels = channels;
    blocks->width = channels * repeats;
    blocks->size = size;
    blocks->group = group_channels / size;
    blocks->standard = (blocks->width + size - 1) / size;
    blocks->stored = blocks->standard + (blocks->width % size != 0);
}

size_t qg_channel(const struct qg_blocks *blocks, size_t parameters, size_t lane) {
    size_t start = parameters < blocks->standard ? parameters * blocks->size : blocks->width - blocks->size;
    size_t element = start + lane < blocks->width ? start + lane : blocks->width - 1;
    return element % blocks->channels;
}

static void run_rows(const struct qg_blocks *blocks, struct qg_span span, size_t count, const int32_t *accumulator,
                     void *out) {
    for (span.first = 0; span.first < count; span.first = span.end) {
        span.end = count - span.first > blocks->group ? span.first + blocks->group : count;
        blocks->run(blocks, &span, accumulator, out);
    }
}

void qg_run_blocks(const struct qg_blocks *blocks, const int32_t *accumulator, void *out, size_t count) {
    unsigned char *codes = out;
    size_t rows = count / blocks->width, size = blocks->size;
    if (rows > 0) {
        struct qg_span whole = {rows, blocks->width, 0, 0, blocks->standard - 1, blocks->width - size,
                                blocks->stored - 1};
        run_rows(blocks, whole, blocks->standard, accumulator, codes);
    }
    size_t done = rows * blocks->width;
    size_t full = (count - done) / size; /* blocks of a row that is cut short */
    struct qg_span single = {1, blocks->width, 0, 0, SIZE_MAX, 0, 0};
    if (full > 0) run_rows(blocks, single, full, accumulator + done, codes + done * blocks->code_bytes);
    done += full * size;
    size_t rest = count - done;
    if (rest > 0) { /* less than a block: on copies */
        int32_t words[QG_LARGEST_BLOCK] = {0};
        uint16_t results[QG_LARGEST_BLOCK];
        memcpy(words, accumulator + done, rest * sizeof *words);
        struct qg_span one = {1, 0, 0, 1, 0, 0, full};
        blocks->run(blocks, &one, words, results);
        memcpy(codes + done * blocks->code_bytes, results, rest * blocks->code_bytes);
    }
}
