/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_pointwise.c
 * Element by element: functions of one number (gelu, relu, tanh, sigmoid), silu(gate) * up, a + b,
 * x * factor, x in another type.
 *
 * Functions and silu_mul are not linear: their inputs must be whole. a + b, x * factor and casts
 * are, so Partial passes through them in both directions; the gradient of a + b is the same memory
 * for both.
 */
#include "autograd_priv.h"

#include <math.h>
#include <string.h>

enum {
    X = 0,
    A = 0,
    B = 1,
    GATE = 0,
    UP = 1
};

static tsr_status check_pair(const tsri_op_call *call)
{
    const tsr_layout *a = &call->want[A];
    const tsr_layout *b = &call->want[B];
    bool same = a->ndim == b->ndim;
    char where[TSRI_WHERE_BYTES];

    for (int d = 0; same && d < a->ndim; d++) {
        same = a->shape[d] == b->shape[d];
    }
    if (!same) {
        char x[TSRI_WHERE_BYTES];
        char y[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_SHAPE, "%s: %s and %s, want one shape",
                         tsri_op_where(call, where, sizeof(where)),
                         tsri_format_shape(a->shape, a->ndim, x, sizeof(x)),
                         tsri_format_shape(b->shape, b->ndim, y, sizeof(y)));
    }
    return TSR_OK;
}

/* ---- functions of one number ---- */

static const tsri_op_def op_functions[TSRK_FUNCTION_COUNT];

static tsrk_function function_of(const tsri_op_call *call)
{
    return (tsrk_function)(call->def - op_functions);
}

static tsr_status function_rule(tsri_op_call *call)
{
    call->want[X] = tsri_rule_whole(&call->want[X]);
    call->out_layout = call->want[X];
    return TSR_OK;
}

static tsr_status function_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_pointwise args = {.x = tsri_in(&launch, call->in[X]),
                                 .y = tsri_out(&launch, call->out),
                                 .n = call->out->local_count,
                                 .function = function_of(call),
                                 .type = call->out->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, POINTWISE, &args));
    return TSR_OK;
}

static tsr_status function_backward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_pointwise_bwd args = {
        .dy = tsri_in(&launch, call->dout),
        .from = tsri_in(&launch, call->def->keep_out ? call->out : call->in[X]),
        .dx = tsri_op_grad(call, &launch, X),
        .n = call->dout->local_count,
        .function = function_of(call),
        .type = call->dout->dtype,
        .accumulate = call->accumulate[X]};

    TSR_TRY(TSRI_LAUNCH(&launch, POINTWISE_BWD, &args));
    return TSR_OK;
}

#define FUNCTION(what, ...) \
    { \
        .name = (what), .takes = {TSR_DTYPES_FLOAT}, .inputs = "x", .rule = function_rule, \
        .forward = function_forward, .backward = function_backward, .over_grad = 1U << X, \
        __VA_ARGS__ \
    }

/* By tsrk_function. What backward reads is the kernel's choice. */
static const tsri_op_def op_functions[TSRK_FUNCTION_COUNT] = {
    [TSRK_GELU] = FUNCTION("gelu", .keep_in = 1U << X),
    [TSRK_RELU] = FUNCTION("relu", .keep_out = true),
    [TSRK_TANH] = FUNCTION("tanh", .keep_out = true),
    [TSRK_SIGMOID] = FUNCTION("sigmoid", .keep_out = true),
};

tsr_status tsr_op_gelu(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);
    TSR_TRY(tsri_op_apply(tape, &op_functions[TSRK_GELU], &x, 1, NULL, 0, out));
    return TSR_OK;
}

tsr_status tsr_op_relu(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);
    TSR_TRY(tsri_op_apply(tape, &op_functions[TSRK_RELU], &x, 1, NULL, 0, out));
    return TSR_OK;
}

tsr_status tsr_op_tanh(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);
    TSR_TRY(tsri_op_apply(tape, &op_functions[TSRK_TANH], &x, 1, NULL, 0, out));
    return TSR_OK;
}

tsr_status tsr_op_sigmoid(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);
    TSR_TRY(tsri_op_apply(tape, &op_functions[TSRK_SIGMOID], &x, 1, NULL, 0, out));
    return TSR_OK;
}

/* ---- silu_mul ---- */

