/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Forecasts as pages: what fits, what a step costs, which preset wins and why. */
#include "base/base.h"

#include <math.h>
#include <string.h>

#include "plan/forecast.h"

static const double mega = 1e6;
static const double giga = 1e9;
static const double gibi = 1024.0 * 1024.0 * 1024.0;
static const double percent = 100.0;

enum {
    MESH_BYTES = 192,
    SPAN_BYTES = 64,
    ADAM_BYTES = 16 /* f32 parameters, gradients and both moments of a parameter */
};

const char *tsri_forecast_mesh(const tsri_job_options *o, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < o->axis_count && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s=%d", i > 0 ? " " : "",
                                 o->axes[i].name, o->axes[i].size);
    }
    return text;
}

static const char *dtype_text(tsr_dtype dtype)
{
    return tsr_dtype_name(dtype == TSR_DTYPE_DEFAULT ? TSR_F32 : dtype);
}

/* "0.3120 to 0.4012" */
static const char *span_text(tsri_span span, double unit, int digits, char *text)
{
    (void)snprintf(text, SPAN_BYTES, "%.*f to %.*f", digits, span.low * unit, digits,
                   span.high * unit);
    return text;
}

static double seconds_share(double part, double whole)
{
    return whole > 0.0 ? percent * fmin(1.0, part / whole) : 0.0;
}

/* ---- what it is of ---- */

/* Ranks that the batch leaves without work, or with less than others. */
static void print_rows(const tsri_forecast_head *head, FILE *stream)
{
    tsri_rows rows;

    tsri_forecast_rows(head->options, head->size, &rows);
    if (rows.idle > 0) {
        (void)fprintf(stream, "         %d of %d data ranks have no sequence, and wait\n",
                      rows.idle, rows.data_ranks);
    }
    if (rows.fewer > 0) {
        (void)fprintf(stream,
                      "         uneven: some data ranks have %lld sequences, one has fewer\n",
                      (long long)rows.most);
    }
    if (rows.idle > 0 || rows.fewer > 0) {
        (void)fprintf(stream, "         train.batch=%lld would be even\n",
                      (long long)rows.even_batch);
    }
}

/* How far to believe it. */
static void print_trust(const tsri_cluster *c, FILE *stream)
{
    (void)fprintf(stream, "times    %s",
                  c->machine.inline_compute
                      ? "of the cluster file's rates"
                      : "assumed, not measured: the cluster file's rates; no backend for its "
                        "devices runs yet");
    if (c->assumed) {
        (void)fprintf(stream, "; it gives no ranges, %.0f %% either way are assumed",
                      percent * TSRI_CLUSTER_ASSUMED);
    } else {
        (void)fprintf(stream, "; \"to\" spans its slow and fast ends");
    }
    (void)fprintf(stream, "\n");
}

void tsri_forecast_print_head(const tsri_forecast_head *head, FILE *stream)
{
    const tsri_job_options *o = head->options;
    const tsri_cluster *c = head->cluster;
    const int devices = c->devices > 0 ? c->devices : head->size;
    const double params = (double)tsri_model_param_count(&o->model);
    char mesh[MESH_BYTES];

    (void)fprintf(stream,
                  "model    %s, %.4g %s parameters; %s, gradients reduced in %s\n"
                  "cluster  %s: %d devices on %d node%s of %d; file hash %016llx%s\n"
                  "mesh     %s\n"
                  "step     %d x %lld sequences of %lld tokens%s\n",
                  tsri_model_arch_name(&o->model), params / (params < giga ? mega : giga),
                  params < giga ? "million" : "billion", dtype_text(o->fsdp.param_dtype),
                  dtype_text(o->fsdp.reduce_dtype), c->machine.name, head->size,
                  (head->size + devices - 1) / devices, head->size > devices ? "s" : "", devices,
                  (unsigned long long)c->hash,
                  head->by_default ? "; the default, --cluster names another" : "",
                  tsri_forecast_mesh(o, mesh, sizeof(mesh)), o->micro_batches, (long long)o->batch,
                  (long long)o->seq,
                  o->recompute.every > 0 ? "; activations are checkpointed" : "");
    print_rows(head, stream);
    print_trust(c, stream);
}

/* ---- one forecast ---- */

static void print_row(FILE *stream, const char *name, double bytes, const char *what)
{
    (void)fprintf(stream, "  %-20s %12.3f GiB  %s\n", name, bytes / gibi, what);
}

