/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The matcher on ledgers written by hand: each cause of a hang, and programs that fit. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "plan/match.h"
#include "support/scores.h"
#include "support/tsr_test.h"

enum {
    REPLICATE = 0,
    SHARD = 1
};

#define COMPUTE TSRI_STREAM_COMPUTE
#define GATHER  TSRI_STREAM_GATHER
#define REDUCE  TSRI_STREAM_REDUCE

static score_world world;

/* A step of a unit on a stream of its own, with compute behind it. */
static void unit_step(int rank, const char *label)
{
    score_call(&world, rank, SHARD, GATHER, TSRI_ALL_GATHER, label, 64);
    score_wait(&world, rank, COMPUTE, GATHER);
    score_kernel(&world, rank, COMPUTE);
    score_wait(&world, rank, REDUCE, COMPUTE);
    score_call(&world, rank, SHARD, REDUCE, TSRI_REDUCE_SCATTER, label, 16);
    score_call(&world, rank, REPLICATE, REDUCE, TSRI_ALL_REDUCE, label, 16);
}

static void check_report(tsri_match_cause cause, const char *const *words, int count)
{
    tsri_match_report report;

    REQUIRE_OK(score_match(&world, false, &report));
    CHECK_EQ(report.cause, cause);
    for (int i = 0; i < count; i++) {
        if (strstr(report.text, words[i]) == NULL) {
            (void)fprintf(stderr, "\"%s\" is not in: %s\n", words[i], report.text);
            CHECK(strstr(report.text, words[i]) != NULL);
        }
    }
}

#define CHECK_REPORT(cause, ...) \
    check_report((cause), (const char *const[]){__VA_ARGS__}, \
                 (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))

static void test_units_fit(void)
{
    tsri_match_report report;

    score_begin(&world, 2, 2);
    for (int r = 0; r < 4; r++) {
        score_open_group(&world, r, SHARD, GATHER);
        unit_step(r, "layers.0");
        unit_step(r, "layers.1");
        score_wait(&world, r, COMPUTE, REDUCE);
        score_read(&world, r, COMPUTE);
        unit_step(r, "layers.0");
    }
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(score_match(&world, i == 1, &report));
        CHECK_EQ(report.cause, TSRI_MATCH_FITS);
        CHECK_STR(report.text, "");
    }
}

static void test_nothing_fits_nothing(void)
{
    tsri_match_report report;

    score_begin(&world, 2, 2);
    REQUIRE_OK(score_match(&world, false, &report));
    CHECK_EQ(report.cause, TSRI_MATCH_FITS);
}

static void test_counts_differ(void)
{
    score_begin(&world, 1, 4);
    for (int r = 0; r < 4; r++) {
        score_call(&world, r, SHARD, GATHER, TSRI_ALL_GATHER, "layers.0", 8);
        score_call(&world, r, SHARD, GATHER, TSRI_ALL_GATHER, "layers.1", r == 2 ? 12 : 8);
    }
    CHECK_REPORT(TSRI_MATCH_DIFFERS, "call 2 over shard (stream gather) differs",
                 "ranks 0, 1, 3: all_gather of layers.1, 32 bytes of f32",
                 "rank 2: all_gather of layers.1, 48 bytes of f32");
}

static void test_operations_differ(void)
{
    score_begin(&world, 1, 2);
    score_call(&world, 0, SHARD, REDUCE, TSRI_ALL_REDUCE, "", 8);
    score_call(&world, 1, SHARD, REDUCE, TSRI_REDUCE_SCATTER, "", 8);
    CHECK_REPORT(TSRI_MATCH_DIFFERS, "rank 0: all_reduce of (root)",
                 "rank 1: reduce_scatter of (root)");
}

/* Equal sizes would not hang but mix the parameters of two units. */
static void test_labels_differ(void)
{
    score_begin(&world, 1, 4);
    for (int r = 0; r < 4; r++) {
        score_call(&world, r, SHARD, GATHER, TSRI_ALL_GATHER, "layers.0", 8);
        if (r != 0) {
            score_call(&world, r, SHARD, GATHER, TSRI_ALL_GATHER, "layers.1", 8);
        }
        score_call(&world, r, SHARD, GATHER, TSRI_ALL_GATHER, "layers.2", 8);
    }
    CHECK_REPORT(TSRI_MATCH_DIFFERS, "call 2", "rank 0: all_gather of layers.2",
                 "ranks 1 to 3: all_gather of layers.1", "sizes agree",
                 "layers.1 is never called there by rank 0");
}

