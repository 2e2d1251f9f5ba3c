/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The training loop.
 *
 * Every rank makes a dry run of its own step on a simulated world first. Its arena plan is adopted
 * by the real job, so that the first step runs in planned memory already; it stays open, because
 * names in the plan are those of its modules. What can fail on one rank alone is followed by an
 * agreement, until steps begin; then a failing rank takes the job down. */
#include "train/loop.h"

#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <math.h>
#include <string.h>

#include "checkpoint/hf.h"
#include "job/from_config.h"
#include "plan/fit.h"
#include "plan/host_memory.h"
#include "plan/hosts.h"
#include "plan/mesh_auto.h"
#include "plan/plan.h"
#include "plan/trace.h"
#include "topo/bind.h"
#include "train/data.h"
#include "train/run_folder.h"
#include "train/start_links.h"

enum {
    TRACE_FIRST = 1, /* the first step warms up caches */
    TRACE_STEPS = 3,
    MOST_OVERFLOWS = 25, /* in a row: from the greatest loss scale to the least */
    DESCRIPTION_BYTES = 128
};

typedef struct training {
    tsr_world *world;
    tsri_config *config;
    const tsri_train_observer *observer;
    bool speaks;

    tsri_data *data;
    tsri_job_options options;
    tsr_world *dry_world;
    tsri_job *dry, *job;
    tsri_plan_numbers planned;
    tsri_topo_binding binding;
    tsri_cluster *declared; /* what run.cluster says; NULL: nothing */
    tsri_start_links links;
    tsri_run_folder folder; /* of the speaker */
    tsri_text config_text, line, trace;
    tsri_traffic traffic;
    tsri_own_times *own_times;
    tsri_straggler straggler;

    int32_t *ids, *labels; /* [rows of this rank, seq] */
    tsr_schedule schedule;
    int64_t step;
    double begin_s, mean_step_s; /* of the newest steps */
    double counted_tokens, counted_s;
    int departures, overflows;
    tsri_train_report report;
} training;

/* ---- preparations ---- */

static tsr_status open_data(const tsri_config *config, tsri_data **out)
{
    const int64_t vocab = tsri_model_vocab(&config->spec);

    if (vocab < 256) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "data.kind text has 256 tokens, the bytes, but the model's vocabulary has "
                         "%lld",
                         (long long)vocab);
    }
    TSR_TRY(
        tsri_data_open(config->data.path, config->train.seq, (uint64_t)config->train.seed, out));
    return TSR_OK;
}

static tsr_status fill_options(const tsri_config *config, int local_ranks, tsri_job_options *out)
{
    const int threads = (int)config->run.threads;

    tsri_job_from_config(config, tsri_here_computes_bf16(), out);
    out->dry_threads = threads > 0 ? threads : tsri_cpu_default_threads(local_ranks);
    return TSR_OK;
}

/* The weights of model.hf, which names a folder, or the config.json in it. */
static tsr_status open_weights(const tsri_config *config, tsri_safetensors **out)
{
    static const char name[] = "config.json";
    char folder[TSRI_RUN_PATH_BYTES];
    const size_t length = strlen(config->model.hf);
    const size_t end = length - (length < sizeof(name) ? length : sizeof(name) - 1);

    if (strcmp(config->model.hf + end, name) != 0 ||
        (end > 0 && config->model.hf[end - 1] != '/')) {
        TSR_TRY(tsri_safetensors_open(config->model.hf, out));
        return TSR_OK;
    }
    (void)snprintf(folder, sizeof(folder), "%.*s.", (int)end, config->model.hf);
    TSR_TRY(tsri_safetensors_open(folder, out));
    return TSR_OK;
}

/* Do the weights of model.hf fit the model? */
static tsr_status check_weights(const tsri_config *config, const tsri_job *dry)
{
    tsri_safetensors *weights = NULL;
    tsr_status status = TSR_OK;

    if (config->model.hf[0] == '\0') {
        return TSR_OK;
    }
    TSR_TRY(open_weights(config, &weights));
    TSR_TRY_GOTO(status, tsri_hf_check(weights, &config->spec, dry->params, dry->param_count, NULL),
                 close);
close:
    tsri_safetensors_close(&weights);
    return status;
}

