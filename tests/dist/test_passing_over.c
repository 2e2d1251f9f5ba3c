/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 4 */
/* labels: parity */
/**
 * @file test_passing_over.c
 * Ranks that pass over units, wherever these stand: inside others, last before a tied weight, in
 * another order than created, run for the first time late or in another order than before, run more
 * often by others, inside what backward runs again; and micro-batches and steps without a backward.
 *
 * root { embed, A { A1, A2 }, B }: each a gelu of a linear layer, units all. Odd ranks leave out
 * what a program says. Reference: a mesh whose ranks all compute the same, where rows that leave
 * something out are micro-batches of their own. Bound as in test_units_parity.c.
 */
#include "base/base.h"

#include "tessera/unit.h"
#include "tessera/world.h"

#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "support/tsr_test.h"

enum {
    DIM = 9,
    BATCH = 8,
    SEQ = 3,
    STEPS = 3,
    MICRO = 2,
    A = 0,
    A1,
    A2,
    B,
    UNITS
};

static const double tolerance = 2e-5;
static const double lr = 0.1;
static const char *const names[UNITS] = {"A", "A1", "A2", "B"};

typedef struct program {
    const char *name;
    unsigned leaves_out; /* bit per unit */
    unsigned twice;      /* units that run twice, where left out once */
    unsigned late;       /* units that no rank runs in the first step */
    bool reversed;       /* B before A, and A2 before A1 */
    bool turns;          /* is reversed from the second step on */
    bool alone;          /* A is called before the root, and without it in the second micro-batch */
    bool tied;           /* B is followed by embed as the head */
    unsigned checkpoint; /* units that backward runs again */
    bool root_checkpoint; /* the root alone, around all units */
    bool unused;          /* A's result counts on even ranks alone */
    bool no_sync;
    bool last_yes; /* each backward is marked as the step's last */
    tsr_level level;
    int forwards_only; /* micro-batch that is not played backward, or -1 */
    /* By step, of even and odd ranks, in place of all that: "A(12t)B" runs A, in it A1, A2 and A1's
     * weight, and B; "B|AB" differs by micro-batch. */
    const char *script[STEPS][2];
} program;

