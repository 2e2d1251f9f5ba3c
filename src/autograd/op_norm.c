/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_norm.c
 * Operations on rows, the last dim: layernorm, rmsnorm, softmax.
 *
 * Per axis: x Shard(d < last) stays and the parameters' gradients are Partial; anything else of x
 * becomes Replicate. Gain and bias are whole. Saved: a mean and a reciprocal deviation per row, of
 * softmax its output.
 */
#include "autograd_priv.h"

#include <string.h>

enum {
    X = 0,
    GAIN = 1,
    BIAS = 2,
    RSTD = 0, /* saved */
    MEAN = 1
};

typedef struct norm_attr {
    float eps;
} norm_attr;

static float norm_eps(const tsri_op_call *call)
{
    norm_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr.eps;
}

static tsr_status norm_rule(tsri_op_call *call)
{
    const tsr_layout *x = &call->want[X];
    const int last = x->ndim - 1;
    char where[TSRI_WHERE_BYTES];

    for (int i = GAIN; i < call->in_count; i++) {
        if (last < 0 || call->want[i].ndim != 1 || call->want[i].shape[0] != x->shape[last]) {
            char a[TSRI_WHERE_BYTES];
            char b[TSRI_WHERE_BYTES];

            return TSR_RAISE(
                TSR_ERR_SHAPE, "%s: %s %s for x %s", tsri_op_where(call, where, sizeof(where)),
                i == GAIN ? "gain" : "bias",
                tsri_format_shape(call->want[i].shape, call->want[i].ndim, b, sizeof(b)),
                tsri_format_shape(x->shape, x->ndim, a, sizeof(a)));
        }
    }
    tsri_rule_local_dims(call, X, last);
    for (int i = GAIN; i < call->in_count; i++) {
        tsri_rule_local_dims(call, i, 0);
        tsri_rule_param_grad(call, i, &call->want[X]);
    }
    call->out_layout = call->want[X];
    return TSR_OK;
}

/* One f32 per row of x. */
static tsr_status save_rows(tsri_op_call *call, int index)
{
    const tsr_layout layout = tsri_rule_leading(&call->in_layout[X], call->in_layout[X].ndim - 1);

    TSR_TRY(tsri_op_acquire(call, &layout, TSR_F32, TSRI_MEM_ACTIVATION, &call->saved[index]));
    call->saved_count = index + 1;
    return TSR_OK;
}

/* Where dx goes when nobody wants it: the kernels write it always. */
static tsr_status scratch_dx(tsri_op_call *call, tsr_dtensor **out)
{
    *out = call->din[X] != NULL ? tsr_dtensor_retain(call->din[X]) : NULL;
    if (*out == NULL) {
        TSR_TRY(
            tsri_op_acquire(call, &call->in_layout[X], call->in_dtype[X], TSRI_MEM_WORKSPACE, out));
    }
    return TSR_OK;
}

/* ---- rmsnorm ---- */

static tsr_status rmsnorm_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *x = call->in[X];
    tsrk_rmsnorm args = {.x = tsri_in(&launch, x),
                         .gain = tsri_in(&launch, call->in[GAIN]),
                         .y = tsri_out(&launch, call->out),
                         .rows = tsri_op_rows(x),
                         .cols = tsri_op_cols(x),
                         .eps = norm_eps(call),
                         .type = x->dtype};

    TSR_TRY(save_rows(call, RSTD));
    args.rstd = tsri_out(&launch, call->saved[RSTD]);
    TSR_TRY(tsri_op_launch(call, &launch, TSRK_RMSNORM, &args, NULL));
    return TSR_OK;
}