static void test_member_never_calls(void)
{
    score_begin(&world, 1, 4);
    for (int r = 0; r < 4; r++) {
        score_call(&world, r, SHARD, COMPUTE, TSRI_ALL_REDUCE, "loss", 1);
        if (r != 1) {
            score_call(&world, r, SHARD, COMPUTE, TSRI_ALL_REDUCE, "grad norm", 1);
        }
    }
    CHECK_REPORT(TSRI_MATCH_MISSING, "ranks 0, 2, 3 wait in all_reduce of grad norm over shard",
                 "(call 2, stream compute)", "for rank 1, whose program ends without it",
                 "the last call of rank 1 there is all_reduce of loss (call 1)");
}

static void test_member_has_no_such_group(void)
{
    score_begin(&world, 2, 2);
    for (int r = 0; r < 4; r++) {
        score_call(&world, r, REPLICATE, COMPUTE, TSRI_ALL_REDUCE, "loss", 1);
    }
    score_call(&world, 3, SHARD, COMPUTE, TSRI_ALL_REDUCE, "norm", 1);
    CHECK_REPORT(TSRI_MATCH_MISSING, "rank 3 wait", "for rank 2", "rank 2 makes no call there",
                 "all_reduce of loss over replicate");
}

static void test_two_orders_cycle(void)
{
    score_begin(&world, 2, 2);
    for (int r = 0; r < 4; r++) {
        const int first = r == 0 || r == 3 ? SHARD : REPLICATE;

        score_call(&world, r, first, COMPUTE, TSRI_ALL_REDUCE, "layers.0", 8);
        score_call(&world, r, 1 - first, COMPUTE, TSRI_ALL_REDUCE, "layers.0", 8);
    }
    CHECK_REPORT(TSRI_MATCH_CYCLE, "goes round between groups",
                 "rank 0 waits in all_reduce of layers.0 over shard (call 1, stream compute)",
                 "for rank 1, which waits in all_reduce of layers.0 over replicate", "for rank 0");
}

/* The same two calls on streams of their own need no common order ... */
static void test_streams_have_orders_of_their_own(void)
{
    tsri_match_report report;

    score_begin(&world, 2, 2);
    for (int r = 0; r < 4; r++) {
        const int first = r == 0 || r == 3 ? SHARD : REPLICATE;

        score_call(&world, r, first, first == SHARD ? GATHER : REDUCE, TSRI_ALL_REDUCE, "a", 8);
        score_call(&world, r, 1 - first, first == SHARD ? REDUCE : GATHER, TSRI_ALL_REDUCE, "a", 8);
    }
    REQUIRE_OK(score_match(&world, true, &report));
    CHECK_EQ(report.cause, TSRI_MATCH_FITS);
}

/* ... unless waits give them one. */
static void test_waits_make_cycles(void)
{
    score_begin(&world, 2, 2);
    for (int r = 0; r < 4; r++) {
        const int first = r == 0 || r == 3 ? SHARD : REPLICATE;
        const tsri_stream_kind one = first == SHARD ? GATHER : REDUCE;
        const tsri_stream_kind two = first == SHARD ? REDUCE : GATHER;

        score_call(&world, r, first, one, TSRI_ALL_REDUCE, "a", 8);
        score_wait(&world, r, two, one);
        score_call(&world, r, 1 - first, two, TSRI_ALL_REDUCE, "a", 8);
    }
    CHECK_REPORT(TSRI_MATCH_CYCLE, "stream gather", "stream reduce");
}

/* A host that reads a value does not issue what comes after it. */
static void test_reads_make_cycles(void)
{
    tsri_match_report report;

    for (int reads = 0; reads < 2; reads++) {
        score_begin(&world, 1, 2);
        for (int r = 0; r < 2; r++) {
            const tsri_stream_kind one = r == 0 ? COMPUTE : GATHER;
            const tsri_stream_kind two = r == 0 ? GATHER : COMPUTE;

            score_call(&world, r, SHARD, one, TSRI_ALL_REDUCE, "a", 8);
            if (reads == 1) {
                score_read(&world, r, one);
            }
            score_call(&world, r, SHARD, two, TSRI_ALL_REDUCE, "a", 8);
        }
        REQUIRE_OK(score_match(&world, false, &report));
        CHECK_EQ(report.cause, reads == 1 ? TSRI_MATCH_CYCLE : TSRI_MATCH_FITS);
    }
}