static const program programs[] = {
    {.name = "plain", .forwards_only = -1},
    {.name = "inner", .leaves_out = 1 << A2, .forwards_only = -1},
    {.name = "inner_first", .leaves_out = 1 << A1, .forwards_only = -1},
    {.name = "outer", .leaves_out = 1 << A, .forwards_only = -1},
    {.name = "last", .leaves_out = 1 << B, .forwards_only = -1},
    {.name = "last_tied", .leaves_out = 1 << B, .tied = true, .forwards_only = -1},
    {.name = "inner_and_last_tied",
     .leaves_out = 1 << A2 | 1 << B,
     .tied = true,
     .forwards_only = -1},
    {.name = "reversed_inner", .leaves_out = 1 << A2, .reversed = true, .forwards_only = -1},
    {.name = "reversed_outer", .leaves_out = 1 << A, .reversed = true, .forwards_only = -1},
    {.name = "reversed_last", .leaves_out = 1 << B, .reversed = true, .forwards_only = -1},
    {.name = "twice", .twice = 1 << A, .leaves_out = 1 << A, .forwards_only = -1},
    {.name = "twice_last",
     .twice = 1 << B,
     .leaves_out = 1 << B,
     .tied = true,
     .forwards_only = -1},
    {.name = "checkpointed_inner",
     .leaves_out = 1 << A2,
     .checkpoint = 1 << A,
     .forwards_only = -1},
    {.name = "checkpointed_outer",
     .leaves_out = 1 << A,
     .checkpoint = 1 << A | 1 << B,
     .forwards_only = -1},
    {.name = "checkpointed_root",
     .leaves_out = 1 << A1,
     .root_checkpoint = true,
     .tied = true,
     .forwards_only = -1},
    {.name = "unused", .unused = true, .forwards_only = -1},
    {.name = "unused_checkpointed", .unused = true, .checkpoint = 1 << A, .forwards_only = -1},
    {.name = "late", .late = 1 << A, .leaves_out = 1 << A, .forwards_only = -1},
    {.name = "late_reversed_outer",
     .late = 1 << A,
     .leaves_out = 1 << A,
     .reversed = true,
     .forwards_only = -1},
    {.name = "late_reversed_last",
     .late = 1 << B,
     .leaves_out = 1 << B,
     .reversed = true,
     .forwards_only = -1},
    {.name = "late_inner", .late = 1 << A1 | 1 << B, .leaves_out = 1 << A2, .forwards_only = -1},
    {.name = "late_twice",
     .late = 1 << B,
     .twice = 1 << B,
     .leaves_out = 1 << B,
     .reversed = true,
     .forwards_only = -1},
    {.name = "late_checkpointed",
     .late = 1 << A,
     .leaves_out = 1 << A2,
     .checkpoint = 1 << A | 1 << B,
     .reversed = true,
     .forwards_only = -1},
    {.name = "turns", .turns = true, .forwards_only = -1},
    {.name = "turns_inner", .turns = true, .leaves_out = 1 << A2, .forwards_only = -1},
    {.name = "turns_inner_first", .turns = true, .leaves_out = 1 << A1, .forwards_only = -1},
    {.name = "alone_inner", .alone = true, .leaves_out = 1 << A2, .forwards_only = -1},
    {.name = "alone_inner_first",
     .alone = true,
     .leaves_out = 1 << A1 | 1 << B,
     .late = 1 << A1,
     .forwards_only = -1},
    {.name = "alone_reversed",
     .alone = true,
     .leaves_out = 1 << A2,
     .twice = 1 << A2,
     .reversed = true,
     .checkpoint = 1 << A2,
     .forwards_only = -1},
    {.name = "alone_turns", .alone = true, .turns = true, .forwards_only = -1},
    {.name = "inner_left_out_of_part",
     .checkpoint = 1 << A,
     .forwards_only = -1,
     .script = {{"A(1)B", "A(1)B"}, {"A()B", "B"}, {"A(12)B", "A(2)B"}}},
    {.name = "holds_more_later",
     .forwards_only = -1,
     .script = {{"A(2)B", "A(2)B"}, {"BA(12)", "BA(12)"}, {"BA(12)", "A(12)"}}},
    {.name = "tied_in_two",
     .forwards_only = -1,
     .script = {{"A(12t)B(t)", "A(12t)B(t)"}, {"A(12t)B(t)", "A(t)B(t)"}, {"A(12t)B(t)", "B(t)"}}},
    {.name = "last_and_left_out",
     .last_yes = true,
     .level = TSR_LEVEL_REPLICATE,
     .forwards_only = -1,
     .script = {{"A(12)B", "B|A(12)B"}, {"B|A(1)B", "A(12)B"}, {"A(12)B|A(1)", "B|B"}}},
    {.name = "last_and_left_out_split",
     .last_yes = true,
     .level = TSR_LEVEL_OPTIM,
     .forwards_only = -1,
     .script = {{"A(12)B", "B|A(12)B"}, {"B|A(1)B", "A(12)B"}, {"A(12)B|A(1)", "B|B"}}},
    {.name = "forward_only_middle", .no_sync = true, .forwards_only = 1},
    {.name = "forward_only_first", .no_sync = true, .leaves_out = 1 << A, .forwards_only = 0},
    {.name = "forward_only_synced", .leaves_out = 1 << A, .forwards_only = 1},
};

typedef struct rig {
    const program *p;
    bool single, odd; /* odd: this forward leaves out */
    int step, micro;
    const char *place[UNITS]; /* in the script, behind the unit's letter */
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *module, *unit[UNITS];
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor *ids, *rows, *labels[3 * MICRO];
} rig;

