/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Gathering a unit's parameters: storage to compute layout, ahead of the unit's turn.
 *
 * Invariant: values are attached to memory exactly while the state is SLOT_READY; a unit without a
 * slot (one rank at level 3, f32 or lean) computes from what rests and is always ready. Where
 * parameters stay split over groups of k ranks after forward, the part is kept in param dtype
 * beside the empty slot, and the next gather starts from it. */
#include "fsdp_priv.h"

#include "base/base.h"

enum {
    F32 = (int)sizeof(float)
};

/* Chunks are copied from the shard before they are gathered: to cast them, or from the host. */
static bool copies_own(const unit *u)
{
    return (u->param_dtype != TSR_F32 && !u->flat.lean) || u->options.offload_params;
}

/* Where the whole flat shard rests, and bytes of its elements. */
static tsr_buffer *resting(const unit *u)
{
    return u->flat.lean ? u->rest.halves : u->rest.shard;
}

static size_t resting_size(const unit *u)
{
    return u->flat.lean ? tsr_dtype_size(u->param_dtype) : (size_t)F32;
}

/* Elements of the slot: the gathered ones, then copies of whole ones. */
static int64_t slot_count(const unit *u)
{
    const int64_t whole = copies_own(u) ? u->flat.shard_count - u->flat.sharded_count : 0;

    return u->flat.sharded_count * u->levels.ranks[3] + whole;
}

size_t tsri_unit_slot_bytes(const unit *u)
{
    return u->flat.has_slot ? (size_t)slot_count(u) * tsr_dtype_size(u->param_dtype) : 0;
}

/* A whole parameter is computed from at rest unless it has to be copied. */
static bool in_slot(const unit *u, const unit_param *p)
{
    return u->flat.has_slot && (!p->whole || copies_own(u));
}

static size_t slot_offset(const unit *u, const unit_param *p)
{
    const int64_t gathered = u->flat.sharded_count * u->levels.ranks[3];
    const int64_t at = p->whole ? gathered + p->shard_offset - u->flat.sharded_count
                                : p->shard_offset * u->levels.ranks[3];

    return u->values.slot.offset + (size_t)at * tsr_dtype_size(u->param_dtype);
}

/* A lean unit's owned interval, from its masters. */
static tsr_status cast_own(const unit *u)
{
    const size_t size = tsr_dtype_size(u->param_dtype);
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_REPLICATE),
                      .label = u->module->path};
    tsrk_scale args = {
        .n = u->flat.own_count, .factor = 1.0F, .x_type = TSR_F32, .y_type = u->param_dtype};

    args.x = tsri_arg_in(&call, u->rest.shard, 0, (size_t)u->flat.own_count * F32);
    args.y = tsri_arg_out(&call, u->rest.halves, (size_t)u->flat.own_begin * size,
                          (size_t)u->flat.own_count * size);
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

/* Levels 1 and 2: bring what other ranks updated into the flat shard at (buffer, offset), inner
 * split first. */
static tsr_status refresh_at(unit *u, tsr_buffer *buffer, size_t offset)
{
    const size_t size = resting_size(u);
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_REPLICATE);
    int64_t count = u->flat.own_count;

    for (int level = 1; level <= 2; level++) {
        const int64_t begin = level == 1 ? u->flat.grad_begin : 0;
        const tsri_coll_item item = {
            .in = buffer,
            .in_offset = offset + (size_t)(begin + u->levels.index[level] * count) * size,
            .out = buffer,
            .out_offset = offset + (size_t)begin * size,
            .count = count};
        const tsri_coll coll = {.kind = TSRI_ALL_GATHER,
                                .dtype = u->flat.lean ? u->param_dtype : TSR_F32,
                                .items = &item,
                                .item_count = 1,
                                .label = u->module->path};

        if (u->levels.flat_gather[level] != NULL) {
            TSR_TRY(tsri_collective(u->levels.flat_gather[level], &coll, stream));
        }
        count *= u->levels.ranks[level];
    }
    u->rest.stale = false;
    return TSR_OK;
}

/* On the replicate stream, so that this unit's refresh between nodes and another's gather within
 * them run at the same time. *out: its end. */
static tsr_status refresh(unit *u, tsr_event *out)
{
    tsr_stream *first =
        tsri_unit_stream(u, u->options.offload_params ? TSRI_STREAM_COPY : TSRI_STREAM_REPLICATE);
    tsri_mem staged = {0};

    TSR_TRY(tsri_stream_wait(first, u->engine->step.params_ready));
    TSR_TRY(tsri_stream_wait(first, u->values.gathered)); /* which read what is written now */
    if (u->options.offload_params) {
        TSR_TRY(tsri_unit_stage_shard(u, &staged));
        TSR_TRY(refresh_at(u, staged.buffer, staged.offset));
        TSR_TRY(tsri_unit_unstage_shard(u, &staged));
    } else {
        if (u->flat.lean) {
            TSR_TRY(cast_own(u));
        }
        TSR_TRY(refresh_at(u, resting(u), 0));
    }
    *out = tsri_event_record(first);
    return TSR_OK;
}

