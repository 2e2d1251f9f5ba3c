/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Learning rate over steps: a linear warm-up, then one of four shapes down to min_lr. */
#include "base/base.h"

#include "tessera/optim.h"

#include <math.h>

/* Fraction of the way from peak to end that a schedule has gone, progress in [0, 1]. */
static double decay(tsr_schedule_kind kind, double progress)
{
    static const double pi = 3.14159265358979323846;
    static const double stable = 0.8; /* of a warmup-stable-decay run */

    switch (kind) {
    case TSR_SCHEDULE_DEFAULT:
    case TSR_SCHEDULE_COSINE:
        return 0.5 * (1.0 - cos(pi * progress));
    case TSR_SCHEDULE_LINEAR:
        return progress;
    case TSR_SCHEDULE_WSD:
        return progress <= stable ? 0.0 : (progress - stable) / (1.0 - stable);
    case TSR_SCHEDULE_CONSTANT:
        return 0.0;
    }
    return 0.0;
}

static bool is_rate(double value)
{
    return value >= 0.0 && isfinite(value);
}

static bool is_legal(const tsr_schedule *s)
{
    return is_rate(s->lr) && is_rate(s->min_lr) && s->warmup >= 0 && s->steps >= 0 &&
           s->kind >= TSR_SCHEDULE_DEFAULT && s->kind <= TSR_SCHEDULE_WSD;
}

tsr_status tsr_schedule_check(const tsr_schedule *schedule)
{
    TSRI_WANT(schedule);

    const tsr_schedule *s = schedule;

    if (!is_legal(s)) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "schedule of kind %d, lr %g, min_lr %g, warmup %lld, steps %lld: rates "
                         "are finite, rates and counts at least 0, kinds %d to %d",
                         (int)s->kind, s->lr, s->min_lr, (long long)s->warmup, (long long)s->steps,
                         (int)TSR_SCHEDULE_DEFAULT, (int)TSR_SCHEDULE_WSD);
    }
    return TSR_OK;
}

double tsr_schedule_lr(const tsr_schedule *schedule, int64_t step)
{
    TSRI_WANT_OR(schedule, (double)NAN);

    int64_t span = 0;
    double progress = 0.0;

    if (!is_legal(schedule) || step < 0) {
        return (double)NAN;
    }
    span = schedule->steps - schedule->warmup;
    if (step < schedule->warmup) {
        return schedule->lr * (double)(step + 1) / (double)schedule->warmup;
    }
    if (span > 0) {
        progress = (double)(step - schedule->warmup) / (double)span;
    }
    progress = progress > 1.0 ? 1.0 : progress;
    return schedule->lr - (schedule->lr - schedule->min_lr) * decay(schedule->kind, progress);
}