/* ---- the model ---- */

static tsr_status call(rig *r, int which, tsr_tape *tape, tsr_dtensor **h)
{
    const bool out = r->odd && (r->p->leaves_out >> which & 1U) != 0;
    const bool waits = r->step == 0 && (r->p->late >> which & 1U) != 0;
    const int times = ((r->p->twice >> which & 1U) != 0 ? 2 : 1) - (out ? 1 : 0);

    for (int i = 0; i < times && !waits; i++) {
        TSR_TRY(tsr_module_call(r->unit[which], tape, h, 1, h));
    }
    return TSR_OK;
}

static bool is_reversed(const rig *r)
{
    return r->p->reversed || (r->p->turns && r->step > 0);
}

static tsr_status layer(tsr_module *module, tsr_tape *tape, tsr_dtensor **h)
{
    TSR_TRY(tsr_op_linear(tape, *h, tsr_module_value(module, "weight"), NULL, h));
    TSR_TRY(tsr_op_gelu(tape, *h, h));
    return TSR_OK;
}

static rig *rig_of(tsr_module *module)
{
    return tsr_module_self(tsri_module_root(module));
}

static const char *behind_bracket(const char *at)
{
    int depth = 0;

    do {
        depth += *at == '(' ? 1 : *at == ')' ? -1 : 0;
        at++;
    } while (depth > 0);
    return at;
}

/* Up to a bracket's or a micro-batch's end. */
static tsr_status follow(rig *r, const char *at, tsr_tape *tape, tsr_dtensor **h)
{
    static const char letters[UNITS + 1] = "A12B";

    while (*at != '\0' && *at != ')' && *at != '|') {
        const char *letter = strchr(letters, *at++);

        if (letter == NULL) {
            TSR_TRY(tsr_op_linear(tape, *h, tsr_module_value(r->unit[A1], "weight"), NULL, h));
            continue;
        }
        r->place[letter - letters] = at;
        TSR_TRY(tsr_module_call(r->unit[letter - letters], tape, h, 1, h));
        at = *at == '(' ? behind_bracket(at) : at;
    }
    return TSR_OK;
}

/* What the script has inside of a unit. */
static tsr_status follow_inside(tsr_module *self, tsr_tape *tape, tsr_dtensor **h)
{
    rig *r = rig_of(self);

    for (int i = 0; i < UNITS; i++) {
        if (r->unit[i] == self && *r->place[i] == '(') {
            TSR_TRY(follow(r, r->place[i] + 1, tape, h));
        }
    }
    return TSR_OK;
}

static const char *script_of(const rig *r)
{
    const char *at = r->p->script[r->step < STEPS ? r->step : 0][r->odd ? 1 : 0];

    for (int i = 0; i < r->micro && strchr(at, '|') != NULL; i++) {
        at = strchr(at, '|') + 1;
    }
    return at;
}

static bool is_scripted(const rig *r)
{
    return r->p->script[0][0] != NULL;
}

static tsr_status leaf_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    (void)in_count;
    *out = in[0];
    TSR_TRY(layer(self, tape, out));
    if (is_scripted(rig_of(self))) {
        TSR_TRY(follow_inside(self, tape, out));
    }
    return TSR_OK;
}

static tsr_status a_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                            tsr_dtensor **out)
{
    rig *r = rig_of(self);
    tsr_dtensor *h = in[0];

    (void)in_count;
    TSR_TRY(layer(self, tape, &h));
    if (is_scripted(r)) {
        TSR_TRY(follow_inside(self, tape, &h));
    } else {
        TSR_TRY(call(r, is_reversed(r) ? A2 : A1, tape, &h));
        TSR_TRY(call(r, is_reversed(r) ? A1 : A2, tape, &h));
    }
    *out = h;
    return TSR_OK;
}

