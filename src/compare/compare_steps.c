/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Steps of a preset that is open, and what they say: times, traffic, memory. */
#include "compare_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "plan/hideable.h"
#include "plan/hosts.h"
#include "plan/step_cost.h"

enum {
    WARMUP = 2 /* connections and memory; then optimizer state that was not there before */
};

static const double learning_rate = 1e-5;

/* Of one step on this rank; doubles alone. */
typedef struct step_times {
    double step_s, compute_s, comm_s, hideable_s, exposed_s;
} step_times;

enum {
    TIMES = (int)(sizeof(step_times) / sizeof(double))
};

typedef struct step_run {
    tsr_world *world;
    tsri_job *job;
    int ranks, hosts, steps;
    step_times *times; /* [steps] */
} step_run;

/* ---- a step ---- */

static tsr_status write_ids(const step_run *c, int64_t step)
{
    tsri_job *job = c->job;
    const int64_t count = job->row_count * job->options.seq;
    const uint64_t vocab = (uint64_t)job->options.model.vocab;
    int32_t *ids = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)count + 1, sizeof(*ids), &ids));
    for (int micro = 0; micro < job->options.micro_batches; micro++) {
        for (int64_t i = 0; i <= count; i++) {
            const int64_t key[3] = {step, micro, job->row_begin * job->options.seq + i};

            ids[i] = (int32_t)(tsri_hash(key, sizeof(key), job->options.seed) % vocab);
        }
        TSR_TRY_GOTO(status, tsri_job_write_batch(job, micro, ids, ids + 1), out);
    }
out:
    tsri_free(&ids);
    return status;
}

typedef struct interval {
    double begin_s, end_s;
} interval;

static int by_begin(const void *a, const void *b)
{
    const interval *x = a;
    const interval *y = b;

    return (x->begin_s > y->begin_s) - (x->begin_s < y->begin_s);
}

/* Seconds that at least one of spans[count] covers; sorts them. */
static double covered(interval *spans, int count)
{
    double sum = 0.0;
    double at = 0.0;

    qsort(spans, (size_t)count, sizeof(*spans), by_begin);
    for (int i = 0; i < count; i++) {
        const double from = spans[i].begin_s > at ? spans[i].begin_s : at;

        sum += spans[i].end_s > from ? spans[i].end_s - from : 0.0;
        at = spans[i].end_s > at ? spans[i].end_s : at;
    }
    return sum;
}

static tsr_status read_ledger(const step_run *c, step_times *out)
{
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(c->job->comm), &count);
    interval *spans = NULL;
    int used = 0;

    TSR_TRY(tsri_alloc((size_t)count + 1, sizeof(*spans), &spans));
    for (int i = 0; i < count; i++) {
        const tsri_entry *e = &entries[i];

        if (e->kind == TSRI_ENTRY_COLLECTIVE) {
            spans[used++] = (interval){e->begin_s, e->end_s};
        } else if (e->kind == TSRI_ENTRY_KERNEL && e->stream == TSRI_STREAM_COMPUTE) {
            out->compute_s += e->end_s - e->begin_s;
        }
    }
    out->comm_s = covered(spans, used);
    tsri_free(&spans);
    TSR_TRY(tsri_hideable_s(entries, count, &out->hideable_s));
    return TSR_OK;
}

static tsr_status time_step(const step_run *c, int64_t step, step_times *out)
{
    tsr_device *device = tsri_comm_device(c->job->comm);
    const double exposed = tsri_exposed_s(device);
    tsri_step_result result;

    *out = (step_times){0};
    TSR_TRY(write_ids(c, step));
    tsri_recorder_clear(device);
    const double begin = tsri_now_s();
    TSR_TRY(tsri_job_step(c->job, step, learning_rate, 1.0, NULL, &result));
    out->step_s = tsri_now_s() - begin;
    out->exposed_s = tsri_exposed_s(device) - exposed;
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        TSR_TRY(tsri_stream_sync(tsri_comm_stream(c->job->comm, (tsri_stream_kind)kind)));
    }
    TSR_TRY(read_ledger(c, out));
    return TSR_OK;
}

/* ---- interfaces ---- */

static double read_counter(const char *name)
{
    char path[320];
    double value = 0.0;

    (void)snprintf(path, sizeof(path), "/sys/class/net/%s/statistics/tx_bytes", name);
    FILE *file = fopen(path, "re");

    if (file != NULL) {
        char line[64];

        value = fgets(line, sizeof(line), file) != NULL ? strtod(line, NULL) : 0.0;
        (void)fclose(file);
    }
    return value;
}

/* Bytes that this host's interfaces have sent, but for the one to itself; 0: unknown. */
static double sent_by_interfaces(void)
{
    DIR *folder = opendir("/sys/class/net");
    double sum = 0.0;

    if (folder == NULL) {
        return 0.0;
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "lo") != 0) {
            sum += read_counter(entry->d_name);
        }
    }
    (void)closedir(folder);
    return sum;
}

/* ---- a preset's figures ---- */

/* What ranks tell each other of a preset; doubles alone. */
typedef struct rank_figures {
    double planned_bytes, peak_bytes, nic_bytes, host_bytes;
} rank_figures;

/* all [ranks * count] of every rank. */
static tsr_status gather_all(const step_run *c, const void *mine, size_t bytes, void *all)
{
    if (c->ranks == 1) {
        memcpy(all, mine, bytes);
        return TSR_OK;
    }
    TSR_TRY(tsri_team_all_gather(tsri_boot_job(), "comparing the ranks' times", TSR_OK, mine, bytes,
                                 all));
    return TSR_OK;
}

