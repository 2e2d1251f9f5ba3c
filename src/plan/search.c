/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The search: nested choices, each with few values. Of micro-batches and checkpointing only what
 * something can be said for is tried: more of either takes time and saves memory, so less memory is
 * looked for only below what fits without. Trials are sketches; the best are forecast in full. */
#include "plan/search.h"

#include "base/base.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_SIZES = 16,
    MAX_TP = 64,
    FULL_WORK = 8192 /* layers times micro-batches that are forecast in full, about two seconds */
};

typedef struct search {
    const tsri_job_options *base;
    const tsri_cluster *cluster;
    int size;
    int64_t batch; /* sequences of a step */
    tsri_search_progress progress;
    void *context;
    tsri_candidate *trial, *fitting;
    tsri_search *out;
} search;

typedef struct sizes {
    int values[MAX_SIZES];
    int count;
} sizes;

static void add_size(sizes *list, int value)
{
    for (int i = 0; i < list->count; i++) {
        if (list->values[i] == value) {
            return;
        }
    }
    if (list->count < MAX_SIZES) {
        list->values[list->count++] = value;
    }
}

/* ---- the results ---- */

static void keep(tsri_search *out, const tsri_candidate *trial)
{
    int at = out->count;

    if (!tsri_forecast_may_run(&trial->forecast)) {
        return;
    }
    while (at > 0 && out->best[at - 1].forecast.step_s > trial->forecast.step_s) {
        at--;
    }
    if (at == TSRI_SEARCH_KEPT) {
        return;
    }
    const int moved = (int)tsri_min64(out->count, TSRI_SEARCH_KEPT - 1) - at;

    memmove(&out->best[at + 1], &out->best[at], sizeof(*out->best) * (size_t)moved);
    out->best[at] = *trial;
    out->count += out->count < TSRI_SEARCH_KEPT;
}

static int compare_memory(const void *a, const void *b)
{
    const size_t left = ((const tsri_candidate *)a)->forecast.memory.total_bytes;
    const size_t right = ((const tsri_candidate *)b)->forecast.memory.total_bytes;

    return (left > right) - (left < right);
}

static int compare_time(const void *a, const void *b)
{
    const double left = ((const tsri_candidate *)a)->forecast.step_s;
    const double right = ((const tsri_candidate *)b)->forecast.step_s;

    return (left > right) - (left < right);
}

/* Of those that no plan can tell apart the one with the least memory is the best. */
static void order_tied(tsri_search *out)
{
    while (out->tied < out->count &&
           out->best[out->tied].forecast.step_s <=
               (1.0 + TSRI_FORECAST_EQUAL) * out->best[0].forecast.step_s) {
        out->tied++;
    }
    qsort(out->best, (size_t)out->tied, sizeof(*out->best), compare_memory);
}

/* By time, fastest first. */
static void order_all(tsri_search *out)
{
    qsort(out->best, (size_t)out->count, sizeof(*out->best), compare_time);
    out->tied = 0;
    order_tied(out);
}

/* The best in full, as far as that takes no long time. */
static tsr_status forecast_best(search *s)
{
    tsri_search *out = s->out;
    int64_t work = 0;
    int at = 0;

    while (at < out->count && at < TSRI_SEARCH_SHOWN) {
        tsri_candidate *c = &out->best[at];

        work += (int64_t)c->options.model.layers * c->options.micro_batches;
        if (at > 0 && work > FULL_WORK) {
            break;
        }
        TSR_TRY(tsri_forecast_run(&c->options, s->size, s->cluster, NULL, &c->forecast));
        c->full = true;
        if (tsri_forecast_may_run(&c->forecast)) {
            at++;
            continue;
        }
        out->count--;
        memmove(c, c + 1, sizeof(*c) * (size_t)(out->count - at));
    }
    order_all(out);
    return TSR_OK;
}

/* ---- the choices, innermost first ---- */