static tsr_status check_job(tsri_config *config, int ranks, bool one_host)
{
    tsri_job_options options;
    tsr_world *world = NULL;
    tsri_job *dry = NULL;
    tsri_plan_summary plan;
    tsr_status status = TSR_OK;

    TSR_TRY(fill_options(config, ranks, &options));
    TSR_TRY(tsri_job_dry_run(&options, 0, ranks, &world, &dry));
    TSR_TRY_GOTO(status, check_weights(config, dry), close);
    tsri_job_summarize(dry, &plan);
    if (one_host) {
        TSR_TRY_GOTO(status, tsri_host_memory_check(plan.total_bytes + plan.host_bytes, ranks),
                     close);
    }
close:
    tsri_job_close(&dry);
    tsr_world_close(&world);
    return status;
}

static tsr_status load_cluster(const tsri_config *config, tsri_cluster **out)
{
    if (config->run.cluster[0] == '\0') {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc(1, sizeof(**out), out));
    TSR_TRY(tsri_cluster_load(config->run.cluster, *out));
    return TSR_OK;
}

static tsr_status check_cluster(const tsri_config *config)
{
    tsri_cluster *cluster = NULL;
    const tsr_status status = load_cluster(config, &cluster);

    tsri_free(&cluster);
    TSR_TRY(status);
    return TSR_OK;
}

tsr_status tsri_train_check(tsri_config *config, int ranks, int hosts, bool one_host)
{
    tsri_data *data = NULL;

    const tsri_config_memory memory = {
        .device_bytes = one_host ? tsri_host_memory_available() / (size_t)ranks : 0,
        .bf16 = tsri_here_computes_bf16()};

    TSR_TRY(tsri_config_fit(config, ranks, hosts, &memory));
    TSR_TRY(check_cluster(config));
    TSR_TRY(tsri_run_folder_check(config->run.dir));
    TSR_TRY(open_data(config, &data));
    tsri_data_close(&data);
    TSR_TRY(check_job(config, ranks, one_host));
    return TSR_OK;
}

/* Local. Before threads are counted and started. */
static tsr_status bind(training *t)
{
    const tsri_boot_info *info = tsri_boot_get_info();

    if (tsr_world_size(t->world) == 1 || t->config->run.bind != 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_topo_bind(info->local_rank, info->local_size, true, &t->binding));
    return TSR_OK;
}

/* Local: what this rank can find out alone. */
static tsr_status prepare(training *t, char *description)
{
    const int size = tsr_world_size(t->world);
    const int local_ranks = size > 1 ? tsri_boot_get_info()->local_size : 1;

    TSR_TRY(bind(t));
    TSR_TRY(load_cluster(t->config, &t->declared));
    TSR_TRY(open_data(t->config, &t->data));
    TSR_TRY(tsri_data_describe(t->data, description, DESCRIPTION_BYTES));
    TSR_TRY(fill_options(t->config, local_ranks, &t->options));
    TSR_TRY(tsri_job_dry_run(&t->options, tsr_world_rank(t->world), size, &t->dry_world, &t->dry));
    tsri_plan_get_numbers(t->dry, &t->planned);
    t->schedule = tsri_schedule_from_config(t->config);
    return TSR_OK;
}

/* Collective over the world. What rank 0 finds counts for all, so that they choose one mesh. */
static tsr_status share_memory(const training *t, size_t *out)
{
    const int size = tsr_world_size(t->world);
    const int local = size > 1 ? tsri_boot_get_info()->local_size : 1;

    *out = tsri_host_memory_available() / (size_t)local;
    if (size > 1) {
        TSR_TRY(
            tsri_team_broadcast(tsri_boot_job(), "comparing memory", TSR_OK, out, sizeof(*out), 0));
    }
    return TSR_OK;
}

static tsr_status fit(training *t, tsr_status loaded, size_t device_bytes)
{
    const int size = tsr_world_size(t->world);
    const tsri_config_memory memory = {.device_bytes = device_bytes,
                                       .bf16 = tsri_here_computes_bf16()};

    TSR_TRY(loaded);
    TSR_TRY(tsri_config_fit(t->config, size, tsri_mesh_hosts(tsri_world_nodes(t->world), size),
                            &memory));
    tsri_config_print(t->config, &t->config_text);
    TSR_TRY(tsri_text_status(&t->config_text));
    return TSR_OK;
}

/* ---- the run folder ---- */

static tsr_status write_plan(const training *t, const tsri_plan_numbers *ranks)
{
    FILE *file = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_run_folder_create(&t->folder, "plan.txt", &file));
    status = tsri_job_write_plan(t->dry, file);
    tsri_plan_write_ranks(ranks, tsr_world_size(t->world), file);
    if (status == TSR_OK) {
        TSR_TRY(tsri_run_folder_finish(&t->folder, "plan.txt", file));
    } else {
        (void)fclose(file);
    }
    TSR_TRY(status);
    return TSR_OK;
}

