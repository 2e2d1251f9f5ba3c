/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What is told of a run: rows of metrics.jsonl, lines to its observer, a trace. */
#include "train_priv.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

#include "plan/hosts.h"
#include "plan/trace.h"

enum {
    TRACE_FIRST = 1, /* the first step warms up caches */
    TRACE_STEPS = 3
};

void tsri_journal_note(const train_journal *j, const char *text)
{
    if (j->speaks && j->observer->note != NULL) {
        j->observer->note(j->observer->context, text);
    }
}

/* ---- a row ---- */

/* {"replicate": 12345, ...}: what this rank sent, by axes. */
static void add_traffic(train_journal *j)
{
    const tsri_traffic *traffic = &j->traffic;
    bool first = true;

    tsri_text_add(&j->line, "{");
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
        tsri_text_add(&j->line, "%s\"%s\": %.0f", first ? "" : ", ", traffic->rows[i].axes, sent);
        first = false;
    }
    tsri_text_add(&j->line, "}");
}

static void add_field(tsri_text *line, const char *name, double value)
{
    tsri_text_add(line, ", \"%s\": ", name);
    tsri_text_add_number(line, value);
}

static tsr_status write_row(train_journal *j, const tsri_train_row *row)
{
    tsri_text *line = &j->line;
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
    add_traffic(j);
    add_field(line, "host_sent_bytes", row->host_sent_bytes);
    tsri_text_add(line, "}\n");
    TSR_TRY(tsri_run_folder_add_row(&j->folder, line, &renewed));
    if (renewed) {
        (void)snprintf(
            text, sizeof(text),
            "step %lld: metrics.jsonl in %.128s was deleted; a new one has the rows from "
            "this one on",
            (long long)row->step, j->folder.dir);
        tsri_journal_note(j, text);
    }
    return TSR_OK;
}

/* Collective over the world. What a logged row says besides: how the ranks compare, and the bytes
 * that went; these first, because comparing sends some too. */
static tsr_status complete_row(train_journal *j, tsri_train_row *row)
{
    const tsr_device *device = tsri_comm_device(j->job->comm);
    const int rank = tsr_comm_rank(j->job->comm);
    char text[256];
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(device, &count);
    tsri_host_bytes sent;

    tsri_traffic_count(device, &j->traffic);
    TSR_TRY(tsri_host_bytes_count(entries, count, j->job->mesh, tsri_world_nodes(j->world), rank,
                                  &sent));
    row->host_sent_bytes = sent.host;
    TSR_TRY(tsri_own_times_gather(j->own_times, row->step_s - row->exposed_comm_s, &row->own));
    if (tsri_straggler_follow(&j->straggler, &row->own)) {
        (void)snprintf(text, sizeof(text),
                       "step %lld: rank %d on host %s is slow: %.3g s of its own per step, the "
                       "others %.3g s, for %d rows now",
                       (long long)row->step, row->own.slowest,
                       tsr_world_host(j->world, row->own.slowest), row->own.max_s,
                       row->own.others_s, TSRI_STRAGGLER_ROWS);
        tsri_journal_note(j, text);
    }
    return TSR_OK;
}

static void trace_step(train_journal *j, int64_t step)
{
    const int64_t first = j->config->train.steps > TRACE_FIRST ? TRACE_FIRST : 0;
    const tsri_entry *entries = NULL;
    int count = 0;

    if (!j->speaks || !j->config->log.trace || step < first || step >= first + TRACE_STEPS) {
        return;
    }
    if (step == first) {
        tsri_trace_begin(&j->trace, tsr_comm_rank(j->job->comm));
    }
    entries = tsri_recorder_entries(tsri_comm_device(j->job->comm), &count);
    tsri_trace_add(&j->trace, entries, count, tsr_comm_rank(j->job->comm), j->begin_s);
}

tsr_status tsri_journal_step(train_journal *j, tsri_train_row *row)
{
    const tsri_config *c = j->config;

    j->mean_step_s = row->step < 3 ? row->step_s : 0.9 * j->mean_step_s + 0.1 * row->step_s;
    row->eta_s = j->mean_step_s * (double)(row->steps - row->step);
    row->logged = row->step % c->log.every == 0 || row->step == row->steps ||
                  !isfinite(row->loss) || !isfinite(row->grad_norm);
    if (row->logged) {
        TSR_TRY(complete_row(j, row));
    }
    if (!j->speaks) {
        return TSR_OK;
    }
    if (row->logged) {
        TSR_TRY(write_row(j, row));
    }
    trace_step(j, row->step - 1);
    if (j->observer->row != NULL) {
        j->observer->row(j->observer->context, row);
    }
    return TSR_OK;
}

/* What is unusual about a step, but no failure. */
void tsri_journal_unusual(train_journal *j, int64_t step, const tsri_step_result *result,
                          bool overflows)
{
    char text[256];
    tsri_arena_stats stats;

    tsri_arena_get_stats(tsri_comm_arena(j->job->comm), &stats);
    if (stats.departures > j->departures) {
        j->departures = stats.departures;
        (void)snprintf(text, sizeof(text), "step %lld left the plan at \"%s\"; planned again",
                       (long long)step, stats.departure_label != NULL ? stats.departure_label : "");
        tsri_journal_note(j, text);
    }
    if (overflows) {
        (void)snprintf(text, sizeof(text),
                       "step %lld: the gradients overflowed; the update was skipped, and the loss "
                       "scale is %g now",
                       (long long)step, result->loss_scale);
        tsri_journal_note(j, text);
    }
    if (result->tokens <= 0.0) {
        (void)snprintf(text, sizeof(text), "step %lld: no label counts; nothing was updated",
                       (long long)step);
        tsri_journal_note(j, text);
    }
}

tsr_status tsri_journal_finish(train_journal *j)
{
    if (j->trace.length > 0) {
        tsri_trace_end(&j->trace);
        TSR_TRY(tsri_run_folder_write(&j->folder, "trace-rank0.json", &j->trace));
    }
    return TSR_OK;
}

void tsri_journal_close(train_journal *j)
{
    tsri_own_times_close(&j->own_times);
    tsri_run_folder_close(&j->folder);
    tsri_text_free(&j->line);
    tsri_text_free(&j->trace);
}
