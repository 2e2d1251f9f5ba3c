/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What single units can be told, on the sim backend: frozen, ignored, shared, passed over, prefetch
 * lists, groups, automatic units; seen by their collectives and bytes. */
#include "fsdp/fsdp_priv.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/job.h"
#include "support/tsr_test.h"

enum {
    LAYERS = 3,
    SKIP_NONE = -1
};

/* A stack of linear layers of our own, whose forward can be bent. */
typedef struct stack {
    tsr_module *module, *layer[LAYERS];
    tsr_dtensor *tied; /* also used at the end; NULL: not */
    int skip;          /* layer that does not run */
    int twice;         /* layer that runs twice */
    bool backwards;    /* order of layers */
} stack;

typedef struct rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_tape *tape;
    tsr_dtensor *ids, *labels;
    stack s;
} rig;

static tsr_status layer_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    tsr_module *module = self;

    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(module, "weight"), NULL, out));
    return TSR_OK;
}

static tsr_status stack_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    stack *s = self;
    tsr_dtensor *h = NULL;

    (void)in_count;
    TSR_TRY(tsr_op_embedding(tape, in[0], tsr_module_value(s->module, "embed"), &h));
    for (int i = 0; i < LAYERS; i++) {
        const int k = s->backwards ? LAYERS - 1 - i : i;

        for (int times = k == s->skip ? 0 : k == s->twice ? 2 : 1; times > 0; times--) {
            TSR_TRY(tsr_module_call(s->layer[k], tape, &h, 1, &h));
        }
    }
    if (s->tied != NULL) {
        TSR_TRY(tsr_op_linear(tape, h, s->tied, NULL, &h));
    }
    *out = h;
    return TSR_OK;
}

enum {
    DIM = 12,
    BATCH = 8,
    SEQ = 4
};

static tsr_status make_stack(rig *r)
{
    const tsr_param_spec square = {.shape = {DIM, DIM}, .ndim = 2, .init_std = 0.3};

    r->s.skip = SKIP_NONE;
    r->s.twice = SKIP_NONE;
    TSR_TRY(tsr_module_create(r->comm, stack_forward, &r->s, NULL, &r->s.module));
    TSR_TRY(tsr_module_add_param(r->s.module, "embed", &square, NULL));
    for (int i = 0; i < LAYERS; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "layers.%d", i);
        TSR_TRY(tsr_module_create(r->comm, layer_forward, NULL, NULL, &r->s.layer[i]));
        TSR_TRY(tsr_module_add_param(r->s.layer[i], "weight", &square, NULL));
        TSR_TRY(tsr_module_add_child(r->s.module, name, r->s.layer[i]));
    }
    return TSR_OK;
}

static tsr_status open_rig(rig *r)
{
    const tsr_world_options sim = {.backend = "sim", .sim_rank = 0, .sim_size = 8};
    const tsr_mesh_axis axes[] = {{"replicate", 2}, {"node", 2}, {"shard", 2}};
    const tsr_comm_options record = {.record = true, .race_check = true};
    const int64_t shape[] = {BATCH, SEQ};
    tsr_layout layout;

    *r = (rig){0};
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &r->world));
    TSR_TRY(tsr_mesh_create(8, axes, 3, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(r->world, r->mesh, &record, &r->comm));
    TSR_TRY(make_stack(r));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    TSR_TRY(tsr_layout_data(r->comm, shape, 2, &layout));
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "ids", &r->ids));
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, TSR_I32, "labels", &r->labels));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_dtensor_release(&r->ids);
    tsr_dtensor_release(&r->labels);
    tsr_tape_destroy(&r->tape);
    tsr_module_release(&r->s.module);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
    tsr_world_close(&r->world);
}

static tsr_status make_units(rig *r, const tsr_fsdp_options *layer, const tsr_fsdp_options *root)
{
    for (int i = 0; i < LAYERS; i++) {
        TSR_TRY(tsr_fully_shard(r->s.layer[i], layer));
    }
    TSR_TRY(tsr_fully_shard(r->s.module, root));
    TSR_TRY(tsr_module_materialize(r->s.module, 1));
    return TSR_OK;
}