/* The slowest rank's step, other times' means over ranks; then medians over steps. */
static tsr_status sum_times(const step_run *c, tsri_compare_row *row)
{
    const int ranks = c->ranks;
    const size_t bytes = sizeof(step_times) * (size_t)c->steps;
    double *values = NULL;
    double *medians[TIMES] = {&row->step_s, &row->compute_s, &row->comm_s, &row->hideable_s,
                              &row->exposed_s};
    step_times *all = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)ranks, bytes, &all));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)c->steps, sizeof(*values), &values), free_all);
    TSR_TRY_GOTO(status, gather_all(c, c->times, bytes, all), free_values);
    for (int t = 0; t < TIMES; t++) {
        for (int s = 0; s < c->steps; s++) {
            values[s] = 0.0;
            for (int r = 0; r < ranks; r++) {
                double one[TIMES];

                memcpy(one, &all[(ptrdiff_t)r * c->steps + s], sizeof(one));
                values[s] = t > 0                ? values[s] + one[t] / ranks
                            : one[t] > values[s] ? one[t]
                                                 : values[s];
            }
        }
        *medians[t] = tsri_bench_median(values, c->steps);
        if (t == 0) {
            row->min_s = values[0]; /* sorted now */
            row->max_s = values[c->steps - 1];
        }
    }
free_values:
    tsri_free(&values);
free_all:
    tsri_free(&all);
    return status;
}

static tsr_status sum_figures(const step_run *c, const rank_figures *mine, tsri_compare_row *row)
{
    rank_figures *all = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)c->ranks, sizeof(*all), &all));
    TSR_TRY_GOTO(status, gather_all(c, mine, sizeof(*mine), all), free_all);
    for (int r = 0; r < c->ranks; r++) {
        row->planned_bytes =
            (uint64_t)tsri_max_double((double)row->planned_bytes, all[r].planned_bytes);
        row->peak_bytes = (uint64_t)tsri_max_double((double)row->peak_bytes, all[r].peak_bytes);
        row->nic_bytes = tsri_max_double(row->nic_bytes, all[r].nic_bytes);
        row->host_bytes = tsri_max_double(row->host_bytes, all[r].host_bytes);
    }
free_all:
    tsri_free(&all);
    return status;
}

static tsri_compare_axes *find_axes_row(tsri_compare_row *row, const char *name)
{
    for (int i = 0; i < row->axes_count; i++) {
        if (strcmp(row->axes[i].axes, name) == 0) {
            return &row->axes[i];
        }
    }
    if (row->axes_count == TSRI_CLOCK_MAX_AXES) {
        return &row->axes[TSRI_CLOCK_MAX_AXES - 1];
    }
    tsri_compare_axes *axes = &row->axes[row->axes_count++];

    *axes = (tsri_compare_axes){0};
    (void)snprintf(axes->axes, sizeof(axes->axes), "%s", name);
    return axes;
}

/* Of the newest step, and of the plan. */
static tsr_status fill_axes(const step_run *c, tsri_compare_row *row)
{
    tsri_traffic *traffic = NULL;

    TSR_TRY(tsri_alloc(1, sizeof(*traffic), &traffic));
    tsri_traffic_count(tsri_comm_device(c->job->comm), traffic);
    for (int i = 0; i < row->plan.axes_count; i++) {
        find_axes_row(row, row->plan.axes[i].axes)->planned += row->plan.axes[i].sent;
    }
    for (int i = 0; i < traffic->count; i++) {
        find_axes_row(row, traffic->rows[i].axes)->measured += traffic->rows[i].sent;
    }
    tsri_free(&traffic);
    return TSR_OK;
}

static tsr_status count_host_bytes(const step_run *c, double *out)
{
    tsri_host_bytes bytes = {0};
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(c->job->comm), &count);

    TSR_TRY(tsri_host_bytes_count(entries, count, c->job->mesh, tsri_world_nodes(c->world),
                                  tsr_world_rank(c->world), &bytes));
    *out = bytes.host;
    return TSR_OK;
}

/* ---- all of it ---- */

static tsr_status measure_preset(step_run *c, tsri_compare_row *row)
{
    rank_figures mine = {.planned_bytes = (double)row->planned_bytes};
    double sent = 0.0;
    size_t now_bytes = 0;
    size_t peak_bytes = 0;

    for (int i = 0; i < WARMUP + c->steps; i++) {
        step_times ignored;

        if (i == WARMUP) {
            sent = sent_by_interfaces();
        }
        TSR_TRY(time_step(c, i, i < WARMUP ? &ignored : &c->times[i - WARMUP]));
    }
    sent = sent_by_interfaces() - sent;
    tsr_comm_memory(c->job->comm, &now_bytes, &peak_bytes);
    mine.peak_bytes = (double)peak_bytes;
    mine.nic_bytes = c->hosts > 1 ? sent / c->steps : 0.0;
    TSR_TRY(count_host_bytes(c, &mine.host_bytes));
    TSR_TRY(fill_axes(c, row));
    TSR_TRY(sum_figures(c, &mine, row));
    TSR_TRY(sum_times(c, row));
    row->tokens_per_s = row->plan.tokens / row->step_s;
    row->ran = true;
    return TSR_OK;
}

tsr_status tsri_compare_measure(tsri_job *job, int hosts, int steps, tsri_compare_row *row)
{
    step_run run = {.world = job->world,
                    .job = job,
                    .ranks = tsr_world_size(job->world),
                    .hosts = hosts,
                    .steps = steps};
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)steps, sizeof(*run.times), &run.times));
    status = measure_preset(&run, row);
    tsri_free(&run.times);
    TSR_TRY(status);
    return TSR_OK;
}
