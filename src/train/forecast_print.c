/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Forecasts as pages: what fits, what a step costs, which preset wins and why. */
#include "base/base.h"
#include "base/json.h"

#include <math.h>
#include <string.h>

#include "train/forecast.h"

static const double mega = 1e6;
static const double giga = 1e9;
static const double gibi = 1024.0 * 1024.0 * 1024.0;
static const double percent = 100.0;
static const double tight = 0.9;

enum {
    MESH_BYTES = 192,
    ADAM_BYTES = 16 /* f32 parameters, gradients and both moments of a parameter */
};

static const char *mesh_text(const tsri_job_options *o, char *text)
{
    int used = 0;

    text[0] = '\0';
    for (int i = 0; i < o->axis_count && used < MESH_BYTES; i++) {
        used += snprintf(text + used, (size_t)(MESH_BYTES - used), "%s%s=%d", i > 0 ? " " : "",
                         o->axes[i].name, o->axes[i].size);
    }
    return text;
}

static const char *dtype_text(tsr_dtype dtype)
{
    return tsr_dtype_name(dtype == TSR_DTYPE_DEFAULT ? TSR_F32 : dtype);
}

static double seconds_share(double part, double whole)
{
    return whole > 0.0 ? percent * fmin(1.0, part / whole) : 0.0;
}

/* ---- what it is of ---- */

void tsri_forecast_print_head(const tsri_forecast_head *head, FILE *stream)
{
    const tsri_job_options *o = head->options;
    const tsri_cluster *c = head->cluster;
    const int devices = c->devices > 0 ? c->devices : head->size;
    const double params = (double)tsri_model_param_count(&o->model);
    char mesh[MESH_BYTES];

    (void)fprintf(stream,
                  "model    %s, %.4g %s parameters; %s, gradients reduced in %s\n"
                  "cluster  %s: %d devices on %d node%s of %d; file hash %016llx\n"
                  "mesh     %s\n"
                  "step     %d x %lld sequences of %lld tokens%s\n",
                  o->model.arch == TSRI_ARCH_GPT2 ? "gpt2" : "llama",
                  params / (params < giga ? mega : giga), params < giga ? "million" : "billion",
                  dtype_text(o->fsdp.param_dtype), dtype_text(o->fsdp.reduce_dtype),
                  c->machine.name, head->size, (head->size + devices - 1) / devices,
                  head->size > devices ? "s" : "", devices, (unsigned long long)c->hash,
                  mesh_text(o, mesh), o->micro_batches, (long long)o->batch, (long long)o->seq,
                  o->checkpoint_every > 0 ? "; activations are checkpointed" : "");
}

/* ---- one forecast ---- */

static void print_row(FILE *stream, const char *name, double bytes, const char *what)
{
    (void)fprintf(stream, "  %-20s %12.3f GiB  %s\n", name, bytes / gibi, what);
}

static void print_memory(const tsri_forecast_head *head, const tsri_forecast *f, FILE *stream)
{
    static const char *const what[TSRI_MEM_COUNT] = {
        [TSRI_MEM_PARAM] = "at rest",
        [TSRI_MEM_GRAD] = "reduced, of the step",
        [TSRI_MEM_OPTIM] = "moments of the optimizer",
        [TSRI_MEM_SLOT_PARAM] = "gathered, of the units at work",
        [TSRI_MEM_SLOT_GRAD] = "full gradients on their way to be reduced",
        [TSRI_MEM_ACTIVATION] = "values kept for backward, and their gradients",
        [TSRI_MEM_WORKSPACE] = "scratch of kernels",
        [TSRI_MEM_OTHER] = "tokens, tables, scalars",
    };
    const double memory = head->cluster->machine.memory_bytes;

    (void)fprintf(stream, "\nmemory of a rank at the step's peak, in %s\n", f->peak);
    for (int kind = 0; kind < TSRI_MEM_COUNT; kind++) {
        print_row(stream, tsri_mem_name((tsri_mem_kind)kind), (double)f->memory.kind_bytes[kind],
                  what[kind]);
        if (kind == TSRI_MEM_ACTIVATION && f->logits_bytes > 0) {
            print_row(stream, "  of that logits", (double)f->logits_bytes, "and their gradient");
        }
    }
    print_row(stream, "planned", (double)f->memory.total_bytes, "all buffers, with their layout");
    if (f->memory.host_bytes > 0) {
        print_row(stream, "in host memory", (double)f->memory.host_bytes, "offloaded");
    }
    if (memory > 0.0) {
        print_row(stream, "device", memory, f->fits ? "it fits" : "it does not fit");
    }
}