static tsr_status root_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    rig *r = self;
    tsr_dtensor *h = NULL;
    tsr_dtensor *before = NULL;

    (void)in_count;
    TSR_TRY(tsr_op_embedding(tape, in[0], tsr_module_value(r->module, "embed"), &h));
    if (is_scripted(r)) {
        TSR_TRY(follow(r, script_of(r), tape, &h));
        *out = h;
        return TSR_OK;
    }
    if (is_reversed(r)) {
        TSR_TRY(call(r, B, tape, &h));
    }
    before = h;
    TSR_TRY(call(r, A, tape, &h));
    if (r->p->unused && r->odd) {
        h = before;
    }
    if (!is_reversed(r)) {
        TSR_TRY(call(r, B, tape, &h));
    }
    if (r->p->tied) {
        TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(r->unit[A1], "weight"), NULL, &h));
    }
    *out = h;
    return TSR_OK;
}

static tsr_status make_model(rig *r)
{
    const tsr_param_spec square = {.shape = {DIM, DIM}, .ndim = 2, .init_std = 0.6};
    const bool sharded = !r->single;

    TSR_TRY(tsr_module_create(r->comm, root_forward, r, NULL, &r->module));
    TSR_TRY(tsr_module_add_param(r->module, "embed", &square, NULL));
    for (int i = 0; i < UNITS; i++) {
        tsr_module *parent = i == A1 || i == A2 ? r->unit[A] : r->module;

        TSR_TRY(
            tsr_module_create(r->comm, i == A ? a_forward : leaf_forward, NULL, NULL, &r->unit[i]));
        TSR_TRY(tsr_module_add_param(r->unit[i], "weight", &square, NULL));
        TSR_TRY(tsr_module_add_child(parent, names[i], r->unit[i]));
        tsr_module_set_checkpoint(r->unit[i], (r->p->checkpoint >> i & 1U) != 0);
    }
    tsr_module_set_checkpoint(r->module, r->p->root_checkpoint);
    const tsr_fsdp_options options = {.levels = {{"shard", r->p->level}}};
    const tsr_fsdp_options *given = sharded && r->p->level != TSR_LEVEL_DEFAULT ? &options : NULL;

    for (int i = UNITS - 1; sharded && i >= 0; i--) {
        TSR_TRY(tsr_fully_shard(r->unit[i], given));
    }
    TSR_TRY(tsr_fully_shard(r->module, given));
    TSR_TRY(tsr_module_materialize(r->module, 11));
    TSR_TRY(tsr_unit_set_gradient_sync(r->module, !r->p->no_sync, true));
    if (sharded && r->p->last_yes) {
        TSR_TRY(tsr_fsdp_set_last_backward(r->module, TSR_LAST_YES));
    }
    return TSR_OK;
}

static tsr_status open_rig(tsr_world *world, const program *p, bool single, rig *r)
{
    const int n = tsr_world_size(world);
    const tsr_mesh_axis axes[] = {{single ? "copies" : "shard", n}};
    const int64_t shape[] = {BATCH, SEQ};
    const int64_t wide[] = {BATCH, SEQ, DIM};
    const tsr_optimizer_options sgd = {.kind = TSR_SGD};
    const tsr_comm_options checked = {.race_check = true};
    tsr_param *const *params = NULL;
    tsr_layout layout;
    tsr_layout data;
    int count = 0;

    *r = (rig){.p = p, .single = single};
    TSR_TRY(tsr_mesh_create(n, axes, 1, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(world, r->mesh, &checked, &r->comm));
    if (single) {
        TSR_TRY(tsri_comm_claim_axis(r->comm, "copies", "a test"));
    }
    TSR_TRY(make_model(r));
    TSR_TRY(tsr_module_params(r->module, &params, &count));
    TSR_TRY(tsr_optimizer_create(r->comm, params, count, &sgd, &r->optimizer));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    TSR_TRY(tsr_layout_data(r->comm, shape, 2, &layout));
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "ids", &r->ids));
    TSR_TRY(tsr_layout_data(r->comm, wide, 3, &data));
    TSR_TRY(tsr_dtensor_create(r->comm, &data, TSR_F32, "rows", &r->rows));
    for (int i = 0; i < 3 * MICRO; i++) {
        TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "labels", &r->labels[i]));
    }
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_dtensor_release(&r->ids);
    tsr_dtensor_release(&r->rows);
    for (int i = 0; i < 3 * MICRO; i++) {
        tsr_dtensor_release(&r->labels[i]);
    }
    tsr_tape_destroy(&r->tape);
    tsr_optimizer_destroy(&r->optimizer);
    tsr_module_release(&r->module);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
}

