/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_sum.c
 * Sums and means over a dim, and products with what is repeated along dims: each is the other's
 * gradient.
 *
 * Sum, per axis: a Shard of the dim that is summed over becomes Partial, other Shards stay, Partial
 * passes through in both directions. Product: both are made whole; b lies as a does on the dims
 * that it has and is whole where it is repeated, so that its gradient is Partial where a is split
 * along those.
 */
#include "autograd_priv.h"

#include <string.h>

enum {
    X = 0,
    A = 0,
    B = 1
};

/* Dims [begin, end) of a tensor, and what lies before and behind them. */
typedef struct dim_range {
    int begin, end;
} dim_range;

typedef struct extents {
    int64_t outer, mid, inner;
} extents;

static extents extents_of(const tsr_dtensor *tensor, dim_range range)
{
    return (extents){.outer = tsri_local_span(tensor, 0, range.begin),
                     .mid = tsri_local_span(tensor, range.begin, range.end),
                     .inner = tsri_local_span(tensor, range.end, tensor->layout.ndim)};
}

/* ---- sum and mean ---- */

typedef struct sum_attr {
    int dim;
    bool mean, keep;
} sum_attr;

static sum_attr sum_attr_of(const tsri_op_call *call)
{
    sum_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr;
}

static float sum_factor(const tsri_op_call *call)
{
    const sum_attr attr = sum_attr_of(call);

    return attr.mean ? (float)(1.0 / (double)call->in_layout[X].shape[attr.dim]) : 1.0F;
}

static tsr_status sum_rule(tsri_op_call *call)
{
    const tsr_layout *x = &call->want[X];
    const sum_attr attr = sum_attr_of(call);
    tsr_layout *out = &call->out_layout;
    char where[TSRI_WHERE_BYTES];
    char text[TSRI_WHERE_BYTES];

    if (attr.dim < 0 || attr.dim >= x->ndim || (attr.mean && x->shape[attr.dim] == 0)) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: over dim %d of x %s%s",
                         tsri_op_where(call, where, sizeof(where)), attr.dim,
                         tsri_format_shape(x->shape, x->ndim, text, sizeof(text)),
                         attr.dim < 0 || attr.dim >= x->ndim ? "" : ", which has no elements");
    }
    *out = *x;
    out->shape[attr.dim] = 1;
    if (!attr.keep) {
        out->ndim--;
        memmove(&out->shape[attr.dim], &x->shape[attr.dim + 1],
                (size_t)(out->ndim - attr.dim) * sizeof(out->shape[0]));
        out->shape[out->ndim] = 0;
    }
    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        tsr_placement *place = &out->place[axis];

        if (tsri_is_shard(x, axis, attr.dim)) {
            *place = tsri_partial();
        } else if (place->kind == TSR_SHARD && place->dim > attr.dim && !attr.keep) {
            place->dim--;
        }
    }
    return TSR_OK;
}

static tsr_status sum_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const int dim = sum_attr_of(call).dim;
    const extents e = extents_of(call->in[X], (dim_range){dim, dim + 1});
    const tsrk_sum args = {.x = tsri_in(&launch, call->in[X]),
                           .out = tsri_out(&launch, call->out),
                           .outer = e.outer,
                           .mid = e.mid,
                           .inner = e.inner,
                           .factor = sum_factor(call),
                           .x_type = call->in[X]->dtype,
                           .out_type = call->out->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, SUM, &args));
    return TSR_OK;
}

/* Where x is split along the dim so is its gradient; else it lies as dout does. */
static tsr_layout sum_grad_layout(const tsri_op_call *call)
{
    const sum_attr attr = sum_attr_of(call);
    tsr_layout dx = call->in_layout[X];

    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        tsr_placement place = call->dout->layout.place[axis];

        if (tsri_is_shard(&dx, axis, attr.dim)) {
            continue;
        }
        if (place.kind == TSR_SHARD && place.dim >= attr.dim && !attr.keep) {
            place.dim++;
        }
        dx.place[axis] = place;
    }
    return dx;
}

