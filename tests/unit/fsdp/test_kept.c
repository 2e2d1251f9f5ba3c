/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_kept.c
 * What a block keeps for backward, as docs/memory.md says: the difference that eight blocks make.
 */
#include "base/base.h"

#include "tessera/tessera.h"

#include "job/job.h"
#include "support/tsr_test.h"

enum {
    FEW = 3,
    MANY = 11,
    TOKENS = 8 * 32,
    DIM = 64,
    HEADS = 4,
    HEAD_DIM = DIM / HEADS,
    KV_HEADS = 2,
    FFN = 176
};

/* ---- Llama's blocks ---- */

typedef struct setting {
    int tp;
    bool sequence_parallel, checkpoint;
} setting;

static size_t peak_of(int layers, const setting *s)
{
    const tsr_world_options sim = {.backend = "sim", .sim_size = s->tp};
    const tsri_job_options o = {.model = {.arch = TSRI_ARCH_LLAMA,
                                          .layers = layers,
                                          .dim = DIM,
                                          .heads = HEADS,
                                          .kv_heads = KV_HEADS,
                                          .ffn = FFN,
                                          .vocab = 64},
                                .axes = {{"shard", 1}, {"tp", s->tp}},
                                .axis_count = 2,
                                .sequence_parallel = s->sequence_parallel,
                                .recompute.every = s->checkpoint ? 1 : 0,
                                .batch = 8,
                                .seq = TOKENS / 8,
                                .seed = 1};
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsri_arena_stats stats = {.planned_bytes = 0};
    tsri_step_result result;

    CHECK_OK(tsr_world_open(NULL, NULL, &sim, &world));
    CHECK_OK(tsri_job_open(world, &o, &job));
    if (job != NULL) {
        CHECK_OK(tsri_job_step(job, 0, 1e-3, 1.0, NULL, &result));
        tsri_arena_get_stats(tsri_comm_arena(job->comm), &stats);
    }
    tsri_job_close(&job);
    tsr_world_close(&world);
    return stats.kind_peak[TSRI_MEM_ACTIVATION];
}

/* f32 elements of a block: the stream and both norms' results, twice each; queries, keys, values
 * and what attention makes of them; three of the MLP's width; and numbers per token. */
static int kept_elements(const setting *s)
{
    const int tp = s->tp;
    const int sequence = s->sequence_parallel ? tp : 1;

    if (s->checkpoint) {
        return TOKENS * DIM / sequence;
    }
    return TOKENS * (2 * DIM / sequence + 2 * DIM + (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM / tp +
                     3 * FFN / tp) +
           TOKENS * (2 / sequence + HEADS / tp);
}

static void blocks_keep_what_the_formula_says(void)
{
    static const setting settings[] = {{1, false, false}, {1, false, true}, {2, false, false},
                                       {2, false, true},  {2, true, false}, {2, true, true}};

    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        const size_t more = peak_of(MANY, &settings[i]) - peak_of(FEW, &settings[i]);

        CHECK_EQ(more, (MANY - FEW) * sizeof(float) * (size_t)kept_elements(&settings[i]));
    }
}

/* ---- a program's own loop over checkpointed parts ---- */

static tsr_status part_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    tsr_module *part = self;
    tsr_dtensor *h = NULL;

    (void)in_count;
    TSR_TRY(tsr_op_rmsnorm(tape, in[0], tsr_module_value(part, "gain"), 1e-5, &h));
    TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(part, "up"), NULL, &h));
    TSR_TRY(tsr_op_gelu(tape, h, &h));
    TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(part, "down"), NULL, &h));
    return tsr_op_add(tape, in[0], h, out);
}

static tsr_status loop_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    tsr_module *model = self;
    tsr_dtensor *x = in[0];
    char name[16];

    (void)in_count;
    TSR_TRY(tsr_module_call(tsr_module_find(model, "embed"), tape, &x, 1, &x));
    for (int i = 0;; i++) {
        (void)snprintf(name, sizeof(name), "part.%d", i);
        if (tsr_module_find(model, name) == NULL) {
            break;
        }
        TSR_TRY(tsr_module_call(tsr_module_find(model, name), tape, &x, 1, &x));
    }
    return tsr_module_call(tsr_module_find(model, "head"), tape, &x, 1, out);
}

