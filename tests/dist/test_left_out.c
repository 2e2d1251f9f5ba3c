/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 */
/**
 * @file test_left_out.c
 * Small programs at the edges of what ranks leave out: all that has a gradient, in modules that are
 * no units; a unit gathered by the program whose weight a checkpointed unit uses; an evaluation
 * that calls a checkpointed module alone.
 *
 * Modules are x + gelu(linear(x)) on [BATCH, SEQ, DIM]. Norms of the steps are compared with those
 * of one rank that has the whole batch, or of the same with a unit in place of a plain module.
 * Bound as in test_units_parity.c.
 */
#include "base/base.h"

#include "tessera/unit.h"
#include "tessera/world.h"

#include <math.h>
#include <string.h>

#include "comm/comm.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "support/tsr_test.h"

enum {
    DIM = 4,
    BATCH = 8,
    SEQ = 2,
    STEPS = 3
};

static const double tolerance = 2e-5;

typedef struct rig {
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *root, *a, *b;
    bool leaves_out; /* this rank */
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor *x, *labels[2];
} rig;

static tsr_status layer(tsr_module *module, tsr_tape *tape, tsr_dtensor **x)
{
    tsr_dtensor *y = NULL;

    TSR_TRY(tsr_op_linear(tape, *x, tsr_module_value(module, "weight"), NULL, &y));
    TSR_TRY(tsr_op_gelu(tape, y, &y));
    TSR_TRY(tsr_op_add(tape, *x, y, x));
    return TSR_OK;
}

static tsr_status leaf_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    (void)in_count;
    *out = in[0];
    TSR_TRY(layer(self, tape, out));
    return TSR_OK;
}

static tsr_status make(rig *r, tsr_forward_fn forward, tsr_module **out)
{
    const tsr_param_spec square = {.shape = {DIM, DIM}, .ndim = 2, .init_std = 0.4};

    TSR_TRY(tsr_module_create(r->comm, forward, NULL, NULL, out));
    TSR_TRY(tsr_module_add_param(*out, "weight", &square, NULL));
    return TSR_OK;
}

static tsr_status open_comm(tsr_world *world, rig *r)
{
    const tsr_mesh_axis axis = {"shard", tsr_world_size(world)};
    const tsr_comm_options checked = {.race_check = true};

    *r = (rig){0};
    TSR_TRY(tsr_mesh_create(tsr_world_size(world), &axis, 1, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(world, r->mesh, &checked, &r->comm));
    return TSR_OK;
}

static tsr_status open_data(rig *r)
{
    const int64_t shape[] = {BATCH, SEQ, DIM};
    const tsr_optimizer_options sgd = {.kind = TSR_SGD};
    float values[BATCH * SEQ * DIM];
    int32_t labels[BATCH * SEQ];
    tsr_param *const *params = NULL;
    tsr_layout layout;
    int count = 0;

    TSR_TRY(tsr_module_materialize(r->root, 1));
    TSR_TRY(tsr_module_params(r->root, &params, &count));
    TSR_TRY(tsr_optimizer_create(r->comm, params, count, &sgd, &r->optimizer));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    TSR_TRY(tsr_layout_data(r->comm, shape, 3, &layout));
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_F32, "x", &r->x));
    for (int64_t i = 0; i < r->x->local_count; i++) {
        values[i] = (float)sin(0.7 * (double)(r->x->local_offset[0] * SEQ * DIM + i));
    }
    TSR_TRY(tsr_dtensor_write(r->x, values));
    TSR_TRY(tsr_layout_data(r->comm, shape, 2, &layout));
    for (int k = 0; k < 2; k++) {
        TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "labels", &r->labels[k]));
        for (int64_t i = 0; i < r->labels[k]->local_count; i++) {
            const int64_t at = r->labels[k]->local_offset[0] * SEQ + i;

            labels[i] = (int32_t)((at * 3 + k) % DIM);
        }
        TSR_TRY(tsr_dtensor_write(r->labels[k], labels));
    }
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_dtensor_release(&r->x);
    tsr_dtensor_release(&r->labels[0]);
    tsr_dtensor_release(&r->labels[1]);
    tsr_tape_destroy(&r->tape);
    tsr_optimizer_destroy(&r->optimizer);
    tsr_module_release(&r->root);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
}

