/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "support/parity.h"

#include "fsdp/fsdp_priv.h"

#include "base/base.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "job/job.h"

enum {
    VOCAB = 23,
    BATCH = 5, /* over 4 data ranks: 2, 2, 1 and none */
    SEQ = 7
};

static const double tolerance = 2e-5;
static const double lr = 1e-3;
static const double eps = 1e-4;

tsri_job_options parity_options(const parity_case *c, int micro_batches, bool overlap)
{
    tsri_job_options o = {.model = {.arch = TSRI_ARCH_LLAMA,
                                    .layers = 3,
                                    .dim = 13,
                                    .heads = 8,
                                    .kv_heads = 2,
                                    .head_dim = 2,
                                    .ffn = 21,
                                    .vocab = VOCAB,
                                    .init_std = 0.2},
                          .axes = {{"replicate", c->replicate}, {"shard", c->shard}, {"tp", c->tp}},
                          .axis_count = 3,
                          .preset = c->preset,
                          .sequence_parallel = c->sequence,
                          .batch = BATCH,
                          .seq = SEQ,
                          .micro_batches = micro_batches,
                          .seed = 11,
                          .optim = {.eps = eps, .weight_decay = 0.1}};

    if (!overlap) {
        o.fsdp.prefetch_depth = 1; /* stored plus one: none ahead */
        o.fsdp.backward_prefetch = TSR_PREFETCH_NONE;
    }
    return o;
}

/* ---- one rank for itself ---- */

/* Every rank alone: the mesh's one axis carries no data and splits no weight. */
static tsr_status open_single(tsr_world *world, const tsri_job_options *o, tsri_job *job)
{
    const tsr_mesh_axis axis = {"copies", tsr_world_size(world)};
    const int64_t shape[2] = {o->batch, o->seq};
    tsr_layout layout;

    memset(job, 0, sizeof(*job));
    job->world = world;
    job->options = *o;
    job->row_count = o->batch;
    TSR_TRY(tsr_mesh_create(axis.size, &axis, 1, NULL, &job->mesh));
    TSR_TRY(tsr_comm_open(world, job->mesh, NULL, &job->comm));
    TSR_TRY(tsri_comm_claim_axis(job->comm, "copies", "one rank"));
    TSR_TRY(tsri_model_create(job->comm, &o->model, &job->model));
    for (int i = 0; i < o->model.layers; i++) {
        TSR_TRY(tsr_fully_shard(tsri_model_layer(job->model, i), &o->fsdp));
    }
    TSR_TRY(tsr_fully_shard(job->model, &o->fsdp));
    TSR_TRY(tsr_module_materialize(job->model, o->seed));
    TSR_TRY(tsr_module_params(job->model, &job->params, &job->param_count));
    TSR_TRY(
        tsr_optimizer_create(job->comm, job->params, job->param_count, &o->optim, &job->optimizer));
    TSR_TRY(tsr_tape_create(job->comm, &job->tape));
    TSR_TRY(tsr_layout_data(job->comm, shape, 2, &layout));
    TSR_TRY(tsri_alloc((size_t)o->micro_batches, sizeof(tsr_dtensor *), &job->ids));
    TSR_TRY(tsri_alloc((size_t)o->micro_batches, sizeof(tsr_dtensor *), &job->labels));
    for (int i = 0; i < o->micro_batches; i++) {
        TSR_TRY(tsr_dtensor_create(job->comm, &layout, TSR_I32, "ids", &job->ids[i]));
        TSR_TRY(tsr_dtensor_create(job->comm, &layout, TSR_I32, "labels", &job->labels[i]));
    }
    return TSR_OK;
}

static void close_single(tsri_job *job)
{
    for (int i = 0; i < job->options.micro_batches; i++) {
        tsr_dtensor_release(&job->ids[i]);
        tsr_dtensor_release(&job->labels[i]);
    }
    tsri_free(&job->ids);
    tsri_free(&job->labels);
    tsr_tape_destroy(&job->tape);
    tsr_optimizer_destroy(&job->optimizer);
    tsr_module_release(&job->model);
    tsr_comm_release(&job->comm);
    tsr_mesh_release(&job->mesh);
}

/* ---- running ---- */

static void note(parity_run *l, double deviation, const char *where)
{
    if (!(deviation <= l->worst)) {
        l->worst = isfinite(deviation) ? deviation : (double)INFINITY;
        (void)snprintf(l->where, sizeof(l->where), "step %d: %s", l->step, where);
    }
}

tsr_status parity_write_step(tsri_job *job, int step)
{
    int32_t ids[BATCH * SEQ];
    int32_t labels[BATCH * SEQ];

    for (int micro = 0; micro < job->options.micro_batches; micro++) {
        const uint64_t key = tsri_rng_key(5, (uint64_t)step, (uint64_t)micro, 0);

        for (int64_t i = 0; i < job->row_count * SEQ; i++) {
            const uint64_t at = (uint64_t)(job->row_begin * SEQ + i);
            const uint32_t word = tsri_rng_word(key, at);

            ids[i] = (int32_t)(word % VOCAB);
            labels[i] = word / VOCAB % 4 == 0 ? TSR_IGNORE_INDEX : (int32_t)(word / 97 % VOCAB);
        }
        TSR_TRY(tsri_job_write_batch(job, micro, ids, labels));
    }
    return TSR_OK;
}

