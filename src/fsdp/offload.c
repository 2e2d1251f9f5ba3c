/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Units whose parameters rest in the host pool.
 *
 * A rank's chunks are copied (and cast) from the host pool straight into their places in the slot,
 * on the copy stream; the gather starts behind them. What is touched once per step, norm and
 * update, is touched in place. All copies of a unit are on one stream, so those of its host memory
 * are in order by that.
 */
#include "fsdp_priv.h"

#include "base/base.h"

enum {
    F32 = (int)sizeof(float)
};

tsr_status tsri_unit_copy(const unit *u, tsri_stream_kind kind, const tsri_mem *from,
                          const tsri_mem *to, int64_t count)
{
    TSR_TRY(tsri_copy(to->buffer, to->offset, from->buffer, from->offset, (size_t)count * F32,
                      u->module->path, tsri_unit_stream(u, kind)));
    return TSR_OK;
}

tsr_status tsri_unit_stage_shard(unit *u, tsri_mem *out)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_COPY);
    const size_t own = (size_t)u->flat.own_begin * F32;

    TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), (size_t)u->flat.shard_count * F32,
                               TSRI_MEM_SLOT_PARAM, u->module->path, stream, out));
    const tsri_mem rest = {.buffer = u->rest.shard, .offset = own};
    const tsri_mem place = {.buffer = out->buffer, .offset = out->offset + own};

    TSR_TRY(tsri_unit_copy(u, TSRI_STREAM_COPY, &rest, &place, u->flat.own_count));
    TSR_TRY(
        tsri_stream_wait(tsri_unit_stream(u, TSRI_STREAM_REPLICATE), tsri_event_record(stream)));
    return TSR_OK;
}

tsr_status tsri_unit_unstage_shard(unit *u, tsri_mem *staged)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_COPY);
    const tsri_mem rest = {.buffer = u->rest.shard};

    TSR_TRY(
        tsri_stream_wait(stream, tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_REPLICATE))));
    TSR_TRY(tsri_unit_copy(u, TSRI_STREAM_COPY, staged, &rest, u->flat.train_count));
    tsri_arena_release(tsri_comm_arena(u->comm), staged, tsri_event_record(stream));
    return TSR_OK;
}