static tsr_status add_part(tsr_comm *comm, tsr_module *model, int index)
{
    const tsr_param_spec gain = {.shape = {DIM}, .ndim = 1, .init_std = 1.0};
    const tsr_param_spec up = {.shape = {FFN, DIM}, .ndim = 2, .init_std = 0.1};
    const tsr_param_spec down = {.shape = {DIM, FFN}, .ndim = 2, .init_std = 0.1};
    tsr_module *part = NULL;
    char name[16];

    (void)snprintf(name, sizeof(name), "part.%d", index);
    TSR_TRY(tsr_module_create(comm, part_forward, NULL, NULL, &part));
    TSR_TRY(tsr_module_add_child(model, name, part));
    TSR_TRY(tsr_module_add_param(part, "gain", &gain, NULL));
    TSR_TRY(tsr_module_add_param(part, "up", &up, NULL));
    TSR_TRY(tsr_module_add_param(part, "down", &down, NULL));
    tsr_module_set_checkpoint(part, true);
    return TSR_OK;
}

static tsr_status build(tsr_comm *comm, int parts, tsr_module **out)
{
    static const tsr_tp_rule plan[] = {{"{embed,head}", {.kind = TSR_TP_VOCAB}},
                                       {"part.*.up", {.kind = TSR_TP_COLUMN}},
                                       {"part.*.down", {.kind = TSR_TP_ROW}}};
    const tsr_linear_options linear = {.in = DIM, .out = 64};
    tsr_module *embed = NULL;
    tsr_module *head = NULL;

    TSR_TRY(tsr_module_create(comm, loop_forward, NULL, NULL, out));
    TSR_TRY(tsr_embedding_create(comm, 64, DIM, 0.5, &embed));
    TSR_TRY(tsr_module_add_child(*out, "embed", embed));
    TSR_TRY(tsr_linear_create(comm, &linear, &head));
    TSR_TRY(tsr_module_add_child(*out, "head", head));
    for (int i = 0; i < parts; i++) {
        TSR_TRY(add_part(comm, *out, i));
    }
    TSR_TRY(tsr_tp_apply(*out, "tp", plan, 3));
    TSR_TRY(tsr_fully_shard(*out, NULL));
    return tsr_module_materialize(*out, 1);
}

static tsr_status run_step(tsr_comm *comm, tsr_module *model, tsr_tape *tape)
{
    const int64_t shape[] = {8, TOKENS / 8};
    tsr_dtensor *ids = NULL;
    tsr_dtensor *x = NULL;
    tsr_layout layout;

    TSR_TRY(tsr_layout_data(comm, shape, 2, &layout));
    TSR_TRY(tsr_dtensor_create(comm, &layout, TSR_I32, "ids", &ids));
    TSR_TRY(tsr_step_begin(tape, 0, &ids, 1));
    TSR_TRY(tsr_tape_begin(tape, 0));
    TSR_TRY(tsr_module_call(model, tape, &ids, 1, &x));
    TSR_TRY(tsr_op_cross_entropy(tape, x, ids, &x));
    TSR_TRY(tsr_backward(tape, x));
    TSR_TRY(tsr_step_end(tape));
    tsr_dtensor_release(&ids);
    return TSR_OK;
}

static size_t own_peak(int parts)
{
    const tsr_world_options sim = {.backend = "sim", .sim_size = 2};
    const tsr_mesh_axis axes[] = {{"shard", 1}, {"tp", 2}};
    tsr_world *world = NULL;
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;
    tsr_module *model = NULL;
    tsr_tape *tape = NULL;
    tsri_arena_stats stats;

    CHECK_OK(tsr_world_open(NULL, NULL, &sim, &world));
    CHECK_OK(tsr_mesh_create(2, axes, 2, NULL, &mesh));
    CHECK_OK(tsr_comm_open(world, mesh, NULL, &comm));
    CHECK_OK(build(comm, parts, &model));
    CHECK_OK(tsr_tape_create(comm, &tape));
    CHECK_OK(run_step(comm, model, tape));
    tsri_arena_get_stats(tsri_comm_arena(comm), &stats);
    tsr_tape_destroy(&tape);
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    tsr_world_close(&world);
    return stats.kind_peak[TSRI_MEM_ACTIVATION];
}

/* The stream is Partial, and each part's norm wants it whole: that copy dies with the part. */
static void copies_die_with_the_part(void)
{
    CHECK_EQ(own_peak(MANY) - own_peak(FEW), (MANY - FEW) * sizeof(float) * TOKENS * DIM);
}

const tsr_test_case tsr_test_cases[] = {
    {"blocks_keep_what_the_formula_says", blocks_keep_what_the_formula_says},
    {"copies_die_with_the_part", copies_die_with_the_part},
    {NULL, NULL},
};
