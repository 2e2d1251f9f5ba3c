/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* One forecast: two steps on a simulated world, the second played by the clock. */
#include "train/forecast.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

#include "train/trace.h"

/* ---- sums ---- */

double tsri_model_token_flops(const tsri_model_spec *spec, int64_t seq, bool full)
{
    const bool gpt2 = spec->arch == TSRI_ARCH_GPT2;
    const tsr_llama_config *l = &spec->llama;
    const tsr_gpt2_config *g = &spec->gpt2;
    const double layers = (double)tsri_model_layers(spec);
    const double dim = gpt2 ? (double)g->dim : (double)l->dim;
    const double heads_dim =
        gpt2 ? dim : (double)l->heads * (double)(l->head_dim > 0 ? l->head_dim : l->dim / l->heads);
    const bool tied = gpt2 ? !g->untied : l->tied;
    double looked_up = gpt2 ? (double)g->positions * dim : 0.0;

    looked_up += tied ? 0.0 : (double)tsri_model_vocab(spec) * dim;
    return 6.0 * ((double)tsri_model_param_count(spec) - looked_up) +
           (full ? 12.0 : 6.0) * layers * heads_dim * (double)seq;
}

tsri_zero_row tsri_zero_ledger(double n, int d, int stage)
{
    const double devices = (double)d;

    return (tsri_zero_row){.params = 2.0 * n / (stage >= 3 ? devices : 1.0),
                           .grads = 4.0 * n / (stage >= 2 ? devices : 1.0),
                           .optim = 12.0 * n / (stage >= 1 ? devices : 1.0)};
}

int tsri_forecast_best(const tsri_forecast *forecasts, int count)
{
    int best = -1;

    for (int i = 0; i < count; i++) {
        const tsri_forecast *f = &forecasts[i];

        if (f->possible && f->fits && (best < 0 || f->step_s < forecasts[best].step_s)) {
            best = i;
        }
    }
    return best;
}

/* ---- filling in ---- */

/* Logits are known by their size: nothing else of a step has the vocabulary as a dim. */
static size_t logits_bytes(const tsri_job *job)
{
    const tsri_arena *arena = tsri_comm_arena(job->comm);
    const int tp = tsr_mesh_axis_find(job->mesh, "tp");
    const int64_t split = tp >= 0 && !job->options.no_tp ? tsr_mesh_axis_size(job->mesh, tp) : 1;
    const int64_t cols = (tsri_model_vocab(&job->options.model) + split - 1) / split;
    const size_t count = (size_t)(job->row_count * job->options.seq * cols);
    const tsr_dtype type = job->options.fsdp.param_dtype;
    const size_t size = tsr_dtype_size(type == TSR_DTYPE_DEFAULT ? TSR_F32 : type);
    size_t sum = tsri_arena_peak_bytes(arena, TSRI_MEM_ACTIVATION, count * size);

    if (size != sizeof(float)) {
        sum += tsri_arena_peak_bytes(arena, TSRI_MEM_ACTIVATION, count * sizeof(float));
    }
    return sum;
}

static void fill_memory(const tsri_job *job, const tsri_cluster *cluster, tsri_forecast *out)
{
    const double memory = cluster->machine.memory_bytes;

    tsri_job_summarize(job, &out->memory);
    out->logits_bytes = logits_bytes(job);
    (void)snprintf(out->peak, sizeof(out->peak), "%s",
                   out->memory.peak_label != NULL && out->memory.peak_label[0] != '\0'
                       ? out->memory.peak_label
                       : "the model's root");
    out->memory.peak_label = NULL;
    out->fits = memory <= 0.0 || (double)out->memory.total_bytes <= memory;
}

