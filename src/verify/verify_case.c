/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reading a reference case: everything is checked against everything else before it runs. */
#include "verify_priv.h"

#include "base/base.h"
#include "base/bounds.h"
#include "base/json.h"

#include <stdio.h>
#include <string.h>

enum {
    PATH_BYTES = 4096,
    CHECK_TOKENS = 1 << 14
};

static tsr_status join_file(const char *folder, const char *name, char *out)
{
    const int n = snprintf(out, PATH_BYTES, "%s/%s", folder, name);

    if (n < 0 || n >= PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "path %s/%s is longer than %d", folder, name,
                         PATH_BYTES - 1);
    }
    return TSR_OK;
}

static tsr_status read_size(const json_t *object, const char *key, const char *file, int64_t *out)
{
    TSR_TRY(tsri_json_int(object, key, file, out));
    if (*out < 1) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: %s is %lld, wants at least 1", file, key,
                         (long long)*out);
    }
    return TSR_OK;
}

static tsr_status read_lr(verify_case *c, const json_t *run, const char *file)
{
    json_t *lr = NULL;

    TSR_TRY(tsri_json_array(run, "lr", file, &lr));
    if (json_array_size(lr) != (size_t)c->step_count) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: lr has %zu entries for %d steps", file,
                         json_array_size(lr), c->step_count);
    }
    for (int i = 0; i < c->step_count; i++) {
        const json_t *value = json_array_get(lr, (size_t)i);

        if (!json_is_number(value) || !tsri_bound_allows(TSRI_BOUND_LR, json_number_value(value))) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: lr %d wants a number of 0 to 1e6", file, i);
        }
        c->steps[i].lr = json_number_value(value);
    }
    return TSR_OK;
}

static tsr_status read_optimizer(verify_case *c, const json_t *run, const char *file)
{
    const char *kind = NULL;
    json_t *betas = NULL;

    TSR_TRY(tsri_json_string(run, "optimizer", file, &kind));
    if (strcmp(kind, "adamw") != 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: optimizer is \"%s\", wants \"adamw\"", file,
                         kind);
    }
    TSR_TRY(tsri_json_array(run, "betas", file, &betas));
    c->optim.kind = TSR_ADAMW;
    c->optim.beta1 = json_number_value(json_array_get(betas, 0));
    c->optim.beta2 = json_number_value(json_array_get(betas, 1));
    if (json_array_size(betas) != 2 || !(c->optim.beta1 > 0.0 && c->optim.beta1 < 1.0) ||
        !(c->optim.beta2 > 0.0 && c->optim.beta2 < 1.0)) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: betas want two numbers between 0 and 1", file);
    }
    TSR_TRY(tsri_json_number(run, "eps", file, &c->optim.eps));
    TSR_TRY(tsri_json_number(run, "weight_decay", file, &c->optim.weight_decay));
    TSR_TRY(tsri_json_number_or(run, "clip_norm", file, 0.0, &c->clip_norm));
    if (!tsri_bound_allows(TSRI_BOUND_ADAM_EPS, c->optim.eps) ||
        !tsri_bound_allows(TSRI_BOUND_WEIGHT_DECAY, c->optim.weight_decay) || c->clip_norm < 0.0) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: eps %g wants 1e-30 to 1, weight_decay %g 0 to 1e6, and clip_norm %g "
                         "at least 0",
                         file, c->optim.eps, c->optim.weight_decay, c->clip_norm);
    }
    TSR_TRY(read_lr(c, run, file));
    return TSR_OK;
}

static tsr_status read_sizes(verify_case *c, const json_t *run, const char *file)
{
    int64_t steps = 0;
    int64_t micro_batches = 0;

    TSR_TRY(read_size(run, "steps", file, &steps));
    TSR_TRY(tsri_to_int(steps, "steps", &c->step_count));
    TSR_TRY(read_size(run, "micro_batches", file, &micro_batches));
    TSR_TRY(tsri_to_int(micro_batches, "micro_batches", &c->micro_batches));
    TSR_TRY(read_size(run, "batch", file, &c->batch));
    TSR_TRY(read_size(run, "seq", file, &c->seq));
    return TSR_OK;
}

