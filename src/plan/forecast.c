/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* One forecast: two steps on a simulated world, the second played by the clock. */
#include "plan/forecast.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

#include "plan/trace.h"

/* ---- sums ---- */

double tsri_model_token_flops(const tsri_model_spec *spec, int64_t seq, bool full)
{
    const double heads_dim = (double)(spec->heads * tsri_model_head_dim(spec));
    const int64_t looked_up = (spec->positions + (spec->tied ? 0 : spec->vocab)) * spec->dim;

    return 6.0 * (double)(tsri_model_param_count(spec) - looked_up) +
           (full ? 12.0 : 6.0) * (double)spec->layers * heads_dim * (double)seq;
}

tsri_zero_row tsri_zero_ledger(double n, int d, int stage)
{
    const double devices = (double)d;

    return (tsri_zero_row){.params = 2.0 * n / (stage >= 3 ? devices : 1.0),
                           .grads = 4.0 * n / (stage >= 2 ? devices : 1.0),
                           .optim = 12.0 * n / (stage >= 1 ? devices : 1.0)};
}

bool tsri_forecast_may_run(const tsri_forecast *f)
{
    return f->possible && f->fit != TSRI_FIT_NO;
}

static int fastest(const tsri_forecast *forecasts, int count)
{
    int best = -1;

    for (int i = 0; i < count; i++) {
        if (tsri_forecast_may_run(&forecasts[i]) &&
            (best < 0 || forecasts[i].step_s < forecasts[best].step_s)) {
            best = i;
        }
    }
    return best;
}

bool tsri_forecast_is_tied(const tsri_forecast *f, const tsri_forecast *forecasts, int count)
{
    const int best = fastest(forecasts, count);

    return best >= 0 && tsri_forecast_may_run(f) &&
           f->step_s <= (1.0 + TSRI_FORECAST_EQUAL) * forecasts[best].step_s;
}

int tsri_forecast_best(const tsri_forecast *forecasts, int count)
{
    int best = fastest(forecasts, count);

    for (int i = 0; i < count; i++) {
        if (tsri_forecast_is_tied(&forecasts[i], forecasts, count) &&
            forecasts[i].memory.total_bytes < forecasts[best].memory.total_bytes) {
            best = i;
        }
    }
    return best;
}

void tsri_forecast_rows(const tsri_job_options *o, int size, tsri_rows *out)
{
    int64_t data = o->data_axis_count > 0 ? 1 : size;

    for (int i = 0; i < o->axis_count; i++) {
        const char *name = o->axes[i].name;
        bool is_data = false;

        for (int k = 0; k < o->data_axis_count; k++) {
            is_data = is_data || strcmp(o->data_axes[k], name) == 0;
        }
        if (o->data_axis_count > 0) {
            data *= is_data ? o->axes[i].size : 1;
        } else if (!o->no_tp && strcmp(name, o->tp_axis != NULL ? o->tp_axis : "tp") == 0) {
            data /= o->axes[i].size;
        }
    }
    const int64_t most = (o->batch + data - 1) / data;
    const int64_t busy = most > 0 ? (o->batch + most - 1) / most : 0;

    *out = (tsri_rows){.data_ranks = (int)data,
                       .most = most,
                       .idle = (int)(data - busy),
                       .fewer = most * busy > o->batch ? 1 : 0,
                       .even_batch = most * data * o->micro_batches};
}

/* ---- filling in ---- */

/* Logits are known by their size: nothing else of a step has the vocabulary as a dim. */
static size_t logits_bytes(const tsri_job *job)
{
    const tsri_arena *arena = tsri_comm_arena(job->comm);
    const int tp = tsr_mesh_axis_find(job->mesh, "tp");
    const int64_t split = tp >= 0 && !job->options.no_tp ? tsr_mesh_axis_size(job->mesh, tp) : 1;
    const int64_t cols = (job->options.model.vocab + split - 1) / split;
    const size_t count = (size_t)(job->row_count * job->options.seq * cols);
    const tsr_dtype type = job->options.fsdp.param_dtype;
    const size_t size = tsr_dtype_size(type == TSR_DTYPE_DEFAULT ? TSR_F32 : type);
    size_t sum = tsri_arena_peak_bytes(arena, TSRI_MEM_ACTIVATION, count * size);

    if (size != sizeof(float)) {
        sum += tsri_arena_peak_bytes(arena, TSRI_MEM_ACTIVATION, count * sizeof(float));
    }
    return sum;
}

