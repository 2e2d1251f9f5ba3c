/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/* What every backend promises of memory, copies and kernels, run over each that is built
 * in, and over the tests' own. Results are looked at where the backend executes; elsewhere (sim)
 * the same calls must be accepted, refused and recorded alike. */
#include "backend/recorder.h"
#include "base/base.h"

#include <string.h>

#include "support/backend_rig.h"
#include "support/tsr_test.h"

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
    backend_rig r;
    tsr_buffer *buffers[4] = {NULL};
    const size_t sizes[4] = {0, 1, 1000, 1 << 20};
    unsigned char got[1000];
    if (!backend_rig_open(name, &r)) {
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
    backend_rig_close(&r, 0);
}

/* Byte i of the pattern that is copied around. */
static unsigned char pattern(size_t i)
{
    return (unsigned char)(i * 7 + i / 251);
}

/* Bytes of a buffer's range [bytes] that differ from the pattern. */
static size_t differing_pattern(backend_rig *r, tsr_buffer *buffer, size_t offset, size_t bytes,
                                tsr_stream *stream)
{
    unsigned char *got = NULL;
    size_t count = 0;

    if (tsri_alloc(bytes, 1, &got) != TSR_OK) {
        return bytes;
    }
    CHECK_OK(tsri_read(buffer, offset, got, bytes, stream));
    for (size_t i = 0; i < bytes && r->executes; i++) {
        count += got[i] != pattern(i);
    }
    tsri_free(&got);
    return count;
}

/* Device, host pool, host pool, device, and within the device, on every stream; more than one step
 * of any progress engine. Each stream begins where the one before has ended. */
static void check_copy(const char *name)
{
    enum {
        BYTES = (3 << 20) + 5,
        AT = 3
    };
    backend_rig r;
    tsr_buffer *at[4] = {NULL};
    unsigned char *host = NULL;
    int count = 0;
    int kinds[2] = {0};
    if (!backend_rig_open(name, &r)) {
        return;
    }
    for (int i = 0; i < 4; i++) {
        const bool pool = i == 1 || i == 2;

        REQUIRE_OK((pool ? tsri_buffer_alloc_host : tsri_buffer_alloc)(
            r.device, (size_t)2 * BYTES + AT, TSRI_MEM_OTHER, "copied", &at[i]));
    }
    REQUIRE_OK(tsri_alloc(BYTES, 1, &host));
    for (size_t i = 0; i < BYTES; i++) {
        host[i] = pattern(i);
    }
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        tsr_stream *stream = r.streams[s];

        REQUIRE_OK(tsri_write(at[0], 0, host, BYTES, stream));
        for (int i = 0; i < 3; i++) {
            REQUIRE_OK(tsri_copy(at[i + 1], i == 0 ? AT : 0, at[i], i == 1 ? AT : 0, BYTES, "hop",
                                 stream));
        }
        REQUIRE_OK(tsri_copy(at[3], BYTES, at[3], 0, BYTES, "hop", stream));
        CHECK_EQ(differing_pattern(&r, at[3], BYTES, BYTES, stream), 0);
        CHECK_EQ(r.streams[s]->enqueued, 6);
        /* The next stream finds something else. */
        for (int i = 1; i < 4; i++) {
            REQUIRE_OK(tsri_copy(at[i], 0, at[0], BYTES, BYTES, "blank", stream));
        }
        REQUIRE_OK(tsri_stream_sync(stream));
    }
    const tsri_entry *e = tsri_recorder_entries(r.device, &count);
    for (int i = 0; i < count; i++) {
        if (e[i].kind == TSRI_ENTRY_COPY && e[i].op >= (int)TSRI_COPY_HOST) {
            CHECK_EQ(e[i].bytes, BYTES);
            CHECK(r.executes ? e[i].end_s >= e[i].begin_s && e[i].begin_s > 0 : e[i].end_s == 0);
            kinds[e[i].op == (int)TSRI_COPY_DEVICE]++;
        }
    }
    CHECK_EQ(kinds[0], 5 * TSRI_STREAM_COUNT);
    CHECK_EQ(kinds[1], 2 * TSRI_STREAM_COUNT);
    tsr_stream *copy = r.streams[TSRI_STREAM_COPY];
    CHECK_OK(tsri_copy(at[0], 0, at[1], 0, 0, "nothing", copy));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_copy(at[0], 0, at[0], BYTES - 1, BYTES, "overlap", copy));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_copy(at[0], BYTES + AT + 1, at[1], 0, BYTES, "long", copy));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_copy(at[0], 0, at[1], BYTES + AT + 1, BYTES, "long", copy));
    /* The race check knows what a copy reads and what it writes. */
    CHECK_OK(tsri_copy(at[0], 0, at[1], 0, BYTES, "first", copy));
    CHECK_STATUS(TSR_ERR_INTERNAL, tsri_copy(at[2], 0, at[0], BYTES - 1, 1, "unordered read",
                                             r.streams[TSRI_STREAM_GATHER]));
    CHECK_STATUS(TSR_ERR_INTERNAL, tsri_copy(at[1], BYTES - 1, at[3], 0, 1, "unordered write",
                                             r.streams[TSRI_STREAM_GATHER]));
    CHECK_EQ(tsri_recorder_race_count(r.device), 2);
    CHECK_OK(tsri_stream_sync(copy));
    for (int i = 0; i < 4; i++) {
        tsri_buffer_release(&at[i]);
    }
    tsri_free(&host);
    backend_rig_close(&r, 2);
}

