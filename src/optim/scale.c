/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Dynamic loss scaling. The scale is the tape's, so every gradient of the tape carries it, whoever
 * updates by it. The norms of a step make the next step's scale out of this step's: neither how
 * often they are measured nor whose they are counts twice. */
#include "optim_priv.h"

#include "base/base.h"

#include <math.h>

tsr_status tsri_optim_adapt_scale(const tsr_optimizer *opt, tsr_tape *tape)
{
    tsri_loss_scale *s = tsri_tape_scale(tape);
    tsri_call call = {.stream = tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE),
                      .label = "loss scale"};
    tsrk_loss_scale args = {.growth = s->growth,
                            .backoff = s->backoff,
                            .min = s->min,
                            .max = s->max,
                            .interval = s->interval,
                            .again = s->measured};

    args.norm = tsri_arg_in(&call, opt->scalars, offsetof(scalars, norm), sizeof(double));
    args.skip = tsri_arg_in(&call, opt->scalars, offsetof(scalars, skip), sizeof(int32_t));
    args.now = tsri_arg_in(&call, s->states, tsri_scale_offset(s->now), sizeof(tsrk_scale_state));
    args.next =
        tsri_arg_out(&call, s->states, tsri_scale_offset(1 - s->now), sizeof(tsrk_scale_state));
    args.overflow = tsri_arg_inout(&call, s->states, tsri_scale_offset(2), sizeof(int32_t));
    TSR_TRY(TSRI_LAUNCH(&call, LOSS_SCALE, &args));
    s->measured = true;
    return TSR_OK;
}

static bool is_legal(const tsr_loss_scale_options *o)
{
    return o->growth >= 1.0 && isfinite(o->growth) && o->backoff > 0.0 && o->backoff < 1.0 &&
           o->min > 0.0 && o->min <= o->init && o->init <= o->max && isfinite(o->max) &&
           o->interval > 0;
}

static tsr_status fill_defaults(const tsr_loss_scale_options *given, tsr_loss_scale_options *o)
{
    *o = given != NULL ? *given : (tsr_loss_scale_options){0};
    o->init = o->init != 0.0 ? o->init : 0x1p16;
    o->growth = o->growth != 0.0 ? o->growth : 2.0;
    o->backoff = o->backoff != 0.0 ? o->backoff : 0.5;
    o->min = o->min != 0.0 ? o->min : 1.0;
    o->max = o->max != 0.0 ? o->max : 0x1p24;
    o->interval = o->interval != 0 ? o->interval : 2000;
    if (!is_legal(o)) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "loss scale of init %g, growth %g, backoff %g, min %g, max %g, interval "
                         "%d: wants min <= init <= max, growth >= 1, 0 < backoff < 1",
                         o->init, o->growth, o->backoff, o->min, o->max, o->interval);
    }
    return TSR_OK;
}

tsr_status tsr_loss_scale_begin(tsr_optimizer *opt, tsr_tape *tape,
                                const tsr_loss_scale_options *options)
{
    TSRI_WANT_AS("optimizer, tape", opt, tape);

    tsri_loss_scale *s = tsri_tape_scale(tape);
    tsrk_scale_state first = {0};
    tsr_loss_scale_options o;

    TSR_TRY(tsri_optim_check_tape(opt, "tsr_loss_scale_begin", tape));
    TSR_TRY(tsri_step_check_outside(tape, "tsr_loss_scale_begin"));
    TSR_TRY(fill_defaults(options, &o));
    if (s->on && options == NULL) {
        return TSR_OK;
    }
    first.scale = (float)o.init;
    TSR_TRY(tsri_write(s->states, tsri_scale_offset(s->now), &first, sizeof(first),
                       tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    s->growth = o.growth;
    s->backoff = o.backoff;
    s->min = o.min;
    s->max = o.max;
    s->interval = o.interval;
    s->on = true;
    return TSR_OK;
}

tsr_status tsr_loss_scale_read(tsr_optimizer *opt, tsr_tape *tape, double *scale_out,
                               int64_t *skipped_out)
{
    TSRI_WANT_AS("optimizer, tape, scale_out", opt, tape, scale_out);

    tsr_stream *stream = tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE);
    const tsri_loss_scale *s = tsri_tape_scale(tape);
    const int next = s->measured ? 1 - s->now : s->now;
    tsrk_scale_state state = {0};

    TSR_TRY(tsri_optim_check_tape(opt, "tsr_loss_scale_read", tape));
    if (skipped_out != NULL) {
        TSR_TRY(tsri_read(opt->scalars, offsetof(scalars, skipped), skipped_out,
                          sizeof(*skipped_out), stream));
    }
    TSR_TRY(tsri_read(s->states, tsri_scale_offset(next), &state, sizeof(state), stream));
    *scale_out = (double)state.scale;
    return TSR_OK;
}