/* ---- the gather proper ---- */

/* Where the W chunks of p come to lie one after the other. */
static size_t chunks_at(const unit *u, const tsri_mem *folded, const unit_param *p)
{
    return p->by_cols ? folded->offset + (size_t)p->fold_offset * tsr_dtype_size(u->param_dtype)
                      : slot_offset(u, p);
}

/* This rank's chunks, copied into their places among the others'. */
static tsr_status copy_own(unit *u, const tsri_mem *folded, tsr_stream *stream)
{
    const size_t size = tsr_dtype_size(u->param_dtype);

    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        const int index = p->whole ? 0 : u->levels.index[3];
        tsri_call call = {.stream = stream, .label = u->module->path};
        tsrk_scale args = {
            .n = p->chunk, .factor = 1.0F, .x_type = TSR_F32, .y_type = u->param_dtype};

        if (u->values.kept.buffer != NULL && !p->whole) {
            continue;
        }
        args.x = tsri_arg_in(&call, u->rest.shard, (size_t)p->shard_offset * F32,
                             (size_t)p->chunk * F32);
        args.y = tsri_arg_out(&call, p->by_cols ? folded->buffer : u->values.slot.buffer,
                              chunks_at(u, folded, p) + (size_t)(index * p->chunk) * size,
                              (size_t)p->chunk * size);
        TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    }
    return TSR_OK;
}

static tsr_status gather_shards(unit *u, const tsri_mem *folded, tsr_stream *stream)
{
    const bool copied = copies_own(u);
    const size_t size = tsr_dtype_size(u->param_dtype);
    tsri_coll coll = {.kind = TSRI_ALL_GATHER,
                      .dtype = u->param_dtype,
                      .items = u->items,
                      .label = u->module->path};

    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        tsr_buffer *chunks = p->by_cols ? folded->buffer : u->values.slot.buffer;
        const size_t at = chunks_at(u, folded, p);
        const size_t own = at + (size_t)(u->levels.index[3] * p->chunk) * size;

        if (p->whole) {
            continue;
        }
        u->items[coll.item_count++] =
            (tsri_coll_item){.in = copied ? chunks : resting(u),
                             .in_offset = copied ? own : (size_t)p->shard_offset * resting_size(u),
                             .out = chunks,
                             .out_offset = at,
                             .count = p->chunk};
    }
    if (coll.item_count > 0) {
        TSR_TRY(tsri_collective(u->levels.gather, &coll, stream));
    }
    return TSR_OK;
}

/* As gather_shards, from the parts kept within groups of k ranks. */
static tsr_status gather_kept(unit *u, tsr_stream *stream)
{
    const int64_t chunks = u->levels.ranks[3] / u->options.reshard_group;
    const size_t size = tsr_dtype_size(u->param_dtype);
    tsri_coll coll = {.kind = TSRI_ALL_GATHER,
                      .dtype = u->param_dtype,
                      .items = u->items,
                      .label = u->module->path};

    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];

        if (!p->whole) {
            u->items[coll.item_count++] = (tsri_coll_item){
                .in = u->values.kept.buffer,
                .in_offset = u->values.kept.offset + (size_t)(p->shard_offset * chunks) * size,
                .out = u->values.slot.buffer,
                .out_offset = slot_offset(u, p),
                .count = p->chunk * chunks};
        }
    }
    TSR_TRY(tsri_stream_wait(stream, u->values.kept_ready));
    TSR_TRY(tsri_collective(u->levels.kept, &coll, stream));
    return TSR_OK;
}

/* first: the stream that writes the slot first. */
static tsr_status gather(unit *u, tsr_stream *first)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_GATHER);
    tsri_arena *arena = tsri_comm_arena(u->comm);
    tsri_mem folded = {0};

    if (u->flat.fold_count > 0) {
        TSR_TRY(tsri_arena_acquire(arena,
                                   (size_t)u->flat.fold_count * tsr_dtype_size(u->param_dtype),
                                   TSRI_MEM_SLOT_PARAM, u->module->path, first, &folded));
    }
    if (copies_own(u)) {
        TSR_TRY(copy_own(u, &folded, first));
        TSR_TRY(tsri_stream_wait(stream, tsri_event_record(first)));
    }
    if (u->values.kept.buffer != NULL) {
        TSR_TRY(gather_kept(u, stream));
        tsri_unit_drop_kept(u, tsri_event_record(stream));
    } else {
        TSR_TRY(gather_shards(u, &folded, stream));
    }
    if (u->flat.fold_count > 0) {
        TSR_TRY(tsri_unit_unfold(u, &folded, &u->values.slot, u->param_dtype, stream));
        tsri_arena_release(arena, &folded, tsri_event_record(stream));
    }
    return TSR_OK;
}