static tsr_status micro_batch(rig *r, int micro, int forwards)
{
    tsr_dtensor *loss[2] = {NULL};

    TSR_TRY(tsr_tape_begin(r->tape, micro));
    for (int i = 0; i < forwards; i++) {
        tsr_dtensor *logits = NULL;

        TSR_TRY(tsr_module_call(r->s.module, r->tape, &r->ids, 1, &logits));
        TSR_TRY(tsr_op_cross_entropy(r->tape, logits, r->labels, &loss[i]));
    }
    if (forwards == 2) {
        TSR_TRY(tsr_op_add(r->tape, loss[0], loss[1], &loss[0]));
    }
    TSR_TRY(tsr_backward(r->tape, loss[0]));
    return TSR_OK;
}

static tsr_status step(rig *r, int64_t number, int micro_batches, int forwards)
{
    tsr_dtensor *labels[4] = {r->labels, r->labels, r->labels, r->labels};

    tsri_recorder_clear(tsri_comm_device(r->comm));
    TSR_TRY(tsr_step_begin(r->tape, number, labels, micro_batches));
    for (int i = 0; i < micro_batches; i++) {
        TSR_TRY(micro_batch(r, i, forwards));
    }
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

/* "g- g0 g1 | s2 a2": gathers, scatters and all-reduces of the root (-) and the layers. */
static const char *trace(const rig *r)
{
    static char text[1024];
    static const char letter[TSRI_STREAM_COUNT] = {'c', 'g', 's', 'a', 'x'};
    int count = 0;
    const tsri_entry *e = tsri_recorder_entries(tsri_comm_device(r->comm), &count);
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < count && used < sizeof(text) - 8; i++) {
        if (e[i].kind == TSRI_ENTRY_COLLECTIVE && e[i].stream != TSRI_STREAM_COMPUTE) {
            const char *label = e[i].label;

            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%c%c",
                                     used > 0 ? " " : "", letter[e[i].stream],
                                     label[0] != '\0' ? label[strlen(label) - 1] : '-');
        }
    }
    return text;
}

static const char plain[] = "g- g0 g1 g2 g1 s2 a2 g0 s1 a1 s0 a0 s- a-";

static void plain_schedule(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), plain);
    CHECK_OK(step(&r, 1, 1, 1));
    CHECK_STR(trace(&r), plain);
    close_rig(&r);
}

static void frozen_units_reduce_nothing(void)
{
    tsr_unit_info units[LAYERS + 1];
    tsri_arena_stats stats;
    size_t grads = 0;
    rig r;

    REQUIRE_OK(open_rig(&r));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_module_freeze(r.s.module, "layers.9.weight"));
    REQUIRE_OK(tsr_module_freeze(r.s.module, "layers.1.weight"));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_STATUS(TSR_ERR_STATE, tsr_module_freeze(r.s.module, "layers.0.weight"));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), "g- g0 g1 g2 g1 s2 a2 g0 s0 a0 s- a-");
    REQUIRE_EQ(tsr_fsdp_units(r.s.module, units, LAYERS + 1), LAYERS + 1);
    CHECK_EQ(units[2].grad_bytes, 0);
    CHECK(units[1].grad_bytes > 0);
    for (int i = 0; i <= LAYERS; i++) {
        grads += (units[i].grad_bytes + 255) / 256 * 256; /* as the arena rounds */
    }
    tsri_arena_get_stats(tsri_comm_arena(r.comm), &stats);
    CHECK_EQ(stats.kind_peak[TSRI_MEM_GRAD], grads);
    CHECK_EQ(tsr_params_without_gradient(r.s.module, NULL, 0), 0);
    close_rig(&r);
}

static void ignored_parameters(void)
{
    static const char *const ignored[] = {"layers.1.weight"};
    const tsr_fsdp_options root = {.ignored = ignored, .ignored_count = 1};
    const tsr_fsdp_options whole = {
        .levels = {{"shard", TSR_LEVEL_REPLICATE}, {"node", TSR_LEVEL_REPLICATE}}};

    for (int taken = 0; taken < 2; taken++) {
        tsr_fsdp_options layer = {.ignored = ignored, .ignored_count = 1};
        tsr_unit_info units[LAYERS + 1];
        rig r;

        REQUIRE_OK(open_rig(&r));
        REQUIRE_OK(tsr_fully_shard(r.s.layer[1], &layer));
        REQUIRE_OK(tsr_fully_shard(r.s.layer[0], NULL));
        REQUIRE_OK(tsr_fully_shard(r.s.module, taken ? &whole : &root));
        REQUIRE_OK(tsr_module_materialize(r.s.module, 1));
        CHECK_OK(step(&r, 0, 1, 1));
        REQUIRE_EQ(tsr_fsdp_units(r.s.module, units, LAYERS + 1), 3);
        CHECK_EQ(units[2].param_count, 0);
        CHECK_EQ(units[0].param_count, 3); /* embed, layer 2 and what is ignored */
        if (taken) {
            /* Whole and trained: one all-reduce of three matrices. */
            CHECK_EQ(units[0].grad_bytes, 3 * DIM * DIM * sizeof(float));
            CHECK_STR(trace(&r), "g0 g0 s0 a0 a-");
        } else {
            /* Two halves, each in multiples of 16 elements, and one whole without a gradient. */
            const size_t halves = 2 * (size_t)tsri_ceil_div(DIM * DIM / 2, 16) * 16;

            CHECK_EQ(units[0].shard_bytes, (halves + DIM * DIM) * sizeof(float));
            CHECK_EQ(units[0].grad_bytes, halves * sizeof(float));
        }
        close_rig(&r);
    }
}

