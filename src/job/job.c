/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Putting a job together, and its step. */
#include "job/job.h"

#include "base/base.h"

#include "tessera/tp.h"

#include <string.h>

enum {
    MOST_SPLITS = 8
};

/* The model's own rules. Sequence parallelism begins where the residual stream does. */
static int list_tp_rules(const tsri_job_options *o, tsr_tp_rule rules[MOST_SPLITS])
{
    static const tsr_tp_kind kinds[] = {[TSRI_SPLIT_VOCAB] = TSR_TP_VOCAB,
                                        [TSRI_SPLIT_COLUMN] = TSR_TP_COLUMN,
                                        [TSRI_SPLIT_ROW] = TSR_TP_ROW};
    int count = 0;

    for (const tsri_split_rule *s = tsri_arch_get(o->model.arch)->splits; s->modules != NULL; s++) {
        if (s->is_head && o->model.tied) {
            continue;
        }
        TSRI_ASSERT(count < MOST_SPLITS);
        rules[count++] = (tsr_tp_rule){
            s->modules,
            {.kind = kinds[s->split],
             .output = s->begins_stream && o->sequence_parallel ? TSR_TP_SEQUENCE : TSR_TP_AS_IS}};
    }
    return count;
}

static tsr_status apply_tp(tsri_job *job)
{
    const char *axis = job->options.tp_axis;
    tsr_tp_rule rules[MOST_SPLITS];

    if (axis == NULL) {
        if (job->options.no_tp || tsr_mesh_axis_find(job->mesh, "tp") < 0) {
            return TSR_OK;
        }
        axis = "tp";
    }
    TSR_TRY(tsr_tp_apply(job->model, axis, rules, list_tp_rules(&job->options, rules)));
    return TSR_OK;
}

static tsr_status matches_any(tsr_module *module, const char *pattern, bool *out)
{
    tsr_param *const *params = NULL;
    int count = 0;

    *out = false;
    TSR_TRY(tsr_module_params(module, &params, &count));
    for (int i = 0; i < count && !*out; i++) {
        *out = tsri_pattern_match(pattern, tsr_param_name(params[i]));
    }
    return TSR_OK;
}

/* A unit is told the patterns that match in it; the root all, so that one without match is an
 * error. */
static tsr_status make_unit(tsri_job *job, tsr_module *module)
{
    const tsri_job_options *o = &job->options;
    const bool is_root = module == job->model;
    tsr_fsdp_options unit = o->fsdp;
    tsr_shard_dim dims[TSRI_JOB_MAX_NAMES];
    const char *ignored[TSRI_JOB_MAX_NAMES];
    bool matches = false;

    unit.shard_dims = dims;
    unit.shard_dim_count = 0;
    unit.ignored = ignored;
    unit.ignored_count = 0;
    for (int i = 0; i < o->split_cols.count; i++) {
        TSR_TRY(matches_any(module, o->split_cols.at[i], &matches));
        if (matches || is_root) {
            dims[unit.shard_dim_count++] = (tsr_shard_dim){o->split_cols.at[i], 1};
        }
    }
    for (int i = 0; i < o->ignored.count; i++) {
        TSR_TRY(matches_any(module, o->ignored.at[i], &matches));
        if (matches || is_root) {
            ignored[unit.ignored_count++] = o->ignored.at[i];
        }
    }
    TSR_TRY(tsr_fully_shard(module, &unit));
    return TSR_OK;
}

const char *tsri_job_preset(const tsri_job_options *o)
{
    return o->preset != NULL ? o->preset : TSRI_PRESET_DEFAULT;
}

static tsr_status apply_fsdp(tsri_job *job)
{
    tsri_job_options *o = &job->options;

    for (int i = 0; o->recompute.every > 0 && i < o->model.layers; i += o->recompute.every) {
        tsr_module *layer = tsri_model_layer(job->model, i);

        tsr_module_set_checkpoint(layer, true);
        tsr_module_set_checkpoint_offload(layer, o->recompute.offload);
        TSR_TRY(
            tsr_module_set_checkpoint_keep(layer, o->recompute.keep.at, o->recompute.keep.count));
    }
    TSR_TRY(tsr_fsdp_preset(job->comm, tsri_job_preset(o), &o->fsdp));
    tsr_module *unit = NULL;

    for (int i = 0; !o->one_unit && (unit = tsri_model_unit(&o->model, job->model, i)) != NULL;
         i++) {
        TSR_TRY(make_unit(job, unit));
    }
    TSR_TRY(make_unit(job, job->model));
    return TSR_OK;
}

