/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 4 */
/* A module of our own with parameters, a setting and dropout, on two meshes; see README.md. */
#include <math.h>
#include <stdlib.h>

#include "../lesson.h"

enum {
    STEPS = 20,
    DIM = 32
};

/* What the forward needs besides its parameters. */
typedef struct ffn {
    tsr_module *module; /* borrowed: the module owns this */
    double dropout;
} ffn;

/* x + dropout(down gelu(up norm(x))) */
static tsr_status ffn_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                              tsr_dtensor **out)
{
    const ffn *f = self;
    tsr_dtensor *h;

    (void)in_count;
    TSR_TRY(tsr_op_layernorm(tape, in[0], tsr_module_value(f->module, "gain"),
                             tsr_module_value(f->module, "bias"), 1e-5, &h));
    TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(f->module, "up"), NULL, &h));
    TSR_TRY(tsr_op_gelu(tape, h, &h));
    TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(f->module, "down"), NULL, &h));
    TSR_TRY(tsr_op_dropout(tape, h, f->dropout, &h));
    return tsr_op_add(tape, in[0], h, out);
}

static tsr_status ffn_create(tsr_comm *comm, double dropout, tsr_module **out)
{
    static const char *const names[] = {"gain", "bias", "up", "down"};
    static const tsr_param_spec specs[] = {{.shape = {DIM}, .ndim = 1, .init_mean = 1},
                                           {.shape = {DIM}, .ndim = 1},
                                           {.shape = {96, DIM}, .ndim = 2, .init_std = 0.2},
                                           {.shape = {DIM, 96}, .ndim = 2, .init_std = 0.1}};
    ffn *f = malloc(sizeof(*f));

    if (f == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for a module");
    }
    f->dropout = dropout;
    TSR_TRY(tsr_module_create(comm, ffn_forward, f, free, &f->module));
    *out = f->module;
    for (int i = 0; i < 4; i++) {
        TSR_TRY(tsr_module_add_param(*out, names[i], &specs[i], NULL));
    }
    return TSR_OK;
}

static tsr_status build(tsr_comm *comm, bool tp, tsr_module **model)
{
    static const tsr_tp_rule plan[] = {{"ffn.*.up", {.kind = TSR_TP_COLUMN}},
                                       {"ffn.*.down", {.kind = TSR_TP_ROW}},
                                       {"{embed,head}", {.kind = TSR_TP_VOCAB}}};
    static const char *const names[] = {"embed", "ffn.0", "ffn.1", "head"};
    tsr_module *part[4];

    TSR_TRY(tsr_embedding_create(comm, LESSON_VOCAB, DIM, 0.5, &part[0]));
    TSR_TRY(ffn_create(comm, 0.1, &part[1]));
    TSR_TRY(ffn_create(comm, 0.1, &part[2]));
    TSR_TRY(
        tsr_linear_create(comm, &(tsr_linear_options){.in = DIM, .out = LESSON_VOCAB}, &part[3]));
    TSR_TRY(tsr_sequential_create(comm, model));
    for (int i = 0; i < 4; i++) {
        TSR_TRY(tsr_module_add_child(*model, names[i], part[i]));
    }
    TSR_TRY(tp ? tsr_tp_apply(*model, "tp", plan, 3) : TSR_OK);
    TSR_TRY(tsr_fully_shard(part[1], NULL)); /* level 3 on the axis "shard" */
    TSR_TRY(tsr_fully_shard(part[2], NULL));
    TSR_TRY(tsr_fully_shard(*model, NULL));
    return tsr_module_materialize(*model, 1);
}

/* Train on the mesh of these axes. */
static tsr_status train(tsr_world *world, const tsr_mesh_axis *axes, int axis_count, double *losses)
{
    tsr_module *model;
    tsr_mesh *mesh;
    tsr_comm *comm;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, axis_count, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(build(comm, axis_count > 1, &model));
    TSR_TRY(lesson_train(comm, model, NULL, STEPS, losses, NULL));
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

static tsr_status run(tsr_world *world)
{
    double a[STEPS], b[STEPS];

    TSR_TRY(train(world, (tsr_mesh_axis[]){{"shard", 4}}, 1, a));
    TSR_TRY(train(world, (tsr_mesh_axis[]){{"shard", 2}, {"tp", 2}}, 2, b));
    if (tsr_world_is_speaker(world)) {
        lesson_compare("shard=4", a, "shard=2 tp=2", b, STEPS);
    }
    return TSR_OK;
}

int main(int argc, char **argv)
{
    return lesson_main(argc, argv, run);
}
