/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/* What every backend promises of streams and events: see test_backend.c. */
#include "backend/recorder.h"
#include "base/base.h"

#include <time.h>

#include "support/backend_rig.h"
#include "support/tsr_test.h"

/* A value handed from stream to stream, doubled at each, and far longer than any queue. */
static void check_events_order(const char *name)
{
    enum {
        HOPS = 600,
        N = 2000
    };
    backend_rig r;
    tsr_buffer *x = NULL;
    float host[N];
    if (!backend_rig_open(name, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, (int64_t)N * 2, &x));
    for (int i = 0; i < N; i++) {
        host[i] = (float)i;
    }
    int s = 0;
    CHECK_OK(tsri_write(x, 0, host, sizeof(host), r.streams[0]));
    for (int hop = 0; hop < HOPS; hop++) {
        const int t = (s + 1 + hop % (TSRI_STREAM_COUNT - 1)) % TSRI_STREAM_COUNT;
        CHECK_OK(tsri_stream_wait(r.streams[t], tsri_event_record(r.streams[s])));
        const int64_t from = hop % 2 == 0 ? 0 : N;
        CHECK_OK(backend_rig_scale(r.streams[t], x, from, x, N - from, N, from == 0 ? 2.0F : 0.5F));
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
    backend_rig_close(&r, 0);
}

/* A sync covers what an enqueued wait waits for. */
static void check_sync_covers_waits(const char *name)
{
    enum {
        N = 200000
    };
    backend_rig r;
    tsr_buffer *x = NULL;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, N, &x));
    for (int i = 0; i < 20; i++) {
        REQUIRE_OK(backend_rig_scale(r.streams[TSRI_STREAM_REDUCE], x, 0, x, 0, N, 1.0F));
        const tsr_event event = tsri_event_record(r.streams[TSRI_STREAM_REDUCE]);
        REQUIRE_OK(tsri_stream_wait(r.streams[TSRI_STREAM_COPY], event));
        REQUIRE_OK(tsri_stream_sync(r.streams[TSRI_STREAM_COPY]));
        CHECK(r.backend->event_done(event));
        CHECK(tsri_event_done(event));
    }
    tsri_buffer_release(&x); /* the race check counts it as ordered */
    backend_rig_close(&r, 0);
}

/* The host goes on when an event is reached, whatever comes behind it. */
static void check_event_sync(const char *name)
{
    enum {
        N = 200000
    };
    backend_rig r;
    tsr_buffer *early = NULL;
    tsr_buffer *late = NULL;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    tsr_stream *reduce = r.streams[TSRI_STREAM_REDUCE];
    REQUIRE_OK(backend_rig_floats(&r, N, &early));
    REQUIRE_OK(backend_rig_floats(&r, N, &late));
    CHECK_OK(tsri_event_sync((tsr_event){.stream = NULL}));
    CHECK_OK(tsri_event_sync(tsri_event_record(reduce)));
    CHECK_OK(backend_rig_scale(reduce, early, 0, early, 0, N, 1.0F));
    const tsr_event event = tsri_event_record(reduce);
    CHECK_OK(backend_rig_scale(reduce, late, 0, late, 0, N, 1.0F));
    CHECK_OK(tsri_event_sync(event));
    CHECK(tsri_event_done(event));
    /* The race check takes the host for ordered after it, and not after what comes behind it. */
    tsr_stream *compute = r.streams[TSRI_STREAM_COMPUTE];
    CHECK_OK(backend_rig_scale(compute, early, 0, early, 0, N, 1.0F));
    CHECK_STATUS(TSR_ERR_INTERNAL, backend_rig_scale(compute, late, 0, late, 0, N, 1.0F));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_event_sync((tsr_event){.stream = reduce, .seq = reduce->enqueued + 1}));
    CHECK_OK(tsri_stream_sync(reduce));
    CHECK_OK(tsri_stream_sync(compute));
    tsri_buffer_release(&early);
    tsri_buffer_release(&late);
    backend_rig_close(&r, 1);
}