/* Used at the end though it is layer 0's: the unit stays gathered and reduces with the root. */
static void tied_weights_are_found(void)
{
    tsr_unit_info units[LAYERS + 1];
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    r.s.tied = tsr_module_value(r.s.layer[0], "weight");
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), "g- g0 g1 g2 g0 g1 s2 a2 s1 a1 s- a- s0 a0");
    CHECK_OK(step(&r, 1, 1, 1)); /* known by now: gathered once */
    CHECK_STR(trace(&r), "g- g0 g1 g2 g1 s2 a2 s1 a1 s- a- s0 a0");
    REQUIRE_EQ(tsr_fsdp_units(r.s.module, units, LAYERS + 1), LAYERS + 1);
    for (int i = 0; i <= LAYERS; i++) {
        CHECK_EQ(units[i].shared, strcmp(units[i].path, "layers.0") == 0);
    }
    close_rig(&r);
}

static void order_is_learned(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    r.s.backwards = true;
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_OK(step(&r, 1, 1, 1));
    CHECK_STR(trace(&r), "g- g2 g1 g0 g1 s0 a0 g2 s1 a1 s2 a2 s- a-");
    close_rig(&r);
}

/* A rank that passes over a unit does what the others do, at the same places. */
static void passed_over_in_place(void)
{
    for (int skip = 0; skip < LAYERS; skip++) {
        for (int reshard = TSR_RESHARD_DEFAULT; reshard <= TSR_RESHARD_NEVER; reshard++) {
            const tsr_fsdp_options o = {.reshard_after_forward = (tsr_reshard)reshard};
            tsr_unit_info units[LAYERS + 1];
            char runs[1024];
            rig r;

            REQUIRE_OK(open_rig(&r));
            REQUIRE_OK(make_units(&r, &o, &o));
            CHECK_OK(step(&r, 0, 2, 1));
            (void)snprintf(runs, sizeof(runs), "%s", trace(&r));
            r.s.skip = skip;
            CHECK_OK(step(&r, 1, 2, 1));
            CHECK_STR(trace(&r), runs);
            CHECK_OK(step(&r, 2, 2, 1));
            CHECK_STR(trace(&r), runs);
            r.s.skip = SKIP_NONE;
            CHECK_OK(step(&r, 3, 2, 1));
            CHECK_STR(trace(&r), runs);
            REQUIRE_EQ(tsr_fsdp_units(r.s.module, units, LAYERS + 1), LAYERS + 1);
            for (int i = 0; i <= LAYERS; i++) {
                CHECK_EQ(units[i].passed_over, i == skip + 1 ? 4 : 0);
            }
            close_rig(&r);
        }
    }
}

/* A unit that does not run at all has no gradient, and says so. */
static void without_gradient(void)
{
    const char *names[2] = {NULL};
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    r.s.skip = 1;
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_EQ(tsr_params_without_gradient(r.s.module, names, 2), 1);
    CHECK_STR(names[0] != NULL ? names[0] : "", "layers.1.weight");
    r.s.skip = SKIP_NONE;
    CHECK_OK(step(&r, 1, 1, 1));
    CHECK_EQ(tsr_params_without_gradient(r.s.module, names, 2), 0);
    close_rig(&r);
}

static void twice_in_one_forward(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    r.s.twice = 1;
    CHECK_OK(step(&r, 0, 1, 1));
    /* Gathered for each forward, once for both backwards; reduced once. */
    CHECK_STR(trace(&r), "g- g0 g1 g2 g1 g1 s2 a2 g0 s1 a1 s0 a0 s- a-");
    close_rig(&r);
}

