/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The global gradient norm, and what becomes of the step by it.
 *
 * The norm counts every element once: where owned elements are replicated over mesh axes, the one
 * rank that speaks for them adds them. Norm, scale and skip stay
 * on the device. */
#include "optim_priv.h"

#include "base/base.h"

#include <math.h>

/* From now on what opt knows is of tape's step. */
static void attend(tsr_optimizer *opt, tsr_tape *tape)
{
    if (opt->watch.tape != tape) {
        opt->measured = false;
        tsri_tape_watch(tape, &opt->watch);
    }
}

/* Also where this rank owns nothing: all ranks fail alike, before the first message. */
static tsr_status finalize(tsr_param *param, const char *what, tsr_tape **tape_out)
{
    const tsri_grad_sink *sink = param->sink;
    const tsri_rest *grad = NULL;

    if (sink != NULL && sink->finalize != NULL) {
        TSR_TRY(sink->finalize(param->sink_context, param, what, tape_out));
    }
    TSR_TRY(tsri_param_get_grad(param, &grad));
    return TSR_OK;
}

tsr_status tsri_optim_finalize(tsr_optimizer *opt, const char *what, tsr_tape *tape,
                               tsr_tape **tape_out)
{
    const void *seen = NULL; /* parameters of one unit follow each other */

    *tape_out = tape;
    for (int i = 0; i < opt->count; i++) {
        tsr_param *param = opt->slots[i].param;
        tsr_tape *found = *tape_out;

        if (param->spec.frozen || (seen != NULL && param->sink_context == seen)) {
            continue;
        }
        TSR_TRY(finalize(param, what, &found));
        if (*tape_out != NULL && found != *tape_out) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "%s: the gradient of parameter %s is of another tape's step", what,
                             param->name);
        }
        seen = param->sink_context;
        *tape_out = found;
    }
    if (seen == NULL && tape != NULL) {
        TSR_TRY(tsri_step_check_final(tape, what));
    }
    if (*tape_out != NULL) {
        attend(opt, *tape_out);
    }
    return TSR_OK;
}

tsr_status tsri_optim_check_tape(const tsr_optimizer *opt, const char *what, const tsr_tape *tape)
{
    if (tsri_tape_comm(tape) != opt->comm) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: the tape lies on another comm than the optimizer",
                         what);
    }
    return TSR_OK;
}

tsr_status tsri_optim_check_updated(const tsr_optimizer *opt, const char *what)
{
    for (int i = 0; i < opt->count; i++) {
        if (opt->slots[i].param->updated) {
            return TSR_RAISE(TSR_ERR_STATE,
                             "%s: parameter %s was updated in this step already: tsr_step_end "
                             "comes before the next update",
                             what, opt->slots[i].param->name);
        }
    }
    return TSR_OK;
}

static tsr_status zero_total(const tsr_optimizer *opt, tsr_stream *stream)
{
    tsri_call call = {.stream = stream, .label = "grad norm"};
    tsrk_zero args = {.bytes = sizeof(double)};

    args.out = tsri_arg_out(&call, opt->scalars, offsetof(scalars, total), sizeof(double));
    TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    return TSR_OK;
}

static tsr_status add_squares(const tsr_optimizer *opt, const tsr_param *param, tsrk_norm norm,
                              tsr_stream *stream)
{
    tsri_call call = {.stream = stream, .label = param->name};
    tsrk_sum_squares args = {.n = tsri_optim_own_count(param), .accumulate = true, .norm = norm};

    args.x = tsri_optim_in(&call, &param->grad);
    args.out = tsri_arg_inout(&call, opt->scalars, offsetof(scalars, total), sizeof(double));
    TSR_TRY(TSRI_LAUNCH(&call, SUM_SQUARES, &args));
    return TSR_OK;
}

/* opt's scalar total: of all gradients, each element once. */
static tsr_status sum_gradients(const tsr_optimizer *opt, tsrk_norm norm, tsr_stream *stream)
{
    const int axes = tsr_mesh_axis_count(tsr_comm_mesh(opt->comm));

    TSR_TRY(zero_total(opt, stream));
    for (int i = 0; i < opt->count; i++) {
        const tsr_param *param = opt->slots[i].param;

        if (tsri_optim_own_count(param) > 0 && param->grad.speaks) {
            TSR_TRY(add_squares(opt, param, norm, stream));
        }
    }
    TSR_TRY(tsri_comm_all_reduce(opt->comm, (1u << axes) - 1u, opt->scalars,
                                 offsetof(scalars, total), 1, TSR_F64,
                                 norm == TSRK_NORM_MAX ? TSRI_MAX : TSRI_SUM, "grad norm"));
    return TSR_OK;
}