static void print_axes(const tsri_forecast *f, FILE *stream)
{
    (void)fprintf(stream, "\ncommunication of a step\n  %-20s %5s %-8s %12s %14s %9s %9s %9s\n",
                  "axes", "ranks", "link", "rank sends", "node sends", "busy s", "hidden s",
                  "exposed s");
    for (int i = 0; i < f->axes_count; i++) {
        const tsri_forecast_axes *a = &f->axes[i];

        (void)fprintf(stream, "  %-20s %5d %-8s %9.3f GB %11.3f GB %9.4f %9.4f %9.4f\n", a->axes,
                      a->size, a->link, a->sent / giga, a->node_bytes / giga, a->busy_s,
                      fmax(0.0, a->busy_s - a->exposed_s), a->exposed_s);
    }
    if (f->axes_count == 0) {
        (void)fprintf(stream, "  none\n");
    }
}

static void print_time(const tsri_forecast_head *head, const tsri_forecast *f, FILE *stream)
{
    (void)fprintf(stream,
                  "\ntime of a step\n"
                  "  %-20s %12.4f s\n  %-20s %12.4f s  %.1f %% of the step, %.1f %% of the "
                  "communication\n",
                  "compute", f->compute_s, "exposed", f->exposed_s,
                  seconds_share(f->exposed_s, f->step_s), seconds_share(f->exposed_s, f->comm_s));
    if (f->copy_exposed_s > 0.0) {
        (void)fprintf(stream, "  %-20s %12.4f s  transfers to and from host memory\n", "waiting",
                      f->copy_exposed_s);
    }
    (void)fprintf(stream, "  %-20s %12.4f s\n  %-20s %12.0f    %.0f a device\n", "step", f->step_s,
                  "tokens/s", f->tokens_per_s, f->tokens_per_s / (double)head->size);
    if (isnan(f->mfu)) {
        (void)fprintf(stream, "  %-20s %12s    the cluster file gives no peak\n", "MFU", "unknown");
        return;
    }
    (void)fprintf(stream,
                  "  %-20s %12.1f %%  6 N + 6 L h s a token (causal); %.1f %% by 6 N + 12 L h s\n",
                  "MFU", percent * f->mfu, percent * f->mfu_full);
}

void tsri_forecast_print(const tsri_forecast_head *head, const tsri_forecast *forecast,
                         FILE *stream)
{
    (void)fprintf(stream, "\n== %s\n", forecast->preset);
    if (!forecast->possible) {
        (void)fprintf(stream, "not possible: %s\n", forecast->why);
        return;
    }
    print_memory(head, forecast, stream);
    print_axes(forecast, stream);
    print_time(head, forecast, stream);
}

/* ---- several ---- */

static void print_cells(const tsri_forecast_head *head, const tsri_forecast *f, FILE *stream)
{
    const double memory = head->cluster->machine.memory_bytes;
    const double total = (double)f->memory.total_bytes;
    const char *fits = memory <= 0.0            ? "?"
                       : !f->fits               ? "no"
                       : total > tight * memory ? "tight"
                                                : "yes";

    if (!f->possible) {
        (void)fprintf(stream, "  %-8s not possible: %s\n", f->preset, f->why);
        return;
    }
    (void)fprintf(stream, "  %-8s %10.2f %-6s %10.4f %12.0f ", f->preset, total / gibi, fits,
                  f->step_s, f->tokens_per_s);
    if (isnan(f->mfu)) {
        (void)fprintf(stream, "%7s", "?");
    } else {
        (void)fprintf(stream, "%6.1f%%", percent * f->mfu);
    }
    (void)fprintf(stream, " %9.4f %9.4f %12.3f\n", f->comm_s, f->exposed_s, f->node_bytes / giga);
}