/* ---- steps ---- */

/* only: 0 all rows count, 1 those of even ranks, 2 those of odd ones, 3 none. */
static tsr_status write_rows(tsr_dtensor *tensor, int a, int b, int only, int ranks)
{
    int32_t values[BATCH * SEQ];

    for (int64_t i = 0; i < tensor->local_count; i++) {
        const int64_t row = tensor->local_offset[0] + i / SEQ;
        const int kind = row / (BATCH / ranks) % 2 == 1 ? 2 : 1;

        values[i] = only != 0 && only != kind ? TSR_IGNORE_INDEX
                                              : (int32_t)(((row * SEQ + i % SEQ) * a + b) % DIM);
    }
    TSR_TRY(tsr_dtensor_write(tensor, values));
    return TSR_OK;
}

static tsr_status write_activations(tsr_dtensor *tensor, int step)
{
    float values[BATCH * SEQ * DIM];

    for (int64_t i = 0; i < tensor->local_count; i++) {
        const int64_t at = tensor->local_offset[0] * SEQ * DIM + i;

        values[i] = (float)((at * 7 + step) % 11) / 11.0F - 0.5F;
    }
    TSR_TRY(tsr_dtensor_write(tensor, values));
    return TSR_OK;
}

/* The loss of module's output on in, added to *sum where that is not NULL. */
static tsr_status add_loss(const rig *r, tsr_module *module, tsr_dtensor *in, tsr_dtensor *labels,
                           tsr_dtensor **sum)
{
    tsr_dtensor *out = NULL;

    TSR_TRY(tsr_module_call(module, r->tape, &in, 1, &out));
    TSR_TRY(tsr_op_cross_entropy(r->tape, out, labels, &out));
    if (*sum != NULL) {
        TSR_TRY(tsr_op_add(r->tape, *sum, out, &out));
    }
    *sum = out;
    return TSR_OK;
}

static tsr_status micro_batch(rig *r, int index, int micro, int step, bool backward)
{
    tsr_dtensor *loss = NULL;

    r->micro = micro;
    TSR_TRY(write_rows(r->ids, 5, step + micro, 0, 1));
    TSR_TRY(write_activations(r->rows, step + micro));
    TSR_TRY(tsr_tape_begin(r->tape, index));
    if (!backward) {
        TSR_TRY(tsr_module_call(r->module, r->tape, &r->ids, 1, &loss));
        return TSR_OK;
    }
    if (r->p->alone) {
        TSR_TRY(add_loss(r, r->unit[A], r->rows, r->labels[index], &loss));
    }
    if (!r->p->alone || micro != 1) {
        TSR_TRY(add_loss(r, r->module, r->ids, r->labels[index], &loss));
    }
    TSR_TRY(tsr_backward(r->tape, loss));
    return TSR_OK;
}

/* Micro-batches: MICRO with a backward each, in two parts on one rank; and, where the program has
 * it, one more without, whose labels do not count. */
