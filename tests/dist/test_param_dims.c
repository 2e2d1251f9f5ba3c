/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_param_dims.c
 * A parameter of four dims, split along its first or second by levels or tensor parallelism, is
 * initialised, computed with and updated as on one rank.
 */
#include "base/base.h"

#include "tessera/tessera.h"

#include <math.h>

#include "comm/comm.h"
#include "support/tsr_test.h"

enum {
    BATCH = 8,
    DIM = 7, /* over 2 and 4 ranks: unlike pieces */
    MID = 5,
    INNER = 3 * 2,
    VOCAB = 11,
    COUNT = DIM * MID * INNER,
    STEPS = 3
};

static const tsr_world_options cpu = {.backend = "cpu"};
static const double lr = 1e-2;
static const double eps = 1e-4;
/* Sums of at most BATCH * COUNT terms of like size in f32, a few times over; as in parity tests. */
static const double tolerance = 2e-5;

/* ---- y[b, d] = x[b, d] * sum of weight[d, ...] ---- */

static tsr_status place(tsr_op_axis *axis)
{
    if (axis->in[1].kind == TSR_SHARD && axis->in[1].dim == 0) {
        axis->in[0] = tsr_shard(1);
        axis->out = tsr_shard(1);
    } else if (axis->in[1].kind == TSR_SHARD) { /* each rank has some terms of the sum */
        axis->in[0] = tsr_replicate();
        axis->out = tsr_partial();
    } else if (axis->in[0].kind == TSR_SHARD && axis->in[0].dim == 0) {
        axis->in[1] = tsr_replicate();
        axis->out = tsr_shard(0);
    } else {
        axis->in[0] = tsr_replicate();
        axis->in[1] = tsr_replicate();
    }
    return TSR_OK;
}

static int64_t terms_of(const tsr_op_piece *weight)
{
    return weight->shape[1] * weight->shape[2] * weight->shape[3];
}

static void forward(const tsr_op_work *work)
{
    const float *x = work->in[0].data;
    const float *weight = work->in[1].data;
    const int64_t dims = work->in[1].shape[0];
    const int64_t terms = terms_of(&work->in[1]);
    float *y = work->out.data;

    for (int64_t i = 0; i < work->out.count; i++) {
        double sum = 0.0;

        for (int64_t k = 0; k < terms; k++) {
            sum += (double)weight[i % dims * terms + k];
        }
        y[i] = (float)((double)x[i] * sum);
    }
}

static void backward(const tsr_op_work *work)
{
    const float *x = work->in[0].data;
    const float *weight = work->in[1].data;
    const float *dy = work->dout.data;
    const int64_t dims = work->in[1].shape[0];
    const int64_t terms = terms_of(&work->in[1]);
    float *dx = work->din[0].data;
    float *dweight = work->din[1].data;

    for (int64_t i = 0; dweight != NULL && i < work->in[1].count; i++) {
        dweight[i] = 0.0F;
    }
    for (int64_t i = 0; i < work->dout.count; i++) {
        double sum = 0.0;

        for (int64_t k = 0; k < terms; k++) {
            sum += (double)weight[i % dims * terms + k];
            if (dweight != NULL) {
                dweight[i % dims * terms + k] += dy[i] * x[i];
            }
        }
        if (dx != NULL) {
            dx[i] = (float)((double)dy[i] * sum);
        }
    }
}

static const tsr_custom_op scale_op = {
    .name = "scale", .place = place, .forward = forward, .backward = backward, .keep_in = 3};

static tsr_status scale_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    tsr_dtensor *inputs[] = {in[0], tsr_module_value(self, "weight")};

    (void)in_count;
    return tsr_op_custom(tape, &scale_op, inputs, 2, NULL, 0, out);
}

/* ---- a run ---- */

typedef struct layout {
    tsr_mesh_axis axes[2];
    const char *preset;
    tsr_tp_kind tp; /* of axis "tp"; 0: none */
    int dim;        /* along which levels split the weight */
} layout;

typedef struct result {
    float first[COUNT], last[COUNT];
    double loss[STEPS];
} result;

static tsr_status build(tsr_comm *comm, const layout *l, tsr_module **out)
{
    const tsr_param_spec spec = {.shape = {DIM, MID, 3, 2}, .ndim = 4, .init_std = 0.3};
    const tsr_linear_options head = {.in = DIM, .out = VOCAB, .init_std = 0.5};
    const tsr_tp_rule rules[] = {{"scale", {.kind = l->tp}}};
    const tsr_shard_dim dim = {"scale.weight", l->dim};
    tsr_fsdp_options options = {.shard_dims = &dim, .shard_dim_count = 1};
    tsr_module *scale = NULL;
    tsr_module *embed = NULL;
    tsr_module *linear = NULL;

    TSR_TRY(tsr_sequential_create(comm, out));
    TSR_TRY(tsr_embedding_create(comm, VOCAB, DIM, 0.5, &embed));
    TSR_TRY(tsr_module_add_child(*out, "embed", embed));
    TSR_TRY(tsr_module_create(comm, scale_forward, NULL, NULL, &scale));
    TSR_TRY(tsr_module_add_param(scale, "weight", &spec, NULL));
    TSR_TRY(tsr_module_add_child(*out, "scale", scale));
    TSR_TRY(tsr_linear_create(comm, &head, &linear));
    TSR_TRY(tsr_module_add_child(*out, "head", linear));
    if (l->tp != TSR_TP_DEFAULT) {
        TSR_TRY(tsr_tp_apply(*out, "tp", rules, 1));
    }
    TSR_TRY(tsr_fsdp_preset(comm, l->preset, &options));
    TSR_TRY(tsr_fully_shard(scale, &options));
    options.shard_dim_count = 0;
    TSR_TRY(tsr_fully_shard(*out, &options));
    return tsr_module_materialize(*out, 5);
}

