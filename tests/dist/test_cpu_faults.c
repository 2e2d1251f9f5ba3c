/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 3 4 */
/**
 * @file test_cpu_faults.c
 * What the cpu backend says when ranks disagree, come late, stop, leave or die. It never hangs.
 *
 * The case "killed" needs a job that survives the death of a rank: kill_rank.sh runs it with
 * TSR_TEST_KILL=1, and without that it does nothing.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"
#include "backend/dispatch.h"
#include "base/base.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/tsr_test.h"

#define MAX_RANKS 8

typedef struct rig {
    tsr_device *device;
    tsr_stream *compute, *gather;
    tsr_group *on_compute, *on_gather;
    tsr_buffer *x;
} rig;

static bool rig_open(rig *out, const char *transport, double timeout_s)
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
    CHECK_OK(tsri_device_open(backend,
                              &(tsri_device_options){.world_rank = info.rank,
                                                     .world_size = info.size,
                                                     .timeout_s = timeout_s},
                              &out->device));
    CHECK_OK(tsri_stream_open(out->device, TSRI_STREAM_COMPUTE, &out->compute));
    CHECK_OK(tsri_stream_open(out->device, TSRI_STREAM_GATHER, &out->gather));
    CHECK_OK(tsri_group_open(out->device, ranks, info.size, info.rank, 1, "tp", out->compute,
                             &out->on_compute));
    CHECK_OK(tsri_group_open(out->device, ranks, info.size, info.rank, 2, "shard", out->gather,
                             &out->on_gather));
    CHECK_OK(tsri_buffer_alloc(out->device, (size_t)1 << 20, TSRI_MEM_OTHER, "x", &out->x));
    return out->x != NULL;
}

static void rig_close(rig *it)
{
    tsri_group_close(&it->on_compute);
    tsri_group_close(&it->on_gather);
    tsri_buffer_release(&it->x);
    tsri_stream_close(&it->compute);
    tsri_stream_close(&it->gather);
    tsri_device_close(&it->device);
}

static tsr_status all_reduce(rig *it, bool queued, int64_t count, const char *label)
{
    tsri_coll_item item = {it->x, 0, it->x, 0, count};
    tsri_coll coll = {
        .kind = TSRI_ALL_REDUCE, .dtype = TSR_F32, .items = &item, .item_count = 1, .label = label};

    if (!queued) {
        return tsri_collective(it->on_compute, &coll, it->compute);
    }
    TSR_TRY(tsri_collective(it->on_gather, &coll, it->gather));
    return tsri_stream_sync(it->gather);
}

static void check_says(const char *text)
{
    if (strstr(tsr_error_message(), text) == NULL) {
        CHECK_STR(tsr_error_message(), text);
    }
}

/* ---- disagreement ---- */

static void disagree(const char *transport, bool queued)
{
    rig it;
    int last = tsr_test_size() - 1;
    bool odd = tsr_test_rank() == last;
    char want[64];

    REQUIRE(rig_open(&it, transport, 30));
    CHECK_OK(all_reduce(&it, queued, 10, "layers.0"));
    tsr_status status = all_reduce(&it, queued, odd ? 77 : 78, odd ? "layers.2" : "layers.1");
    CHECK_EQ(status, TSR_ERR_DISAGREE);
    check_says("call #2");
    check_says("77 elements in 1 items, \"layers.2\"");
    check_says("78 elements in 1 items, \"layers.1\"");
    (void)snprintf(want, sizeof want, "rank %d makes all_reduce of f32", last);
    check_says(want);
    /* Broken for good: at once, without waiting for anybody. */
    double begin = tsri_now_s();
    status = all_reduce(&it, queued, 10, "layers.3");
    CHECK(status == TSR_ERR_DISAGREE || status == TSR_ERR_REMOTE);
    CHECK(tsri_now_s() - begin < 5);
    tsr_error_clear();
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    rig_close(&it);
}

static void test_disagree_in_memory(void)
{
    disagree("auto", false);
    disagree("auto", true);
}

static void test_disagree_over_mpi(void)
{
    disagree("mpi", false);
    disagree("mpi", true);
}

/* A failure on a stream reaches whoever waits for the stream's events. */
static void test_failure_reaches_waiters(void)
{
    rig it;
    tsri_coll_item item = {NULL, 0, NULL, 0, 5 + tsr_test_rank()};
    tsri_coll coll = {.kind = TSRI_ALL_REDUCE, .dtype = TSR_F32, .items = &item, .item_count = 1};

    REQUIRE(rig_open(&it, "auto", 30));
    item.in = it.x;
    item.out = it.x;
    CHECK_OK(tsri_collective(it.on_gather, &coll, it.gather));
    tsr_status status = tsri_stream_wait(it.compute, tsri_event_record(it.gather));
    CHECK(status == TSR_ERR_DISAGREE || status == TSR_ERR_REMOTE);
    check_says("elements in 1 items");
    tsr_error_clear();
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    rig_close(&it);
}

/* ---- absence ---- */