/* A host that computes itself cannot issue a gather while it waits in a collective. */
static void test_inline_compute_is_stricter(void)
{
    tsri_match_report report;

    score_begin(&world, 1, 2);
    for (int r = 0; r < 2; r++) {
        const tsri_stream_kind one = r == 0 ? COMPUTE : GATHER;
        const tsri_stream_kind two = r == 0 ? GATHER : COMPUTE;

        score_call(&world, r, SHARD, one, TSRI_ALL_REDUCE, "a", 8);
        if (r == 1) {
            score_wait(&world, r, two, one);
        }
        score_call(&world, r, SHARD, two, TSRI_ALL_REDUCE, "a", 8);
    }
    REQUIRE_OK(score_match(&world, false, &report));
    CHECK_EQ(report.cause, TSRI_MATCH_FITS);
    REQUIRE_OK(score_match(&world, true, &report));
    CHECK_EQ(report.cause, TSRI_MATCH_CYCLE);
}

static void test_openings_take_all_ranks(void)
{
    score_begin(&world, 2, 2);
    for (int r = 0; r < 4; r++) {
        score_open_group(&world, r, SHARD, r == 2 ? REDUCE : GATHER);
    }
    CHECK_REPORT(TSRI_MATCH_DIFFERS, "opening 1 over all ranks",
                 "rank 2: the opening of group shard for stream reduce");
    score_begin(&world, 2, 2);
    for (int r = 0; r < 3; r++) {
        score_open_group(&world, r, SHARD, GATHER);
    }
    CHECK_REPORT(TSRI_MATCH_MISSING, "ranks 0 to 2 wait in the opening of group shard",
                 "for rank 3", "rank 3 makes no call there, nor anywhere");
}

static void test_a_ledger_may_begin_late(void)
{
    tsri_match_report report;

    score_begin(&world, 1, 2);
    for (int r = 0; r < 2; r++) {
        world.ranks[r].seq[GATHER] = 70;
        world.ranks[r].seq[COMPUTE] = 30;
        score_wait(&world, r, COMPUTE, GATHER); /* on what came before the ledger */
        score_call(&world, r, SHARD, GATHER, TSRI_ALL_GATHER, "a", 8);
        score_wait(&world, r, COMPUTE, GATHER);
        score_read(&world, r, COMPUTE);
    }
    REQUIRE_OK(score_match(&world, false, &report));
    CHECK_EQ(report.cause, TSRI_MATCH_FITS);
}

static void test_contradictions_are_refused(void)
{
    tsri_match_report report;

    score_begin(&world, 1, 2);
    score_call(&world, 0, SHARD, GATHER, TSRI_ALL_GATHER, "a", 8);
    score_wait(&world, 0, COMPUTE, GATHER);
    world.ranks[0].entries[1].seq = 9;
    CHECK_STATUS(TSR_ERR_INVALID, score_match(&world, false, &report));
    score_begin(&world, 1, 2);
    score_call(&world, 0, SHARD, GATHER, TSRI_ALL_GATHER, "a", 8);
    world.row_members[0][0] = 7;
    CHECK_STATUS(TSR_ERR_INVALID, score_match(&world, false, &report));
    world.row_members[0][0] = 1;
    CHECK_STATUS(TSR_ERR_INVALID, score_match(&world, false, &report));
}

static void test_memory_may_run_out(void)
{
    tsri_match_report report;

    score_begin(&world, 2, 2);
    for (int r = 0; r < 4; r++) {
        unit_step(r, "layers.0");
        if (r != 1) {
            score_call(&world, r, SHARD, COMPUTE, TSRI_ALL_REDUCE, "norm", 1);
        }
    }
    for (int n = 1;; n++) {
        const int64_t live = tsri_alloc_live();

        tsri_alloc_fail_at(n);
        const tsr_status status = score_match(&world, false, &report);

        tsri_alloc_fail_at(0);
        CHECK_EQ(tsri_alloc_live(), live);
        tsr_error_clear();
        if (status == TSR_OK) {
            break;
        }
        REQUIRE_EQ(status, TSR_ERR_NOMEM);
        REQUIRE(n < 1000);
    }
    CHECK_EQ(report.cause, TSRI_MATCH_MISSING);
}

/* ---- many ranks that share a ledger ---- */

