/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/* What every backend promises, run over each that is built in, and over the tests' own. Results are
 * looked at where the backend executes; elsewhere (sim) the same calls must be accepted, refused
 * and recorded alike. */
#include "backend/boot/boot.h"
#include "backend/dispatch.h"
#include "backend/recorder.h"
#include "base/base.h"

#include <string.h>

#include "support/hostile.h"
#include "support/tsr_test.h"

enum {
    MAX_RANKS = 8,
    COUNT = 5,
    MAX_LIST = TSRI_COLL_MAX_ITEMS + 6,
    HOSTILE_SEEDS = 3
};

typedef struct rig {
    const tsr_backend *backend;
    bool executes;
    tsr_device *device;
    tsr_stream *streams[TSRI_STREAM_COUNT];
    tsr_group *all[TSRI_STREAM_COUNT]; /* the world, on each stream */
    tsr_group *self;                   /* this rank, on compute */
    int rank, size;
} rig;

static tsr_status open_streams(rig *r)
{
    int ranks[MAX_RANKS];
    for (int i = 0; i < MAX_RANKS; i++) {
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

static tsr_status rig_open(const char *name, rig *r)
{
    tsri_boot_info info = {0};
    const tsri_recorder_options recorder = {.ledger = true, .race_check = true};
    memset(r, 0, sizeof(*r));
    TSR_TRY(tsri_boot_init(NULL, NULL, NULL, &info));
    r->rank = info.rank;
    r->size = info.size;
    const tsri_device_options options = {
        .world_rank = info.rank, .world_size = info.size, .threads = 1, .timeout_s = 60};
    TSR_TRY(tsri_backend_find(name, &r->backend));
    r->executes = (r->backend->caps & TSR_CAP_EXECUTES) != 0;
    TSR_TRY(tsri_device_open(r->backend, &options, &r->device));
    TSR_TRY(tsri_recorder_attach(r->device, &recorder));
    TSR_TRY(open_streams(r));
    return TSR_OK;
}

static bool rig_ready(const char *name, rig *r)
{
    tsr_status status = rig_open(name, r);
    CHECK_OK(status);
    return status == TSR_OK;
}

static void rig_close(rig *r)
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
        CHECK_EQ(tsri_recorder_race_count(r->device), 0);
    }
    tsri_device_close(&r->device);
}

static tsr_status floats(rig *r, int64_t count, tsr_buffer **out)
{
    TSR_TRY(
        tsri_buffer_alloc(r->device, (size_t)count * sizeof(float), TSRI_MEM_OTHER, "floats", out));
    return TSR_OK;
}

