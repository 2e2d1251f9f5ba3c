/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The search: five nested choices, each with few values, every combination forecast. */
#include "train/search.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

enum {
    MAX_SIZES = 16,
    MAX_TP = 64
};

typedef struct search {
    const tsri_job_options *base;
    const tsri_cluster *cluster;
    int size;
    int64_t batch; /* sequences of a step */
    tsri_search_progress progress;
    void *context;
    tsri_candidate *trial;
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

static int model_heads(const tsri_model_spec *spec)
{
    return spec->arch == TSRI_ARCH_GPT2 ? spec->gpt2.heads : spec->llama.heads;
}

/* ---- the results ---- */

static void keep(tsri_search *out, const tsri_candidate *trial)
{
    int at = out->count;

    if (!trial->forecast.possible || !trial->forecast.fits) {
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

static tsr_status try_one(search *s)
{
    if (s->progress != NULL) {
        s->progress(s->context, s->out);
    }
    s->out->tried++;
    TSR_TRY(tsri_forecast_run(&s->trial->options, s->size, s->cluster, NULL, &s->trial->forecast));
    keep(s->out, s->trial);
    return TSR_OK;
}

/* ---- the choices, innermost first ---- */

/* What no number of micro-batches makes smaller. */
static bool states_fit(const search *s)
{
    const size_t *kinds = s->trial->forecast.memory.kind_most;
    const double states =
        (double)(kinds[TSRI_MEM_PARAM] + kinds[TSRI_MEM_GRAD] + kinds[TSRI_MEM_OPTIM]);

    return s->cluster->machine.memory_bytes <= 0.0 || states <= s->cluster->machine.memory_bytes;
}

/* More micro-batches need less memory and more time: the first number that fits is the best. */
static tsr_status try_micro_batches(search *s, int data_ranks)
{
    for (int64_t micro = 1; micro <= s->batch / data_ranks; micro *= 2) {
        const tsri_forecast *f = &s->trial->forecast;

        if (s->batch % micro != 0) {
            continue;
        }
        s->trial->options.micro_batches = (int)micro;
        s->trial->options.batch = s->batch / micro;
        TSR_TRY(try_one(s));
        if (!f->possible || f->fits || !states_fit(s)) {
            break;
        }
    }
    return TSR_OK;
}

static tsr_status try_checkpointing(search *s, int data_ranks)
{
    for (int every = 0; every <= 1; every++) {
        s->trial->options.checkpoint_every = every;
        TSR_TRY(try_micro_batches(s, data_ranks));
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

static void add_axis(tsri_job_options *o, const char *name, int size)
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
        add_axis(o, "replicate", data / shard);
        add_axis(o, "shard", shard);
        add_axis(o, "tp", tp);
        if (o->axis_count == 0) {
            o->axes[o->axis_count++] = (tsr_mesh_axis){"shard", 1};
        }
        o->sequence_parallel = s->base->sequence_parallel && tp > 1;
        TSR_TRY(try_presets(s, data / shard, shard));
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
    out->tried = 0;
    TSR_TRY(tsri_alloc(1, sizeof(*s.trial), &s.trial));
    for (int tp = 1; tp <= node && tp <= MAX_TP; tp++) {
        if (node % tp == 0 && size % tp == 0 && model_heads(&options->model) % tp == 0 &&
            !(options->no_tp && tp > 1)) {
            TSR_TRY_GOTO(status, try_shards(&s, tp), free_trial);
        }
    }
free_trial:
    tsri_free(&s.trial);
    return status;
}

/* ---- the page ---- */

void tsri_search_print(const tsri_search *found, FILE *stream)
{
    static const double gibi = 1024.0 * 1024.0 * 1024.0;

    (void)fprintf(stream, "\n%d layouts tried, the fastest that fit:\n  %10s %10s %9s  %s\n",
                  found->tried, "step s", "GiB a rank", "exposed s", "chosen by");
    for (int i = 0; i < found->count; i++) {
        const tsri_candidate *c = &found->best[i];
        const tsri_job_options *o = &c->options;

        (void)fprintf(stream, "  %10.4f %10.2f %9.4f  mesh='{", c->forecast.step_s,
                      (double)c->forecast.memory.total_bytes / gibi, c->forecast.exposed_s);
        for (int a = 0; a < o->axis_count; a++) {
            (void)fprintf(stream, "%s%s: %d", a > 0 ? ", " : "", o->axes[a].name, o->axes[a].size);
        }
        (void)fprintf(stream, "}' parallel.preset=%s train.micro_batches=%d%s\n", o->preset,
                      o->micro_batches,
                      o->checkpoint_every > 0 ? " parallel.activation_checkpointing=block" : "");
    }
    if (found->count == 0) {
        (void)fprintf(stream, "  none: more ranks, shorter sequences or a smaller model would\n");
    }
}
