/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 3 4 */
/* labels: train */
/* What a training job holds: its own piece of the model and no more, the planned memory in a step,
 * and nothing new after the first; and that the pieces are the same model on every mesh. */
#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "job/job.h"
#include "support/tsr_test.h"

#define MIB ((size_t)1 << 20)

#if defined(__SANITIZE_ADDRESS__)
static const bool is_sanitized = true;
#else
static const bool is_sanitized = false;
#endif

static tsr_world *open_world(void)
{
    tsr_world *world = NULL;

    CHECK_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world));
    return world;
}

/* ---- what the process holds ---- */

/* A line of /proc/self/status, in bytes. */
static size_t status_bytes(const char *name)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    size_t bytes = 0;

    CHECK(file != NULL);
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            bytes = (size_t)strtoull(line + strlen(name), NULL, 10) * 1024;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return bytes;
}

/* Let VmHWM begin at what is resident now. */
static void forget_high_water(void)
{
    const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

    CHECK(file >= 0 && write(file, "5", 1) == 1);
    if (file >= 0) {
        (void)close(file);
    }
}

/* ---- jobs ---- */

static void fill_mesh(tsri_job_options *o, int size)
{
    if (size == 4) {
        o->axes[0] = (tsr_mesh_axis){"shard", 2};
        o->axes[1] = (tsr_mesh_axis){"tp", 2};
        o->axis_count = 2;
    } else {
        o->axes[0] = (tsr_mesh_axis){"shard", size};
        o->axis_count = 1;
    }
}

static tsr_status write_batches(tsri_job *job)
{
    const size_t count = (size_t)(job->row_count * job->options.seq);
    int32_t *ids = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(count, sizeof(*ids), &ids));
    for (size_t i = 0; i < count; i++) {
        ids[i] = (int32_t)((i * 37 + (size_t)job->row_begin) % 256);
    }
    for (int micro = 0; micro < job->options.micro_batches; micro++) {
        TSR_TRY_GOTO(status, tsri_job_write_batch(job, micro, ids, ids), free_ids);
    }
free_ids:
    tsri_free(&ids);
    return status;
}

typedef struct planned_job {
    tsr_world *world, *dry_world;
    tsri_job *dry, *job;
    tsri_step_memory plan;
} planned_job;

static tsr_status open_planned(tsri_job_options *o, planned_job *p)
{
    const int size = tsr_world_size(p->world);

    o->dry_threads = tsri_cpu_default_threads(size);
    TSR_TRY(tsri_job_dry_run(o, tsr_world_rank(p->world), size, &p->dry_world, &p->dry));
    tsri_job_summarize(p->dry, &p->plan);
    TSR_TRY(tsri_job_open(p->world, o, &p->job));
    TSR_TRY(tsri_arena_adopt(tsri_comm_arena(p->job->comm), tsri_comm_arena(p->dry->comm)));
    return TSR_OK;
}

static void close_planned(planned_job *p)
{
    tsri_job_close(&p->job);
    tsri_job_close(&p->dry);
    if (p->dry_world != NULL) {
        tsr_world_close(&p->dry_world);
    }
    tsr_world_close(&p->world);
}

/* ---- cases ---- */

/* 47 million parameters, 180 MiB. While a rank materialises its part, neither what is resident nor
 * what it may allocate privately has room for the whole model. */
static void materialise_below_the_model(void)
{
    const int size = tsr_test_size();
    tsri_job_options o = {.model = {.arch = TSRI_ARCH_LLAMA,
                                    .layers = 4,
                                    .heads = 8,
                                    .kv_heads = 4,
                                    .dim = 1024,
                                    .ffn = 2816,
                                    .vocab = 256},
                          .axes = {{"shard", size}},
                          .axis_count = 1,
                          .preset = "fsdp",
                          .seed = 1,
                          .forward_only = true,
                          .batch = size,
                          .seq = 8};
    const size_t model = (size_t)tsri_model_param_count(&o.model) * sizeof(float);
    /* Rows divide or leave less than one per rank and parameter: within 1 % of a fair share. */
    const size_t piece = model / (size_t)size + model / 100;
    tsr_world *world = open_world();
    tsri_job *job = NULL;
    struct rlimit before;
    struct rlimit limit;

    REQUIRE(world != NULL);
    REQUIRE_EQ(getrlimit(RLIMIT_DATA, &before), 0);
    limit = before;
    limit.rlim_cur = status_bytes("VmData:") + 64 * MIB; /* a third of the model */
    REQUIRE_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
    forget_high_water();
    const size_t begin = status_bytes("VmHWM:");

    CHECK_OK(tsri_job_open(world, &o, &job));
    const size_t grown = status_bytes("VmHWM:") - begin;

    REQUIRE_EQ(setrlimit(RLIMIT_DATA, &before), 0);
    /* 24 MiB: communicators, control segments, the progress thread's stack. */
    CHECK(grown <= piece + 24 * MIB);
    CHECK(grown >= model / (size_t)size); /* it is there */
    CHECK(size < 3 || grown < model / 2);
    tsri_job_close(&job);
    tsr_world_close(&world);
}

