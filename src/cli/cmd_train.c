/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cmd_train.c
 * `tessera train`: trains by a configuration, and shows how it goes.
 *
 * One rank prints. On a terminal the line of the newest step is written over the one before. Ranks
 * that mpirun started write to a terminal of its making, whatever ours is; so the process that the
 * user started tells them in TSR_PROGRESS.
 */
#include "backend/boot/boot.h"
#include "base/base.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/run_config.h"
#include "plan/mesh_auto.h"
#include "train/loop.h"

static const double between_lines_s = 2.0; /* of steps, where lines stay */

static const tsri_cli_option options[] = {
    {"--json", NULL, "print the result as JSON; progress goes to standard error"},
    {NULL, NULL, NULL},
};

typedef struct display {
    FILE *to;
    bool live;    /* lines are written over */
    bool pending; /* an unfinished line stands there */
    double last_s;
} display;

static tsr_status load_config(const tsri_cli *cli, tsri_config **out)
{
    TSR_TRY(tsri_config_load(cli->words[0], cli->words + 1, cli->word_count - 1, out));
    return TSR_OK;
}

static bool is_terminal(void)
{
    const char *kind = getenv("TERM");

    return isatty(STDOUT_FILENO) != 0 && kind != NULL && strcmp(kind, "dumb") != 0;
}

static tsr_status check_train(const tsri_cli *cli)
{
    const int ranks = cli->ranks > 0 ? cli->ranks : 1;
    tsri_config *config = NULL;
    int hosts = 1;
    tsr_status status = TSR_OK;

    TSR_TRY(load_config(cli, &config));
    status = tsri_cli_count_hosts(cli, &hosts);
    if (status == TSR_OK) {
        status = tsri_train_check(config, ranks, hosts, cli->hosts == NULL);
    }
    tsri_config_free(&config);
    TSR_TRY(status);
    (void)setenv("TSR_PROGRESS", is_terminal() ? "live" : "lines", 0);
    return TSR_OK;
}

/* ---- progress ---- */

static bool is_live(void)
{
    const char *told = getenv("TSR_PROGRESS");

    if (told != NULL) {
        return strcmp(told, "live") == 0;
    }
    return !tsri_boot_launched() && is_terminal();
}

static void end_line(display *d)
{
    if (d->pending) {
        (void)fprintf(d->to, "\n");
    }
    d->pending = false;
}

static const char *count_text(double value, char *text, size_t size)
{
    static const char *const units[] = {"", " thousand", " million", " billion", " trillion"};
    int unit = 0;

    while (value >= 1000.0 && unit < 4) {
        value /= 1000.0;
        unit++;
    }
    (void)snprintf(text, size, unit == 0 ? "%.0f%s" : "%.3g%s", value, units[unit]);
    return text;
}

