/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 8 */
/* A mesh, a tensor-parallel plan and HSDP units around a module of one's own; see README.md. */
#include <tessera/tessera.h>

/* A module of our own, with parameters: x + down(silu(gate x) * up x). No backward to write. */
static tsr_status mlp_forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                              tsr_dtensor **out)
{
    tsr_module *mlp = self; /* what forward gets when tsr_module_create got NULL */
    tsr_dtensor *gate, *up, *h;

    (void)in_count;
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(mlp, "gate"), NULL, &gate));
    TSR_TRY(tsr_op_linear(tape, in[0], tsr_module_value(mlp, "up"), NULL, &up));
    TSR_TRY(tsr_op_silu_mul(tape, gate, up, &h));
    TSR_TRY(tsr_op_linear(tape, h, tsr_module_value(mlp, "down"), NULL, &h));
    return tsr_op_add(tape, in[0], h, out);
}

/* Modules by shape alone, then placements by pattern, then units, then memory. */
static tsr_status build(tsr_comm *comm, tsr_module **model)
{
    tsr_module *part[4];
    static const char *const names[] = {"embed", "mlp.0", "mlp.1", "head"};
    static const tsr_tp_rule plan[] = {{"{embed,head}", {.kind = TSR_TP_VOCAB}},
                                       {"mlp.*.{gate,up}", {.kind = TSR_TP_COLUMN}},
                                       {"mlp.*.down", {.kind = TSR_TP_ROW}}};
    const tsr_param_spec up = {.shape = {100, 48}, .ndim = 2, .init_std = 0.1};
    const tsr_param_spec down = {.shape = {48, 100}, .ndim = 2, .init_std = 0.1};
    const tsr_fsdp_options hsdp = {
        .levels = {{"replicate", TSR_LEVEL_REPLICATE}, {"shard", TSR_LEVEL_PARAMS}}};

    TSR_TRY(tsr_embedding_create(comm, 64, 48, 0.5, &part[0]));
    TSR_TRY(tsr_linear_create(comm, &(tsr_linear_options){.in = 48, .out = 64}, &part[3]));
    for (int i = 1; i <= 2; i++) {
        TSR_TRY(tsr_module_create(comm, mlp_forward, NULL, NULL, &part[i]));
        TSR_TRY(tsr_module_add_param(part[i], "gate", &up, NULL));
        TSR_TRY(tsr_module_add_param(part[i], "up", &up, NULL));
        TSR_TRY(tsr_module_add_param(part[i], "down", &down, NULL));
        TSR_TRY(tsr_fully_shard(part[i], &hsdp)); /* a unit: one group of collectives */
    }
    TSR_TRY(tsr_sequential_create(comm, model));
    for (int i = 0; i < 4; i++) {
        TSR_TRY(tsr_module_add_child(*model, names[i], part[i])); /* the model owns them now */
    }
    TSR_TRY(tsr_tp_apply(*model, "tp", plan, 3));
    TSR_TRY(tsr_fully_shard(*model, &hsdp));
    return tsr_module_materialize(*model, 1); /* each rank fills its own piece */
}

static tsr_status run(tsr_world *world)
{
    const tsr_mesh_axis axes[] = {{"replicate", 2}, {"shard", 2}, {"tp", 2}};
    const bool speak = tsr_world_is_speaker(world);
    int32_t token[64], next[64]; /* this rank's part of 8 sequences of 16 tokens */
    tsr_dtensor *ids, *labels, *x;
    tsr_param *const *params;
    tsr_optimizer *optimizer;
    tsr_layout layout;
    tsr_module *model;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_tape *tape;
    double loss;
    int count;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, 3, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(build(comm, &model));
    TSR_TRY(tsr_layout_data(comm, (int64_t[]){8, 16}, 2, &layout)); /* over replicate, shard */
    TSR_TRY(tsr_dtensor_create(comm, &layout, TSR_I32, "ids", &ids));
    TSR_TRY(tsr_dtensor_create(comm, &layout, TSR_I32, "labels", &labels));
    for (int i = 0; i < tsr_dtensor_local_count(ids); i++) {
        token[i] = (i * 29 + tsr_comm_rank(comm) / 2 * 5) % 64;
        next[i] = (token[i] * 3 + 1) % 64; /* what is to be learnt */
    }
    TSR_TRY(tsr_dtensor_write(ids, token));
    TSR_TRY(tsr_dtensor_write(labels, next));
    TSR_TRY(tsr_module_params(model, &params, &count));
    TSR_TRY(tsr_optimizer_create(comm, params, count, NULL, &optimizer));
    TSR_TRY(tsr_tape_create(comm, &tape));
    for (int step = 0; step <= 40; step++) {
        TSR_TRY(tsr_step_begin(tape, step, &labels, 1));
        TSR_TRY(tsr_tape_begin(tape, 0));
        TSR_TRY(tsr_module_call(model, tape, &ids, 1, &x));
        TSR_TRY(tsr_op_cross_entropy(tape, x, labels, &x));
        TSR_TRY(tsr_backward(tape, x));
        TSR_TRY(tsr_clip_grad_norm(optimizer, tape, 1.0));
        TSR_TRY(tsr_optimizer_step(optimizer, 0.01));
        TSR_TRY(tsr_step_loss(tape, &loss));
        TSR_TRY(tsr_step_end(tape));
        if (speak && step % 20 == 0) {
            printf("step %d: loss %.3f\n", step, loss);
        }
    }
    TSR_TRY(speak ? tsr_plan_print(model, tape, stdout) : TSR_OK);
    tsr_tape_destroy(&tape);
    tsr_optimizer_destroy(&optimizer);
    tsr_dtensor_release(&ids);
    tsr_dtensor_release(&labels);
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

int main(int argc, char **argv)
{
    tsr_world *world = NULL;

    if (tsr_world_open(&argc, &argv, NULL, &world) != TSR_OK || run(world) != TSR_OK) {
        tsr_error_print(stderr);
        tsr_world_abort(world, 1);
    }
    tsr_world_close(&world);
    return 0;
}