static tsr_status read_run(verify_case *c, const json_t *run, const char *file)
{
    int64_t ignore = 0;

    TSR_TRY(read_sizes(c, run, file));
    TSR_TRY(tsri_json_bool_or(run, "forward_only", file, false, &c->forward_only));
    TSR_TRY(tsri_json_int_or(run, "ignore_index", file, TSR_IGNORE_INDEX, &ignore));
    if (ignore != TSR_IGNORE_INDEX) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "%s: ignore_index is %lld, wants %d", file,
                         (long long)ignore, TSR_IGNORE_INDEX);
    }
    TSR_TRY(tsri_alloc((size_t)c->step_count, sizeof(*c->steps), &c->steps));
    if (!c->forward_only) {
        TSR_TRY(read_optimizer(c, run, file));
    }
    return TSR_OK;
}

static tsr_status read_expect(verify_case *c, const json_t *expect, const char *file)
{
    json_t *steps = NULL;

    TSR_TRY(tsri_json_array(expect, "steps", file, &steps));
    if (json_array_size(steps) != (size_t)c->step_count) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: has %zu steps, the run has %d", file,
                         json_array_size(steps), c->step_count);
    }
    for (int i = 0; i < c->step_count; i++) {
        const json_t *step = json_array_get(steps, (size_t)i);

        TSR_TRY(tsri_json_number(step, "tokens", file, &c->steps[i].tokens));
        TSR_TRY(tsri_json_number(step, "loss", file, &c->steps[i].loss));
        if (!c->forward_only) {
            TSR_TRY(tsri_json_number(step, "grad_norm", file, &c->steps[i].grad_norm));
        }
    }
    return TSR_OK;
}

typedef tsr_status (*reader)(verify_case *c, const json_t *json, const char *file);

static tsr_status read_json(verify_case *c, const char *folder, const char *name, reader read)
{
    char file[PATH_BYTES];
    json_t *json = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(join_file(folder, name, file));
    TSR_TRY(tsri_json_load_file(file, &json));
    TSR_TRY_GOTO(status, read(c, json, file), free_json);
free_json:
    json_decref(json);
    return status;
}

/* The tensor called name of st, which must be of shape[ndim]. */
static tsr_status find_tensor(const tsri_safetensors *st, const char *name, const int64_t *shape,
                              int ndim, const tsri_safetensors_tensor **out)
{
    const tsri_safetensors_tensor *t = tsri_safetensors_find(st, name);
    char have[96];
    char want[96];

    if (t == NULL) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: no tensor %s of shape %s", tsri_safetensors_path(st),
                         name, tsri_format_shape(shape, ndim, want, sizeof(want)));
    }
    for (int d = 0; d < ndim || d < t->ndim; d++) {
        if (t->ndim != ndim || t->shape[d] != shape[d]) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s has shape %s, the case wants %s",
                             tsri_safetensors_path(st), name,
                             tsri_format_shape(t->shape, t->ndim, have, sizeof(have)),
                             tsri_format_shape(shape, ndim, want, sizeof(want)));
        }
    }
    *out = t;
    return TSR_OK;
}

/* Ids lie in the vocabulary; so do labels, unless they are ignored. */
static tsr_status check_tokens(const verify_case *c, const tsri_safetensors_tensor *t,
                               bool may_ignore)
{
    const int64_t vocab = c->spec.vocab;
    int32_t *values = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(CHECK_TOKENS, sizeof(*values), &values));
    for (int64_t at = 0; at < t->count; at += CHECK_TOKENS) {
        const int64_t n = tsri_min64(CHECK_TOKENS, t->count - at);

        TSR_TRY_GOTO(status, tsri_safetensors_read_i32(c->tokens, t, at, n, values), free_values);
        for (int64_t i = 0; i < n; i++) {
            const bool ignored = may_ignore && values[i] == TSR_IGNORE_INDEX;

            if (!ignored && (values[i] < 0 || values[i] >= vocab)) {
                status = TSR_RAISE(TSR_ERR_FORMAT,
                                   "%s: %s holds %d at entry %lld, the vocabulary has %lld",
                                   tsri_safetensors_path(c->tokens), t->name, (int)values[i],
                                   (long long)(at + i), (long long)vocab);
                goto free_values;
            }
        }
    }
