/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_adapter.c
 * A low-rank adapter (Hu et al., "LoRA", 2021) around the q and v projections of a frozen GPT-2, on
 * tp x fsdp, with and without checkpointed blocks: as on one rank alone.
 *
 * Bound: f32 sums of some 100 terms in another order, 2^-24 * 100 relative, of values below 2; a
 * weight moves by lr = 0.1 times its gradient, below 1, in each of the steps.
 */
#include "tessera/tessera.h"

#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "support/tsr_test.h"

enum {
    LAYERS = 2,
    DIM = 16,
    RANK = 2,
    VOCAB = 32,
    BATCH = 4,
    SEQ = 4,
    STEPS = 3
};

static const double tolerance = STEPS * 2.0 * 100.0 * 0x1p-24;

/* ---- the adapter: y = base(x) + up(down(x)) ---- */

static tsr_status adapter_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                  tsr_dtensor **out)
{
    tsr_module *base = tsr_module_find(self, "base");
    tsr_dtensor *y = NULL;
    tsr_dtensor *h = NULL;

    TSR_TRY(tsr_module_call(base, tape, in, in_count, &y));
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "down"), NULL, &h));
    TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(self, "up"), NULL, &h));
    TSR_TRY(tsr_op_add(tape, y, h, out));
    return TSR_OK;
}

static tsr_status wrap(tsr_module *attn, const char *name)
{
    const tsr_param_spec down = {.shape = {RANK, DIM}, .ndim = 2, .init_std = 0.3};
    const tsr_param_spec up = {.shape = {DIM, RANK}, .ndim = 2, .init_std = 0.3};
    tsr_module *adapter = NULL;
    tsr_module *base = NULL;

    TSR_TRY(tsr_module_create(tsr_module_comm(attn), adapter_forward, NULL, NULL, &adapter));
    TSR_TRY(tsr_module_add_param(adapter, "down", &down, NULL));
    TSR_TRY(tsr_module_add_param(adapter, "up", &up, NULL));
    TSR_TRY(tsr_module_replace_child(attn, name, adapter, &base));
    TSR_TRY(tsr_module_add_child(adapter, "base", base));
    TSR_TRY(tsr_module_freeze(base, "**.base.*"));
    return TSR_OK;
}

/* ---- a training ---- */

typedef struct rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *model;
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor *ids, *labels;
} rig;

static tsr_status place(rig *r)
{
    static const tsr_tp_rule rules[] = {
        {"embed", {.kind = TSR_TP_VOCAB}},
        {"layers.*.attn.{q,v}.base", {.kind = TSR_TP_COLUMN}},
        {"layers.*.attn.{q,v}.up", {.kind = TSR_TP_COLUMN}},
        {"layers.*.attn.k", {.kind = TSR_TP_COLUMN}},
        {"layers.*.attn.o", {.kind = TSR_TP_ROW}},
        {"layers.*.mlp.up", {.kind = TSR_TP_COLUMN}},
        {"layers.*.mlp.down", {.kind = TSR_TP_ROW}},
    };

    if (tsr_mesh_axis_find(r->mesh, "tp") >= 0) {
        TSR_TRY(tsr_tp_apply(r->model, "tp", rules, 7));
    }
    return TSR_OK;
}

static tsr_status open_model(rig *r, bool again)
{
    const tsr_gpt2_config config = {.layers = LAYERS,
                                    .heads = 4,
                                    .dim = DIM,
                                    .ffn = 32,
                                    .vocab = VOCAB,
                                    .positions = SEQ,
                                    .init_std = 0.2};

    TSR_TRY(tsr_gpt2_create(r->comm, &config, &r->model));
    TSR_TRY(tsr_module_freeze(r->model, "**"));
    for (int i = 0; i < LAYERS; i++) {
        tsr_module *attn = tsr_module_find(tsr_gpt2_layer(r->model, i), "attn");

        TSR_TRY(wrap(attn, "q"));
        TSR_TRY(wrap(attn, "v"));
        tsr_module_set_checkpoint(tsr_gpt2_layer(r->model, i), again);
    }
    TSR_TRY(place(r));
    for (int i = 0; i < LAYERS; i++) {
        TSR_TRY(tsr_fully_shard(tsr_gpt2_layer(r->model, i), NULL));
    }
    TSR_TRY(tsr_fully_shard(r->model, NULL));
    TSR_TRY(tsr_module_materialize(r->model, 3));
    return TSR_OK;
}

