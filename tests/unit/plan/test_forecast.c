/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Forecasts: the textbook's ledger, flops of a token, a published table of step times, what is not
 * legal, and the search. */
#include "base/base.h"

#include <math.h>
#include <string.h>

#include "plan/forecast.h"
#include "plan/search.h"
#include "support/tsr_test.h"

static double sum(tsri_zero_row row)
{
    return (row.params + row.grads + row.optim) / 1e9;
}

/* Rajbhandari et al., with f32 gradients: 18 bytes a parameter. */
static void test_zero_ledger(void)
{
    static const double expected[] = {126.0, 52.5, 28.0, 15.75};

    for (int stage = 0; stage < 4; stage++) {
        CHECK(fabs(sum(tsri_zero_ledger(7e9, 8, stage)) - expected[stage]) < 1e-9);
    }
}

static void test_token_flops(void)
{
    const tsri_model_spec llama = {.arch = TSRI_ARCH_LLAMA,
                                   .layers = 2,
                                   .dim = 8,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .ffn = 16,
                                   .vocab = 32};
    const double n = 2 * (8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8 + 2 * 32 * 8;

    CHECK_EQ(tsri_model_param_count(&llama), (int64_t)n);
    CHECK(tsri_model_token_flops(&llama, 10, false) == 6 * (n - 32 * 8) + 6 * 2 * 8 * 10);
    CHECK(tsri_model_token_flops(&llama, 10, true) == 6 * (n - 32 * 8) + 12 * 2 * 8 * 10);
}

/* ---- the table ---- */

/* Nodes of 8; 400 TFLOP/s, 300 GB/s per device inside, no latency, nothing else takes time. */
static tsri_cluster ideal(double node_gb_per_s)
{
    return (tsri_cluster){
        .machine = {.name = "ideal",
                    .flops = {400e12, 400e12},
                    .bytes_per_s = 1e15,
                    .tiers = {{.name = "near", .span = 8, .bytes_per_s = 300e9},
                              {.name = "far", .span = 0, .bytes_per_s = node_gb_per_s * 1e9}},
                    .tier_count = 2},
        .devices = 8};
}

/* 20.0e9 parameters, hardly any of them in the vocabulary; 8,192 tokens a rank as 16 sequences, so
 * that attention is a small part. */
static tsri_job_options twenty_billion(const char *preset, int nodes, int micro, tsr_dtype reduce)
{
    return (tsri_job_options){
        .model = {.arch = TSRI_ARCH_LLAMA,
                  .layers = 48,
                  .dim = 5632,
                  .heads = 44,
                  .kv_heads = 44,
                  .ffn = 17152,
                  .vocab = 1024},
        .axes = {{"replicate", nodes}, {"shard", 8}},
        .axis_count = 2,
        .preset = preset,
        .fsdp = {.param_dtype = TSR_BF16, .reduce_dtype = reduce},
        .batch = (int64_t)nodes * 8 * 16,
        .seq = 512,
        .micro_batches = micro,
    };
}

typedef struct table_row {
    double gb_per_s;
    int micro;
    tsr_dtype reduce;
    int nodes;
    double fsdp, hsdp, hfsdp; /* seconds */
} table_row;

/* Step seconds of 20e9 parameters by a script with perfect overlap within forward and within
 * backward, no latency, and 6 N flops a token. */
static const table_row table[] = {
    {12.5, 1, TSR_BF16, 4, 9.30, 5.62, 4.80},   {12.5, 1, TSR_BF16, 16, 9.52, 6.82, 6.00},
    {12.5, 1, TSR_F32, 16, 12.70, 12.82, 9.00}, {12.5, 8, TSR_BF16, 16, 76.2, 24.0, 23.2},
    {12.5, 8, TSR_F32, 16, 101.6, 30.0, 26.2},  {25.0, 1, TSR_BF16, 4, 4.65, 3.22, 2.84},
    {25.0, 1, TSR_BF16, 16, 4.76, 3.82, 3.14},  {25.0, 8, TSR_BF16, 16, 38.1, 21.0, 20.3},
    {25.0, 8, TSR_F32, 16, 50.8, 24.0, 21.7},   {50.0, 1, TSR_BF16, 16, 2.46, 2.46, 2.46},
    {50.0, 1, TSR_F32, 4, 3.14, 3.22, 2.46},    {50.0, 1, TSR_F32, 16, 3.20, 3.82, 2.46},
    {50.0, 8, TSR_F32, 16, 25.6, 21.0, 19.7},
};

static double forecast(const table_row *row, const char *preset)
{
    const tsri_cluster cluster = ideal(row->gb_per_s);
    const tsri_job_options o = twenty_billion(preset, row->nodes, row->micro, row->reduce);
    tsri_forecast f;

    CHECK_OK(tsri_forecast_run(&o, row->nodes * 8, &cluster, NULL, &f));
    CHECK(f.possible && f.fit == TSRI_FIT_UNKNOWN);
    return f.step_s;
}

static bool within(double found, double expected, double share)
{
    return fabs(found - expected) <= share * expected;
}

static void test_table(void)
{
    static const double share = 0.05;

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const table_row *row = &table[i];

#if defined(__SANITIZE_ADDRESS__)
        if (row->micro > 1) { /* the same code, for minutes */
            continue;
        }
#endif
        const double fsdp = forecast(row, "fsdp");
        const double hsdp = forecast(row, "hsdp");
        const double hfsdp = forecast(row, "hfsdp");

        (void)printf("%5.1f GB/s A=%d %s n=%-2d  fsdp %7.2f %7.2f  hsdp %7.2f %7.2f  hfsdp %7.2f "
                     "%7.2f\n",
                     row->gb_per_s, row->micro, tsr_dtype_name(row->reduce), row->nodes, row->fsdp,
                     fsdp, row->hsdp, hsdp, row->hfsdp, hfsdp);
        CHECK(within(fsdp, row->fsdp, share));
        CHECK(within(hsdp, row->hsdp, share));
        CHECK(within(hfsdp, row->hfsdp, share));
    }
}

