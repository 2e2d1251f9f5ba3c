/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/* What every backend promises of groups: see test_backend.c. */
#include "backend/boot/boot.h"
#include "backend/recorder.h"
#include "base/base.h"

#include <string.h>

#include "support/backend_rig.h"
#include "support/tsr_test.h"

enum {
    COUNT = 5,
    MAX_LIST = TSRI_COLL_MAX_ITEMS + 6
};

static float value_of(int rank, int item, int64_t element)
{
    return (float)(rank * 37 + item * 11 + element % 17);
}

/* Element e of out after the collective; count elements per piece. */
static float expected_of(const backend_rig *r, const tsri_coll *coll, int item, int64_t count,
                         int64_t e)
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

static int wrong_outputs(const backend_rig *r, const tsri_coll *coll, int pieces,
                         tsr_stream *stream)
{
    float host[COUNT * RIG_MAX_RANKS];
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
static int changed_inputs(const backend_rig *r, const tsri_coll *coll, int pieces,
                          tsr_stream *stream)
{
    float host[COUNT * RIG_MAX_RANKS];
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
static void try_collective(backend_rig *r, tsri_coll *coll, tsr_group *group, tsr_stream *stream,
                           bool in_place)
{
    tsri_coll_item items[MAX_LIST];
    tsr_buffer *in = NULL;
    tsr_buffer *out = NULL;
    const int64_t pitch = (int64_t)COUNT * RIG_MAX_RANKS;
    float host[COUNT * RIG_MAX_RANKS];
    const bool wide_in = coll->kind == TSRI_REDUCE_SCATTER || coll->kind == TSRI_ALL_TO_ALL;
    const bool wide_out = coll->kind == TSRI_ALL_GATHER || coll->kind == TSRI_ALL_TO_ALL;
    REQUIRE_OK(backend_rig_floats(r, pitch * coll->item_count, &in));
    REQUIRE_OK(backend_rig_floats(r, pitch * coll->item_count, &out));
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
    backend_rig r;
    const int lists[] = {1, 7, MAX_LIST};
    if (!backend_rig_open(name, &r)) {
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
    backend_rig_close(&r, 0);
}

/* Of 1, 2^-8 and 2^-8 in bf16, whose next above 1 is 1 + 2^-7: rounded once that is the sum,
 * rounded at each rank it may stay 1. */
static void check_wide_sums(const char *name)
{
    const uint16_t mine[] = {0x3f80, 0x3b80, 0x3b80, 0x0000};
    const uint16_t wide = 0x3f81;
    backend_rig r;
    tsr_buffer *x = NULL;
    uint16_t sum = 0;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, 1, &x));
    tsr_stream *reduce = r.streams[TSRI_STREAM_REDUCE];
    const tsri_coll_item item = {x, 0, x, 0, 1};
    const tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                            .dtype = TSR_BF16,
                            .items = &item,
                            .item_count = 1,
                            .label = "sum"};
    REQUIRE_OK(tsri_write(x, 0, &mine[r.rank], sizeof(mine[0]), reduce));
    REQUIRE_OK(tsri_collective(r.all[TSRI_STREAM_REDUCE], &coll, reduce));
    REQUIRE_OK(tsri_read(x, 0, &sum, sizeof(sum), reduce));
    if (r.executes && r.size >= 3) {
        CHECK(sum == wide || (sum == 0x3f80 && (r.backend->caps & TSR_CAP_WIDE_SUMS) == 0));
    }
    tsri_buffer_release(&x);
    backend_rig_close(&r, 0);
}

/* ---- ranks that do not come ---- */

enum {
    TEXT = 320
};

/* On all ranks but 0: a sum that waits for rank 0, and compute that waits for the sum. */
static void enqueue_sum(backend_rig *r, tsr_buffer *x)
{
    const tsri_coll_item item = {x, 0, x, 0, 16};
    const tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                            .dtype = TSR_F32,
                            .items = &item,
                            .item_count = 1,
                            .label = "alone"};

    CHECK_OK(tsri_collective(r->all[TSRI_STREAM_REDUCE], &coll, r->streams[TSRI_STREAM_REDUCE]));
}

