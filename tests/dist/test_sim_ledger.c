/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 4 8 */
/* labels: train */
/**
 * @file test_sim_ledger.c
 * What the dry run foresees is what the trainer does: the ledger of a real rank's first and second
 * step equals that of the same rank on a simulated world, entry by entry.
 *
 * Both ways in which a program begins are compared: its first step recorded and planned from, and a
 * plan adopted beforehand. Sequence numbers are counted from the step's beginning, and before it
 * from the end of the step before, because the real job also wrote its batch in between.
 */
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "job/job.h"
#include "support/tsr_test.h"

enum {
#if defined(__SANITIZE_ADDRESS__)
    FIRST_PRESET = 4, /* hsdp and hfsdp: their code is that of the others */
#else
    FIRST_PRESET = 0,
#endif
    STEPS = 2,
    VOCAB = 23,
    BATCH = 6,
    SEQ = 7
};

static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};

typedef struct variant {
    const char *name;
    int micro_batches;
    bool sequence, checkpoint, bf16, offload, gpt2, scale_loss;
} variant;

static const variant variants[] = {
    {.name = "plain", .micro_batches = 1},
    {.name = "three micro-batches", .micro_batches = 3},
    {.name = "sequence", .micro_batches = 1, .sequence = true},
    {.name = "checkpointing", .micro_batches = 1, .checkpoint = true},
    {.name = "bf16", .micro_batches = 1, .bf16 = true, .scale_loss = true},
    {.name = "gpt2, bf16, checkpointing, three",
     .micro_batches = 3,
     .checkpoint = true,
     .bf16 = true,
     .gpt2 = true},
    {.name = "offloaded", .micro_batches = 2, .offload = true},
};

static void fill_model(const variant *v, tsri_model_spec *out)
{
    if (v->gpt2) {
        *out = (tsri_model_spec){.arch = TSRI_ARCH_GPT2,
                                 .tied = true,
                                 .layers = 2,
                                 .heads = 4,
                                 .dim = 20,
                                 .ffn = 30,
                                 .vocab = VOCAB,
                                 .positions = SEQ,
                                 .dropout = 0.1};
        return;
    }
    *out = (tsri_model_spec){.layers = 2,
                             .dim = 20,
                             .heads = 4,
                             .kv_heads = 1,
                             .head_dim = 4,
                             .ffn = 26,
                             .vocab = VOCAB};
}

static tsri_job_options options_of(const variant *v, const char *preset, const int mesh[3])
{
    tsri_job_options o = {.axes = {{"replicate", mesh[0]}, {"shard", mesh[1]}, {"tp", mesh[2]}},
                          .axis_count = 3,
                          .preset = preset,
                          .batch = BATCH,
                          .seq = SEQ,
                          .micro_batches = v->micro_batches,
                          .sequence_parallel = v->sequence,
                          .recompute.every = v->checkpoint ? 1 : 0,
                          .scale_loss = v->scale_loss,
                          .dry_threads = tsri_cpu_default_threads(tsr_test_size()),
                          .seed = 3,
                          .comm = {.record = true}};

    fill_model(v, &o.model);
    o.fsdp.param_dtype = v->bf16 ? TSR_BF16 : TSR_F32;
    o.fsdp.reduce_dtype = v->bf16 ? TSR_BF16 : TSR_F32;
    o.fsdp.offload_params = v->offload;
    o.fsdp.offload_grads = v->offload;
    o.optim.offload = v->offload;
    return o;
}

/* ---- one rank, real and simulated ---- */

typedef struct side {
    tsr_world *world;
    tsri_job *job;
    uint64_t last[TSRI_STREAM_COUNT]; /* operations before the batch was written */
    uint64_t base[TSRI_STREAM_COUNT]; /* operations before the step */
} side;

static tsr_status write_batches(tsri_job *job)
{
    int32_t ids[BATCH * SEQ];

    for (int i = 0; i < BATCH * SEQ; i++) {
        ids[i] = (i * 5 + (int)job->row_begin) % VOCAB;
    }
    for (int micro = 0; micro < job->options.micro_batches; micro++) {
        TSR_TRY(tsri_job_write_batch(job, micro, ids, ids));
    }
    return TSR_OK;
}

