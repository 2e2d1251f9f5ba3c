/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cmd_plan.c
 * `tessera plan`: memory, traffic and time of a step on a cluster, without its devices.
 */
#include "cli_priv.h"

#include "base/base.h"
#include "base/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/probe.h"
#include "cli/commands.h"
#include "cli/preset_list.h"
#include "config/config.h"
#include "job/from_config.h"
#include "plan/fit.h"
#include "plan/forecast.h"
#include "plan/ranks.h"
#include "plan/search.h"

static const char *const default_cluster = "8xH100";

static const tsri_cli_option options[] = {
    {"--cluster", "NAME|FILE",
     "the machine: built-in, a file (clusters/README.md), or this one: this"},
    {"--ranks", "N", "devices; default: the mesh's product, or one node"},
    {"--presets", "LIST", "compare these, such as ddp,fsdp,hsdp; all: every one"},
    {"--search", NULL, "try meshes, presets, micro-batches and checkpointing; the ten fastest"},
    {"--all-ranks", NULL, "simulate every rank that differs, and see that all their calls meet"},
    {"--trace", "FILE", "write the planned step as a Chrome trace"},
    {"--json", NULL, "print the plan as JSON"},
    {NULL, NULL, NULL},
};

enum {
    MAX_RANKS = 1 << 20,
    MAX_MATCHED_RANKS = 1 << 14 /* groups of all ranks are compared by each of them */
};

typedef struct planning {
    tsri_config *config;
    tsri_cluster cluster;
    tsri_job_options options;
    int ranks;
    const char *preset[TSRI_CLI_MOST_PRESETS];
    int preset_count;
    tsri_forecast forecasts[TSRI_CLI_MOST_PRESETS];
    tsri_text trace;
    bool is_hopeless; /* nothing fits, or nothing is possible */
} planning;

/* ---- what is asked ---- */

static tsr_status read_ranks(const tsri_cli *cli, int *out)
{
    const char *text = tsri_cli_value(cli, "--ranks");
    char *end = NULL;

    *out = 0;
    if (text == NULL) {
        return TSR_OK;
    }
    errno = 0;
    const long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || errno != 0 || value < 1 || value > MAX_RANKS) {
        return TSR_RAISE(TSR_ERR_INVALID, "--ranks %s: wants a number from 1 to %d", text,
                         (int)MAX_RANKS);
    }
    *out = (int)value;
    return TSR_OK;
}

/* The product of the mesh's sizes; 0 if it leaves one open or says nothing. */
static int mesh_product(const tsri_config *config)
{
    int64_t product = config->mesh.count > 0 ? 1 : 0;

    for (int i = 0; i < config->mesh.count; i++) {
        product *= config->mesh.axes[i].size > 0 ? config->mesh.axes[i].size : 0;
    }
    return product <= MAX_RANKS ? (int)product : 0;
}

static size_t usable_bytes(const tsri_machine *m)
{
    return m->memory_bytes > m->headroom_bytes ? (size_t)(m->memory_bytes - m->headroom_bytes) : 0;
}

/* To choose a mesh by memory takes dry runs; by_memory false: as if memory were unknown. */
static tsr_status open_mesh(planning *p, bool by_memory)
{
    const int node = p->cluster.devices > 0 ? p->cluster.devices : p->ranks;
    const int hosts = p->ranks <= node ? 1 : p->ranks % node == 0 ? p->ranks / node : 0;

    const tsri_machine *m = &p->cluster.machine;
    const tsri_config_memory memory = {.device_bytes = usable_bytes(m),
                                       .island = m->tier_count > 1 ? m->tiers[0].span : 0,
                                       .bf16 = p->cluster.machine.native_bf16};

    TSR_TRY(tsri_config_fit(p->config, p->ranks, hosts, by_memory ? &memory : NULL));
    return TSR_OK;
}