static void a_step_takes_what_is_planned(void)
{
    tsri_job_options o = {.preset = "hsdp",
                          .seed = 1,
                          .batch = 8,
                          .seq = 128,
                          .micro_batches = 2,
                          .comm = {.record = true}};
    planned_job p = {.world = open_world()};
    tsri_step_result result;
    size_t now = 0;
    size_t peak = 0;
    size_t begin = 0;

    REQUIRE(p.world != NULL);
    CHECK_OK(tsri_model_preset("llama-tiny", &o.model));
    fill_mesh(&o, tsr_test_size());
    CHECK_OK(open_planned(&o, &p));
    if (p.job != NULL) {
        CHECK_OK(write_batches(p.job));
        forget_high_water();
        begin = status_bytes("VmHWM:");
        CHECK_OK(tsri_job_step(p.job, 0, 1e-3, 1.0, NULL, &result));
        const size_t grown = status_bytes("VmHWM:") - begin;

        tsr_comm_memory(p.job->comm, &now, &peak);
        CHECK_NEAR(peak, p.plan.total_bytes, 0.02 * (double)p.plan.total_bytes);
        /* The limit that the project sets itself. A sanitizer keeps memory of its own. */
        CHECK(is_sanitized || grown <= p.plan.total_bytes + p.plan.total_bytes / 10 + 32 * MIB);
        CHECK(grown >= p.plan.arena_bytes / 2); /* the step did use its memory */
    }
    close_planned(&p);
}

static void check_steps(tsri_job_options *o)
{
    planned_job p = {.world = open_world()};
    tsri_step_result result;
    tsri_arena_stats stats;
    int64_t live = 0;
    size_t first = 0;
    size_t now = 0;
    size_t peak = 0;

    REQUIRE(p.world != NULL);
    fill_mesh(o, tsr_test_size());
    CHECK_OK(open_planned(o, &p));
    for (int step = 0; p.job != NULL && step < 4; step++) {
        tsri_recorder_clear(tsri_comm_device(p.job->comm));
        CHECK_OK(write_batches(p.job));
        CHECK_OK(tsri_job_step(p.job, step, 1e-3, 1.0, NULL, &result));
        tsr_comm_memory(p.job->comm, &now, &peak);
        if (step == 0) {
            first = now;
            CHECK_NEAR(peak, p.plan.total_bytes, 0.02 * (double)p.plan.total_bytes);
        }
        /* On the host a group takes what it needs at its first use: those that gather what the
         * owners have updated are used from the second step on. */
        live = step <= 1 ? tsri_alloc_live() : live;
        CHECK_EQ(now, first);
        CHECK_EQ(peak, first);
        CHECK_EQ(tsri_alloc_live(), live);
    }
    if (p.job != NULL) {
        tsri_arena_get_stats(tsri_comm_arena(p.job->comm), &stats);
        CHECK_EQ(stats.departures, 0);
        CHECK_EQ(tsri_comm_device(p.job->comm)->bytes_kind[TSRI_MEM_GRAD], 0);
        CHECK_EQ(stats.kind_peak[TSRI_MEM_GRAD], p.plan.kind_most[TSRI_MEM_GRAD]);
    }
    close_planned(&p);
}

/* Of every preset, parameters and gradients in either pool, with sums over micro-batches and
 * without. */
static void nothing_is_allocated_after_the_first_step(void)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};

    for (int i = 0; i < 6; i++) {
        tsri_job_options o = {.preset = presets[i],
                              .seed = 1,
                              .batch = 5, /* uneven over data ranks */
                              .seq = 24,
                              .micro_batches = 1 + i % 2,
                              .fsdp = {.offload_grads = i % 3 == 2, .offload_params = i % 3 == 2},
                              .comm = {.record = true}};

        CHECK_OK(tsri_model_preset("llama-tiny", &o.model));
        check_steps(&o);
    }
}

/* ---- initial weights ---- */

/* Sum over the elements that this rank speaks for of a hash of (name, place, bits): the order and
 * the division of elements do not matter to it, their bits and places do. */
static tsr_status hash_param(const tsri_job *job, int index, uint64_t *sum)
{
    const tsr_param *param = job->params[index];
    const int64_t count = tsri_param_own_count(param);
    float *values = NULL;
    tsr_status status = TSR_OK;

    if (count <= 0 || !param->master.speaks) {
        return TSR_OK;
    }
    const tsri_block block = param->master.piece.block;
    TSR_TRY(tsri_alloc((size_t)count, sizeof(*values), &values));
    TSR_TRY_GOTO(status,
                 tsri_read(param->master.buffer, param->master.offset, values,
                           (size_t)count * sizeof(float),
                           tsri_comm_stream(job->comm, TSRI_STREAM_COMPUTE)),
                 free_values);
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = param->master.piece.begin + i;
        const int64_t row = block.first_row + at / block.cols;
        const int64_t col = block.first_col + at % block.cols;
        uint64_t words[3] = {tsri_hash_text(param->name), 0, 0};
        uint32_t bits = 0;

        memcpy(&bits, &values[i], sizeof(bits));
        words[1] = (uint64_t)(row * block.global_cols + col);
        words[2] = bits;
        *sum += tsri_hash(words, sizeof(words), 0);
    }
