/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Virtual time: rooflines, rings over tiers, queues, waits, the host, and what is exposed. */
#include "base/base.h"

#include <string.h>

#include "plan/clock.h"
#include "support/tsr_test.h"

static const int everyone[] = {0, 1, 2, 3, 4, 5, 6, 7};
static const int columns[] = {1, 5};
static const int pairs[] = {0, 1, 4, 5};

/* 2 nodes of 4: a device sends 100 B/s, a node 40 B/s. Kernels move 10 B/s. */
static tsri_machine machine(void)
{
    return (tsri_machine){
        .flops = {1000.0, 2000.0},
        .bytes_per_s = 10.0,
        .host_bytes_per_s = 5.0,
        .tiers = {{.name = "near", .span = 4, .bytes_per_s = 100.0, .hop_s = 0.01},
                  {.name = "far", .span = 0, .bytes_per_s = 40.0, .hop_s = 0.1}},
        .tier_count = 2,
    };
}

static bool near(double a, double b)
{
    return a - b < 1e-12 * (1.0 + b) && b - a < 1e-12 * (1.0 + b);
}

static void test_kernels(void)
{
    tsri_machine m = machine();

    CHECK(near(tsri_machine_kernel_s(&m, TSRK_ADD, 30, 0, TSR_F32), 3.0));
    /* A GPU's products take both: their rate follows from their shape. */
    CHECK(near(tsri_machine_kernel_s(&m, TSRK_MATMUL, 30, 9000, TSR_F32), 12.0));
    CHECK(near(tsri_machine_kernel_s(&m, TSRK_MATMUL, 90, 9000, TSR_BF16), 13.5));
    m.kernel_rate[TSRK_ATTENTION] = 500.0;
    CHECK(near(tsri_machine_kernel_s(&m, TSRK_ATTENTION, 10, 1000, TSR_BF16), 3.0));
    m.inline_compute = true; /* a cpu's the longer */
    CHECK(near(tsri_machine_kernel_s(&m, TSRK_MATMUL, 30, 9000, TSR_F32), 9.0));
    CHECK(near(tsri_machine_kernel_s(&m, TSRK_MATMUL, 30, 9000, TSR_BF16), 4.5));
    CHECK(near(tsri_machine_kernel_s(&m, TSRK_MATMUL, 90, 9000, TSR_BF16), 9.0));
    CHECK(near(tsri_machine_kernel_s(&m, TSRK_ATTENTION, 10, 1000, TSR_BF16), 2.0));
    m.kernel_rate[TSRK_ADD] = 60.0;
    m.launch_s = 0.25;
    CHECK(near(tsri_machine_kernel_s(&m, TSRK_ADD, 30, 0, TSR_F32), 0.75));
}

static void test_reach(void)
{
    const tsri_machine m = machine();
    tsri_reach r;

    tsri_machine_reach(&m, everyone, 4, &r);
    CHECK_EQ(r.top, 0);
    CHECK_EQ(r.hops[0], 4);
    tsri_machine_reach(&m, everyone, 8, &r);
    CHECK_EQ(r.top, 1);
    CHECK_EQ(r.hops[0], 6);
    CHECK_EQ(r.hops[1], 2);
    CHECK(near(r.shared[1], 1.0)); /* all four of a node are in it */
    tsri_machine_reach(&m, columns, 2, &r);
    CHECK_EQ(r.hops[1], 2);
    CHECK(near(r.shared[1], 4.0)); /* three groups like it leave the same node */
    tsri_machine_reach(&m, pairs, 4, &r);
    CHECK(near(r.shared[1], 2.0));
    tsri_machine_reach(&m, everyone, 1, &r);
    CHECK_EQ(r.top, -1);
}

