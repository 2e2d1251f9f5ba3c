/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Replaying a case and judging it.
 *
 * Bounds are those of tests/golden/README.md for f32. Loss has the tighter of its two, since sums
 * over tokens are blocked. Gradients and Adam's moments are measured by the largest entry of their
 * tensor in the checkpoint (q, k and v of GPT-2 are one). */
#include "verify_priv.h"

#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double loss_bound = 1e-6;
static const double grad_norm_bound = 1e-5;
static const double logits_bound = 2e-5;
static const double grad_bound = 1e-5;
static const double adam_bound = 1e-4;
static const double final_bound = 1e-4;
static const double final_far_bound = 1e-3;

enum {
    TEXT_BYTES = 8192
};

typedef struct replay {
    const tsri_verify_options *options;
    verify_case c;
    tsri_job *job;
    verify_compare compare;
    int32_t *ids, *labels; /* [rows of this rank, seq] */
    int64_t step;
    double tokens, loss, grad_norm; /* largest errors */
    int64_t tokens_at, loss_at, grad_norm_at;
} replay;

static tsr_status look_at_logits(void *context, tsri_job *job, int micro_batch, tsr_dtensor *logits)
{
    replay *r = context;

    (void)job;
    if (r->step == 0 && micro_batch == 0) {
        TSR_TRY(tsri_verify_compare_logits(&r->compare, logits));
    }
    return TSR_OK;
}

static tsr_status look_at_gradients(void *context, tsri_job *job)
{
    replay *r = context;

    if (r->options->disturb != NULL) {
        TSR_TRY(r->options->disturb(r->options->disturb_context, job, r->step));
    }
    if (r->step == 0 && !r->c.forward_only) {
        TSR_TRY(tsri_verify_compare_gradients(&r->compare));
    }
    return TSR_OK;
}

static tsr_status write_batches(replay *r)
{
    const verify_case *c = &r->c;

    for (int micro = 0; micro < c->micro_batches; micro++) {
        const int64_t batch = r->step * c->micro_batches + micro;
        const int64_t first = (batch * c->batch + r->job->row_begin) * c->seq;
        const int64_t count = r->job->row_count * c->seq;

        if (count > 0) {
            TSR_TRY(tsri_safetensors_read_i32(c->tokens, c->inputs, first, count, r->ids));
            TSR_TRY(tsri_safetensors_read_i32(c->tokens, c->labels, first, count, r->labels));
        }
        TSR_TRY(tsri_job_write_batch(r->job, micro, r->ids, r->labels));
    }
    return TSR_OK;
}

static void note(double error, int64_t step, double *worst, int64_t *at)
{
    const double e = isnan(error) ? HUGE_VAL : error; /* a NaN would give way to the next number */

    if (e > *worst) {
        *worst = e;
        *at = step;
    }
}

/* A step without a counting token has loss and gradient norm 0, and then wants just that. */
static double relative(double have, double want)
{
    const double error = fabs(have - want);

    return want != 0.0 ? error / fabs(want) : error;
}

static tsr_status replay_steps(replay *r)
{
    const tsri_step_hooks hooks = {
        .logits = look_at_logits, .gradients = look_at_gradients, .context = r};
    const verify_case *c = &r->c;

    for (r->step = 0; r->step < c->step_count; r->step++) {
        const verify_step *want = &c->steps[r->step];
        tsri_step_result have;

        TSR_TRY(write_batches(r));
        TSR_TRY(tsri_job_step(r->job, r->step, want->lr, c->clip_norm, &hooks, &have));
        note(fabs(have.tokens - want->tokens), r->step, &r->tokens, &r->tokens_at);
        note(relative(have.loss, want->loss), r->step, &r->loss, &r->loss_at);
        if (!c->forward_only) {
            note(relative(have.grad_norm, want->grad_norm), r->step, &r->grad_norm,
                 &r->grad_norm_at);
        }
    }
    return TSR_OK;
}

/* Ranks that were started with other words would compare other numbers, or wait for each other. */
static tsr_status check_same_options(tsr_world *world, const tsri_verify_options *o)
{
    char text[TEXT_BYTES];

    (void)snprintf(text, sizeof(text),
                   "case %s mesh %s preset %s sequence-parallel %d checkpointing %d "
                   "reshard %d prefetch %d",
                   o->folder, o->mesh != NULL ? o->mesh : "of all ranks",
                   o->preset != NULL ? o->preset : TSRI_PRESET_DEFAULT, (int)o->sequence_parallel,
                   o->recompute_every, (int)o->reshard, o->prefetch_depth);
    TSR_TRY(tsr_world_check_same(world, "what to verify", text, strlen(text)));
    return TSR_OK;
}

static tsr_status open_replay(replay *r, tsr_world *world, const tsri_verify_options *options)
{
    verify_compare *v = &r->compare;
    tsri_job_options job;
    size_t tokens = 0;

    r->options = options;
    TSR_TRY(tsri_verify_open_case(&r->c, options, tsr_world_size(world)));
    tsri_verify_job_options(&r->c, options, &job);
    TSR_TRY(tsri_job_open(world, &job, &r->job));
    TSR_TRY(tsri_verify_check_expect(&r->c, r->job));
    TSR_TRY(
        tsri_hf_load(r->c.weights, &r->c.spec, r->job->params, r->job->param_count, r->c.notice));
    tokens = (size_t)(r->job->row_count * r->c.seq);
    TSR_TRY(tsri_alloc(tokens, sizeof(*r->ids), &r->ids));
    TSR_TRY(tsri_alloc(tokens, sizeof(*r->labels), &r->labels));
    v->c = &r->c;
    v->job = r->job;
    v->param_count = r->job->param_count;
    TSR_TRY(tsri_alloc((size_t)v->param_count * VERIFY_KINDS, sizeof(*v->worst), &v->worst));
    TSR_TRY(tsri_alloc((size_t)v->param_count * VERIFY_KINDS, sizeof(*v->scale), &v->scale));
    return TSR_OK;
}