/* The last rank stays away: the first to notice says so, the others say it or pass it on. */
static void stay_away(const char *transport, bool queued)
{
    rig it;
    int last = tsr_test_size() - 1;
    char want[96];

    REQUIRE(rig_open(&it, transport, 0.5));
    CHECK_OK(all_reduce(&it, queued, 3, "warm"));
    if (tsr_test_rank() != last) {
        double begin = tsri_now_s();
        tsr_status status = all_reduce(&it, queued, 3, "layers.1");
        double waited = tsri_now_s() - begin;
        CHECK(status == TSR_ERR_COMM || status == TSR_ERR_REMOTE);
        CHECK(waited >= 0.3);
        CHECK(waited < 10);
        (void)snprintf(want, sizeof want, "all_reduce #2 of \"layers.1\" over \"%s\"",
                       queued ? "shard" : "tp");
        check_says(want);
        (void)snprintf(want, sizeof want, "rank(s) %d did not arrive at", last);
        check_says(want);
        check_says("within 0.5 s");
        tsr_error_clear();
    }
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    rig_close(&it);
}

static void test_timeout(void)
{
    stay_away("auto", false);
    stay_away("auto", true);
}

static void test_timeout_over_mpi(void)
{
    stay_away("mpi", false);
    stay_away("mpi", true);
}

/* Step op to its end, past the failure that was found on the way. */
static void finish(tsri_cpu_op *op)
{
    op->wait_s = tsri_now_s();
    while (op->state != TSRI_CPU_DONE) {
        tsri_cpu_activity activity = {0};
        REQUIRE_OK(tsri_cpu_mpi_step(op, &activity));
    }
}

/* The last rank agrees on a gather of many chunks and then moves no more of them. Every other one
 * names a neighbour, which is what it can see; the one to the right of the last names the last. */
static void test_timeout_in_ring(void)
{
    rig it;
    int rank = tsr_test_rank();
    int last = tsr_test_size() - 1;
    int64_t count = 200000 / tsr_test_size(); /* floats */
    char want[128];

    REQUIRE(rig_open(&it, "mpi", 0.5));
    ((tsri_cpu_device *)it.device)->mpi_bytes = 4096;
    unsigned char *x = it.x->address;
    tsri_cpu_op op = {.group = (tsri_cpu_group *)it.on_compute,
                      .kind = TSRI_ALL_GATHER,
                      .dtype = TSR_F32,
                      .label = "layers.1",
                      .number = 7,
                      .item_count = 1,
                      .items = {{x + ((size_t)(rank * count) * sizeof(float)), x, count}}};
    while (rank == last && op.state != TSRI_CPU_MOVE) {
        tsri_cpu_activity activity = {0};
        REQUIRE_OK(tsri_cpu_op_step(&op, &activity));
    }
    if (rank != last) {
        double begin = tsri_now_s();
        CHECK_EQ(tsri_cpu_run((tsri_cpu_device *)it.device, &op), TSR_ERR_COMM);
        CHECK(tsri_now_s() - begin < 10);
        check_says("rank(s) ");
        check_says(" did not finish all_gather #7 of \"layers.1\" over \"tp\" within 0.5 s");
        (void)snprintf(want, sizeof want, "%d did not", last);
        if (rank == 0) {
            check_says(want);
        }
        tsr_error_clear();
    }
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    finish(&op);
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    rig_close(&it);
}

/* A process that is stopped is a process that does not come. */
static void test_stopped_rank(void)
{
    rig it;
    int last = tsr_test_size() - 1;
    pid_t waker = 0;
    char want[64];

    REQUIRE(rig_open(&it, "auto", 0.5));
    CHECK_OK(all_reduce(&it, true, 3, "warm"));
    if (tsr_test_rank() == last) {
        pid_t me = getpid();
        waker = fork();
        if (waker == 0) {
            (void)sleep(2);
            (void)kill(me, SIGCONT);
            _exit(0);
        }
        REQUIRE(waker > 0);
        (void)kill(me, SIGSTOP);
        (void)waitpid(waker, NULL, 0);
    }
    tsr_status status = all_reduce(&it, true, 3, "layers.1");
    if (tsr_test_rank() == last) {
        /* What the others had sent before they gave up is there; but nobody comes to the next. */
        status = all_reduce(&it, true, 3, "layers.2");
    }
    CHECK(status == TSR_ERR_COMM || status == TSR_ERR_REMOTE);
    (void)snprintf(want, sizeof want, "rank(s) %d did not arrive at all_reduce #2", last);
    check_says(want);
    tsr_error_clear();
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    rig_close(&it);
}

/* A rank that closed its device is named long before the limit. */
static void test_rank_leaves(void)
{
    rig it;
    int last = tsr_test_size() - 1;
    char want[64];

    REQUIRE(rig_open(&it, "auto", 60));
    CHECK_OK(all_reduce(&it, true, 3, "warm"));
    if (tsr_test_rank() == last) {
        rig_close(&it);
    } else {
        CHECK_EQ(all_reduce(&it, true, 3, "layers.1"), TSR_ERR_REMOTE);
        (void)snprintf(want, sizeof want, "rank %d closed its device", last);
        check_says(want);
        tsr_error_clear();
    }
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    if (tsr_test_rank() != last) {
        rig_close(&it);
    }
}

