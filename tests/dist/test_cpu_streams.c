/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 3 4 8 */
/**
 * @file test_cpu_streams.c
 * Streams of the cpu backend: order by events alone, no order between streams that could lock up.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"
#include "backend/dispatch.h"
#include "backend/recorder.h"
#include "base/base.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/tsr_test.h"

#define MAX_RANKS 8
#define PIECE     4096

typedef struct rig {
    tsr_device *device;
    tsr_stream *stream[TSRI_STREAM_COUNT];
    tsr_group *group[TSRI_STREAM_COUNT];
} rig;

static bool rig_open(rig *out, const char *transport)
{
    tsri_boot_info info = {0};
    int ranks[MAX_RANKS];
    const tsr_backend *backend = NULL;

    *out = (rig){0};
    for (int r = 0; r < MAX_RANKS; r++) {
        ranks[r] = r;
    }
    CHECK(setenv("TSR_CPU_TRANSPORT", transport, 1) == 0);
    CHECK_OK(tsri_boot_init(NULL, NULL, NULL, &info));
    CHECK_OK(tsri_backend_find("cpu", &backend));
    CHECK_OK(tsri_device_open(
        backend,
        &(tsri_device_options){
            .world_rank = info.rank, .world_size = info.size, .timeout_s = 60, .threads = 1},
        &out->device));
    for (int k = 0; k < TSRI_STREAM_COUNT; k++) {
        CHECK_OK(tsri_stream_open(out->device, (tsri_stream_kind)k, &out->stream[k]));
        CHECK_OK(tsri_group_open(out->device, ranks, info.size, info.rank, 1U << k, "all",
                                 out->stream[k], &out->group[k]));
    }
    return out->group[TSRI_STREAM_COUNT - 1] != NULL;
}

static void rig_close(rig *it)
{
    for (int k = 0; k < TSRI_STREAM_COUNT; k++) {
        tsri_group_close(&it->group[k]);
    }
    for (int k = 0; k < TSRI_STREAM_COUNT; k++) {
        tsri_stream_close(&it->stream[k]);
    }
    tsri_device_close(&it->device);
}

static tsr_status collective(rig *it, int stream, tsri_coll_kind kind, tsr_buffer *in,
                             size_t in_offset, tsr_buffer *out, int64_t count)
{
    tsri_coll_item item = {in, in_offset, out, 0, count};
    tsri_coll coll = {
        .kind = kind, .dtype = TSR_F32, .items = &item, .item_count = 1, .label = "step"};

    return tsri_collective(it->group[stream], &coll, it->stream[stream]);
}

static tsr_status scale(rig *it, int stream, tsr_buffer *x, tsr_buffer *y, int64_t n, float factor,
                        bool accumulate)
{
    tsri_call call = {.stream = it->stream[stream], .label = "scale"};
    tsrk_scale args = {
        .n = n, .factor = factor, .x_type = TSR_F32, .y_type = TSR_F32, .accumulate = accumulate};
    size_t bytes = (size_t)n * sizeof(float);

    args.x = tsri_arg_in(&call, x, 0, bytes);
    args.y = accumulate ? tsri_arg_inout(&call, y, 0, bytes) : tsri_arg_out(&call, y, 0, bytes);
    return TSRI_LAUNCH(&call, SCALE, &args);
}

static float *floats(tsr_buffer *buffer)
{
    return buffer->address;
}

/* gather -> compute -> reduce -> replicate and round again, two slots, no host wait inside:
 *   full = all-gather(shard); work = 2 full; shard = reduce-scatter(work) / (2 W); all-reduce
 * count. Reduce-scatter of W equal copies gives 2 W shard, so shard comes back unchanged. */