/* The axes over which b waits longest beyond a. */
static const tsri_forecast_axes *find_difference(const tsri_forecast *a, const tsri_forecast *b,
                                                 double *out)
{
    const tsri_forecast_axes *worst = NULL;

    *out = 0.0;
    for (int i = 0; i < b->axes_count; i++) {
        double more = b->axes[i].exposed_s;

        for (int k = 0; k < a->axes_count; k++) {
            more -= strcmp(a->axes[k].axes, b->axes[i].axes) == 0 ? a->axes[k].exposed_s : 0.0;
        }
        if (more > *out) {
            *out = more;
            worst = &b->axes[i];
        }
    }
    return worst;
}

static void print_loser(const tsri_forecast_head *head, const tsri_forecast *best,
                        const tsri_forecast *f, FILE *stream)
{
    const double behind = percent * (f->step_s / best->step_s - 1.0);
    double more = 0.0;
    const tsri_forecast_axes *axes = find_difference(best, f, &more);

    if (!f->fits) {
        (void)fprintf(stream, "  %s does not fit: %.1f GiB of %.1f\n", f->preset,
                      (double)f->memory.total_bytes / gibi,
                      head->cluster->machine.memory_bytes / gibi);
    } else if (behind < 1.0) {
        (void)fprintf(stream, "  %s is as fast (+%.1f %%)\n", f->preset, behind);
    } else if (axes != NULL && more > 0.5 * (f->step_s - best->step_s)) {
        (void)fprintf(stream, "  %s is %.1f %% slower: compute waits %.4f s more for %s over %s\n",
                      f->preset, behind, more, axes->axes, axes->link);
    } else {
        (void)fprintf(stream, "  %s is %.1f %% slower\n", f->preset, behind);
    }
}

static void print_verdict(const tsri_forecast_head *head, const tsri_forecast *forecasts, int count,
                          FILE *stream)
{
    const int best = tsri_forecast_best(forecasts, count);

    if (best < 0) {
        (void)fprintf(stream, "\nnothing fits: shard over more ranks, checkpoint activations "
                              "(parallel.activation_checkpointing), use more micro-batches, or "
                              "offload; --search tries the first three\n");
        return;
    }
    const tsri_forecast *f = &forecasts[best];

    (void)fprintf(stream, "\n%s wins: %.4f s a step, of which compute waits %.4f s%s\n", f->preset,
                  f->step_s, f->exposed_s,
                  strcmp(f->preset, "ddp") == 0
                      ? "; the model fits one device, so nothing need be gathered"
                      : "");
    for (int i = 0; i < count; i++) {
        if (i != best && forecasts[i].possible) {
            print_loser(head, f, &forecasts[i], stream);
        }
    }
}

void tsri_forecast_print_table(const tsri_forecast_head *head, const tsri_forecast *forecasts,
                               int count, FILE *stream)
{
    (void)fprintf(stream, "\n  %-8s %10s %-6s %10s %12s %7s %9s %9s %12s\n", "preset", "GiB a rank",
                  "fits", "step s", "tokens/s", "MFU", "comm s", "exposed s", "node GB sent");
    for (int i = 0; i < count; i++) {
        print_cells(head, &forecasts[i], stream);
    }
    print_verdict(head, forecasts, count, stream);
}

/* ---- states ---- */

/* Gradients at their most, when the last unit has reduced its own. */
static double states(const tsri_forecast *f)
{
    return (double)(f->memory.kind_most[TSRI_MEM_PARAM] + f->memory.kind_most[TSRI_MEM_GRAD] +
                    f->memory.kind_most[TSRI_MEM_OPTIM]);
}

void tsri_forecast_print_ledger(const tsri_forecast_head *head, const tsri_forecast *forecasts,
                                int count, FILE *stream)
{
    static const char *const names[] = {"ddp", "zero1", "zero2", "fsdp"};
    const double n = (double)tsri_model_param_count(&head->options->model);
    int d = head->size;

    for (int i = 0; i < head->options->axis_count; i++) {
        d /= strcmp(head->options->axes[i].name, "tp") == 0 ? head->options->axes[i].size : 1;
    }
    const double piece = n * (double)d / (double)head->size;

    (void)fprintf(
        stream,
        "\nstates of %.4g parameters a rank over %d data ranks, GB\n"
        "  %-8s %10s %10s %10s %10s   by the textbook: bf16 parameters 2, f32 gradients 4,"
        "\n  %-8s %10s %10s %10s %10s   master and moments 12 bytes a parameter; here\n",
        piece, d, "", "parameters", "gradients", "optimizer", "sum", "", "", "", "", "");
    for (int stage = 0; stage < 4; stage++) {
        const tsri_zero_row row = tsri_zero_ledger(piece, d, stage);

        (void)fprintf(stream, "  %-8s %10.2f %10.2f %10.2f %10.2f", names[stage], row.params / giga,
                      row.grads / giga, row.optim / giga,
                      (row.params + row.grads + row.optim) / giga);
        for (int i = 0; i < count; i++) {
            if (forecasts[i].possible && strcmp(forecasts[i].preset, names[stage]) == 0) {
                (void)fprintf(stream, "   %.2f", states(&forecasts[i]) / giga);
            }
        }
        (void)fprintf(stream, "\n");
    }
    (void)fprintf(stream, "  here: the most of each\n");
}

