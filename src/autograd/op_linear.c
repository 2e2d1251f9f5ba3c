/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_linear.c
 * y [..., n] = x [..., k] weight[n, k]^T + bias[n].
 *
 * Per axis, by how the weight lies on it:
 *   Shard(0)   x Replicate            y Shard(last)   dx Partial      dweight Shard(0)  dbias
 * Shard(0) Shard(1)   x Shard(last)          y Partial       dx Shard(last)  dweight Shard(1) dbias
 * Replicate Replicate  x Shard(d < last)      y Shard(d)      dx Shard(d)     dweight Partial dbias
 * Partial Replicate  x Replicate            y Replicate     dx Replicate    dweight, dbias
 * Replicate Where y is Partial, the ranks of index 0 add the bias; all of them compute its whole
 * gradient.
 */
#include "autograd_priv.h"

enum {
    X = 0,
    WEIGHT = 1,
    BIAS = 2
};

static tsr_status check_shapes(const tsri_op_call *call)
{
    const tsr_layout *x = &call->want[X];
    const tsr_layout *weight = &call->want[WEIGHT];
    char where[TSRI_WHERE_BYTES];

    if (x->ndim < 1 || weight->ndim != 2) {
        return TSR_RAISE(TSR_ERR_SHAPE,
                         "%s: x of %d dims times weight of %d, wants 1 or more and 2",
                         tsri_op_where(call, where, sizeof(where)), x->ndim, weight->ndim);
    }
    if (x->shape[x->ndim - 1] != weight->shape[1]) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: x [..., %lld] times weight [%lld, %lld]: %lld != %lld",
                         tsri_op_where(call, where, sizeof(where)),
                         (long long)x->shape[x->ndim - 1], (long long)weight->shape[0],
                         (long long)weight->shape[1], (long long)x->shape[x->ndim - 1],
                         (long long)weight->shape[1]);
    }
    if (call->in_count > BIAS &&
        (call->want[BIAS].ndim != 1 || call->want[BIAS].shape[0] != weight->shape[0])) {
        char text[TSRI_WHERE_BYTES];

        return TSR_RAISE(
            TSR_ERR_SHAPE, "%s: bias %s for weight [%lld, %lld]",
            tsri_op_where(call, where, sizeof(where)),
            tsri_format_shape(call->want[BIAS].shape, call->want[BIAS].ndim, text, sizeof(text)),
            (long long)weight->shape[0], (long long)weight->shape[1]);
    }
    return TSR_OK;
}

static void want_on_axis(tsri_op_call *call, int axis)
{
    tsr_placement *x = &call->want[X].place[axis];
    tsr_placement *weight = &call->want[WEIGHT].place[axis];
    const int last = call->want[X].ndim - 1;
    const bool has_bias = call->in_count > BIAS;

    if (weight->kind == TSR_SHARD && weight->dim == 0) {
        *x = tsri_replicate();
    } else if (weight->kind == TSR_SHARD) {
        *x = tsri_shard(last);
    } else {
        *weight = tsri_replicate();
        if (x->kind != TSR_SHARD || x->dim == last) {
            *x = tsri_replicate();
        }
    }
    if (has_bias) {
        call->want[BIAS].place[axis] =
            tsri_is_shard(&call->want[WEIGHT], axis, 0) ? tsri_shard(0) : tsri_replicate();
    }
}

static tsr_status linear_rule(tsri_op_call *call)
{
    const int last = call->want[X].ndim - 1;
    tsr_layout y;

    TSR_TRY(check_shapes(call));
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        want_on_axis(call, axis);
    }
    /* The dims k of x and weight meet element by element. */
    tsri_rule_order(&call->want[X], &call->want[X], &call->want[WEIGHT]);
    if (tsri_rule_mask(&call->want[WEIGHT], 1) != 0) {
        tsri_rule_order(&call->want[X], &call->want[WEIGHT], &call->want[X]);
    }
    y = call->want[X];
    y.shape[last] = call->want[WEIGHT].shape[0];
    call->grad_layout[X] = call->want[X];
    tsri_rule_param_grad(call, WEIGHT, &call->want[X]);
    if (call->in_count > BIAS) {
        tsri_rule_order(&call->want[BIAS], &call->want[WEIGHT], &call->want[BIAS]);
        call->grad_layout[BIAS] = call->want[BIAS];
    }
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        const tsr_layout *weight = &call->want[WEIGHT];

        if (tsri_is_shard(weight, axis, 0)) {
            y.place[axis] = tsri_shard(last);
            call->grad_layout[X].place[axis] = tsri_partial();
        } else if (tsri_is_shard(weight, axis, 1)) {
            y.place[axis] = tsri_partial();
        } else if (call->in_count > BIAS && call->want[X].place[axis].kind == TSR_SHARD) {
            call->grad_layout[BIAS].place[axis] = tsri_partial();
        }
    }
    tsri_rule_order(&y, &call->want[X], &call->want[WEIGHT]);
    call->out_layout = y;
    /* Each is kept for the other's gradient. */
    call->keep_in =
        (call->needs_grad[WEIGHT] ? 1U << X : 0) | (call->needs_grad[X] ? 1U << WEIGHT : 0);
    return TSR_OK;
}