static void pipeline(rig *it, int rounds, int64_t piece)
{
    int size = tsr_test_size();
    size_t bytes = (size_t)piece * sizeof(float);
    size_t whole = bytes * (size_t)size;
    tsr_buffer *shard = NULL;
    tsr_buffer *sum = NULL;
    tsr_buffer *full[2] = {NULL, NULL};
    tsr_buffer *work[2] = {NULL, NULL};
    tsr_event used[2] = {{0}};
    tsr_event reduced[2] = {{0}};
    tsr_event stored = {0};
    int64_t wrong = 0;

    REQUIRE_OK(tsri_buffer_alloc(it->device, bytes, TSRI_MEM_PARAM, "shard", &shard));
    REQUIRE_OK(tsri_buffer_alloc(it->device, bytes, TSRI_MEM_GRAD, "sum", &sum));
    for (int s = 0; s < 2; s++) {
        REQUIRE_OK(tsri_buffer_alloc(it->device, whole, TSRI_MEM_SLOT_PARAM, "full", &full[s]));
        REQUIRE_OK(tsri_buffer_alloc(it->device, whole, TSRI_MEM_SLOT_GRAD, "work", &work[s]));
    }
    for (int64_t i = 0; i < piece; i++) {
        floats(shard)[i] = (float)((tsr_test_rank() * 1000) + (i % 1000));
    }
    for (int r = 0; r < rounds; r++) {
        int s = r % 2;
        CHECK_OK(tsri_stream_wait(it->stream[TSRI_STREAM_GATHER], used[s]));
        CHECK_OK(tsri_stream_wait(it->stream[TSRI_STREAM_GATHER], stored));
        CHECK_OK(collective(it, TSRI_STREAM_GATHER, TSRI_ALL_GATHER, shard, 0, full[s], piece));
        tsr_event gathered = tsri_event_record(it->stream[TSRI_STREAM_GATHER]);
        CHECK_OK(tsri_stream_wait(it->stream[TSRI_STREAM_COMPUTE], gathered));
        CHECK_OK(tsri_stream_wait(it->stream[TSRI_STREAM_COMPUTE], reduced[s]));
        CHECK_OK(scale(it, TSRI_STREAM_COMPUTE, full[s], work[s], piece * size, 2, false));
        used[s] = tsri_event_record(it->stream[TSRI_STREAM_COMPUTE]);
        CHECK_OK(tsri_stream_wait(it->stream[TSRI_STREAM_REDUCE], used[s]));
        CHECK_OK(collective(it, TSRI_STREAM_REDUCE, TSRI_REDUCE_SCATTER, work[s], 0, sum, piece));
        reduced[s] = tsri_event_record(it->stream[TSRI_STREAM_REDUCE]);
        CHECK_OK(scale(it, TSRI_STREAM_REDUCE, sum, shard, piece, 0.5F / (float)size, false));
        stored = tsri_event_record(it->stream[TSRI_STREAM_REDUCE]);
    }
    CHECK_OK(tsri_stream_wait(it->stream[TSRI_STREAM_COMPUTE], stored));
    CHECK_OK(tsri_stream_sync(it->stream[TSRI_STREAM_COMPUTE]));
    for (int64_t i = 0; i < piece; i++) {
        float want = (float)((tsr_test_rank() * 1000) + (i % 1000));
        /* Exact where W is a power of two; else 1/W and each product round once per round. */
        float tolerance = (size & (size - 1)) == 0 ? 0 : want * (float)rounds * 3 * 0x1p-24F;
        float error = floats(shard)[i] - want;
        wrong += error > tolerance || error < -tolerance ? 1 : 0;
    }
    CHECK_EQ(wrong, 0);
    tsri_buffer_release(&shard);
    tsri_buffer_release(&sum);
    for (int s = 0; s < 2; s++) {
        tsri_buffer_release(&full[s]);
        tsri_buffer_release(&work[s]);
    }
}

static void test_pipeline(void)
{
    rig it;

    REQUIRE(rig_open(&it, "auto"));
    CHECK_OK(tsri_recorder_attach(it.device, &(tsri_recorder_options){.race_check = true}));
    pipeline(&it, 100, 100);
    pipeline(&it, 20, PIECE * 8);
    rig_close(&it);
}

static void test_pipeline_over_mpi(void)
{
    rig it;

    REQUIRE(rig_open(&it, "mpi"));
    pipeline(&it, 20, PIECE);
    rig_close(&it);
}

/* Ranks enqueue on the streams in different orders, and collectives on compute run between. */
static void test_any_order_of_streams(void)
{
    static const int orders[4][4] = {{1, 2, 3, 4}, {4, 3, 2, 1}, {2, 4, 1, 3}, {3, 1, 4, 2}};
    rig it;
    tsr_buffer *x[TSRI_STREAM_COUNT] = {NULL};
    const int64_t count = 20000;

    REQUIRE(rig_open(&it, "auto"));
    for (int k = 0; k < TSRI_STREAM_COUNT; k++) {
        REQUIRE_OK(tsri_buffer_alloc(it.device, (size_t)count * sizeof(float), TSRI_MEM_OTHER, "x",
                                     &x[k]));
        for (int64_t i = 0; i < count; i++) {
            floats(x[k])[i] = 1;
        }
    }
    for (int round = 0; round < 10; round++) {
        for (int k = 0; k < 4; k++) {
            int stream = orders[tsr_test_rank() % 4][k];
            CHECK_OK(collective(&it, stream, TSRI_ALL_REDUCE, x[stream], 0, x[stream],
                                round % 3 == 0 ? 100 : count));
            CHECK_OK(scale(&it, stream, x[stream], x[stream], round % 3 == 0 ? 100 : count,
                           1.0F / (float)tsr_test_size(), false));
        }
        CHECK_OK(collective(&it, TSRI_STREAM_COMPUTE, TSRI_ALL_REDUCE, x[0], 0, x[0], count));
        CHECK_OK(scale(&it, TSRI_STREAM_COMPUTE, x[0], x[0], count, 1.0F / (float)tsr_test_size(),
                       false));
    }
    for (int k = 0; k < TSRI_STREAM_COUNT; k++) {
        CHECK_OK(tsri_stream_sync(it.stream[k]));
        for (int64_t i = 0; i < count; i += 99) {
            /* Ten rounds of W equal terms times 1/W: two roundings of half an ulp each. */
            CHECK_NEAR(floats(x[k])[i], 1, 10 * 2 * 0x1p-23);
        }
        tsri_buffer_release(&x[k]);
    }
    rig_close(&it);
}