static const char *fit_sentence(tsri_fit fit)
{
    switch (fit) {
    case TSRI_FIT_NO:
        return "it does not fit";
    case TSRI_FIT_TIGHT:
        return "it fits, tight: above 92 %";
    case TSRI_FIT_YES:
        return "it fits";
    case TSRI_FIT_UNKNOWN:
    default:
        return "not known to fit";
    }
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
    if (memory <= 0.0) {
        (void)fprintf(stream, "  %-20s %12s      the cluster file gives no memory_gib\n", "device",
                      "unknown");
        return;
    }
    print_row(stream, "headroom", head->cluster->machine.headroom_bytes,
              "context, communicators, workspaces: no plan counts them");
    print_row(stream, "device", memory, fit_sentence(f->fit));
}

static void print_axes(const tsri_forecast *f, FILE *stream)
{
    char busy[SPAN_BYTES];
    char exposed[SPAN_BYTES];

    (void)fprintf(stream,
                  "\ncommunication of a step\n  %-20s %6s %-8s %12s %14s %9s %19s %9s %9s %19s\n",
                  "axes", "ranks", "link", "rank sends", "node sends", "busy s", "", "hidden s",
                  "exposed s", "");
    for (int i = 0; i < f->axes_count; i++) {
        const tsri_forecast_axes *a = &f->axes[i];

        (void)fprintf(stream, "  %-20s %6d %-8s %9.3f GB %11.3f GB %9.4f %19s %9.4f %9.4f %19s\n",
                      a->axes, a->size, a->link, a->sent / giga, a->node_bytes / giga, a->busy_s,
                      span_text(a->busy_range, 1.0, 4, busy), fmax(0.0, a->busy_s - a->exposed_s),
                      a->exposed_s, span_text(a->exposed_range, 1.0, 4, exposed));
    }
    if (f->axes_count == 0) {
        (void)fprintf(stream, "  none\n");
    }
}

static void print_mfu(const tsri_forecast *f, FILE *stream)
{
    char span[SPAN_BYTES];

    if (isnan(f->mfu)) {
        (void)fprintf(stream, "  %-20s %12s    the cluster file gives no peak\n", "MFU", "unknown");
        return;
    }
    (void)fprintf(
        stream,
        "  %-20s %12.1f %%  %-20s  6 N + 6 L h s a token (causal); %.1f %% by 6 N + 12 L h "
        "s\n",
        "MFU", percent * f->mfu, span_text(f->mfu_range, percent, 1, span), percent * f->mfu_full);
}