static void test_rings(void)
{
    const tsri_machine m = machine();
    tsri_reach r;
    int tier = 9;

    /* One node: 3/4 of 800 B at 100 B/s, three hops. */
    tsri_machine_reach(&m, everyone, 4, &r);
    CHECK(near(tsri_machine_collective_s(&m, &r, TSRI_ALL_GATHER, 800, 4, &tier), 6.03));
    CHECK_EQ(tier, 0);
    /* Both: 7/8 of 800 B once out of each node; 7 of the ring's 8 hops. */
    tsri_machine_reach(&m, everyone, 8, &r);
    CHECK(near(tsri_machine_crossing(&r, 1, TSRI_REDUCE_SCATTER, 800, 8), 700));
    CHECK(near(tsri_machine_collective_s(&m, &r, TSRI_REDUCE_SCATTER, 800, 8, &tier),
               17.5 + ((6 * 0.01 + 2 * 0.1) * 7 / 8)));
    CHECK_EQ(tier, 1);
    /* Four columns at once: each has a quarter of the node's rate. */
    tsri_machine_reach(&m, columns, 2, &r);
    CHECK(near(tsri_machine_collective_s(&m, &r, TSRI_ALL_REDUCE, 100, 2, &tier), 10.0 + 0.2));
    /* Two pairs: each member sends half of its 80 B to the other node. */
    tsri_machine_reach(&m, pairs, 4, &r);
    CHECK(near(tsri_machine_crossing(&r, 1, TSRI_ALL_TO_ALL, 80, 4), 80));
}

/* Where hops count, a GPU's library takes trees: 64 nodes of 4, one byte. */
static void test_trees(void)
{
    enum {
        RANKS = 256
    };
    tsri_machine m = machine();
    int all[RANKS];
    int column[RANKS / 4];
    tsri_reach r;
    int tier = 9;

    for (int i = 0; i < RANKS; i++) {
        all[i] = i;
        column[i / 4] = 4 * (i / 4);
    }
    tsri_machine_reach(&m, all, RANKS, &r);
    /* Three hops in the node, six levels of nodes, up and down; 2 bytes at 0.92 of 40 a second. */
    CHECK(near(tsri_machine_collective_s(&m, &r, TSRI_ALL_REDUCE, 1, RANKS, &tier),
               2 * (3 * 0.01 + 6 * 0.1) + 2.0 / 40.0 / 0.92));
    /* Gathers of several in a node are rings. */
    CHECK(tsri_machine_collective_s(&m, &r, TSRI_ALL_GATHER, 1, RANKS, &tier) > 64 * 0.1);
    /* Of ranks alone in their nodes they take six steps; four columns share the node's rate. */
    tsri_machine_reach(&m, column, RANKS / 4, &r);
    CHECK(near(tsri_machine_collective_s(&m, &r, TSRI_ALL_GATHER, 64, RANKS / 4, &tier),
               6 * 0.1 + 4 * 63.0 / 40.0 / 0.92));
    /* Large ones go round the ring, which wastes nothing. */
    tsri_machine_reach(&m, columns, 2, &r);
    CHECK(near(tsri_machine_collective_s(&m, &r, TSRI_ALL_REDUCE, 1e6, 2, &tier), 1e5 + 0.2));
    m.inline_compute = true; /* the cpu backend has rings alone */
    tsri_machine_reach(&m, all, RANKS, &r);
    CHECK(tsri_machine_collective_s(&m, &r, TSRI_ALL_REDUCE, 1, RANKS, &tier) > 2 * 64 * 0.1);
}

/* ---- ledgers ---- */

typedef struct script {
    tsri_entry entries[32];
    int count;
    uint64_t seq[TSRI_STREAM_COUNT];
} script;

static void add(script *s, tsri_entry e)
{
    if (e.kind != TSRI_ENTRY_WAIT) {
        e.seq = ++s->seq[e.stream];
    }
    s->entries[s->count++] = e;
}

static void kernel(script *s, tsri_stream_kind stream, size_t bytes)
{
    add(s,
        (tsri_entry){.kind = TSRI_ENTRY_KERNEL, .stream = stream, .op = TSRK_ADD, .bytes = bytes});
}

/* seconds: of an all-gather in one node */
static void gather(script *s, tsri_stream_kind stream, size_t seconds)
{
    add(s, (tsri_entry){.kind = TSRI_ENTRY_COLLECTIVE,
                        .stream = stream,
                        .op = TSRI_ALL_GATHER,
                        .group = "shard",
                        .members = everyone,
                        .group_size = 4,
                        .bytes = seconds * 400 / 3,
                        .sent_bytes = seconds * 100});
}

