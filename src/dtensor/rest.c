/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file rest.c
 * The arithmetic of tensors at rest, and reading and writing them by global position.
 *
 * Local and global order agree, so the elements of a global range that a rank has are one interval
 * of its memory: whatever the splits, a transfer is one copy, and host memory is where the runs are
 * taken apart.
 */
#include "dtensor/rest.h"

#include "base/base.h"

#include <string.h>

#include "dtensor/dtensor.h"

enum {
    CHUNK_ELEMENTS = 1 << 16 /* that pass through host memory at a time */
};

/* ---- splits ---- */

int tsri_flat_index(const tsr_mesh *mesh, unsigned axes, const int *coord)
{
    int index = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((axes >> axis & 1U) != 0) {
            index = index * tsr_mesh_axis_size(mesh, axis) + coord[axis];
        }
    }
    return index;
}

int tsri_flat_ranks(const tsr_mesh *mesh, unsigned axes)
{
    int ranks = 1;

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        ranks *= (axes >> axis & 1U) != 0 ? tsr_mesh_axis_size(mesh, axis) : 1;
    }
    return ranks;
}

void tsri_flat_interval(const tsri_flat *flat, const tsr_mesh *mesh, const int *coord,
                        int64_t *begin_out, int64_t *count_out)
{
    int64_t begin = 0;
    int64_t count = flat->count;

    for (int i = 0; i < 2; i++) {
        count /= tsri_flat_ranks(mesh, flat->axes[i]);
        begin += tsri_flat_index(mesh, flat->axes[i], coord) * count;
    }
    *begin_out = begin;
    *count_out = count;
}

/* Columns that one step along dim 1 takes. */
static int64_t inner_count(const tsr_layout *outer)
{
    int64_t n = 1;

    for (int d = 2; d < outer->ndim; d++) {
        n *= outer->shape[d];
    }
    return n;
}

tsr_status tsri_rest_check(const tsri_rest_layout *layout, const char *name)
{
    const tsr_layout *outer = &layout->outer;

    for (int axis = 0; axis < tsr_mesh_axis_count(outer->mesh); axis++) {
        const tsr_placement *p = &outer->place[axis];

        if (p->kind == TSR_PARTIAL || (p->kind == TSR_SHARD && p->dim > 1)) {
            return TSR_RAISE(TSR_ERR_PLACEMENT,
                             "%s is %s on axis \"%s\": what rests is replicated or sharded along "
                             "dim 0 or 1",
                             name, p->kind == TSR_PARTIAL ? "partial" : "sharded along another dim",
                             tsr_mesh_axis_name(outer->mesh, axis));
        }
    }
    return TSR_OK;
}

tsr_status tsri_rest_outer(const tsr_layout *outer, int rank, tsri_block *out)
{
    const int64_t inner = inner_count(outer);
    int64_t shape[TSR_MAX_DIMS] = {0};
    int64_t offset[TSR_MAX_DIMS] = {0};
    const bool matrix = outer->ndim >= 2;

    TSR_TRY(tsr_layout_local(outer, rank, shape, offset));
    *out = (tsri_block){.first_row = offset[0],
                        .first_col = matrix ? offset[1] * inner : 0,
                        .rows = outer->ndim > 0 ? shape[0] : 1,
                        .cols = matrix ? shape[1] * inner : 1,
                        .global_rows = outer->ndim > 0 ? outer->shape[0] : 1,
                        .global_cols = matrix ? outer->shape[1] * inner : 1};
    return TSR_OK;
}

/* Rows, or columns, of each rank's part of block. */
static int64_t part_extent(const tsri_rest_layout *layout, const tsri_block *block)
{
    const int ranks = tsri_flat_ranks(layout->outer.mesh, layout->shard_axes);
    const int64_t inner = inner_count(&layout->outer);

    return layout->shard_dim == 1 ? tsri_ceil_div(block->cols / inner, ranks) * inner
                                  : tsri_ceil_div(block->rows, ranks);
}

int64_t tsri_rest_chunk(const tsri_rest_layout *layout, const tsri_block *block)
{
    return part_extent(layout, block) * (layout->shard_dim == 1 ? block->rows : block->cols);
}

int64_t tsri_rest_room(const tsri_rest_layout *layout)
{
    const tsr_layout *outer = &layout->outer;
    int64_t extent[2] = {outer->shape[0], outer->ndim >= 2 ? outer->shape[1] : 1};

    for (int axis = 0; axis < tsr_mesh_axis_count(outer->mesh); axis++) {
        if (outer->place[axis].kind == TSR_SHARD) {
            int64_t *n = &extent[outer->place[axis].dim];

            *n = tsri_ceil_div(*n, tsr_mesh_axis_size(outer->mesh, axis));
        }
    }
    const tsri_block largest = {.rows = extent[0], .cols = extent[1] * inner_count(outer)};

    return tsri_rest_chunk(layout, &largest);
}