/* More writes than staging holds, of which each takes the bytes that it had when it was called; and
 * readings that end long after, in another order. */
static void check_staging(const char *name)
{
    enum {
        WRITES = 700,
        PIECE = 60000,
        READINGS = 100
    };
    backend_rig r;
    tsr_buffer *x = NULL;
    tsri_reading readings[READINGS] = {{0}};
    tsri_reading refused = {0};
    uint32_t *host = NULL;
    uint32_t got = 0;
    int wrong = 0;
    int fetched = 0;
    int count = 0;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    tsr_stream *reduce = r.streams[TSRI_STREAM_REDUCE];
    REQUIRE_OK(tsri_buffer_alloc(r.device, (size_t)WRITES * 4, TSRI_MEM_OTHER, "staged", &x));
    REQUIRE_OK(tsri_alloc(PIECE, 1, &host));
    tsr_buffer *big = NULL;
    REQUIRE_OK(tsri_buffer_alloc(r.device, PIECE, TSRI_MEM_OTHER, "big", &big));
    for (uint32_t i = 0; i < WRITES; i++) {
        for (int at = 0; at < PIECE / 4; at++) {
            host[at] = i;
        }
        REQUIRE_OK(tsri_write(big, 0, host, PIECE, reduce));
        REQUIRE_OK(tsri_copy(x, (size_t)i * 4, big, PIECE - 4, 4, "last", reduce));
        REQUIRE_OK(tsri_copy(x, (size_t)i * 4, big, 0, 4, "first", reduce));
    }
    memset(host, 0xff, PIECE);
    for (int i = 0; i < READINGS; i++) {
        REQUIRE_OK(tsri_read_begin(x, (size_t)i * 7 * 4, 4, reduce, &readings[i]));
    }
    for (int i = READINGS - 1; i >= 0; i--) {
        REQUIRE_OK(tsri_read_end(&readings[i], &got));
        wrong += r.executes && got != (uint32_t)i * 7;
        CHECK(readings[i].device == NULL);
    }
    CHECK_EQ(wrong, 0);
    const tsri_entry *e = tsri_recorder_entries(r.device, &count);
    for (int i = 0; i < count; i++) {
        fetched += e[i].kind == TSRI_ENTRY_COPY && e[i].op == (int)TSRI_COPY_FETCH;
        fetched -= e[i].kind == TSRI_ENTRY_SYNC && e[i].stream == TSRI_STREAM_REDUCE;
    }
    CHECK_EQ(fetched, 0);
    CHECK_STATUS(TSR_ERR_STATE, tsri_read_end(&readings[0], &got));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_read_begin(x, 0, TSRI_READING_MOST + 1, reduce, &refused));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_read_begin(x, (size_t)WRITES * 4, 1, reduce, &refused));
    CHECK(refused.device == NULL);
    CHECK_OK(tsri_read_begin(x, 0, 0, reduce, &refused));
    CHECK_OK(tsri_read_end(&refused, NULL));
    CHECK_OK(tsri_read_begin(x, 0, 8, reduce, &refused));
    tsri_read_drop(&refused);
    CHECK_OK(tsri_stream_sync(reduce));
    tsri_free(&host);
    tsri_buffer_release(&x);
    tsri_buffer_release(&big);
    backend_rig_close(&r, 0);
}