static void wait_for(script *s, tsri_stream_kind stream, tsri_stream_kind other)
{
    add(s, (tsri_entry){
               .kind = TSRI_ENTRY_WAIT, .stream = stream, .op = (int)other, .seq = s->seq[other]});
}

static tsri_clock_result run(script *s, const tsri_machine *m)
{
    tsri_clock_result result = {0};

    CHECK_OK(tsri_clock_run(m, s->entries, s->count, &result));
    return result;
}

static tsri_machine without_latency(void)
{
    tsri_machine m = machine();

    m.tiers[0].hop_s = 0.0;
    m.tiers[1].hop_s = 0.0;
    return m;
}

/* gather 3 | kernel 2 ; gather 6 of the next hides behind it in part. */
static void overlap(script *s)
{
    memset(s, 0, sizeof(*s));
    gather(s, TSRI_STREAM_GATHER, 3);
    wait_for(s, TSRI_STREAM_COMPUTE, TSRI_STREAM_GATHER);
    gather(s, TSRI_STREAM_GATHER, 6);
    kernel(s, TSRI_STREAM_COMPUTE, 20);
    wait_for(s, TSRI_STREAM_COMPUTE, TSRI_STREAM_GATHER);
    kernel(s, TSRI_STREAM_COMPUTE, 20);
}

static void test_overlap(void)
{
    const tsri_machine m = without_latency();
    script s;

    overlap(&s);
    const tsri_clock_result r = run(&s, &m);
    CHECK(near(r.step_s, 11.0));
    CHECK(near(r.compute_s, 4.0));
    CHECK(near(r.busy_s, 9.0));
    CHECK(near(r.exposed_s, 3.0 + 4.0));
    CHECK_EQ(r.axes_count, 1);
    CHECK(near(r.axes[0].exposed_s, 7.0));
    CHECK(near(r.axes[0].sent, 900));
    CHECK(near(r.axes[0].crossing[0], 900));
    CHECK(near(s.entries[3].begin_s, 3.0));
    CHECK(near(s.entries[2].end_s, 9.0));
}

/* Half a second is lost for each of a collective beside a kernel, at most half of its rate. */
static void test_contention(void)
{
    tsri_machine m = without_latency();
    script s;

    m.contention = 0.5;
    memset(&s, 0, sizeof(s));
    gather(&s, TSRI_STREAM_GATHER, 3);
    kernel(&s, TSRI_STREAM_COMPUTE, 20); /* 2 s, of which 1.5 are done at 3 */
    CHECK(near(run(&s, &m).step_s, 3.5));
    memset(&s, 0, sizeof(s));
    gather(&s, TSRI_STREAM_GATHER, 30);
    kernel(&s, TSRI_STREAM_COMPUTE, 20);
    CHECK(near(run(&s, &m).compute_s, 4.0));
    memset(&s, 0, sizeof(s));
    gather(&s, TSRI_STREAM_COMPUTE, 3); /* compute waits itself: nothing is beside it */
    kernel(&s, TSRI_STREAM_COMPUTE, 20);
    CHECK(near(run(&s, &m).step_s, 5.0));
}

/* What begins while compute runs, or begins to, is late by busy_s; what begins beside an idle rank
 * is not. */
static void test_beside_compute(void)
{
    tsri_machine m = without_latency();
    script s;

    m.tiers[0].busy_s = 0.5;
    m.tiers[1].busy_s = 100.0; /* not theirs */
    overlap(&s);
    CHECK(near(run(&s, &m).step_s, 11.5));
    CHECK(near(s.entries[0].end_s, 3.0));
    CHECK(near(s.entries[2].end_s, 9.5));
    memset(&s, 0, sizeof(s));
    kernel(&s, TSRI_STREAM_COMPUTE, 20); /* until 2 */
    gather(&s, TSRI_STREAM_GATHER, 3);
    gather(&s, TSRI_STREAM_GATHER, 3); /* behind it, from 3.5 on */
    CHECK(near(run(&s, &m).step_s, 6.5));
    m.tiers[0].busy_s = 50.0; /* but compute waits after 2, and the core is free */
    overlap(&s);
    CHECK(near(run(&s, &m).step_s, 13.0));
    CHECK(near(s.entries[2].end_s, 11.0));
    memset(&s, 0, sizeof(s));
    gather(&s, TSRI_STREAM_COMPUTE, 3); /* compute itself waits */
    kernel(&s, TSRI_STREAM_COMPUTE, 20);
    CHECK(near(run(&s, &m).step_s, 5.0));
}

