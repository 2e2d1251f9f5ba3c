/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Plan and measure one preset after the other in one world.
 *
 * What can fail for a preset alone (a combination that is not legal, memory that is not there) is
 * agreed on by all ranks and becomes its row. A failure within a step ends the job. */
#include "train/compare.h"

#include "train/bench_priv.h"

#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "topo/bind.h"
#include "train/hideable.h"
#include "train/host_memory.h"
#include "train/hosts.h"
#include "train/mesh_auto.h"
#include "train/plan.h"

enum {
    DEFAULT_STEPS = 5,
    WARMUP = 2 /* connections and memory; then optimizer state that was not there before */
};

static const double probe_seconds = 6.0;
static const double learning_rate = 1e-5;

/* Of one step on this rank; doubles alone. */
typedef struct step_times {
    double step_s, compute_s, comm_s, hideable_s, exposed_s;
} step_times;

enum {
    TIMES = (int)(sizeof(step_times) / sizeof(double))
};

typedef struct comparison {
    tsr_world *world;
    tsri_config *config;
    const tsri_compare_observer *observer;
    tsri_compare_report *report;
    int steps;
    int preset; /* the configuration's own */
    bool bf16;

    /* of the preset at work */
    tsri_job_options options;
    tsr_world *dry_world;
    tsri_job *dry, *job;
    step_times *times; /* [steps] */
} comparison;

/* ---- the machine ---- */

static tsr_status keep_cluster(comparison *c, const tsri_text *text)
{
    tsri_compare_report *r = c->report;

    TSR_TRY(tsri_text_status(text));
    if (text->length >= TSRI_COMPARE_CLUSTER_BYTES) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "a cluster file of %d bytes, at most %d", text->length,
                         TSRI_COMPARE_CLUSTER_BYTES - 1);
    }
    memcpy(r->cluster, text->data, (size_t)text->length + 1);
    return TSR_OK;
}

/* What is planned with is what the file says, to its last digit. */
static tsr_status probe(comparison *c, double seconds)
{
    tsri_compare_report *r = c->report;
    tsri_text text = {0};
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_probe(c->world, &c->options, seconds, &r->probe));
    tsri_probe_text(&r->probe, tsr_world_host(c->world, 0), &text);
    status = keep_cluster(c, &text);
    tsri_text_free(&text);
    TSR_TRY(tsr_world_agree(c->world, status));
    if (r->ranks > 1) {
        TSR_TRY(tsri_boot_broadcast(r->cluster, sizeof(r->cluster), 0));
    }
    TSR_TRY(
        tsri_cluster_parse(r->cluster, strlen(r->cluster), "the measured machine", &r->machine));
    r->probed = true;
    return TSR_OK;
}

static double seconds_of(const tsri_compare_options *options)
{
    return (options->seconds > 0.0 ? options->seconds : probe_seconds) / 2.0;
}

static void choose_preset(comparison *c, int preset)
{
    c->config->parallel.preset = preset;
    tsri_config_job(c->config, c->bf16, &c->options);
    c->options.dry_threads = c->report->threads;
    c->options.comm.record = true;
}

/* How far plans on another machine are from those of the rows that ran. */
static tsr_status plan_again(comparison *c, const tsri_compare_options *options,
                             const tsri_machine *machine)
{
    tsri_compare_report *r = c->report;
    tsri_cluster cluster = r->machine;
    tsri_forecast *plan = NULL;
    tsr_status status = TSR_OK;

    cluster.machine = *machine;
    r->apart = 1.0;
    TSR_TRY(tsri_alloc(1, sizeof(*plan), &plan));
    for (int i = 0; i < r->row_count; i++) {
        if (r->rows[i].ran) {
            choose_preset(c, options->presets[i]);
            TSR_TRY_GOTO(status, tsri_forecast_run(&c->options, r->ranks, &cluster, NULL, plan),
                         free_plan);
            const double ratio = plan->step_s / r->rows[i].plan.step_s;

            r->apart = ratio > r->apart ? ratio : r->apart;
            r->apart = 1.0 / ratio > r->apart ? 1.0 / ratio : r->apart;
        }
    }
free_plan:
    tsri_free(&plan);
    return status;
}