/* Rank 0 stays until the others have given up, and leaves the group as they do. */
static void leave_alike(backend_rig *r, tsr_buffer *x)
{
    char text[TEXT];

    if (!r->executes || r->size == 1) {
        return;
    }
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "giving up"));
    if (r->rank == 0) {
        enqueue_sum(r, x);
        tsri_stream_abort(r->streams[TSRI_STREAM_REDUCE], TSR_ERR_COMM, "too late");
        CHECK_EQ(tsri_stream_poll(r->streams[TSRI_STREAM_REDUCE], text, sizeof(text)),
                 TSRI_STREAM_FAILED);
    }
}

/* What waits for ever is seen, and ended by whoever sees it. */
static void check_poll_and_abort(const char *name)
{
    backend_rig r;
    tsr_buffer *x = NULL;
    char text[TEXT];
    if (!backend_rig_open(name, &r)) {
        return;
    }
    tsr_stream *reduce = r.streams[TSRI_STREAM_REDUCE];
    tsr_stream *copy = r.streams[TSRI_STREAM_COPY];
    REQUIRE_OK(backend_rig_floats(&r, 16, &x));
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        CHECK_EQ(tsri_stream_poll(r.streams[s], text, sizeof(text)), TSRI_STREAM_DONE);
        CHECK_STR(text, "");
    }
    if (r.executes && r.rank > 0) {
        enqueue_sum(&r, x);
        const tsr_event summed = tsri_event_record(reduce);
        CHECK_OK(tsri_stream_wait(copy, summed)); /* more might find its queue full, and block */
        CHECK_EQ(tsri_stream_poll(reduce, text, sizeof(text)), TSRI_STREAM_RUNNING);
        CHECK(!tsri_event_done(summed));
        tsri_stream_abort(reduce, TSR_ERR_COMM, "ended by the test");
        tsri_stream_abort(reduce, TSR_ERR_INTERNAL, "once is enough");
        CHECK_EQ(tsri_stream_poll(reduce, text, sizeof(text)), TSRI_STREAM_FAILED);
        CHECK_STR(text, "ended by the test");
        CHECK_STATUS(TSR_ERR_COMM, tsri_event_sync(summed));
        CHECK_STATUS(TSR_ERR_COMM, tsri_stream_sync(reduce));
        CHECK(tsri_event_done(summed));
        CHECK_STATUS(TSR_ERR_COMM, tsri_stream_sync(copy));
        CHECK_EQ(tsri_stream_poll(copy, text, sizeof(text)), TSRI_STREAM_FAILED);
        /* The others go on. */
        CHECK_OK(backend_rig_scale(r.streams[TSRI_STREAM_COMPUTE], x, 0, x, 0, 0, 1.0F));
        CHECK_OK(tsri_stream_sync(r.streams[TSRI_STREAM_COMPUTE]));
    }
    leave_alike(&r, x);
    tsri_recorder_detach(r.device); /* nothing orders the release after what was ended */
    tsri_buffer_release(&x);
    backend_rig_close(&r, 0);
}

/* The same without anybody's help: the device's limit, and who did not come, are told. */
static void check_late_ranks(const char *name)
{
    backend_rig r;
    tsr_buffer *x = NULL;
    if (!backend_rig_open_within(name, 0.3, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, 16, &x));
    if (r.executes && r.rank > 0) {
        enqueue_sum(&r, x);
        const tsr_status status = tsri_stream_sync(r.streams[TSRI_STREAM_REDUCE]);
        CHECK(status == TSR_ERR_COMM || status == TSR_ERR_REMOTE); /* of another that gave up */
        CHECK(strstr(tsr_error_message(), "alone") != NULL);
        tsr_error_clear();
    }
    leave_alike(&r, x);
    tsri_recorder_detach(r.device);
    tsri_buffer_release(&x);
    backend_rig_close(&r, 0);
}

static void test_wide_sums(void)
{
    backend_rig_over_all(check_wide_sums);
}

static void test_poll_and_abort(void)
{
    backend_rig_over_all(check_poll_and_abort);
}

static void test_late_ranks(void)
{
    backend_rig_over_all(check_late_ranks);
}

static void test_collectives(void)
{
    backend_rig_over_all(check_collectives);
}

const tsr_test_case tsr_test_cases[] = {
    {"collectives", test_collectives},
    {"wide_sums", test_wide_sums},
    {"poll_and_abort", test_poll_and_abort},
    {"late_ranks", test_late_ranks},
    {NULL, NULL},
};
