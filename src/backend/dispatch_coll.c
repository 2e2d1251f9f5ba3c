/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Groups and collectives, in dispatch's shape: check, record, call, record.
 *
 * A list of ranges is checked whole before its first part is enqueued. Ranges of no elements are
 * left out and long lists are cut after TSRI_COLL_MAX_ITEMS ranges; both depend on counts alone,
 * which are equal on all members, so every member makes the same calls. */
#include "backend/backend_priv.h"

#include "base/base.h"

static const char *or_unnamed(const char *label)
{
    return label == NULL ? "?" : label;
}

/* ---- groups ---- */

tsr_status tsri_group_open(tsr_device *device, const int *world_ranks, int size, int index,
                           unsigned axis_mask, const char *name, tsr_stream *stream,
                           tsr_group **out)
{
    tsr_group *group = NULL;
    tsr_status status = TSR_OK;
    if (world_ranks == NULL || name == NULL || stream == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "group \"%s\" without ranks, name or stream",
                         or_unnamed(name));
    }
    if (stream->device != device) {
        return TSR_RAISE(TSR_ERR_INVALID, "group \"%s\" on a stream of another device", name);
    }
    if (size < 1 || index < 0 || index >= size) {
        return TSR_RAISE(TSR_ERR_INVALID, "group \"%s\": index %d in a group of %d", name, index,
                         size);
    }
    for (int i = 0; i < size; i++) {
        if (world_ranks[i] < 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "group \"%s\": member %d is world rank %d", name, i,
                             world_ranks[i]);
        }
    }
    TSR_TRY(device->backend->group_open(device, world_ranks, size, index, stream, name, &group));
    group->device = device;
    group->size = size;
    group->index = index;
    group->axis_mask = axis_mask;
    group->stream_kind = stream->kind;
    group->seq = 0;
    TSR_TRY_GOTO(status, tsri_recorder_group(group), close_group);
    *out = group;
    return TSR_OK;
close_group:
    tsri_group_close(&group);
    return status;
}

void tsri_group_close(tsr_group **group)
{
    if (group == NULL || *group == NULL) {
        return;
    }
    (*group)->device->backend->group_close(*group);
    *group = NULL;
}

/* ---- ranges of an item ---- */

typedef struct item_range {
    size_t in_bytes, out_bytes; /* 0: this rank does not touch that side */
} item_range;

static bool multiply_bytes(int64_t count, size_t factor, size_t *out)
{
    return count >= 0 && !__builtin_mul_overflow((size_t)count, factor, out) &&
           *out <= SIZE_MAX / 2;
}

static tsr_status item_bytes(const tsr_group *group, const tsri_coll *coll,
                             const tsri_coll_item *item, item_range *out)
{
    size_t piece = 0;
    size_t whole = 0;
    if (item->count < 0 || !multiply_bytes(item->count, tsr_dtype_size(coll->dtype), &piece) ||
        !multiply_bytes((int64_t)piece, (size_t)group->size, &whole)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %s over \"%s\": count %lld of %s in a group of %d",
                         tsri_coll_name(coll->kind), or_unnamed(coll->label), group->name,
                         (long long)item->count, tsr_dtype_name(coll->dtype), group->size);
    }
    switch (coll->kind) {
    case TSRI_ALL_GATHER:
        *out = (item_range){piece, whole};
        break;
    case TSRI_REDUCE_SCATTER:
        *out = (item_range){whole, piece};
        break;
    case TSRI_ALL_TO_ALL:
        *out = (item_range){whole, whole};
        break;
    case TSRI_BROADCAST:
        *out = (item_range){group->index == coll->root ? piece : 0, piece};
        break;
    case TSRI_ALL_REDUCE:
    case TSRI_COLL_COUNT:
    default:
        *out = (item_range){piece, piece};
        break;
    }
    return TSR_OK;
}

static tsr_status check_side(const tsr_group *group, const tsri_coll *coll, const char *side,
                             const tsr_buffer *buffer, size_t offset, size_t bytes)
{
    if (bytes == 0) {
        return TSR_OK;
    }
    if (buffer == NULL || buffer->device != group->device) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %s over \"%s\": %s is %s",
                         tsri_coll_name(coll->kind), or_unnamed(coll->label), group->name, side,
                         buffer == NULL ? "missing" : "on another device");
    }
    if (offset > buffer->bytes || bytes > buffer->bytes - offset) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s of %s over \"%s\": %s bytes %zu + %zu are outside buffer %llu (%s) of "
                         "%zu bytes",
                         tsri_coll_name(coll->kind), or_unnamed(coll->label), group->name, side,
                         offset, bytes, (unsigned long long)buffer->id, or_unnamed(buffer->label),
                         buffer->bytes);
    }
    return TSR_OK;
}

