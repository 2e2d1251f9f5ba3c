/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "support/backend_rig.h"

#include "backend/boot/boot.h"
#include "backend/recorder.h"

#include <stdlib.h>
#include <string.h>

#include "support/hostile.h"
#include "support/tsr_test.h"

enum {
    HOSTILE_SEEDS = 3
};

static tsr_status open_streams(backend_rig *r)
{
    int ranks[RIG_MAX_RANKS];
    for (int i = 0; i < RIG_MAX_RANKS; i++) {
        ranks[i] = i;
    }
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        TSR_TRY(tsri_stream_open(r->device, (tsri_stream_kind)s, &r->streams[s]));
        TSR_TRY(tsri_group_open(r->device, ranks, r->size, r->rank, 1U, "world", r->streams[s],
                                &r->all[s]));
    }
    TSR_TRY(tsri_group_open(r->device, &r->rank, 1, 0, 0U, "self", r->streams[TSRI_STREAM_COMPUTE],
                            &r->self));
    return TSR_OK;
}

static tsr_status open_rig(const char *name, double timeout_s, backend_rig *r)
{
    tsri_boot_info info = {0};
    const tsri_recorder_options recorder = {.ledger = true, .race_check = true};
    memset(r, 0, sizeof(*r));
    TSR_TRY(tsri_boot_init(NULL, NULL, NULL, &info));
    r->rank = info.rank;
    r->size = info.size;
    const tsri_device_options options = {
        .world_rank = info.rank, .world_size = info.size, .threads = 1, .timeout_s = timeout_s};
    TSR_TRY(tsri_backend_find(name, &r->backend));
    r->executes = (r->backend->caps & TSR_CAP_EXECUTES) != 0;
    TSR_TRY(tsri_device_open(r->backend, &options, &r->device));
    TSR_TRY(tsri_recorder_attach(r->device, &recorder));
    TSR_TRY(open_streams(r));
    return TSR_OK;
}

bool backend_rig_open_within(const char *name, double timeout_s, backend_rig *r)
{
    tsr_status status = open_rig(name, timeout_s, r);
    CHECK_OK(status);
    return status == TSR_OK;
}

bool backend_rig_open(const char *name, backend_rig *r)
{
    return backend_rig_open_within(name, 60, r);
}

void backend_rig_close(backend_rig *r, int races)
{
    tsri_group_close(&r->self);
    for (int s = TSRI_STREAM_COUNT - 1; s >= 0; s--) {
        tsri_group_close(&r->all[s]);
    }
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        tsri_stream_close(&r->streams[s]);
    }
    if (r->device != NULL) {
        CHECK_EQ(r->device->bytes_now, 0);
        CHECK_EQ(tsri_recorder_race_count(r->device), races);
    }
    tsri_device_close(&r->device);
}

tsr_status backend_rig_floats(backend_rig *r, int64_t count, tsr_buffer **out)
{
    TSR_TRY(
        tsri_buffer_alloc(r->device, (size_t)count * sizeof(float), TSRI_MEM_OTHER, "floats", out));
    return TSR_OK;
}

tsr_status backend_rig_scale(tsr_stream *stream, tsr_buffer *x, int64_t from, tsr_buffer *y,
                             int64_t to, int64_t n, float factor)
{
    const size_t bytes = (size_t)n * sizeof(float);
    tsri_call call = {.stream = stream, .label = "scale"};
    tsrk_scale args = {.n = n, .factor = factor, .x_type = TSR_F32, .y_type = TSR_F32};
    args.x = tsri_arg_in(&call, x, (size_t)from * sizeof(float), bytes);
    args.y = tsri_arg_out(&call, y, (size_t)to * sizeof(float), bytes);
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

void backend_rig_over_all(void (*check)(const char *name))
{
    const char *only = getenv("TSR_CONFORMANCE");
    const char *names[] = {"sim", "cpu", "hostile"};
    const int count = only == NULL ? (int)(sizeof(names) / sizeof(names[0])) : 1;
    tsri_boot_info info;

    REQUIRE_OK(tsri_boot_init(NULL, NULL, NULL, &info));
    for (int i = 0; i < count; i++) {
        const char *name = only == NULL ? names[i] : only;
        const int seeds = strcmp(name, "hostile") == 0 ? HOSTILE_SEEDS : 1;

        for (int seed = 1; seed <= seeds; seed++) {
            hostile_set(&(hostile_options){.seed = (uint64_t)seed});
            check(name);
            CHECK_EQ(hostile_fault_count(), 0);
        }
    }
}
