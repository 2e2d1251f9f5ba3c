/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Own times of ranks: one small all-gather on the compute stream, so that its waits are watched as
 * those of every other collective. */
#include "train/stragglers.h"

#include "base/base.h"

struct tsri_own_times {
    tsr_stream *stream; /* borrowed */
    tsr_group *group;   /* of all ranks; borrowed */
    tsr_buffer *buffer; /* [size] f64 */
    double *host;       /* [size] */
};

tsri_spread tsri_spread_of(const double *own_s, const int *ranks, int count)
{
    tsri_spread out = {own_s[0], own_s[0], own_s[0], ranks[0]};
    double sum = 0.0;

    for (int i = 0; i < count; i++) {
        sum += own_s[i];
        out.min_s = own_s[i] < out.min_s ? own_s[i] : out.min_s;
        if (own_s[i] > out.max_s || (own_s[i] >= out.max_s && ranks[i] < out.slowest)) {
            out.max_s = own_s[i];
            out.slowest = ranks[i];
        }
    }
    out.others_s = count > 1 ? (sum - out.max_s) / (count - 1) : out.max_s;
    return out;
}

bool tsri_straggler_follow(tsri_straggler *straggler, const tsri_spread *spread)
{
    if (!(spread->max_s > (1.0 + TSRI_STRAGGLER_SHARE) * spread->others_s)) {
        straggler->rows = 0;
        return false;
    }
    straggler->rows = spread->slowest == straggler->rank ? straggler->rows + 1 : 1;
    straggler->rank = spread->slowest;
    return straggler->rows == TSRI_STRAGGLER_ROWS;
}

void tsri_own_times_close(tsri_own_times **times)
{
    tsri_own_times *old = *times;

    *times = NULL;
    if (old != NULL) {
        tsri_buffer_release(&old->buffer);
        tsri_free(&old->host);
        tsri_free(&old);
    }
}

static tsr_status fill_own_times(tsri_own_times *times, tsr_comm *comm)
{
    const unsigned all = (1U << tsr_mesh_axis_count(tsr_comm_mesh(comm))) - 1U;

    times->stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE);
    TSR_TRY(tsri_comm_group(comm, all, TSRI_STREAM_COMPUTE, &times->group));
    const size_t size = (size_t)times->group->size;
    TSR_TRY(
        tsri_comm_buffer(comm, size * sizeof(double), TSRI_MEM_OTHER, "own times", &times->buffer));
    TSR_TRY(tsri_alloc(size, sizeof(double), &times->host));
    return TSR_OK;
}

tsr_status tsri_own_times_open(tsr_comm *comm, tsri_own_times **out)
{
    tsri_own_times *times = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*times), &times));
    TSR_TRY_GOTO(status, fill_own_times(times, comm), fail);
    *out = times;
    return TSR_OK;
fail:
    tsri_own_times_close(&times);
    return status;
}

tsr_status tsri_own_times_gather(tsri_own_times *times, double own_s, tsri_spread *out)
{
    const tsr_group *group = times->group;
    const size_t at = (size_t)group->index * sizeof(double);
    const tsri_coll_item item = {times->buffer, at, times->buffer, 0, 1};
    const tsri_coll coll = {.kind = TSRI_ALL_GATHER,
                            .dtype = TSR_F64,
                            .items = &item,
                            .item_count = 1,
                            .label = "own times"};

    TSR_TRY(tsri_write(times->buffer, at, &own_s, sizeof(own_s), times->stream));
    TSR_TRY(tsri_collective(times->group, &coll, times->stream));
    TSR_TRY(tsri_read(times->buffer, 0, times->host, (size_t)group->size * sizeof(double),
                      times->stream));
    *out = tsri_spread_of(times->host, group->world_ranks, group->size);
    return TSR_OK;
}