free_values:
    tsri_free(&values);
    return status;
}

static tsr_status open_tokens(verify_case *c, const char *folder)
{
    const int64_t ids[4] = {c->step_count, c->micro_batches, c->batch, c->seq};
    char file[PATH_BYTES];

    TSR_TRY(join_file(folder, "tokens.safetensors", file));
    TSR_TRY(tsri_safetensors_open(file, &c->tokens));
    TSR_TRY(find_tensor(c->tokens, "inputs", ids, 4, &c->inputs));
    TSR_TRY(find_tensor(c->tokens, "labels", ids, 4, &c->labels));
    TSR_TRY(check_tokens(c, c->inputs, false));
    TSR_TRY(check_tokens(c, c->labels, true));
    return TSR_OK;
}

static tsr_status open_expect(verify_case *c, const char *folder)
{
    const int64_t logits[3] = {c->batch, c->seq, c->spec.vocab};
    char file[PATH_BYTES];

    TSR_TRY(join_file(folder, "expect.safetensors", file));
    TSR_TRY(tsri_safetensors_open(file, &c->expect));
    TSR_TRY(find_tensor(c->expect, "step0_logits", logits, 3, &c->logits));
    TSR_TRY(tsri_safetensors_check_float(c->expect, c->logits));
    return TSR_OK;
}

static tsr_status open_mesh(verify_case *c, const char *text, int ranks)
{
    if (text != NULL) {
        TSR_TRY(tsri_mesh_parse(text, &c->mesh));
    } else {
        memset(&c->mesh, 0, sizeof(c->mesh));
        TSR_TRY(tsri_mesh_text_add(&c->mesh, "shard", strlen("shard"), ranks));
    }
    TSR_TRY(tsri_mesh_fit(&c->mesh, ranks));
    return TSR_OK;
}

tsr_status tsri_verify_open_case(verify_case *c, const tsri_verify_options *options, int ranks)
{
    memset(c, 0, sizeof(*c));
    TSR_TRY(open_mesh(c, options->mesh, ranks));
    TSR_TRY(read_json(c, options->folder, "train.json", read_run));
    TSR_TRY(read_json(c, options->folder, "expect.json", read_expect));
    TSR_TRY(tsri_hf_read_config(options->folder, &c->spec, c->notice));
    TSR_TRY(tsri_safetensors_open(options->folder, &c->weights));
    TSR_TRY(open_tokens(c, options->folder));
    TSR_TRY(open_expect(c, options->folder));
    return TSR_OK;
}

void tsri_verify_close_case(verify_case *c)
{
    tsri_safetensors_close(&c->weights);
    tsri_safetensors_close(&c->tokens);
    tsri_safetensors_close(&c->expect);
    tsri_free(&c->steps);
}

void tsri_verify_job_options(const verify_case *c, const tsri_verify_options *options,
                             tsri_job_options *out)
{
    *out = (tsri_job_options){
        .model = c->spec,
        .axis_count = c->mesh.count,
        .preset = options->preset,
        .sequence_parallel = options->sequence_parallel,
        .recompute.every = options->recompute_every,
        .fsdp = {.param_dtype = TSR_F32,
                 .reduce_dtype = TSR_F32,
                 .reshard_after_forward = options->reshard,
                 .prefetch_depth = options->prefetch_depth},
        .optim = c->optim,
        .forward_only = c->forward_only,
        .batch = c->batch,
        .seq = c->seq,
        .micro_batches = c->micro_batches,
    };
    memcpy(out->axes, c->mesh.axes, sizeof(out->axes));
}

tsr_status tsri_verify_check_expect(const verify_case *c, const tsri_job *job)
{
    for (int kind = 0; kind < VERIFY_KINDS && !c->forward_only; kind++) {
        for (int i = 0; i < job->param_count; i++) {
            const tsri_safetensors_tensor *t = NULL;
            tsri_hf_place place;

            TSR_TRY(tsri_hf_locate(&c->spec, tsr_param_name(job->params[i]), &place));
            TSR_TRY(tsri_hf_find(c->expect, tsri_verify_prefix((verify_kind)kind), &place,
                                 job->params[i], &t));
        }
    }
    return TSR_OK;
}
