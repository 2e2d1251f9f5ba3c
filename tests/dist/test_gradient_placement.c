/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/* hostile: 4 */
/* labels: parity */
/**
 * @file test_gradient_placement.c
 * A gradient counts once, however it arrives: whole on axes that carry data, whole in one
 * micro-batch and Partial in the next, or nowhere on a rank that passes over the unit.
 *
 * Each program runs on shard n and on shard n/2 x tp 2, and on a mesh whose ranks all compute the
 * same; loss and gradient norm of every step are compared, the later ones after updates.
 *
 * Bound: both sum the same f32 terms in other orders; relative to the largest that is some
 * 2^-24 * sqrt(terms) with hundreds of terms: 2^-24 * 64 < 4e-6, with room 2e-5.
 */
#include "base/base.h"

#include "tessera/custom_op.h"
#include "tessera/fsdp.h"
#include "tessera/unit.h"
#include "tessera/world.h"

#include <stdio.h>
#include <string.h>

#include "nn/nn.h"
#include "optim/optim.h"
#include "support/tsr_test.h"

enum {
    DIM = 10, /* also words */
    RANK = 3,
    BATCH = 8,
    SEQ = 4,
    STEPS = 3,
    MICRO = 2
};

static const double f32_tolerance = 2e-5;
static const double lr = 0.2;

typedef struct rig rig;

typedef struct program {
    const char *name;
    tsr_status (*forward)(rig *r, tsr_tape *tape, tsr_dtensor *h, tsr_dtensor **out);
    bool whole_ids, whole_labels; /* over the data axes as well */
    bool penalty;                 /* 0.5 |w|^2 is added to the loss of each micro-batch */
    bool moves;                   /* in odd micro-batches the norm's input is split over tp */
    bool norm_skips;              /* ranks of odd shard index pass over the unit "norm" */
    bool whole_odd;               /* odd micro-batches are whole on every rank */
    bool no_sync;
    bool ddp;
    tsr_dtype reduce_dtype;
} program;

struct rig {
    const program *p;
    bool single, skips;
    int micro;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *module, *norm;
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor *ids, *whole_ids, *labels[2 * MICRO];
};

/* ---- programs ---- */

static tsr_dtensor *value(const rig *r, const char *name)
{
    return tsr_module_value(r->module, name);
}

static tsr_status weight_through_gelu(rig *r, tsr_tape *tape, tsr_dtensor *h, tsr_dtensor **out)
{
    tsr_dtensor *weight = NULL;

    TSR_TRY(tsr_op_gelu(tape, value(r, "w"), &weight));
    TSR_TRY(tsr_op_linear(tape, h, weight, NULL, out));
    return TSR_OK;
}

static tsr_status low_rank(rig *r, tsr_tape *tape, tsr_dtensor *h, tsr_dtensor **out)
{
    tsr_dtensor *weight = NULL;

    TSR_TRY(tsr_op_linear(tape, value(r, "a"), value(r, "b"), NULL, &weight));
    TSR_TRY(tsr_op_add(tape, value(r, "w"), weight, &weight));
    TSR_TRY(tsr_op_linear(tape, h, weight, NULL, out));
    return TSR_OK;
}

/* One parameter in both ways within one backward. */
static tsr_status both_ways(rig *r, tsr_tape *tape, tsr_dtensor *h, tsr_dtensor **out)
{
    tsr_dtensor *weight = NULL;

    TSR_TRY(tsr_op_linear(tape, h, value(r, "w"), NULL, &h));
    TSR_TRY(tsr_op_gelu(tape, value(r, "w"), &weight));
    TSR_TRY(tsr_op_linear(tape, h, weight, NULL, out));
    return TSR_OK;
}

/* An operation that computes in one type, on parameters whose gradients are summed in another. */
static tsr_status gated(rig *r, tsr_tape *tape, tsr_dtensor *h, tsr_dtensor **out)
{
    tsr_dtensor *weight = NULL;

    TSR_TRY(tsr_op_silu_mul(tape, value(r, "w"), value(r, "w2"), &weight));
    TSR_TRY(tsr_op_linear(tape, h, weight, NULL, out));
    return TSR_OK;
}

static tsr_status plain(rig *r, tsr_tape *tape, tsr_dtensor *h, tsr_dtensor **out)
{
    TSR_TRY(tsr_op_linear(tape, h, value(r, "w"), NULL, out));
    return TSR_OK;
}

static tsr_status made_whole(rig *r, tsr_tape *tape, tsr_dtensor *h, tsr_dtensor **out)
{
    tsr_layout whole;

    TSR_TRY(tsr_op_linear(tape, h, value(r, "w"), NULL, &h));
    TSR_TRY(tsr_layout_init(r->mesh, tsr_dtensor_layout(h)->shape, 3, &whole));
    TSR_TRY(tsr_op_redistribute(tape, h, &whole, &h));
    TSR_TRY(tsr_op_linear(tape, h, value(r, "w2"), NULL, out));
    return TSR_OK;
}

