/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file ring.c
 * All-gather, reduce-scatter and all-reduce by messages between neighbours.
 *
 * Members stand in a ring in their order; each sends to its right alone. Ranks of a host follow
 * each other, so of every host one member sends to another host and one receives from one.
 *
 *   reduce   step s of W - 1   the partial sum of slice r - s - 1 goes right, that of r - s - 2
 *                              comes from the left and this rank's term is added
 *   gather   step s of W - 1   slice r - s goes right, r - s - 1 comes from the left
 *
 * A reduce-scatter is the first, an all-gather the second, an all-reduce the one and then the
 * other over slices of its own. Per rank that is (W - 1) / W of the bytes each, which is the least
 * that is possible. Slice p is summed in the order p + 1, p + 2, ..., p: fixed by the group, so the
 * bits are too.
 *
 * bf16 and f16: a term travels as it is, a partial sum in f32, a finished sum rounded, once.
 *
 * The stream is cut into chunks; lane l carries chunks l, l + LANES, ... one after the other. While
 * one lane's message is under way another's is reduced, and the order of messages between two
 * neighbours in a lane is the same on both, so nothing has to be said of them but the lane.
 */
#include "backend/cpu/wire_priv.h"

#include <string.h>

#define LANE_TAG 1

/* ---- the stream ---- */

/* Elements [at, at + count) of an item's piece. */
typedef struct range {
    const tsri_cpu_item *item;
    int64_t at, count;
} range;

int64_t tsri_cpu_stream_count(const tsri_cpu_op *op)
{
    int64_t count = 0;

    for (int i = 0; i < op->item_count; i++) {
        count += op->items[i].count;
    }
    return count;
}

/* Take the first range off rest; false if nothing is left. */
static bool next_range(const tsri_cpu_op *op, tsri_cpu_span *rest, range *out)
{
    int64_t skip = rest->begin;

    for (int i = 0; i < op->item_count && rest->count > 0; i++) {
        const tsri_cpu_item *item = &op->items[i];
        if (skip >= item->count) {
            skip -= item->count;
            continue;
        }
        *out = (range){item, skip, tsri_min64(rest->count, item->count - skip)};
        rest->begin += out->count;
        rest->count -= out->count;
        return true;
    }
    return false;
}

static size_t place(const tsri_cpu_op *op, const range *part, int64_t pieces, int piece)
{
    int64_t skip = pieces == 1 ? 0 : piece * part->item->count;

    return (size_t)(skip + part->at) * tsr_dtype_size(op->dtype);
}

static const unsigned char *input_of(const tsri_cpu_op *op, const range *part, int piece)
{
    return part->item->in + place(op, part, tsri_cpu_in_pieces(op), piece);
}

void tsri_cpu_stream_gather(const tsri_cpu_op *op, tsri_cpu_span span, unsigned char *to)
{
    range part;

    while (next_range(op, &span, &part)) {
        size_t bytes = (size_t)part.count * tsr_dtype_size(op->dtype);
        memcpy(to, input_of(op, &part, span.piece), bytes);
        to += bytes;
    }
}

void tsri_cpu_stream_scatter(const tsri_cpu_op *op, tsri_cpu_span span, const unsigned char *from)
{
    range part;

    while (next_range(op, &span, &part)) {
        size_t bytes = (size_t)part.count * tsr_dtype_size(op->dtype);
        memcpy(part.item->out + place(op, &part, tsri_cpu_out_pieces(op), span.piece), from, bytes);
        from += bytes;
    }
}

static bool halves(const tsri_cpu_op *op)
{
    return op->dtype == TSR_BF16 || op->dtype == TSR_F16;
}

/* Bytes of an element of a partial sum. */
static size_t sum_unit(const tsri_cpu_op *op)
{
    return halves(op) ? sizeof(float) : tsr_dtype_size(op->dtype);
}