/* Numbers of micro-batches that divide the step, fewest first, each rank with a row. */
static void list_micro_batches(const search *s, int data_ranks, sizes *out)
{
    static const double apart = 1.3;

    out->count = 0;
    add_size(out, 1);
    for (int64_t micro = 2; micro <= s->batch / data_ranks && micro <= INT_MAX; micro++) {
        if (s->batch % micro == 0 &&
            ((double)micro >= apart * (double)out->values[out->count - 1] ||
             micro == s->batch / data_ranks)) {
            add_size(out, (int)micro);
        }
    }
}

static tsr_status sketch(search *s, int micro, bool *fits)
{
    if (s->progress != NULL) {
        s->progress(s->context, s->out);
    }
    s->out->tried++;
    s->trial->options.micro_batches = micro;
    s->trial->options.batch = s->batch / micro;
    TSR_TRY(tsri_forecast_sketch(&s->trial->options, s->size, s->cluster, &s->trial->forecast));
    *fits = tsri_forecast_may_run(&s->trial->forecast);
    if (*fits) {
        *s->fitting = *s->trial;
    }
    return TSR_OK;
}

/* The fewest of counts[0 .. limit) with which it fits: *found, or limit. */
static tsr_status find_micro_batches(search *s, const sizes *counts, int limit, int *found)
{
    int low = 0;
    int high = limit;
    bool fits = false;

    *found = limit;
    for (int next = 0; low < high;
         next = low == 1 && high == limit ? limit - 1 : (low + high) / 2) {
        TSR_TRY(sketch(s, counts->values[next], &fits));
        if (!s->trial->forecast.possible || (!fits && next == limit - 1)) {
            return TSR_OK;
        }
        high = fits ? next : high;
        low = fits ? low : next + 1;
    }
    *found = high;
    if (high < limit) {
        keep(s->out, s->fitting);
    }
    return TSR_OK;
}

/* More checkpointing with as many micro-batches only takes longer. */
static tsr_status try_checkpointing(search *s, int data_ranks)
{
    static const int every[] = {0, 2, 1};
    sizes counts;
    int limit = 0;

    list_micro_batches(s, data_ranks, &counts);
    limit = counts.count;
    for (int i = 0; i < 3 && limit > 0; i++) {
        s->trial->options.recompute.every = every[i];
        TSR_TRY(find_micro_batches(s, &counts, limit, &limit));
    }
    return TSR_OK;
}

static tsr_status try_presets(search *s, int replicate, int shard)
{
    const char *const both[] = {"hsdp", "hfsdp"};
    const int data_ranks = replicate * shard;

    if (shard == 1 || replicate == 1) {
        s->trial->options.preset = shard == 1 ? "ddp" : "fsdp";
        TSR_TRY(try_checkpointing(s, data_ranks));
        return TSR_OK;
    }
    for (int i = 0; i < 2; i++) {
        s->trial->options.preset = both[i];
        TSR_TRY(try_checkpointing(s, data_ranks));
    }
    return TSR_OK;
}

/* Sequence parallelism sends as much and holds less; without it where it is not legal. */
static tsr_status try_sequence(search *s, int replicate, int shard, int tp)
{
    s->trial->options.sequence_parallel = tp > 1;
    TSR_TRY(try_presets(s, replicate, shard));
    if (tp > 1 && !s->trial->forecast.possible) {
        s->trial->options.sequence_parallel = false;
        TSR_TRY(try_presets(s, replicate, shard));
    }
    return TSR_OK;
}

static void add_search_axis(tsri_job_options *o, const char *name, int size)
{
    if (size > 1) {
        o->axes[o->axis_count++] = (tsr_mesh_axis){name, size};
    }
}

static tsr_status try_shards(search *s, int tp)
{
    const int data = s->size / tp;
    const int node = s->cluster->devices > 0 ? s->cluster->devices : s->size;
    sizes shards = {.count = 0};

    add_size(&shards, data);
    for (int shard = 1; shard < data; shard *= 2) {
        /* within a node, the node, up to eight of them */
        if (shard * tp <= 8 * node) {
            add_size(&shards, shard);
        }
    }
    if (node % tp == 0) {
        add_size(&shards, node / tp);
    }
    for (int i = 0; i < shards.count; i++) {
        tsri_job_options *o = &s->trial->options;
        const int shard = shards.values[i];

        if (data % shard != 0) {
            continue;
        }
        *o = *s->base;
        o->axis_count = 0;
        add_search_axis(o, "replicate", data / shard);
        add_search_axis(o, "shard", shard);
        add_search_axis(o, "tp", tp);
        if (o->axis_count == 0) {
            o->axes[o->axis_count++] = (tsr_mesh_axis){"shard", 1};
        }
        TSR_TRY(try_sequence(s, data / shard, shard, tp));
    }
    return TSR_OK;
}