/* ---- for machines ---- */

static json_t *axes_json(const tsri_forecast_axes *a)
{
    return json_pack("{s:s, s:i, s:s, s:f, s:f, s:f, s:f}", "axes", a->axes, "ranks", a->size,
                     "link", a->link, "sent_bytes", a->sent, "node_bytes", a->node_bytes, "busy_s",
                     a->busy_s, "exposed_s", a->exposed_s);
}

static json_t *memory_json(const tsri_forecast *f)
{
    json_t *memory = json_object();

    for (int kind = 0; kind < TSRI_MEM_COUNT; kind++) {
        (void)json_object_set_new(memory, tsri_mem_name((tsri_mem_kind)kind),
                                  json_integer((json_int_t)f->memory.kind_bytes[kind]));
    }
    (void)json_object_set_new(memory, "logits", json_integer((json_int_t)f->logits_bytes));
    (void)json_object_set_new(memory, "total", json_integer((json_int_t)f->memory.total_bytes));
    (void)json_object_set_new(memory, "host", json_integer((json_int_t)f->memory.host_bytes));
    (void)json_object_set_new(memory, "peak", json_string(f->peak));
    return memory;
}

static json_t *number_or_null(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static json_t *forecast_json(const tsri_forecast *f)
{
    json_t *axes = json_array();

    if (!f->possible) {
        json_decref(axes);
        return json_pack("{s:s, s:b, s:s}", "preset", f->preset, "possible", 0, "why", f->why);
    }
    for (int i = 0; i < f->axes_count; i++) {
        (void)json_array_append_new(axes, axes_json(&f->axes[i]));
    }
    return json_pack("{s:s, s:b, s:b, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}",
                     "preset", f->preset, "possible", 1, "fits", f->fits, "memory_bytes",
                     memory_json(f), "axes", axes, "step_s", f->step_s, "compute_s", f->compute_s,
                     "comm_s", f->comm_s, "exposed_s", f->exposed_s, "copy_exposed_s",
                     f->copy_exposed_s, "tokens", f->tokens, "tokens_per_s", f->tokens_per_s,
                     "node_bytes", f->node_bytes, "mfu", number_or_null(f->mfu), "mfu_full",
                     number_or_null(f->mfu_full));
}

tsr_status tsri_forecast_print_json(const tsri_forecast_head *head, const tsri_forecast *forecasts,
                                    int count, FILE *stream)
{
    const int best = tsri_forecast_best(forecasts, count);
    char hash[32];
    char mesh[MESH_BYTES];
    json_t *list = json_array();

    for (int i = 0; i < count; i++) {
        (void)json_array_append_new(list, forecast_json(&forecasts[i]));
    }
    (void)snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)head->cluster->hash);
    json_t *root = json_pack("{s:s, s:s, s:i, s:s, s:I, s:f, s:o, s:o}", "cluster",
                             head->cluster->machine.name, "cluster_hash", hash, "ranks", head->size,
                             "mesh", mesh_text(head->options, mesh), "parameters",
                             (json_int_t)tsri_model_param_count(&head->options->model),
                             "memory_bytes", head->cluster->machine.memory_bytes, "forecasts", list,
                             "best", best < 0 ? json_null() : json_string(forecasts[best].preset));

    if (root == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the forecast as JSON");
    }
    const int failed = json_dumpf(root, stream, JSON_INDENT(2) | JSON_PRESERVE_ORDER);

    json_decref(root);
    if (failed != 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot write the forecast as JSON");
    }
    (void)fprintf(stream, "\n");
    return TSR_OK;
}
