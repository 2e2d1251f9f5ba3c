/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The update of this rank's own elements. Whether it is skipped is known on the device alone, so
 * that is where updates are counted; the learning rate lies there too, so that every step's update
 * is the same calls. */
#include "optim_priv.h"

#include "base/base.h"

static const void *scalar_in(const tsr_optimizer *opt, tsri_call *call, size_t at, size_t bytes)
{
    return tsri_arg_in(call, opt->scalars, at, bytes);
}

static const int32_t *skip_arg(const tsr_optimizer *opt, tsri_call *call)
{
    return opt->measured ? scalar_in(opt, call, offsetof(scalars, skip), sizeof(int32_t)) : NULL;
}

static const float *scale_arg(const tsr_optimizer *opt, tsri_call *call)
{
    return opt->measured ? scalar_in(opt, call, offsetof(scalars, scale), sizeof(float)) : NULL;
}

static const int64_t *step_arg(const tsr_optimizer *opt, tsri_call *call)
{
    return scalar_in(opt, call, offsetof(scalars, updates), sizeof(int64_t));
}

static const double *rate_arg(const tsr_optimizer *opt, tsri_call *call)
{
    return scalar_in(opt, call, offsetof(scalars, lr), sizeof(double));
}

static tsr_status count_update(const tsr_optimizer *opt)
{
    tsri_call call = {.stream = tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE),
                      .label = "optimizer"};
    tsrk_count_update args = {.skip = skip_arg(opt, &call)};

    args.count = tsri_arg_inout(&call, opt->scalars, offsetof(scalars, updates), sizeof(int64_t));
    TSR_TRY(TSRI_LAUNCH(&call, COUNT_UPDATE, &args));
    return TSR_OK;
}

static tsr_status step_adamw(const tsr_optimizer *opt, const slot *s, tsri_call *call)
{
    const tsr_param *p = s->param;
    tsrk_adamw args = {.n = tsri_optim_own_count(p),
                       .lr = s->lr_scale,
                       .beta1 = opt->options.beta1,
                       .beta2 = opt->options.beta2,
                       .eps = opt->options.eps,
                       .weight_decay = s->weight_decay};

    args.p = tsri_optim_inout(call, &p->master);
    args.g = tsri_optim_in(call, &p->grad);
    args.m = tsri_optim_inout(call, &s->state.m);
    args.v = tsri_optim_inout(call, &s->state.v);
    args.step = step_arg(opt, call);
    args.scale = scale_arg(opt, call);
    args.skip = skip_arg(opt, call);
    args.rate = rate_arg(opt, call);
    TSR_TRY(TSRI_LAUNCH(call, ADAMW, &args));
    return TSR_OK;
}

static tsr_status step_sgd(const tsr_optimizer *opt, const slot *s, tsri_call *call)
{
    const tsr_param *p = s->param;
    tsrk_sgd args = {.n = tsri_optim_own_count(p),
                     .lr = s->lr_scale,
                     .momentum = opt->options.momentum,
                     .weight_decay = s->weight_decay,
                     .nesterov = opt->options.nesterov};

    args.p = tsri_optim_inout(call, &p->master);
    args.g = tsri_optim_in(call, &p->grad);
    if (opt->options.momentum > 0.0) {
        args.buffer = tsri_optim_inout(call, &s->state.m);
        args.step = step_arg(opt, call);
    }
    args.scale = scale_arg(opt, call);
    args.skip = skip_arg(opt, call);
    args.rate = rate_arg(opt, call);
    TSR_TRY(TSRI_LAUNCH(call, SGD, &args));
    return TSR_OK;
}

static tsr_status check_step(tsr_optimizer *opt, tsr_tape **tape_out)
{
    TSR_TRY(tsri_optim_finalize(opt, "tsr_optimizer_step", NULL, tape_out));
    TSR_TRY(tsri_optim_check_updated(opt, "tsr_optimizer_step"));
    if (*tape_out != NULL && tsri_tape_scale(*tape_out)->on && !opt->measured) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "gradients carry their tape's loss scale: call tsr_clip_grad_norm with "
                         "this optimizer before tsr_optimizer_step (0 clips nothing)");
    }
    return TSR_OK;
}

static tsr_status step_slot(const tsr_optimizer *opt, const slot *s)
{
    tsri_call call = {.stream = tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE),
                      .label = s->param->name};

    if (tsri_optim_own_count(s->param) == 0) {
        return TSR_OK;
    }
    if (opt->options.kind == TSR_SGD) {
        TSR_TRY(step_sgd(opt, s, &call));
    } else {
        TSR_TRY(step_adamw(opt, s, &call));
    }
    return TSR_OK;
}

tsr_status tsr_optimizer_step(tsr_optimizer *opt, double lr)
{
    TSRI_WANT_AS("optimizer", opt);
    TSRI_WANT_NUMBER(lr);

    tsr_tape *tape = NULL;

    TSR_TRY(check_step(opt, &tape));
    TSR_TRY(tsri_optimizer_set_lr(opt, lr));
    TSR_TRY(count_update(opt));
    for (int i = 0; i < opt->count; i++) {
        TSR_TRY(step_slot(opt, &opt->slots[i]));
    }
    for (int i = 0; tape != NULL && i < opt->count; i++) {
        opt->slots[i].param->updated = !opt->slots[i].param->spec.frozen;
    }
    if (tape != NULL) {
        tsri_step_updated(tape);
    }
    return TSR_OK;
}