/* A kernel on stream: y[to ..] (+)= x[from ..] * factor. */
static tsr_status scale(tsr_stream *stream, tsr_buffer *x, int64_t from, tsr_buffer *y, int64_t to,
                        int64_t n, float factor)
{
    const size_t bytes = (size_t)n * sizeof(float);
    tsri_call call = {.stream = stream, .label = "scale"};
    tsrk_scale args = {.n = n, .factor = factor, .x_type = TSR_F32, .y_type = TSR_F32};
    args.x = tsri_arg_in(&call, x, (size_t)from * sizeof(float), bytes);
    args.y = tsri_arg_out(&call, y, (size_t)to * sizeof(float), bytes);
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

/* ---- memory and copies ---- */

/* Wrong bytes of got [1000]: value is expected farther than margin from both ends, else 0. */
static int differing(const unsigned char *got, int margin, int value)
{
    int count = 0;
    for (int i = 0; i < 1000; i++) {
        const bool inside = margin > 0 && i >= margin && i < 1000 - margin;
        count += got[i] != (inside ? value : 0);
    }
    return count;
}

static void check_memory(const char *name)
{
    rig r;
    tsr_buffer *buffers[4] = {NULL};
    const size_t sizes[4] = {0, 1, 1000, 1 << 20};
    unsigned char got[1000];
    if (!rig_ready(name, &r)) {
        return;
    }
    tsr_stream *compute = r.streams[TSRI_STREAM_COMPUTE];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 4; i++) {
            CHECK_OK(tsri_buffer_alloc(r.device, sizes[i], TSRI_MEM_OTHER, "memory", &buffers[i]));
            CHECK_EQ(buffers[i]->bytes, sizes[i]);
            CHECK_EQ((uintptr_t)buffers[i]->address % 256, 0);
            if (!r.executes) {
                CHECK(buffers[i]->address == NULL);
            } else if (sizes[i] > 0) {
                CHECK(buffers[i]->address != NULL);
            }
        }
        /* Zeroed, also where the last round's bytes lay. */
        memset(got, 0xff, sizeof(got));
        CHECK_OK(tsri_read(buffers[2], 0, got, 1000, compute));
        CHECK_EQ(differing(got, 0, 0), 0);
        memset(got, 0x5a, sizeof(got));
        CHECK_OK(tsri_write(buffers[2], 10, got, 980, compute));
        memset(got, 0, sizeof(got)); /* write has copied */
        CHECK_OK(tsri_read(buffers[2], 0, got, 1000, compute));
        CHECK_EQ(differing(got, r.executes ? 10 : 0, 0x5a), 0);
        for (int i = 0; i < 4; i++) {
            tsri_buffer_release(&buffers[i]);
        }
    }
    rig_close(&r);
}

static void check_empty_ranges(const char *name)
{
    rig r;
    tsr_buffer *empty = NULL;
    char byte = 7;
    if (!rig_ready(name, &r)) {
        return;
    }
    tsr_stream *compute = r.streams[TSRI_STREAM_COMPUTE];
    REQUIRE_OK(tsri_buffer_alloc(r.device, 0, TSRI_MEM_PARAM, "empty", &empty));
    CHECK_OK(tsri_write(empty, 0, NULL, 0, compute));
    CHECK_OK(tsri_read(empty, 0, &byte, 0, compute));
    CHECK_EQ(byte, 7);
    CHECK_OK(scale(compute, empty, 0, empty, 0, 0, 1.0F));
    for (int kind = 0; kind < TSRI_COLL_COUNT; kind++) {
        const tsri_coll_item item = {empty, 0, empty, 0, 0};
        const tsri_coll coll = {.kind = (tsri_coll_kind)kind,
                                .dtype = TSR_F32,
                                .items = &item,
                                .item_count = 1,
                                .label = "empty"};
        CHECK_OK(tsri_collective(r.all[TSRI_STREAM_GATHER], &coll, r.streams[TSRI_STREAM_GATHER]));
        CHECK_OK(tsri_collective(r.self, &coll, compute));
    }
    CHECK_STATUS(TSR_ERR_INVALID, tsri_write(empty, 0, &byte, 1, compute));
    CHECK_OK(tsri_stream_sync(compute));
    tsri_buffer_release(&empty);
    rig_close(&r);
}

/* ---- kernels, streams, events ---- */

static void check_launch(const char *name)
{
    enum {
        N = 1000
    };
    rig r;
    tsr_buffer *x = NULL;
    float host[N];
    if (!rig_ready(name, &r)) {
        return;
    }
    REQUIRE_OK(floats(&r, 2 * (int64_t)N, &x));
    for (int i = 0; i < N; i++) {
        host[i] = (float)i;
    }
    /* On every stream, not on compute alone. */
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        REQUIRE_OK(tsri_write(x, 0, host, sizeof(host), r.streams[s]));
        REQUIRE_OK(scale(r.streams[s], x, 0, x, N, N, (float)(s + 2)));
        memset(host, 0, sizeof(host));
        REQUIRE_OK(tsri_read(x, sizeof(host), host, sizeof(host), r.streams[s]));
        for (int i = 0; i < N; i++) {
            /* The product of two integers below 2^24 is exact. */
            REQUIRE_EQ(host[i] == (r.executes ? (float)(i * (s + 2)) : 0.0F), 1);
            host[i] = (float)i;
        }
        CHECK_EQ(r.streams[s]->enqueued, 3);
        CHECK(r.backend->event_done(tsri_event_record(r.streams[s])));
    }
    tsri_buffer_release(&x);
    rig_close(&r);
}

