/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cmd_compare.c
 * `tessera compare`: presets side by side on this machine, planned and measured.
 */
#include "base/base.h"
#include "base/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/preset_list.h"
#include "cli/run_config.h"
#include "compare/compare.h"
#include "plan/fit.h"

static const char *const default_presets = "ddp,fsdp,hsdp,hfsdp";

static const tsri_cli_option options[] = {
    {"--presets", "LIST", "compare these; all: every one; default: ddp,fsdp,hsdp,hfsdp"},
    {"--steps", "N", "measured steps of each, after 2 others; default: 5"},
    {"--cluster", "NAME|FILE", "plan with this machine instead of measuring the one here"},
    {"--seconds", "S",
     "about how long measuring the machine may take, before and after; default: 6"},
    {"--out", "FILE", "write the measured machine as a cluster file"},
    {"--markdown", NULL, "print the tables as Markdown"},
    {"--json", NULL, "print the comparison as JSON; progress goes to standard error"},
    {NULL, NULL, NULL},
};

/* ---- what is asked ---- */

static tsr_status read_amount(const tsri_cli *cli, const char *name, double most, double *out)
{
    const char *text = tsri_cli_value(cli, name);
    char *end = NULL;

    *out = 0.0;
    if (text == NULL) {
        return TSR_OK;
    }
    *out = strtod(text, &end);
    if (end == text || *end != '\0' || !(*out > 0.0) || *out > most) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s %s: wants a number above 0, at most %g", name, text,
                         most);
    }
    return TSR_OK;
}

static tsr_status read_compare_options(const tsri_cli *cli, tsri_compare_options *out)
{
    double steps = 0.0;

    *out = (tsri_compare_options){.cluster = tsri_cli_value(cli, "--cluster")};
    TSR_TRY(tsri_cli_presets(cli, default_presets, out->presets, &out->preset_count));
    TSR_TRY(read_amount(cli, "--steps", TSRI_COMPARE_MAX_STEPS, &steps));
    TSR_TRY(read_amount(cli, "--seconds", 3600.0, &out->seconds));
    out->steps = (int)steps;
    if (steps != (double)out->steps) {
        return TSR_RAISE(TSR_ERR_INVALID, "--steps %s: wants a whole number",
                         tsri_cli_value(cli, "--steps"));
    }
    if (out->cluster != NULL && (out->seconds > 0.0 || tsri_cli_has(cli, "--out"))) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "--cluster gives the machine: --seconds and --out are for measuring it");
    }
    return TSR_OK;
}

static tsr_status load_config(const tsri_cli *cli, tsri_config **out)
{
    const int files = strchr(cli->words[0], '=') == NULL ? 1 : 0;

    TSR_TRY(tsri_config_load(files > 0 ? cli->words[0] : NULL, cli->words + files,
                             cli->word_count - files, out));
    return TSR_OK;
}

static tsr_status check_compare(const tsri_cli *cli)
{
    tsri_compare_options o;
    tsri_config *config = NULL;
    int hosts = 1;
    tsr_status status = TSR_OK;

    TSR_TRY(read_compare_options(cli, &o));
    if (o.cluster != NULL) {
        tsri_cluster cluster;

        TSR_TRY(tsri_cluster_load(o.cluster, &cluster));
    }
    TSR_TRY(load_config(cli, &config));
    status = tsri_cli_count_hosts(cli, &hosts);
    if (status == TSR_OK) {
        status = tsri_config_fit(config, cli->ranks > 0 ? cli->ranks : 1, hosts, NULL);
    }
    tsri_config_free(&config);
    TSR_TRY(status);
    return TSR_OK;
}

/* ---- progress ---- */

typedef struct display {
    FILE *to;
    bool markdown;
} display;

static void show_machine(void *context, const tsri_compare_report *report)
{
    const display *d = context;

    tsri_compare_print_head(report, d->markdown, d->to);
    (void)fflush(d->to);
}

/* The table comes at the end; until then there is a line for each. */
static void show_row(void *context, const tsri_compare_report *report)
{
    const tsri_compare_row *row = &report->rows[report->row_count - 1];

    (void)context;
    if (row->ran) {
        (void)fprintf(stderr, "%s: %.3f s a step, planned %.3f s\n", row->plan.preset, row->step_s,
                      row->plan.step_s);
    } else {
        (void)fprintf(stderr, "%s: %s\n", row->plan.preset, row->why);
    }
}

/* ---- the command ---- */

static tsr_status show(const tsri_cli *cli, const tsri_compare_report *report)
{
    const char *path = tsri_cli_value(cli, "--out");

    if (path != NULL) {
        TSR_TRY(tsri_file_write(path, report->cluster, strlen(report->cluster)));
    }
    if (tsri_cli_has(cli, "--json")) {
        TSR_TRY(tsri_compare_print_json(report, stdout));
    } else {
        tsri_compare_print_table(report, tsri_cli_has(cli, "--markdown"), stdout);
    }
    return TSR_OK;
}

static tsr_status compare_on_world(const tsri_cli *cli, tsr_world *world, tsri_config *config,
                                   tsr_status loaded)
{
    display d = {.to = tsri_cli_has(cli, "--json") ? stderr : stdout,
                 .markdown = tsri_cli_has(cli, "--markdown")};
    const tsri_compare_observer observer = {
        .machine = show_machine, .row = show_row, .context = &d};
    tsri_compare_options o = {0};
    tsri_compare_report *report = NULL;
    tsr_status status = loaded == TSR_OK ? read_compare_options(cli, &o) : loaded;

    if (tsri_alloc(1, sizeof(*report), &report) != TSR_OK) {
        return tsri_world_settle(world, TSR_ERR_NOMEM);
    }
    status = tsri_compare_run(world, config, status, &o, &observer, report);
    if (status == TSR_OK && tsr_world_is_speaker(world)) {
        status = show(cli, report);
    }
    tsri_free(&report);
    TSR_TRY(status);
    return TSR_OK;
}

static int run_compare(const tsri_cli *cli)
{
    tsri_config *config = NULL;
    const tsr_status loaded = load_config(cli, &config);

    return tsri_cli_run_config(cli, config, loaded, compare_on_world);
}

const tsri_cli_command tsri_command_compare = {
    .name = "compare",
    .summary = "presets side by side on this machine, planned and measured",
    .usage = "[CONFIG.yaml] [-n N] [key=value ...] [options]",
    .help =
        "Measures the machine as its ranks find it, plans each preset on it, then runs each for\n"
        "a few steps on random tokens: memory, step time, traffic and exposed communication,\n"
        "planned beside measured, and both orders. The machine's hash is told before any step,\n"
        "so no plan knows what it is compared with. No data is read.\n"
        "\n"
        "measured hidden   of the communication that could go on beside compute, by what each\n"
        "                  collective waits for and what waits for it, how much did\n"
        "counted           from the collectives; interfaces: by the host's own counters\n"
        "\n"
        "  tessera compare run.yaml -n 4 mesh=replicate=2,shard=2\n"
        "  tessera compare run.yaml --hosts a:2,b:2 --presets fsdp,hsdp,hfsdp --markdown\n"
        "  tessera compare model.preset=llama-tiny -n 4 --presets all --steps 10 --out here.yaml\n",
    .options = options,
    .words_min = 1,
    .words_max = -1,
    .launches = true,
    .check = check_compare,
    .run = run_compare,
};
