/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 4 */
/* One model on one mesh, sharded in three ways: memory, traffic, losses; see README.md. */
#include "../lesson.h"

enum {
    STEPS = 10,
    LAYERS = 2,
    MICRO_BATCHES = 2
};

typedef struct result {
    size_t rest, peak; /* bytes on this rank */
    size_t sent[3];    /* in one step, over shard, replicate, both at once */
    double losses[STEPS];
} result;

static tsr_status build(tsr_comm *comm, const char *preset, tsr_module **model)
{
    static const tsr_llama_config config = {.layers = LAYERS,
                                            .heads = 4,
                                            .dim = 64,
                                            .ffn = 192,
                                            .vocab = LESSON_VOCAB,
                                            .init_std = 0.1};
    tsr_fsdp_options options = {.param_dtype = TSR_F32};

    TSR_TRY(tsr_fsdp_preset(comm, preset, &options)); /* two levels: that is all they differ in */
    TSR_TRY(tsr_llama_create(comm, &config, model));
    for (int i = 0; i < LAYERS; i++) {
        TSR_TRY(tsr_fully_shard(tsr_llama_layer(*model, i), &options));
    }
    TSR_TRY(tsr_fully_shard(*model, &options));
    return tsr_module_materialize(*model, 1);
}

static tsr_status sent(const tsr_comm *comm, size_t *bytes)
{
    TSR_TRY(tsr_comm_sent_bytes(comm, "shard", &bytes[0]));
    TSR_TRY(tsr_comm_sent_bytes(comm, "replicate", &bytes[1]));
    return tsr_comm_sent_bytes(comm, "replicate+shard", &bytes[2]);
}

static tsr_status steps(tsr_comm *comm, tsr_module *model, tsr_optimizer *optimizer, result *out)
{
    tsr_dtensor *ids, *label, *labels[MICRO_BATCHES], *x;
    size_t before[3] = {0};
    tsr_tape *tape;

    TSR_TRY(lesson_batch(comm, NULL, &ids, &label));
    TSR_TRY(tsr_tape_create(comm, &tape));
    for (int m = 0; m < MICRO_BATCHES; m++) {
        labels[m] = label; /* the same batch twice will do to show what accumulation sends */
    }
    for (int step = 0; step < STEPS; step++) {
        TSR_TRY(sent(comm, before));
        TSR_TRY(tsr_step_begin(tape, step, labels, MICRO_BATCHES));
        for (int m = 0; m < MICRO_BATCHES; m++) {
            TSR_TRY(tsr_tape_begin(tape, m));
            TSR_TRY(tsr_module_call(model, tape, &ids, 1, &x));
            TSR_TRY(tsr_op_cross_entropy(tape, x, labels[m], &x));
            TSR_TRY(tsr_backward(tape, x));
        }
        TSR_TRY(tsr_optimizer_step(optimizer, 0.003));
        TSR_TRY(tsr_step_loss(tape, &out->losses[step]));
        TSR_TRY(tsr_step_end(tape));
    }
    TSR_TRY(sent(comm, out->sent));
    for (int i = 0; i < 3; i++) {
        out->sent[i] -= before[i];
    }
    tsr_tape_destroy(&tape);
    tsr_dtensor_release(&ids);
    tsr_dtensor_release(&label);
    return TSR_OK;
}

static tsr_status train(tsr_world *world, const char *preset, result *out)
{
    const tsr_mesh_axis axes[] = {{"replicate", 2}, {"shard", 2}};
    const tsr_comm_options record = {.record = true};
    tsr_param *const *params;
    tsr_optimizer *optimizer;
    tsr_module *model;
    tsr_mesh *mesh;
    tsr_comm *comm;
    int count;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, 2, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, &record, &comm));
    TSR_TRY(build(comm, preset, &model));
    TSR_TRY(tsr_module_params(model, &params, &count));
    TSR_TRY(tsr_optimizer_create(comm, params, count, NULL, &optimizer));
    tsr_comm_memory(comm, &out->rest, &out->peak);
    TSR_TRY(steps(comm, model, optimizer, out));
    tsr_comm_memory(comm, &(size_t){0}, &out->peak);
    tsr_optimizer_destroy(&optimizer);
    tsr_module_release(&model);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    return TSR_OK;
}

static tsr_status run(tsr_world *world)
{
    static const char *const presets[] = {"fsdp", "hsdp", "hfsdp"};
    result results[3];
    double worst = 0;

    for (int i = 0; i < 3; i++) {
        const result *r = &results[i];

        TSR_TRY(train(world, presets[i], &results[i]));
        if (tsr_world_is_speaker(world)) {
            printf("%-5s at rest %4zu KiB, peak %4zu KiB; a step sends %4zu KiB over shard, %3zu "
                   "over replicate, %4zu over both; loss %.5f\n",
                   presets[i], r->rest / 1024, r->peak / 1024, r->sent[0] / 1024, r->sent[1] / 1024,
                   r->sent[2] / 1024, r->losses[STEPS - 1]);
        }
        for (int step = 0; step < STEPS; step++) {
            worst = fmax(worst, fabs(r->losses[step] - results[0].losses[step]));
        }
    }
    if (tsr_world_is_speaker(world)) {
        printf("largest difference of a loss: %.1e\n", worst);
    }
    return TSR_OK;
}

int main(int argc, char **argv)
{
    return lesson_main(argc, argv, run);
}