static tsr_status open_folder(training *t, const tsri_plan_numbers *ranks)
{
    if (!t->speaks) {
        return TSR_OK;
    }
    TSR_TRY(tsri_run_folder_open(t->config->run.dir, &t->folder));
    (void)snprintf(t->report.run_dir, sizeof(t->report.run_dir), "%s", t->folder.dir);
    TSR_TRY(tsri_run_folder_write(&t->folder, "config.yaml", &t->config_text));
    TSR_TRY(write_plan(t, ranks));
    return TSR_OK;
}

/* Collective over the world. The plans of all ranks, then the folder on one of them. */
static tsr_status share_plan(training *t)
{
    const int size = tsr_world_size(t->world);
    tsri_plan_numbers *ranks = NULL;
    tsr_status status = tsri_alloc((size_t)size, sizeof(*ranks), &ranks);

    if (size > 1) {
        status = tsri_team_all_gather(tsri_boot_job(), "comparing plans", status, &t->planned,
                                      sizeof(t->planned), ranks);
    } else if (status == TSR_OK) {
        ranks[0] = t->planned;
    }
    TSR_TRY_GOTO(status, status, free_ranks);
    TSR_TRY_GOTO(status,
                 tsri_world_agree(t->world, "opening the run's folder", open_folder(t, ranks)),
                 free_ranks);
free_ranks:
    tsri_free(&ranks);
    return status;
}

/* ---- the real job ---- */

static tsr_status load_weights(training *t)
{
    tsri_safetensors *weights = NULL;
    tsr_status status = TSR_OK;

    if (t->config->model.hf[0] == '\0') {
        return TSR_OK;
    }
    TSR_TRY(open_weights(t->config, &weights));
    TSR_TRY_GOTO(status,
                 tsri_hf_load(weights, &t->config->spec, t->job->params, t->job->param_count,
                              t->config->model_notice),
                 close);
close:
    tsri_safetensors_close(&weights);
    return status;
}

static tsr_status ready(training *t)
{
    const size_t tokens = (size_t)(t->job->row_count * t->config->train.seq);

    TSR_TRY(load_weights(t));
    TSR_TRY(tsri_arena_adopt(tsri_comm_arena(t->job->comm), tsri_comm_arena(t->dry->comm)));
    TSR_TRY(tsri_alloc(tokens, sizeof(*t->ids), &t->ids));
    TSR_TRY(tsri_alloc(tokens, sizeof(*t->labels), &t->labels));
    return TSR_OK;
}

static void note(const training *t, const char *text)
{
    if (t->speaks && t->observer->note != NULL) {
        t->observer->note(t->observer->context, text);
    }
}

static void warn_of_links(const training *t)
{
    char text[320];

    for (int i = 0; tsri_start_links_warning(&t->links, t->config, i, text, sizeof(text)); i++) {
        note(t, text);
    }
}

/* The schedule ends before its warm-up does: said, because the rate asked for is never reached. */
static void warn_of_warmup(const training *t)
{
    const tsri_config_train *c = &t->config->train;
    char text[256];

    if (c->warmup > c->steps && t->config->is_set[tsri_option_find("train.warmup")]) {
        (void)snprintf(text, sizeof(text),
                       "train.warmup is %lld steps, train.steps %lld: the learning rate gets to "
                       "%.3g and not to train.lr, %.3g",
                       (long long)c->warmup, (long long)c->steps,
                       tsr_schedule_lr(&t->schedule, c->steps - 1), c->lr);
        note(t, text);
    }
}

static void tell_start(const training *t)
{
    char mesh[192];
    char links[512];
    const tsri_config_train *c = &t->config->train;

    if (!t->speaks || t->observer->start == NULL) {
        return;
    }
    tsri_start_links_text(&t->links, links, sizeof(links));
    const tsri_train_start start = {
        .run_dir = t->folder.dir,
        .run_dir_taken = t->folder.renamed,
        .arch = t->options.model.arch == TSRI_ARCH_GPT2 ? "gpt2" : "llama",
        .mesh = tsr_mesh_format(t->job->mesh, mesh, sizeof(mesh)),
        .weights = t->config->model_notice,
        .mesh_reason = t->config->mesh_reason,
        .renumbered = tsri_boot_get_info()->renumbered,
        .binding = t->binding.text,
        .groups = t->links.groups,
        .links = links,
        .links_s = t->links.seconds,
        .preset = t->options.preset,
        .param_dtype = tsr_dtype_name(t->options.fsdp.param_dtype),
        .params = t->report.params,
        .data_bytes = tsri_data_bytes(t->data),
        .windows = tsri_data_windows(t->data),
        .data_files = tsri_data_file_count(t->data),
        .planned_bytes = t->planned.total_bytes,
        .epochs = (double)c->steps * (double)c->batch / (double)tsri_data_windows(t->data),
    };
    t->observer->start(t->observer->context, &start);
}