/* The bias of a Partial sum is added once: by the ranks of index 0 on every axis of the sum. */
static bool adds_bias(const tsri_op_call *call)
{
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (call->out_layout.place[axis].kind == TSR_PARTIAL &&
            tsr_comm_coord(call->comm, axis) != 0) {
            return false;
        }
    }
    return call->in_count > BIAS;
}

static tsr_status linear_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *x = call->in[X];
    const tsr_dtensor *weight = call->in[WEIGHT];
    tsrk_matmul args = {.a = tsri_in(&launch, x),
                        .b = tsri_in(&launch, weight),
                        .c = tsri_out(&launch, call->out),
                        .m = tsri_op_rows(x),
                        .n = weight->local_shape[0],
                        .k = weight->local_shape[1],
                        .lda = weight->local_shape[1],
                        .ldb = weight->local_shape[1],
                        .ldc = weight->local_shape[0],
                        .a_type = x->dtype,
                        .b_type = weight->dtype,
                        .c_type = call->out->dtype,
                        .trans_b = true};

    if (adds_bias(call)) {
        args.bias = tsri_in(&launch, call->in[BIAS]);
        args.bias_type = call->in[BIAS]->dtype;
    }
    TSR_TRY(tsri_op_launch(call, &launch, TSRK_MATMUL, &args, &args.workspace));
    return TSR_OK;
}

/* dx [m, k] (+)= dy [m, n] weight [n, k]. */
static tsr_status grad_x(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *weight = call->in[WEIGHT];
    tsrk_matmul args = {.a = tsri_in(&launch, call->dout),
                        .b = tsri_in(&launch, weight),
                        .c = tsri_op_grad(call, &launch, X),
                        .m = tsri_op_rows(call->dout),
                        .n = weight->local_shape[1],
                        .k = weight->local_shape[0],
                        .lda = weight->local_shape[0],
                        .ldb = weight->local_shape[1],
                        .ldc = weight->local_shape[1],
                        .a_type = call->dout->dtype,
                        .b_type = weight->dtype,
                        .c_type = call->din[X]->dtype,
                        .accumulate = call->accumulate[X]};

    TSR_TRY(tsri_op_launch(call, &launch, TSRK_MATMUL, &args, &args.workspace));
    return TSR_OK;
}

/* dweight [n, k] (+)= dy [m, n]^T x [m, k]. */
static tsr_status grad_weight(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *x = call->in[X];
    const int64_t n = tsri_op_cols(call->dout);
    const int64_t k = tsri_op_cols(x);
    tsrk_matmul args = {.a = tsri_in(&launch, call->dout),
                        .b = tsri_in(&launch, x),
                        .c = tsri_op_grad(call, &launch, WEIGHT),
                        .m = n,
                        .n = k,
                        .k = tsri_op_rows(x),
                        .lda = n,
                        .ldb = k,
                        .ldc = k,
                        .a_type = call->dout->dtype,
                        .b_type = x->dtype,
                        .c_type = call->din[WEIGHT]->dtype,
                        .trans_a = true,
                        .accumulate = call->accumulate[WEIGHT]};

    TSR_TRY(tsri_op_launch(call, &launch, TSRK_MATMUL, &args, &args.workspace));
    return TSR_OK;
}

static tsr_status grad_bias(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_sum args = {.x = tsri_in(&launch, call->dout),
                           .out = tsri_op_grad(call, &launch, BIAS),
                           .outer = 1,
                           .mid = tsri_op_rows(call->dout),
                           .inner = tsri_op_cols(call->dout),
                           .factor = 1.0F,
                           .x_type = call->dout->dtype,
                           .out_type = call->din[BIAS]->dtype,
                           .accumulate = call->accumulate[BIAS]};

    TSR_TRY(TSRI_LAUNCH(&launch, SUM, &args));
    return TSR_OK;
}

static tsr_status linear_backward(tsri_op_call *call)
{
    if (call->din[X] != NULL) {
        TSR_TRY(grad_x(call));
    }
    if (call->din[WEIGHT] != NULL) {
        TSR_TRY(grad_weight(call));
    }
    if (call->in_count > BIAS && call->din[BIAS] != NULL) {
        TSR_TRY(grad_bias(call));
    }
    return TSR_OK;
}

static const tsri_op_def op_linear = {
    .name = "linear",
    .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
    .inputs = "x, weight, bias",
    .typed_grad = 1U << X | 1U << WEIGHT | 1U << BIAS,
    .rule = linear_rule,
    .forward = linear_forward,
    .backward = linear_backward};

tsr_status tsr_op_linear(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *weight, tsr_dtensor *bias,
                         tsr_dtensor **out)
{
    TSRI_WANT(tape, x, weight, out);

    tsr_dtensor *in[] = {x, weight, bias};

    TSR_TRY(tsri_op_apply(tape, &op_linear, in, bias != NULL ? 3 : 2, NULL, 0, out));
    return TSR_OK;
}
