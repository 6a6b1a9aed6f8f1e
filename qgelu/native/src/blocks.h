/* Kernels with parameters per channel work on blocks of channels. Few channels are repeated over several rows until
   blocks are well filled; such a row of repeated channels has `width` elements. */
#ifndef QGELU_BLOCKS_H
#define QGELU_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

/* Part of the blocks of all rows. Block b starts at element b * size of a row and has parameters number b; except
   block `last`, which ends where the row does and may overlap the one before. */
struct qg_span {
    size_t rows, width; /* of the accumulators */
    size_t first, end;  /* blocks */
    size_t last, last_start, last_parameters;
};

struct qg_blocks;
typedef void (*qg_run_span)(const struct qg_blocks *blocks, const struct qg_span *span, const int32_t *accumulator,
                            void *out);

struct qg_blocks {
    size_t channels, width;
    size_t size;       /* channels of one block */
    size_t group;      /* blocks that are worked on in all rows before the next ones: their parameters stay in cache */
    size_t standard;   /* blocks of a row */
    size_t stored;     /* blocks that have parameters */
    size_t code_bytes; /* of an output code */
    qg_run_span run;
};

enum { QG_LARGEST_BLOCK = 128 };

void qg_lay_out(struct qg_blocks *blocks, size_t channels, size_t size, size_t group_channels);

/* The channel of a lane of the block with these parameters. Lanes beyond the row are computed and thrown away. */
size_t qg_channel(const struct qg_blocks *blocks, size_t parameters, size_t lane);

/* Runs on `count` elements, the first of which belongs to channel 0. */
void qg_run_blocks(const struct qg_blocks *blocks, const int32_t *accumulator, void *out, size_t count);

/* Element and parameters of block b. */
static inline size_t qg_start(const struct qg_span *span, size_t b, size_t size) {
    return b == span->last ? span->last_start : b * size;
}
static inline size_t qg_parameters(const struct qg_span *span, size_t b) {
    return b == span->last ? span->last_parameters : b;
}

#endif