static void fill_axes(const tsri_clock_result *clock, const tsri_cluster *cluster,
                      tsri_forecast *out)
{
    const tsri_machine *m = &cluster->machine;

    out->axes_count = clock->axes_count;
    for (int i = 0; i < clock->axes_count; i++) {
        const tsri_clock_axes *from = &clock->axes[i];
        tsri_forecast_axes *to = &out->axes[i];

        (void)snprintf(to->axes, sizeof(to->axes), "%s", from->group);
        to->size = from->size;
        to->link = from->tier >= 0 ? m->tiers[from->tier].name : "none";
        to->sent = from->sent;
        to->node_bytes = cluster->devices > 0 ? from->crossing[m->tier_count - 1] : 0.0;
        to->busy_s = from->busy_s;
        to->exposed_s = from->exposed_s;
        out->node_bytes += to->node_bytes;
    }
}

static void fill_time(const tsri_job *job, const tsri_clock_result *clock, int size,
                      const tsri_cluster *cluster, tsri_forecast *out)
{
    const tsri_job_options *o = &job->options;
    const bool half = o->fsdp.param_dtype == TSR_BF16 || o->fsdp.param_dtype == TSR_F16;
    const double peak = cluster->machine.peak_flops[half ? TSRI_MACHINE_HALF : TSRI_MACHINE_F32];

    out->step_s = clock->step_s;
    out->compute_s = clock->compute_s;
    out->comm_s = clock->busy_s;
    out->exposed_s = clock->exposed_s;
    out->copy_exposed_s = clock->copy_exposed_s;
    out->flops = clock->flops;
    out->tokens = (double)o->batch * (double)o->micro_batches * (double)o->seq;
    out->tokens_per_s = clock->step_s > 0.0 ? out->tokens / clock->step_s : 0.0;

    const double rate = peak > 0.0 ? out->tokens_per_s / ((double)size * peak) : (double)NAN;

    out->mfu = rate * tsri_model_token_flops(&o->model, o->seq, false);
    out->mfu_full = rate * tsri_model_token_flops(&o->model, o->seq, true);
}

/* ---- the run ---- */

static tsr_status play(const tsri_job *job, const tsri_cluster *cluster, tsri_text *trace,
                       tsri_clock_result *out)
{
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(job->comm), &count);
    tsri_entry *timed = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)count, sizeof(*timed), &timed));
    memcpy(timed, entries, (size_t)count * sizeof(*timed));
    TSR_TRY_GOTO(status, tsri_clock_run(&cluster->machine, timed, count, out), free_timed);
    if (trace != NULL) {
        tsri_trace_begin(trace, tsr_comm_rank(job->comm));
        tsri_trace_add(trace, timed, count, tsr_comm_rank(job->comm), 0.0);
        tsri_trace_end(trace);
        TSR_TRY_GOTO(status, tsri_text_status(trace), free_timed);
    }
free_timed:
    tsri_free(&timed);
    return status;
}

static tsr_status fill(const tsri_job *job, int size, const tsri_cluster *cluster, tsri_text *trace,
                       tsri_forecast *out)
{
    tsri_clock_result *clock = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*clock), &clock));
    TSR_TRY_GOTO(status, play(job, cluster, trace, clock), free_clock);
    fill_memory(job, cluster, out);
    fill_axes(clock, cluster, out);
    fill_time(job, clock, size, cluster, out);
    out->possible = true;
free_clock:
    tsri_free(&clock);
    return status;
}

tsr_status tsri_forecast_run(const tsri_job_options *options, int size, const tsri_cluster *cluster,
                             tsri_text *trace, tsri_forecast *out)
{
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    *out = (tsri_forecast){0};
    (void)snprintf(out->preset, sizeof(out->preset), "%s",
                   options->preset != NULL ? options->preset : "hsdp");
    status = tsri_job_dry_run(options, 0, size, &world, &job);
    if (status == TSR_ERR_INVALID || status == TSR_ERR_UNSUPPORTED || status == TSR_ERR_SHAPE ||
        status == TSR_ERR_PLACEMENT) {
        (void)snprintf(out->why, sizeof(out->why), "%s", tsr_error_message());
        tsr_error_clear();
        return TSR_OK;
    }
    TSR_TRY(status);
    status = fill(job, size, cluster, trace, out);
    tsri_job_close(&job);
    tsr_world_close(&world);
    TSR_TRY(status);
    return TSR_OK;
}