static tsr_status split_over_tp(rig *r, tsr_tape *tape, tsr_dtensor **h)
{
    const int tp = tsr_mesh_axis_find(r->mesh, "tp");
    tsr_layout layout = *tsr_dtensor_layout(*h);

    if (tp >= 0) {
        layout.place[tp] = (tsr_placement){TSR_SHARD, 1};
        TSR_TRY(tsr_op_redistribute(tape, *h, &layout, h));
    }
    return TSR_OK;
}

static tsr_status norm_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    (void)in_count;
    TSR_TRY(tsr_op_rmsnorm(tape, in[0], tsr_module_value(self, "gain"), 1e-5, out));
    return TSR_OK;
}

static tsr_status normed(rig *r, tsr_tape *tape, tsr_dtensor *h, tsr_dtensor **out)
{
    if (r->p->norm_skips || (r->p->moves && r->micro % 2 == 1)) {
        TSR_TRY(split_over_tp(r, tape, &h));
    }
    if (!r->skips) {
        TSR_TRY(tsr_module_call(r->norm, tape, &h, 1, &h));
    }
    TSR_TRY(tsr_op_linear(tape, h, value(r, "w"), NULL, out));
    return TSR_OK;
}

static const program programs[] = {
    {"weight_through_gelu", .forward = weight_through_gelu},
    {"weight_through_gelu_ddp", .forward = weight_through_gelu, .ddp = true},
    {"low_rank", .forward = low_rank},
    {"both_ways", .forward = both_ways},
    {"both_ways_no_sync", .forward = both_ways, .no_sync = true},
    {"gated", .forward = gated},
    {"gated_half", .forward = gated, .reduce_dtype = TSR_BF16},
    {"whole_batch", .forward = plain, .whole_ids = true, .whole_labels = true},
    {"whole_batch_in_turn", .forward = plain, .whole_odd = true},
    {"whole_batch_in_turn_ddp", .forward = weight_through_gelu, .whole_odd = true, .ddp = true},
    {"made_whole", .forward = made_whole, .whole_labels = true},
    {"penalty", .forward = plain, .penalty = true},
    {"norm", .forward = normed},
    {"norm_moves", .forward = normed, .moves = true},
    {"norm_moves_ddp", .forward = normed, .moves = true, .ddp = true},
    {"norm_moves_no_sync", .forward = normed, .moves = true, .no_sync = true},
    {"norm_skips", .forward = normed, .norm_skips = true},
    {"norm_skips_ddp", .forward = normed, .norm_skips = true, .ddp = true},
};

/* ---- the penalty: an operation of the program's own on a parameter alone ---- */

static tsr_status square_shape(tsr_op_shapes *shapes)
{
    shapes->out.ndim = 0;
    return TSR_OK;
}

static tsr_status square_place(tsr_op_axis *axis)
{
    axis->in[0] = tsr_replicate();
    axis->out = tsr_replicate();
    return TSR_OK;
}

static void square_forward(const tsr_op_work *work)
{
    const float *x = work->in[0].data;
    double sum = 0.0;

    for (int64_t i = 0; i < work->in[0].count; i++) {
        sum += 0.5 * (double)x[i] * (double)x[i];
    }
    *(float *)work->out.data = (float)sum;
}

static void square_backward(const tsr_op_work *work)
{
    const float *x = work->in[0].data;
    float *dx = work->din[0].data;

    for (int64_t i = 0; i < work->din[0].count; i++) {
        dx[i] = *(const float *)work->dout.data * x[i];
    }
}

static const tsr_custom_op half_square = {.name = "half_square",
                                          .shape = square_shape,
                                          .place = square_place,
                                          .forward = square_forward,
                                          .backward = square_backward,
                                          .keep_in = 1};

/* ---- model and tensors ---- */

static tsr_status model_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    rig *r = self;
    tsr_dtensor *h = NULL;

    (void)in_count;
    TSR_TRY(tsr_op_embedding(tape, in[0], value(r, "embed"), &h));
    TSR_TRY(r->p->forward(r, tape, h, &h));
    if (r->p->penalty) {
        tsr_dtensor *loss = NULL;

        TSR_TRY(tsr_op_cross_entropy(tape, h, r->labels[r->micro], &loss));
        h = value(r, "w");
        TSR_TRY(tsr_op_custom(tape, &half_square, &h, 1, NULL, 0, &h));
        TSR_TRY(tsr_op_add(tape, loss, h, &h));
    }
    *out = h;
    return TSR_OK;
}

