/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file blocks.c
 * Between a piece and the blocks in which it travels.
 *
 * Collectives move equal counts; pieces are exact. The ceil rule makes the first extent / chunk
 * blocks full and at most one part full, so either direction is one strided copy and, for an uneven
 * dim, one more.
 */
#include "dtensor_priv.h"

#include "base/base.h"

static const char label[] = "redistribute";

tsri_blocks tsri_blocks_make(const int64_t *shape, int ndim, int dim, int ranks, size_t elem_bytes)
{
    tsri_blocks blocks = {.outer = 1, .extent = shape[dim], .ranks = ranks};

    blocks.chunk = tsri_ceil_div(shape[dim], ranks);
    blocks.inner_bytes = elem_bytes;
    for (int d = 0; d < dim; d++) {
        blocks.outer *= shape[d];
    }
    for (int d = dim + 1; d < ndim; d++) {
        blocks.inner_bytes *= (size_t)shape[d];
    }
    blocks.block_bytes = (size_t)(blocks.outer * blocks.chunk) * blocks.inner_bytes;
    return blocks;
}

bool tsri_blocks_in_line(const tsri_blocks *blocks)
{
    return blocks->outer == 1 && blocks->block_bytes == (size_t)blocks->chunk * blocks->inner_bytes;
}

size_t tsri_blocks_bytes(const tsri_blocks *blocks)
{
    return (size_t)blocks->ranks * blocks->block_bytes;
}

/* Bytes of a part of so many rows. */
static size_t part_bytes(const tsri_blocks *blocks, int64_t rows)
{
    return (size_t)(blocks->outer * rows) * blocks->inner_bytes;
}

/* Copy count neighbouring parts of rows rows each, the first being that of block first. */
static tsr_status move_parts(tsr_comm *comm, const tsri_blocks *blocks, int64_t first,
                             int64_t count, int64_t rows, tsri_place piece, tsri_place packed,
                             bool pack)
{
    tsri_call call = {.stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE), .label = label};
    size_t inner = (size_t)rows * blocks->inner_bytes;
    int64_t piece_outer = blocks->extent * (int64_t)blocks->inner_bytes;
    int64_t piece_mid = blocks->chunk * (int64_t)blocks->inner_bytes;
    /* From the first byte of the first row to the last byte of the last. */
    size_t piece_at = piece.offset + (size_t)(first * piece_mid);
    size_t piece_bytes =
        (size_t)((blocks->outer - 1) * piece_outer + (count - 1) * piece_mid) + inner;
    size_t packed_at = packed.offset + (size_t)first * blocks->block_bytes;
    size_t packed_bytes = (size_t)(count - 1) * blocks->block_bytes + part_bytes(blocks, rows);
    tsrk_copy_blocks args = {.outer = blocks->outer, .mid = count, .inner_bytes = inner};

    if (count == 0 || part_bytes(blocks, rows) == 0) {
        return TSR_OK;
    }
    if (pack) {
        args.src = tsri_arg_in(&call, piece.buffer, piece_at, piece_bytes);
        args.dst = tsri_arg_out(&call, packed.buffer, packed_at, packed_bytes);
        args.src_outer_stride = piece_outer;
        args.src_mid_stride = piece_mid;
        args.dst_outer_stride = (int64_t)inner;
        args.dst_mid_stride = (int64_t)blocks->block_bytes;
    } else {
        args.src = tsri_arg_in(&call, packed.buffer, packed_at, packed_bytes);
        args.dst = tsri_arg_out(&call, piece.buffer, piece_at, piece_bytes);
        args.src_outer_stride = (int64_t)inner;
        args.src_mid_stride = (int64_t)blocks->block_bytes;
        args.dst_outer_stride = piece_outer;
        args.dst_mid_stride = piece_mid;
    }
    TSR_TRY(TSRI_LAUNCH(&call, COPY_BLOCKS, &args));
    return TSR_OK;
}

static int64_t full_blocks(const tsri_blocks *blocks)
{
    return blocks->chunk > 0 ? blocks->extent / blocks->chunk : 0;
}

static int64_t rest_rows(const tsri_blocks *blocks)
{
    return blocks->chunk > 0 ? blocks->extent % blocks->chunk : 0;
}

tsr_status tsri_blocks_pack(tsr_comm *comm, const tsri_blocks *blocks, tsri_place piece,
                            tsri_place packed)
{
    int64_t full = full_blocks(blocks);

    TSR_TRY(move_parts(comm, blocks, 0, full, blocks->chunk, piece, packed, true));
    TSR_TRY(move_parts(comm, blocks, full, 1, rest_rows(blocks), piece, packed, true));
    return TSR_OK;
}

tsr_status tsri_blocks_unpack(tsr_comm *comm, const tsri_blocks *blocks, tsri_place packed,
                              tsri_place piece)
{
    int64_t full = full_blocks(blocks);

    TSR_TRY(move_parts(comm, blocks, 0, full, blocks->chunk, piece, packed, false));
    TSR_TRY(move_parts(comm, blocks, full, 1, rest_rows(blocks), piece, packed, false));
    return TSR_OK;
}

tsr_status tsri_blocks_zero_slack(tsr_comm *comm, const tsri_blocks *blocks, tsri_place packed)
{
    tsri_call call = {.stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE), .label = label};
    size_t used =
        (size_t)full_blocks(blocks) * blocks->block_bytes + part_bytes(blocks, rest_rows(blocks));
    tsrk_zero args = {.bytes = tsri_blocks_bytes(blocks) - used};

    if (args.bytes > 0) {
        args.out = tsri_arg_out(&call, packed.buffer, packed.offset + used, args.bytes);
        TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    }
    return TSR_OK;
}

tsr_status tsri_blocks_cut(tsr_comm *comm, const tsri_blocks *blocks, tsri_place piece,
                           int64_t first, int64_t rows, tsri_place part)
{
    tsri_call call = {.stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE), .label = label};
    int64_t row_stride = blocks->extent * (int64_t)blocks->inner_bytes;
    size_t inner = (size_t)rows * blocks->inner_bytes;
    tsrk_copy_blocks args = {.outer = blocks->outer,
                             .mid = 1,
                             .inner_bytes = inner,
                             .src_outer_stride = row_stride,
                             .dst_outer_stride = (int64_t)inner};

    if (part_bytes(blocks, rows) > 0) {
        args.src =
            tsri_arg_in(&call, piece.buffer, piece.offset + (size_t)first * blocks->inner_bytes,
                        (size_t)((blocks->outer - 1) * row_stride) + inner);
        args.dst = tsri_arg_out(&call, part.buffer, part.offset, part_bytes(blocks, rows));
        TSR_TRY(TSRI_LAUNCH(&call, COPY_BLOCKS, &args));
    }
    return TSR_OK;
}

tsr_status tsri_copy_bytes(tsr_comm *comm, tsri_place from, tsri_place to, size_t bytes)
{
    tsri_call call = {.stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE), .label = label};
    tsrk_copy_blocks args = {.outer = 1, .mid = 1, .inner_bytes = bytes};

    if (bytes > 0) {
        args.src = tsri_arg_in(&call, from.buffer, from.offset, bytes);
        args.dst = tsri_arg_out(&call, to.buffer, to.offset, bytes);
        TSR_TRY(TSRI_LAUNCH(&call, COPY_BLOCKS, &args));
    }
    return TSR_OK;
}