/* A value handed from stream to stream, doubled at each, and far longer than any queue. */
static void check_events_order(const char *name)
{
    enum {
        HOPS = 600,
        N = 2000
    };
    rig r;
    tsr_buffer *x = NULL;
    float host[N];
    if (!rig_ready(name, &r)) {
        return;
    }
    REQUIRE_OK(floats(&r, (int64_t)N * 2, &x));
    for (int i = 0; i < N; i++) {
        host[i] = (float)i;
    }
    int s = 0;
    CHECK_OK(tsri_write(x, 0, host, sizeof(host), r.streams[0]));
    for (int hop = 0; hop < HOPS; hop++) {
        const int t = (s + 1 + hop % (TSRI_STREAM_COUNT - 1)) % TSRI_STREAM_COUNT;
        CHECK_OK(tsri_stream_wait(r.streams[t], tsri_event_record(r.streams[s])));
        const int64_t from = hop % 2 == 0 ? 0 : N;
        CHECK_OK(scale(r.streams[t], x, from, x, N - from, N, from == 0 ? 2.0F : 0.5F));
        s = t;
    }
    CHECK_OK(tsri_stream_sync(r.streams[s]));
    CHECK_OK(tsri_read(x, 0, host, sizeof(host), r.streams[s]));
    int wrong = 0;
    for (int i = 0; r.executes && i < N; i++) {
        wrong += host[i] != (float)i; /* powers of two: exact */
    }
    CHECK_EQ(wrong, 0);
    tsri_buffer_release(&x);
    rig_close(&r);
}

/* A sync covers what an enqueued wait waits for. */
static void check_sync_covers_waits(const char *name)
{
    enum {
        N = 200000
    };
    rig r;
    tsr_buffer *x = NULL;
    if (!rig_ready(name, &r)) {
        return;
    }
    REQUIRE_OK(floats(&r, N, &x));
    for (int i = 0; i < 20; i++) {
        REQUIRE_OK(scale(r.streams[TSRI_STREAM_REDUCE], x, 0, x, 0, N, 1.0F));
        const tsr_event event = tsri_event_record(r.streams[TSRI_STREAM_REDUCE]);
        REQUIRE_OK(tsri_stream_wait(r.streams[TSRI_STREAM_COPY], event));
        REQUIRE_OK(tsri_stream_sync(r.streams[TSRI_STREAM_COPY]));
        CHECK(r.backend->event_done(event));
        CHECK(tsri_event_done(event));
    }
    tsri_buffer_release(&x); /* the race check counts it as ordered */
    rig_close(&r);
}

/* ---- collectives ---- */

static float value_of(int rank, int item, int64_t element)
{
    return (float)(rank * 37 + item * 11 + element % 17);
}

/* Element e of out after the collective; count elements per piece. */
static float expected_of(const rig *r, const tsri_coll *coll, int item, int64_t count, int64_t e)
{
    float sum = 0;
    float largest = -1;
    const int64_t at = coll->kind == TSRI_REDUCE_SCATTER ? r->rank * count + e : e;
    switch (coll->kind) {
    case TSRI_ALL_GATHER:
        return value_of((int)(e / count), item, e % count);
    case TSRI_ALL_TO_ALL:
        return value_of((int)(e / count), item, r->rank * count + e % count);
    case TSRI_BROADCAST:
        return value_of(coll->root, item, e);
    case TSRI_REDUCE_SCATTER:
    case TSRI_ALL_REDUCE:
    case TSRI_COLL_COUNT:
    default:
        for (int i = 0; i < r->size; i++) {
            sum += value_of(i, item, at);
            largest = value_of(i, item, at) > largest ? value_of(i, item, at) : largest;
        }
        return coll->op == TSRI_MAX ? largest : sum;
    }
}

