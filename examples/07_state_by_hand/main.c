/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 4 */
/* A run saved on one mesh goes on on another, by hand; see README.md. */
#include <stdlib.h>

#include "../lesson.h"

enum {
    SAVED_AFTER = 5,
    STEPS = 10
};

static const char path[] = "state_by_hand.bin";

/* ---- a run ---- */

typedef struct job {
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *model;
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor *ids, *labels;
} job;

static tsr_status open_job(tsr_world *world, const tsr_mesh_axis *axes, const char *preset,
                           uint64_t seed, job *j)
{
    static const tsr_llama_config config = {
        .layers = 2, .heads = 4, .dim = 32, .ffn = 96, .vocab = LESSON_VOCAB, .init_std = 0.1};
    static const tsr_tp_rule plan[] = {{"layers.*.attn.{q,k,v}", {.kind = TSR_TP_COLUMN}},
                                       {"layers.*.attn.o", {.kind = TSR_TP_ROW}},
                                       {"layers.*.mlp.{gate,up}", {.kind = TSR_TP_COLUMN}},
                                       {"layers.*.mlp.down", {.kind = TSR_TP_ROW}}};
    tsr_fsdp_options options = {.param_dtype = TSR_F32};
    tsr_param *const *params;
    int count;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, 2, NULL, &j->mesh));
    TSR_TRY(tsr_comm_open(world, j->mesh, NULL, &j->comm));
    TSR_TRY(tsr_llama_create(j->comm, &config, &j->model));
    if (tsr_mesh_axis_find(j->mesh, "tp") >= 0) {
        TSR_TRY(tsr_tp_apply(j->model, "tp", plan, 4));
    }
    TSR_TRY(tsr_fsdp_preset(j->comm, preset, &options));
    for (int i = 0; i < config.layers; i++) {
        TSR_TRY(tsr_fully_shard(tsr_llama_layer(j->model, i), &options));
    }
    TSR_TRY(tsr_fully_shard(j->model, &options));
    TSR_TRY(tsr_module_materialize(j->model, seed));
    TSR_TRY(tsr_module_params(j->model, &params, &count));
    TSR_TRY(tsr_optimizer_create(j->comm, params, count, NULL, &j->optimizer));
    TSR_TRY(tsr_tape_create(j->comm, &j->tape));
    return lesson_batch(j->comm, NULL, &j->ids, &j->labels);
}

static void close_job(job *j)
{
    tsr_dtensor_release(&j->labels);
    tsr_dtensor_release(&j->ids);
    tsr_tape_destroy(&j->tape);
    tsr_optimizer_destroy(&j->optimizer);
    tsr_module_release(&j->model);
    tsr_comm_release(&j->comm);
    tsr_mesh_release(&j->mesh);
}

static tsr_status train(job *j, int from, int to, double *losses)
{
    for (int step = from; step < to; step++) {
        tsr_dtensor *x;

        TSR_TRY(tsr_step_begin(j->tape, step, &j->labels, 1));
        TSR_TRY(tsr_tape_begin(j->tape, 0));
        TSR_TRY(tsr_module_call(j->model, j->tape, &j->ids, 1, &x));
        TSR_TRY(tsr_op_cross_entropy(j->tape, x, j->labels, &x));
        TSR_TRY(tsr_backward(j->tape, x));
        TSR_TRY(tsr_clip_grad_norm(j->optimizer, j->tape, 1.0));
        TSR_TRY(tsr_optimizer_step(j->optimizer, 0.003));
        TSR_TRY(tsr_step_loss(j->tape, &losses[step]));
        TSR_TRY(tsr_step_end(j->tape));
    }
    return TSR_OK;
}

/* ---- its state in a file ---- */

/* The file is the entries one after the other, each whole and row-major: nothing in it knows of
 * ranks. Every rank moves its own ranges between the entry that begins at byte at and the file. */