/* ---- states ---- */

/* 20e9 parameters on 8 ranks in bf16, at the most of each kind, beside the textbook's: zero1 and
 * zero2 hold what it says; where parameters are sharded (fsdp) or nothing is (ddp), f32 shards are
 * the masters and there is no second copy: 16 bytes a parameter. Room that alignment leaves and
 * scalars are far below the tolerance. */
static void test_states(void)
{
    static const double share = 1e-3;
    static const struct {
        const char *preset;
        double bytes; /* of a parameter */
    } rows[] = {{"ddp", 16.0}, {"zero1", 7.5}, {"zero2", 4.0}, {"fsdp", 2.0}};
    const tsri_cluster cluster = ideal(50.0);

    for (int i = 0; i < 4; i++) {
        const tsri_job_options o = twenty_billion(rows[i].preset, 1, 1, TSR_F32);
        const double n = (double)tsri_model_param_count(&o.model);
        const tsri_zero_row book = tsri_zero_ledger(n, 8, i);
        tsri_forecast f;
        double held = 0.0;

        REQUIRE_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &f));
        for (int kind = 0; kind <= TSRI_MEM_OPTIM; kind++) {
            held += (double)f.memory.kind_most[kind];
        }
        CHECK(within(held, rows[i].bytes * n, share));
        if (i == 1 || i == 2) {
            CHECK(within(held, book.params + book.grads + book.optim, share));
        }
    }
}

/* ---- the rest ---- */

static tsri_job_options small(const char *preset)
{
    return (tsri_job_options){
        .model = {.arch = TSRI_ARCH_LLAMA,
                  .layers = 3,
                  .dim = 64,
                  .heads = 4,
                  .kv_heads = 2,
                  .ffn = 96,
                  .vocab = 256},
        .axes = {{"replicate", 2}, {"shard", 4}},
        .axis_count = 2,
        .preset = preset,
        .batch = 16,
        .seq = 32,
        .micro_batches = 1,
    };
}