static int wrong_outputs(const rig *r, const tsri_coll *coll, int pieces, tsr_stream *stream)
{
    float host[COUNT * MAX_RANKS];
    int wrong = 0;
    for (int i = 0; i < coll->item_count; i++) {
        const tsri_coll_item *item = &coll->items[i];
        const int64_t n = item->count * pieces;
        CHECK_OK(tsri_read(item->out, item->out_offset, host, (size_t)n * sizeof(float), stream));
        for (int64_t e = 0; r->executes && e < n; e++) {
            /* Sums of integers below 2^24 are exact. */
            wrong += host[e] != expected_of(r, coll, i, item->count, e);
        }
    }
    return wrong;
}

/* in stays as it is where out lies elsewhere: elements that do not. */
static int changed_inputs(const rig *r, const tsri_coll *coll, int pieces, tsr_stream *stream)
{
    float host[COUNT * MAX_RANKS];
    int changed = 0;
    for (int i = 0; i < coll->item_count; i++) {
        const tsri_coll_item *item = &coll->items[i];
        const int64_t n = item->count * pieces;
        CHECK_OK(tsri_read(item->in, item->in_offset, host, (size_t)n * sizeof(float), stream));
        for (int64_t e = 0; r->executes && e < n; e++) {
            changed += host[e] != value_of(r->rank, i, e);
        }
    }
    return changed;
}

/* Items side by side in two buffers, or in one where the kind allows it. Counts differ, some are 0.
 */
static void try_collective(rig *r, tsri_coll *coll, tsr_group *group, tsr_stream *stream,
                           bool in_place)
{
    tsri_coll_item items[MAX_LIST];
    tsr_buffer *in = NULL;
    tsr_buffer *out = NULL;
    const int64_t pitch = (int64_t)COUNT * MAX_RANKS;
    float host[COUNT * MAX_RANKS];
    const bool wide_in = coll->kind == TSRI_REDUCE_SCATTER || coll->kind == TSRI_ALL_TO_ALL;
    const bool wide_out = coll->kind == TSRI_ALL_GATHER || coll->kind == TSRI_ALL_TO_ALL;
    REQUIRE_OK(floats(r, pitch * coll->item_count, &in));
    REQUIRE_OK(floats(r, pitch * coll->item_count, &out));
    for (int i = 0; i < coll->item_count; i++) {
        const int64_t count = i % 4 == 3 ? 0 : COUNT - i % 3;
        const size_t at = (size_t)(i * pitch) * sizeof(float);
        const size_t mine = (size_t)(r->rank * count) * sizeof(float);
        items[i] = (tsri_coll_item){in, at, in_place ? in : out, at, count};
        if (in_place) {
            items[i].in_offset += coll->kind == TSRI_ALL_GATHER ? mine : 0;
            items[i].out_offset += coll->kind == TSRI_REDUCE_SCATTER ? mine : 0;
        }
        const int64_t n = count * (wide_in ? r->size : 1);
        for (int64_t e = 0; e < n; e++) {
            host[e] = value_of(r->rank, i, e);
        }
        CHECK_OK(tsri_write(in, items[i].in_offset, host, (size_t)n * sizeof(float), stream));
    }
    coll->items = items;
    CHECK_OK(tsri_collective(group, coll, stream));
    CHECK_EQ(wrong_outputs(r, coll, wide_out ? r->size : 1, stream), 0);
    CHECK_EQ(in_place ? 0 : changed_inputs(r, coll, wide_in ? r->size : 1, stream), 0);
    tsri_buffer_release(&in);
    tsri_buffer_release(&out);
}