static tsr_status read_presets(const tsri_cli *cli, planning *p)
{
    int indices[TSRI_CLI_MOST_PRESETS] = {0};

    if (tsri_cli_value(cli, "--presets") == NULL) {
        p->preset[p->preset_count++] = p->options.preset;
        return TSR_OK;
    }
    TSR_TRY(tsri_cli_presets(cli, "", indices, &p->preset_count));
    for (int i = 0; i < p->preset_count; i++) {
        p->preset[i] = tsri_preset_at(indices[i]);
    }
    return TSR_OK;
}

static tsr_status check_all_ranks(const tsri_cli *cli, int ranks)
{
    static const char *const others[] = {"--json", "--search"};

    if (!tsri_cli_has(cli, "--all-ranks")) {
        return TSR_OK;
    }
    if (ranks > MAX_MATCHED_RANKS) {
        return TSR_RAISE(TSR_ERR_INVALID, "--all-ranks with %d ranks, wants at most %d", ranks,
                         (int)MAX_MATCHED_RANKS);
    }
    for (int i = 0; i < 2; i++) {
        if (tsri_cli_has(cli, others[i])) {
            return TSR_RAISE(TSR_ERR_INVALID, "--all-ranks prints a table, %s none", others[i]);
        }
    }
    return TSR_OK;
}

static bool is_this(const tsri_cli *cli)
{
    const char *cluster = tsri_cli_value(cli, "--cluster");

    return cluster != NULL && strcmp(cluster, "this") == 0;
}

static tsr_status load_cluster(const tsri_cli *cli, planning *p)
{
    const char *cluster = tsri_cli_value(cli, "--cluster");

    if (is_this(cli)) {
        p->cluster.machine.inline_compute = true; /* the rest is measured before it is used */
        p->cluster.machine.native_bf16 = tsri_here_computes_bf16();
        return TSR_OK;
    }
    TSR_TRY(tsri_cluster_load(cluster != NULL ? cluster : default_cluster, &p->cluster));
    return TSR_OK;
}

/* "this": one rank's kernels here. Links are between ranks, which the user has to start. */
static tsr_status check_this(const tsri_cli *cli, const planning *p)
{
    if (is_this(cli) && p->ranks > 1) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "--cluster this is one rank, the plan has %d: links are measured by "
                         "`tessera bench probe -n %d --out this.yaml`, then --cluster this.yaml",
                         p->ranks, p->ranks);
    }
    return TSR_OK;
}

static tsr_status measure_on(tsr_world *world, planning *p)
{
    tsri_probe_report *report = NULL;
    tsri_text text = {0};
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*report), &report));
    TSR_TRY_GOTO(status, tsri_probe(world, &p->options, 0.0, report), free_report);
    tsri_probe_text(report, tsr_world_host(world, 0), &text);
    TSR_TRY_GOTO(status, tsri_text_status(&text), free_text);
    TSR_TRY_GOTO(status, tsri_cluster_parse(text.data, (size_t)text.length, "this", &p->cluster),
                 free_text);
free_text:
    tsri_text_free(&text);
free_report:
    tsri_free(&report);
    return status;
}

static tsr_status measure_this(const tsri_cli *cli, planning *p)
{
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;

    if (!is_this(cli)) {
        return TSR_OK;
    }
    TSR_TRY(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world));
    status = measure_on(world, p);
    tsr_world_close(&world);
    TSR_TRY(status);
    return TSR_OK;
}

static tsr_status load_planning(const tsri_cli *cli, planning *p, bool by_memory)
{
    const int files = strchr(cli->words[0], '=') == NULL ? 1 : 0;

    TSR_TRY(load_cluster(cli, p));
    TSR_TRY(tsri_config_load(files > 0 ? cli->words[0] : NULL, cli->words + files,
                             cli->word_count - files, &p->config));
    TSR_TRY(read_ranks(cli, &p->ranks));
    if (p->ranks == 0) {
        p->ranks = mesh_product(p->config);
    }
    if (p->ranks == 0) {
        p->ranks = p->cluster.devices > 0 ? p->cluster.devices : 1;
    }
    TSR_TRY(check_all_ranks(cli, p->ranks));
    TSR_TRY(check_this(cli, p));
    TSR_TRY(open_mesh(p, by_memory));
    tsri_job_from_config(p->config, p->cluster.machine.native_bf16, &p->options);
    p->options.dry_threads = 1;
    TSR_TRY(read_presets(cli, p));
    return TSR_OK;
}