static void test_not_legal(void)
{
    const tsri_cluster cluster = ideal(50.0);
    tsri_job_options o = small("fsdp");
    tsri_forecast f;

    o.axes[1] = (tsr_mesh_axis){"tp", 4};
    o.model.heads = 3;
    o.model.kv_heads = 3;
    CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &f));
    CHECK(!f.possible);
    CHECK(strstr(f.why, "heads") != NULL);
    CHECK_STR(f.preset, "fsdp");
}

/* What a step sends between nodes: every gradient twice, once a step however many micro-batches. */
static void test_node_bytes(void)
{
    tsri_cluster cluster = ideal(50.0);
    tsri_job_options o = small("hsdp");
    tsri_forecast one;
    tsri_forecast four;

    cluster.machine.tiers[0].span = 4;
    cluster.devices = 4;
    CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &one));
    o.batch = 4;
    o.micro_batches = 4;
    CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &four));
    /* Scalars (loss, norm, token count) are all that may differ. */
    CHECK(within(one.node_bytes, four.node_bytes, 0.01));
    CHECK(one.node_bytes >= 2.0 * 4.0 * (double)tsri_model_param_count(&o.model) / 2.0);
    CHECK(one.node_bytes <= 1.05 * 2.0 * 4.0 * (double)tsri_model_param_count(&o.model) / 2.0);
}

/* Headroom is not the plan's; above 92 % of the memory it is tight. */
static void test_memory_limit(void)
{
    tsri_cluster cluster = ideal(50.0);
    tsri_machine *m = &cluster.machine;
    const tsri_job_options o = small("hsdp");
    tsri_forecast f;

    CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &f));
    CHECK_EQ(f.fit, TSRI_FIT_UNKNOWN);
    CHECK_EQ(tsri_forecast_best(&f, 1), 0);
    m->memory_bytes = (double)f.memory.total_bytes;
    CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &f));
    CHECK_EQ(f.fit, TSRI_FIT_TIGHT);
    CHECK_EQ(tsri_forecast_best(&f, 1), 0);
    m->headroom_bytes = 1.0;
    CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &f));
    CHECK_EQ(f.fit, TSRI_FIT_NO);
    CHECK_EQ(tsri_forecast_best(&f, 1), -1);
    m->memory_bytes = (double)f.memory.total_bytes / 0.92 + 1.0;
    CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &f));
    CHECK_EQ(f.fit, TSRI_FIT_YES);
}

static tsri_forecast finished(double step_s, size_t bytes, tsri_fit fit)
{
    return (tsri_forecast){
        .possible = true, .fit = fit, .step_s = step_s, .memory = {.total_bytes = bytes}};
}

/* Within 5 % of the fastest the least memory is best, and the fastest decides what is within. */
static void test_ties(void)
{
    const tsri_forecast f[] = {finished(1.0, 100, TSRI_FIT_TIGHT),
                               finished(1.04, 20, TSRI_FIT_YES),
                               finished(1.06, 10, TSRI_FIT_YES),
                               finished(0.5, 1, TSRI_FIT_NO),
                               {.possible = false}};

    CHECK_EQ(tsri_forecast_best(f, 5), 1);
    CHECK(tsri_forecast_is_tied(&f[0], f, 5) && tsri_forecast_is_tied(&f[1], f, 5));
    CHECK(!tsri_forecast_is_tied(&f[2], f, 5) && !tsri_forecast_is_tied(&f[3], f, 5));
    CHECK_EQ(tsri_forecast_best(f + 3, 2), -1);
}

