/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 4 */
/* hostile: 4 */
/* labels: parity */
/**
 * @file test_units_parity.c
 * What single units can be told changes no number: a stack of linear layers on replicate 2 x shard
 * 2 against the same on one rank, for each option and each odd forward.
 *
 * Compared are loss, gradient norms of p = 1, 2 and infinity, and the trained weights.
 *
 * Bound: both sum the same f32 terms in other orders; relative to the largest that is some
 * 2^-24 * sqrt(terms) with hundreds of terms: 2^-24 * 64 < 4e-6, with room 2e-5. A weight moves by
 * lr times its gradient, both below 1, so its error is below that of the largest weight.
 */
#include "fsdp/fsdp_priv.h"

#include "base/base.h"

#include "tessera/tp.h"
#include "tessera/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "optim/optim.h"
#include "support/tsr_test.h"

enum {
    LAYERS = 3,
    DIM = 9, /* also words: two ranks hold 5 and 4 rows */
    BATCH = 7,
    SEQ = 3,
    STEPS = 4,
    MICRO = 2,
    NONE = -1,
    ELEMENTS = DIM * DIM
};

static const double tolerance = 2e-5;
static const double lr = 0.1;

/* An odd forward, or what a unit is told. */
typedef struct variant {
    const char *name;
    tsr_fsdp_options layer, root;
    int twice;           /* layer that runs twice */
    int skip;            /* layer that rows from skip_from on do not run */
    bool tied;           /* layer 0's weight once more at the end */
    int forwards;        /* before one backward */
    const char *frozen;  /* pattern */
    bool no_sync, defer; /* gradient sync off; all-reduce in every second step alone */
    bool checkpoint;     /* activation checkpointing of layers */
    bool explicit_calls; /* unshard and reshard between steps */
    bool fails;          /* each step fails twice before it is made */
    bool tp;             /* layers split by rows over "tp" in place of "shard" */
} variant;

static const char *const ignored[] = {"layers.1.weight"};
static const tsr_shard_dim columns[] = {{"layers.*.weight", 1}};