/* Once more, after all steps: no plan can be nearer than the machine is to itself. */
static tsr_status probe_again(comparison *c, const tsri_compare_options *options)
{
    tsri_probe_report *again = NULL;
    tsr_status status = TSR_OK;

    if (!c->report->probed) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc(1, sizeof(*again), &again));
    choose_preset(c, c->preset);
    TSR_TRY_GOTO(status, tsri_probe(c->world, &c->options, seconds_of(options), again), free_again);
    TSR_TRY_GOTO(status, plan_again(c, options, &again->machine), free_again);
free_again:
    tsri_free(&again);
    return status;
}

static tsr_status find_machine(comparison *c, const tsri_compare_options *options)
{
    if (options->cluster == NULL) {
        TSR_TRY(probe(c, seconds_of(options)));
    } else {
        TSR_TRY(
            tsr_world_agree(c->world, tsri_cluster_load(options->cluster, &c->report->machine)));
    }
    if (tsr_world_is_speaker(c->world) && c->observer->machine != NULL) {
        c->observer->machine(c->observer->context, c->report);
    }
    return TSR_OK;
}

/* ---- a step ---- */

static tsr_status write_ids(const comparison *c, int64_t step)
{
    tsri_job *job = c->job;
    const int64_t count = job->row_count * job->options.seq;
    const uint64_t vocab = (uint64_t)tsri_model_vocab(&job->options.model);
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

static tsr_status read_ledger(const comparison *c, step_times *out)
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

static tsr_status run_step(const comparison *c, int64_t step, step_times *out)
{
    tsr_device *device = tsri_comm_device(c->job->comm);
    const double exposed = device->exposed_s;
    tsri_step_result result;

    *out = (step_times){0};
    TSR_TRY(write_ids(c, step));
    tsri_recorder_clear(device);
    const double begin = tsri_now_s();
    TSR_TRY(tsri_job_step(c->job, step, learning_rate, 1.0, NULL, &result));
    out->step_s = tsri_now_s() - begin;
    out->exposed_s = device->exposed_s - exposed;
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
static tsr_status exchange(const comparison *c, const void *mine, size_t bytes, void *all)
{
    if (c->report->ranks == 1) {
        memcpy(all, mine, bytes);
        return TSR_OK;
    }
    TSR_TRY(tsri_boot_all_gather(mine, bytes, all));
    return TSR_OK;
}

/* The slowest rank's step, other times' means over ranks; then medians over steps. */
static tsr_status sum_times(const comparison *c, tsri_compare_row *row)
{
    const int ranks = c->report->ranks;
    const size_t bytes = sizeof(step_times) * (size_t)c->steps;
    double *values = NULL;
    double *medians[TIMES] = {&row->step_s, &row->compute_s, &row->comm_s, &row->hideable_s,
                              &row->exposed_s};
    step_times *all = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)ranks, bytes, &all));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)c->steps, sizeof(*values), &values), free_all);
    TSR_TRY_GOTO(status, exchange(c, c->times, bytes, all), free_values);
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

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static tsr_status sum_figures(const comparison *c, const rank_figures *mine, tsri_compare_row *row)
{
    rank_figures *all = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)c->report->ranks, sizeof(*all), &all));
    TSR_TRY_GOTO(status, exchange(c, mine, sizeof(*mine), all), free_all);
    for (int r = 0; r < c->report->ranks; r++) {
        row->planned_bytes = (uint64_t)larger((double)row->planned_bytes, all[r].planned_bytes);
        row->peak_bytes = (uint64_t)larger((double)row->peak_bytes, all[r].peak_bytes);
        row->nic_bytes = larger(row->nic_bytes, all[r].nic_bytes);
        row->host_bytes = larger(row->host_bytes, all[r].host_bytes);
    }
free_all:
    tsri_free(&all);
    return status;
}