static tsr_status move_entry(tsr_state *state, int index, FILE *file, long at, bool save)
{
    tsr_state_entry e;

    TSR_TRY(tsr_state_get(state, index, &e));
    for (int64_t r = 0; r < e.range_count; r++) {
        const size_t size = tsr_dtype_size(e.dtype);
        int64_t first, count;
        void *host;
        bool moved;

        TSR_TRY(tsr_state_range(state, index, r, &first, &count));
        if (save && !e.speaks) {
            continue; /* another rank has the same, and saves it */
        }
        host = malloc((size_t)count * size);
        if (host == NULL || fseek(file, at + (long)((size_t)first * size), SEEK_SET) != 0) {
            free(host);
            return TSR_RAISE(TSR_ERR_IO, "%s: no place for %s", path, e.name);
        }
        if (save) {
            TSR_TRY(tsr_state_read(state, e.name, first, count, host));
            moved = fwrite(host, size, (size_t)count, file) == (size_t)count;
        } else {
            moved = fread(host, size, (size_t)count, file) == (size_t)count;
            TSR_TRY(moved ? tsr_state_write(state, e.name, first, count, host) : TSR_OK);
        }
        free(host);
        if (!moved) {
            return TSR_RAISE(TSR_ERR_IO, "%s: %s was not %s", path, e.name,
                             save ? "written" : "read");
        }
    }
    return TSR_OK;
}

static tsr_status move_entries(tsr_state *state, bool save)
{
    FILE *file = fopen(path, save ? "r+b" : "rb");
    tsr_status status = TSR_OK;
    long at = 0;

    if (file == NULL) {
        return TSR_RAISE(TSR_ERR_IO, "%s cannot be opened", path);
    }
    for (int i = 0; i < tsr_state_count(state) && status == TSR_OK; i++) {
        tsr_state_entry e;

        status = tsr_state_get(state, i, &e);
        if (status == TSR_OK && e.kind != TSR_STATE_GRAD) {
            status = move_entry(state, i, file, at, save);
            at += (long)((size_t)e.count * tsr_dtype_size(e.dtype));
        }
    }
    if (fclose(file) != 0 && status == TSR_OK) {
        status = TSR_RAISE(TSR_ERR_IO, "%s cannot be closed", path);
    }
    return status;
}

static tsr_status save(job *j, tsr_world *world, uint64_t *digest)
{
    tsr_state *state;
    FILE *file = tsr_world_rank(world) == 0 ? fopen(path, "wb") : NULL;
    const bool made = tsr_world_rank(world) != 0 || (file != NULL && fclose(file) == 0);

    TSR_TRY(
        tsr_world_agree(world, made ? TSR_OK : TSR_RAISE(TSR_ERR_IO, "%s cannot be made", path)));
    TSR_TRY(tsr_state_open(j->model, j->optimizer, j->tape, &state));
    TSR_TRY(tsr_world_agree(world, move_entries(state, true)));
    TSR_TRY(tsr_state_digest(state, digest));
    tsr_state_close(&state);
    return TSR_OK;
}

static tsr_status restore(job *j, uint64_t *digest)
{
    tsr_state *state;

    TSR_TRY(tsr_state_open(j->model, j->optimizer, j->tape, &state));
    TSR_TRY(tsr_state_commit(state, move_entries(state, false)));
    TSR_TRY(tsr_state_digest(state, digest));
    tsr_state_close(&state);
    return TSR_OK;
}

/* ---- both ---- */

static tsr_status run(tsr_world *world)
{
    const tsr_mesh_axis first[] = {{"shard", 2}, {"tp", 2}};
    const tsr_mesh_axis second[] = {{"replicate", 2}, {"shard", 2}};
    double losses[STEPS], again[STEPS];
    uint64_t saved, restored;
    job j;

    TSR_TRY(open_job(world, first, "fsdp", 1, &j));
    TSR_TRY(train(&j, 0, SAVED_AFTER, losses));
    TSR_TRY(save(&j, world, &saved));
    TSR_TRY(train(&j, SAVED_AFTER, STEPS, losses)); /* what would have been */
    close_job(&j);

    TSR_TRY(open_job(world, second, "hfsdp", 2, &j)); /* other weights, until they are restored */
    TSR_TRY(restore(&j, &restored));
    for (int step = 0; step < SAVED_AFTER; step++) {
        again[step] = losses[step];
    }
    TSR_TRY(train(&j, SAVED_AFTER, STEPS, again));
    close_job(&j);

    if (tsr_world_is_speaker(world)) {
        printf("state %016llx saved on shard=2 tp=2, %s on replicate=2 shard=2\n",
               (unsigned long long)saved, restored == saved ? "the same" : "another");
        lesson_compare("shard=2 tp=2", losses, "both meshes", again, STEPS);
        (void)remove(path);
    }
    return TSR_OK;
}

int main(int argc, char **argv)
{
    return lesson_main(argc, argv, run);
}