/* Rows fall by the ceil rule. */
static void test_rows(void)
{
    static const struct {
        int64_t batch, most, even;
        int idle, fewer;
    } cases[] = {{16, 2, 16, 0, 0}, {12, 2, 16, 2, 0}, {9, 2, 16, 3, 1}, {1, 1, 8, 7, 0}};
    tsri_job_options o = small("hsdp");

    for (int i = 0; i < 4; i++) {
        tsri_rows rows;

        o.batch = cases[i].batch;
        tsri_forecast_rows(&o, 8, &rows);
        CHECK_EQ(rows.data_ranks, 8);
        CHECK_EQ(rows.most, cases[i].most);
        CHECK_EQ(rows.idle, cases[i].idle);
        CHECK_EQ(rows.fewer, cases[i].fewer);
        CHECK_EQ(rows.even_batch, cases[i].even);
    }
    o.axes[1] = (tsr_mesh_axis){"tp", 4};
    tsri_rows rows;

    tsri_forecast_rows(&o, 8, &rows);
    CHECK_EQ(rows.data_ranks, 2);
}

/* From few layers and micro-batches: bytes but for the room that packing wastes, times to 2 %. */
static void test_sketch(void)
{
    const tsri_cluster cluster = ideal(50.0);
    tsri_job_options o = small("fsdp");
    tsri_forecast full;
    tsri_forecast sketched;

    o.model.layers = 24;
    o.batch = 8;
    for (int every = 0; every <= 2; every++) {
        o.recompute.every = every;
        o.micro_batches = 1 + 5 * every;
        CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &full));
        CHECK_OK(tsri_forecast_sketch(&o, 8, &cluster, &sketched));
        CHECK_EQ(full.memory.fixed_bytes, sketched.memory.fixed_bytes);
        CHECK(within((double)sketched.memory.total_bytes, (double)full.memory.total_bytes, 0.1));
        CHECK(within(sketched.step_s, full.step_s, 0.02));
        CHECK(within(sketched.node_bytes, full.node_bytes, 1e-9));
        CHECK(within(sketched.tokens_per_s, full.tokens_per_s, 0.02));
    }
}

/* A vocabulary that dwarfs the blocks puts the peak where logits and their gradient are alive. */
static void test_logits(void)
{
    const tsri_cluster cluster = ideal(50.0);
    tsri_job_options o = small("ddp");
    tsri_forecast f;

    o.model.vocab = 4096;
    CHECK_OK(tsri_forecast_run(&o, 8, &cluster, NULL, &f));
    CHECK_EQ(f.logits_bytes % ((size_t)(2 * 32 * 4096) * sizeof(float)), 0); /* 2 rows of 16 */
    CHECK(f.logits_bytes > 0);
}

static void test_search(void)
{
    tsri_search *found = NULL;
    tsri_cluster cluster = ideal(50.0);
    const tsri_job_options o = small("hsdp");

    cluster.machine.tiers[0].span = 4;
    cluster.devices = 4;
    REQUIRE_OK(tsri_alloc(1, sizeof(*found), &found));
    CHECK_OK(tsri_search_run(&o, 8, &cluster, NULL, NULL, found));
    CHECK(found->count > 1 && found->tried >= found->count);
    for (int i = 1; i < found->count; i++) {
        const tsri_forecast *a = &found->best[i - 1].forecast;
        const tsri_forecast *b = &found->best[i].forecast;

        CHECK(i < found->tied ? a->memory.total_bytes <= b->memory.total_bytes
                              : a->step_s <= b->step_s || i == found->tied);
        CHECK(tsri_forecast_may_run(b));
    }
    cluster.machine.memory_bytes = 1.0;
    CHECK_OK(tsri_search_run(&o, 8, &cluster, NULL, NULL, found));
    CHECK_EQ(found->count, 0);
    tsri_free(&found);
}

const tsr_test_case tsr_test_cases[] = {
    {"zero_ledger", test_zero_ledger},
    {"token_flops", test_token_flops},
    {"table", test_table},
    {"states", test_states},
    {"not_legal", test_not_legal},
    {"node_bytes", test_node_bytes},
    {"memory_limit", test_memory_limit},
    {"ties", test_ties},
    {"rows", test_rows},
    {"sketch", test_sketch},
    {"logits", test_logits},
    {"search", test_search},
    {NULL, NULL},
};