static tsri_compare_axes *find_axes(tsri_compare_row *row, const char *name)
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
static tsr_status fill_axes(const comparison *c, tsri_compare_row *row)
{
    tsri_traffic *traffic = NULL;

    TSR_TRY(tsri_alloc(1, sizeof(*traffic), &traffic));
    tsri_traffic_count(tsri_comm_device(c->job->comm), traffic);
    for (int i = 0; i < row->plan.axes_count; i++) {
        find_axes(row, row->plan.axes[i].axes)->planned += row->plan.axes[i].sent;
    }
    for (int i = 0; i < traffic->count; i++) {
        find_axes(row, traffic->rows[i].axes)->measured += traffic->rows[i].sent;
    }
    tsri_free(&traffic);
    return TSR_OK;
}

static tsr_status count_host_bytes(const comparison *c, double *out)
{
    tsri_host_bytes bytes = {0};
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(c->job->comm), &count);

    TSR_TRY(tsri_host_bytes_count(entries, count, c->job->mesh, tsri_world_nodes(c->world),
                                  tsr_world_rank(c->world), &bytes));
    *out = bytes.host;
    return TSR_OK;
}

/* ---- a preset ---- */

static tsr_status plan_preset(comparison *c, tsri_compare_row *row)
{
    const int local = c->report->ranks > 1 ? tsri_boot_get_info()->local_size : 1;
    tsri_plan_summary plan;

    TSR_TRY(
        tsri_forecast_run(&c->options, c->report->ranks, &c->report->machine, NULL, &row->plan));
    if (!row->plan.possible) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s", row->plan.why);
    }
    TSR_TRY(tsri_job_dry_run(&c->options, tsr_world_rank(c->world), c->report->ranks, &c->dry_world,
                             &c->dry));
    tsri_job_summarize(c->dry, &plan);
    row->planned_bytes = plan.total_bytes;
    TSR_TRY(tsri_host_memory_check(plan.total_bytes + plan.host_bytes, local));
    return TSR_OK;
}

static tsr_status open_preset(comparison *c)
{
    TSR_TRY(tsri_job_open(c->world, &c->options, &c->job));
    TSR_TRY(tsri_arena_adopt(tsri_comm_arena(c->job->comm), tsri_comm_arena(c->dry->comm)));
    return TSR_OK;
}

static tsr_status measure_preset(comparison *c, tsri_compare_row *row)
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
        TSR_TRY(run_step(c, i, i < WARMUP ? &ignored : &c->times[i - WARMUP]));
    }
    sent = sent_by_interfaces() - sent;
    tsr_comm_memory(c->job->comm, &now_bytes, &peak_bytes);
    mine.peak_bytes = (double)peak_bytes;
    mine.nic_bytes = c->report->hosts > 1 ? sent / c->steps : 0.0;
    TSR_TRY(count_host_bytes(c, &mine.host_bytes));
    TSR_TRY(fill_axes(c, row));
    TSR_TRY(sum_figures(c, &mine, row));
    TSR_TRY(sum_times(c, row));
    row->tokens_per_s = row->plan.tokens / row->step_s;
    row->ran = true;
    return TSR_OK;
}

static void close_preset(comparison *c)
{
    tsri_job_close(&c->job);
    tsri_job_close(&c->dry);
    if (c->dry_world != NULL) {
        tsr_world_close(&c->dry_world);
    }
}

/* Whether every rank came through; else the row says what kept one. */
static bool agreed(const comparison *c, tsr_status mine, tsri_compare_row *row)
{
    if (tsr_world_agree(c->world, mine) == TSR_OK) {
        return true;
    }
    (void)snprintf(row->why, sizeof(row->why), "%s", tsr_error_message());
    tsr_error_clear();
    return false;
}

static tsr_status run_preset(comparison *c, int preset)
{
    tsri_compare_row *row = &c->report->rows[c->report->row_count++];
    tsr_status status = TSR_OK;

    *row = (tsri_compare_row){0};
    choose_preset(c, preset);
    if (agreed(c, plan_preset(c, row), row) && agreed(c, open_preset(c), row)) {
        status = measure_preset(c, row);
    }
    close_preset(c);
    TSR_TRY(status);
    if (tsr_world_is_speaker(c->world) && c->observer->row != NULL) {
        c->observer->row(c->observer->context, c->report);
    }
    return TSR_OK;
}