static tsr_status gather(tsr_module *model, float *out)
{
    tsr_state *state = NULL;

    TSR_TRY(tsr_state_open(model, NULL, NULL, &state));
    TSR_TRY(tsr_state_gather(state, "scale.weight", 0, COUNT, out));
    tsr_state_close(&state);
    return TSR_OK;
}

static tsr_status write_batch(tsr_comm *comm, tsr_dtensor **ids, tsr_dtensor **labels)
{
    int32_t words[BATCH];
    int64_t count = 0;
    int64_t first = 0;
    const int64_t batch = BATCH;
    tsr_layout l;

    TSR_TRY(tsr_layout_data(comm, &batch, 1, &l));
    TSR_TRY(tsr_layout_local(&l, tsr_comm_rank(comm), &count, &first));
    TSR_TRY(tsr_dtensor_create(comm, &l, TSR_I32, "ids", ids));
    TSR_TRY(tsr_dtensor_create(comm, &l, TSR_I32, "labels", labels));
    for (int64_t i = 0; i < count; i++) {
        words[i] = (int32_t)((first + i) * 3 % VOCAB);
    }
    TSR_TRY(tsr_dtensor_write(*ids, words));
    return tsr_dtensor_write(*labels, words);
}

static tsr_status train(tsr_comm *comm, tsr_module *model, result *out)
{
    const tsr_optimizer_options adamw = {.eps = eps};
    tsr_param *const *params = NULL;
    tsr_optimizer *optimizer = NULL;
    tsr_tape *tape = NULL;
    tsr_dtensor *ids = NULL;
    tsr_dtensor *labels = NULL;
    tsr_dtensor *x = NULL;
    int count = 0;

    TSR_TRY(write_batch(comm, &ids, &labels));
    TSR_TRY(tsr_module_params(model, &params, &count));
    TSR_TRY(tsr_optimizer_create(comm, params, count, &adamw, &optimizer));
    TSR_TRY(tsr_tape_create(comm, &tape));
    for (int step = 0; step < STEPS; step++) {
        TSR_TRY(tsr_step_begin(tape, step, &labels, 1));
        TSR_TRY(tsr_tape_begin(tape, 0));
        TSR_TRY(tsr_module_call(model, tape, &ids, 1, &x));
        TSR_TRY(tsr_op_cross_entropy(tape, x, labels, &x));
        TSR_TRY(tsr_backward(tape, x));
        TSR_TRY(tsr_optimizer_step(optimizer, lr));
        TSR_TRY(tsr_step_loss(tape, &out->loss[step]));
        TSR_TRY(tsr_step_end(tape));
    }
    tsr_tape_destroy(&tape);
    tsr_optimizer_destroy(&optimizer);
    tsr_dtensor_release(&ids);
    tsr_dtensor_release(&labels);
    return TSR_OK;
}

static tsr_status run(tsr_world *world, const layout *l, result *out)
{
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;
    tsr_module *model = NULL;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), l->axes, 2, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(build(comm, l, &model));
    TSR_TRY(gather(model, out->first));
    TSR_TRY(train(comm, model, out));
    TSR_TRY(gather(model, out->last));
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

static void compare(const result *have, const result *want)
{
    double moved = 0.0;
    double worst = 0.0;
    int other = 0;

    for (int i = 0; i < COUNT; i++) {
        other += have->first[i] != want->first[i];
        worst = fmax(worst, fabs((double)have->last[i] - (double)want->last[i]));
        moved = fmax(moved, fabs((double)want->last[i] - (double)want->first[i]));
    }
    CHECK_EQ(other, 0);
    CHECK(moved > lr / 2); /* it is trained */
    CHECK_NEAR(worst, 0.0, STEPS * lr * tolerance / eps);
    for (int i = 0; i < STEPS; i++) {
        CHECK_NEAR(have->loss[i], want->loss[i], tolerance * want->loss[i]);
    }
}

static void four_dims_are_as_on_one_rank(void)
{
    static const layout one = {{{"replicate", 1}, {"shard", 1}}, "fsdp", TSR_TP_DEFAULT, 0};
    const int n = tsr_test_size();
    const int two = n > 1 ? 2 : 1;
    const layout layouts[] = {
        {{{"replicate", n / two}, {"shard", two}}, "fsdp", TSR_TP_DEFAULT, 0},
        {{{"replicate", n / two}, {"shard", two}}, "hfsdp", TSR_TP_DEFAULT, 1},
        {{{"shard", n}, {"tp", 1}}, "fsdp", TSR_TP_DEFAULT, 1},
        {{{"shard", n}, {"tp", 1}}, "zero1", TSR_TP_DEFAULT, 0},
        {{{"shard", n / two}, {"tp", two}}, "fsdp", TSR_TP_COLUMN, 0},
        {{{"shard", n / two}, {"tp", two}}, "fsdp", TSR_TP_ROW, 1},
        {{{"shard", n / two}, {"tp", two}}, "zero2", TSR_TP_ROW, 0},
    };
    static result want;
    tsr_world *world = NULL;
    tsr_world *alone = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    REQUIRE_OK(tsri_world_open_alone(world, 1, &alone));
    REQUIRE_OK(run(alone, &one, &want));
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        static result have;

        REQUIRE_OK(run(world, &layouts[i], &have));
        compare(&have, &want);
    }
    tsr_world_close(&alone);
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"four_dims_are_as_on_one_rank", four_dims_are_as_on_one_rank},
    {NULL, NULL},
};