static void two_forwards_one_backward(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_OK(step(&r, 0, 1, 2));
    /* Each unit is reduced once, after its first call's gradients. */
    CHECK_STR(trace(&r), "g- g0 g1 g2 g0 g1 g1 g0 s2 a2 s1 a1 s0 a0 s- a-");
    close_rig(&r);
}

static void backward_prefetch_when_asked(void)
{
    static const struct {
        tsr_prefetch when;
        const char *trace;
    } rows[] = {{TSR_PREFETCH_PRE, plain},
                {TSR_PREFETCH_POST, "g- g0 g1 g2 s2 a2 g1 s1 a1 g0 s0 a0 s- a-"},
                {TSR_PREFETCH_NONE, "g- g0 g1 g2 s2 a2 g1 s1 a1 g0 s0 a0 s- a-"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const tsr_fsdp_options o = {.backward_prefetch = rows[i].when};
        rig r;

        REQUIRE_OK(open_rig(&r));
        REQUIRE_OK(make_units(&r, &o, &o));
        CHECK_OK(step(&r, 0, 1, 1));
        CHECK_STR(trace(&r), rows[i].trace);
        close_rig(&r);
    }
}

static void prefetch_lists(void)
{
    tsr_module *ahead[2] = {NULL};
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    ahead[0] = r.s.layer[2];
    ahead[1] = r.s.layer[1];
    CHECK_OK(tsr_unit_set_forward_prefetch(r.s.module, ahead, 2));
    CHECK_OK(tsr_unit_set_backward_prefetch(r.s.layer[2], &r.s.layer[0], 1));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), "g- g2 g1 g0 g0 s2 a2 g1 s1 a1 s0 a0 s- a-");
    CHECK_OK(tsr_unit_set_forward_prefetch(r.s.module, NULL, 0));
    CHECK_OK(tsr_unit_set_backward_prefetch(r.s.layer[2], NULL, 0));
    CHECK_OK(step(&r, 1, 1, 1));
    CHECK_STR(trace(&r), plain);
    ahead[0] = NULL;
    REQUIRE_OK(tsr_module_create(r.comm, layer_forward, NULL, NULL, &ahead[0]));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_unit_set_forward_prefetch(r.s.module, ahead, 1));
    tsr_module_release(&ahead[0]);
    close_rig(&r);
}

static void explicit_unshard(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    tsri_recorder_clear(tsri_comm_device(r.comm));
    CHECK_OK(tsr_unit_unshard(r.s.layer[1]));
    CHECK_STR(trace(&r), "g1");
    CHECK(tsri_dtensor_buffer(tsr_module_value(r.s.layer[1], "weight")) != NULL);
    CHECK_OK(tsr_unit_reshard(r.s.layer[1]));
    CHECK(tsri_dtensor_buffer(tsr_module_value(r.s.layer[1], "weight")) == NULL);
    CHECK_OK(tsr_unit_unshard(r.s.layer[1])); /* and the forward finds it there */
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), "g- g0 g2 g1 s2 a2 g0 s1 a1 s0 a0 s- a-");
    CHECK_OK(tsr_unit_set_reshard_after_forward(r.s.module, TSR_RESHARD_NEVER, true));
    CHECK_OK(step(&r, 1, 1, 1));
    CHECK_STR(trace(&r), "g- g0 g1 g2 s2 a2 s1 a1 s0 a0 s- a-");
    CHECK_STATUS(TSR_ERR_INVALID, tsr_unit_set_reshard_after_forward(r.s.module, 7, true));
    close_rig(&r);
}

static void gradient_sync_off(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_OK(tsr_unit_set_gradient_sync(r.s.module, false, true));
    CHECK_OK(step(&r, 0, 2, 1));
    CHECK_STR(trace(&r), "g- g0 g1 g2 g1 g0 "
                         "g- g0 g1 g2 g1 s2 a2 g0 s1 a1 s0 a0 s- a-");
    close_rig(&r);
}

static void all_reduce_off(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_OK(tsr_unit_set_all_reduce(r.s.module, false, true));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), "g- g0 g1 g2 g1 s2 g0 s1 s0 s-");
    CHECK_OK(tsr_unit_set_all_reduce(r.s.module, true, true));
    CHECK_OK(tsr_fsdp_set_last_backward(r.s.module, TSR_LAST_NO));
    CHECK_OK(step(&r, 1, 1, 1));
    CHECK_STR(trace(&r), "g- g0 g1 g2 g1 s2 g0 s1 s0 s-");
    CHECK_OK(tsr_fsdp_set_last_backward(r.s.module, TSR_LAST_AUTO));
    CHECK_OK(step(&r, 2, 1, 1));
    CHECK_STR(trace(&r), plain);
    close_rig(&r);
}