free_values:
    tsri_free(&values);
    return status;
}

static uint64_t hash_weights(tsri_job_options *o)
{
    tsr_world *world = open_world();
    tsri_job *job = NULL;
    uint64_t sums[8] = {0};
    uint64_t mine = 0;
    uint64_t all = 0;

    CHECK_OK(tsri_job_open(world, o, &job));
    for (int i = 0; job != NULL && i < job->param_count; i++) {
        CHECK_OK(hash_param(job, i, &mine));
    }
    CHECK_OK(tsri_team_all_gather(tsri_boot_job(), "a test", TSR_OK, &mine, sizeof(mine), sums));
    for (int r = 0; r < tsr_test_size(); r++) {
        all += sums[r];
    }
    tsri_job_close(&job);
    tsr_world_close(&world);
    return all;
}

typedef struct layout_case {
    int ranks, axis_count;
    tsr_mesh_axis axes[2];
    const char *preset;
} layout_case;

/* The same bits on every mesh and preset, and in every version: old seeds keep their meaning. */
static void weights_are_the_same_everywhere(void)
{
    static const layout_case cases[] = {
        {1, 1, {{"shard", 1}}, "fsdp"},
        {2, 1, {{"shard", 2}}, "fsdp"},
        {2, 1, {{"replicate", 2}}, "ddp"},
        {2, 1, {{"tp", 2}}, "fsdp"},
        {2, 1, {{"shard", 2}}, "zero1"},
        {3, 1, {{"shard", 3}}, "fsdp"},
        {3, 1, {{"shard", 3}}, "zero2"},
        {4, 2, {{"shard", 2}, {"tp", 2}}, "fsdp"},
        {4, 2, {{"replicate", 2}, {"shard", 2}}, "hsdp"},
        {4, 2, {{"replicate", 2}, {"shard", 2}}, "hfsdp"},
        {4, 2, {{"tp", 2}, {"shard", 2}}, "hsdp"},
    };
    static const tsri_model_spec models[] = {
        /* dim 24 and ffn 50 over 3 ranks leave remainders; 2 kv heads over 2. */
        {.arch = TSRI_ARCH_LLAMA,
         .layers = 2,
         .heads = 4,
         .kv_heads = 2,
         .dim = 24,
         .ffn = 50,
         .vocab = 258},
        {.arch = TSRI_ARCH_GPT2,
         .layers = 2,
         .heads = 2,
         .dim = 20,
         .ffn = 44,
         .vocab = 258,
         .positions = 16,
         .tied = true},
    };
    static const uint64_t expected[] = {0xbc53744e515a7b29u, 0x72f638c63cf1be85u};

    for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            const layout_case *c = &cases[i];
            tsri_job_options o = {.model = models[m],
                                  .axis_count = c->axis_count,
                                  .preset = c->preset,
                                  .seed = 42,
                                  .batch = 4,
                                  .seq = 8};

            if (c->ranks != tsr_test_size()) {
                continue;
            }
            memcpy(o.axes, c->axes, sizeof(c->axes));
            CHECK_EQ(hash_weights(&o), expected[m]);
        }
    }
}

/* The measure above sees what it should: another seed is another model. */
static void another_seed_is_another_model(void)
{
    tsri_job_options o = {.model = {.arch = TSRI_ARCH_LLAMA,
                                    .layers = 1,
                                    .heads = 2,
                                    .kv_heads = 2,
                                    .dim = 16,
                                    .ffn = 16,
                                    .vocab = 256},
                          .axes = {{"shard", tsr_test_size()}},
                          .axis_count = 1,
                          .batch = 4,
                          .seq = 8};
    uint64_t hashes[2];

    for (int i = 0; i < 2; i++) {
        o.seed = (uint64_t)i;
        hashes[i] = hash_weights(&o);
    }
    CHECK(hashes[0] != hashes[1]);
}

const tsr_test_case tsr_test_cases[] = {
    {"materialise_below_the_model", materialise_below_the_model},
    {"a_step_takes_what_is_planned", a_step_takes_what_is_planned},
    {"nothing_is_allocated_after_the_first_step", nothing_is_allocated_after_the_first_step},
    {"weights_are_the_same_everywhere", weights_are_the_same_everywhere},
    {"another_seed_is_another_model", another_seed_is_another_model},
    {NULL, NULL},
};