static void print_time(const tsri_forecast_head *head, const tsri_forecast *f, FILE *stream)
{
    const double devices = (double)head->size;
    char span[SPAN_BYTES];

    (void)fprintf(stream, "\ntime of a step\n  %-20s %12.4f s  %s\n", "compute", f->compute_s,
                  span_text(f->compute_range, 1.0, 4, span));
    (void)fprintf(stream,
                  "  %-20s %12.4f s  %-20s  %.1f %% of the step, %.1f %% of the communication\n",
                  "exposed", f->exposed_s, span_text(f->exposed_range, 1.0, 4, span),
                  seconds_share(f->exposed_s, f->step_s), seconds_share(f->exposed_s, f->comm_s));
    if (f->copy_exposed_s > 0.0) {
        (void)fprintf(stream, "  %-20s %12.4f s  transfers to and from host memory\n", "waiting",
                      f->copy_exposed_s);
    }
    (void)fprintf(stream, "  %-20s %12.4f s  %s\n", "step", f->step_s,
                  span_text(f->step_range, 1.0, 4, span));
    (void)fprintf(stream, "  %-20s %12.0f    %s\n", "tokens/s", f->tokens_per_s,
                  span_text(f->tokens_per_s_range, 1.0, 0, span));
    (void)fprintf(stream, "  %-20s %12.0f    %s\n", "  a device", f->tokens_per_s / devices,
                  span_text(f->tokens_per_s_range, 1.0 / devices, 0, span));
    print_mfu(f, stream);
    if (f->counted < head->options->micro_batches) {
        (void)fprintf(stream, "  %-20s %12d of %d micro-batches; the others are like the last\n",
                      "counted", f->counted, head->options->micro_batches);
    }
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

const char *tsri_fit_word(tsri_fit fit)
{
    static const char *const words[] = {[TSRI_FIT_UNKNOWN] = "?",
                                        [TSRI_FIT_NO] = "no",
                                        [TSRI_FIT_TIGHT] = "tight",
                                        [TSRI_FIT_YES] = "yes"};

    return words[fit];
}

static void print_cells(const tsri_forecast *f, FILE *stream)
{
    char span[SPAN_BYTES];

    if (!f->possible) {
        (void)fprintf(stream, "  %-8s not possible: %s\n", f->preset, f->why);
        return;
    }
    (void)fprintf(stream, "  %-8s %10.2f %-6s %10.4f %-20s %12.0f ", f->preset,
                  (double)f->memory.total_bytes / gibi, tsri_fit_word(f->fit), f->step_s,
                  span_text(f->step_range, 1.0, 4, span), f->tokens_per_s);
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

static void print_slower(const tsri_forecast *best, const tsri_forecast *f, FILE *stream)
{
    const double behind = percent * (f->step_s / best->step_s - 1.0);
    double more = 0.0;
    const tsri_forecast_axes *axes = find_difference(best, f, &more);

    if (axes != NULL && more > 0.5 * (f->step_s - best->step_s)) {
        (void)fprintf(stream, "  %s is %.1f %% slower: compute waits %.4f s more for %s over %s\n",
                      f->preset, behind, more, axes->axes, axes->link);
    } else {
        (void)fprintf(stream, "  %s is %.1f %% slower\n", f->preset, behind);
    }
}

static void print_loser(const tsri_forecast_head *head, const tsri_forecast *best, bool tied,
                        const tsri_forecast *f, FILE *stream)
{
    const tsri_machine *m = &head->cluster->machine;

    if (f->fit == TSRI_FIT_NO) {
        (void)fprintf(stream, "  %s does not fit: %.1f GiB of %.1f, %.1f of them headroom\n",
                      f->preset, (double)f->memory.total_bytes / gibi, m->memory_bytes / gibi,
                      m->headroom_bytes / gibi);
    } else if (tied) {
        (void)fprintf(stream, "  %s is equal (%+.1f %%), with %.1f GiB instead of %.1f\n",
                      f->preset, percent * (f->step_s / best->step_s - 1.0),
                      (double)f->memory.total_bytes / gibi,
                      (double)best->memory.total_bytes / gibi);
    } else {
        print_slower(best, f, stream);
    }
}

static int count_tied(const tsri_forecast *forecasts, int count)
{
    int tied = 0;

    for (int i = 0; i < count; i++) {
        tied += tsri_forecast_is_tied(&forecasts[i], forecasts, count);
    }
    return tied;
}

static void print_verdict(const tsri_forecast_head *head, const tsri_forecast *forecasts, int count,
                          FILE *stream)
{
    const int best = tsri_forecast_best(forecasts, count);
    char span[SPAN_BYTES];

    if (best < 0) {
        tsri_forecast_print_hopeless(forecasts, count, stream);
        return;
    }
    const tsri_forecast *f = &forecasts[best];
    const int others = count_tied(forecasts, count) - 1;

    (void)fprintf(stream, "\n%s %s: %.4f s a step (%s), of which compute waits %.4f s%s\n",
                  f->preset, others > 0 ? "comes first" : "wins", f->step_s,
                  span_text(f->step_range, 1.0, 4, span), f->exposed_s,
                  strcmp(f->preset, "ddp") == 0
                      ? "; the model fits one device, so nothing need be gathered"
                      : "");
    if (others > 0) {
        (void)fprintf(stream,
                      "  a tie: %d other%s within %.0f %%, which no plan can tell apart; %s needs "
                      "the least memory\n",
                      others, others > 1 ? "s are" : " is", percent * TSRI_FORECAST_EQUAL,
                      f->preset);
    }
    if (f->fit == TSRI_FIT_UNKNOWN) {
        (void)fprintf(stream,
                      "  whether it fits is not known: the cluster file gives no memory_gib\n");
    }
    for (int i = 0; i < count; i++) {
        if (i != best && forecasts[i].possible) {
            print_loser(head, f, tsri_forecast_is_tied(&forecasts[i], forecasts, count),
                        &forecasts[i], stream);
        }
    }
}

void tsri_forecast_print_hopeless(const tsri_forecast *forecasts, int count, FILE *stream)
{
    bool possible = false;

    for (int i = 0; i < count; i++) {
        possible = possible || forecasts[i].possible;
    }
    if (!possible) {
        (void)fprintf(stream, "\nnothing is possible: see why above\n");
        return;
    }
    (void)fprintf(stream, "\nnothing fits: shard over more ranks, checkpoint activations "
                          "(parallel.activation_checkpointing), use more micro-batches, or "
                          "offload; --search tries the first three\n");
}

void tsri_forecast_print_table(const tsri_forecast_head *head, const tsri_forecast *forecasts,
                               int count, FILE *stream)
{
    (void)fprintf(stream, "\n  %-8s %10s %-6s %10s %-20s %12s %7s %9s %9s %12s\n", "preset",
                  "GiB a rank", "fits", "step s", "", "tokens/s", "MFU", "comm s", "exposed s",
                  "node GB sent");
    for (int i = 0; i < count; i++) {
        print_cells(&forecasts[i], stream);
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