/* The host waits for the first gather before it enqueues the second where compute is inline. */
static void test_inline_compute(void)
{
    tsri_machine m = without_latency();
    script s;

    m.inline_compute = true;
    overlap(&s);
    CHECK(near(run(&s, &m).step_s, 11.0));
    /* A gather enqueued behind a kernel starts at that kernel's end, not before. */
    memset(&s, 0, sizeof(s));
    kernel(&s, TSRI_STREAM_COMPUTE, 20);
    gather(&s, TSRI_STREAM_GATHER, 3);
    CHECK(near(run(&s, &m).step_s, 5.0));
    m.inline_compute = false;
    CHECK(near(run(&s, &m).step_s, 3.0));
}

/* Two streams share the links of one tier; the one that is ready first goes first. */
static void test_shared_tier(void)
{
    const tsri_machine m = without_latency();
    script s = {0};

    kernel(&s, TSRI_STREAM_COMPUTE, 10); /* 1 s */
    wait_for(&s, TSRI_STREAM_REDUCE, TSRI_STREAM_COMPUTE);
    gather(&s, TSRI_STREAM_REDUCE, 3);
    gather(&s, TSRI_STREAM_GATHER, 3);
    const tsri_clock_result r = run(&s, &m);
    CHECK(near(s.entries[3].begin_s, 0.0));
    CHECK(near(s.entries[2].begin_s, 3.0));
    CHECK(near(r.step_s, 6.0));
}

static void test_host_reads(void)
{
    const tsri_machine m = without_latency();
    script s = {0};

    kernel(&s, TSRI_STREAM_COMPUTE, 10);
    add(&s, (tsri_entry){.kind = TSRI_ENTRY_COPY,
                         .stream = TSRI_STREAM_COMPUTE,
                         .op = TSRI_COPY_READ,
                         .bytes = 5});
    gather(&s, TSRI_STREAM_GATHER, 3);
    CHECK(near(run(&s, &m).step_s, 1.0 + 1.0 + 3.0));
}

/* Sums behind a reduction are late because of it; so are tensor parallel collectives. */
static void test_whose_fault(void)
{
    const tsri_machine m = without_latency();
    script s = {0};

    gather(&s, TSRI_STREAM_REDUCE, 3);
    kernel(&s, TSRI_STREAM_REDUCE, 10);
    wait_for(&s, TSRI_STREAM_COMPUTE, TSRI_STREAM_REDUCE);
    kernel(&s, TSRI_STREAM_COMPUTE, 10);
    gather(&s, TSRI_STREAM_COMPUTE, 3);
    const tsri_clock_result r = run(&s, &m);
    CHECK(near(r.exposed_s, 4.0 + 3.0));
    CHECK(near(r.copy_exposed_s, 0.0));
    CHECK(near(r.copy_s, 1.0));
    CHECK(near(r.step_s, 8.0));
}

static void test_unknown_operation(void)
{
    const tsri_machine m = machine();
    tsri_clock_result result;
    script s = {0};

    kernel(&s, TSRI_STREAM_GATHER, 10);
    s.seq[TSRI_STREAM_GATHER] = 7;
    wait_for(&s, TSRI_STREAM_COMPUTE, TSRI_STREAM_GATHER);
    kernel(&s, TSRI_STREAM_COMPUTE, 10);
    CHECK_EQ(tsri_clock_run(&m, s.entries, s.count, &result), TSR_ERR_INVALID);
    tsr_error_clear();
}

const tsr_test_case tsr_test_cases[] = {
    {"kernels", test_kernels},
    {"reach", test_reach},
    {"rings", test_rings},
    {"trees", test_trees},
    {"overlap", test_overlap},
    {"beside_compute", test_beside_compute},
    {"contention", test_contention},
    {"inline_compute", test_inline_compute},
    {"shared_tier", test_shared_tier},
    {"host_reads", test_host_reads},
    {"whose_fault", test_whose_fault},
    {"unknown_operation", test_unknown_operation},
    {NULL, NULL},
};
