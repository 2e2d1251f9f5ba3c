/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Plan and measure one preset after the other in one world.
 *
 * What can fail for a preset alone (a combination that is not legal, memory that is not there) is
 * agreed on by all ranks and becomes its row. A failure within a step ends the job. */
#include "compare_priv.h"

#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <string.h>

#include "comm/comm.h"
#include "job/from_config.h"
#include "plan/fit.h"
#include "plan/host_memory.h"
#include "plan/mesh_auto.h"
#include "topo/bind.h"

enum {
    DEFAULT_STEPS = 5
};

static const double probe_seconds = 6.0;

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
    if (r->ranks > 1) {
        status = tsri_team_broadcast(tsri_boot_job(), "sharing what was measured", status,
                                     r->cluster, sizeof(r->cluster), 0);
    }
    TSR_TRY(status);
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
    tsri_job_from_config(c->config, c->bf16, &c->options);
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

/* ---- a preset ---- */

static tsr_status plan_preset(comparison *c, tsri_compare_row *row)
{
    const int local = c->report->ranks > 1 ? tsri_boot_get_info()->local_size : 1;
    tsri_step_memory need;

    TSR_TRY(
        tsri_forecast_run(&c->options, c->report->ranks, &c->report->machine, NULL, &row->plan));
    if (!row->plan.possible) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s", row->plan.why);
    }
    TSR_TRY(tsri_job_dry_run(&c->options, tsr_world_rank(c->world), c->report->ranks, &c->dry_world,
                             &c->dry));
    tsri_job_summarize(c->dry, &need);
    row->planned_bytes = need.total_bytes;
    TSR_TRY(tsri_host_memory_check(need.total_bytes + need.host_bytes, local));
    return TSR_OK;
}

static tsr_status open_preset(comparison *c)
{
    TSR_TRY(tsri_job_open(c->world, &c->options, &c->job));
    TSR_TRY(tsri_arena_adopt(tsri_comm_arena(c->job->comm), tsri_comm_arena(c->dry->comm)));
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
        status = tsri_compare_measure(c->job, c->report->hosts, c->steps, row);
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

static void describe_job(comparison *c)
{
    const tsri_config *config = c->config;
    tsri_compare_report *r = c->report;
    const int local = r->ranks > 1 ? tsri_boot_get_info()->local_size : 1;
    size_t used = 0;

    r->hosts = r->ranks > 1 ? tsri_boot_get_info()->node_count : 1;
    r->threads =
        config->run.threads > 0 ? (int)config->run.threads : tsri_cpu_default_threads(local);
    r->steps = c->steps;
    r->arch = tsri_model_arch_name(&config->spec);
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

static tsr_status compare_presets(comparison *c, tsr_status loaded,
                                  const tsri_compare_options *options)
{
    tsri_text text = {0};
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, tsr_world_agree(c->world, fit(c, loaded, &text)), free_text);
    TSR_TRY_GOTO(
        status, tsr_world_check_same(c->world, "the configuration", text.data, (size_t)text.length),
        free_text);
    describe_job(c);
    c->preset = c->config->parallel.preset;
    c->bf16 = tsri_here_computes_bf16();
    choose_preset(c, c->preset);
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
    return tsri_world_settle(world, compare_presets(&c, loaded, options));
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
