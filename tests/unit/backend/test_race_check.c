/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The race check: planted races, every wait of a pipeline dropped in turn, and random programs
 * against a check by brute force. */
#include "backend/dispatch.h"
#include "backend/recorder.h"
#include "base/base.h"
#include "base/rng.h"

#include <string.h>

#include "support/tsr_test.h"

typedef struct fixture {
    tsr_device *device;
    tsr_stream *streams[TSRI_STREAM_COUNT];
    tsr_group *group; /* index 1 of 2 on gather */
    tsr_buffer *buffer;
} fixture;

static tsr_status open_all(fixture *f, int drop_wait)
{
    const int ranks[] = {0, 1};
    const tsri_device_options options = {.world_rank = 1, .world_size = 2};
    const tsri_recorder_options recorder = {.race_check = true, .drop_wait = drop_wait};
    memset(f, 0, sizeof(*f));
    TSR_TRY(tsri_device_open(&tsri_backend_sim, &options, &f->device));
    TSR_TRY(tsri_recorder_attach(f->device, &recorder));
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        TSR_TRY(tsri_stream_open(f->device, (tsri_stream_kind)s, &f->streams[s]));
    }
    TSR_TRY(tsri_group_open(f->device, ranks, 2, 1, 1U, "shard", f->streams[TSRI_STREAM_GATHER],
                            &f->group));
    TSR_TRY(tsri_buffer_alloc(f->device, 4096, TSRI_MEM_OTHER, "ring", &f->buffer));
    return TSR_OK;
}

static void close_all(fixture *f)
{
    tsri_group_close(&f->group);
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        tsri_stream_close(&f->streams[s]);
    }
    tsri_buffer_release(&f->buffer);
    tsri_device_close(&f->device);
}

/* A kernel that reads or writes one range. */
static tsr_status touch(fixture *f, tsri_stream_kind stream, size_t offset, size_t bytes,
                        bool is_write)
{
    const tsrk_zero args = {.bytes = 0};
    tsri_call call = {.stream = f->streams[stream], .label = "touch"};
    if (is_write) {
        (void)tsri_arg_out(&call, f->buffer, offset, bytes);
    } else {
        (void)tsri_arg_in(&call, f->buffer, offset, bytes);
    }
    TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    return TSR_OK;
}

static tsr_status wait_on(fixture *f, tsri_stream_kind waiter, tsri_stream_kind awaited)
{
    TSR_TRY(tsri_stream_wait(f->streams[waiter], tsri_event_record(f->streams[awaited])));
    return TSR_OK;
}

static const tsri_stream_kind a = TSRI_STREAM_COMPUTE;
static const tsri_stream_kind b = TSRI_STREAM_GATHER;
static const tsri_stream_kind c = TSRI_STREAM_REDUCE;