static tsr_status open_batch(rig *r)
{
    int64_t shape[TSR_MAX_DIMS];
    int64_t first[TSR_MAX_DIMS];
    int32_t ids[BATCH * SEQ];
    int32_t labels[BATCH * SEQ];
    tsr_layout layout;

    TSR_TRY(tsr_layout_data(r->comm, (int64_t[]){BATCH, SEQ}, 2, &layout));
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(r->comm), shape, first));
    for (int64_t i = 0; i < shape[0] * SEQ; i++) {
        ids[i] = (int32_t)((first[0] * SEQ + i) * 29 % VOCAB);
        labels[i] = (int32_t)((first[0] * SEQ + i) * 13 % VOCAB);
    }
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "ids", &r->ids));
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "labels", &r->labels));
    TSR_TRY(tsr_dtensor_write(r->ids, ids));
    TSR_TRY(tsr_dtensor_write(r->labels, labels));
    return TSR_OK;
}

static tsr_status open_rig(tsr_world *world, const tsr_mesh_axis *axes, int count, bool again,
                           rig *r)
{
    const tsr_comm_options checked = {.record = true, .race_check = true};
    const tsr_optimizer_options sgd = {.kind = TSR_SGD};
    tsr_param *const *params = NULL;
    int param_count = 0;

    memset(r, 0, sizeof(*r));
    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, count, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(world, r->mesh, &checked, &r->comm));
    TSR_TRY(open_model(r, again));
    TSR_TRY(tsr_module_params(r->model, &params, &param_count));
    TSR_TRY(tsr_optimizer_create(r->comm, params, param_count, &sgd, &r->optimizer));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    TSR_TRY(open_batch(r));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_dtensor_release(&r->ids);
    tsr_dtensor_release(&r->labels);
    tsr_tape_destroy(&r->tape);
    tsr_optimizer_destroy(&r->optimizer);
    tsr_module_release(&r->model);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
}

typedef struct course {
    double loss[STEPS], norm[STEPS];
    double elements; /* trained */
} course;

static tsr_status train(rig *r, course *c)
{
    tsr_param *const *params = NULL;
    int count = 0;

    memset(c, 0, sizeof(*c));
    TSR_TRY(tsr_module_params(r->model, &params, &count));
    for (int i = 0; i < count; i++) {
        c->elements +=
            tsr_param_get_spec(params[i])->frozen ? 0.0 : (double)tsr_param_count(params[i]);
    }
    for (int step = 0; step < STEPS; step++) {
        tsr_dtensor *x = NULL;

        TSR_TRY(tsr_step_begin(r->tape, step, &r->labels, 1));
        TSR_TRY(tsr_tape_begin(r->tape, 0));
        TSR_TRY(tsr_module_call(r->model, r->tape, &r->ids, 1, &x));
        TSR_TRY(tsr_op_cross_entropy(r->tape, x, r->labels, &x));
        TSR_TRY(tsr_backward(r->tape, x));
        TSR_TRY(tsr_clip_grad_norm(r->optimizer, r->tape, 0.0));
        TSR_TRY(tsr_optimizer_step(r->optimizer, 0.1));
        TSR_TRY(tsr_grad_norm_read(r->optimizer, &c->norm[step], NULL));
        TSR_TRY(tsr_step_loss(r->tape, &c->loss[step]));
        TSR_TRY(tsr_step_end(r->tape));
    }
    return TSR_OK;
}

static void check_like_one_rank(bool again)
{
    const tsr_world_options cpu = {.backend = "cpu", .threads = 1};
    const int size = tsr_test_size();
    const tsr_mesh_axis axes[] = {{"shard", size > 2 ? size / 2 : 1}, {"tp", size > 2 ? 2 : size}};
    const tsr_mesh_axis one[] = {{"shard", 1}};
    tsr_world *world = NULL;
    tsr_world *alone = NULL;
    course split = {.elements = 0.0};
    course whole = {.elements = 0.0};
    rig r;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    REQUIRE_OK(tsri_world_open_alone(world, 1, &alone));
    CHECK_OK(open_rig(alone, one, 1, false, &r));
    CHECK_OK(train(&r, &whole));
    close_rig(&r);
    CHECK_OK(open_rig(world, axes, 2, again, &r));
    CHECK_STR(tsr_module_path(tsr_module_find(r.model, "layers.1.attn.q.base")),
              "layers.1.attn.q.base");
    CHECK_OK(train(&r, &split));
    close_rig(&r);
    tsr_world_close(&alone);
    tsr_world_close(&world);
    CHECK_EQ(whole.elements, LAYERS * 2 * 2 * RANK * DIM);
    for (int step = 0; step < STEPS; step++) {
        CHECK_NEAR(split.loss[step], whole.loss[step], tolerance * whole.loss[step]);
        CHECK_NEAR(split.norm[step], whole.norm[step], tolerance);
    }
    CHECK(whole.loss[STEPS - 1] < whole.loss[0]);
}

static void an_adapter_trains(void)
{
    check_like_one_rank(false);
}

static void in_checkpointed_blocks(void)
{
    check_like_one_rank(true);
}

const tsr_test_case tsr_test_cases[] = {
    {"an_adapter_trains", an_adapter_trains},
    {"in_checkpointed_blocks", in_checkpointed_blocks},
    {NULL, NULL},
};