static tsr_status make_model(rig *r)
{
    const tsr_param_spec square = {.shape = {DIM, DIM}, .ndim = 2, .init_std = 0.6};
    const tsr_param_spec thin = {.shape = {DIM, RANK}, .ndim = 2, .init_std = 0.6};
    const tsr_param_spec gain = {.shape = {DIM}, .ndim = 1, .init_mean = 1.0, .init_std = 0.2};
    const tsr_level level = r->p->ddp ? TSR_LEVEL_REPLICATE : TSR_LEVEL_PARAMS;
    const tsr_fsdp_options options = {.levels = {{"shard", level}},
                                      .reduce_dtype = r->p->reduce_dtype};

    TSR_TRY(tsr_module_create(r->comm, model_forward, r, NULL, &r->module));
    TSR_TRY(tsr_module_add_param(r->module, "embed", &square, NULL));
    TSR_TRY(tsr_module_add_param(r->module, "w", &square, NULL));
    TSR_TRY(tsr_module_add_param(r->module, "w2", &square, NULL));
    TSR_TRY(tsr_module_add_param(r->module, "a", &thin, NULL));
    TSR_TRY(tsr_module_add_param(r->module, "b", &thin, NULL));
    TSR_TRY(tsr_module_create(r->comm, norm_forward, NULL, NULL, &r->norm));
    TSR_TRY(tsr_module_add_param(r->norm, "gain", &gain, NULL));
    TSR_TRY(tsr_module_add_child(r->module, "norm", r->norm));
    TSR_TRY(tsr_fully_shard(r->norm, r->single ? NULL : &options));
    TSR_TRY(tsr_fully_shard(r->module, r->single ? NULL : &options));
    TSR_TRY(tsr_module_materialize(r->module, 5));
    TSR_TRY(tsr_unit_set_gradient_sync(r->module, !r->p->no_sync, true));
    return TSR_OK;
}

static tsr_status open_tensors(rig *r)
{
    const int64_t shape[] = {BATCH, SEQ};
    tsr_layout split;
    tsr_layout whole;

    TSR_TRY(tsr_layout_data(r->comm, shape, 2, &split));
    TSR_TRY(tsr_layout_init(r->mesh, shape, 2, &whole));
    TSR_TRY(
        tsr_dtensor_create(r->comm, r->p->whole_ids ? &whole : &split, TSR_I32, "ids", &r->ids));
    TSR_TRY(tsr_dtensor_create(r->comm, &whole, TSR_I32, "ids", &r->whole_ids));
    for (int i = 0; i < 2 * MICRO; i++) {
        const bool is_whole = r->p->whole_labels || (r->p->whole_odd && i % 2 == 1);

        TSR_TRY(tsr_dtensor_create(r->comm, is_whole ? &whole : &split, TSR_I32, "labels",
                                   &r->labels[i]));
    }
    return TSR_OK;
}