/* More operations than the queue holds, the first of which waits for the caller's last one. */
static void test_full_queue(void)
{
    rig it;
    tsr_buffer *x = NULL;
    tsr_buffer *one = NULL;
    const int count = (3 * TSRI_CPU_QUEUE) + 5;

    REQUIRE(rig_open(&it, "auto"));
    REQUIRE_OK(tsri_buffer_alloc(it.device, 4, TSRI_MEM_OTHER, "x", &x));
    REQUIRE_OK(tsri_buffer_alloc(it.device, 4, TSRI_MEM_OTHER, "one", &one));
    floats(one)[0] = 1;
    for (int i = 0; i < count; i++) {
        CHECK_OK(collective(&it, TSRI_STREAM_REPLICATE, TSRI_BROADCAST, one, 0, one, 1));
        CHECK_OK(scale(&it, TSRI_STREAM_REPLICATE, one, x, 1, 1, true));
    }
    CHECK_OK(tsri_stream_sync(it.stream[TSRI_STREAM_REPLICATE]));
    CHECK_NEAR(floats(x)[0], count, 0);
    tsri_buffer_release(&x);
    tsri_buffer_release(&one);
    rig_close(&it);
}

/* write takes the host's bytes at once, read gives those that the stream has written by then. */
static void test_write_and_read(void)
{
    rig it;
    tsr_buffer *x = NULL;
    float host[256];
    float back[256];
    tsr_stream *copy = NULL;

    REQUIRE(rig_open(&it, "auto"));
    copy = it.stream[TSRI_STREAM_COPY];
    REQUIRE_OK(tsri_buffer_alloc(it.device, sizeof host, TSRI_MEM_OTHER, "x", &x));
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 256; i++) {
            host[i] = (float)(round + i);
        }
        CHECK_OK(collective(&it, TSRI_STREAM_COPY, TSRI_ALL_REDUCE, x, 0, x, 256));
        CHECK_OK(tsri_write(x, 0, host, sizeof host, copy));
        memset(host, 0, sizeof host);
        CHECK_OK(scale(&it, TSRI_STREAM_COPY, x, x, 256, 3, false));
        CHECK_OK(tsri_read(x, 4, back, sizeof back - 4, copy));
        CHECK_NEAR(back[0], 3 * (round + 1), 0);
        CHECK_NEAR(back[254], 3 * (round + 255), 0);
        CHECK(copy->device->backend->event_done(tsri_event_record(copy)));
    }
    tsri_buffer_release(&x);
    rig_close(&it);
}

/* The ledger's times: every operation ran, in the order of its stream. */
static void test_times(void)
{
    rig it;
    tsr_buffer *x = NULL;
    int count = 0;
    int timed = 0;
    double last = 0;

    REQUIRE(rig_open(&it, "auto"));
    CHECK_OK(tsri_recorder_attach(it.device, &(tsri_recorder_options){.ledger = true}));
    REQUIRE_OK(tsri_buffer_alloc(it.device, 4096, TSRI_MEM_OTHER, "x", &x));
    for (int i = 0; i < 10; i++) {
        CHECK_OK(collective(&it, TSRI_STREAM_REDUCE, TSRI_ALL_REDUCE, x, 0, x, 1024));
        CHECK_OK(scale(&it, TSRI_STREAM_REDUCE, x, x, 1024, 1, false));
    }
    CHECK_OK(tsri_stream_sync(it.stream[TSRI_STREAM_REDUCE]));
    const tsri_entry *entries = tsri_recorder_entries(it.device, &count);
    for (int i = 0; i < count; i++) {
        if (entries[i].kind == TSRI_ENTRY_KERNEL || entries[i].kind == TSRI_ENTRY_COLLECTIVE) {
            CHECK(entries[i].begin_s >= last);
            CHECK(entries[i].end_s >= entries[i].begin_s);
            CHECK(entries[i].begin_s > 0);
            last = entries[i].end_s;
            timed++;
        }
    }
    CHECK_EQ(timed, tsr_test_size() > 1 ? 20 : 10);
    tsri_buffer_release(&x);
    rig_close(&it);
}