static tsr_status silu_mul_rule(tsri_op_call *call)
{
    TSR_TRY(check_pair(call));
    tsri_rule_pair(call, GATE, UP, false);
    call->out_layout = call->want[GATE];
    return TSR_OK;
}

static tsr_status silu_mul_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_silu_mul args = {.gate = tsri_in(&launch, call->in[GATE]),
                                .up = tsri_in(&launch, call->in[UP]),
                                .y = tsri_out(&launch, call->out),
                                .n = call->out->local_count,
                                .type = call->out->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, SILU_MUL, &args));
    return TSR_OK;
}

/* The kernel writes both gradients; one that nobody wants goes to scratch. */
static tsr_status silu_mul_backward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    tsr_dtensor *scratch = NULL;
    tsr_status status = TSR_OK;
    tsrk_silu_mul_bwd args = {.dy = tsri_in(&launch, call->dout),
                              .gate = tsri_in(&launch, call->in[GATE]),
                              .up = tsri_in(&launch, call->in[UP]),
                              .n = call->dout->local_count,
                              .type = call->dout->dtype,
                              .accumulate_dgate = call->accumulate[GATE],
                              .accumulate_dup = call->accumulate[UP]};

    if (call->din[GATE] == NULL || call->din[UP] == NULL) {
        TSR_TRY(tsri_op_acquire(call, &call->dout->layout, call->dout->dtype, TSRI_MEM_WORKSPACE,
                                &scratch));
    }
    args.dgate = call->din[GATE] != NULL ? tsri_op_grad(call, &launch, GATE) : NULL;
    args.dup = call->din[UP] != NULL ? tsri_op_grad(call, &launch, UP) : NULL;
    if (call->din[GATE] == NULL) {
        args.dgate = tsri_out(&launch, scratch);
    } else if (call->din[UP] == NULL) {
        args.dup = tsri_out(&launch, scratch);
    }
    TSR_TRY_GOTO(status, TSRI_LAUNCH(&launch, SILU_MUL_BWD, &args), release_scratch);
release_scratch:
    tsr_dtensor_release(&scratch);
    return status;
}

static const tsri_op_def op_silu_mul = {.name = "silu_mul",
                                        .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
                                        .inputs = "gate, up",
                                        .alike = 1U << UP,
                                        .rule = silu_mul_rule,
                                        .forward = silu_mul_forward,
                                        .backward = silu_mul_backward,
                                        .keep_in = 1U << GATE | 1U << UP};

tsr_status tsr_op_silu_mul(tsr_tape *tape, tsr_dtensor *gate, tsr_dtensor *up, tsr_dtensor **out)
{
    TSRI_WANT(tape, gate, up, out);

    tsr_dtensor *in[] = {gate, up};

    TSR_TRY(tsri_op_apply(tape, &op_silu_mul, in, 2, NULL, 0, out));
    return TSR_OK;
}

/* ---- add ---- */

static tsr_status add_rule(tsri_op_call *call)
{
    TSR_TRY(check_pair(call));
    tsri_rule_pair(call, A, B, true);
    call->out_layout = call->want[A];
    return TSR_OK;
}

static tsr_status add_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_add args = {.a = tsri_in(&launch, call->in[A]),
                           .b = tsri_in(&launch, call->in[B]),
                           .y = tsri_out(&launch, call->out),
                           .n = call->out->local_count,
                           .a_type = call->in[A]->dtype,
                           .b_type = call->in[B]->dtype,
                           .y_type = call->out->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, ADD, &args));
    return TSR_OK;
}

static tsr_status add_backward(tsri_op_call *call)
{
    for (int i = A; i <= B; i++) {
        if (!call->needs_grad[i]) {
            continue;
        }
        if (call->in_dtype[i] == call->dout->dtype) {
            call->din[i] = tsr_dtensor_retain(call->dout);
            continue;
        }
        TSR_TRY(tsri_op_acquire(call, &call->dout->layout, call->in_dtype[i], TSRI_MEM_ACTIVATION,
                                &call->din[i]));
        TSR_TRY(tsri_op_scale_into(call->comm, call->path, call->dout, 1.0F, false, call->din[i]));
    }
    return TSR_OK;
}