static tsri_fit find_fit(double total, const tsri_machine *m)
{
    static const double tight = 0.92;

    if (m->memory_bytes <= 0.0) {
        return TSRI_FIT_UNKNOWN;
    }
    if (total > m->memory_bytes - m->headroom_bytes) {
        return TSRI_FIT_NO;
    }
    return total > tight * m->memory_bytes ? TSRI_FIT_TIGHT : TSRI_FIT_YES;
}

static void fill_memory(const tsri_job *job, const tsri_cluster *cluster, tsri_forecast *out)
{
    tsri_job_summarize(job, &out->memory);
    out->logits_bytes = logits_bytes(job);
    (void)snprintf(out->peak, sizeof(out->peak), "%s",
                   out->memory.peak_label != NULL && out->memory.peak_label[0] != '\0'
                       ? out->memory.peak_label
                       : "the model's root");
    out->memory.peak_label = NULL;
    out->fit = find_fit((double)out->memory.total_bytes, &cluster->machine);
}

/* The step on each of the cluster's machines. */
enum {
    USUAL,
    SLOW,
    FAST,
    ENDS
};

typedef struct played {
    tsri_clock_result end[ENDS];
} played;

static tsri_span span_of(double a, double b, double c)
{
    return (tsri_span){fmin(a, fmin(b, c)), fmax(a, fmax(b, c))};
}

#define SPAN_OF(field) span_of(p->end[USUAL].field, p->end[SLOW].field, p->end[FAST].field)

static void fill_axes(const played *p, const tsri_cluster *cluster, tsri_forecast *out)
{
    const tsri_machine *m = &cluster->machine;

    out->axes_count = p->end[USUAL].axes_count;
    for (int i = 0; i < out->axes_count; i++) {
        const tsri_clock_axes *from = &p->end[USUAL].axes[i];
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

/* An end plays the axes in an order of its own. */
static const tsri_clock_axes *axes_like(const tsri_clock_result *clock, const tsri_clock_axes *like)
{
    for (int i = 0; i < clock->axes_count; i++) {
        if (strcmp(clock->axes[i].group, like->group) == 0 && clock->axes[i].size == like->size) {
            return &clock->axes[i];
        }
    }
    return like;
}

static void fill_ranges(const played *p, tsri_forecast *out)
{
    out->step_range = SPAN_OF(step_s);
    out->compute_range = SPAN_OF(compute_s);
    out->comm_range = SPAN_OF(busy_s);
    out->exposed_range = SPAN_OF(exposed_s);
    for (int i = 0; i < out->axes_count; i++) {
        const tsri_clock_axes *usual = &p->end[USUAL].axes[i];
        const tsri_clock_axes *slow = axes_like(&p->end[SLOW], usual);
        const tsri_clock_axes *fast = axes_like(&p->end[FAST], usual);

        out->axes[i].busy_range = span_of(usual->busy_s, slow->busy_s, fast->busy_s);
        out->axes[i].exposed_range = span_of(usual->exposed_s, slow->exposed_s, fast->exposed_s);
    }
}

/* What follows from a step's seconds. */
static void fill_rates(const tsri_job_options *o, int size, const tsri_cluster *cluster,
                       tsri_forecast *out)
{
    const bool half = o->fsdp.param_dtype == TSR_BF16 || o->fsdp.param_dtype == TSR_F16;
    const double peak = cluster->machine.peak_flops[half ? TSRI_MACHINE_HALF : TSRI_MACHINE_F32];
    const double batch = (double)o->batch * (double)(o->micro_batches > 0 ? o->micro_batches : 1);
    const double slow = out->step_range.high > 0.0 ? out->step_s / out->step_range.high : 1.0;
    const double fast = out->step_range.low > 0.0 ? out->step_s / out->step_range.low : 1.0;

    out->tokens = batch * (double)o->seq;
    out->tokens_per_s = out->step_s > 0.0 ? out->tokens / out->step_s : 0.0;

    const double rate = peak > 0.0 ? out->tokens_per_s / ((double)size * peak) : (double)NAN;

    out->mfu = rate * tsri_model_token_flops(&o->model, o->seq, false);
    out->mfu_full = rate * tsri_model_token_flops(&o->model, o->seq, true);
    out->tokens_per_s_range = (tsri_span){out->tokens_per_s * slow, out->tokens_per_s * fast};
    out->mfu_range = (tsri_span){out->mfu * slow, out->mfu * fast};
}

static void fill_time(const tsri_clock_result *clock, tsri_forecast *out)
{
    out->step_s = clock->step_s;
    out->compute_s = clock->compute_s;
    out->comm_s = clock->busy_s;
    out->exposed_s = clock->exposed_s;
    out->copy_exposed_s = clock->copy_exposed_s;
    out->flops = clock->flops;
}

/* ---- the run ---- */

/* The usual end is played last, so that its times are those that remain. */
static tsr_status play_ends(const tsri_cluster *cluster, tsri_entry *timed, int count, played *out)
{
    const tsri_machine *ends[ENDS] = {&cluster->machine, &cluster->slow, &cluster->fast};

    for (int i = ENDS - 1; i >= 0; i--) {
        if (ends[i]->tier_count > 0) {
            TSR_TRY(tsri_clock_run(ends[i], timed, count, &out->end[i]));
        }
    }
    for (int i = SLOW; i < ENDS; i++) {
        if (ends[i]->tier_count == 0) {
            out->end[i] = out->end[USUAL];
        }
    }
    return TSR_OK;
}

static tsr_status play_job(const tsri_job *job, const tsri_cluster *cluster, tsri_text *trace,
                           played *out)
{
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(job->comm), &count);
    tsri_entry *timed = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)count, sizeof(*timed), &timed));
    memcpy(timed, entries, (size_t)count * sizeof(*timed));
    TSR_TRY_GOTO(status, play_ends(cluster, timed, count, out), free_timed);
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