enum {
    MANY_ROWS = 128,
    MANY_COLS = 8,
    MANY_ENTRIES = 8000
};

static tsr_status members_of_grid(void *context, int rank, const tsri_entry *entry, int *out)
{
    (void)context;
    for (int i = 0; i < entry->group_size; i++) {
        out[i] = entry->axis_mask == 1U ? i * MANY_COLS + rank % MANY_COLS
                                        : rank / MANY_COLS * MANY_COLS + i;
    }
    return TSR_OK;
}

/* Gathers, kernels, waits and reductions in the mix of a trainer's step. */
static void fill_many(tsri_entry *entries)
{
    static const int members[MANY_ROWS] = {0};
    uint64_t seq[TSRI_STREAM_COUNT] = {0};

    for (int i = 0; i < MANY_ENTRIES; i++) {
        tsri_entry *e = &entries[i];
        const tsri_stream_kind stream = i % 8 == 0 ? GATHER : (i % 8 == 4 ? REDUCE : COMPUTE);

        *e = (tsri_entry){.kind = TSRI_ENTRY_KERNEL, .stream = stream};
        if (i % 8 == 2 || i % 8 == 3) {
            e->kind = TSRI_ENTRY_WAIT;
            e->stream = i % 8 == 2 ? COMPUTE : REDUCE;
            e->op = (int)(i % 8 == 2 ? GATHER : COMPUTE);
            e->seq = seq[e->op];
            continue;
        }
        e->seq = ++seq[stream];
        if (stream != COMPUTE) {
            e->kind = TSRI_ENTRY_COLLECTIVE;
            e->axis_mask = stream == REDUCE && i % 16 == 4 ? 1U : 2U;
            e->group_size = e->axis_mask == 1U ? MANY_ROWS : MANY_COLS;
            e->members = members + e->axis_mask; /* stands for the group; the callback says who */
            e->label = "layers";
        }
    }
}

static void test_a_thousand_ranks(void)
{
    static tsri_match_ledger ledgers[MANY_ROWS * MANY_COLS];
    const tsri_match_input input = {.ledgers = ledgers,
                                    .rank_count = MANY_ROWS * MANY_COLS,
                                    .inline_compute = true,
                                    .members = members_of_grid};
    tsri_match_report report;
    tsri_entry *entries = NULL;

    REQUIRE_OK(tsri_alloc(MANY_ENTRIES, sizeof(*entries), &entries));
    fill_many(entries);
    for (int r = 0; r < input.rank_count; r++) {
        ledgers[r] = (tsri_match_ledger){entries, MANY_ENTRIES};
    }
    const double begin_s = tsri_now_s();

    CHECK_OK(tsri_match(&input, &report));
    (void)printf("%d ranks of %d entries matched in %.3f s\n", input.rank_count, MANY_ENTRIES,
                 tsri_now_s() - begin_s);
    CHECK_EQ(report.cause, TSRI_MATCH_FITS);
    /* One rank stops early: the others are named though they are many. */
    ledgers[77].count = MANY_ENTRIES / 2;
    CHECK_OK(tsri_match(&input, &report));
    CHECK_EQ(report.cause, TSRI_MATCH_MISSING);
    CHECK(strstr(report.text, "for rank 77") != NULL);
    tsri_free(&entries);
}

const tsr_test_case tsr_test_cases[] = {
    {"units_fit", test_units_fit},
    {"nothing_fits_nothing", test_nothing_fits_nothing},
    {"counts_differ", test_counts_differ},
    {"operations_differ", test_operations_differ},
    {"labels_differ", test_labels_differ},
    {"member_never_calls", test_member_never_calls},
    {"member_has_no_such_group", test_member_has_no_such_group},
    {"two_orders_cycle", test_two_orders_cycle},
    {"streams_have_orders_of_their_own", test_streams_have_orders_of_their_own},
    {"waits_make_cycles", test_waits_make_cycles},
    {"reads_make_cycles", test_reads_make_cycles},
    {"inline_compute_is_stricter", test_inline_compute_is_stricter},
    {"openings_take_all_ranks", test_openings_take_all_ranks},
    {"a_ledger_may_begin_late", test_a_ledger_may_begin_late},
    {"contradictions_are_refused", test_contradictions_are_refused},
    {"memory_may_run_out", test_memory_may_run_out},
    {"a_thousand_ranks", test_a_thousand_ranks},
    {NULL, NULL},
};