static tsr_status rmsnorm_backward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *x = call->in[X];
    tsr_dtensor *dx = NULL;
    tsr_status status = TSR_OK;
    tsrk_rmsnorm_bwd args = {.dy = tsri_in(&launch, call->dout),
                             .x = tsri_in(&launch, x),
                             .gain = tsri_in(&launch, call->in[GAIN]),
                             .rstd = tsri_in(&launch, call->saved[RSTD]),
                             .dgain = tsri_op_grad(call, &launch, GAIN),
                             .rows = tsri_op_rows(x),
                             .cols = tsri_op_cols(x),
                             .type = x->dtype,
                             .grad_type = TSR_F32,
                             .accumulate_dx = call->accumulate[X],
                             .accumulate_dgain = call->accumulate[GAIN]};

    if (call->din[GAIN] != NULL) {
        args.grad_type = call->din[GAIN]->dtype;
    }
    TSR_TRY_GOTO(status, scratch_dx(call, &dx), release_dx);
    args.dx = call->accumulate[X] ? tsri_inout(&launch, dx) : tsri_out(&launch, dx);
    TSR_TRY_GOTO(status, tsri_op_launch(call, &launch, TSRK_RMSNORM_BWD, &args, &args.workspace),
                 release_dx);
release_dx:
    tsr_dtensor_release(&dx);
    return status;
}

static const tsri_op_def op_rmsnorm = {.name = "rmsnorm",
                                       .typed_grad = 1U << GAIN,
                                       .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
                                       .inputs = "x, gain",
                                       .alike = 1U << GAIN,
                                       .rule = norm_rule,
                                       .forward = rmsnorm_forward,
                                       .backward = rmsnorm_backward,
                                       .keep_in = 1U << X | 1U << GAIN};

tsr_status tsr_op_rmsnorm(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *gain, double eps,
                          tsr_dtensor **out)
{
    TSRI_WANT(tape, x, gain, out);
    TSRI_WANT_NUMBER(eps);

    tsr_dtensor *in[] = {x, gain};
    const norm_attr attr = {.eps = (float)eps};

    TSR_TRY(tsri_op_apply(tape, &op_rmsnorm, in, 2, &attr, sizeof(attr), out));
    return TSR_OK;
}

/* ---- layernorm ---- */

static tsr_status layernorm_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *x = call->in[X];
    tsrk_layernorm args = {.x = tsri_in(&launch, x),
                           .gain = tsri_in(&launch, call->in[GAIN]),
                           .bias = tsri_in(&launch, call->in[BIAS]),
                           .y = tsri_out(&launch, call->out),
                           .rows = tsri_op_rows(x),
                           .cols = tsri_op_cols(x),
                           .eps = norm_eps(call),
                           .type = x->dtype};

    TSR_TRY(save_rows(call, RSTD));
    TSR_TRY(save_rows(call, MEAN));
    args.rstd = tsri_out(&launch, call->saved[RSTD]);
    args.mean = tsri_out(&launch, call->saved[MEAN]);
    TSR_TRY(tsri_op_launch(call, &launch, TSRK_LAYERNORM, &args, NULL));
    return TSR_OK;
}

static tsr_status launch_layernorm_bwd(tsri_op_call *call, tsr_dtensor *dbias, bool accumulate)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *x = call->in[X];
    const tsr_dtensor *typed = call->din[GAIN] != NULL ? call->din[GAIN] : dbias;
    tsr_dtensor *dx = NULL;
    tsr_status status = TSR_OK;
    tsrk_layernorm_bwd args = {.dy = tsri_in(&launch, call->dout),
                               .x = tsri_in(&launch, x),
                               .gain = tsri_in(&launch, call->in[GAIN]),
                               .mean = tsri_in(&launch, call->saved[MEAN]),
                               .rstd = tsri_in(&launch, call->saved[RSTD]),
                               .dgain = tsri_op_grad(call, &launch, GAIN),
                               .rows = tsri_op_rows(x),
                               .cols = tsri_op_cols(x),
                               .type = x->dtype,
                               .grad_type = typed != NULL ? typed->dtype : TSR_F32,
                               .accumulate_dx = call->accumulate[X],
                               .accumulate_dgain = call->accumulate[GAIN],
                               .accumulate_dbias = accumulate};

    if (dbias != NULL) {
        args.dbias = accumulate ? tsri_inout(&launch, dbias) : tsri_out(&launch, dbias);
    }
    TSR_TRY_GOTO(status, scratch_dx(call, &dx), release_dx);
    args.dx = call->accumulate[X] ? tsri_inout(&launch, dx) : tsri_out(&launch, dx);
    TSR_TRY_GOTO(status, tsri_op_launch(call, &launch, TSRK_LAYERNORM_BWD, &args, &args.workspace),
                 release_dx);