static void check_empty_ranges(const char *name)
{
    backend_rig r;
    tsr_buffer *empty = NULL;
    char byte = 7;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    tsr_stream *compute = r.streams[TSRI_STREAM_COMPUTE];
    REQUIRE_OK(tsri_buffer_alloc(r.device, 0, TSRI_MEM_PARAM, "empty", &empty));
    CHECK_OK(tsri_write(empty, 0, NULL, 0, compute));
    CHECK_OK(tsri_read(empty, 0, &byte, 0, compute));
    CHECK_EQ(byte, 7);
    CHECK_OK(backend_rig_scale(compute, empty, 0, empty, 0, 0, 1.0F));
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
    backend_rig_close(&r, 0);
}

/* ---- kernels ---- */

static void check_launch(const char *name)
{
    enum {
        N = 1000
    };
    backend_rig r;
    tsr_buffer *x = NULL;
    float host[N];
    if (!backend_rig_open(name, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, 2 * (int64_t)N, &x));
    for (int i = 0; i < N; i++) {
        host[i] = (float)i;
    }
    /* On every stream, not on compute alone. */
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        REQUIRE_OK(tsri_write(x, 0, host, sizeof(host), r.streams[s]));
        REQUIRE_OK(backend_rig_scale(r.streams[s], x, 0, x, N, N, (float)(s + 2)));
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
    backend_rig_close(&r, 0);
}

static tsr_status fail_here(const void *args)
{
    (void)args;
    return TSR_RAISE(TSR_ERR_UNSUPPORTED, "a kernel that cannot");
}

/* A kernel's failure is its stream's, and of nobody who does not wait for that. */
static void check_kernel_fails(const char *name)
{
    backend_rig r;
    tsr_buffer *x = NULL;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, 8, &x));
    const tsr_status expected = r.executes ? TSR_ERR_UNSUPPORTED : TSR_OK;
    tsr_stream *failing = r.streams[TSRI_STREAM_REDUCE];
    const tsrk_custom args = {.run = fail_here};
    tsri_call call = {.stream = failing, .label = "fails"};
    tsr_status status = TSRI_LAUNCH(&call, CUSTOM, &args); /* at once, or later */
    CHECK(status == TSR_OK || status == expected);
    CHECK_STATUS(expected, tsri_stream_sync(failing));
    CHECK_STATUS(expected, backend_rig_scale(failing, x, 0, x, 0, 0, 1.0F));
    CHECK_STATUS(expected, tsri_stream_sync(failing));
    CHECK_OK(backend_rig_scale(r.streams[TSRI_STREAM_COPY], x, 4, x, 4, 4, 1.0F));
    CHECK_OK(tsri_stream_sync(r.streams[TSRI_STREAM_COPY]));
    status = tsri_stream_wait(r.streams[TSRI_STREAM_COPY], tsri_event_record(failing));
    CHECK(status == TSR_OK || status == expected);
    CHECK_STATUS(status == TSR_OK ? expected : TSR_OK,
                 tsri_stream_sync(r.streams[TSRI_STREAM_COPY]));
    /* On compute too, which a backend may run in the call itself. */
    tsri_call here = {.stream = r.streams[TSRI_STREAM_COMPUTE], .label = "fails"};
    status = TSRI_LAUNCH(&here, CUSTOM, &args);
    CHECK(status == TSR_OK || status == expected);
    CHECK_STATUS(expected, tsri_stream_sync(here.stream));
    tsri_buffer_release(&x);
    backend_rig_close(&r, 0);
}

