/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 8 */
/* Experts on an axis of their own, beside tensor parallelism on another; see README.md. */
#include "../lesson.h"

enum {
    STEPS = 20,
    DIM = 32,
    EXPERTS = 4,
    WIDE = 24, /* features of one expert */
    FEATURES = EXPERTS * WIDE
};

/* Of h [b, t, experts * wide] each expert's features, times sigmoid of its score [b, t, experts].
 */
static tsr_status by_expert(tsr_tape *tape, tsr_dtensor *h, tsr_dtensor *score, tsr_dtensor **out)
{
    TSR_TRY(tsr_op_sigmoid(tape, score, &score));
    TSR_TRY(tsr_op_split_heads(tape, score, EXPERTS, &score)); /* [b, t, experts, 1] */
    TSR_TRY(tsr_op_split_heads(tape, h, EXPERTS, &h));         /* [b, t, experts, wide] */
    TSR_TRY(tsr_op_multiply(tape, h, score, &h));
    return tsr_op_merge_heads(tape, h, out);
}

/* x + sum over experts e of sigmoid(router_e x) down_e gelu(up_e x) */
static tsr_status experts_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                                  tsr_dtensor **out)
{
    tsr_dtensor *h, *score;

    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "up"), NULL, &h));
    TSR_TRY(tsr_op_gelu(tape, h, &h));
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(self, "router"), NULL, &score));
    TSR_TRY(by_expert(tape, h, score, &h));
    TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(self, "down"), NULL, &h));
    return tsr_op_add(tape, in[0], h, out);
}

static tsr_status build(tsr_comm *comm, bool split, tsr_module **model)
{
    static const tsr_tp_rule tables[] = {{"{embed,head}", {.kind = TSR_TP_VOCAB}}};
    static const tsr_tp_rule experts[] = {{"experts.{up,router}", {.kind = TSR_TP_COLUMN}},
                                          {"experts.down", {.kind = TSR_TP_ROW}}};
    static const char *const names[] = {"up", "router", "down"};
    const tsr_param_spec specs[] = {{.shape = {FEATURES, DIM},
                                     .ndim = 2,
                                     .init_std = 0.2,
                                     .group_rows = WIDE,
                                     .group_name = "experts"},
                                    {.shape = {EXPERTS, DIM}, .ndim = 2, .init_std = 0.2},
                                    {.shape = {DIM, FEATURES}, .ndim = 2, .init_std = 0.1}};
    tsr_module *part[3];

    TSR_TRY(tsr_embedding_create(comm, LESSON_VOCAB, DIM, 0.5, &part[0]));
    TSR_TRY(tsr_module_create(comm, experts_forward, NULL, NULL, &part[1]));
    TSR_TRY(
        tsr_linear_create(comm, &(tsr_linear_options){.in = DIM, .out = LESSON_VOCAB}, &part[2]));
    for (int i = 0; i < 3; i++) {
        TSR_TRY(tsr_module_add_param(part[1], names[i], &specs[i], NULL));
    }
    TSR_TRY(tsr_sequential_create(comm, model));
    for (int i = 0; i < 3; i++) {
        TSR_TRY(
            tsr_module_add_child(*model, (const char *[]){"embed", "experts", "head"}[i], part[i]));
    }
    if (split) {
        TSR_TRY(tsr_tp_apply(*model, "tp", tables, 1));
        TSR_TRY(tsr_tp_apply(*model, "expert", experts, 2)); /* the same tool on another axis */
    }
    TSR_TRY(tsr_fully_shard(part[1], NULL));
    TSR_TRY(tsr_fully_shard(*model, NULL));
    return tsr_module_materialize(*model, 1);
}

/* axis: over which the batch is split beside the data axes; NULL: none. */
static tsr_status train(tsr_world *world, const tsr_mesh_axis *axes, int axis_count,
                        const char *axis, double *losses)
{
    FILE *plan = axis_count > 1 && tsr_world_is_speaker(world) ? stdout : NULL;
    tsr_module *model;
    tsr_mesh *mesh;
    tsr_comm *comm;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, axis_count, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(build(comm, axis_count > 1, &model));
    TSR_TRY(lesson_train(comm, model, axis, STEPS, losses, plan));
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

static tsr_status run(tsr_world *world)
{
    const tsr_mesh_axis axes[] = {{"shard", 2}, {"expert", 2}, {"tp", 2}};
    double a[STEPS], b[STEPS], c[STEPS];

    TSR_TRY(train(world, axes, 3, NULL, a));     /* ranks of "expert" see the same sequences */
    TSR_TRY(train(world, axes, 3, "expert", b)); /* or other ones */
    TSR_TRY(train(world, (tsr_mesh_axis[]){{"shard", 8}}, 1, NULL, c));
    if (tsr_world_is_speaker(world)) {
        lesson_compare("shard=2 expert=2 tp=2", a, "shard=8", c, STEPS);
        lesson_compare("batch over expert", b, "shard=8", c, STEPS);
    }
    return TSR_OK;
}

int main(int argc, char **argv)
{
    return lesson_main(argc, argv, run);
}