/* ---- the answer ---- */

static tsri_forecast_head head_of(const tsri_cli *cli, const planning *p)
{
    return (tsri_forecast_head){.options = &p->options,
                                .cluster = &p->cluster,
                                .size = p->ranks,
                                .by_default = tsri_cli_value(cli, "--cluster") == NULL};
}

/* Of several presets one that is not possible is a row; alone it is a mistake. */
static tsr_status forecast_all(const tsri_cli *cli, planning *p)
{
    const bool traced = tsri_cli_has(cli, "--trace");

    for (int i = 0; i < p->preset_count; i++) {
        tsri_job_options o = p->options;

        o.preset = p->preset[i];
        TSR_TRY(tsri_forecast_run(&o, p->ranks, &p->cluster, traced && i == 0 ? &p->trace : NULL,
                                  &p->forecasts[i]));
    }
    if (p->preset_count == 1 && !p->forecasts[0].possible) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s", p->forecasts[0].why);
    }
    p->is_hopeless = tsri_forecast_best(p->forecasts, p->preset_count) < 0;
    return TSR_OK;
}

static tsr_status write_trace(const tsri_cli *cli, const planning *p)
{
    const char *path = tsri_cli_value(cli, "--trace");

    if (path != NULL && p->trace.length > 0) {
        TSR_TRY(tsri_file_write(path, p->trace.data, (size_t)p->trace.length));
    }
    return TSR_OK;
}

static tsr_status check_ranks(const planning *p, const char *preset)
{
    tsri_job_options o = p->options;
    tsri_ranks *ranks = NULL;
    tsr_status status = TSR_OK;

    o.preset = preset;
    TSR_TRY(tsri_ranks_check(&o, p->ranks, &ranks));
    tsri_ranks_print(ranks, stdout);
    if (ranks->match.cause != TSRI_MATCH_FITS) {
        status = TSR_RAISE(TSR_ERR_DISAGREE, "%s", ranks->match.text);
    }
    tsri_ranks_destroy(&ranks);
    return status;
}

/* One preset in full. */
static tsr_status print_preset(const tsri_cli *cli, const planning *p,
                               const tsri_forecast_head *head, int index)
{
    tsri_forecast_print(head, &p->forecasts[index], stdout);
    if (tsri_cli_has(cli, "--all-ranks") && p->forecasts[index].possible) {
        TSR_TRY(check_ranks(p, p->preset[index]));
    }
    return TSR_OK;
}

static tsr_status print_plan(const tsri_cli *cli, const planning *p)
{
    const tsri_forecast_head head = head_of(cli, p);
    int shown = 0;

    if (tsri_cli_has(cli, "--json")) {
        TSR_TRY(tsri_forecast_print_json(&head, p->forecasts, p->preset_count, stdout));
        return TSR_OK;
    }
    tsri_forecast_print_head(&head, stdout);
    if (p->config->mesh_reason[0] != '\0') {
        (void)printf("         chosen: %s\n", p->config->mesh_reason);
    }
    if (p->preset_count > 1) {
        tsri_forecast_print_table(&head, p->forecasts, p->preset_count, stdout);
        tsri_forecast_print_ledger(&head, p->forecasts, p->preset_count, stdout);
        shown = tsri_forecast_best(p->forecasts, p->preset_count);
    }
    if (shown >= 0) {
        TSR_TRY(print_preset(cli, p, &head, shown));
    }
    if (p->preset_count == 1 && p->is_hopeless) {
        tsri_forecast_print_hopeless(p->forecasts, 1, stdout);
    }
    return TSR_OK;
}