static tsr_status sum_backward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const int dim = sum_attr_of(call).dim;
    const tsr_layout layout = sum_grad_layout(call);
    tsrk_multiply args = {.b = tsri_in(&launch, call->dout),
                          .factor = sum_factor(call),
                          .b_type = call->dout->dtype,
                          .y_type = call->in_dtype[X]};
    extents e;

    TSR_TRY(tsri_op_acquire(call, &layout, call->in_dtype[X], TSRI_MEM_ACTIVATION, &call->din[X]));
    e = extents_of(call->din[X], (dim_range){dim, dim + 1});
    args.outer = e.outer;
    args.mid = e.mid;
    args.inner = e.inner;
    args.y = tsri_out(&launch, call->din[X]);
    TSR_TRY(TSRI_LAUNCH(&launch, MULTIPLY, &args));
    return TSR_OK;
}

static const tsri_op_def op_sum = {.name = "sum",
                                   .takes = {TSR_DTYPES_FLOAT},
                                   .inputs = "x",
                                   .rule = sum_rule,
                                   .forward = sum_forward,
                                   .backward = sum_backward,
                                   .linear = true,
                                   .makes_grad = 1U << X};

static const tsri_op_def op_mean = {.name = "mean",
                                    .takes = {TSR_DTYPES_FLOAT},
                                    .inputs = "x",
                                    .rule = sum_rule,
                                    .forward = sum_forward,
                                    .backward = sum_backward,
                                    .linear = true,
                                    .makes_grad = 1U << X};

tsr_status tsr_op_sum(tsr_tape *tape, tsr_dtensor *x, int dim, bool keep, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);

    const sum_attr attr = {.dim = dim, .keep = keep};

    TSR_TRY(tsri_op_apply(tape, &op_sum, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}

tsr_status tsr_op_mean(tsr_tape *tape, tsr_dtensor *x, int dim, bool keep, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);

    const sum_attr attr = {.dim = dim, .mean = true, .keep = keep};

    TSR_TRY(tsri_op_apply(tape, &op_mean, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}

/* ---- multiply ---- */

/* The dims of a along which b is repeated; b's are aligned with a's last. A dim of extent 1 in both
 * belongs to them where it lies between, so that any extent may be 1. */
static tsr_status repeated_dims(const tsri_op_call *call, const tsr_layout *a, const tsr_layout *b,
                                dim_range *out)
{
    dim_range range = {0, 0};
    bool fit = b->ndim <= a->ndim;
    bool over = false; /* the range is: b has gone through a dim behind it */
    char where[TSRI_WHERE_BYTES];
    char one[TSRI_WHERE_BYTES];
    char two[TSRI_WHERE_BYTES];

    for (int d = 0; fit && d < a->ndim; d++) {
        const int e = d - (a->ndim - b->ndim);

        if (e >= 0 && b->shape[e] == a->shape[d]) {
            over = over || (range.end > 0 && a->shape[d] != 1);
            continue;
        }
        fit = (e < 0 || b->shape[e] == 1) && !over;
        range.begin = range.end == 0 ? d : range.begin;
        range.end = d + 1;
    }
    if (!fit) {
        return TSR_RAISE(
            TSR_ERR_SHAPE,
            "%s: a %s, b %s; want b of a's shape, but for neighbouring dims that are 1 "
            "or that it lacks in front",
            tsri_op_where(call, where, sizeof(where)),
            tsri_format_shape(a->shape, a->ndim, one, sizeof(one)),
            tsri_format_shape(b->shape, b->ndim, two, sizeof(two)));
    }
    *out = range;
    return TSR_OK;
}

static bool is_repeated(dim_range range, int d)
{
    return d >= range.begin && d < range.end;
}

static tsr_status multiply_rule(tsri_op_call *call)
{
    tsr_layout *a = &call->want[A];
    tsr_layout *b = &call->want[B];
    const int lead = a->ndim - b->ndim;
    dim_range range;

    TSR_TRY(repeated_dims(call, a, b, &range));
    *a = tsri_rule_whole(a);
    *b = tsri_rule_whole(b);
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        tsr_placement *p = &a->place[axis];
        tsr_placement *q = &b->place[axis];

        if (p->kind != TSR_SHARD && q->kind == TSR_SHARD && !is_repeated(range, q->dim + lead)) {
            *p = tsri_shard(q->dim + lead);
        }
        *q = p->kind == TSR_SHARD && !is_repeated(range, p->dim) ? tsri_shard(p->dim - lead)
                                                                 : tsri_replicate();
    }
    tsri_rule_order(a, a, b);
    tsri_rule_order(b, a, b);
    tsri_rule_param_grad(call, B, a);
    call->out_layout = *a;
    call->keep_in = (call->needs_grad[B] ? 1U << A : 0) | (call->needs_grad[A] ? 1U << B : 0);
    return TSR_OK;
}

/* y (+)= a * b, where b is repeated. */
static tsr_status launch_multiply(tsri_op_call *call, const tsr_dtensor *a, tsr_dtensor *y,
                                  bool accumulate)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *b = call->in[B];
    dim_range range;
    extents e;
    tsrk_multiply args = {.a = tsri_in(&launch, a),
                          .b = tsri_in(&launch, b),
                          .factor = 1.0F,
                          .a_type = a->dtype,
                          .b_type = b->dtype,
                          .y_type = y->dtype,
                          .accumulate = accumulate};

    TSR_TRY(repeated_dims(call, &call->in_layout[A], &call->in_layout[B], &range));
    e = extents_of(a, range);
    args.outer = e.outer;
    args.mid = e.mid;
    args.inner = e.inner;
    args.y = accumulate ? tsri_inout(&launch, y) : tsri_out(&launch, y);
    TSR_TRY(TSRI_LAUNCH(&launch, MULTIPLY, &args));
    return TSR_OK;
}