/* Links first, while memory is free. */
static tsr_status open_job(training *t)
{
    if (tsr_world_size(t->world) > 1) {
        TSR_TRY(tsri_start_links_find(t->world, t->config, &t->options, t->declared, &t->links));
    }
    t->options.comm.record = true; /* bytes_by_axis */
    TSR_TRY(tsri_job_open(t->world, &t->options, &t->job));
    TSR_TRY(tsri_own_times_open(t->job->comm, &t->own_times));
    TSR_TRY(tsri_world_agree(t->world, "loading weights", ready(t)));
    return TSR_OK;
}

static tsr_status set_up(training *t, tsr_status loaded)
{
    size_t device_bytes = 0;
    char description[DESCRIPTION_BYTES] = "";

    TSR_TRY(share_memory(t, &device_bytes));
    TSR_TRY(tsri_world_agree(t->world, "reading the configuration", fit(t, loaded, device_bytes)));
    TSR_TRY(tsr_world_check_same(t->world, "the configuration", t->config_text.data,
                                 (size_t)t->config_text.length));
    TSR_TRY(tsri_world_agree(t->world, "planning", prepare(t, description)));
    TSR_TRY(tsr_world_check_same(t->world, "the data", description, strlen(description)));
    TSR_TRY(share_plan(t));
    TSR_TRY(open_job(t));
    t->report.params = tsri_model_param_count(&t->config->spec);
    t->report.planned_bytes = t->planned.total_bytes;
    tell_start(t);
    warn_of_links(t);
    warn_of_warmup(t);
    return TSR_OK;
}

/* ---- a step ---- */

static tsr_status write_batches(training *t)
{
    const tsri_config_train *c = &t->config->train;
    const int64_t part = c->batch / c->micro_batches;

    for (int micro = 0; micro < t->job->options.micro_batches; micro++) {
        const int64_t first = t->step * c->batch + micro * part + t->job->row_begin;

        TSR_TRY(tsri_data_read(t->data, first, t->job->row_count, t->ids, t->labels));
        TSR_TRY(tsri_job_write_batch(t->job, micro, t->ids, t->labels));
    }
    return TSR_OK;
}

/* {"replicate": 12345, ...}: what this rank sent, by axes. */
static void add_traffic(training *t)
{
    const tsri_traffic *traffic = &t->traffic;
    bool first = true;

    tsri_text_add(&t->line, "{");
    for (int i = 0; i < traffic->count; i++) {
        double sent = 0.0;
        bool told = false;

        for (int k = 0; k < traffic->count; k++) {
            const bool same = strcmp(traffic->rows[k].axes, traffic->rows[i].axes) == 0;

            told = told || (same && k < i);
            sent += same ? traffic->rows[k].sent : 0.0;
        }
        if (told) {
            continue;
        }
        tsri_text_add(&t->line, "%s\"%s\": %.0f", first ? "" : ", ", traffic->rows[i].axes, sent);
        first = false;
    }
    tsri_text_add(&t->line, "}");
}

static void add_field(tsri_text *line, const char *name, double value)
{
    tsri_text_add(line, ", \"%s\": ", name);
    tsri_text_add_number(line, value);
}

static tsr_status write_row(training *t, const tsri_train_row *row)
{
    tsri_text *line = &t->line;
    char text[320];
    bool renewed = false;

    tsri_text_clear(line);
    tsri_text_add(line, "{\"step\": %lld", (long long)row->step);
    add_field(line, "loss", row->loss);
    add_field(line, "grad_norm", row->grad_norm);
    add_field(line, "lr", row->lr);
    add_field(line, "tokens", row->tokens);
    add_field(line, "tokens_per_s", row->tokens_per_s);
    add_field(line, "step_s", row->step_s);
    add_field(line, "exposed_comm_s", row->exposed_comm_s);
    add_field(line, "step_s_min", row->own.min_s);
    add_field(line, "step_s_max", row->own.max_s);
    tsri_text_add(line, ", \"slowest_rank\": %d, \"mem_peak_bytes\": %zu, \"bytes_by_axis\": ",
                  row->own.slowest, row->mem_peak_bytes);
    add_traffic(t);
    add_field(line, "host_sent_bytes", row->host_sent_bytes);
    tsri_text_add(line, "}\n");
    TSR_TRY(tsri_run_folder_add_row(&t->folder, line, &renewed));
    if (renewed) {
        (void)snprintf(
            text, sizeof(text),
            "step %lld: metrics.jsonl in %.128s was deleted; a new one has the rows from "
            "this one on",
            (long long)row->step, t->folder.dir);
        note(t, text);
    }
    return TSR_OK;
}