/* ---- the table, its ledger and its refusals ---- */

/* The ledger says the same of every backend, and times exist where work is done. */
static void check_recording(const char *name)
{
    backend_rig r;
    tsr_buffer *x = NULL;
    int count = 0;
    int seen = 0;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, 1024, &x));
    const tsri_coll_item item = {x, 0, x, 0, 1024};
    const tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                            .dtype = TSR_F32,
                            .items = &item,
                            .item_count = 1,
                            .label = "recorded"};
    REQUIRE_OK(tsri_collective(r.all[TSRI_STREAM_REDUCE], &coll, r.streams[TSRI_STREAM_REDUCE]));
    REQUIRE_OK(tsri_stream_sync(r.streams[TSRI_STREAM_REDUCE]));
    REQUIRE_OK(backend_rig_scale(r.streams[TSRI_STREAM_COMPUTE], x, 0, x, 0, 1024, 2.0F));
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
    backend_rig_close(&r, 0);
}

static void check_refusals(const char *name)
{
    backend_rig r;
    tsr_buffer *x = NULL;
    tsr_stream *again = NULL;
    char byte = 0;
    if (!backend_rig_open(name, &r)) {
        return;
    }
    REQUIRE_OK(backend_rig_floats(&r, 16, &x));
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
    CHECK_STATUS(TSR_ERR_INVALID, backend_rig_scale(gather, x, 0, x, 1, 16, 1.0F));
    CHECK_STATUS(TSR_ERR_STATE, tsri_stream_open(r.device, TSRI_STREAM_GATHER, &again));
    CHECK_EQ(tsri_event_record(gather).seq, 0);
    const tsr_group *group = r.all[TSRI_STREAM_GATHER];
    CHECK(group != NULL && group->seq == 0);
    /* What was refused does no harm. */
    CHECK_OK(backend_rig_scale(gather, x, 0, x, 0, 16, 1.0F));
    CHECK_OK(tsri_stream_sync(gather));
    tsri_buffer_release(&x);
    backend_rig_close(&r, 0);
}

static void check_table(const char *name)
{
    const tsr_backend *b = NULL;
    tsr_device *device = NULL;
    REQUIRE_OK(tsri_backend_find(name, &b));
    CHECK_STR(b->name, name);
    CHECK_EQ(b->abi, TSR_BACKEND_ABI);
    CHECK(b->kernels && b->device_open && b->device_close && b->alloc && b->release &&
          b->stream_open && b->stream_close && b->stream_wait && b->stream_sync &&
          b->event_record && b->event_done && b->event_sync && b->event_elapsed && b->poll &&
          b->abort && b->launch && b->write && b->read && b->copy && b->group_open &&
          b->group_close && b->collective);
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

static void test_table(void)
{
    backend_rig_over_all(check_table);
}

static void test_memory(void)
{
    backend_rig_over_all(check_memory);
}

static void test_copy(void)
{
    backend_rig_over_all(check_copy);
}

static void test_staging(void)
{
    backend_rig_over_all(check_staging);
}

static void test_empty_ranges(void)
{
    backend_rig_over_all(check_empty_ranges);
}

static void test_launch(void)
{
    backend_rig_over_all(check_launch);
}

static void test_kernel_fails(void)
{
    backend_rig_over_all(check_kernel_fails);
}

static void test_recording(void)
{
    backend_rig_over_all(check_recording);
}

static void test_refusals(void)
{
    backend_rig_over_all(check_refusals);
}

const tsr_test_case tsr_test_cases[] = {
    {"table", test_table},
    {"memory", test_memory},
    {"copy", test_copy},
    {"staging", test_staging},
    {"empty_ranges", test_empty_ranges},
    {"launch", test_launch},
    {"kernel_fails", test_kernel_fails},
    {"recording", test_recording},
    {"refusals", test_refusals},
    {NULL, NULL},
};
