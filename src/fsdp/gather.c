/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Gathering a unit's parameters: storage to compute layout, ahead of the unit's turn.
 *
 * Invariant: values are attached to memory exactly while the state is SLOT_READY; a unit without a
 * slot (one rank at level 3, f32) computes from its shard and is always ready. */
#include "fsdp_priv.h"

#include "base/base.h"

enum {
    F32 = (int)sizeof(float)
};

static size_t slot_bytes(const unit *u)
{
    return (size_t)(u->shard_count * u->ranks[3]) * tsr_dtype_size(u->param_dtype);
}

static size_t slot_offset(const unit *u, const unit_param *p)
{
    return u->slot.offset +
           (size_t)(p->shard_offset * u->ranks[3]) * tsr_dtype_size(u->param_dtype);
}

/* Levels 1 and 2: bring what other ranks updated into this rank's shard, inner split first. */
static tsr_status refresh(unit *u)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_GATHER);
    int64_t count = u->own_count;

    for (int level = 1; level <= 2; level++) {
        const int64_t begin = level == 1 ? u->grad_begin : 0;
        const tsri_coll_item item = {.in = u->shard,
                                     .in_offset = (size_t)(begin + u->index[level] * count) * F32,
                                     .out = u->shard,
                                     .out_offset = (size_t)begin * F32,
                                     .count = count};
        const tsri_coll coll = {.kind = TSRI_ALL_GATHER,
                                .dtype = TSR_F32,
                                .items = &item,
                                .item_count = 1,
                                .label = u->module->path};

        if (u->flat_gather[level] != NULL) {
            TSR_TRY(tsri_collective(u->flat_gather[level], &coll, stream));
        }
        count *= u->ranks[level];
    }
    u->stale = false;
    return TSR_OK;
}

/* This rank's chunks, cast into their place in the slot. */
static tsr_status cast_own(unit *u, tsr_stream *stream)
{
    const size_t size = tsr_dtype_size(u->param_dtype);

    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        tsri_call call = {.stream = stream, .label = u->module->path};
        tsrk_scale args = {
            .n = p->chunk, .factor = 1.0F, .x_type = TSR_F32, .y_type = u->param_dtype};

        args.x =
            tsri_arg_in(&call, u->shard, (size_t)p->shard_offset * F32, (size_t)p->chunk * F32);
        args.y = tsri_arg_out(&call, u->slot.buffer,
                              slot_offset(u, p) + (size_t)(u->index[3] * p->chunk) * size,
                              (size_t)p->chunk * size);
        TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    }
    return TSR_OK;
}

static tsr_status gather(unit *u, tsr_stream *stream)
{
    const bool cast = u->param_dtype != TSR_F32;
    const size_t size = tsr_dtype_size(u->param_dtype);
    const tsri_coll coll = {.kind = TSRI_ALL_GATHER,
                            .dtype = u->param_dtype,
                            .items = u->items,
                            .item_count = u->param_count,
                            .label = u->module->path};

    if (cast) {
        TSR_TRY(cast_own(u, stream));
    }
    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        const size_t own = slot_offset(u, p) + (size_t)(u->index[3] * p->chunk) * size;

        u->items[i] = (tsri_coll_item){.in = cast ? u->slot.buffer : u->shard,
                                       .in_offset = cast ? own : (size_t)p->shard_offset * F32,
                                       .out = u->slot.buffer,
                                       .out_offset = slot_offset(u, p),
                                       .count = p->chunk};
    }
    TSR_TRY(tsri_collective(u->gather_group, &coll, stream));
    return TSR_OK;
}

tsr_status tsri_unit_unshard(unit *u)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_GATHER);

    if (u->state != SLOT_EMPTY) {
        return TSR_OK;
    }
    if (u->stale || u->has_slot) {
        TSR_TRY(tsri_stream_wait(stream, u->engine->params_ready));
    }
    if (u->stale) {
        TSR_TRY(refresh(u));
    }
    if (u->has_slot) {
        TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), slot_bytes(u), TSRI_MEM_SLOT_PARAM,
                                   u->module->path, stream, &u->slot));
        u->state = SLOT_GATHERING;
        TSR_TRY(gather(u, stream));
    }
    u->state = SLOT_GATHERING;
    u->gathered = tsri_event_record(stream);
    return TSR_OK;
}

tsr_status tsri_unit_await(unit *u)
{
    if (u->state == SLOT_READY) {
        return TSR_OK;
    }
    TSR_TRY(tsri_stream_wait(tsri_unit_stream(u, TSRI_STREAM_COMPUTE), u->gathered));
    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];

        if (u->has_slot) {
            TSR_TRY(tsri_dtensor_attach(p->param->value, u->slot.buffer, slot_offset(u, p)));
        } else {
            TSR_TRY(tsri_dtensor_attach(p->param->value, u->shard, (size_t)p->shard_offset * F32));
        }
    }
    u->state = SLOT_READY;
    return TSR_OK;
}

tsr_status tsri_unit_reshard(unit *u)
{
    if (u->state == SLOT_EMPTY) {
        return TSR_OK;
    }
    TSR_TRY(tsri_unit_await(u));
    for (int i = 0; i < u->param_count; i++) {
        TSR_TRY(tsri_dtensor_attach(u->params[i].param->value, NULL, 0));
    }
    if (u->has_slot) {
        tsri_arena_release(tsri_comm_arena(u->comm), &u->slot,
                           tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_COMPUTE)));
    }
    u->state = SLOT_EMPTY;
    return TSR_OK;
}

tsr_status tsri_unit_prefetch(unit *u, int direction)
{
    const engine *e = u->engine;
    const int depth = u->options.prefetch_depth == 0 ? 1 : u->options.prefetch_depth - 1;

    for (int d = 1; d <= depth; d++) {
        const int position = u->position + direction * d;

        if (position < 0 || position >= e->unit_count) {
            break;
        }
        TSR_TRY(tsri_unit_unshard(e->units[position]));
    }
    return TSR_OK;
}