static void note_streams(const side *s, uint64_t *enqueued)
{
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        enqueued[kind] = tsri_comm_stream(s->job->comm, (tsri_stream_kind)kind)->enqueued;
    }
}

static tsr_status run_step(side *s, int step, bool writes)
{
    tsri_step_result result;

    note_streams(s, s->last);
    if (writes) {
        TSR_TRY(write_batches(s->job));
    }
    note_streams(s, s->base);
    tsri_recorder_clear(tsri_comm_device(s->job->comm));
    TSR_TRY(tsri_job_step(s->job, step, 1e-3, 1.0, NULL, &result));
    return TSR_OK;
}

static void close_side(side *s)
{
    if (s->job != NULL) {
        tsri_job_close(&s->job);
    }
    if (s->world != NULL) {
        tsr_world_close(&s->world);
    }
}

/* ---- entry by entry ---- */

static bool texts_equal(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* The stream whose numbers an entry's seq is of; -1: it has none. */
static int counted_by(const tsri_entry *e)
{
    switch (e->kind) {
    case TSRI_ENTRY_KERNEL:
    case TSRI_ENTRY_COLLECTIVE:
    case TSRI_ENTRY_COPY:
    case TSRI_ENTRY_SYNC:
        return (int)e->stream;
    case TSRI_ENTRY_WAIT:
        return e->op;
    case TSRI_ENTRY_ALLOC:
    case TSRI_ENTRY_RELEASE:
    case TSRI_ENTRY_GROUP:
    default:
        return -1;
    }
}

/* From 1 within the step, from 0 downwards for what was before the batch. */
static int64_t number(const side *s, const tsri_entry *e)
{
    const int stream = counted_by(e);

    if (stream < 0) {
        return 0;
    }
    return e->seq > s->base[stream] ? (int64_t)(e->seq - s->base[stream])
                                    : tsri_min64(0, (int64_t)e->seq - (int64_t)s->last[stream]);
}

static bool entries_equal(const tsri_entry *a, const tsri_entry *b)
{
    return a->kind == b->kind && a->step == b->step && a->stream == b->stream && a->op == b->op &&
           texts_equal(a->label, b->label) && texts_equal(a->group, b->group) &&
           a->group_size == b->group_size && a->axis_mask == b->axis_mask && a->call == b->call &&
           a->bytes == b->bytes && a->sent_bytes == b->sent_bytes && a->flops == b->flops &&
           a->dtype == b->dtype;
}

static void print_entry(const char *whose, const side *s, const tsri_entry *e)
{
    (void)fprintf(stderr,
                  "  %s: kind %d, stream %s, op %d, label \"%s\", axes %s, number %lld, %zu bytes, "
                  "%zu sent, %.0f flops\n",
                  whose, (int)e->kind, tsri_stream_name(e->stream), e->op,
                  e->label != NULL ? e->label : "-", e->group != NULL ? e->group : "-",
                  (long long)number(s, e), e->bytes, e->sent_bytes, e->flops);
}

/* Returns whether the newest steps of both did the same. */
static bool steps_equal(const side *real, const side *sim)
{
    int counts[2] = {0};
    const tsri_entry *a = tsri_recorder_entries(tsri_comm_device(real->job->comm), &counts[0]);
    const tsri_entry *b = tsri_recorder_entries(tsri_comm_device(sim->job->comm), &counts[1]);

    for (int i = 0; i < counts[0] && i < counts[1]; i++) {
        if (!entries_equal(&a[i], &b[i]) || number(real, &a[i]) != number(sim, &b[i])) {
            (void)fprintf(stderr, "entry %d of %d and %d:\n", i, counts[0], counts[1]);
            print_entry("real", real, &a[i]);
            print_entry("sim", sim, &b[i]);
            return false;
        }
    }
    CHECK(counts[0] > 50);
    return counts[0] == counts[1];
}

/* ---- cases ---- */

static tsr_world *real_world(void)
{
    tsr_world *world = NULL;

    CHECK_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world));
    return world;
}