static tsr_status multiply_forward(tsri_op_call *call)
{
    TSR_TRY(launch_multiply(call, call->in[A], call->out, false));
    return TSR_OK;
}

/* db (+)= sum of dy a over what b is repeated along. */
static tsr_status grad_b(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    dim_range range;
    extents e;
    tsrk_sum args = {.x = tsri_in(&launch, call->dout),
                     .w = tsri_in(&launch, call->in[A]),
                     .out = tsri_op_grad(call, &launch, B),
                     .factor = 1.0F,
                     .x_type = call->dout->dtype,
                     .w_type = call->in_dtype[A],
                     .out_type = call->din[B]->dtype,
                     .accumulate = call->accumulate[B]};

    TSR_TRY(repeated_dims(call, &call->in_layout[A], &call->in_layout[B], &range));
    e = extents_of(call->dout, range);
    args.outer = e.outer;
    args.mid = e.mid;
    args.inner = e.inner;
    TSR_TRY(TSRI_LAUNCH(&launch, SUM, &args));
    return TSR_OK;
}

static tsr_status multiply_backward(tsri_op_call *call)
{
    if (call->din[A] != NULL) {
        TSR_TRY(launch_multiply(call, call->dout, call->din[A], call->accumulate[A]));
    }
    if (call->din[B] != NULL) {
        TSR_TRY(grad_b(call));
    }
    return TSR_OK;
}

static const tsri_op_def op_multiply = {.name = "multiply",
                                        .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
                                        .inputs = "a, b",
                                        .rule = multiply_rule,
                                        .forward = multiply_forward,
                                        .backward = multiply_backward,
                                        .typed_grad = 1U << A | 1U << B};

tsr_status tsr_op_multiply(tsr_tape *tape, tsr_dtensor *a, tsr_dtensor *b, tsr_dtensor **out)
{
    TSRI_WANT(tape, a, b, out);

    tsr_dtensor *in[] = {a, b};

    TSR_TRY(tsri_op_apply(tape, &op_multiply, in, 2, NULL, 0, out));
    return TSR_OK;
}