static void check_event_times(const char *name)
{
    enum {
        N = 200000
    };
    backend_rig r;
    tsr_buffer *x = NULL;
    double first_s = -1.0;
    double then_s = -1.0;
    double both_s = -1.0;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    tsr_stream *reduce = r.streams[TSRI_STREAM_REDUCE];
    tsr_stream *copy = r.streams[TSRI_STREAM_COPY];
    const tsr_status state = r.executes ? TSR_ERR_STATE : TSR_ERR_UNSUPPORTED;
    const tsr_status ok = r.executes ? TSR_OK : TSR_ERR_UNSUPPORTED;
    REQUIRE_OK(backend_rig_floats(&r, N, &x));
    const tsr_event begin = tsri_event_record_timed(reduce);
    CHECK_OK(backend_rig_scale(reduce, x, 0, x, 0, N, 1.0F));
    const tsr_event middle = tsri_event_record_timed(reduce);
    const tsr_event untimed = tsri_event_record(reduce);
    CHECK_EQ(middle.seq, untimed.seq);
    CHECK_OK(tsri_stream_wait(copy, middle));
    CHECK_OK(backend_rig_scale(copy, x, 0, x, 0, N, 1.0F));
    const tsr_event end = tsri_event_record_timed(copy);
    CHECK_OK(tsri_event_sync(end));
    CHECK_STATUS(ok, tsri_event_elapsed(begin, middle, &first_s));
    CHECK_STATUS(ok, tsri_event_elapsed(middle, end, &then_s));
    CHECK_STATUS(ok, tsri_event_elapsed(begin, end, &both_s));
    CHECK(!r.executes || (first_s > 0.0 && then_s > 0.0));
    CHECK(!r.executes || (both_s > 0.99 * (first_s + then_s) && both_s < 600.0));
    CHECK_STATUS(state, tsri_event_elapsed(begin, untimed, &both_s));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_event_elapsed(begin, (tsr_event){.seq = 0}, &both_s));
    for (int i = 0; i < TSRI_TIMED_EVENTS - 2; i++) {
        (void)tsri_event_record_timed(reduce);
    }
    CHECK_STATUS(ok, tsri_event_elapsed(begin, middle, &first_s));
    CHECK_OK(tsri_stream_sync(reduce));
    CHECK(tsri_event_done(begin));
    (void)tsri_event_record_timed(reduce);
    CHECK(tsri_event_done(begin));
    const tsr_status status = tsri_event_elapsed(begin, middle, &first_s);
    CHECK(status == ok || status == state); /* some remember more */
    tsr_error_clear();
    CHECK_OK(tsri_stream_sync(reduce));
    tsri_buffer_release(&x);
    backend_rig_close(&r, 0);
}

/* Compute waits, itself or for another stream, for a rank that comes late. */
static void check_exposed_time(const char *name)
{
    const struct timespec nap = {.tv_nsec = 300000000};
    const double seen_s = 0.02; /* of that, on a busy machine */
    backend_rig r;
    tsr_buffer *x = NULL;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, 16, &x));
    const tsri_coll_item item = {x, 0, x, 0, 16};
    const tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                            .dtype = TSR_F32,
                            .items = &item,
                            .item_count = 1,
                            .label = "late"};
    tsr_stream *compute = r.streams[TSRI_STREAM_COMPUTE];
    tsr_stream *reduce = r.streams[TSRI_STREAM_REDUCE];
    CHECK(tsri_exposed_s(r.device) == 0.0);
    for (int i = 0; i < 2; i++) {
        const double before_s = tsri_exposed_s(r.device);

        if (r.rank == 0 && r.executes) {
            (void)nanosleep(&nap, NULL);
        }
        if (i == 0) {
            REQUIRE_OK(tsri_collective(r.all[TSRI_STREAM_COMPUTE], &coll, compute));
        } else {
            REQUIRE_OK(tsri_stream_wait(reduce, tsri_event_record(compute)));
            REQUIRE_OK(tsri_collective(r.all[TSRI_STREAM_REDUCE], &coll, reduce));
            REQUIRE_OK(tsri_stream_wait(compute, tsri_event_record(reduce)));
            REQUIRE_OK(backend_rig_scale(compute, x, 0, x, 0, 16, 1.0F));
        }
        REQUIRE_OK(tsri_stream_sync(compute));
        REQUIRE_OK(tsri_stream_sync(reduce));
        const double exposed_s = tsri_exposed_s(r.device) - before_s;
        CHECK(exposed_s >= 0.0 && exposed_s < 600.0);
        CHECK_EQ(r.device->exposure.count, 0);
        /* Whether compute comes to the wait before the other stream is done is the backend's. */
        CHECK(exposed_s >= seen_s || i == 1 || !r.executes || r.rank == 0);
    }
    tsri_buffer_release(&x);
    backend_rig_close(&r, 0);
}

static void test_events_order(void)
{
    backend_rig_over_all(check_events_order);
}

static void test_sync_covers_waits(void)
{
    backend_rig_over_all(check_sync_covers_waits);
}

static void test_event_sync(void)
{
    backend_rig_over_all(check_event_sync);
}

static void test_event_times(void)
{
    backend_rig_over_all(check_event_times);
}

static void test_exposed_time(void)
{
    backend_rig_over_all(check_exposed_time);
}

const tsr_test_case tsr_test_cases[] = {
    {"events_order", test_events_order}, {"sync_covers_waits", test_sync_covers_waits},
    {"event_sync", test_event_sync},     {"event_times", test_event_times},
    {"exposed_time", test_exposed_time}, {NULL, NULL},
};