/* Split 2: block becomes the part of the rank at coord. */
static void take_part(const tsri_rest_layout *layout, const int *coord, tsri_block *block)
{
    const int64_t each = part_extent(layout, block);
    const int64_t index = tsri_flat_index(layout->outer.mesh, layout->shard_axes, coord);
    int64_t *first = layout->shard_dim == 1 ? &block->first_col : &block->first_row;
    int64_t *count = layout->shard_dim == 1 ? &block->cols : &block->rows;
    const int64_t begin = tsri_min64(*count, index * each);

    *first += begin;
    *count = tsri_min64(each, *count - begin);
}

tsr_status tsri_rest_locate(const tsri_rest_layout *layout, int rank, tsri_piece *out)
{
    const tsr_mesh *mesh = layout->outer.mesh;
    int coord[TSR_MESH_MAX_AXES] = {0};
    tsri_block block;
    int64_t begin = 0;
    int64_t count = 0;

    TSR_TRY(tsri_rest_outer(&layout->outer, rank, &block));
    TSR_TRY(tsr_mesh_coord(mesh, rank, coord));
    take_part(layout, coord, &block);
    *out = (tsri_piece){.block = block, .end = block.rows * block.cols};
    if ((layout->flat.axes[0] | layout->flat.axes[1]) != 0) {
        tsri_flat_interval(&layout->flat, mesh, coord, &begin, &count);
        begin -= layout->flat_at;
        out->begin = tsri_max64(begin, 0);
        out->end = tsri_min64(begin + count, out->end);
        if (out->end <= out->begin) {
            out->begin = 0;
            out->end = 0;
        }
    }
    return TSR_OK;
}

unsigned tsri_rest_copies(const tsri_rest_layout *layout)
{
    const tsr_layout *outer = &layout->outer;
    const unsigned split = layout->shard_axes | layout->flat.axes[0] | layout->flat.axes[1];
    unsigned mask = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(outer->mesh); axis++) {
        if (tsr_mesh_axis_size(outer->mesh, axis) > 1 && outer->place[axis].kind != TSR_SHARD) {
            mask |= 1U << axis;
        }
    }
    return mask & ~split;
}

bool tsri_rest_speaks(const tsri_rest_layout *layout, const int *coord)
{
    const unsigned copies = tsri_rest_copies(layout);

    for (int axis = 0; axis < tsr_mesh_axis_count(layout->outer.mesh); axis++) {
        if ((copies >> axis & 1U) != 0 && coord[axis] != 0) {
            return false;
        }
    }
    return true;
}

/* ---- positions ---- */

int64_t tsri_piece_find(const tsri_piece *piece, int64_t position)
{
    const tsri_block *b = &piece->block;
    const int64_t row = position / b->global_cols - b->first_row;
    const int64_t col = position % b->global_cols - b->first_col;
    int64_t at = 0;

    if (row >= b->rows) {
        at = b->rows * b->cols;
    } else if (row >= 0) {
        at = row * b->cols + tsri_max64(0, tsri_min64(col, b->cols));
    }
    return tsri_max64(piece->begin, tsri_min64(at, piece->end));
}

/* Whether rows of the block follow each other in the tensor. */
static bool is_whole_rows(const tsri_block *b)
{
    return b->cols == b->global_cols;
}

int64_t tsri_piece_runs(const tsri_piece *piece)
{
    const int64_t cols = piece->block.cols;

    if (piece->begin == piece->end) {
        return 0;
    }
    return is_whole_rows(&piece->block) ? 1 : tsri_ceil_div(piece->end, cols) - piece->begin / cols;
}

void tsri_piece_run(const tsri_piece *piece, int64_t index, tsri_run *out)
{
    const tsri_block *b = &piece->block;
    const int64_t row = piece->begin / b->cols + index;
    int64_t begin = piece->begin;
    int64_t end = piece->end;

    if (!is_whole_rows(b)) {
        begin = tsri_max64(begin, row * b->cols);
        end = tsri_min64(end, (row + 1) * b->cols);
    }
    *out = (tsri_run){.global = (b->first_row + begin / b->cols) * b->global_cols + b->first_col +
                                begin % b->cols,
                      .local = begin,
                      .count = end - begin};
}

/* ---- memory ---- */