static size_t shared_resident(void)
{
    char line[128];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "RssShmem:", 9) == 0) {
            kib = strtoul(line + 9, NULL, 10);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return kib << 10;
}

/* Reading peers leaves a bounded part of theirs resident here, however much was read. */
static void test_peers_do_not_stay_resident(void)
{
    rig it;
    tsr_buffer *x = NULL;
    tsr_buffer *full = NULL;
    size_t size = (size_t)tsr_test_size();
    /* Half as much again as may stay, from all peers together. */
    const size_t bytes = TSRI_CPU_PEER_BYTES * 3 / 2 / (size > 1 ? size - 1 : 1);

    if (size > 4) {
        return; /* the ranks' outputs would fill more than half a GiB */
    }
    REQUIRE(rig_open(&it, "auto"));
    REQUIRE_OK(tsri_buffer_alloc(it.device, bytes, TSRI_MEM_OTHER, "x", &x));
    REQUIRE_OK(tsri_buffer_alloc(it.device, bytes * size, TSRI_MEM_OTHER, "full", &full));
    memset(x->address, 1, bytes);
    memset(full->address, 1, bytes * size);
    size_t before = shared_resident();
    CHECK_OK(collective(&it, TSRI_STREAM_GATHER, TSRI_ALL_GATHER, x, 0, full,
                        (int64_t)(bytes / sizeof(float))));
    CHECK_OK(tsri_stream_sync(it.stream[TSRI_STREAM_GATHER]));
    size_t after = shared_resident();
    /* A step's bytes come on top before the limit is looked at, and faults bring neighbours. */
    CHECK(after < before + TSRI_CPU_PEER_BYTES + (2 * TSRI_CPU_STEP_BYTES));
    CHECK(before >= bytes * size);
    tsri_buffer_release(&x);
    tsri_buffer_release(&full);
    rig_close(&it);
}

/* ---- a failure between two looks at a stream ---- */

/* A stream that lies across two pages, what is completed on the first, which cannot be read yet. */
static struct {
    unsigned char *page;
    tsri_cpu_stream *stream;
} split;

/* The waiter looks at what is completed: now the progress thread fails the stream, the failure
 * first, then what is discarded counts as over. */
static void fail_now(int number)
{
    (void)number;
    (void)mprotect(split.page, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE);
    atomic_store(&split.stream->failed, TSR_ERR_COMM);
    atomic_store(&split.stream->completed, 1);
}

static void test_failure_is_never_missed(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t border = offsetof(tsri_cpu_stream, failed);
    struct sigaction action = {.sa_handler = fail_now};
    struct sigaction before;
    tsr_event event = {.seq = 1};
    rig it;

    REQUIRE(rig_open(&it, "auto"));
    REQUIRE(offsetof(tsri_cpu_stream, completed) < border);
    split.page = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(split.page != MAP_FAILED);
    split.stream = (void *)(split.page + page - border);
    memcpy(split.stream, it.stream[TSRI_STREAM_REDUCE], sizeof(*split.stream));
    event.stream = &split.stream->head;
    REQUIRE_EQ(sigaction(SIGSEGV, &action, &before), 0);
    REQUIRE_EQ(mprotect(split.page, page, PROT_NONE), 0);
    CHECK_STATUS(TSR_ERR_COMM, tsri_cpu_stream_wait(it.stream[TSRI_STREAM_COMPUTE], event));
    CHECK_EQ(sigaction(SIGSEGV, &before, NULL), 0);
    (void)munmap(split.page, 2 * page);
    rig_close(&it);
}

const tsr_test_case tsr_test_cases[] = {
    {"pipeline", test_pipeline},
    {"pipeline_over_mpi", test_pipeline_over_mpi},
    {"any_order_of_streams", test_any_order_of_streams},
    {"full_queue", test_full_queue},
    {"write_and_read", test_write_and_read},
    {"times", test_times},
    {"failure_is_never_missed", test_failure_is_never_missed},
    {"peers_do_not_stay_resident", test_peers_do_not_stay_resident},
    {NULL, NULL},
};
