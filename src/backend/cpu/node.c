/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file node.c
 * Collectives between the ranks of one node: publish, meet, read the peers in place, meet again.
 *
 *   all               ARRIVE  every member's call lies in its cell, and they agree
 *   all-gather        MOVE    copy every member's piece            LEAVE
 *   all-to-all        MOVE    copy block r of every member         LEAVE
 *   broadcast         MOVE    copy the root's input                LEAVE
 *   reduce-scatter    MOVE    reduce piece r of all members        LEAVE
 *   all-reduce        MOVE    reduce slice r of all members into the own output
 *                     MEET    SPREAD copy the other slices from their outputs    LEAVE
 *
 * In place is safe throughout: in a reduction rank r overwrites piece r of its own input alone,
 * which nobody else reads, and reads it before, element by element.
 *
 * Small inputs are copied into the cell before ARRIVE. Then every member can read them whenever it
 * likes until the call after next, so the first barrier is the only one, and an all-reduce lets
 * every member reduce everything. The order of summation is that of the members in both forms.
 */
#include "backend/cpu/cpu_priv.h"

#include <string.h>

/* Inputs of several items lie in the cell at multiples of this. */
#define PACK_ALIGN 64
/* Slices of an all-reduce begin at multiples of this, so that cache lines have one writer. */
#define SLICE_ALIGN 64

typedef struct range {
    const unsigned char *from;
    unsigned char *to;
    size_t bytes;
    int member; /* whose memory is read */
} range;

static size_t input_bytes(const tsri_cpu_op *op, int item)
{
    return (size_t)(tsri_cpu_in_pieces(op) * op->items[item].count) * tsr_dtype_size(op->dtype);
}

static size_t packed_bytes(const tsri_cpu_op *op, int item)
{
    return (input_bytes(op, item) + PACK_ALIGN - 1) / PACK_ALIGN * PACK_ALIGN;
}

static tsri_cpu_slot *slot_of(const tsri_cpu_op *op, int member)
{
    const tsri_cpu_group *group = op->group;

    return &group->peer[member]->control->cell[group->cell].slot[group->call & 1U];
}

static void arrive(tsri_cpu_op *op)
{
    tsri_cpu_group *group = op->group;
    int size = group->head.size;
    int index = group->head.index;
    uint64_t barrier = ++group->barrier;
    tsri_cpu_cell *own = &group->peer[index]->control->cell[group->cell];
    tsri_cpu_cell *first = &group->peer[0]->control->cell[group->cell];

    atomic_store_explicit(&own->barrier, barrier, memory_order_release);
    if (atomic_fetch_add(&first->arrivals, 1) + 1 == barrier * (uint64_t)size) {
        for (int m = 1; m < size; m++) {
            tsri_cpu_ring(group->peer[(index + m) % size]->control);
        }
    }
    op->wait_s = tsri_now_s();
    op->looked_s = op->wait_s;
}

static bool met(const tsri_cpu_op *op)
{
    const tsri_cpu_group *group = op->group;
    tsri_cpu_cell *first = &group->peer[0]->control->cell[group->cell];

    return atomic_load_explicit(&first->arrivals, memory_order_acquire) >=
           group->barrier * (uint64_t)group->head.size;
}

static void publish(tsri_cpu_op *op)
{
    tsri_cpu_group *group = op->group;
    const unsigned char *heap = group->peer[group->head.index]->heap;
    size_t total = 0;
    size_t unit = tsr_dtype_size(op->dtype);
    size_t written = 0;
    size_t at = 0;

    group->call++;
    tsri_cpu_slot *slot = slot_of(op, group->head.index);
    tsri_cpu_describe(op, &slot->call);
    for (int i = 0; i < op->item_count; i++) {
        slot->in[i] = op->items[i].in == NULL ? 0 : (uint64_t)(op->items[i].in - heap);
        slot->out[i] = (uint64_t)(op->items[i].out - heap);
        total += packed_bytes(op, i);
        written += (size_t)(tsri_cpu_out_pieces(op) * op->items[i].count) * unit;
    }
    op->past_cache = written > ((tsri_cpu_device *)group->head.device)->cache_bytes;
    op->in_cell = total <= TSRI_CPU_INLINE_BYTES;
    if (!op->in_cell || (op->kind == TSRI_BROADCAST && op->root != group->head.index)) {
        return;
    }
    for (int i = 0; i < op->item_count; i++) {
        size_t bytes = input_bytes(op, i);
        if (bytes > 0 && op->items[i].in != NULL) {
            memcpy(slot->data + at, op->items[i].in, bytes);
        }
        at += packed_bytes(op, i);
    }
}