/* sum = sum op this rank's term. */
static void add_own(const tsri_cpu_op *op, tsri_cpu_span span, unsigned char *sum)
{
    range part;

    while (next_range(op, &span, &part)) {
        tsri_cpu_accumulate(op->dtype, op->reduce, sum, input_of(op, &part, span.piece),
                            part.count);
        sum += (size_t)part.count * sum_unit(op);
    }
}

/* ---- steps ---- */

static int reduce_steps(const tsri_cpu_op *op)
{
    return op->kind == TSRI_ALL_GATHER ? 0 : op->group->head.size - 1;
}

static int all_steps(const tsri_cpu_op *op)
{
    return reduce_steps(op) + (op->kind == TSRI_REDUCE_SCATTER ? 0 : op->group->head.size - 1);
}

/* The slice that is distance places to the left of this rank's own. */
static int slice_at(const tsri_cpu_op *op, int distance)
{
    int size = op->group->head.size;

    return (op->group->head.index + (2 * size) - distance) % size;
}

/* The slice that goes right in a step; the one that comes is its left neighbour. */
static int slice_sent(const tsri_cpu_op *op, int step)
{
    int reduces = reduce_steps(op);

    return slice_at(op, step < reduces ? step + 1 : step - reduces);
}

static int slice_got(const tsri_cpu_op *op, int step)
{
    int size = op->group->head.size;

    return (slice_sent(op, step) + size - 1) % size;
}

/* Slice s of a lane's chunk: its piece s, or its s-th part where there is one piece. */
static tsri_cpu_span slice_span(const tsri_cpu_op *op, const tsri_cpu_lane *lane, int s)
{
    if (op->kind != TSRI_ALL_REDUCE) {
        return (tsri_cpu_span){lane->begin, lane->count, s};
    }
    int64_t each = tsri_ceil_div(lane->count, op->group->head.size);
    int64_t skip = tsri_min64(lane->count, s * each);

    return (tsri_cpu_span){lane->begin + skip, tsri_min64(each, lane->count - skip), 0};
}

static int message_bytes(const tsri_cpu_op *op, const tsri_cpu_lane *lane, int s)
{
    bool partial = lane->step > 0 && lane->step < reduce_steps(op);
    size_t unit = partial ? sum_unit(op) : tsr_dtype_size(op->dtype);

    return (int)((size_t)slice_span(op, lane, s).count * unit); /* at most a chunk */
}

static tsr_status send_step(tsri_cpu_op *op, int l)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    const tsri_cpu_lane *lane = &mpi->lane[l];
    MPI_Request *request = &mpi->request[(ptrdiff_t)2 * l];
    int size = op->group->head.size;
    int left = (op->group->head.index + size - 1) % size;
    int right = (op->group->head.index + 1) % size;
    int incoming = message_bytes(op, lane, slice_got(op, lane->step));
    int outgoing = message_bytes(op, lane, slice_sent(op, lane->step));

    TSR_TRY(tsri_cpu_mpi_check(
        MPI_Irecv(lane->arriving, incoming, MPI_BYTE, left, LANE_TAG + l, mpi->comm, &request[0]),
        "MPI_Irecv"));
    return tsri_cpu_mpi_check(
        MPI_Isend(lane->held, outgoing, MPI_BYTE, right, LANE_TAG + l, mpi->comm, &request[1]),
        "MPI_Isend");
}

static void swap(tsri_cpu_lane *lane)
{
    unsigned char *held = lane->held;

    lane->held = lane->arriving;
    lane->arriving = held;
}