static tsr_status launch_clip(tsr_optimizer *opt, tsr_tape *tape, double max_norm, tsrk_norm norm)
{
    const tsri_loss_scale *s = tsri_tape_scale(tape);
    tsri_call call = {.stream = tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE),
                      .label = "grad norm"};
    tsrk_clip args = {.max_norm = max_norm, .kind = norm, .again = opt->measured};

    args.total = tsri_arg_in(&call, opt->scalars, offsetof(scalars, total), sizeof(double));
    args.count = tsri_arg_in(&call, tsri_tape_token_count(tape), 0, sizeof(double));
    args.norm = tsri_arg_out(&call, opt->scalars, offsetof(scalars, norm), sizeof(double));
    args.scale = tsri_arg_inout(&call, opt->scalars, offsetof(scalars, scale), sizeof(float));
    args.skip = tsri_arg_inout(&call, opt->scalars, offsetof(scalars, skip), sizeof(int32_t));
    args.skipped = tsri_arg_inout(&call, opt->scalars, offsetof(scalars, skipped), sizeof(int64_t));
    if (s->on) {
        args.loss_scale = tsri_arg_in(&call, s->states, tsri_scale_offset(s->now), sizeof(float));
    }
    TSR_TRY(TSRI_LAUNCH(&call, CLIP, &args));
    if (s->on) {
        TSR_TRY(tsri_optim_adapt_scale(opt, tape));
    }
    opt->measured = true;
    opt->has_norm = true;
    return TSR_OK;
}

static tsr_status choose_norm(double p, tsrk_norm *out)
{
    if (p == 0.0 || p == 2.0) {
        *out = TSRK_NORM_2;
    } else if (p == 1.0) {
        *out = TSRK_NORM_1;
    } else if (isinf(p) && p > 0.0) {
        *out = TSRK_NORM_MAX;
    } else {
        return TSR_RAISE(TSR_ERR_INVALID, "gradient norm of p = %g, wants 1, 2 or infinity", p);
    }
    return TSR_OK;
}

static tsr_status check_clip(const tsr_clip_options *o, tsrk_norm *norm_out)
{
    if (!(o->max_norm >= 0.0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "clip norm %g, wants at least 0", o->max_norm);
    }
    TSRI_WANT_ENUM(o->nonfinite, TSR_NONFINITE_ERROR);
    TSR_TRY(choose_norm(o->p, norm_out));
    return TSR_OK;
}

tsr_status tsr_clip_grad_norm_with(tsr_optimizer *opt, tsr_tape *tape,
                                   const tsr_clip_options *options)
{
    TSRI_WANT_AS("optimizer, tape", opt, tape);

    static const tsr_clip_options defaults = {0};
    const tsr_clip_options *o = options != NULL ? options : &defaults;
    tsrk_norm norm = TSRK_NORM_2;
    tsr_tape *found = NULL;
    double value = 0.0;

    TSR_TRY(tsri_optim_check_tape(opt, "tsr_clip_grad_norm", tape));
    TSR_TRY(check_clip(o, &norm));
    TSR_TRY(tsri_optim_finalize(opt, "tsr_clip_grad_norm", tape, &found));
    if (o->max_norm > 0.0) {
        TSR_TRY(tsri_optim_check_updated(opt, "tsr_clip_grad_norm"));
    }
    TSR_TRY(sum_gradients(opt, norm, tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    TSR_TRY(launch_clip(opt, tape, o->max_norm, norm));
    if (o->nonfinite == TSR_NONFINITE_ERROR) {
        TSR_TRY(tsr_grad_norm_read(opt, &value, NULL));
        if (!isfinite(value)) {
            return TSR_RAISE(TSR_ERR_INVALID, "gradient norm is %g: the step was not made", value);
        }
    }
    return TSR_OK;
}

tsr_status tsr_clip_grad_norm(tsr_optimizer *opt, tsr_tape *tape, double max_norm)
{
    TSRI_WANT_AS("optimizer, tape", opt, tape);

    const tsr_clip_options options = {.max_norm = max_norm};

    TSR_TRY(tsr_clip_grad_norm_with(opt, tape, &options));
    return TSR_OK;
}

tsr_status tsr_grad_norm_read(tsr_optimizer *opt, double *norm_out, bool *skipped_out)
{
    TSRI_WANT_AS("optimizer, norm_out", opt, norm_out);

    scalars host = {0};

    if (!opt->has_norm) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "no gradient norm was measured yet: call tsr_clip_grad_norm first");
    }
    TSR_TRY(tsri_read(opt->scalars, 0, &host, sizeof(host),
                      tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    *norm_out = host.norm;
    if (skipped_out != NULL) {
        *skipped_out = host.skip != 0;
    }
    return TSR_OK;
}