static tsr_status open_simulated(const tsri_job_options *o, side *out)
{
    const tsr_world_options sim = {.backend = "sim",
                                   .threads = o->dry_threads,
                                   .sim_rank = tsr_test_rank(),
                                   .sim_size = tsr_test_size()};

    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &out->world));
    TSR_TRY(tsri_job_open(out->world, o, &out->job));
    return TSR_OK;
}

static void check_steps(side *real, side *sim, const char *what, const tsri_job_options *o)
{
    for (int step = 0; step < STEPS; step++) {
        REQUIRE_OK(run_step(sim, step, false));
        REQUIRE_OK(run_step(real, step, true));
        const bool equal = steps_equal(real, sim);

        if (!equal) {
            (void)fprintf(stderr, "%s, %s, step %d\n", what, o->preset, step + 1);
        }
        CHECK(equal);
    }
}

/* The first step is recorded by both. */
static void check_recorded(const variant *v, const tsri_job_options *o)
{
    side real = {.world = real_world()};
    side sim = {.world = NULL};

    REQUIRE(real.world != NULL);
    REQUIRE_OK(open_simulated(o, &sim));
    REQUIRE_OK(tsri_job_open(real.world, o, &real.job));
    check_steps(&real, &sim, v->name, o);
    close_side(&sim);
    close_side(&real);
}

/* Both have the dry run's plan, as the program's trainer has it. */
static void check_planned(const variant *v, const tsri_job_options *o)
{
    side real = {.world = real_world()};
    side sim = {.world = NULL};
    side dry = {.world = NULL};

    REQUIRE(real.world != NULL);
    REQUIRE_OK(tsri_job_dry_run(o, tsr_test_rank(), tsr_test_size(), &dry.world, &dry.job));
    REQUIRE_OK(open_simulated(o, &sim));
    REQUIRE_OK(tsri_job_open(real.world, o, &real.job));
    REQUIRE_OK(tsri_arena_adopt(tsri_comm_arena(sim.job->comm), tsri_comm_arena(dry.job->comm)));
    REQUIRE_OK(tsri_arena_adopt(tsri_comm_arena(real.job->comm), tsri_comm_arena(dry.job->comm)));
    check_steps(&real, &sim, v->name, o);
    close_side(&sim);
    close_side(&dry);
    close_side(&real);
}

/* Every variant on every preset; the mesh that splits data, or the one with tensor parallelism. */
static void check_all(bool tp, bool planned)
{
    static const int meshes[][3] = {{1, 1, 1}, {2, 2, 1}, {1, 2, 2}, {2, 4, 1}, {2, 2, 2}};
    int at = 0;

    while (at < 5 && !(meshes[at][0] * meshes[at][1] * meshes[at][2] == tsr_test_size() &&
                       (meshes[at][2] > 1) == tp)) {
        at++;
    }
    for (size_t i = 0; at < 5 && i < sizeof(variants) / sizeof(variants[0]); i++) {
        const variant *v = &variants[i];

        for (int p = FIRST_PRESET; p < 6 && (tp || !v->sequence); p++) {
            const tsri_job_options o = options_of(v, presets[p], meshes[at]);

            (planned ? check_planned : check_recorded)(v, &o);
        }
    }
}

static void recorded_steps_over_data(void)
{
    check_all(false, false);
}

static void planned_steps_over_data(void)
{
    check_all(false, true);
}

static void recorded_steps_over_tp(void)
{
    check_all(true, false);
}

static void planned_steps_over_tp(void)
{
    check_all(true, true);
}

const tsr_test_case tsr_test_cases[] = {
    {"recorded_steps_over_data", recorded_steps_over_data},
    {"planned_steps_over_data", planned_steps_over_data},
    {"recorded_steps_over_tp", recorded_steps_over_tp},
    {"planned_steps_over_tp", planned_steps_over_tp},
    {NULL, NULL},
};
