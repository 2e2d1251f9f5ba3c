/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* From a configuration to a job whose first step can begin.
 *
 * Every rank makes a dry run of its own step on a simulated world first. Its arena plan is adopted
 * by the real job, so that the first step runs in planned memory already; it stays open, because
 * names in the plan are those of its modules. What can fail on one rank alone is followed by an
 * agreement. */
#include "train_priv.h"

#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <string.h>

#include "job/from_config.h"
#include "plan/fit.h"
#include "plan/host_memory.h"
#include "plan/mesh_auto.h"

enum {
    DESCRIPTION_BYTES = 128
};

/* ---- before ranks start ---- */

static tsr_status fill_options(const tsri_config *config, int local_ranks, tsri_job_options *out)
{
    const int threads = (int)config->run.threads;

    tsri_job_from_config(config, tsri_here_computes_bf16(), out);
    out->dry_threads = threads > 0 ? threads : tsri_cpu_default_threads(local_ranks);
    return TSR_OK;
}

static tsr_status check_job(tsri_config *config, int ranks, bool one_host)
{
    tsri_job_options options;
    tsr_world *world = NULL;
    tsri_job *dry = NULL;
    tsri_step_memory need;
    tsr_status status = TSR_OK;

    TSR_TRY(fill_options(config, ranks, &options));
    TSR_TRY(tsri_job_dry_run(&options, 0, ranks, &world, &dry));
    TSR_TRY_GOTO(status, tsri_weights_check(config, dry), close);
    tsri_job_summarize(dry, &need);
    if (one_host) {
        TSR_TRY_GOTO(status, tsri_host_memory_check(need.total_bytes + need.host_bytes, ranks),
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
    train_batches batches = {0};

    const tsri_config_memory memory = {
        .device_bytes = one_host ? tsri_host_memory_available() / (size_t)ranks : 0,
        .bf16 = tsri_here_computes_bf16()};

    TSR_TRY(tsri_config_fit(config, ranks, hosts, &memory));
    TSR_TRY(check_cluster(config));
    TSR_TRY(tsri_run_folder_check(config->run.dir));
    TSR_TRY(tsri_batches_open(config, &batches));
    tsri_batches_close(&batches);
    TSR_TRY(check_job(config, ranks, one_host));
    return TSR_OK;
}

/* ---- what a rank finds out ---- */

/* Local. Before threads are counted and started. */
static tsr_status bind_rank(training *t)
{
    const tsri_boot_info *info = tsri_boot_get_info();

    if (tsr_world_size(t->world) == 1 || t->config->run.bind != 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_topo_bind(info->local_rank, info->local_size, true, &t->place.binding));
    return TSR_OK;
}

/* Local: what this rank can find out alone. */
static tsr_status prepare(training *t, char *description)
{
    const int size = tsr_world_size(t->world);
    const int local_ranks = size > 1 ? tsri_boot_get_info()->local_size : 1;

    TSR_TRY(bind_rank(t));
    TSR_TRY(load_cluster(t->config, &t->place.declared));
    TSR_TRY(tsri_batches_open(t->config, &t->batches));
    TSR_TRY(tsri_data_describe(t->batches.data, description, DESCRIPTION_BYTES));
    TSR_TRY(fill_options(t->config, local_ranks, &t->options));
    TSR_TRY(
        tsri_job_dry_run(&t->options, tsr_world_rank(t->world), size, &t->dry.world, &t->dry.job));
    tsri_rank_memory_of(t->dry.job, &t->dry.numbers);
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

static tsr_status fit_mesh(training *t, tsr_status loaded, size_t device_bytes)
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

static tsr_status write_plan(const training *t, const tsri_rank_memory *ranks)
{
    FILE *file = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_run_folder_create(&t->journal.folder, "plan.txt", &file));
    status = tsri_write_plan(t->dry.job, file);
    tsri_write_rank_memory(ranks, tsr_world_size(t->world), file);
    if (status == TSR_OK) {
        TSR_TRY(tsri_run_folder_finish(&t->journal.folder, "plan.txt", file));
    } else {
        (void)fclose(file);
    }
    TSR_TRY(status);
    return TSR_OK;
}

static tsr_status open_folder(training *t, const tsri_rank_memory *ranks)
{
    if (!t->journal.speaks) {
        return TSR_OK;
    }
    TSR_TRY(tsri_run_folder_open(t->config->run.dir, &t->journal.folder));
    (void)snprintf(t->report.run_dir, sizeof(t->report.run_dir), "%s", t->journal.folder.dir);
    TSR_TRY(tsri_run_folder_write(&t->journal.folder, "config.yaml", &t->config_text));
    TSR_TRY(write_plan(t, ranks));
    return TSR_OK;
}

/* Collective over the world. The plans of all ranks, then the folder on one of them. */
static tsr_status share_plan(training *t)
{
    const int size = tsr_world_size(t->world);
    tsri_rank_memory *ranks = NULL;
    tsr_status status = tsri_alloc((size_t)size, sizeof(*ranks), &ranks);

    if (size > 1) {
        status = tsri_team_all_gather(tsri_boot_job(), "comparing plans", status, &t->dry.numbers,
                                      sizeof(t->dry.numbers), ranks);
    } else if (status == TSR_OK) {
        ranks[0] = t->dry.numbers;
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

static tsr_status ready(training *t)
{
    TSR_TRY(tsri_weights_load(t->config, t->job));
    TSR_TRY(tsri_arena_adopt(tsri_comm_arena(t->job->comm), tsri_comm_arena(t->dry.job->comm)));
    TSR_TRY(tsri_batches_prepare(&t->batches, t->job));
    return TSR_OK;
}

static void warn_of_links(const training *t)
{
    char text[320];

    for (int i = 0; tsri_start_links_warning(&t->place.links, t->config, i, text, sizeof(text));
         i++) {
        tsri_journal_note(&t->journal, text);
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
        tsri_journal_note(&t->journal, text);
    }
}

static void tell_start(const training *t)
{
    char mesh[192];
    char links[512];
    const tsri_config_train *c = &t->config->train;

    if (!t->journal.speaks || t->journal.observer->start == NULL) {
        return;
    }
    tsri_start_links_text(&t->place.links, links, sizeof(links));
    const tsri_train_start start = {
        .run_dir = t->journal.folder.dir,
        .run_dir_taken = t->journal.folder.renamed,
        .arch = tsri_model_arch_name(&t->options.model),
        .mesh = tsr_mesh_format(t->job->mesh, mesh, sizeof(mesh)),
        .weights = t->config->model_notice,
        .mesh_reason = t->config->mesh_reason,
        .renumbered = tsri_boot_get_info()->renumbered,
        .binding = t->place.binding.text,
        .groups = t->place.links.groups,
        .links = links,
        .links_s = t->place.links.seconds,
        .preset = t->options.preset,
        .param_dtype = tsr_dtype_name(t->options.fsdp.param_dtype),
        .params = t->report.params,
        .data_bytes = tsri_data_bytes(t->batches.data),
        .windows = tsri_data_windows(t->batches.data),
        .data_files = tsri_data_file_count(t->batches.data),
        .planned_bytes = t->dry.numbers.total_bytes,
        .epochs = (double)c->steps * (double)c->batch / (double)tsri_data_windows(t->batches.data),
    };
    t->journal.observer->start(t->journal.observer->context, &start);
}

/* Links first, while memory is free. */
static tsr_status open_job(training *t)
{
    if (tsr_world_size(t->world) > 1) {
        TSR_TRY(tsri_start_links_find(t->world, t->config, &t->options, t->place.declared,
                                      &t->place.links));
    }
    t->options.comm.record = true; /* bytes_by_axis */
    TSR_TRY(tsri_job_open(t->world, &t->options, &t->job));
    t->journal.job = t->job;
    TSR_TRY(tsri_own_times_open(t->job->comm, &t->journal.own_times));
    TSR_TRY(tsri_world_agree(t->world, "loading weights", ready(t)));
    return TSR_OK;
}

tsr_status tsri_train_set_up(training *t, tsr_status loaded)
{
    size_t device_bytes = 0;
    char description[DESCRIPTION_BYTES] = "";

    TSR_TRY(share_memory(t, &device_bytes));
    TSR_TRY(
        tsri_world_agree(t->world, "reading the configuration", fit_mesh(t, loaded, device_bytes)));
    TSR_TRY(tsr_world_check_same(t->world, "the configuration", t->config_text.data,
                                 (size_t)t->config_text.length));
    TSR_TRY(tsri_world_agree(t->world, "planning", prepare(t, description)));
    TSR_TRY(tsr_world_check_same(t->world, "the data", description, strlen(description)));
    TSR_TRY(share_plan(t));
    TSR_TRY(open_job(t));
    t->report.params = tsri_model_param_count(&t->config->spec);
    t->report.planned_bytes = t->dry.numbers.total_bytes;
    tell_start(t);
    warn_of_links(t);
    warn_of_warmup(t);
    return TSR_OK;
}