static void tell_progress(void *context, const tsri_search *so_far)
{
    const bool *live = context;

    if (*live) {
        (void)fprintf(stderr, "\r%d layouts tried, %d kept", so_far->tried, so_far->count);
        (void)fflush(stderr);
    }
}

static tsr_status search(const tsri_cli *cli, planning *p)
{
    bool live = isatty(STDERR_FILENO) != 0;
    const tsri_forecast_head head = head_of(cli, p);
    tsri_search *found = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*found), &found));
    TSR_TRY_GOTO(status,
                 tsri_search_run(&p->options, p->ranks, &p->cluster, tell_progress, &live, found),
                 free_found);
    if (live) {
        (void)fprintf(stderr, "\r%40s\r", "");
    }
    tsri_forecast_print_head(&head, stdout);
    tsri_search_print(found, stdout);
    p->is_hopeless = found->count == 0;
free_found:
    tsri_free(&found);
    return status;
}

static tsr_status plan(const tsri_cli *cli, planning *p)
{
    if (tsri_cli_has(cli, "--search")) {
        TSR_TRY(search(cli, p));
        return TSR_OK;
    }
    TSR_TRY(forecast_all(cli, p));
    TSR_TRY(print_plan(cli, p));
    TSR_TRY(write_trace(cli, p));
    return TSR_OK;
}

static void free_planning(planning **pointer)
{
    planning *p = *pointer;

    if (p->config != NULL) {
        tsri_config_free(&p->config);
    }
    tsri_text_free(&p->trace);
    tsri_free(pointer);
}

static tsr_status check_plan(const tsri_cli *cli)
{
    planning *p = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*p), &p));
    TSR_TRY_GOTO(status, load_planning(cli, p, false), free_plan);
    if (!tsri_cli_has(cli, "--search") && p->preset_count == 1) {
        p->options.preset = p->preset[0];
        TSR_TRY_GOTO(status, tsri_job_check(&p->options, p->ranks), free_plan);
    }
free_plan:
    free_planning(&p);
    return status;
}

static int run_plan(const tsri_cli *cli)
{
    planning *p = NULL;
    bool is_hopeless = false;
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, tsri_alloc(1, sizeof(*p), &p), finish);
    TSR_TRY_GOTO(status, load_planning(cli, p, true), free_plan);
    TSR_TRY_GOTO(status, measure_this(cli, p), free_plan);
    TSR_TRY_GOTO(status, plan(cli, p), free_plan);
    is_hopeless = p->is_hopeless;
free_plan:
    free_planning(&p);
finish:
    return status == TSR_OK && is_hopeless ? TSRI_EXIT_FAILED : tsri_cli_finish(status);
}

const tsri_cli_command tsri_command_plan = {
    .name = "plan",
    .summary = "memory, traffic and time of a step on a cluster, without its devices",
    .usage = "[CONFIG.yaml] [key=value ...] [options]",
    .help = "Runs the trainer's own step on simulated ranks: its schedule, memory and traffic are\n"
            "the trainer's. Times come from a cluster file's rates and links, as ranges between\n"
            "its slow and fast ends; for machines without a backend nothing of them is measured.\n"
            "It says what fits, what a step costs, and with several presets which one wins and\n"
            "why. Exit status 0: something may fit; 1: nothing does; 2: it cannot be planned.\n"
            "\n"
            "  tessera plan run.yaml --cluster 8xH100 --presets all\n"
            "  tessera plan run.yaml --cluster 8xH100 --ranks 64 --search\n"
            "  tessera plan run.yaml --ranks 1024 train.micro_batches=4 --all-ranks\n"
            "  tessera plan run.yaml --cluster my.yaml --trace step.json\n"
            "  tessera plan model.preset=llama-tiny train.batch=8 train.seq=256 --cluster this\n"
            "  tessera plan model.preset=gpt2-xl train.batch=4 train.seq=512 --cluster 4xA100-40\n",
    .options = options,
    .words_min = 1,
    .words_max = -1,
    .check = check_plan,
    .run = run_plan,
};