/* x through module, and its loss; trained or looked at alone. */
static tsr_status micro_batch(const rig *r, int index, tsr_module *module, bool trained)
{
    tsr_dtensor *y = NULL;

    TSR_TRY(tsr_module_call(module, r->tape, &r->x, 1, &y));
    TSR_TRY(tsr_op_cross_entropy(r->tape, y, r->labels[index], &y));
    if (trained) {
        TSR_TRY(tsr_backward(r->tape, y));
    }
    return TSR_OK;
}

static tsr_status update(const rig *r, double *norm)
{
    TSR_TRY(tsr_clip_grad_norm(r->optimizer, r->tape, 0.0));
    TSR_TRY(tsr_grad_norm_read(r->optimizer, norm, NULL));
    TSR_TRY(tsr_optimizer_step(r->optimizer, 0.1));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

static tsr_world *open_world(void)
{
    const tsr_world_options cpu = {.backend = "cpu", .timeout_s = 20.0};
    tsr_world *world = NULL;

    CHECK_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    return world;
}

/* ---- the programs: the same norms alone and with the others ---- */

/* The weight of b, which runs last, is used in a. */
static tsr_status uses_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    const rig *r = tsr_module_self(tsri_module_root(self));

    (void)in_count;
    *out = in[0];
    TSR_TRY(layer(r->b, tape, out));
    TSR_TRY(layer(self, tape, out));
    return TSR_OK;
}

static tsr_status both_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    const rig *r = self;

    TSR_TRY(tsr_module_call(r->a, tape, in, in_count, out));
    TSR_TRY(tsr_module_call(r->b, tape, out, 1, out));
    return TSR_OK;
}

static tsr_status gathered_before(tsr_world *world, bool checkpoint, double *norms)
{
    rig r;

    TSR_TRY(open_comm(world, &r));
    TSR_TRY(tsr_module_create(r.comm, both_forward, &r, NULL, &r.root));
    TSR_TRY(make(&r, uses_forward, &r.a));
    TSR_TRY(make(&r, leaf_forward, &r.b));
    TSR_TRY(tsr_module_add_child(r.root, "a", r.a));
    TSR_TRY(tsr_module_add_child(r.root, "b", r.b));
    tsr_module_set_checkpoint(r.a, checkpoint);
    TSR_TRY(tsr_fully_shard(r.a, NULL));
    TSR_TRY(tsr_fully_shard(r.b, NULL));
    TSR_TRY(tsr_fully_shard(r.root, NULL));
    TSR_TRY(open_data(&r));
    TSR_TRY(tsr_unit_unshard(r.b));
    for (int i = 0; i < STEPS; i++) {
        TSR_TRY(tsr_step_begin(r.tape, i, r.labels, 1));
        TSR_TRY(tsr_tape_begin(r.tape, 0));
        TSR_TRY(micro_batch(&r, 0, r.root, true));
        TSR_TRY(update(&r, &norms[i]));
    }
    close_rig(&r);
    return TSR_OK;
}

/* a, which is no unit and is checkpointed, holds b, which is one. */
static tsr_status holds_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    const rig *r = tsr_module_self(tsri_module_root(self));

    TSR_TRY(tsr_module_call(r->b, tape, in, in_count, out));
    TSR_TRY(layer(self, tape, out));
    return TSR_OK;
}

static tsr_status one_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                              tsr_dtensor **out)
{
    TSR_TRY(tsr_module_call(((const rig *)self)->a, tape, in, in_count, out));
    return TSR_OK;
}

static tsr_status evaluated_alone(tsr_world *world, bool checkpoint, double *norms)
{
    rig r;

    TSR_TRY(open_comm(world, &r));
    TSR_TRY(tsr_module_create(r.comm, one_forward, &r, NULL, &r.root));
    TSR_TRY(make(&r, holds_forward, &r.a));
    TSR_TRY(make(&r, leaf_forward, &r.b));
    TSR_TRY(tsr_module_add_child(r.root, "a", r.a));
    TSR_TRY(tsr_module_add_child(r.a, "b", r.b));
    tsr_module_set_checkpoint(r.a, checkpoint);
    TSR_TRY(tsr_fully_shard(r.b, NULL));
    TSR_TRY(tsr_fully_shard(r.root, NULL));
    TSR_TRY(open_data(&r));
    for (int i = 0; i < STEPS; i++) {
        TSR_TRY(tsr_step_begin(r.tape, i, r.labels, 2));
        TSR_TRY(tsr_tape_begin(r.tape, 0));
        TSR_TRY(micro_batch(&r, 0, r.root, true));
        TSR_TRY(tsr_tape_begin(r.tape, 1));
        TSR_TRY(micro_batch(&r, 1, r.a, false));
        TSR_TRY(micro_batch(&r, 1, r.root, false));
        TSR_TRY(update(&r, &norms[i]));
    }
    close_rig(&r);
    return TSR_OK;
}