static const char *time_text(double seconds, char *text, size_t size)
{
    const long long s = (long long)(seconds + 0.5);

    if (s >= 3600) {
        (void)snprintf(text, size, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    } else {
        (void)snprintf(text, size, "%lld:%02lld", s / 60, s % 60);
    }
    return text;
}

static void show_start(void *context, const tsri_train_start *start)
{
    display *d = context;
    char params[32];
    char bytes[32];
    char memory[32];

    (void)fprintf(d->to, "%s of %s parameters on mesh %s, preset %s, %s\n", start->arch,
                  count_text((double)start->params, params, sizeof(params)), start->mesh,
                  start->preset, start->param_dtype);
    if (start->weights[0] != '\0') {
        (void)fprintf(d->to, "weights: %s\n", start->weights);
    }
    if (start->mesh_reason[0] != '\0') {
        (void)fprintf(d->to, "mesh auto: %s\n", start->mesh_reason);
    }
    if (start->renumbered) {
        (void)fprintf(d->to,
                      "ranks: numbered host by host and by NUMA node, which the launcher has "
                      "not done (run.rank_order=launcher keeps its numbers)\n");
    }
    if (start->binding[0] != '\0') {
        (void)fprintf(d->to, "%s\n", start->binding);
    }
    if (start->groups[0] != '\0') {
        (void)fprintf(d->to, "groups: %s\n", start->groups);
    }
    if (start->links[0] != '\0') {
        (void)fprintf(d->to, "links: %s; measured in %.2f s\n", start->links, start->links_s);
    }
    (void)fprintf(d->to, "data: %d file%s, %s, %lld sequences; this run reads them %.2f times\n",
                  start->data_files, start->data_files == 1 ? "" : "s",
                  tsri_format_bytes((double)start->data_bytes, bytes, sizeof(bytes)),
                  (long long)start->windows, start->epochs);
    if (start->run_dir_taken) {
        (void)fprintf(d->to,
                      "the folder of run.dir holds a run already; this one goes beside it\n");
    }
    (void)fprintf(d->to, "run folder %s; planned memory %s per rank\n", start->run_dir,
                  tsri_format_bytes((double)start->planned_bytes, memory, sizeof(memory)));
    (void)fflush(d->to);
}

static bool wants_line(const display *d, const tsri_train_row *row)
{
    if (d->live) {
        return true;
    }
    return row->logged && (row->step == 1 || row->step == row->steps ||
                           tsri_now_s() - d->last_s >= between_lines_s);
}

static void show_row(void *context, const tsri_train_row *row)
{
    display *d = context;
    char eta[32];

    if (!wants_line(d, row)) {
        return;
    }
    d->last_s = tsri_now_s();
    (void)fprintf(d->to,
                  "%sstep %*lld/%lld  loss %.4f  norm %.3f  lr %.2e  %.0f tokens/s  eta %s%s",
                  d->live ? "\r" : "", row->steps > 999 ? 6 : 3, (long long)row->step,
                  (long long)row->steps, row->loss, row->grad_norm, row->lr, row->tokens_per_s,
                  time_text(row->eta_s, eta, sizeof(eta)), d->live ? "\033[K" : "\n");
    d->pending = d->live;
    (void)fflush(d->to);
}

static void show_note(void *context, const char *text)
{
    display *d = context;

    end_line(d);
    (void)fprintf(d->to, "%s\n", text);
    (void)fflush(d->to);
}

/* ---- the end ---- */

static void show_report(display *d, const tsri_train_report *r)
{
    char time[32];
    char peak[32];
    char planned[32];

    (void)fprintf(d->to, "loss %.4f at the first step, %.4f at the last\n", r->first_loss,
                  r->last_loss);
    (void)fprintf(d->to, "%.0f tokens/s; %lld steps in %s; peak memory %s, planned %s\n",
                  r->tokens_per_s, (long long)r->steps, time_text(r->train_s, time, sizeof(time)),
                  tsri_format_bytes((double)r->peak_bytes, peak, sizeof(peak)),
                  tsri_format_bytes((double)r->planned_bytes, planned, sizeof(planned)));
    (void)fprintf(d->to, "run folder %s\n", r->run_dir);
}

static tsr_status print_report_json(const tsri_train_report *r)
{
    json_t *all =
        json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:I}", "run_dir", r->run_dir, "steps",
                  (json_int_t)r->steps, "parameters", (json_int_t)r->params, "first_loss",
                  r->first_loss, "last_loss", r->last_loss, "tokens_per_s", r->tokens_per_s,
                  "train_s", r->train_s, "mem_peak_bytes", (json_int_t)r->peak_bytes,
                  "mem_planned_bytes", (json_int_t)r->planned_bytes);

    if (all == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the report");
    }
    (void)json_dumpf(all, stdout, JSON_INDENT(2));
    (void)printf("\n");
    json_decref(all);
    return TSR_OK;
}

static tsr_status train(const tsri_cli *cli, tsr_world *world, tsri_config *config,
                        tsr_status loaded)
{
    const bool json = tsri_cli_has(cli, "--json");
    display d = {.to = json ? stderr : stdout, .live = !json && is_live()};
    const tsri_train_observer observer = {
        .start = show_start, .row = show_row, .note = show_note, .context = &d};
    tsri_train_report report;
    const tsr_status status = tsri_train_run(world, config, loaded, &observer, &report);

    end_line(&d);
    TSR_TRY(status);
    if (!tsr_world_is_speaker(world)) {
        return TSR_OK;
    }
    if (json) {
        TSR_TRY(print_report_json(&report));
    } else {
        show_report(&d, &report);
    }
    return TSR_OK;
}

static int run_train(const tsri_cli *cli)
{
    tsri_config *config = NULL;
    const tsr_status loaded = load_config(cli, &config);

    return tsri_cli_run_config(cli, config, loaded, train);
}

const tsri_cli_command tsri_command_train = {
    .name = "train",
    .summary = "train a model as a configuration says",
    .usage = "CONFIG.yaml [-n N] [key=value ...] [--json]",
    .help =
        "Trains, and writes the run's folder: config.yaml with every key's value, plan.txt\n"
        "with memory and traffic of a step as a dry run found them, metrics.jsonl with a row\n"
        "per step. key=value words replace what the file says; `tessera config` explains the\n"
        "keys.\n"
        "\n"
        "  tessera train examples/train/tiny.yaml data.path=book.txt\n"
        "  tessera train examples/train/tiny.yaml -n 8 \"mesh={replicate: 2, shard: 2, tp: 2}\"\n"
        "  tessera train run.yaml -n 4 mesh=shard=2,tp=2 train.steps=1000 run.dir=runs/long\n",
    .options = options,
    .words_min = 1,
    .words_max = -1,
    .launches = true,
    .check = check_train,
    .run = run_train,
};