static tsr_status open_batch(tsri_job *job)
{
    const tsri_job_options *o = &job->options;
    const int64_t shape[2] = {o->batch, o->seq};
    int64_t local[TSR_MAX_DIMS];
    int64_t offset[TSR_MAX_DIMS];
    tsr_layout layout;

    TSR_TRY(tsr_layout_data(job->comm, shape, 2, &layout));
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(job->comm), local, offset));
    job->row_begin = offset[0];
    job->row_count = local[0];
    TSR_TRY(tsri_alloc((size_t)o->micro_batches, sizeof(tsr_dtensor *), &job->ids));
    TSR_TRY(tsri_alloc((size_t)o->micro_batches, sizeof(tsr_dtensor *), &job->labels));
    for (int i = 0; i < o->micro_batches; i++) {
        TSR_TRY(tsr_dtensor_create(job->comm, &layout, TSR_I32, "ids", &job->ids[i]));
        TSR_TRY(tsr_dtensor_create(job->comm, &layout, TSR_I32, "labels", &job->labels[i]));
    }
    return TSR_OK;
}

static tsr_status check_job_options(const tsri_job_options *o)
{
    const int64_t max_seq = o->model.positions;

    if (o->batch < 1 || o->seq < 1) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "batch of %lld sequences of %lld tokens, wants at least 1",
                         (long long)o->batch, (long long)o->seq);
    }
    if (max_seq > 0 && o->seq > max_seq) {
        return TSR_RAISE(TSR_ERR_INVALID, "sequences of %lld tokens, the model has %lld positions",
                         (long long)o->seq, (long long)max_seq);
    }
    if (o->recompute.offload && o->recompute.every < 1) {
        return TSR_RAISE(
            TSR_ERR_INVALID,
            "activations are offloaded where they are checkpointed, which no block is");
    }
    return TSR_OK;
}

/* Everything about placements; no memory yet. */
static tsr_status declare(tsri_job *job)
{
    const tsri_job_options *o = &job->options;

    TSR_TRY(tsr_mesh_create(tsr_world_size(job->world), o->axes, o->axis_count, NULL, &job->mesh));
    TSR_TRY(tsr_comm_open(job->world, job->mesh, &o->comm, &job->comm));
    TSR_TRY(tsri_model_create(job->comm, &o->model, &job->model));
    TSR_TRY(apply_tp(job));
    if (o->data_axis_count > 0) {
        TSR_TRY(tsri_comm_set_data_axes(job->comm, o->data_axes, o->data_axis_count));
    }
    TSR_TRY(tsri_comm_check_axes(job->comm));
    TSR_TRY(apply_fsdp(job));
    return TSR_OK;
}

static tsr_status build(tsri_job *job)
{
    const tsri_job_options *o = &job->options;

    TSR_TRY(check_job_options(o));
    TSR_TRY(declare(job));
    TSR_TRY(tsr_module_materialize(job->model, o->seed));
    TSR_TRY(tsr_module_params(job->model, &job->params, &job->param_count));
    if (!o->forward_only) {
        TSR_TRY(tsr_optimizer_create(job->comm, job->params, job->param_count, &o->optim,
                                     &job->optimizer));
    }
    TSR_TRY(tsr_tape_create(job->comm, &job->tape));
    tsri_tape_set_seed(job->tape, o->seed);
    if (o->scale_loss && job->optimizer != NULL) {
        TSR_TRY(tsr_loss_scale_begin(job->optimizer, job->tape, &o->loss_scale));
    }
    TSR_TRY(open_batch(job));
    return TSR_OK;
}

tsr_status tsri_job_open(tsr_world *world, const tsri_job_options *options, tsri_job **out)
{
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    status = tsri_alloc(1, sizeof(*job), &job);
    if (status == TSR_OK) {
        job->world = world;
        job->options = *options;
        if (job->options.micro_batches == 0) {
            job->options.micro_batches = 1;
        }
        status = build(job);
    }
    TSR_TRY_GOTO(status, tsri_world_agree(world, "opening the job", status), close);
    *out = job;
    return TSR_OK;
close:
    tsri_job_close(&job);
    return status;
}

void tsri_job_close(tsri_job **pointer)
{
    tsri_job *job = *pointer;

    *pointer = NULL;
    if (job == NULL) {
        return;
    }
    tsri_error_hold();
    for (int i = 0; job->ids != NULL && i < job->options.micro_batches; i++) {
        tsr_dtensor_release(&job->ids[i]);
    }
    for (int i = 0; job->labels != NULL && i < job->options.micro_batches; i++) {
        tsr_dtensor_release(&job->labels[i]);
    }
    tsri_free(&job->ids);
    tsri_free(&job->labels);
    tsr_tape_destroy(&job->tape);
    tsr_optimizer_destroy(&job->optimizer);
    tsr_module_release(&job->model);
    tsr_comm_release(&job->comm);
    tsr_mesh_release(&job->mesh);
    tsri_free(&job);
    tsri_error_release();
}

tsr_status tsri_job_write_batch(tsri_job *job, int micro, const int32_t *ids, const int32_t *labels)
{
    TSR_TRY(tsr_dtensor_write(job->ids[micro], ids));
    TSR_TRY(tsr_dtensor_write(job->labels[micro], labels));
    return TSR_OK;
}