static bool shares_bytes(const tsri_coll_item *item, const item_range *range)
{
    return item->in == item->out && range->in_bytes > 0 && range->out_bytes > 0 &&
           item->in_offset + range->in_bytes > item->out_offset &&
           item->out_offset + range->out_bytes > item->in_offset;
}

/* Where in and out share bytes they must lie exactly as the kind's in-place rule says. */
static bool in_place_rule_holds(const tsr_group *group, const tsri_coll *coll,
                                const tsri_coll_item *item, const item_range *range)
{
    const size_t in = item->in_offset;
    const size_t out = item->out_offset;
    if (!shares_bytes(item, range)) {
        return true;
    }
    switch (coll->kind) {
    case TSRI_ALL_GATHER:
        return in == out + (size_t)group->index * range->in_bytes;
    case TSRI_REDUCE_SCATTER:
        return out == in + (size_t)group->index * range->out_bytes;
    case TSRI_ALL_TO_ALL:
        return group->size == 1 && in == out;
    case TSRI_ALL_REDUCE:
    case TSRI_BROADCAST:
    case TSRI_COLL_COUNT:
    default:
        return in == out;
    }
}

static tsr_status check_coll(const tsr_group *group, const tsri_coll *coll,
                             const tsr_stream *stream)
{
    if ((unsigned)coll->kind >= TSRI_COLL_COUNT || tsr_dtype_size(coll->dtype) == 0 ||
        (coll->op != TSRI_SUM && coll->op != TSRI_MAX)) {
        return TSR_RAISE(TSR_ERR_INVALID, "collective of %s over \"%s\": kind %d, dtype %d, op %d",
                         or_unnamed(coll->label), group->name, (int)coll->kind, (int)coll->dtype,
                         (int)coll->op);
    }
    if (stream == NULL || stream->device != group->device || stream->kind != group->stream_kind) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %s: group \"%s\" is bound to stream %s, not %s",
                         tsri_coll_name(coll->kind), or_unnamed(coll->label), group->name,
                         tsri_stream_name(group->stream_kind),
                         stream == NULL ? "none" : tsri_stream_name(stream->kind));
    }
    if (coll->kind == TSRI_BROADCAST && (coll->root < 0 || coll->root >= group->size)) {
        return TSR_RAISE(TSR_ERR_INVALID, "broadcast of %s over \"%s\": root %d in a group of %d",
                         or_unnamed(coll->label), group->name, coll->root, group->size);
    }
    if (coll->item_count < 0 || (coll->item_count > 0 && coll->items == NULL)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %s over \"%s\": %d ranges",
                         tsri_coll_name(coll->kind), or_unnamed(coll->label), group->name,
                         coll->item_count);
    }
    for (int i = 0; i < coll->item_count; i++) {
        const tsri_coll_item *item = &coll->items[i];
        item_range range = {0};
        TSR_TRY(item_bytes(group, coll, item, &range));
        TSR_TRY(check_side(group, coll, "in", item->in, item->in_offset, range.in_bytes));
        TSR_TRY(check_side(group, coll, "out", item->out, item->out_offset, range.out_bytes));
        if (!in_place_rule_holds(group, coll, item, &range)) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "%s of %s over \"%s\": in at %zu overlaps out at %zu, count %lld, not "
                             "by the in-place rule",
                             tsri_coll_name(coll->kind), or_unnamed(coll->label), group->name,
                             item->in_offset, item->out_offset, (long long)item->count);
        }
    }
    return TSR_OK;
}

/* ---- the call ---- */

/* Every kind in a group of one leaves a copy of in in out. */
static tsr_status copy_item(const tsri_coll *coll, const tsri_coll_item *item, tsr_stream *stream)
{
    const size_t bytes = (size_t)item->count * tsr_dtype_size(coll->dtype);
    if (bytes == 0 || (item->in == item->out && item->in_offset == item->out_offset)) {
        return TSR_OK;
    }
    tsri_call call = {.stream = stream, .label = coll->label};
    tsrk_copy_blocks args = {.outer = 1, .mid = 1, .inner_bytes = bytes};
    args.src = tsri_arg_in(&call, item->in, item->in_offset, bytes);
    args.dst = tsri_arg_out(&call, item->out, item->out_offset, bytes);
    TSR_TRY(TSRI_LAUNCH(&call, COPY_BLOCKS, &args));
    return TSR_OK;
}