static tsr_status compare_all(const tsri_cpu_op *op)
{
    const tsri_cpu_call *mine = &slot_of(op, op->group->head.index)->call;

    for (int m = 0; m < op->group->head.size; m++) {
        TSR_TRY(tsri_cpu_compare(op, mine, &slot_of(op, m)->call, m));
    }
    return TSR_OK;
}

static const unsigned char *input_of(const tsri_cpu_op *op, int member, int item)
{
    const tsri_cpu_slot *slot = slot_of(op, member);

    return op->in_cell ? slot->data + op->packed : op->group->peer[member]->heap + slot->in[item];
}

/* Elements [begin, end) of item that member reduces in an all-reduce through memory. */
static void slice(const tsri_cpu_op *op, int item, int member, int64_t *begin, int64_t *end)
{
    int64_t count = op->items[item].count;
    int64_t each = tsri_ceil_div(count, op->group->head.size);

    each = tsri_ceil_div(each, SLICE_ALIGN) * SLICE_ALIGN;
    *begin = tsri_min64(count, member * each);
    *end = tsri_min64(count, *begin + each);
}

/* What the cursor's k-th copy of its item is: members in turn, from this rank on. */
static range locate(const tsri_cpu_op *op)
{
    const tsri_cpu_group *group = op->group;
    const tsri_cpu_item *item = &op->items[op->item];
    size_t unit = tsr_dtype_size(op->dtype);
    size_t piece = (size_t)item->count * unit;
    int own = group->head.index;
    int member = (own + op->member) % group->head.size;
    range found = {.member = member};
    int64_t begin = 0;
    int64_t end = 0;

    if (op->state == TSRI_CPU_SPREAD) {
        slice(op, op->item, member, &begin, &end);
        found.from =
            group->peer[member]->heap + slot_of(op, member)->out[op->item] + ((size_t)begin * unit);
        found.to = item->out + ((size_t)begin * unit);
        found.bytes = member == own ? 0 : (size_t)(end - begin) * unit;
    } else if (op->kind == TSRI_BROADCAST) {
        found.from = input_of(op, member, op->item);
        found.to = item->out;
        found.bytes = member == op->root ? piece : 0;
    } else {
        found.from = input_of(op, member, op->item);
        found.from += op->kind == TSRI_ALL_TO_ALL ? (size_t)own * piece : 0;
        found.to = item->out + ((size_t)member * piece);
        found.bytes = piece;
    }
    return found;
}

static void rewind_cursor(tsri_cpu_op *op)
{
    op->item = 0;
    op->member = 0;
    op->at = 0;
    op->packed = 0;
}

static void next_item(tsri_cpu_op *op)
{
    op->packed += packed_bytes(op, op->item);
    op->item++;
    op->member = 0;
    op->at = 0;
}

static void touched(const tsri_cpu_op *op, int member, size_t bytes)
{
    tsri_cpu_group *group = op->group;

    if (member != group->head.index && (!op->in_cell || op->state == TSRI_CPU_SPREAD)) {
        tsri_cpu_touched((tsri_cpu_device *)group->head.device, group->peer[member], bytes);
    }
}

/* Copy a step's worth of bytes; true when nothing is left. */
static bool copy_step(tsri_cpu_op *op)
{
    size_t budget = TSRI_CPU_STEP_BYTES;

    while (op->item < op->item_count) {
        range part = locate(op);
        size_t done = (size_t)op->at;
        size_t bytes = part.bytes - done < budget ? part.bytes - done : budget;
        if (bytes > 0 && part.to != part.from) {
            tsri_cpu_copy(part.to + done, part.from + done, bytes, op->past_cache);
            touched(op, part.member, bytes);
        }
        budget -= bytes;
        op->at += (int64_t)bytes;
        if ((size_t)op->at < part.bytes) {
            return false;
        }
        op->at = 0;
        if (++op->member == op->group->head.size) {
            next_item(op);
        }
    }
    return true;
}