static void check_collectives(const char *name)
{
    rig r;
    const int lists[] = {1, 7, MAX_LIST};
    if (!rig_ready(name, &r)) {
        return;
    }
    for (int kind = 0; kind < TSRI_COLL_COUNT; kind++) {
        for (int trial = 0; trial < 6; trial++) {
            const bool in_place = trial % 2 == 1;
            const int s = trial % TSRI_STREAM_COUNT;
            tsri_coll coll = {.kind = (tsri_coll_kind)kind,
                              .dtype = TSR_F32,
                              .op = trial / 2 == 1 ? TSRI_MAX : TSRI_SUM,
                              .root = (trial + 1) % r.size,
                              .item_count = lists[trial / 2],
                              .label = "trial"};
            if (!in_place || kind != TSRI_ALL_TO_ALL) {
                try_collective(&r, &coll, r.all[s], r.streams[s], in_place);
            }
        }
    }
    rig_close(&r);
}

/* The ledger says the same of every backend, and times exist where work is done. */
static void check_recording(const char *name)
{
    rig r;
    tsr_buffer *x = NULL;
    int count = 0;
    int seen = 0;
    if (!rig_ready(name, &r)) {
        return;
    }
    REQUIRE_OK(floats(&r, 1024, &x));
    const tsri_coll_item item = {x, 0, x, 0, 1024};
    const tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                            .dtype = TSR_F32,
                            .items = &item,
                            .item_count = 1,
                            .label = "recorded"};
    REQUIRE_OK(tsri_collective(r.all[TSRI_STREAM_REDUCE], &coll, r.streams[TSRI_STREAM_REDUCE]));
    REQUIRE_OK(tsri_stream_sync(r.streams[TSRI_STREAM_REDUCE]));
    REQUIRE_OK(scale(r.streams[TSRI_STREAM_COMPUTE], x, 0, x, 0, 1024, 2.0F));
    REQUIRE_OK(tsri_stream_sync(r.streams[TSRI_STREAM_COMPUTE]));
    const tsri_entry *e = tsri_recorder_entries(r.device, &count);
    for (int i = 0; i < count; i++) {
        const bool is_collective = e[i].kind == TSRI_ENTRY_COLLECTIVE;
        if (!is_collective && e[i].kind != TSRI_ENTRY_KERNEL) {
            continue;
        }
        seen++;
        CHECK_EQ(e[i].seq, 1);
        CHECK_EQ(e[i].op, is_collective ? (int)TSRI_ALL_REDUCE : (int)TSRK_SCALE);
        CHECK_EQ(e[i].bytes, is_collective ? 4096 : 2 * 4096); /* read and written */
        CHECK(r.executes ? e[i].end_s >= e[i].begin_s && e[i].begin_s > 0 : e[i].end_s == 0);
    }
    CHECK_EQ(seen, r.size == 1 ? 1 : 2);
    CHECK_EQ(tsri_recorder_sent_bytes(r.device, 1U),
             (size_t)2 * 4096 * (size_t)(r.size - 1) / (size_t)r.size);
    tsri_buffer_release(&x);
    rig_close(&r);
}

static void check_refusals(const char *name)
{
    rig r;
    tsr_buffer *x = NULL;
    tsr_stream *again = NULL;
    char byte = 0;
    if (!rig_ready(name, &r)) {
        return;
    }
    REQUIRE_OK(floats(&r, 16, &x));
    tsr_stream *gather = r.streams[TSRI_STREAM_GATHER];
    const tsri_coll_item item = {x, 0, x, 0, 17};
    tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                      .dtype = TSR_F32,
                      .items = &item,
                      .item_count = 1,
                      .label = "refused"};
    CHECK_STATUS(TSR_ERR_INVALID, tsri_collective(r.all[TSRI_STREAM_GATHER], &coll, gather));
    coll.item_count = 0;
    CHECK_STATUS(TSR_ERR_INVALID, tsri_collective(r.all[TSRI_STREAM_REDUCE], &coll, gather));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_write(x, 64, &byte, 1, gather));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_read(x, 64, &byte, 1, gather));
    CHECK_STATUS(TSR_ERR_INVALID, scale(gather, x, 0, x, 1, 16, 1.0F));
    CHECK_STATUS(TSR_ERR_STATE, tsri_stream_open(r.device, TSRI_STREAM_GATHER, &again));
    CHECK_EQ(tsri_event_record(gather).seq, 0);
    const tsr_group *group = r.all[TSRI_STREAM_GATHER];
    CHECK(group != NULL && group->seq == 0);
    /* What was refused does no harm. */
    CHECK_OK(scale(gather, x, 0, x, 0, 16, 1.0F));
    CHECK_OK(tsri_stream_sync(gather));
    tsri_buffer_release(&x);
    rig_close(&r);
}

