/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Units inside units: what is gathered ahead, in which order. root { p { a, b }, q { c, d } }. */
#include "backend/recorder.h"
#include "base/base.h"

#include "tessera/fsdp.h"
#include "tessera/world.h"

#include <stdio.h>
#include <string.h>

#include "comm/comm.h"
#include "nn/nn.h"
#include "support/tsr_test.h"

enum {
    DIM = 8,
    P = 0,
    Q,
    LEAVES = 2, /* a, b, c, d */
    MODULES = 6
};

static const char *const names[MODULES] = {"p", "q", "a", "b", "c", "d"};

typedef struct rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *root, *module[MODULES];
    tsr_tape *tape;
    tsr_dtensor *ids, *labels;
} rig;

static tsr_status leaf_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "weight"), NULL, out));
    return TSR_OK;
}

static tsr_status outer_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                tsr_dtensor **out)
{
    tsr_module *module = self;
    tsr_dtensor *h = NULL;

    TSR_TRY(leaf_forward(self, tape, in, in_count, &h));
    for (int i = 0; i < module->child_count; i++) {
        TSR_TRY(tsr_module_call(module->children[i], tape, &h, 1, &h));
    }
    *out = h;
    return TSR_OK;
}

static tsr_status root_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    tsr_module *module = self;
    tsr_dtensor *h = NULL;

    (void)in_count;
    TSR_TRY(tsr_op_embedding(tape, in[0], tsr_module_value(module, "weight"), &h));
    TSR_TRY(tsr_module_call(module->children[P], tape, &h, 1, &h));
    TSR_TRY(tsr_module_call(module->children[Q], tape, &h, 1, &h));
    *out = h;
    return TSR_OK;
}

static tsr_status make_model(rig *r, unsigned checkpoint)
{
    const tsr_param_spec square = {.shape = {DIM, DIM}, .ndim = 2, .init_std = 0.5};
    const tsr_auto_wrap_options every = {.min_params = DIM * DIM};

    TSR_TRY(tsr_module_create(r->comm, root_forward, NULL, NULL, &r->root));
    TSR_TRY(tsr_module_add_param(r->root, "weight", &square, NULL));
    for (int i = 0; i < MODULES; i++) {
        tsr_module *parent = i < LEAVES ? r->root : r->module[(i - LEAVES) / 2];

        TSR_TRY(tsr_module_create(r->comm, i < LEAVES ? outer_forward : leaf_forward, NULL, NULL,
                                  &r->module[i]));
        TSR_TRY(tsr_module_add_param(r->module[i], "weight", &square, NULL));
        TSR_TRY(tsr_module_add_child(parent, names[i], r->module[i]));
        tsr_module_set_checkpoint(r->module[i], (checkpoint >> i & 1U) != 0);
    }
    TSR_TRY(tsr_fsdp_auto_wrap(r->root, &every, NULL));
    TSR_TRY(tsr_module_materialize(r->root, 1));
    return TSR_OK;
}

static tsr_status open_rig(rig *r, unsigned checkpoint)
{
    const tsr_world_options sim = {.backend = "sim", .sim_rank = 0, .sim_size = 2};
    const tsr_mesh_axis axes[] = {{"shard", 2}};
    const tsr_comm_options record = {.record = true, .race_check = true};
    const int64_t shape[] = {2, 4};
    tsr_layout layout;

    *r = (rig){0};
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &r->world));
    TSR_TRY(tsr_mesh_create(2, axes, 1, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(r->world, r->mesh, &record, &r->comm));
    TSR_TRY(make_model(r, checkpoint));
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
    tsr_module_release(&r->root);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
    tsr_world_close(&r->world);
}

static tsr_status step(rig *r, int number)
{
    tsr_dtensor *loss = NULL;

    TSR_TRY(tsr_step_begin(r->tape, number, &r->labels, 1));
    TSR_TRY(tsr_tape_begin(r->tape, 0));
    TSR_TRY(tsr_module_call(r->root, r->tape, &r->ids, 1, &loss));
    TSR_TRY(tsr_op_cross_entropy(r->tape, loss, r->labels, &loss));
    TSR_TRY(tsr_backward(r->tape, loss));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

/* Gathers (g) and scatters (s) of a step by the last letter of the unit, - for the root. */
static const char *trace(const rig *r, int number)
{
    static char text[512];
    int count = 0;
    const tsri_entry *e = tsri_recorder_entries(tsri_comm_device(r->comm), &count);
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < count && used < sizeof(text) - 8; i++) {
        const char *label = e[i].label;

        if (e[i].kind != TSRI_ENTRY_COLLECTIVE || e[i].step != number ||
            (e[i].stream != TSRI_STREAM_GATHER && e[i].stream != TSRI_STREAM_REDUCE)) {
            continue;
        }
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%c%c", used > 0 ? " " : "",
                                 e[i].stream == TSRI_STREAM_GATHER ? 'g' : 's',
                                 label[0] != '\0' ? label[strlen(label) - 1] : '-');
    }
    return text;
}

static void check(unsigned checkpoint, const char *expected)
{
    rig r;

    REQUIRE_OK(open_rig(&r, checkpoint));
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(step(&r, i));
        CHECK_STR(trace(&r, i), expected);
    }
    close_rig(&r);
}

/* Backward needs a unit when it comes to its end, the outer before the inner. */
static void backward_gathers_in_order_of_need(void)
{
    check(0, "g- gp ga gb gq gc gd gq gc sd gp sc sq gb ga sb sa sp s-");
}

/* p runs again as a whole: a and b are needed in the order of forward, then in that of backward,
 * and gathered once. */
static void what_runs_again_is_gathered_in_order_of_forward(void)
{
    check(1U << P, "g- gp ga gb gq gc gd gq gc sd gp sc sq ga gb sb sa sp s-");
}

const tsr_test_case tsr_test_cases[] = {
    {"backward_gathers_in_order_of_need", backward_gathers_in_order_of_need},
    {"what_runs_again_is_gathered_in_order_of_forward",
     what_runs_again_is_gathered_in_order_of_forward},
    {NULL, NULL},
};