static const variant variants[] = {
    {"plain", .twice = NONE, .skip = NONE},
    {"twice", .twice = 1, .skip = NONE},
    {"tied", .tied = true, .twice = NONE, .skip = NONE},
    {"tied_ddp", .layer = {.levels = {{"shard", TSR_LEVEL_REPLICATE}}}, .tied = true, .twice = NONE,
     .skip = NONE},
    {"two_forwards", .forwards = 2, .twice = NONE, .skip = NONE},
    {"two_forwards_tied", .forwards = 2, .tied = true, .twice = 2, .skip = NONE},
    {"frozen", .frozen = "layers.1.weight", .twice = NONE, .skip = NONE},
    {"frozen_in_unit", .frozen = "embed", .twice = NONE, .skip = NONE},
    {"frozen_before_checkpoint", .frozen = "embed", .checkpoint = true, .twice = NONE,
     .skip = NONE},
    {"ignored", .layer = {.ignored = ignored}, .root = {.levels = {{"shard", TSR_LEVEL_REPLICATE}}},
     .twice = NONE, .skip = NONE},
    {"columns", .layer = {.shard_dims = columns, .shard_dim_count = 1}, .twice = NONE,
     .skip = NONE},
    {"columns_zero",
     .layer = {.shard_dims = columns,
               .shard_dim_count = 1,
               .levels = {{"replicate", TSR_LEVEL_GRADS}}},
     .twice = NONE, .skip = NONE},
    {"groups", .layer = {.levels = {{"replicate", TSR_LEVEL_PARAMS}}, .reshard_group = 2},
     .twice = NONE, .skip = NONE},
    {"groups_twice", .layer = {.levels = {{"replicate", TSR_LEVEL_PARAMS}}, .reshard_group = 2},
     .twice = 1, .skip = NONE},
    {"levels_mixed",
     .layer = {.levels = {{"replicate", TSR_LEVEL_OPTIM}, {"shard", TSR_LEVEL_GRADS}}},
     .root = {.levels = {{"replicate", TSR_LEVEL_GRADS}, {"shard", TSR_LEVEL_OPTIM}}},
     .twice = NONE, .skip = NONE},
    {"post", .layer = {.backward_prefetch = TSR_PREFETCH_POST, .prefetch_depth = 3}, .twice = NONE,
     .skip = NONE},
    {"divisor", .layer = {.gradient_divisor = 4.0}, .root = {.gradient_divisor = 4.0},
     .twice = NONE, .skip = NONE},
    {"no_sync", .no_sync = true, .twice = NONE, .skip = NONE},
    {"defer", .defer = true, .twice = NONE, .skip = NONE},
    {"defer_whole", .layer = {.levels = {{"shard", TSR_LEVEL_REPLICATE}}},
     .root = {.levels = {{"shard", TSR_LEVEL_OPTIM}}}, .defer = true, .twice = NONE, .skip = NONE},
    {"defer_offload", .layer = {.offload_grads = true}, .root = {.offload_grads = true},
     .defer = true, .twice = NONE, .skip = NONE},
    {"defer_tied", .defer = true, .tied = true, .twice = NONE, .skip = NONE},
    {"fails", .fails = true, .twice = 1, .skip = NONE},
    {"fails_whole", .layer = {.levels = {{"shard", TSR_LEVEL_REPLICATE}}},
     .root = {.levels = {{"shard", TSR_LEVEL_REPLICATE}}}, .fails = true, .twice = NONE,
     .skip = NONE},
    {"fails_offload", .layer = {.offload_grads = true}, .root = {.offload_grads = true},
     .fails = true, .twice = NONE, .skip = NONE},
    {"defer_fails", .defer = true, .fails = true, .twice = NONE, .skip = NONE},
    {"defer_fails_whole", .layer = {.levels = {{"shard", TSR_LEVEL_REPLICATE}}},
     .root = {.levels = {{"shard", TSR_LEVEL_REPLICATE}}}, .defer = true, .fails = true,
     .twice = NONE, .skip = NONE},
    {"checkpoint", .checkpoint = true, .twice = 1, .skip = NONE},
    {"explicit", .explicit_calls = true, .twice = NONE, .skip = NONE},
    {"skip_first", .twice = NONE, .skip = 0},
    {"skip_middle", .twice = NONE, .skip = 1},
    {"skip_last", .twice = NONE, .skip = 2},
};

typedef struct rig {
    const variant *v;
    bool single;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *module, *layer[LAYERS];
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor *ids, *labels[2 * MICRO];
    int64_t row_begin, row_count;
    bool skips;                           /* in the forward under way */
    float deferred[LAYERS + 1][ELEMENTS]; /* of one rank: gradients of the step before */
} rig;

/* ---- the model ---- */

static tsr_status layer_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "weight"), NULL, out));
    TSR_TRY(tsr_op_gelu(tape, *out, out));
    return TSR_OK;
}

static tsr_status stack_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    rig *r = self;
    tsr_dtensor *h = NULL;

    (void)in_count;
    TSR_TRY(tsr_op_embedding(tape, in[0], tsr_module_value(r->module, "embed"), &h));
    for (int i = 0; i < LAYERS; i++) {
        for (int times = r->skips && i == r->v->skip ? 0
                         : i == r->v->twice          ? 2
                                                     : 1;
             times > 0; times--) {
            TSR_TRY(tsr_module_call(r->layer[i], tape, &h, 1, &h));
        }
    }
    if (r->v->tied) {
        TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(r->layer[0], "weight"), NULL, &h));
    }
    *out = h;
    return TSR_OK;
}

static tsr_status make_model(rig *r)
{
    const tsr_param_spec square = {.shape = {DIM, DIM}, .ndim = 2, .init_std = 0.6};

    TSR_TRY(tsr_module_create(r->comm, stack_forward, r, NULL, &r->module));
    TSR_TRY(tsr_module_add_param(r->module, "embed", &square, NULL));
    for (int i = 0; i < LAYERS; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "layers.%d", i);
        TSR_TRY(tsr_module_create(r->comm, layer_forward, NULL, NULL, &r->layer[i]));
        TSR_TRY(tsr_module_add_param(r->layer[i], "weight", &square, NULL));
        TSR_TRY(tsr_module_add_child(r->module, name, r->layer[i]));
        tsr_module_set_checkpoint(r->layer[i], r->v->checkpoint);
    }
    if (r->v->frozen != NULL) {
        TSR_TRY(tsr_module_freeze(r->module, r->v->frozen));
    }
    return TSR_OK;
}