tsr_status tsri_unit_unshard(unit *u)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_GATHER);
    tsr_stream *first = stream;
    tsr_event refreshed = {0};
    uint64_t enqueued = 0;

    if (u->values.state != SLOT_EMPTY) {
        return TSR_OK;
    }
    u->rest.stale =
        u->rest.stale || (u->flat.own_count < u->flat.train_count && tsri_unit_is_updated(u));
    if (u->options.offload_params && u->flat.has_slot && u->values.kept.buffer == NULL) {
        first = tsri_unit_stream(u, TSRI_STREAM_COPY);
    }
    if (u->rest.stale) {
        TSR_TRY(refresh(u, &refreshed));
        TSR_TRY(tsri_stream_wait(first, refreshed));
        /* In step memory, where offloaded: with or without an evaluation before it a step takes
         * the same. */
        u->rest.stale = u->options.offload_params && u->engine->step.at == TSRI_FRAMES_MAX;
    }
    if (u->flat.has_slot) {
        TSR_TRY(tsri_stream_wait(first, u->engine->step.params_ready));
    }
    enqueued = stream->enqueued;
    if (u->flat.has_slot) {
        TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), tsri_unit_slot_bytes(u),
                                   TSRI_MEM_SLOT_PARAM, u->module->path, first, &u->values.slot));
        u->values.state = SLOT_GATHERING;
        TSR_TRY(gather(u, first));
    }
    u->values.state = SLOT_GATHERING;
    /* An event stands for work: a group of one gathers in place by doing nothing. */
    u->values.gathered = stream->enqueued != enqueued                   ? tsri_event_record(stream)
                         : u->flat.has_slot || refreshed.stream == NULL ? tsri_event_record(first)
                                                                        : refreshed;
    u->values.gathered_seen = TSRI_NOT_SEEN;
    return TSR_OK;
}

tsr_status tsri_unit_await(unit *u)
{
    tsr_stream *compute = tsri_unit_stream(u, TSRI_STREAM_COMPUTE);
    const int64_t shift = tsri_sabotage_shift(u);

    if (u->values.state == SLOT_READY) {
        return TSR_OK;
    }
    TSR_TRY(tsri_stream_wait(compute, u->values.gathered));
    u->values.gathered_seen = compute->enqueued;
    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        const int64_t late = i == 0 ? shift : 0;

        if (in_slot(u, p)) {
            TSR_TRY(tsri_dtensor_attach(p->param->value, u->values.slot.buffer,
                                        slot_offset(u, p) +
                                            (size_t)late * tsr_dtype_size(u->param_dtype)));
        } else {
            TSR_TRY(tsri_dtensor_attach(p->param->value, resting(u),
                                        (size_t)(p->shard_offset + late) * resting_size(u)));
        }
    }
    u->values.state = SLOT_READY;
    return TSR_OK;
}

/* ---- letting go ---- */

tsr_status tsri_unit_reshard(unit *u)
{
    if (u->values.state == SLOT_EMPTY) {
        return TSR_OK;
    }
    TSR_TRY(tsri_unit_await(u));
    for (int i = 0; i < u->param_count; i++) {
        TSR_TRY(tsri_dtensor_attach(u->params[i].param->value, NULL, 0));
    }
    if (u->flat.has_slot) {
        tsri_arena_release(tsri_comm_arena(u->comm), &u->values.slot,
                           tsri_last_use(tsri_unit_stream(u, TSRI_STREAM_COMPUTE),
                                         u->values.gathered_seen, u->values.gathered));
    }
    u->values.state = SLOT_EMPTY;
    return TSR_OK;
}

void tsri_unit_drop_kept(unit *u, tsr_event last_use)
{
    if (u->values.kept.buffer != NULL) {
        tsri_arena_release(tsri_comm_arena(u->comm), &u->values.kept, last_use);
    }
}