/* What has come becomes what goes right next. */
static void take_step(const tsri_cpu_op *op, tsri_cpu_lane *lane)
{
    tsri_cpu_span span = slice_span(op, lane, slice_got(op, lane->step));
    int reduces = reduce_steps(op);

    if (lane->step == 0 && reduces > 0 && halves(op)) {
        tsri_cpu_widen(op->dtype, lane->arriving, (float *)(void *)lane->held, span.count);
    } else {
        swap(lane);
    }
    if (lane->step < reduces) {
        add_own(op, span, lane->held);
    }
    if (lane->step == reduces - 1 && halves(op)) {
        tsri_cpu_narrow(op->dtype, (const float *)(void *)lane->held, lane->arriving, span.count);
        swap(lane);
    }
    if (lane->step >= reduces - 1) {
        tsri_cpu_stream_scatter(op, span, lane->held);
    }
}

/* ---- lanes ---- */

static int64_t chunk_count(const tsri_cpu_op *op)
{
    const tsri_cpu_device *device = (const tsri_cpu_device *)op->group->head.device;
    size_t bytes =
        device->mpi_bytes < TSRI_CPU_CHUNK_BYTES ? device->mpi_bytes : TSRI_CPU_CHUNK_BYTES;
    int64_t count = tsri_max64(1, (int64_t)(bytes / sum_unit(op)));

    return op->kind == TSRI_ALL_REDUCE ? count * op->group->head.size : count;
}

/* Put the chunk at begin on lane l, if the stream has one there. */
static tsr_status start_chunk(tsri_cpu_op *op, int l, int64_t begin)
{
    tsri_cpu_lane *lane = &op->group->mpi->lane[l];

    lane->begin = begin;
    lane->count = tsri_max64(0, tsri_min64(chunk_count(op), tsri_cpu_stream_count(op) - begin));
    lane->step = 0;
    if (lane->count == 0) {
        return TSR_OK;
    }
    tsri_cpu_span span = slice_span(op, lane, slice_sent(op, 0));
    tsri_cpu_stream_gather(op, span, lane->held);
    if (op->kind == TSRI_ALL_GATHER) {
        tsri_cpu_stream_scatter(op, span, lane->held); /* this rank's own piece */
    }
    return send_step(op, l);
}

tsr_status tsri_cpu_ring_begin(tsri_cpu_op *op)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;

    if (mpi->chunks == NULL) {
        TSR_TRY(tsri_alloc((size_t)2 * TSRI_CPU_LANES, TSRI_CPU_CHUNK_BYTES, &mpi->chunks));
    }
    mpi->phase = TSRI_CPU_RING;
    mpi->request_count = 2 * TSRI_CPU_LANES;
    for (int i = 0; i < mpi->request_count; i++) {
        mpi->request[i] = MPI_REQUEST_NULL;
    }
    for (int l = 0; l < TSRI_CPU_LANES; l++) {
        tsri_cpu_lane *lane = &mpi->lane[l];
        lane->held = mpi->chunks + ((size_t)2 * (size_t)l * TSRI_CPU_CHUNK_BYTES);
        lane->arriving = lane->held + TSRI_CPU_CHUNK_BYTES;
        TSR_TRY(start_chunk(op, l, l * chunk_count(op)));
    }
    return TSR_OK;
}

tsr_status tsri_cpu_ring_step(tsri_cpu_op *op, bool *moved_out, bool *done_out)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    bool moved = false;
    bool done = true;

    for (int l = 0; l < TSRI_CPU_LANES; l++) {
        tsri_cpu_lane *lane = &mpi->lane[l];
        int through = 0;
        if (lane->count == 0) {
            continue;
        }
        done = false;
        TSR_TRY(tsri_cpu_mpi_check(
            MPI_Testall(2, &mpi->request[(ptrdiff_t)2 * l], &through, MPI_STATUSES_IGNORE),
            "MPI_Testall"));
        if (!through) {
            continue;
        }
        moved = true;
        take_step(op, lane);
        lane->step++;
        TSR_TRY(lane->step < all_steps(op)
                    ? send_step(op, l)
                    : start_chunk(op, l, lane->begin + (TSRI_CPU_LANES * chunk_count(op))));
    }
    *moved_out = moved;
    *done_out = done;
    return TSR_OK;
}