release_dx:
    tsr_dtensor_release(&dx);
    return status;
}

/* The kernel writes both parameters' gradients in one type; where theirs differ, the bias's is cast
 * behind it. */
static tsr_status layernorm_backward(tsri_op_call *call)
{
    const tsr_dtensor *gain = call->din[GAIN];
    tsr_dtensor *bias = call->din[BIAS];
    tsr_dtensor *cast = NULL;
    tsr_status status = TSR_OK;

    if (gain == NULL || bias == NULL || gain->dtype == bias->dtype) {
        TSR_TRY(launch_layernorm_bwd(call, bias, call->accumulate[BIAS]));
        return TSR_OK;
    }
    TSR_TRY(tsri_op_acquire(call, &bias->layout, gain->dtype, TSRI_MEM_WORKSPACE, &cast));
    TSR_TRY_GOTO(status, launch_layernorm_bwd(call, cast, false), release_cast);
    TSR_TRY_GOTO(
        status,
        tsri_op_scale_into(call->comm, call->path, cast, 1.0F, call->accumulate[BIAS], bias),
        release_cast);
release_cast:
    tsr_dtensor_release(&cast);
    return status;
}

static const tsri_op_def op_layernorm = {
    .name = "layernorm",
    .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
    .inputs = "x, gain, bias",
    .alike = 1U << GAIN | 1U << BIAS,
    .typed_grad = 1U << GAIN | 1U << BIAS,
    .rule = norm_rule,
    .forward = layernorm_forward,
    .backward = layernorm_backward,
    .keep_in = 1U << X | 1U << GAIN};

tsr_status tsr_op_layernorm(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *gain, tsr_dtensor *bias,
                            double eps, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, gain, bias, out);
    TSRI_WANT_NUMBER(eps);

    tsr_dtensor *in[] = {x, gain, bias};
    const norm_attr attr = {.eps = (float)eps};

    TSR_TRY(tsri_op_apply(tape, &op_layernorm, in, 3, &attr, sizeof(attr), out));
    return TSR_OK;
}

/* ---- softmax ---- */

static tsr_status softmax_rule(tsri_op_call *call)
{
    const int last = call->want[X].ndim - 1;
    char where[TSRI_WHERE_BYTES];

    if (last < 0) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: x has no dims, wants 1 or more",
                         tsri_op_where(call, where, sizeof(where)));
    }
    tsri_rule_local_dims(call, X, last);
    call->out_layout = call->want[X];
    return TSR_OK;
}

static tsr_status softmax_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_softmax args = {.x = tsri_in(&launch, call->in[X]),
                               .y = tsri_out(&launch, call->out),
                               .rows = tsri_op_rows(call->out),
                               .cols = tsri_op_cols(call->out),
                               .type = call->out->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, SOFTMAX, &args));
    return TSR_OK;
}

static tsr_status softmax_backward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_softmax_bwd args = {.dy = tsri_in(&launch, call->dout),
                                   .y = tsri_in(&launch, call->out),
                                   .dx = tsri_op_grad(call, &launch, X),
                                   .rows = tsri_op_rows(call->dout),
                                   .cols = tsri_op_cols(call->dout),
                                   .type = call->dout->dtype,
                                   .accumulate = call->accumulate[X]};

    TSR_TRY(TSRI_LAUNCH(&launch, SOFTMAX_BWD, &args));
    return TSR_OK;
}

static const tsri_op_def op_softmax = {.name = "softmax",
                                       .takes = {TSR_DTYPES_FLOAT},
                                       .inputs = "x",
                                       .rule = softmax_rule,
                                       .forward = softmax_forward,
                                       .backward = softmax_backward,
                                       .keep_out = true,
                                       .over_grad = 1U << X};

tsr_status tsr_op_softmax(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);
    TSR_TRY(tsri_op_apply(tape, &op_softmax, &x, 1, NULL, 0, out));
    return TSR_OK;
}