/* With loss scaling a step may overflow: the scale goes down until the next ones do not. */
static bool is_overflow(const training *t, const tsri_step_result *result)
{
    return t->options.scale_loss && result->skipped && isfinite(result->loss) &&
           t->overflows < MOST_OVERFLOWS;
}

/* What is unusual about a step, but no failure. */
static void note_step(training *t, const tsri_step_result *result)
{
    char text[256];
    tsri_arena_stats stats;

    tsri_arena_get_stats(tsri_comm_arena(t->job->comm), &stats);
    if (stats.departures > t->departures) {
        t->departures = stats.departures;
        (void)snprintf(text, sizeof(text), "step %lld left the plan at \"%s\"; planned again",
                       (long long)t->step + 1,
                       stats.departure_label != NULL ? stats.departure_label : "");
        note(t, text);
    }
    if (is_overflow(t, result)) {
        (void)snprintf(text, sizeof(text),
                       "step %lld: the gradients overflowed; the update was skipped, and the loss "
                       "scale is %g now",
                       (long long)t->step + 1, result->loss_scale);
        note(t, text);
    }
    if (result->tokens <= 0.0) {
        (void)snprintf(text, sizeof(text), "step %lld: no label counts; nothing was updated",
                       (long long)t->step + 1);
        note(t, text);
    }
}

/* Collective over the world. What a logged row says besides: how the ranks compare, and the bytes
 * that went; these first, because comparing sends some too. */
static tsr_status complete_row(training *t, tsri_train_row *row)
{
    const tsr_device *device = tsri_comm_device(t->job->comm);
    const int rank = tsr_comm_rank(t->job->comm);
    char text[256];
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(device, &count);
    tsri_host_bytes sent;

    tsri_traffic_count(device, &t->traffic);
    TSR_TRY(tsri_host_bytes_count(entries, count, t->job->mesh, tsri_world_nodes(t->world), rank,
                                  &sent));
    row->host_sent_bytes = sent.host;
    TSR_TRY(tsri_own_times_gather(t->own_times, row->step_s - row->exposed_comm_s, &row->own));
    if (tsri_straggler_follow(&t->straggler, &row->own)) {
        (void)snprintf(text, sizeof(text),
                       "step %lld: rank %d on host %s is slow: %.3g s of its own per step, the "
                       "others %.3g s, for %d rows now",
                       (long long)row->step, row->own.slowest,
                       tsr_world_host(t->world, row->own.slowest), row->own.max_s,
                       row->own.others_s, TSRI_STRAGGLER_ROWS);
        note(t, text);
    }
    return TSR_OK;
}

/* Some print the sign of what is no number. */
static double without_sign(double value)
{
    return isnan(value) ? fabs(value) : value;
}

static tsr_status check_finite(training *t, const tsri_step_result *result)
{
    if (isfinite(result->loss) && isfinite(result->grad_norm) && !result->skipped) {
        t->overflows = 0;
        return TSR_OK;
    }
    if (is_overflow(t, result)) {
        t->overflows++;
        return TSR_OK;
    }
    return TSR_RAISE(
        TSR_ERR_STATE, "step %lld: loss %g, gradient norm %g: not finite; %s, and training ends",
        (long long)t->step + 1, without_sign(result->loss), without_sign(result->grad_norm),
        result->skipped ? "the update was skipped" : "the loss overflowed");
}

static void trace_step(training *t)
{
    const int64_t first = t->config->train.steps > TRACE_FIRST ? TRACE_FIRST : 0;
    const tsri_entry *entries = NULL;
    int count = 0;

    if (!t->speaks || !t->config->log.trace || t->step < first || t->step >= first + TRACE_STEPS) {
        return;
    }
    if (t->step == first) {
        tsri_trace_begin(&t->trace, tsr_comm_rank(t->job->comm));
    }
    entries = tsri_recorder_entries(tsri_comm_device(t->job->comm), &count);
    tsri_trace_add(&t->trace, entries, count, tsr_comm_rank(t->job->comm), t->begin_s);
}