tsr_status tsri_search_run(const tsri_job_options *options, int size, const tsri_cluster *cluster,
                           tsri_search_progress progress, void *context, tsri_search *out)
{
    search s = {.base = options,
                .cluster = cluster,
                .size = size,
                .batch = options->batch * options->micro_batches,
                .progress = progress,
                .context = context,
                .out = out};
    const int node = cluster->devices > 0 ? cluster->devices : size;
    tsr_status status = TSR_OK;

    out->count = 0;
    out->tied = 0;
    out->tried = 0;
    TSR_TRY(tsri_alloc(1, sizeof(*s.trial), &s.trial));
    TSR_TRY_GOTO(status, tsri_alloc(1, sizeof(*s.fitting), &s.fitting), free_trial);
    for (int tp = 1; tp <= node && tp <= MAX_TP; tp++) {
        if (node % tp == 0 && size % tp == 0 && options->model.heads % tp == 0 &&
            !(options->no_tp && tp > 1)) {
            TSR_TRY_GOTO(status, try_shards(&s, tp), free_trial);
        }
    }
    order_all(out);
    TSR_TRY_GOTO(status, forecast_best(&s), free_trial);
free_trial:
    tsri_free(&s.fitting);
    tsri_free(&s.trial);
    return status;
}

/* ---- the page ---- */

static void print_words(const tsri_job_options *o, FILE *stream)
{
    static const char *const checkpointing[] = {"", " parallel.activation_checkpointing=block",
                                                " parallel.activation_checkpointing=selective"};

    (void)fprintf(stream, "mesh='{");
    for (int a = 0; a < o->axis_count; a++) {
        (void)fprintf(stream, "%s%s: %d", a > 0 ? ", " : "", o->axes[a].name, o->axes[a].size);
    }
    (void)fprintf(stream, "}' parallel.preset=%s train.micro_batches=%d%s%s\n", o->preset,
                  o->micro_batches, checkpointing[o->recompute.every],
                  o->sequence_parallel ? " parallel.sequence_parallel=true" : "");
}

void tsri_search_print(const tsri_search *found, FILE *stream)
{
    static const double gibi = 1024.0 * 1024.0 * 1024.0;
    const int shown = (int)tsri_min64(found->count, TSRI_SEARCH_SHOWN);
    int sketched = 0;

    (void)fprintf(stream, "\n%d layouts tried, the fastest that fit:\n  %10s %-20s %10s %9s  %s\n",
                  found->tried, "step s", "", "GiB a rank", "exposed s", "chosen by");
    for (int i = 0; i < shown; i++) {
        const tsri_candidate *c = &found->best[i];
        const tsri_forecast *f = &c->forecast;
        char span[64];

        (void)snprintf(span, sizeof(span), "%.4f to %.4f", f->step_range.low, f->step_range.high);
        (void)fprintf(stream, "  %10.4f %-20s %10.2f %9.4f %s ", f->step_s, span,
                      (double)f->memory.total_bytes / gibi, f->exposed_s, c->full ? " " : "~");
        sketched += !c->full;
        print_words(&c->options, stream);
    }
    if (sketched > 0) {
        (void)fprintf(stream, "  ~ reckoned from a few layers; plan it alone for exact figures\n");
    }
    if (found->tied > 1) {
        (void)fprintf(
            stream,
            "  a tie: the fastest %d are within %.0f %%, which no plan can tell apart, and "
            "stand by memory\n",
            found->tied, 100.0 * TSRI_FORECAST_EQUAL);
    }
    if (found->count == 0) {
        (void)fprintf(stream, "  none: more ranks, shorter sequences or a smaller model would\n");
    }
}
