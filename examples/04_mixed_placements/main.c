/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 4 */
/* Another placement for each kind of module of one model; see README.md. */
#include "../lesson.h"

enum {
    STEPS = 20,
    LAYERS = 2
};

static tsr_status shard(tsr_module *model, const char *path, tsr_level level)
{
    const tsr_fsdp_options options = {.levels = {{"shard", level}}};
    tsr_module *module = tsr_module_find(model, path);

    if (module == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "the model has no %s", path);
    }
    return tsr_fully_shard(module, &options);
}

static tsr_status build(tsr_comm *comm, tsr_module **model)
{
    static const tsr_llama_config config = {
        .layers = LAYERS, .heads = 4, .dim = 32, .ffn = 96, .vocab = LESSON_VOCAB, .init_std = 0.1};
    /* On the axis tp: tables split by vocabulary, mlps by features, attention whole. */
    static const tsr_tp_rule plan[] = {{"{embed,head}", {.kind = TSR_TP_VOCAB}},
                                       {"layers.*.mlp.{gate,up}", {.kind = TSR_TP_COLUMN}},
                                       {"layers.*.mlp.down", {.kind = TSR_TP_ROW}},
                                       {"layers.*.attn.{q,k,v,o}", {.kind = TSR_TP_REPLICATE}}};

    TSR_TRY(tsr_llama_create(comm, &config, model));
    TSR_TRY(tsr_tp_apply(*model, "tp", plan, 4));
    /* On the axis shard: attention fully sharded, mlps by gradients and state, tables not at all.
     */
    for (int i = 0; i < LAYERS; i++) {
        char path[32];

        (void)snprintf(path, sizeof(path), "layers.%d.attn", i);
        TSR_TRY(shard(*model, path, TSR_LEVEL_PARAMS));
        (void)snprintf(path, sizeof(path), "layers.%d.mlp", i);
        TSR_TRY(shard(*model, path, TSR_LEVEL_GRADS));
    }
    TSR_TRY(shard(*model, "embed", TSR_LEVEL_REPLICATE));
    TSR_TRY(shard(*model, "head", TSR_LEVEL_REPLICATE));
    TSR_TRY(tsr_fully_shard(*model, NULL)); /* what is left: the norms */
    return tsr_module_materialize(*model, 1);
}

static tsr_status run(tsr_world *world)
{
    const tsr_mesh_axis axes[] = {{"shard", 2}, {"tp", 2}};
    const bool speak = tsr_world_is_speaker(world);
    double losses[STEPS];
    tsr_module *model;
    tsr_mesh *mesh;
    tsr_comm *comm;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, 2, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(build(comm, &model));
    TSR_TRY(lesson_train(comm, model, NULL, STEPS, losses, speak ? stdout : NULL));
    for (int step = 4; speak && step < STEPS; step += 5) {
        printf("step %2d: loss %.5f\n", step, losses[step]);
    }
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

int main(int argc, char **argv)
{
    return lesson_main(argc, argv, run);
}