typedef tsr_status (*program)(tsr_world *world, bool checkpoint, double *norms);

static void check_alike(program run)
{
    tsr_world *world = open_world();
    tsr_world *alone = NULL;
    double norms[3][STEPS] = {{0.0}};

    REQUIRE_OK(tsr_world_split(world, &(int){tsr_world_rank(world)}, 1, &alone));
    REQUIRE_OK(run(alone, false, norms[0]));
    REQUIRE_OK(run(world, false, norms[1]));
    REQUIRE_OK(run(world, true, norms[2]));
    for (int i = 0; i < STEPS; i++) {
        CHECK(norms[0][i] > 0.0);
        CHECK_NEAR(norms[1][i], norms[0][i], tolerance * norms[0][i]);
        CHECK_NEAR(norms[2][i], norms[0][i], tolerance * norms[0][i]);
    }
    tsr_world_close(&alone);
    tsr_world_close(&world);
}

static void unit_gathered_by_the_program(void)
{
    check_alike(gathered_before);
}

static void part_evaluated_alone(void)
{
    check_alike(evaluated_alone);
}

/* ---- nothing that has a gradient ---- */

static tsr_status optional_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                   tsr_dtensor **out)
{
    const rig *r = self;

    *out = in[0];
    if (!r->leaves_out) {
        TSR_TRY(tsr_module_call(r->a, tape, in, in_count, out));
    }
    TSR_TRY(tsr_op_scale(tape, *out, 2.0, out));
    return TSR_OK;
}

/* none: no rank runs a. */
static tsr_status left_out(tsr_world *world, bool unit, bool none, double *norms)
{
    tsr_status status = TSR_OK;
    rig r;

    TSR_TRY(open_comm(world, &r));
    r.leaves_out = none || tsr_world_rank(world) % 2 == 1;
    TSR_TRY(tsr_module_create(r.comm, optional_forward, &r, NULL, &r.root));
    TSR_TRY(make(&r, leaf_forward, &r.a));
    TSR_TRY(tsr_module_add_child(r.root, "a", r.a));
    if (unit) {
        TSR_TRY(tsr_fully_shard(r.a, NULL));
    }
    TSR_TRY(tsr_fully_shard(r.root, NULL));
    TSR_TRY(open_data(&r));
    for (int i = 0; i < STEPS && status == TSR_OK; i++) {
        TSR_TRY(tsr_step_begin(r.tape, i, r.labels, 1));
        TSR_TRY(tsr_tape_begin(r.tape, 0));
        status = micro_batch(&r, 0, r.root, true);
        if (status == TSR_OK) {
            TSR_TRY(update(&r, &norms[i]));
        }
    }
    if (none) {
        CHECK(strstr(tsr_error_message(), "from anything that has a gradient") != NULL);
    }
    close_rig(&r);
    return status;
}

static void no_gradient_on_a_rank(void)
{
    tsr_world *world = open_world();
    double norms[3][STEPS] = {{0.0}};

    /* Whether a is a unit makes no difference. */
    REQUIRE_OK(left_out(world, true, false, norms[0]));
    REQUIRE_OK(left_out(world, false, false, norms[1]));
    for (int i = 0; i < STEPS; i++) {
        CHECK(norms[0][i] > 0.0);
        CHECK_NEAR(norms[1][i], norms[0][i], tolerance * norms[0][i]);
    }
    CHECK(left_out(world, false, true, norms[2]) == TSR_ERR_STATE);
    tsr_error_clear();
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"unit_gathered_by_the_program", unit_gathered_by_the_program},
    {"part_evaluated_alone", part_evaluated_alone},
    {"no_gradient_on_a_rank", no_gradient_on_a_rank},
    {NULL, NULL}};
