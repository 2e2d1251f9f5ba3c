/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 */
/**
 * @file test_bench.c
 * The benchmarks' figures hang together: rates are flops by time, and a step's parts fill it.
 */
#include "base/base.h"

#include <string.h>

#include "bench/bench.h"
#include "support/tsr_test.h"

static tsr_world *open_world(void)
{
    tsr_world *world = NULL;

    CHECK_OK(tsr_world_open(NULL, NULL, NULL, &world));
    return world;
}

static void test_gemm(void)
{
    static tsri_bench_gemm_report report;
    const tsri_bench_gemm_options options = {.model = "llama-tiny", .tokens = 32, .rounds = 2};
    tsr_world *world = NULL;
    double flops[3] = {0.0, 0.0, 0.0};

    if (tsr_test_size() > 1) {
        return;
    }
    world = open_world();
    REQUIRE(world != NULL);
    CHECK_OK(tsri_bench_gemm(world, &options, &report));
    REQUIRE(report.ceiling_count >= 1);
    CHECK(report.ceiling[0].peak > 0.0 && report.ceiling[0].square > 0.0);
    REQUIRE(report.row_count > 0);
    for (int i = 0; i < report.row_count; i++) {
        const tsri_bench_gemm_row *row = &report.rows[i];

        CHECK(row->rate > 0.0 && row->of_square > 0.0);
        flops[i % 3] += row->dtype == TSR_F32 ? (double)(row->m * row->n * row->k) : 0.0;
    }
    /* Forward and its two gradients multiply as often as each other. */
    CHECK(flops[0] > 0.0 && flops[0] == flops[1] && flops[0] == flops[2]);
    /* They are [256, 256] all three and share an entry. */
    CHECK_STR(report.rows[0].weights, "q, o, head");
    tsr_world_close(&world);
}

static void test_collectives(void)
{
    static tsri_bench_coll_report report;
    const tsri_bench_coll_options options = {
        .bytes = {1000, (size_t)1 << 20}, .size_count = 2, .rounds = 3};
    tsr_world *world = NULL;

    if (tsr_test_size() < 2) {
        return;
    }
    world = open_world();
    REQUIRE(world != NULL);
    CHECK_OK(tsri_bench_collectives(world, &options, &report));
    CHECK_EQ(report.ranks, tsr_test_size());
    CHECK_EQ(report.row_count, 6);
    CHECK(report.copy_one > 0.0 && report.copy_all > 0.0);
    for (int i = 0; i < report.row_count; i++) {
        const tsri_bench_coll_row *row = &report.rows[i];
        const double passes = row->kind == TSRI_ALL_REDUCE ? 2.0 : 1.0;
        const double share = passes * (report.ranks - 1) / report.ranks;

        CHECK(row->bytes >= options.bytes[i % 2]);
        CHECK_EQ(row->bytes % (sizeof(float) * (size_t)report.ranks), 0);
        CHECK(row->ours.s > 0.0 && row->mpi.s > 0.0 && row->speedup > 0.0 && row->of_copy > 0.0);
        /* Products and quotients of doubles, a few roundings apart. */
        CHECK_NEAR(row->ours.algorithm * row->ours.s, (double)row->bytes,
                   1e-9 * (double)row->bytes);
        CHECK_NEAR(row->mpi.bus, row->mpi.algorithm * share, 1e-9 * row->mpi.bus);
    }
    tsr_world_close(&world);
}

static void check_step(const char *mesh, int ranks)
{
    static tsri_bench_step_report report;
    const tsri_bench_step_options options = {
        .model = "llama-tiny", .mesh = mesh, .batch = 2, .seq = 16, .steps = 1};
    tsr_world *world = open_world();
    double parts = 0.0;
    double kernels = 0.0;

    REQUIRE(world != NULL);
    CHECK_OK(tsri_bench_step_check(&options, ranks));
    CHECK_OK(tsri_bench_step(world, &options, &report));
    CHECK_EQ(report.ranks, ranks);
    CHECK_EQ(report.steps, 1);
    CHECK(report.step_s > 0.0 && report.min_s <= report.step_s && report.ceiling > 0.0);
    /* Products and quotients of doubles, a few roundings apart. */
    CHECK_NEAR(report.tokens_per_s * report.step_s, 32.0, 1e-9);
    parts = report.kernel_s + report.coll_s + report.other_s;
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        parts += report.exposed_s[kind];
    }
    for (int i = 0; i < report.kernel_count; i++) {
        kernels += report.kernels[i].s;
        CHECK(i == 0 || report.kernels[i].s <= report.kernels[i - 1].s);
    }
    CHECK(kernels > 0.0 && report.matmul_s > 0.0 && report.matmul_s < report.kernel_s);
    if (ranks == 1) {
        /* The parts are differences of clock readings, in order, from the step's begin to its end:
         * each rounds to an ulp of the clock, of which there are some hundreds. */
        CHECK_NEAR(parts, report.step_s, 1e-6 * report.step_s);
        CHECK_NEAR(kernels, report.kernel_s, 1e-9 * report.kernel_s);
        CHECK(report.coll_s == 0.0);
    } else {
        CHECK(report.coll_s > 0.0); /* the gradients' norm, and what tp adds */
        CHECK((report.busy_s[TSRI_STREAM_GATHER] > 0.0) == (strcmp(mesh, "shard=2") == 0));
    }
    tsr_world_close(&world);
}

static void test_step(void)
{
    if (tsr_test_size() == 1) {
        check_step("shard=1", 1);
        return;
    }
    check_step("shard=2", 2);
    check_step("tp=2", 2);
}

static void test_step_check(void)
{
    const tsri_bench_step_options bad_mesh = {.mesh = "shard=3"};
    const tsri_bench_step_options bad_model = {.model = "llama-tniy"};
    const tsri_bench_step_options bad_steps = {.steps = TSRI_BENCH_MAX_STEPS + 1};

    CHECK_STATUS(TSR_ERR_INVALID, tsri_bench_step_check(&bad_mesh, 2));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_bench_step_check(&bad_model, 2));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_bench_step_check(&bad_steps, 2));
}

const tsr_test_case tsr_test_cases[] = {
    {"gemm", test_gemm}, {"collectives", test_collectives},
    {"step", test_step}, {"step_check", test_step_check},
    {NULL, NULL},
};