static tsr_status step(rig *r, int number, int ranks, double *norm)
{
    const int parts = r->single ? 2 : 1;
    const int idle = r->single ? -1 : r->p->forwards_only;
    const int count = parts * MICRO + (idle >= 0 ? 1 : 0);
    int micro = 0;

    r->step = number;
    for (int i = 0; i < count; i++) {
        const int at = i - (idle >= 0 && i > idle ? 1 : 0);

        TSR_TRY(write_rows(r->labels[i], 7, 3 * number + 2 * (at / parts),
                           i == idle   ? 3
                           : r->single ? 1 + i % 2
                                       : 0,
                           ranks));
    }
    TSR_TRY(tsr_step_begin(r->tape, number, r->labels, count));
    for (int i = 0; i < count; i++) {
        r->odd = r->single ? i % 2 == 1 : tsr_test_rank() % 2 == 1;
        TSR_TRY(micro_batch(r, i, micro / parts, number, i != idle));
        micro += i != idle ? 1 : 0;
    }
    TSR_TRY(tsr_clip_grad_norm(r->optimizer, r->tape, 0.0));
    TSR_TRY(tsr_grad_norm_read(r->optimizer, norm, NULL));
    TSR_TRY(tsr_optimizer_step(r->optimizer, lr));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

/* A look at the model between steps, and a step that was begun in vain. */
static tsr_status evaluate(rig *r)
{
    TSR_TRY(write_rows(r->labels[0], 7, 1, 0, 1));
    TSR_TRY(tsr_step_begin(r->tape, 100, r->labels, 1));
    r->odd = !r->single && tsr_test_rank() % 2 == 1;
    TSR_TRY(micro_batch(r, 0, 0, 0, false));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

static tsr_status run_steps(rig *r, int ranks, double *norm)
{
    for (int i = 0; i < STEPS; i++) {
        TSR_TRY(step(r, i, ranks, &norm[i]));
        TSR_TRY(evaluate(r));
    }
    if (!r->single) {
        TSR_TRY(tsr_params_digest(r->module, NULL));
    }
    return TSR_OK;
}

static tsr_status run(tsr_world *world, const program *p, bool single, double *norm)
{
    tsr_status status = TSR_OK;
    rig r;

    TSR_TRY(open_rig(world, p, single, &r));
    status = run_steps(&r, tsr_world_size(world), norm);
    if (status == TSR_OK) {
        close_rig(&r);
    }
    return status;
}

static void every_program(void)
{
    const tsr_world_options cpu = {.backend = "cpu"};
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
        double norm[2][STEPS] = {{0.0}};

        if (tsr_test_rank() == 0) {
            (void)printf("# %s\n", programs[i].name);
        }
        REQUIRE_OK(run(world, &programs[i], true, norm[0]));
        REQUIRE_OK(run(world, &programs[i], false, norm[1]));
        for (int k = 0; k < STEPS; k++) {
            CHECK(norm[0][k] > 0.0);
            CHECK_NEAR(norm[1][k], norm[0][k], tolerance * norm[0][k]);
        }
    }
    tsr_world_close(&world);
}

/* In programs with a leak sanitizer; else NULL. */
void __lsan_disable(void) __attribute__((weak)); // NOLINT: the sanitizer's name

/* Even ranks change the order, and those that leave one of the two out do not. Ranks do not meet
 * after that, so nothing is closed. */
static void order_of_some_ranks(void)
{
    if (__lsan_disable != NULL) {
        __lsan_disable();
    }

    const tsr_world_options cpu = {.backend = "cpu", .timeout_s = 3.0};
    const program p = {.alone = true, .turns = true, .leaves_out = 1 << A1, .forwards_only = -1};
    tsr_world *world = NULL;
    double norm[STEPS];

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    CHECK(run(world, &p, false, norm) != TSR_OK);
    if (tsr_test_rank() % 2 == 0) {
        CHECK(strstr(tsr_error_message(), "unit \"A.A1\" out of the order learnt") != NULL);
    }
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"every_program", every_program}, {"order_of_some_ranks", order_of_some_ranks}, {NULL, NULL}};