static tsr_status run_micro_batch(tsri_job *job, int micro, const tsri_step_hooks *hooks)
{
    tsr_dtensor *logits = NULL;
    tsr_dtensor *loss = NULL;

    TSR_TRY(tsr_tape_begin(job->tape, micro));
    TSR_TRY(tsr_module_call(job->model, job->tape, &job->ids[micro], 1, &logits));
    if (hooks != NULL && hooks->logits != NULL) {
        TSR_TRY(hooks->logits(hooks->context, job, micro, logits));
    }
    TSR_TRY(tsr_op_cross_entropy(job->tape, logits, job->labels[micro], &loss));
    TSR_TRY(tsr_backward(job->tape, loss));
    return TSR_OK;
}

static tsr_status update(tsri_job *job, double lr, double clip_norm, tsri_step_result *out)
{
    TSR_TRY(tsr_clip_grad_norm(job->optimizer, job->tape, clip_norm));
    TSR_TRY(tsr_optimizer_step(job->optimizer, lr));
    TSR_TRY(tsr_grad_norm_read(job->optimizer, &out->grad_norm, &out->skipped));
    if (job->options.scale_loss) {
        TSR_TRY(tsr_loss_scale_read(job->optimizer, job->tape, &out->loss_scale, NULL));
    }
    return TSR_OK;
}

tsr_status tsri_job_step(tsri_job *job, int64_t step, double lr, double clip_norm,
                         const tsri_step_hooks *hooks, tsri_step_result *out)
{
    *out = (tsri_step_result){.loss_scale = 1.0};
    TSR_TRY(tsr_step_begin(job->tape, step, job->labels, job->options.micro_batches));
    if (job->optimizer != NULL) {
        TSR_TRY(tsri_optimizer_set_lr(job->optimizer, lr));
    }
    for (int i = 0; i < job->options.micro_batches; i++) {
        TSR_TRY(run_micro_batch(job, i, hooks));
    }
    if (hooks != NULL && hooks->gradients != NULL) {
        TSR_TRY(hooks->gradients(hooks->context, job));
    }
    if (job->optimizer != NULL) {
        TSR_TRY(update(job, lr, clip_norm, out));
    }
    TSR_TRY(tsr_step_loss(job->tape, &out->loss));
    TSR_TRY(tsr_step_tokens(job->tape, &out->tokens));
    TSR_TRY(tsr_step_end(job->tape));
    return TSR_OK;
}

tsr_status tsri_job_check(const tsri_job_options *options, int size)
{
    const tsr_world_options sim = {.backend = "sim", .sim_rank = 0, .sim_size = size};
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(check_job_options(options));
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &world));
    TSR_TRY_GOTO(status, tsri_alloc(1, sizeof(*job), &job), close_world);
    job->world = world;
    job->options = *options;
    TSR_TRY_GOTO(status, declare(job), close_job);
close_job:
    tsri_job_close(&job);
close_world:
    tsr_world_close(&world);
    return status;
}

tsr_status tsri_job_dry_run(const tsri_job_options *options, int rank, int size,
                            tsr_world **world_out, tsri_job **out)
{
    const tsr_world_options sim = {
        .backend = "sim", .threads = options->dry_threads, .sim_rank = rank, .sim_size = size};
    tsri_job_options o = *options;
    tsri_step_result result;
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    o.comm.record = true;
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &world));
    TSR_TRY_GOTO(status, tsri_job_open(world, &o, &job), close_world);
    if (options->rough) {
        tsri_arena_plan_rough(tsri_comm_arena(job->comm));
    }
    for (int step = 0; step < 2; step++) {
        tsri_recorder_clear(tsri_comm_device(job->comm));
        TSR_TRY_GOTO(status, tsri_job_step(job, step, 0.0, 1.0, NULL, &result), close_job);
    }
    *world_out = world;
    *out = job;
    return TSR_OK;
close_job:
    tsri_job_close(&job);
close_world:
    tsr_world_close(&world);
    return status;
}

void tsri_job_summarize(const tsri_job *job, tsri_step_memory *out)
{
    const tsr_device *device = tsri_comm_device(job->comm);
    tsri_arena_stats stats;

    tsri_arena_get_stats(tsri_comm_arena(job->comm), &stats);
    memset(out, 0, sizeof(*out));
    for (int kind = 0; kind < TSRI_MEM_COUNT; kind++) {
        const size_t rests =
            kind <= TSRI_MEM_OPTIM || kind == TSRI_MEM_OTHER ? device->bytes_kind[kind] : 0;

        out->kind_bytes[kind] = rests + stats.kind_at_peak[kind];
        out->kind_most[kind] = rests + stats.kind_peak[kind];
    }
    out->arena_bytes = stats.planned_bytes;
    out->peak_label = stats.peak_label;
    out->total_bytes = device->bytes_now;
    out->host_bytes = device->host_now;
    out->fixed_bytes = device->bytes_now - stats.planned_bytes;
}