static void check_table(const char *name)
{
    const tsr_backend *b = NULL;
    tsr_device *device = NULL;
    REQUIRE_OK(tsri_backend_find(name, &b));
    CHECK_STR(b->name, name);
    CHECK_EQ(b->abi, TSR_BACKEND_ABI);
    CHECK(b->device_open && b->device_close && b->alloc && b->release && b->stream_open &&
          b->stream_close && b->stream_wait && b->stream_sync && b->event_done && b->launch &&
          b->write && b->read && b->group_open && b->group_close && b->collective);
    REQUIRE_OK(tsri_device_open(b,
                                &(tsri_device_options){.world_rank = tsr_test_rank(),
                                                       .world_size = tsr_test_size(),
                                                       .threads = 3,
                                                       .timeout_s = 17},
                                &device));
    CHECK_EQ(device->threads, 3);
    CHECK(device->timeout_s == 17.0);
    CHECK(device->backend == b);
    REQUIRE(device->kernels != NULL);
    for (int k = 0; k < TSRK_COUNT; k++) {
        CHECK(device->kernels->fn[k] != NULL);
    }
    /* Workspace sizes do not depend on who computes: sim plans what cpu needs. */
    const tsrk_rmsnorm_bwd args = {.rows = 64, .cols = 128, .type = TSR_F32, .grad_type = TSR_F32};
    const tsri_kernel_table *cpu = tsrk_table_cpu();
    CHECK_EQ(tsri_workspace_bytes(device, TSRK_RMSNORM_BWD, &args),
             cpu->workspace == NULL ? 0 : cpu->workspace(TSRK_RMSNORM_BWD, &args, 3));
    tsri_device_close(&device);
}

static void over_backends(void (*check)(const char *name))
{
    tsri_boot_info info;
    REQUIRE_OK(tsri_boot_init(NULL, NULL, NULL, &info));
    check("sim");
    check("cpu");
    for (uint64_t seed = 1; seed <= HOSTILE_SEEDS; seed++) {
        hostile_set(&(hostile_options){.seed = seed});
        check("hostile");
        CHECK_EQ(hostile_fault_count(), 0);
    }
}

static void test_table(void)
{
    over_backends(check_table);
}

static void test_memory(void)
{
    over_backends(check_memory);
}

static void test_empty_ranges(void)
{
    over_backends(check_empty_ranges);
}

static void test_launch(void)
{
    over_backends(check_launch);
}

static void test_events_order(void)
{
    over_backends(check_events_order);
}

static void test_sync_covers_waits(void)
{
    over_backends(check_sync_covers_waits);
}

static void test_collectives(void)
{
    over_backends(check_collectives);
}

static void test_recording(void)
{
    over_backends(check_recording);
}

static void test_refusals(void)
{
    over_backends(check_refusals);
}

const tsr_test_case tsr_test_cases[] = {
    {"table", test_table},
    {"memory", test_memory},
    {"empty_ranges", test_empty_ranges},
    {"launch", test_launch},
    {"events_order", test_events_order},
    {"sync_covers_waits", test_sync_covers_waits},
    {"collectives", test_collectives},
    {"recording", test_recording},
    {"refusals", test_refusals},
    {NULL, NULL},
};