/* W / k chunks of each parameter, from the slot into memory of their own. */
static tsr_status keep_part(unit *u)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_COMPUTE);
    const int64_t chunks = u->levels.ranks[3] / u->options.reshard_group;
    const int64_t first = u->levels.index[3] % u->options.reshard_group * chunks;
    const size_t size = tsr_dtype_size(u->param_dtype);

    TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm),
                               (size_t)(u->flat.sharded_count * chunks) * size, TSRI_MEM_SLOT_PARAM,
                               u->module->path, stream, &u->values.kept));
    for (int i = 0; i < u->param_count; i++) {
        const unit_param *p = &u->params[i];
        const size_t bytes = (size_t)(p->chunk * chunks) * size;
        tsri_call call = {.stream = stream, .label = u->module->path};
        tsrk_scale args = {.n = p->chunk * chunks,
                           .factor = 1.0F,
                           .x_type = u->param_dtype,
                           .y_type = u->param_dtype};

        if (p->whole || bytes == 0) {
            continue;
        }
        args.x = tsri_arg_in(&call, u->values.slot.buffer,
                             slot_offset(u, p) + (size_t)(first * p->chunk) * size, bytes);
        args.y =
            tsri_arg_out(&call, u->values.kept.buffer,
                         u->values.kept.offset + (size_t)(p->shard_offset * chunks) * size, bytes);
        TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    }
    u->values.kept_ready = tsri_event_record(stream);
    return TSR_OK;
}

tsr_status tsri_unit_reshard_kept(unit *u)
{
    if (u->options.reshard_group > 0 && u->flat.has_slot && u->values.state == SLOT_READY &&
        u->values.kept.buffer == NULL && u->flat.sharded_count > 0) {
        TSR_TRY(keep_part(u));
    }
    TSR_TRY(tsri_unit_reshard(u));
    return TSR_OK;
}

/* ---- ahead of time ---- */

enum {
    MOST_AHEAD = 16 /* gathers further ahead would hold the whole model */
};

static int depth_of(const unit *u)
{
    const int asked = u->options.prefetch_depth == 0 ? 1 : u->options.prefetch_depth - 1;

    return asked < MOST_AHEAD ? asked : MOST_AHEAD;
}

static tsr_status unshard_all(unit *const *units, int count)
{
    for (int i = 0; i < count; i++) {
        TSR_TRY(tsri_unit_unshard(units[i]));
    }
    return TSR_OK;
}

tsr_status tsri_unit_prefetch(unit *u)
{
    const engine *e = u->engine;
    unit *next[MOST_AHEAD];

    if (u->prefetch[0].units != NULL) {
        TSR_TRY(unshard_all(u->prefetch[0].units, u->prefetch[0].count));
    } else if (e->order.outermost != NULL) {
        TSR_TRY(unshard_all(next, tsri_schedule_after(e, e->order.cursor, e->order.outermost_end,
                                                      next, depth_of(u))));
    }
    return TSR_OK;
}

tsr_status tsri_unit_prefetch_back(unit *u)
{
    const engine *e = u->engine;
    unit *next[MOST_AHEAD];

    if (u->prefetch[1].units != NULL) {
        TSR_TRY(unshard_all(u->prefetch[1].units, u->prefetch[1].count));
    } else if (e->step.has_root[e->step.at]) {
        TSR_TRY(unshard_all(next, tsri_schedule_before(e, e->order.back - 1, next, depth_of(u))));
    }
    return TSR_OK;
}

tsr_status tsri_unit_prefetch_again(unit *u, int at, int end)
{
    const engine *e = u->engine;
    unit *next[MOST_AHEAD];
    int count = 0;

    if (at < 0 || !e->step.has_root[e->step.at] ||
        u->options.backward_prefetch == TSR_PREFETCH_NONE) {
        return TSR_OK;
    }
    count = tsri_schedule_after(e, at + 1, end, next, depth_of(u));
    TSR_TRY(unshard_all(next, count));
    return TSR_OK;
}

/* ---- use outside of the module ---- */

/* A tied weight, say: its unit is gathered from here to the end of backward, and reduces its
 * gradient there. */
tsr_status tsri_unit_use(void *context, tsr_param *param, tsr_tape *tape)
{
    unit *u = context;
    engine *e = u->engine;

    if (e != NULL) {
        TSR_TRY(tsri_engine_touch(e, tape));
    }
    if (u->run.inside > 0 || e == NULL ||
        (u->values.state == SLOT_READY && tsri_tape_no_grad(tape) && !tsri_tape_in_part(tape))) {
        return TSR_OK;
    }
    if (!u->values.shared) {
        tsri_log(TSRI_LOG_INFO,
                 "parameter %s is used in \"%s\", outside its unit \"%s\": the unit stays gathered "
                 "for the whole pass; a unit around both would hold it as long and say so",
                 param->name, tsri_tape_path(tape), u->module->path);
    }
    if (tsri_tape_in_recompute(tape)) {
        TSR_TRY(tsri_engine_use(u, tape));
    } else if (e->order.outermost == NULL || u->run.used_forward != e->step.forward ||
               u->values.state != SLOT_READY) {
        if (e->order.outermost != NULL) {
            u->run.used_forward = e->step.forward;
            TSR_TRY(tsri_schedule_reach(e, u->module, MARK_USE, tape));
        }
        TSR_TRY(tsri_engine_use(u, tape));
    }
    return TSR_OK;
}