tsr_status tsri_rest_init(const tsri_rest_layout *layout, tsr_dtype dtype, int rank, tsri_rest *out)
{
    int coord[TSR_MESH_MAX_AXES] = {0};

    *out = (tsri_rest){.layout = *layout, .dtype = dtype};
    TSR_TRY(tsri_rest_locate(layout, rank, &out->piece));
    TSR_TRY(tsr_mesh_coord(layout->outer.mesh, rank, coord));
    out->speaks = tsri_rest_speaks(layout, coord);
    return TSR_OK;
}

static size_t byte_offset(const tsri_rest *rest, int64_t begin)
{
    return rest->offset + (size_t)(begin - rest->piece.begin) * tsr_dtype_size(rest->dtype);
}

tsr_status tsri_rest_get(const tsri_rest *rest, int64_t begin, int64_t end, void *host,
                         tsr_stream *stream)
{
    if (begin < end) {
        TSR_TRY(tsri_read(rest->buffer, byte_offset(rest, begin), host,
                          (size_t)(end - begin) * tsr_dtype_size(rest->dtype), stream));
    }
    return TSR_OK;
}

tsr_status tsri_rest_put(const tsri_rest *rest, int64_t begin, int64_t end, const void *host,
                         tsr_stream *stream)
{
    if (begin < end) {
        TSR_TRY(tsri_write(rest->buffer, byte_offset(rest, begin), host,
                           (size_t)(end - begin) * tsr_dtype_size(rest->dtype), stream));
    }
    return TSR_OK;
}

/* Elements [begin, end) of the block between packed, which they fill, and host, which begins at
 * global position first. */
static void scatter(const tsri_rest *rest, int64_t begin, int64_t end, int64_t first,
                    const unsigned char *packed, unsigned char *host)
{
    const tsri_piece part = {.block = rest->piece.block, .begin = begin, .end = end};
    const size_t size = tsr_dtype_size(rest->dtype);
    const int64_t runs = tsri_piece_runs(&part);

    for (int64_t i = 0; i < runs; i++) {
        tsri_run run;

        tsri_piece_run(&part, i, &run);
        memcpy(host + (size_t)(run.global - first) * size,
               packed + (size_t)(run.local - begin) * size, (size_t)run.count * size);
    }
}

static void collect_pieces(const tsri_rest *rest, int64_t begin, int64_t end, int64_t first,
                           const unsigned char *host, unsigned char *packed)
{
    const tsri_piece part = {.block = rest->piece.block, .begin = begin, .end = end};
    const size_t size = tsr_dtype_size(rest->dtype);
    const int64_t runs = tsri_piece_runs(&part);

    for (int64_t i = 0; i < runs; i++) {
        tsri_run run;

        tsri_piece_run(&part, i, &run);
        memcpy(packed + (size_t)(run.local - begin) * size,
               host + (size_t)(run.global - first) * size, (size_t)run.count * size);
    }
}

tsr_status tsri_rest_read(const tsri_rest *rest, int64_t first, int64_t count, void *host,
                          tsr_stream *stream)
{
    const int64_t begin = tsri_piece_find(&rest->piece, first);
    const int64_t end = tsri_piece_find(&rest->piece, first + count);
    unsigned char *packed = NULL;
    tsr_status status = TSR_OK;

    if (begin == end) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc((size_t)tsri_min64(end - begin, CHUNK_ELEMENTS), tsr_dtype_size(rest->dtype),
                       &packed));
    for (int64_t at = begin; at < end; at += CHUNK_ELEMENTS) {
        const int64_t to = tsri_min64(end, at + CHUNK_ELEMENTS);

        TSR_TRY_GOTO(status, tsri_rest_get(rest, at, to, packed, stream), free_packed);
        scatter(rest, at, to, first, packed, host);
    }
free_packed:
    tsri_free(&packed);
    return status;
}

tsr_status tsri_rest_write(const tsri_rest *rest, int64_t first, int64_t count, const void *host,
                           tsr_stream *stream)
{
    const int64_t begin = tsri_piece_find(&rest->piece, first);
    const int64_t end = tsri_piece_find(&rest->piece, first + count);
    unsigned char *packed = NULL;
    tsr_status status = TSR_OK;

    if (begin == end) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc((size_t)tsri_min64(end - begin, CHUNK_ELEMENTS), tsr_dtype_size(rest->dtype),
                       &packed));
    for (int64_t at = begin; at < end; at += CHUNK_ELEMENTS) {
        const int64_t to = tsri_min64(end, at + CHUNK_ELEMENTS);

        collect_pieces(rest, at, to, first, host, packed);
        TSR_TRY_GOTO(status, tsri_rest_put(rest, at, to, packed, stream), free_packed);
    }
free_packed:
    tsri_free(&packed);
    return status;
}