/* A program changes a gradient between backward and the step's end. */
static tsr_status touch_gradient(const rig *r)
{
    tsri_call call = {.stream = tsri_comm_stream(r->comm, TSRI_STREAM_COMPUTE), .label = "touch"};
    const tsr_param *p = tsr_module_value(r->s.layer[1], "weight")->param;
    tsrk_zero args = {.bytes = (size_t)tsri_param_own_count(p) * sizeof(float)};
    const tsri_rest *grad = NULL;

    TSR_TRY(tsri_param_get_grad(p, &grad));
    args.out = tsri_arg_out(&call, grad->buffer, grad->offset, args.bytes);
    TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    return TSR_OK;
}

static tsr_status touched_step(rig *r, int64_t number)
{
    tsr_dtensor *labels[2] = {r->labels, r->labels};

    TSR_TRY(tsr_step_begin(r->tape, number, labels, 2));
    for (int i = 0; i < 2; i++) {
        TSR_TRY(micro_batch(r, i, 1));
    }
    TSR_TRY(touch_gradient(r));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

/* Sums that stay for the next step rest in memory of their own, taken once; steps that leave some
 * and steps that do not follow one plan. */
static void sums_outlive_a_step(void)
{
    tsri_arena_stats stats;
    tsr_unit_info units[LAYERS + 1];
    size_t grads = 0;
    size_t now = 0;
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    REQUIRE_EQ(tsr_fsdp_units(r.s.module, units, LAYERS + 1), LAYERS + 1);
    for (int i = 0; i <= LAYERS; i++) {
        grads += units[i].grad_bytes;
    }
    for (int n = 0; n < 6; n++) {
        const bool stays = n % 3 != 0;

        CHECK_OK(tsr_unit_set_all_reduce(r.s.module, !stays, true));
        CHECK_OK(touched_step(&r, n));
        CHECK_EQ(tsri_comm_device(r.comm)->bytes_kind[TSRI_MEM_GRAD], n > 0 ? grads : 0);
        CHECK(n < 2 || tsri_comm_device(r.comm)->bytes_now == now);
        now = tsri_comm_device(r.comm)->bytes_now;
        CHECK_EQ(tsri_recorder_race_count(tsri_comm_device(r.comm)), 0);
    }
    tsri_arena_get_stats(tsri_comm_arena(r.comm), &stats);
    CHECK_EQ(stats.departures, 0);
    close_rig(&r);
}

static size_t gathered_over(const rig *r, unsigned mask)
{
    int count = 0;
    const tsri_entry *e = tsri_recorder_entries(tsri_comm_device(r->comm), &count);
    size_t bytes = 0;

    for (int i = 0; i < count; i++) {
        if (e[i].kind == TSRI_ENTRY_COLLECTIVE && e[i].op == TSRI_ALL_GATHER &&
            e[i].axis_mask == mask) {
            bytes += e[i].bytes;
        }
    }
    return bytes;
}

/* Forward gathers over node and shard, backward over shard alone. */
static void groups_of_k(void)
{
    const tsr_fsdp_options o = {.levels = {{"node", TSR_LEVEL_PARAMS}}, .reshard_group = 2};
    const tsr_fsdp_options root = {.levels = {{"node", TSR_LEVEL_PARAMS}}};
    const size_t layer = DIM * DIM * sizeof(float);
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, &o, &root));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), plain);
    CHECK_EQ(gathered_over(&r, 6), (LAYERS + 1) * layer);
    CHECK_EQ(gathered_over(&r, 4), (LAYERS - 1) * layer);
    close_rig(&r);
}

static void units_by_size_and_pattern(void)
{
    const tsr_auto_wrap_options by_size = {.min_params = DIM * DIM};
    const tsr_auto_wrap_options by_path = {.pattern = "layers.{0,2}"};
    const tsr_auto_wrap_options nothing = {.pattern = "blocks.*"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    rig r;

    REQUIRE(stream != NULL);
    REQUIRE_OK(open_rig(&r));
    CHECK_OK(tsr_fsdp_auto_wrap(r.s.module, &by_size, stream));
    (void)fclose(stream);
    CHECK_STR(text, "unit \"layers.0\": 144 elements\nunit \"layers.1\": 144 elements\n"
                    "unit \"layers.2\": 144 elements\nunit \"\": 144 elements\n"
                    "4 units, 576 elements\n");
    free(text);
    REQUIRE_OK(tsr_module_materialize(r.s.module, 1));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), plain);
    close_rig(&r);

    REQUIRE_OK(open_rig(&r));
    CHECK_OK(tsr_fsdp_auto_wrap(r.s.module, &by_path, NULL));
    REQUIRE_OK(tsr_module_materialize(r.s.module, 1));
    CHECK_EQ(tsr_fsdp_units(r.s.module, NULL, 0), 3);
    close_rig(&r);

    REQUIRE_OK(open_rig(&r));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_fsdp_auto_wrap(r.s.module, &nothing, NULL));
    close_rig(&r);
}