static void close_replay(replay *r)
{
    tsri_free(&r->compare.worst);
    tsri_free(&r->compare.scale);
    tsri_free(&r->ids);
    tsri_free(&r->labels);
    tsri_job_close(&r->job);
    tsri_verify_close_case(&r->c);
}

static tsri_verify_row *add_report_row(tsri_verify_report *out, const char *quantity,
                                       const char *measure, double error, double bound)
{
    tsri_verify_row *row = &out->rows[out->row_count++];

    row->quantity = quantity;
    row->measure = measure;
    row->error = error;
    row->bound = bound;
    row->ok = error <= bound;
    out->ok = out->ok && row->ok;
    return row;
}

static void add_step_row(tsri_verify_report *out, const char *quantity, const char *measure,
                         double error, double bound, int64_t step)
{
    tsri_verify_row *row = add_report_row(out, quantity, measure, error, bound);

    (void)snprintf(row->where, sizeof(row->where), "step %lld", (long long)step);
}

/* Error of parameter index; by the largest entry if relative. Of what has no size, infinite. */
static double param_error(const verify_compare *v, verify_kind kind, int index, bool relative)
{
    const double worst = v->worst[(int)kind * v->param_count + index];
    const double scale = v->scale[(int)kind * v->param_count + index];

    return relative && worst > 0.0 && worst < HUGE_VAL ? worst / scale : worst;
}

static void add_param_row(tsri_verify_report *out, const verify_compare *v, verify_kind kind,
                          const char *quantity, double bound)
{
    const bool relative = kind != VERIFY_FINAL;
    tsri_verify_row *row = NULL;
    double error = 0.0;
    int at = 0;

    for (int i = 0; i < v->param_count; i++) {
        const double e = param_error(v, kind, i, relative);

        if (e > error) {
            error = e;
            at = i;
        }
    }
    row = add_report_row(out, quantity, relative ? "of largest entry" : "absolute", error, bound);
    (void)snprintf(row->where, sizeof(row->where), "%s", tsr_param_name(v->job->params[at]));
}

static void judge(const replay *r, const tsri_verify_options *options, tsri_verify_report *out)
{
    const verify_compare *v = &r->compare;
    const verify_case *c = &r->c;

    *out = (tsri_verify_report){
        .arch = tsri_model_arch_name(&c->spec),
        .preset = options->preset != NULL ? options->preset : TSRI_PRESET_DEFAULT,
        .params = tsri_model_param_count(&c->spec),
        .batch = c->batch,
        .seq = c->seq,
        .steps = c->step_count,
        .micro_batches = c->micro_batches,
        .ok = true,
    };
    (void)snprintf(out->weights, sizeof(out->weights), "%s", c->notice);
    (void)tsr_mesh_format(r->job->mesh, out->mesh, sizeof(out->mesh));
    add_step_row(out, "tokens", "absolute", r->tokens, 0.0, r->tokens_at);
    add_step_row(out, "loss", "relative", r->loss, loss_bound, r->loss_at);
    add_step_row(out, "step0_logits", "absolute", v->logits, logits_bound, 0);
    if (c->forward_only) {
        return;
    }
    add_step_row(out, "grad_norm", "relative", r->grad_norm, grad_norm_bound, r->grad_norm_at);
    add_param_row(out, v, VERIFY_GRAD, "grad", grad_bound);
    add_param_row(out, v, VERIFY_ADAM_M, "adam_m", adam_bound);
    add_param_row(out, v, VERIFY_ADAM_V, "adam_v", adam_bound);
    add_param_row(out, v, VERIFY_FINAL, "final", final_bound);
    add_step_row(out, "final", "share beyond 5e-06",
                 v->final_count > 0.0 ? v->final_far / v->final_count : (double)NAN,
                 final_far_bound, c->step_count - 1);
}

static tsr_status run_replay(replay *r, tsr_world *world, const tsri_verify_options *options)
{
    TSR_TRY(check_same_options(world, options));
    TSR_TRY(open_replay(r, world, options));
    TSR_TRY(replay_steps(r));
    if (!r->c.forward_only) {
        TSR_TRY(tsri_verify_compare_final(&r->compare));
    }
    TSR_TRY(tsri_verify_reduce(&r->compare));
    return TSR_OK;
}

tsr_status tsri_verify_run(tsr_world *world, const tsri_verify_options *options,
                           tsri_verify_report *out)
{
    replay *r = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*r), &r));
    status = tsri_world_settle(world, run_replay(r, world, options));
    if (status == TSR_OK) {
        judge(r, options, out);
    }
    close_replay(r);
    tsri_free(&r);
    return status;
}

tsr_status tsri_verify_check(const tsri_verify_options *options, int ranks)
{
    verify_case c;
    tsri_job_options job_options;
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, tsri_verify_open_case(&c, options, ranks), close_case);
    tsri_verify_job_options(&c, options, &job_options);
    TSR_TRY_GOTO(status, tsri_job_dry_run(&job_options, 0, ranks, &world, &job), close_case);
    TSR_TRY_GOTO(status, tsri_hf_check(c.weights, &c.spec, job->params, job->param_count, NULL),
                 close_job);
    TSR_TRY_GOTO(status, tsri_verify_check_expect(&c, job), close_job);
close_job:
    tsri_job_close(&job);
    tsr_world_close(&world);
close_case:
    tsri_verify_close_case(&c);
    return status;
}