static tsr_status tell_step(training *t, tsri_train_row *row)
{
    const tsri_config *c = t->config;

    t->mean_step_s = t->step < 2 ? row->step_s : 0.9 * t->mean_step_s + 0.1 * row->step_s;
    row->eta_s = t->mean_step_s * (double)(row->steps - row->step);
    row->logged = row->step % c->log.every == 0 || row->step == row->steps ||
                  !isfinite(row->loss) || !isfinite(row->grad_norm);
    if (row->logged) {
        TSR_TRY(complete_row(t, row));
    }
    if (!t->speaks) {
        return TSR_OK;
    }
    if (row->logged) {
        TSR_TRY(write_row(t, row));
    }
    trace_step(t);
    if (t->observer->row != NULL) {
        t->observer->row(t->observer->context, row);
    }
    return TSR_OK;
}

static tsr_status run_step(training *t)
{
    const double begin = tsri_now_s();
    const double lr = tsr_schedule_lr(&t->schedule, t->step);
    tsr_device *device = tsri_comm_device(t->job->comm);
    const double exposed = tsri_exposed_s(device);
    size_t now_bytes = 0;
    tsri_step_result result;
    tsri_train_row row = {.step = t->step + 1, .steps = t->config->train.steps, .lr = lr};

    tsri_recorder_clear(device);
    TSR_TRY(write_batches(t));
    TSR_TRY(tsri_job_step(t->job, t->step, lr, t->config->train.clip_norm, NULL, &result));
    row.loss = result.loss;
    row.grad_norm = result.grad_norm;
    row.tokens = result.tokens;
    row.step_s = tsri_now_s() - begin;
    row.tokens_per_s = result.tokens / row.step_s;
    row.exposed_comm_s = tsri_exposed_s(device) - exposed;
    tsr_comm_memory(t->job->comm, &now_bytes, &row.mem_peak_bytes);
    TSR_TRY(tell_step(t, &row));
    note_step(t, &result);
    TSR_TRY(check_finite(t, &result));
    if (t->step == 0) {
        t->report.first_loss = row.loss;
    }
    if (t->step > 0 || row.steps == 1) {
        t->counted_tokens += row.tokens;
        t->counted_s += row.step_s;
    }
    t->report.last_loss = row.loss;
    t->report.peak_bytes = row.mem_peak_bytes;
    t->report.steps = row.step;
    return TSR_OK;
}

static tsr_status run_steps(training *t)
{
    t->begin_s = tsri_now_s();
    for (t->step = 0; t->step < t->config->train.steps; t->step++) {
        TSR_TRY(run_step(t));
    }
    t->report.train_s = tsri_now_s() - t->begin_s;
    t->report.tokens_per_s = t->counted_s > 0.0 ? t->counted_tokens / t->counted_s : 0.0;
    if (t->trace.length > 0) {
        tsri_trace_end(&t->trace);
        TSR_TRY(tsri_run_folder_write(&t->folder, "trace-rank0.json", &t->trace));
    }
    return TSR_OK;
}

/* ---- all of it ---- */

static tsr_status run(training *t, tsr_status loaded)
{
    TSR_TRY(set_up(t, loaded));
    TSR_TRY(run_steps(t));
    return TSR_OK;
}

static void close_training(training *t)
{
    tsri_own_times_close(&t->own_times);
    tsri_job_close(&t->job);
    tsri_job_close(&t->dry);
    if (t->dry_world != NULL) {
        tsr_world_close(&t->dry_world);
    }
    tsri_data_close(&t->data);
    tsri_run_folder_close(&t->folder);
    tsri_text_free(&t->config_text);
    tsri_text_free(&t->line);
    tsri_text_free(&t->trace);
    tsri_free(&t->ids);
    tsri_free(&t->labels);
    tsri_free(&t->declared);
}

tsr_status tsri_train_run(tsr_world *world, tsri_config *config, tsr_status loaded,
                          const tsri_train_observer *observer, tsri_train_report *out)
{
    static const tsri_train_observer nobody = {0};
    training *t = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*t), &t));
    t->world = world;
    t->config = config;
    t->observer = observer != NULL ? observer : &nobody;
    t->speaks = tsr_world_is_speaker(world);
    status = tsri_world_settle(world, run(t, loaded));
    *out = t->report;
    close_training(t);
    tsri_free(&t);
    return status;
}