/* The same for a process that ended: here a child stands in for the last rank's process. */
static void test_process_ends(void)
{
    rig it;
    int last = tsr_test_size() - 1;
    char want[64];

    REQUIRE(rig_open(&it, "auto", 60));
    CHECK_OK(all_reduce(&it, false, 3, "warm"));
    if (tsr_test_rank() != last) {
        tsri_cpu_peer *peer = &((tsri_cpu_device *)it.device)->peer[last];
        int kept = peer->pidfd;
        pid_t child = fork();
        if (child == 0) {
            _exit(0);
        }
        REQUIRE(child > 0);
        (void)waitpid(child, NULL, 0);
        peer->pidfd = -1;
        peer->pid = child;
        double begin = tsri_now_s();
        CHECK_EQ(all_reduce(&it, false, 3, "layers.1"), TSR_ERR_REMOTE);
        CHECK(tsri_now_s() - begin < 10);
        (void)snprintf(want, sizeof want, "rank %d ended before it came to all_reduce", last);
        check_says(want);
        tsr_error_clear();
        peer->pidfd = kept;
    }
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    rig_close(&it);
}

/* Really: the last rank is killed inside a collective's wait of the others. */
static void test_killed(void)
{
    rig it;
    const char *asked = getenv("TSR_TEST_KILL");
    int last = tsr_test_size() - 1;

    if (asked == NULL || strcmp(asked, "1") != 0) {
        return;
    }
    (void)signal(SIGTERM, SIG_IGN); /* the launcher ends the others, who have something to say */
    REQUIRE(rig_open(&it, "auto", 60));
    CHECK_OK(all_reduce(&it, true, 3, "warm"));
    if (tsr_test_rank() == last) {
        (void)raise(SIGKILL);
    }
    double begin = tsri_now_s();
    tsr_status status = all_reduce(&it, true, 3, "layers.1");
    (void)fprintf(stderr, "survivor: %s after %.1f s: %s\n", tsr_status_name(status),
                  tsri_now_s() - begin, tsr_error_message());
    tsri_boot_abort(3);
}

/* ---- opening ---- */

static void test_groups_disagree(void)
{
    rig it;
    tsr_group *group = NULL;
    int ranks[MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};
    int rank = tsr_test_rank();

    REQUIRE(rig_open(&it, "auto", 30));
    CHECK_STATUS(TSR_ERR_DISAGREE,
                 tsri_group_open(it.device, ranks, tsr_test_size(), rank, 4,
                                 rank == 0 ? "shard" : "replicate", it.compute, &group));
    tsr_status status = tsri_group_open(it.device, ranks, rank == 0 ? 1 : tsr_test_size(), rank, 4,
                                        "x", it.compute, &group);
    CHECK_EQ(status, rank == 0 ? TSR_ERR_REMOTE : TSR_ERR_DISAGREE);
    tsr_error_clear();
    CHECK_OK(
        tsri_group_open(it.device, ranks, tsr_test_size(), rank, 4, "shard", it.compute, &group));
    CHECK_OK(all_reduce(&it, false, 5, "still fine"));
    tsri_group_close(&group);
    rig_close(&it);
}

/* Cells are used again, and start clean. */
static void test_groups_come_and_go(void)
{
    rig it;
    int ranks[MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};

    REQUIRE(rig_open(&it, "auto", 30));
    for (int round = 0; round < 40; round++) {
        tsr_group *group = NULL;
        REQUIRE_OK(tsri_group_open(it.device, ranks, tsr_test_size(), tsr_test_rank(), 4, "again",
                                   it.gather, &group));
        ((float *)it.x->address)[0] = 1;
        tsri_coll_item item = {it.x, 0, it.x, 0, 1};
        tsri_coll coll = {
            .kind = TSRI_ALL_REDUCE, .dtype = TSR_F32, .items = &item, .item_count = 1};
        for (int i = 0; i < round % 4; i++) {
            CHECK_OK(tsri_collective(group, &coll, it.gather));
        }
        tsri_group_close(&group);
    }
    CHECK_OK(all_reduce(&it, true, 5, "still fine"));
    rig_close(&it);
}

const tsr_test_case tsr_test_cases[] = {
    {"disagree_in_memory", test_disagree_in_memory},
    {"disagree_over_mpi", test_disagree_over_mpi},
    {"failure_reaches_waiters", test_failure_reaches_waiters},
    {"timeout", test_timeout},
    {"timeout_over_mpi", test_timeout_over_mpi},
    {"timeout_in_ring", test_timeout_in_ring},
    {"stopped_rank", test_stopped_rank},
    {"rank_leaves", test_rank_leaves},
    {"process_ends", test_process_ends},
    {"groups_disagree", test_groups_disagree},
    {"groups_come_and_go", test_groups_come_and_go},
    {"killed", test_killed},
    {NULL, NULL},
};