static const tsri_op_def op_add = {.name = "add",
                                   .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
                                   .inputs = "a, b",
                                   .rule = add_rule,
                                   .forward = add_forward,
                                   .backward = add_backward,
                                   .linear = true,
                                   .makes_grad = 1U << A | 1U << B};

tsr_status tsr_op_add(tsr_tape *tape, tsr_dtensor *a, tsr_dtensor *b, tsr_dtensor **out)
{
    TSRI_WANT(tape, a, b, out);

    tsr_dtensor *in[] = {a, b};

    TSR_TRY(tsri_op_apply(tape, &op_add, in, 2, NULL, 0, out));
    return TSR_OK;
}

/* ---- scale ---- */

typedef struct scale_attr {
    float factor;
} scale_attr;

static float scale_factor(const tsri_op_call *call)
{
    scale_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr.factor;
}

static tsr_status scale_rule(tsri_op_call *call)
{
    call->out_layout = call->want[X];
    return TSR_OK;
}

static tsr_status scale_forward(tsri_op_call *call)
{
    TSR_TRY(tsri_op_scale_into(call->comm, call->path, call->in[X], scale_factor(call), false,
                               call->out));
    return TSR_OK;
}

static tsr_status scale_backward(tsri_op_call *call)
{
    TSR_TRY(tsri_op_acquire(call, &call->dout->layout, call->dout->dtype, TSRI_MEM_ACTIVATION,
                            &call->din[X]));
    TSR_TRY(tsri_op_scale_into(call->comm, call->path, call->dout, scale_factor(call), false,
                               call->din[X]));
    return TSR_OK;
}

static const tsri_op_def op_scale = {.name = "scale",
                                     .takes = {TSR_DTYPES_FLOAT},
                                     .inputs = "x",
                                     .rule = scale_rule,
                                     .forward = scale_forward,
                                     .backward = scale_backward,
                                     .linear = true,
                                     .makes_grad = 1U << X};

tsr_status tsr_op_scale(tsr_tape *tape, tsr_dtensor *x, double factor, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);

    char where[TSRI_WHERE_BYTES];

    const scale_attr attr = {.factor = (float)factor};

    if (!(fabs(factor) <= (double)FLT_MAX)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: factor is %g, wants a finite f32",
                         tsri_where("scale", tsri_tape_path(tape), where, sizeof(where)), factor);
    }

    TSR_TRY(tsri_op_apply(tape, &op_scale, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}

/* ---- cast ---- */

typedef struct cast_attr {
    tsr_dtype dtype;
} cast_attr;

static tsr_status cast_rule(tsri_op_call *call)
{
    cast_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    call->out_layout = call->want[X];
    call->out_dtype = attr.dtype;
    return TSR_OK;
}

static tsr_status cast_forward(tsri_op_call *call)
{
    TSR_TRY(tsri_op_scale_into(call->comm, call->path, call->in[X], 1.0F, false, call->out));
    return TSR_OK;
}

static tsr_status cast_backward(tsri_op_call *call)
{
    TSR_TRY(tsri_op_acquire(call, &call->dout->layout, call->in_dtype[X], TSRI_MEM_ACTIVATION,
                            &call->din[X]));
    TSR_TRY(tsri_op_scale_into(call->comm, call->path, call->dout, 1.0F, false, call->din[X]));
    return TSR_OK;
}

static const tsri_op_def op_cast = {.name = "cast",
                                    .takes = {TSR_DTYPES_FLOAT},
                                    .inputs = "x",
                                    .rule = cast_rule,
                                    .forward = cast_forward,
                                    .backward = cast_backward,
                                    .linear = true,
                                    .makes_grad = 1U << X};

tsr_status tsr_op_cast(tsr_tape *tape, tsr_dtensor *x, tsr_dtype dtype, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);

    char where[TSRI_WHERE_BYTES];

    const cast_attr attr = {.dtype = dtype};

    if (tsr_dtype_size(dtype) == 0 || (TSR_DTYPES_FLOAT & TSR_DTYPE_BIT(dtype)) == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: to %s, wants f32, bf16 or f16",
                         tsri_where("cast", tsri_tape_path(tape), where, sizeof(where)),
                         tsr_dtype_name(dtype));
    }
    if (tsr_dtensor_dtype(x) == dtype) {
        *out = x;
        return TSR_OK;
    }
    TSR_TRY(tsri_op_apply(tape, &op_cast, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}