/* Bytes of the whole tensor, and the part that one rank must send at least; a broadcast's is the
 * mean over the ranks. */
static void add_bytes(const tsr_group *group, const tsri_coll *coll, size_t piece,
                      tsri_entry *entry)
{
    const size_t size = (size_t)group->size;
    switch (coll->kind) {
    case TSRI_ALL_GATHER:
    case TSRI_REDUCE_SCATTER:
    case TSRI_ALL_TO_ALL:
        entry->bytes += piece * size;
        entry->sent_bytes += piece * (size - 1);
        break;
    case TSRI_ALL_REDUCE:
        entry->bytes += piece;
        entry->sent_bytes += 2 * piece * (size - 1) / size;
        break;
    case TSRI_BROADCAST:
    case TSRI_COLL_COUNT:
    default:
        entry->bytes += piece;
        entry->sent_bytes += piece * (size - 1) / size;
        break;
    }
}

static tsr_status enqueue_part(tsr_group *group, const tsri_coll *coll, tsr_stream *stream)
{
    tsri_access access[2 * TSRI_COLL_MAX_ITEMS];
    int access_count = 0;
    tsri_entry entry = {.kind = TSRI_ENTRY_COLLECTIVE,
                        .op = (int)coll->kind,
                        .label = coll->label,
                        .group = group->name,
                        .members = group->world_ranks,
                        .group_size = group->size,
                        .axis_mask = group->axis_mask,
                        .dtype = coll->dtype};
    const int64_t alike[] = {coll->kind, coll->dtype, coll->op, coll->root, coll->item_count};
    tsr_status status = TSR_OK;
    if (coll->item_count == 0) {
        return TSR_OK;
    }
    entry.call = tsri_hash(alike, sizeof(alike), 0);
    for (int i = 0; i < coll->item_count; i++) {
        const tsri_coll_item *item = &coll->items[i];
        item_range range = {0};
        TSR_TRY(item_bytes(group, coll, item, &range));
        access[access_count++] =
            (tsri_access){item->in, item->in_offset, range.in_bytes,
                          coll->kind == TSRI_REDUCE_SCATTER && shares_bytes(item, &range)};
        access[access_count++] = (tsri_access){item->out, item->out_offset, range.out_bytes, true};
        add_bytes(group, coll, (size_t)item->count * tsr_dtype_size(coll->dtype), &entry);
        entry.call = tsri_hash(&item->count, sizeof(item->count), entry.call);
    }
    const tsr_event begin = tsri_exposed_begin(stream);
    TSR_TRY(tsri_op_begin(stream, &entry, access, access_count));
    group->seq++;
    TSR_TRY_GOTO(status, group->device->backend->collective(group, coll, stream), undo);
    tsri_exposed_end(stream, begin);
    return TSR_OK;
undo:
    group->seq--;
    tsri_op_undo(stream);
    return status;
}

static tsr_status copy_items(const tsri_coll *coll, tsr_stream *stream)
{
    for (int i = 0; i < coll->item_count; i++) {
        TSR_TRY(copy_item(coll, &coll->items[i], stream));
    }
    return TSR_OK;
}

tsr_status tsri_collective(tsr_group *group, const tsri_coll *coll, tsr_stream *stream)
{
    tsri_coll_item items[TSRI_COLL_MAX_ITEMS];
    tsri_coll part = *coll;
    int next = 0;
    TSR_TRY(check_coll(group, coll, stream));
    if (group->size == 1) {
        TSR_TRY(copy_items(coll, stream));
        return TSR_OK;
    }
    part.items = items;
    do {
        part.item_count = 0;
        for (; next < coll->item_count && part.item_count < TSRI_COLL_MAX_ITEMS; next++) {
            if (coll->items[next].count > 0) {
                items[part.item_count++] = coll->items[next];
            }
        }
        TSR_TRY(enqueue_part(group, &part, stream));
    } while (next < coll->item_count);
    return TSR_OK;
}