/* ---- all of it ---- */

static tsr_status fit(comparison *c, tsr_status loaded, tsri_text *text)
{
    const int size = tsr_world_size(c->world);
    const tsri_boot_info *info = tsri_boot_get_info();

    TSR_TRY(loaded);
    TSR_TRY(
        tsri_config_fit(c->config, size, tsri_mesh_hosts(tsri_world_nodes(c->world), size), NULL));
    if (size > 1 && c->config->run.bind == 0) { /* as a run would, and before it is measured */
        tsri_topo_binding binding;

        TSR_TRY(tsri_topo_bind(info->local_rank, info->local_size, true, &binding));
    }
    tsri_config_print(c->config, text);
    TSR_TRY(tsri_text_status(text));
    return TSR_OK;
}

static void describe(comparison *c)
{
    const tsri_config *config = c->config;
    tsri_compare_report *r = c->report;
    const int local = r->ranks > 1 ? tsri_boot_get_info()->local_size : 1;
    size_t used = 0;

    r->hosts = r->ranks > 1 ? tsri_boot_get_info()->node_count : 1;
    r->threads =
        config->run.threads > 0 ? (int)config->run.threads : tsri_cpu_default_threads(local);
    r->steps = c->steps;
    r->arch = config->spec.arch == TSRI_ARCH_GPT2 ? "gpt2" : "llama";
    r->params = tsri_model_param_count(&config->spec);
    r->batch = config->train.batch;
    r->seq = config->train.seq;
    r->micro_batches = config->train.micro_batches;
    for (int i = 0; i < config->mesh.count && used < sizeof(r->mesh); i++) {
        used +=
            (size_t)snprintf(r->mesh + used, sizeof(r->mesh) - used, "%s%s=%d", i > 0 ? "," : "",
                             config->mesh.names[i], config->mesh.axes[i].size);
    }
}

static tsr_status run(comparison *c, tsr_status loaded, const tsri_compare_options *options)
{
    tsri_text text = {0};
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, tsr_world_agree(c->world, fit(c, loaded, &text)), free_text);
    TSR_TRY_GOTO(
        status, tsr_world_check_same(c->world, "the configuration", text.data, (size_t)text.length),
        free_text);
    describe(c);
    c->preset = c->config->parallel.preset;
    c->bf16 = (tsri_world_backend(c->world)->caps & TSR_CAP_BF16) != 0;
    choose_preset(c, c->preset);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)c->steps, sizeof(*c->times), &c->times), free_text);
    TSR_TRY_GOTO(status, find_machine(c, options), free_text);
    for (int i = 0; i < options->preset_count; i++) {
        TSR_TRY_GOTO(status, run_preset(c, options->presets[i]), free_text);
    }
    TSR_TRY_GOTO(status, probe_again(c, options), free_text);
free_text:
    tsri_text_free(&text);
    return status;
}

tsr_status tsri_compare_run(tsr_world *world, tsri_config *config, tsr_status loaded,
                            const tsri_compare_options *options,
                            const tsri_compare_observer *observer, tsri_compare_report *out)
{
    static const tsri_compare_observer nobody = {0};
    comparison c = {.world = world,
                    .config = config,
                    .observer = observer != NULL ? observer : &nobody,
                    .report = out,
                    .steps = options->steps > 0 ? options->steps : DEFAULT_STEPS};

    memset(out, 0, sizeof(*out));
    out->ranks = tsr_world_size(world);
    const tsr_status status = tsri_world_settle(world, run(&c, loaded, options));

    tsri_free(&c.times);
    return status;
}

int tsri_compare_order(const tsri_compare_report *report, bool planned, int *order)
{
    int count = 0;

    for (int i = 0; i < report->row_count; i++) {
        const tsri_compare_row *row = &report->rows[i];
        const double s = planned ? row->plan.step_s : row->step_s;
        int at = count;

        if (!row->ran) {
            continue;
        }
        while (at > 0) {
            const tsri_compare_row *before = &report->rows[order[at - 1]];

            if ((planned ? before->plan.step_s : before->step_s) <= s) {
                break;
            }
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
        count++;
    }
    return count;
}
