/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The training loop. Until steps begin a failure is agreed on (start.c); then a failing rank takes
 * the job down. */
#include "train/loop.h"

#include "train_priv.h"

#include "base/base.h"

#include <math.h>

enum {
    MOST_OVERFLOWS = 25 /* in a row: from the greatest loss scale to the least */
};

/* With loss scaling a step may overflow: the scale goes down until the next ones do not. */
static bool is_overflow(const training *t, const tsri_step_result *result)
{
    return t->options.scale_loss && result->skipped && isfinite(result->loss) &&
           t->overflows < MOST_OVERFLOWS;
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

static tsr_status train_step(training *t)
{
    const double begin = tsri_now_s();
    const double lr = tsr_schedule_lr(&t->schedule, t->step);
    tsr_device *device = tsri_comm_device(t->job->comm);
    const double exposed = tsri_exposed_s(device);
    size_t now_bytes = 0;
    tsri_step_result result;
    tsri_train_row row = {.step = t->step + 1, .steps = t->config->train.steps, .lr = lr};

    tsri_recorder_clear(device);
    TSR_TRY(tsri_batches_write(&t->batches, t->job, t->step));
    TSR_TRY(tsri_job_step(t->job, t->step, lr, t->config->train.clip_norm, NULL, &result));
    row.loss = result.loss;
    row.grad_norm = result.grad_norm;
    row.tokens = result.tokens;
    row.step_s = tsri_now_s() - begin;
    row.tokens_per_s = result.tokens / row.step_s;
    row.exposed_comm_s = tsri_exposed_s(device) - exposed;
    tsr_comm_memory(t->job->comm, &now_bytes, &row.mem_peak_bytes);
    TSR_TRY(tsri_journal_step(&t->journal, &row));
    tsri_journal_unusual(&t->journal, t->step + 1, &result, is_overflow(t, &result));
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

static tsr_status train_steps(training *t)
{
    t->journal.begin_s = tsri_now_s();
    for (t->step = 0; t->step < t->config->train.steps; t->step++) {
        TSR_TRY(train_step(t));
    }
    t->report.train_s = tsri_now_s() - t->journal.begin_s;
    t->report.tokens_per_s = t->counted_s > 0.0 ? t->counted_tokens / t->counted_s : 0.0;
    TSR_TRY(tsri_journal_finish(&t->journal));
    return TSR_OK;
}

static tsr_status set_up_and_train(training *t, tsr_status loaded)
{
    TSR_TRY(tsri_train_set_up(t, loaded));
    TSR_TRY(train_steps(t));
    return TSR_OK;
}

static void close_training(training *t)
{
    tsri_journal_close(&t->journal);
    tsri_job_close(&t->job);
    tsri_job_close(&t->dry.job);
    if (t->dry.world != NULL) {
        tsr_world_close(&t->dry.world);
    }
    tsri_batches_close(&t->batches);
    tsri_text_free(&t->config_text);
    tsri_free(&t->place.declared);
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
    t->journal = (train_journal){.world = world,
                                 .config = config,
                                 .observer = observer != NULL ? observer : &nobody,
                                 .speaks = tsr_world_is_speaker(world)};
    status = tsri_world_settle(world, set_up_and_train(t, loaded));
    *out = t->report;
    close_training(t);
    tsri_free(&t);
    return status;
}
