/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file rest.h
 * How a tensor rests: which of its elements each rank holds, and where.
 *
 * At rest a tensor is split three times, each split inside the one before it:
 *
 *   1. as it lies in compute: the Shard axes of its layout (tensor parallel), which leave a rank a
 *      block of the tensor
 *   2. Shard over further axes, flattened into one, along dim 0 or 1 of that block: the piece
 *   3. Flat: the pieces of several tensors lie in one flat shard, each at its own place; the flat
 *      shard is split by elements into equal intervals, and of each piece a rank has what falls
 *      into its interval
 *
 * Axes that do none of this hold the same elements on all their ranks. A tensor is a matrix here:
 * rows are dim 0, columns all other dims together (a vector has one column, a scalar is 1 x 1);
 * global positions count its elements row-major. What a rank has is an interval of its piece,
 * row-major, so it rises with the global position; it is contiguous in memory.
 *
 * A parameter that is trained, its gradient, its master and its moments each rest so. Everything
 * here but reading and writing is arithmetic.
 */
#pragma once

#include "backend/dispatch.h"

#include "tessera/layout.h"

/** A split of [0, count) by elements: into equal intervals over the ranks of axes[0], and each of
 *  these over the ranks of axes[1]; count is a multiple of their number. No axes: not split. */
typedef struct tsri_flat {
    unsigned axes[2];
    int64_t count;
} tsri_flat;

typedef struct tsri_rest_layout {
    tsr_layout outer;    /* split 1; it may shard dims 0 and 1 */
    unsigned shard_axes; /* split 2 */
    int shard_dim;
    tsri_flat flat;  /* split 3 */
    int64_t flat_at; /* where the piece begins in the flat shard */
} tsri_rest_layout;

/** A block of a matrix. */
typedef struct tsri_block {
    int64_t first_row, first_col, rows, cols, global_rows, global_cols;
} tsri_block;

/** What one rank has: elements [begin, end) of a block. */
typedef struct tsri_piece {
    tsri_block block;
    int64_t begin, end;
} tsri_piece;

/** Contiguous elements, both in the tensor and in the piece. */
typedef struct tsri_run {
    int64_t global, local, count; /* local: from the block's first element */
} tsri_run;

/** Index of the rank at coord among the ranks of axes, flattened row-major. */
int tsri_flat_index(const tsr_mesh *mesh, unsigned axes, const int *coord);
/** Ranks of axes. */
int tsri_flat_ranks(const tsr_mesh *mesh, unsigned axes);
/** The interval of the rank at coord. */
void tsri_flat_interval(const tsri_flat *flat, const tsr_mesh *mesh, const int *coord,
                        int64_t *begin_out, int64_t *count_out);

/** TSR_ERR_PLACEMENT where outer is Partial, or shards another dim than 0 and 1. */
tsr_status tsri_rest_check(const tsri_rest_layout *layout, const char *name);
/** Rank's block (split 1) of a tensor that lies in compute as outer. */
tsr_status tsri_rest_outer(const tsr_layout *outer, int rank, tsri_block *out);
/** Elements that a piece of block may have at most: as many as the first rank's. */
int64_t tsri_rest_chunk(const tsri_rest_layout *layout, const tsri_block *block);
/** The same for the largest block of any rank. */
int64_t tsri_rest_room(const tsri_rest_layout *layout);
/** What rank has. */
tsr_status tsri_rest_locate(const tsri_rest_layout *layout, int rank, tsri_piece *out);
/** Axes of more than one rank on which all have the same elements. */
unsigned tsri_rest_copies(const tsri_rest_layout *layout);
/** Whether the rank at coord speaks for its elements in sums over the mesh: index 0 of the copies.
 */
bool tsri_rest_speaks(const tsri_rest_layout *layout, const int *coord);

/** Elements of piece whose global position is below position, as an index of the block. */
int64_t tsri_piece_find(const tsri_piece *piece, int64_t position);
/** Number of runs; the one at index, in rising order. */
int64_t tsri_piece_runs(const tsri_piece *piece);
void tsri_piece_run(const tsri_piece *piece, int64_t index, tsri_run *out);

/** A tensor at rest on this rank. */
typedef struct tsri_rest {
    tsri_rest_layout layout;
    tsri_piece piece; /* this rank's */
    bool speaks;      /* this rank, for it */
    tsr_dtype dtype;
    tsr_buffer *buffer; /* NULL: there is none now */
    size_t offset;      /* bytes, of element piece.begin */
} tsri_rest;

/** Fill all but the memory, for rank. */
tsr_status tsri_rest_init(const tsri_rest_layout *layout, tsr_dtype dtype, int rank,
                          tsri_rest *out);
static inline int64_t tsri_rest_count(const tsri_rest *rest)
{
    return rest->piece.end - rest->piece.begin;
}
static inline size_t tsri_rest_bytes(const tsri_rest *rest)
{
    return (size_t)tsri_rest_count(rest) * tsr_dtype_size(rest->dtype);
}

/** Elements [begin, end) of the block, all of them in the piece, to host and back, in rest's dtype,
 *  behind what is on stream. Reading blocks. */
tsr_status tsri_rest_get(const tsri_rest *rest, int64_t begin, int64_t end, void *host,
                         tsr_stream *stream);
tsr_status tsri_rest_put(const tsri_rest *rest, int64_t begin, int64_t end, const void *host,
                         tsr_stream *stream);
/** Of global positions [first, first + count) those that this rank has: to host[position - first]
 *  and back, in rest's dtype. Others are left alone. Reading blocks. */
tsr_status tsri_rest_read(const tsri_rest *rest, int64_t first, int64_t count, void *host,
                          tsr_stream *stream);
tsr_status tsri_rest_write(const tsri_rest *rest, int64_t first, int64_t count, const void *host,
                           tsr_stream *stream);