static void test_planted_races(void)
{
    const struct {
        bool first_writes, second_writes, overlap, races;
    } cases[] = {
        {true, true, true, true},    {true, false, true, true},  {false, true, true, true},
        {false, false, true, false}, {true, true, false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture f;
        const size_t offset = cases[i].overlap ? 99 : 100;
        REQUIRE_OK(open_all(&f, 0));
        REQUIRE_OK(touch(&f, a, 0, 100, cases[i].first_writes));
        CHECK_STATUS(cases[i].races ? TSR_ERR_INTERNAL : TSR_OK,
                     touch(&f, b, offset, 50, cases[i].second_writes));
        CHECK_EQ(tsri_recorder_race_count(f.device), cases[i].races);
        /* Ordered, nothing is a race. A refused call left no access behind. */
        REQUIRE_OK(wait_on(&f, b, a));
        CHECK_OK(touch(&f, b, 0, 150, true));
        close_all(&f);
    }
}

static void test_message_names_both_calls(void)
{
    fixture f;
    REQUIRE_OK(open_all(&f, 0));
    const tsri_coll_item item = {f.buffer, 64, f.buffer, 0, 16};
    const tsri_coll coll = {.kind = TSRI_ALL_GATHER,
                            .dtype = TSR_F32,
                            .items = &item,
                            .item_count = 1,
                            .label = "layers.3"};
    REQUIRE_OK(tsri_collective(f.group, &coll, f.streams[b]));
    REQUIRE(touch(&f, a, 96, 100, false) == TSR_ERR_INTERNAL);
    const char *message = tsr_error_message();
    CHECK(strstr(message, "all_gather of layers.3 (gather:1)") != NULL);
    CHECK(strstr(message, "zero of touch (compute:1)") != NULL);
    CHECK(strstr(message, "ring") != NULL);
    CHECK(strstr(message, "0..128") != NULL);
    tsr_error_clear();
    close_all(&f);
}

static void test_order_is_transitive(void)
{
    fixture f;
    REQUIRE_OK(open_all(&f, 0));
    REQUIRE_OK(touch(&f, a, 0, 100, true));
    REQUIRE_OK(wait_on(&f, b, a));
    /* An event without an operation after the wait does not carry the wait. */
    REQUIRE_OK(wait_on(&f, c, b));
    CHECK_STATUS(TSR_ERR_INTERNAL, touch(&f, c, 0, 100, false));
    REQUIRE_OK(touch(&f, b, 200, 8, true));
    REQUIRE_OK(wait_on(&f, c, b));
    CHECK_OK(touch(&f, c, 0, 100, false));
    close_all(&f);
}

static void test_old_events_order_old_work_only(void)
{
    fixture f;
    REQUIRE_OK(open_all(&f, 0));
    REQUIRE_OK(touch(&f, a, 0, 100, true));
    const tsr_event early = tsri_event_record(f.streams[a]);
    REQUIRE_OK(touch(&f, a, 50, 100, true));
    REQUIRE_OK(tsri_stream_wait(f.streams[b], early));
    CHECK_OK(touch(&f, b, 0, 50, false));
    CHECK_STATUS(TSR_ERR_INTERNAL, touch(&f, b, 0, 51, false));
    close_all(&f);
}

static void test_host_orders(void)
{
    fixture f;
    char byte = 0;
    REQUIRE_OK(open_all(&f, 0));
    REQUIRE_OK(touch(&f, a, 0, 100, true));
    REQUIRE_OK(tsri_stream_sync(f.streams[a]));
    CHECK_OK(touch(&f, b, 0, 100, true));
    CHECK_STATUS(TSR_ERR_INTERNAL, tsri_read(f.buffer, 0, &byte, 1, f.streams[c]));
    CHECK_OK(tsri_read(f.buffer, 0, &byte, 1, f.streams[b]));
    CHECK_OK(touch(&f, c, 0, 100, true)); /* the read has blocked */
    CHECK_STATUS(TSR_ERR_INTERNAL, tsri_write(f.buffer, 0, &byte, 1, f.streams[a]));
    close_all(&f);
}

static void test_collectives_touch_their_ranges(void)
{
    fixture f;
    REQUIRE_OK(open_all(&f, 0));
    /* Reduce-scatter of 2 * 16 floats in place: all of in is written. */
    tsri_coll_item item = {f.buffer, 0, f.buffer, 64, 16};
    tsri_coll coll = {.kind = TSRI_REDUCE_SCATTER,
                      .dtype = TSR_F32,
                      .items = &item,
                      .item_count = 1,
                      .label = "w"};
    REQUIRE_OK(tsri_collective(f.group, &coll, f.streams[b]));
    CHECK_STATUS(TSR_ERR_INTERNAL, touch(&f, a, 0, 1, false));
    CHECK_STATUS(TSR_ERR_INTERNAL, touch(&f, a, 127, 1, false));
    CHECK_OK(touch(&f, a, 128, 1, true));
    /* Out of place: in is read only. */
    item = (tsri_coll_item){f.buffer, 512, f.buffer, 768, 16};
    REQUIRE_OK(tsri_collective(f.group, &coll, f.streams[b]));
    CHECK_OK(touch(&f, a, 512, 128, false));
    CHECK_STATUS(TSR_ERR_INTERNAL, touch(&f, a, 639, 1, true));
    CHECK_STATUS(TSR_ERR_INTERNAL, touch(&f, a, 768, 1, false));
    /* All-gather out of place: in is read only. */
    item = (tsri_coll_item){f.buffer, 1024, f.buffer, 2048, 16};
    coll.kind = TSRI_ALL_GATHER;
    REQUIRE_OK(tsri_collective(f.group, &coll, f.streams[b]));
    CHECK_OK(touch(&f, a, 1024, 64, false));
    CHECK_STATUS(TSR_ERR_INTERNAL, touch(&f, a, 1024, 64, true));
    CHECK_STATUS(TSR_ERR_INTERNAL, touch(&f, a, 2175, 1, false));
    /* A broadcast's in is read by the root (index 0) alone. */
    item = (tsri_coll_item){f.buffer, 3072, f.buffer, 3200, 16};
    coll.kind = TSRI_BROADCAST;
    REQUIRE_OK(tsri_collective(f.group, &coll, f.streams[b]));
    CHECK_OK(touch(&f, a, 3072, 64, true));
    close_all(&f);
}

static void test_release_in_flight(void)
{
    fixture f;
    REQUIRE_OK(open_all(&f, 0));
    REQUIRE_OK(touch(&f, b, 0, 100, false));
    tsri_buffer_release(&f.buffer);
    CHECK_EQ(tsri_recorder_race_count(f.device), 1);
    CHECK_STATUS(TSR_ERR_INTERNAL, wait_on(&f, a, b));
    CHECK_OK(wait_on(&f, a, b));
    REQUIRE_OK(tsri_buffer_alloc(f.device, 64, TSRI_MEM_OTHER, "next", &f.buffer));
    REQUIRE_OK(touch(&f, b, 0, 64, true));
    REQUIRE_OK(touch(&f, a, 0, 0, false));
    REQUIRE_OK(tsri_stream_sync(f.streams[b]));
    tsri_buffer_release(&f.buffer);
    CHECK_EQ(tsri_recorder_race_count(f.device), 1);
    close_all(&f);
}

/* ---- a ring of two slots between gather and compute ---- */

static tsr_status pipeline(fixture *f, int units)
{
    tsr_event ready[2] = {{0}};
    tsr_event done[2] = {{0}};
    for (int i = 0; i < units; i++) {
        const size_t slot = (size_t)(i % 2) * 1024;
        TSR_TRY(tsri_stream_wait(f->streams[b], done[i % 2]));
        TSR_TRY(touch(f, b, slot, 1024, true));
        ready[i % 2] = tsri_event_record(f->streams[b]);
        TSR_TRY(tsri_stream_wait(f->streams[a], ready[i % 2]));
        TSR_TRY(touch(f, a, slot, 1024, false));
        done[i % 2] = tsri_event_record(f->streams[a]);
    }
    return TSR_OK;
}

static void test_every_dropped_wait_is_found(void)
{
    enum {
        UNITS = 9
    };
    fixture f;
    REQUIRE_OK(open_all(&f, 0));
    CHECK_OK(pipeline(&f, UNITS));
    CHECK_EQ(tsri_recorder_race_count(f.device), 0);
    const int waits = tsri_recorder_wait_count(f.device);
    CHECK_EQ(waits, 2 * UNITS - 2);
    close_all(&f);
    for (int n = 1; n <= waits; n++) {
        REQUIRE_OK(open_all(&f, n));
        CHECK_STATUS(TSR_ERR_INTERNAL, pipeline(&f, UNITS));
        close_all(&f);
    }
}

/* ---- random programs ---- */

enum {
    MAX_OPS = 64,
    STREAMS = 3,
    RUNS = 400
};

typedef struct brute_op {
    tsri_stream_kind stream;
    size_t begin, end;
    bool is_write;
    uint64_t before; /* bit i: operation i happens before this one */
} brute_op;

typedef struct brute {
    brute_op ops[MAX_OPS];
    int count;
    int of_stream[STREAMS][MAX_OPS]; /* operation of each seq */
    int stream_count[STREAMS];
    uint64_t known[STREAMS];
    uint64_t host;
} brute;

static bool brute_races(brute *all, const brute_op *op)
{
    for (int i = 0; i < all->count; i++) {
        const brute_op *other = &all->ops[i];
        if ((op->is_write || other->is_write) && op->begin < other->end && other->begin < op->end &&
            (op->before >> i & 1U) == 0) {
            return true;
        }
    }
    return false;
}

static uint32_t below(uint64_t key, uint64_t *draw, uint32_t n)
{
    return tsri_rng_word(key, (*draw)++) % n;
}

/* One operation, checked against brute force; true if it was accepted as predicted or refused so.
 */
static bool random_op(fixture *f, brute *all, uint64_t key, uint64_t *draw)
{
    brute_op op = {.stream = (tsri_stream_kind)below(key, draw, STREAMS)};
    op.begin = below(key, draw, 40);
    op.end = op.begin + 1 + below(key, draw, 20);
    op.is_write = below(key, draw, 3) == 0;
    op.before = all->known[op.stream] | all->host;
    const bool races = brute_races(all, &op);
    tsr_status status = touch(f, op.stream, op.begin, op.end - op.begin, op.is_write);
    tsr_error_clear();
    if (!races && status == TSR_OK) {
        all->known[op.stream] = op.before | (uint64_t)1 << all->count;
        all->of_stream[op.stream][all->stream_count[op.stream]++] = all->count;
        all->ops[all->count++] = op;
    }
    return status == (races ? TSR_ERR_INTERNAL : TSR_OK);
}

static tsr_status random_order(fixture *f, brute *all, uint64_t key, uint64_t *draw)
{
    const tsri_stream_kind s = (tsri_stream_kind)below(key, draw, STREAMS);
    const tsri_stream_kind t = (tsri_stream_kind)below(key, draw, STREAMS);
    if (below(key, draw, 8) == 0) {
        TSR_TRY(tsri_stream_sync(f->streams[s]));
        all->host |= all->known[s];
        return TSR_OK;
    }
    if (s == t || all->stream_count[s] == 0) {
        return TSR_OK;
    }
    const uint32_t seq = 1 + below(key, draw, (uint32_t)all->stream_count[s]);
    const int op = all->of_stream[s][seq - 1];
    TSR_TRY(tsri_stream_wait(f->streams[t], (tsr_event){.stream = f->streams[s], .seq = seq}));
    all->known[t] |= all->ops[op].before | (uint64_t)1 << op;
    return TSR_OK;
}

static void test_random_programs_against_brute_force(void)
{
    int found = 0;
    int accepted = 0;
    for (uint64_t key = 1; key <= RUNS; key++) {
        fixture f;
        brute all = {.count = 0};
        uint64_t draw = 0;
        REQUIRE_OK(open_all(&f, 0));
        for (int i = 0; i < 300 && all.count < MAX_OPS; i++) {
            REQUIRE(random_op(&f, &all, key, &draw));
            REQUIRE_OK(random_order(&f, &all, key, &draw));
        }
        found += tsri_recorder_race_count(f.device);
        accepted += all.count;
        for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
            REQUIRE_OK(tsri_stream_sync(f.streams[s]));
        }
        close_all(&f);
    }
    /* Both outcomes must be common for the comparison to mean anything. */
    CHECK(found > RUNS * 10);
    CHECK(accepted > RUNS * 10);
}

const tsr_test_case tsr_test_cases[] = {
    {"planted_races", test_planted_races},
    {"message_names_both_calls", test_message_names_both_calls},
    {"order_is_transitive", test_order_is_transitive},
    {"old_events_order_old_work_only", test_old_events_order_old_work_only},
    {"host_orders", test_host_orders},
    {"collectives_touch_their_ranges", test_collectives_touch_their_ranges},
    {"release_in_flight", test_release_in_flight},
    {"every_dropped_wait_is_found", test_every_dropped_wait_is_found},
    {"random_programs_against_brute_force", test_random_programs_against_brute_force},
    {NULL, NULL},
};