/* A failure in the middle of a pass leaves nothing behind. */
static void a_failed_pass_is_forgotten(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_OK(step(&r, 0, 1, 1));
    r.s.tied = r.ids; /* not a weight */
    CHECK(step(&r, 1, 1, 1) != TSR_OK);
    tsr_error_clear();
    CHECK_STATUS(TSR_ERR_STATE, tsr_tape_begin(r.tape, 1));
    CHECK_OK(tsr_step_end(r.tape)); /* abandons it */
    r.s.tied = NULL;
    CHECK_OK(step(&r, 1, 1, 1));
    CHECK_STR(trace(&r), plain);
    close_rig(&r);
}

/* "Never a second gather because of checkpointing": layers recomputed as a whole. */
static void checkpointing_gathers_no_more(void)
{
    rig r;

    REQUIRE_OK(open_rig(&r));
    for (int i = 0; i < LAYERS; i++) {
        tsr_module_set_checkpoint(r.s.layer[i], true);
    }
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), plain);
    close_rig(&r);

    REQUIRE_OK(open_rig(&r));
    tsr_module_set_checkpoint(r.s.module, true); /* the units lie inside what is run again */
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_STR(trace(&r), "g- g0 g1 g2 g0 g1 s2 a2 s1 a1 s0 a0 s- a-");
    close_rig(&r);
}

static void collectives_are_listed(void)
{
    tsr_traffic traffic[8];
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    int lines = 0;
    int total = 0;
    rig r;

    REQUIRE(stream != NULL);
    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(make_units(&r, NULL, NULL));
    CHECK_OK(step(&r, 0, 1, 1));
    CHECK_OK(tsr_collectives_print(r.s.module, stream));
    (void)fclose(stream);
    CHECK(strstr(text, "parameters before their use") != NULL);
    CHECK(strstr(text, "gradients to those who keep them") != NULL);
    CHECK(strstr(text, "gradients between replicas") != NULL);
    for (const char *c = text; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    {
        const int axes = tsr_collectives_count(r.s.module, traffic, 8);

        for (int i = 0; i < axes && i < 8; i++) {
            total += traffic[i].collectives;
            if (strcmp(traffic[i].axes, "shard") == 0) {
                CHECK_EQ(traffic[i].bytes, tsri_recorder_sent_bytes(tsri_comm_device(r.comm), 4));
            }
        }
        CHECK_EQ(lines, 1 + total + axes);
    }
    free(text);
    CHECK_STATUS(TSR_ERR_UNSUPPORTED, tsr_params_digest(r.s.module, NULL));
    close_rig(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"plain_schedule", plain_schedule},
    {"frozen_units_reduce_nothing", frozen_units_reduce_nothing},
    {"ignored_parameters", ignored_parameters},
    {"tied_weights_are_found", tied_weights_are_found},
    {"order_is_learned", order_is_learned},
    {"passed_over_in_place", passed_over_in_place},
    {"without_gradient", without_gradient},
    {"twice_in_one_forward", twice_in_one_forward},
    {"two_forwards_one_backward", two_forwards_one_backward},
    {"backward_prefetch_when_asked", backward_prefetch_when_asked},
    {"prefetch_lists", prefetch_lists},
    {"explicit_unshard", explicit_unshard},
    {"gradient_sync_off", gradient_sync_off},
    {"all_reduce_off", all_reduce_off},
    {"sums_outlive_a_step", sums_outlive_a_step},
    {"groups_of_k", groups_of_k},
    {"units_by_size_and_pattern", units_by_size_and_pattern},
    {"a_failed_pass_is_forgotten", a_failed_pass_is_forgotten},
    {"checkpointing_gathers_no_more", checkpointing_gathers_no_more},
    {"collectives_are_listed", collectives_are_listed},
    {NULL, NULL},
};