/* Reduce a step's worth of elements; true when nothing is left. */
static bool reduce_step(tsri_cpu_op *op)
{
    tsri_cpu_group *group = op->group;
    int size = group->head.size;
    size_t unit = tsr_dtype_size(op->dtype);
    int64_t budget = tsri_max64(1024, (int64_t)(TSRI_CPU_STEP_BYTES / unit) * 2 / size);

    while (op->item < op->item_count) {
        const tsri_cpu_item *item = &op->items[op->item];
        int64_t begin = 0;
        int64_t end = item->count;
        int64_t skip = op->kind == TSRI_REDUCE_SCATTER ? group->head.index * item->count : 0;
        if (op->kind == TSRI_ALL_REDUCE && !op->in_cell) {
            slice(op, op->item, group->head.index, &begin, &end);
        }
        begin += op->at;
        int64_t count = tsri_min64(end - begin, budget);
        if (count > 0) {
            for (int m = 0; m < size; m++) {
                group->sources[m] = input_of(op, m, op->item) + ((size_t)(skip + begin) * unit);
            }
            tsri_cpu_reduce(op->dtype, op->reduce, group->sources, size,
                            item->out + ((size_t)begin * unit), count);
            for (int m = 0; m < size; m++) {
                touched(op, m, (size_t)count * unit);
            }
            budget -= count;
            op->at += count;
        }
        if (begin + count < end) {
            return false;
        }
        next_item(op);
    }
    return true;
}

static bool reduces(const tsri_cpu_op *op)
{
    return op->kind == TSRI_REDUCE_SCATTER || op->kind == TSRI_ALL_REDUCE;
}

static void move(tsri_cpu_op *op)
{
    if (!(reduces(op) ? reduce_step(op) : copy_step(op))) {
        return;
    }
    if (op->in_cell) {
        op->state = TSRI_CPU_DONE;
        return;
    }
    arrive(op);
    op->state = op->kind == TSRI_ALL_REDUCE ? TSRI_CPU_MEET : TSRI_CPU_LEAVE;
}

static tsr_status pass_barrier(tsri_cpu_op *op)
{
    switch (op->state) {
    case TSRI_CPU_ARRIVE:
        TSR_TRY(compare_all(op));
        op->state = TSRI_CPU_MOVE;
        break;
    case TSRI_CPU_MEET:
        op->state = TSRI_CPU_SPREAD;
        break;
    case TSRI_CPU_LEAVE:
        op->state = TSRI_CPU_DONE;
        break;
    case TSRI_CPU_BEGIN:
    case TSRI_CPU_MOVE:
    case TSRI_CPU_SPREAD:
    case TSRI_CPU_DONE:
        break;
    }
    rewind_cursor(op);
    return TSR_OK;
}

tsr_status tsri_cpu_node_step(tsri_cpu_op *op, tsri_cpu_activity *activity)
{
    switch (op->state) {
    case TSRI_CPU_BEGIN:
        publish(op);
        arrive(op);
        op->state = TSRI_CPU_ARRIVE;
        break;
    case TSRI_CPU_ARRIVE:
    case TSRI_CPU_MEET:
    case TSRI_CPU_LEAVE:
        if (!met(op)) {
            activity->pending = true;
            return tsri_cpu_watch(op);
        }
        TSR_TRY(pass_barrier(op));
        break;
    case TSRI_CPU_MOVE:
        move(op);
        break;
    case TSRI_CPU_SPREAD:
        if (copy_step(op)) {
            arrive(op);
            op->state = TSRI_CPU_LEAVE;
        }
        break;
    case TSRI_CPU_DONE:
        return TSR_OK;
    }
    activity->moved = true;
    return TSR_OK;
}