static tsr_status fill_forecast(const tsri_job *job, int size, const tsri_cluster *cluster,
                                tsri_text *trace, tsri_forecast *out)
{
    played *p = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*p), &p));
    TSR_TRY_GOTO(status, play_job(job, cluster, trace, p), free_played);
    fill_memory(job, cluster, out);
    fill_axes(p, cluster, out);
    fill_time(&p->end[USUAL], out);
    fill_ranges(p, out);
    fill_rates(&job->options, size, cluster, out);
    out->counted = job->options.micro_batches;
    out->possible = true;
free_played:
    tsri_free(&p);
    return status;
}

static tsr_status run_all(const tsri_job_options *options, int size, const tsri_cluster *cluster,
                          tsri_text *trace, tsri_forecast *out)
{
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    *out = (tsri_forecast){0};
    (void)snprintf(out->preset, sizeof(out->preset), "%s", tsri_job_preset(options));
    status = tsri_job_dry_run(options, 0, size, &world, &job);
    if (status == TSR_ERR_INVALID || status == TSR_ERR_UNSUPPORTED || status == TSR_ERR_SHAPE ||
        status == TSR_ERR_PLACEMENT) {
        (void)snprintf(out->why, sizeof(out->why), "%s", tsr_error_message());
        tsr_error_clear();
        return TSR_OK;
    }
    TSR_TRY(status);
    status = fill_forecast(job, size, cluster, trace, out);
    tsri_job_close(&job);
    tsr_world_close(&world);
    TSR_TRY(status);
    return TSR_OK;
}

/* ---- more of the same ---- */

static double extend(double a, double b, double times)
{
    return fmax(0.0, b + (b - a) * times);
}

static size_t extend_size(size_t a, size_t b, double times)
{
    return (size_t)extend((double)a, (double)b, times);
}

static tsri_span extend_span(tsri_span a, tsri_span b, double times)
{
    return (tsri_span){extend(a.low, b.low, times), extend(a.high, b.high, times)};
}

static void extend_memory(const tsri_forecast *a, tsri_forecast *b, double times)
{
    const tsri_step_memory *from = &a->memory;
    tsri_step_memory *to = &b->memory;

    for (int kind = 0; kind < TSRI_MEM_COUNT; kind++) {
        to->kind_bytes[kind] = extend_size(from->kind_bytes[kind], to->kind_bytes[kind], times);
        to->kind_most[kind] = extend_size(from->kind_most[kind], to->kind_most[kind], times);
    }
    to->fixed_bytes = extend_size(from->fixed_bytes, to->fixed_bytes, times);
    to->arena_bytes = extend_size(from->arena_bytes, to->arena_bytes, times);
    to->total_bytes = to->fixed_bytes + to->arena_bytes;
    to->host_bytes = extend_size(from->host_bytes, to->host_bytes, times);
    b->logits_bytes = extend_size(a->logits_bytes, b->logits_bytes, times);
}

static void extend_axes(const tsri_forecast *a, tsri_forecast *b, double times)
{
    b->node_bytes = extend(a->node_bytes, b->node_bytes, times);
    for (int i = 0; i < b->axes_count && i < a->axes_count; i++) {
        const tsri_forecast_axes *from = &a->axes[i];
        tsri_forecast_axes *to = &b->axes[i];

        to->sent = extend(from->sent, to->sent, times);
        to->node_bytes = extend(from->node_bytes, to->node_bytes, times);
        to->busy_s = extend(from->busy_s, to->busy_s, times);
        to->exposed_s = extend(from->exposed_s, to->exposed_s, times);
        to->busy_range = extend_span(from->busy_range, to->busy_range, times);
        to->exposed_range = extend_span(from->exposed_range, to->exposed_range, times);
    }
}

