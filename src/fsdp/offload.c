/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Units whose parameters or gradients rest in the host pool.
 *
 * Parameters: a rank's chunks are copied (and cast) from the host pool straight into their places
 * in the slot, on the copy stream; the gather starts behind them. Gradients: sums are formed in a
 * range of step memory and copied to the host pool when they are reduced; what earlier
 * micro-batches left there is brought back first. What is touched once per step, norm and update,
 * is touched in place. All copies of a unit are on one stream, so those of its host memory are in
 * order by that.
 */
#include "fsdp_priv.h"

#include "base/base.h"

enum {
    F32 = (int)sizeof(float)
};

/* to[count] = from[count], f32, on the copy stream. */
static tsr_status copy(const unit *u, tsr_buffer *from, size_t from_offset, tsr_buffer *to,
                       size_t to_offset, int64_t count)
{
    const size_t bytes = (size_t)count * F32;
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_COPY), .label = u->module->path};
    tsrk_scale args = {.n = count, .factor = 1.0F, .x_type = TSR_F32, .y_type = TSR_F32};

    args.x = tsri_arg_in(&call, from, from_offset, bytes);
    args.y = tsri_arg_out(&call, to, to_offset, bytes);
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

/* stream goes on behind the copies enqueued so far. */
static tsr_status follow_copies(const unit *u, tsr_stream *stream)
{
    TSR_TRY(tsri_stream_wait(stream, tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_COPY))));
    return TSR_OK;
}

tsr_status tsri_unit_stage_shard(unit *u, tsri_mem *out)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_COPY);
    const size_t own = (size_t)u->own_begin * F32;

    TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), (size_t)u->shard_count * F32,
                               TSRI_MEM_SLOT_PARAM, u->module->path, stream, out));
    TSR_TRY(copy(u, u->shard, own, out->buffer, out->offset + own, u->own_count));
    TSR_TRY(follow_copies(u, tsri_unit_stream(u, TSRI_STREAM_GATHER)));
    return TSR_OK;
}

tsr_status tsri_unit_unstage_shard(unit *u, tsri_mem *staged)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_COPY);

    TSR_TRY(tsri_stream_wait(stream, tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_GATHER))));
    TSR_TRY(copy(u, staged->buffer, staged->offset, u->shard, 0, u->train_count));
    tsri_arena_release(tsri_comm_arena(u->comm), staged, tsri_event_record(stream));
    return TSR_OK;
}

tsr_status tsri_unit_open_sums(unit *u, bool load, tsri_stream_kind kind)
{
    tsr_stream *stream = tsri_unit_stream(u, kind);
    tsr_stream *copies = tsri_unit_stream(u, TSRI_STREAM_COPY);

    if (!u->options.offload_grads || u->sums_held) {
        return TSR_OK;
    }
    TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), (size_t)u->grad_count * F32,
                               TSRI_MEM_SLOT_GRAD, u->module->path, load ? copies : stream,
                               &u->sums));
    u->sums_held = true;
    if (load) {
        TSR_TRY(tsri_stream_wait(copies, u->reduced));
        TSR_TRY(copy(u, u->grad, 0, u->sums.buffer, u->sums.offset, u->grad_count));
        TSR_TRY(follow_copies(u, stream));
    }
    return TSR_OK;
}

tsr_status tsri_unit_close_sums(unit *u)
{
    tsr_stream *copies = tsri_unit_stream(u, TSRI_STREAM_COPY);

    if (!u->sums_held) {
        return TSR_OK;
    }
    TSR_TRY(tsri_stream_wait(copies, u->reduced));
    TSR_TRY(copy(u, u->sums.buffer, u->sums.offset, u->grad, 0, u->grad_count));
    u->reduced = tsri_event_record(copies);
    tsri_arena_release(tsri_comm_arena(u->comm), &u->sums, u->reduced);
    u->sums_held = false;
    return TSR_OK;
}