static tsr_status open_rig(tsr_world *world, const program *p, bool single, bool tp, rig *r)
{
    const int n = tsr_world_size(world);
    const tsr_mesh_axis axes[] = {{"shard", tp ? n / 2 : n}, {"tp", 2}};
    const tsr_mesh_axis one[] = {{"copies", n}};
    const tsr_optimizer_options sgd = {.kind = TSR_SGD};
    tsr_param *const *params = NULL;
    int count = 0;

    *r = (rig){.p = p, .single = single};
    TSR_TRY(tsr_mesh_create(n, single ? one : axes, tp ? 2 : 1, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(world, r->mesh, NULL, &r->comm));
    if (single || tp) {
        TSR_TRY(tsri_comm_claim_axis(r->comm, single ? "copies" : "tp", "a test"));
    }
    TSR_TRY(make_model(r));
    TSR_TRY(tsr_module_params(r->module, &params, &count));
    TSR_TRY(tsr_optimizer_create(r->comm, params, count, &sgd, &r->optimizer));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    TSR_TRY(open_tensors(r));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_dtensor_release(&r->ids);
    tsr_dtensor_release(&r->whole_ids);
    for (int i = 0; i < 2 * MICRO; i++) {
        tsr_dtensor_release(&r->labels[i]);
    }
    tsr_tape_destroy(&r->tape);
    tsr_optimizer_destroy(&r->optimizer);
    tsr_module_release(&r->module);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
}

/* ---- steps ---- */

/* Of shards ways: rows that odd shard indices hold. */
static bool is_odd_row(int64_t row, int shards)
{
    return row / (BATCH / shards) % 2 == 1;
}

/* rows: 0 all; else the others' labels do not count: 1 of even, 2 of odd shard indices. */
static tsr_status write_rows(tsr_dtensor *tensor, int a, int b, int rows, int shards)
{
    const int64_t *offset = tensor->local_offset;
    int32_t values[BATCH * SEQ];

    for (int64_t i = 0; i < tensor->local_count; i++) {
        const int64_t row = offset[0] + i / tensor->local_shape[1];
        const int64_t at = row * SEQ + offset[1] + i % tensor->local_shape[1];
        const bool other = rows != 0 && is_odd_row(row, shards) != (rows == 2);

        values[i] = other ? TSR_IGNORE_INDEX : (int32_t)((at * a + b) % DIM);
    }
    TSR_TRY(tsr_dtensor_write(tensor, values));
    return TSR_OK;
}

static tsr_status micro_batch(rig *r, int index, int micro, int step)
{
    tsr_dtensor *ids = r->p->whole_odd && index % 2 == 1 ? r->whole_ids : r->ids;
    tsr_dtensor *out = NULL;

    TSR_TRY(write_rows(ids, 5, step + micro, 0, 1));
    TSR_TRY(tsr_tape_begin(r->tape, index));
    r->micro = index;
    TSR_TRY(tsr_module_call(r->module, r->tape, &ids, 1, &out));
    if (!r->p->penalty) {
        TSR_TRY(tsr_op_cross_entropy(r->tape, out, r->labels[index], &out));
    }
    TSR_TRY(tsr_backward(r->tape, out));
    return TSR_OK;
}

/* One rank of a program whose ranks differ runs its rows in two micro-batches in place of one. */
static tsr_status step(rig *r, int number, int shards, double *loss, double *norm)
{
    const bool skips = r->p->norm_skips && shards > 1;
    const int parts = r->single && skips ? 2 : 1;
    const int shard = tsr_mesh_axis_find(r->mesh, "shard");

    for (int i = 0; i < parts * MICRO; i++) {
        TSR_TRY(write_rows(r->labels[i], 7, 3 * number + 2 * (i / parts),
                           parts == 2 ? 1 + i % 2 : 0, shards));
    }
    TSR_TRY(tsr_step_begin(r->tape, number, r->labels, parts * MICRO));
    for (int i = 0; i < parts * MICRO; i++) {
        r->skips = skips && (r->single ? i % 2 == 1 : tsr_comm_coord(r->comm, shard) % 2 == 1);
        TSR_TRY(micro_batch(r, i, i / parts, number));
    }
    TSR_TRY(tsr_clip_grad_norm(r->optimizer, r->tape, 0.0));
    TSR_TRY(tsr_grad_norm_read(r->optimizer, norm, NULL));
    TSR_TRY(tsr_optimizer_step(r->optimizer, lr));
    TSR_TRY(tsr_step_loss(r->tape, loss));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

static tsr_status run(tsr_world *world, const program *p, bool single, bool tp, int shards,
                      double *loss, double *norm)
{
    rig r;

    TSR_TRY(open_rig(world, p, single, tp, &r));
    for (int i = 0; i < STEPS; i++) {
        TSR_TRY(step(&r, i, shards, &loss[i], &norm[i]));
    }
    if (!single) {
        TSR_TRY(tsr_params_digest(r.module, NULL));
    }
    close_rig(&r);
    return TSR_OK;
}

static void check_program(tsr_world *world, const program *p, bool tp)
{
    const int shards = tsr_world_size(world) / (tp ? 2 : 1);
    double loss[2][STEPS] = {{0.0}};
    double norm[2][STEPS] = {{0.0}};

    REQUIRE_OK(run(world, p, true, false, shards, loss[0], norm[0]));
    REQUIRE_OK(run(world, p, false, tp, shards, loss[1], norm[1]));
    for (int i = 0; i < STEPS; i++) {
        /* bf16 sums: 2^-9 for each rounding of a gradient, of which there are log2(ranks) + 2. */
        const double tolerance = p->reduce_dtype == TSR_BF16 ? 4.0 / 512.0 : f32_tolerance;

        CHECK(norm[0][i] > 0.0 && loss[0][i] > 0.0);
        CHECK_NEAR(loss[1][i], loss[0][i], tolerance * loss[0][i]);
        CHECK_NEAR(norm[1][i], norm[0][i], tolerance * norm[0][i]);
    }
}

static void every_program(void)
{
    const tsr_world_options cpu = {.backend = "cpu"};
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        for (int tp = 0; tp <= (tsr_world_size(world) > 1 ? 1 : 0); tp++) {
            if (tsr_test_rank() == 0) {
                (void)printf("# %s%s\n", programs[i].name, tp ? " with tp" : "");
            }
            check_program(world, &programs[i], tp);
        }
    }
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {{"every_program", every_program}, {NULL, NULL}};