/* b has one more of something than a: make it have times more yet. */
static void add_more(const tsri_forecast *a, tsri_forecast *b, double times)
{
    extend_memory(a, b, times);
    extend_axes(a, b, times);
    b->step_s = extend(a->step_s, b->step_s, times);
    b->compute_s = extend(a->compute_s, b->compute_s, times);
    b->comm_s = extend(a->comm_s, b->comm_s, times);
    b->exposed_s = extend(a->exposed_s, b->exposed_s, times);
    b->copy_exposed_s = extend(a->copy_exposed_s, b->copy_exposed_s, times);
    b->flops = extend(a->flops, b->flops, times);
    b->step_range = extend_span(a->step_range, b->step_range, times);
    b->compute_range = extend_span(a->compute_range, b->compute_range, times);
    b->comm_range = extend_span(a->comm_range, b->comm_range, times);
    b->exposed_range = extend_span(a->exposed_range, b->exposed_range, times);
}

/* At most limit micro-batches of options, and the others like the last. */
static tsr_status run_micro_batches(const tsri_job_options *options, int size,
                                    const tsri_cluster *cluster, tsri_text *trace, int limit,
                                    tsri_forecast *out)
{
    const int count = options->micro_batches > 0 ? options->micro_batches : 1;
    tsri_job_options o = *options;
    tsri_forecast *fewer = NULL;
    tsr_status status = TSR_OK;

    if (count <= limit + 1) {
        return run_all(options, size, cluster, trace, out);
    }
    o.micro_batches = limit + 1;
    TSR_TRY(run_all(&o, size, cluster, trace, out));
    if (!out->possible) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc(1, sizeof(*fewer), &fewer));
    o.micro_batches = limit;
    TSR_TRY_GOTO(status, run_all(&o, size, cluster, NULL, fewer), free_fewer);
    add_more(fewer, out, (double)(count - limit - 1));
free_fewer:
    tsri_free(&fewer);
    return status;
}

static void finish(const tsri_job_options *options, int size, const tsri_cluster *cluster,
                   tsri_forecast *out)
{
    if (out->possible) {
        fill_rates(options, size, cluster, out);
        out->fit = find_fit((double)out->memory.total_bytes, &cluster->machine);
    }
}

enum {
    /* Layers times micro-batches: a second or two. */
    EXACT_WORK = 4096,
    /* From the third on micro-batches are alike: the first keeps no sums, the second makes them. */
    LEAST_MICRO_BATCHES = 3,
    SKETCHED_LAYERS = 4
};

tsr_status tsri_forecast_run(const tsri_job_options *options, int size, const tsri_cluster *cluster,
                             tsri_text *trace, tsri_forecast *out)
{
    const int affordable = EXACT_WORK / (options->model.layers + 1);
    const int limit = affordable > LEAST_MICRO_BATCHES ? affordable : LEAST_MICRO_BATCHES;

    TSR_TRY(run_micro_batches(options, size, cluster, trace, limit, out));
    finish(options, size, cluster, out);
    return TSR_OK;
}

tsr_status tsri_forecast_sketch(const tsri_job_options *options, int size,
                                const tsri_cluster *cluster, tsri_forecast *out)
{
    /* Every recompute.every-th block is checkpointed: whole periods. */
    const int period = options->recompute.every > 1 ? options->recompute.every : 1;
    const int layers = options->model.layers;
    const int rest = layers % period;
    const int few = SKETCHED_LAYERS / period * period + rest;
    tsri_job_options o = *options;
    tsri_forecast *fewer = NULL;
    tsr_status status = TSR_OK;

    o.rough = true;
    if (layers <= few + period) {
        TSR_TRY(run_micro_batches(&o, size, cluster, NULL, LEAST_MICRO_BATCHES - 1, out));
        finish(options, size, cluster, out);
        return TSR_OK;
    }
    o.model.layers = few + period;
    TSR_TRY(run_micro_batches(&o, size, cluster, NULL, LEAST_MICRO_BATCHES - 1, out));
    if (!out->possible) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc(1, sizeof(*fewer), &fewer));
    o.model.layers = few;
    TSR_TRY_GOTO(status, run_micro_batches(&o, size, cluster, NULL, LEAST_MICRO_BATCHES - 1, fewer),
                 free_fewer);
    add_more(fewer, out, (double)(layers - few - period) / (double)period);
    finish(options, size, cluster, out);
free_fewer:
    tsri_free(&fewer);
    return status;
}