static tsr_status make_units(rig *r)
{
    static const tsr_fsdp_options plain = {0};

    for (int i = 0; i < LAYERS; i++) {
        tsr_fsdp_options o = r->single ? plain : r->v->layer;

        o.ignored_count = o.ignored != NULL && i == 1 ? 1 : 0;
        TSR_TRY(tsr_fully_shard(r->layer[i], &o));
    }
    TSR_TRY(tsr_fully_shard(r->module, r->single ? &plain : &r->v->root));
    TSR_TRY(tsr_module_materialize(r->module, 3));
    return TSR_OK;
}

static tsr_status open_tensors(rig *r)
{
    const int64_t shape[] = {BATCH, SEQ};
    int64_t local[TSR_MAX_DIMS];
    int64_t offset[TSR_MAX_DIMS];
    tsr_layout layout;

    TSR_TRY(tsr_layout_data(r->comm, shape, 2, &layout));
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(r->comm), local, offset));
    r->row_begin = offset[0];
    r->row_count = local[0];
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "ids", &r->ids));
    for (int i = 0; i < 2 * MICRO; i++) {
        TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "labels", &r->labels[i]));
    }
    return TSR_OK;
}

static tsr_status open_rig(tsr_world *world, const variant *v, bool single, rig *r)
{
    const tsr_mesh_axis axes[] = {{"replicate", 2}, {v->tp ? "tp" : "shard", 2}};
    const tsr_mesh_axis one[] = {{"copies", 4}};
    const tsr_tp_rule rows = {"layers.*", {.kind = TSR_TP_ROW}};
    const tsr_optimizer_options sgd = {.kind = TSR_SGD};
    tsr_param *const *params = NULL;
    int count = 0;

    *r = (rig){.v = v, .single = single};
    TSR_TRY(tsr_mesh_create(4, single ? one : axes, single ? 1 : 2, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(world, r->mesh, NULL, &r->comm));
    if (single) {
        TSR_TRY(tsri_comm_claim_axis(r->comm, "copies", "one rank"));
    }
    TSR_TRY(make_model(r));
    if (v->tp) {
        TSR_TRY(tsr_tp_apply(r->module, "tp", &rows, 1));
    }
    TSR_TRY(make_units(r));
    TSR_TRY(tsr_module_params(r->module, &params, &count));
    TSR_TRY(tsr_optimizer_create(r->comm, params, count, &sgd, &r->optimizer));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    TSR_TRY(open_tensors(r));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_dtensor_release(&r->ids);
    for (int i = 0; i < 2 * MICRO; i++) {
        tsr_dtensor_release(&r->labels[i]);
    }
    tsr_tape_destroy(&r->tape);
    tsr_optimizer_destroy(&r->optimizer);
    tsr_module_release(&r->module);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
}

/* ---- a step ---- */

/* Rows of the ranks at shard coordinate 1, whose forward skips a layer. */
static bool row_skips(const variant *v, int64_t row)
{
    const int64_t each = tsri_ceil_div(BATCH, 4);

    return v->skip != NONE && row / each % 2 == 1;
}

/* Labels of micro-batch micro; on one rank of a variant that skips, micro-batches come in pairs:
 * the rows that run every layer, and those that do not. */
static tsr_status write_labels(rig *r, int step, int micro, bool pairs, bool skipping,
                               tsr_dtensor *labels)
{
    int32_t values[BATCH * SEQ];

    for (int64_t i = 0; i < r->row_count * SEQ; i++) {
        const int64_t at = r->row_begin * SEQ + i;
        const bool other = pairs && row_skips(r->v, at / SEQ) != skipping;

        values[i] = (at + step) % 5 == 0 || other
                        ? TSR_IGNORE_INDEX
                        : (int32_t)((at * 7 + step * 3 + micro * 2) % DIM);
    }
    TSR_TRY(tsr_dtensor_write(labels, values));
    return TSR_OK;
}

static tsr_status micro_batch(rig *r, int index, int micro, int step)
{
    int32_t ids[BATCH * SEQ];
    tsr_dtensor *sum = NULL;

    for (int64_t i = 0; i < r->row_count * SEQ; i++) {
        ids[i] = (int32_t)(((r->row_begin * SEQ + i) * 5 + step + micro) % DIM);
    }
    TSR_TRY(tsr_dtensor_write(r->ids, ids));
    TSR_TRY(tsr_tape_begin(r->tape, index));
    for (int i = 0; i < (r->v->forwards > 0 ? r->v->forwards : 1); i++) {
        tsr_dtensor *logits = NULL;
        tsr_dtensor *loss = NULL;

        TSR_TRY(tsr_module_call(r->module, r->tape, &r->ids, 1, &logits));
        TSR_TRY(tsr_op_cross_entropy(r->tape, logits, r->labels[index], &loss));
        if (sum == NULL) {
            sum = loss;
        } else {
            TSR_TRY(tsr_op_add(r->tape, sum, loss, &sum));
        }
    }
    TSR_TRY(tsr_backward(r->tape, sum));
    return TSR_OK;
}

static tsr_status forward_and_backward(rig *r, int step)
{
    const bool pairs = r->single && r->v->skip != NONE;
    const int parts = pairs ? 2 : 1;

    for (int i = 0; i < parts * MICRO; i++) {
        TSR_TRY(write_labels(r, step, i / parts, pairs, i % parts == 1, r->labels[i]));
    }
    TSR_TRY(tsr_step_begin(r->tape, step, r->labels, parts * MICRO));
    for (int i = 0; i < parts * MICRO; i++) {
        r->skips = pairs ? i % parts == 1 : !r->single && row_skips(r->v, r->row_begin);
        TSR_TRY(micro_batch(r, i, i / parts, step));
    }
    return TSR_OK;
}

static tsr_status fail(void *context, tsr_tape *tape)
{
    (void)context;
    (void)tape;
    return TSR_RAISE(TSR_ERR_INVALID, "as asked for");
}

/* The step as far as the middle of its second micro-batch: given up after its forward, or after the
 * last reduction of its backward. */
static tsr_status fail_step(rig *r, int step, bool in_backward)
{
    tsr_dtensor *logits = NULL;
    tsr_dtensor *loss = NULL;

    for (int i = 0; i < MICRO; i++) {
        TSR_TRY(write_labels(r, step, i, false, false, r->labels[i]));
    }
    TSR_TRY(tsr_step_begin(r->tape, step, r->labels, MICRO));
    TSR_TRY(micro_batch(r, 0, 0, step));
    TSR_TRY(tsr_tape_begin(r->tape, 1));
    TSR_TRY(tsri_tape_marker(r->tape, fail, NULL));
    TSR_TRY(tsr_module_call(r->module, r->tape, &r->ids, 1, &logits));
    if (in_backward) {
        TSR_TRY(tsr_op_cross_entropy(r->tape, logits, r->labels[1], &loss));
        CHECK_STATUS(TSR_ERR_INVALID, tsr_backward(r->tape, loss));
    }
    tsri_step_fail(r->tape);
    CHECK_OK(tsr_step_end(r->tape));
    tsr_error_clear();
    return TSR_OK;
}

typedef struct outcome {
    double loss[STEPS], norm[STEPS][3];
    float weights[LAYERS + 1][ELEMENTS]; /* of one rank: whole */
} outcome;

/* One rank adds up by hand the gradients of two steps. */
static tsr_status add_by_hand(rig *r, bool deferred)
{
    tsr_stream *stream = tsri_comm_stream(r->comm, TSRI_STREAM_COMPUTE);
    tsr_param *const *params = NULL;
    float grad[ELEMENTS];
    int count = 0;

    TSR_TRY(tsr_module_params(r->module, &params, &count));
    for (int i = 0; i < count; i++) {
        const tsri_rest *rest = NULL;

        TSR_TRY(tsri_param_get_grad(params[i], &rest));
        TSR_TRY(tsri_rest_read(rest, 0, ELEMENTS, grad, stream));
        for (int e = 0; e < ELEMENTS; e++) {
            grad[e] += deferred ? 0.0F : r->deferred[i][e];
            r->deferred[i][e] = grad[e];
        }
        TSR_TRY(tsri_rest_write(rest, 0, ELEMENTS, grad, stream));
    }
    return TSR_OK;
}

static double divisor(const variant *v)
{
    return v->root.gradient_divisor > 0.0 ? v->root.gradient_divisor : 1.0;
}

static tsr_status step(rig *r, int number, outcome *out)
{
    static const double powers[] = {2.0, 1.0, (double)INFINITY};
    const bool deferred = r->v->defer && number % 2 == 0;
    /* One rank divides by the learning rate. */
    const double rate = r->single ? lr / divisor(r->v) : lr;

    TSR_TRY(tsr_unit_set_all_reduce(r->module, r->single || !deferred, true));
    if (r->v->fails && !r->single) {
        /* Where gradients are put off, what such a step has added counts. */
        if (!r->v->defer) {
            TSR_TRY(fail_step(r, number, false));
        }
        TSR_TRY(fail_step(r, number, true));
    }
    TSR_TRY(forward_and_backward(r, number));
    if (r->single && r->v->defer) {
        TSR_TRY(add_by_hand(r, deferred));
    }
    if (!deferred) {
        for (int k = 0; k < 3; k++) {
            const tsr_clip_options clip = {.p = powers[k], .nonfinite = TSR_NONFINITE_ERROR};

            TSR_TRY(tsr_clip_grad_norm_with(r->optimizer, r->tape, &clip));
            TSR_TRY(tsr_grad_norm_read(r->optimizer, &out->norm[number][k], NULL));
            out->norm[number][k] *= r->single ? 1.0 : divisor(r->v);
        }
        TSR_TRY(tsr_optimizer_step(r->optimizer, rate));
    }
    TSR_TRY(tsr_step_loss(r->tape, &out->loss[number]));
    TSR_TRY(tsr_step_end(r->tape));
    if (r->v->explicit_calls && !r->single) {
        TSR_TRY(tsr_unit_unshard(r->layer[number % LAYERS]));
        TSR_TRY(tsr_unit_unshard(r->layer[(number + 1) % LAYERS]));
        TSR_TRY(tsr_unit_reshard(r->layer[number % LAYERS]));
    }
    return TSR_OK;
}

static tsr_status read_own(const rig *r, const tsr_param *p, float *out)
{
    TSR_TRY(tsri_read(p->master.buffer, p->master.offset, out,
                      (size_t)tsri_param_own_count(p) * sizeof(float),
                      tsri_comm_stream(r->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

static tsr_status run(tsr_world *world, const variant *v, bool single, outcome *out,
                      const outcome *want)
{
    tsr_param *const *params = NULL;
    int count = 0;
    rig r;

    TSR_TRY(open_rig(world, v, single, &r));
    TSR_TRY(tsr_unit_set_gradient_sync(r.module, !v->no_sync, true));
    for (int i = 0; i < STEPS; i++) {
        TSR_TRY(step(&r, i, out));
    }
    TSR_TRY(tsr_module_params(r.module, &params, &count));
    for (int i = 0; i < count; i++) {
        const tsr_param *p = params[i];
        float own[ELEMENTS];

        TSR_TRY(read_own(&r, p, single ? out->weights[i] : own));
        const tsri_block b = p->master.piece.block;
        for (int64_t e = p->master.piece.begin; !single && e < p->master.piece.end; e++) {
            const int64_t at = (b.first_row + e / b.cols) * DIM + b.first_col + e % b.cols;

            CHECK_NEAR(own[e - p->master.piece.begin], want->weights[i][at], tolerance * 2.0);
        }
    }
    if (!single) {
        TSR_TRY(tsr_params_digest(r.module, NULL));
    }
    close_rig(&r);
    return TSR_OK;
}

static void check_variant(tsr_world *world, const variant *v)
{
    static outcome want;
    static outcome have;

    memset(&want, 0, sizeof(want));
    memset(&have, 0, sizeof(have));
    REQUIRE_OK(run(world, v, true, &want, NULL));
    REQUIRE_OK(run(world, v, false, &have, &want));
    for (int i = 0; i < STEPS; i++) {
        CHECK(want.loss[i] > 0.0);
        CHECK_NEAR(have.loss[i], want.loss[i], tolerance * want.loss[i]);
        for (int k = 0; k < 3; k++) {
            CHECK(want.norm[i][k] > 0.0 || (v->defer && i % 2 == 0));
            CHECK_NEAR(have.norm[i][k], want.norm[i][k], tolerance * want.norm[i][k]);
        }
    }
    CHECK(want.loss[STEPS - 1] < want.loss[1] || v->skip != NONE);
}

static void every_variant(void)
{
    const tsr_world_options cpu = {.backend = "cpu"};
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        if (tsr_test_rank() == 0) {
            (void)printf("# %s\n", variants[i].name);
        }
        check_variant(world, &variants[i]);
    }
    tsr_world_close(&world);
}

/* A replica that has drifted is found, by name and rank, on every rank. */
static void digest_finds_the_odd_one(void)
{
    const tsr_world_options cpu = {.backend = "cpu"};
    tsr_world *world = NULL;
    uint64_t before = 0;
    const tsr_param *p = NULL;
    const float odd = 42.0F;
    rig r;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    REQUIRE_OK(open_rig(world, &variants[0], false, &r));
    CHECK_OK(tsr_params_digest(r.module, &before));
    CHECK(before != 0);
    p = tsr_module_value(r.layer[1], "weight")->param;
    if (tsr_test_rank() == 3) {
        CHECK_OK(tsri_write(p->master.buffer, p->master.offset, &odd, sizeof(odd),
                            tsri_comm_stream(r.comm, TSRI_STREAM_COMPUTE)));
    }
    CHECK_EQ(tsr_params_digest(r.module, NULL), TSR_ERR_DISAGREE);
    CHECK(strstr(tsr_error_message(), "layers.1.weight") != NULL);
    CHECK(strstr(tsr_error_message(), "rank 3 holds other bytes than rank 1") != NULL);
    tsr_error_clear();
    close_rig(&r);
    tsr_world_close(&world);
}

/* A rank may not pass over a unit that others of its tp group run: they would wait for it inside.
 * They say so, and where, before anything of it is exchanged. */
static void tp_groups_pass_over_together(void)
{
    static const variant v = {"tp", .twice = NONE, .skip = 1, .tp = true};
    const tsr_world_options cpu = {.backend = "cpu"};
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;
    double loss = 0.0;
    rig r;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    REQUIRE_OK(open_rig(world, &v, false, &r));
    for (int i = 0; i < MICRO; i++) {
        REQUIRE_OK(write_labels(&r, 0, i, false, false, r.labels[i]));
    }
    REQUIRE_OK(tsr_step_begin(r.tape, 0, r.labels, MICRO));
    r.skips = tsr_test_rank() == 1;
    status = micro_batch(&r, 0, 0, 0);
    if (status == TSR_OK) {
        status = tsr_step_loss(r.tape, &loss);
    }
    CHECK(status == TSR_ERR_DISAGREE || status == TSR_ERR_REMOTE);
    if (tsr_test_rank() < 2) { /* the tp group itself */
        CHECK(strstr(tsr_error_message(), "over \"tp\"") != NULL);
        CHECK(strstr(tsr_error_message(), "layers.1") != NULL);
    }
    tsr_error_clear();
    close_rig(&r);
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"every_variant", every_variant},
    {"digest_finds_the_odd_one", digest_finds_the_odd_one},
    {"tp_groups_pass_over_together",
     tp_groups_pass_over_together}, /* last: ends the job's groups */
    {NULL, NULL},
};