static tsr_status read_f32(const tsri_job *job, const tsri_rest *rest, float **out)
{
    TSR_TRY(tsri_alloc((size_t)tsri_rest_count(rest), sizeof(float), out));
    TSR_TRY(tsri_rest_get(rest, rest->piece.begin, rest->piece.end, *out,
                          tsri_comm_stream(job->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

/* Largest difference of what this rank owns of p from the whole tensor. */
static double compare_piece(const tsr_param *p, const float *have, const float *whole)
{
    double worst = 0.0;

    const tsri_block b = p->master.piece.block;
    for (int64_t e = p->master.piece.begin; e < p->master.piece.end; e++) {
        const int64_t row = b.first_row + e / b.cols;
        const int64_t col = b.first_col + e % b.cols;
        const double d = fabs((double)have[e - p->master.piece.begin] -
                              (double)whole[row * b.global_cols + col]);

        worst = d <= worst ? worst : d;
    }
    return worst;
}

static double largest(const float *values, int64_t count)
{
    double most = 0.0;

    for (int64_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)values[i]));
    }
    return most > 0.0 ? most : 1.0;
}

/* Record or compare the owned elements of p at rest; bound: of the absolute error. */
static tsr_status look_at(parity_run *l, const tsri_job *job, int i, const tsri_rest *rest,
                          float **whole, double bound)
{
    const tsr_param *p = job->params[i];
    const int64_t count = tsri_param_own_count(p);
    float *have = NULL;

    TSR_TRY(read_f32(job, rest, &have));
    if (l->records) {
        whole[i] = have;
        return TSR_OK;
    }
    l->bits = tsri_hash(have, (size_t)count * sizeof(float), l->bits);
    if (bound == 0.0) {
        bound = tolerance * largest(whole[i], tsr_param_count(p));
    }
    note(l, compare_piece(p, have, whole[i]) / bound, tsr_param_name(p));
    tsri_free(&have);
    return TSR_OK;
}

static tsr_status look_at_gradients(void *context, tsri_job *job)
{
    parity_run *l = context;

    for (int i = 0; i < job->param_count && l->step == 0; i++) {
        const tsri_rest *grad = NULL;

        TSR_TRY(tsri_param_get_grad(job->params[i], &grad));
        TSR_TRY(look_at(l, job, i, grad, l->r->grad, 0.0));
    }
    return TSR_OK;
}

static tsr_status run_steps(tsri_job *job, parity_run *l)
{
    const tsri_step_hooks hooks = {.gradients = look_at_gradients, .context = l};

    for (l->step = 0; l->step < PARITY_STEPS; l->step++) {
        tsri_step_result have;
        const tsri_step_result *want = &l->r->result[l->step];

        TSR_TRY(parity_write_step(job, l->step));
        TSR_TRY(tsri_job_step(job, l->step, lr, 1.0, &hooks, &have));
        if (l->records) {
            l->r->result[l->step] = have;
            continue;
        }
        l->bits = tsri_hash(&have.loss, sizeof(have.loss), l->bits);
        l->bits = tsri_hash(&have.grad_norm, sizeof(have.grad_norm), l->bits);
        note(l, fabs(have.loss - want->loss) / (tolerance * want->loss), "loss");
        note(l, fabs(have.grad_norm - want->grad_norm) / (tolerance * want->grad_norm), "norm");
        note(l, have.tokens != want->tokens ? (double)INFINITY : 0.0, "tokens");
    }
    for (int i = 0; i < job->param_count; i++) {
        const tsr_param *p = job->params[i];

        TSR_TRY(look_at(l, job, i, &p->master, l->r->final, PARITY_STEPS * lr * tolerance / eps));
    }
    return TSR_OK;
}

tsr_status parity_record_single(tsr_world *world, const tsri_job_options *o, parity_record *r)
{
    parity_run l = {.r = r, .records = true};
    tsri_job job;

    TSR_TRY(open_single(world, o, &job));
    if (job.param_count > PARITY_MAX_PARAMS) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "%d parameters", job.param_count);
    }
    TSR_TRY(run_steps(&job, &l));
    close_single(&job);
    return TSR_OK;
}

void parity_record_free(parity_record *r)
{
    for (int i = 0; i < PARITY_MAX_PARAMS; i++) {
        tsri_free(&r->grad[i]);
        tsri_free(&r->final[i]);
    }
}

static tsr_status sabotage_and_run(tsri_job *job, tsri_sabotage_kind kind, int nth, parity_run *l,
                                   bool *struck)
{
    tsri_sabotage_set(job->model, kind, nth);
    if (l->opened != NULL) {
        TSR_TRY(l->opened(job, l->context));
    }
    TSR_TRY(run_steps(job, l));
    *struck = tsri_sabotage_struck(job->model);
    if (l->closing != NULL) {
        TSR_TRY(l->closing(job, l->context));
    }
    return TSR_OK;
}

tsr_status parity_run_layout(tsr_world *world, const parity_case *c, const tsri_job_options *o,
                             tsri_sabotage_kind kind, int nth, parity_run *l, bool *struck)
{
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    if (c->replicate * c->shard * c->tp == 1) {
        tsri_job single;

        TSR_TRY(open_single(world, o, &single));
        status = sabotage_and_run(&single, kind, nth, l, struck);
        close_single(&single);
        return status;
    }
    TSR_TRY(tsri_job_open(world, o, &job));
    TSR_TRY_GOTO(status, sabotage_and_run(job, kind, nth, l, struck), close_job);
    if (kind == TSRI_SABOTAGE_NONE && !l->keeps_digest) {
        TSR_TRY_GOTO(status, tsr_params_digest(job->model, NULL), close_job);
    }
close_job:
    tsri_job_close(&job);
    return status;
}
