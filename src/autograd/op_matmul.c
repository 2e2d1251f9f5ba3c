/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_matmul.c
 * y [..., m, n] = op(a) [..., m, k] op(b) [..., k, n]: products of activations.
 *
 * Both are made whole. Per axis, the first of these that an input brings, a before b:
 *   a leading dim   a S(d)   b S(d)   y S(d)   da S(d)   db S(d)
 *   k               a S(k)   b S(k)   y P      da S(k)   db S(k)
 *   m of a          a S(m)   b R      y S(m)   da S(m)   db P
 *   n of b          a R      b S(n)   y S(n)   da P      db S(n)
 * A weight of two dims is tsr_op_linear()'s.
 */
#include "autograd_priv.h"

#include <string.h>

enum {
    A = 0,
    B = 1
};

typedef struct matmul_attr {
    bool trans_a, trans_b;
} matmul_attr;

/* Dims by what they are: of a m and k, of b k and n. */
typedef struct dims {
    int lead; /* how many lead */
    int a_m, a_k, b_k, b_n;
} dims;

static matmul_attr attr_of_matmul(const tsri_op_call *call)
{
    matmul_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr;
}

static dims dims_of(const tsri_op_call *call, int ndim)
{
    const matmul_attr attr = attr_of_matmul(call);
    dims d = {.lead = ndim - 2};

    d.a_m = d.lead + (attr.trans_a ? 1 : 0);
    d.a_k = d.lead + (attr.trans_a ? 0 : 1);
    d.b_k = d.lead + (attr.trans_b ? 1 : 0);
    d.b_n = d.lead + (attr.trans_b ? 0 : 1);
    return d;
}

static tsr_status check_factors(const tsri_op_call *call, dims at)
{
    const tsr_layout *a = &call->want[A];
    const tsr_layout *b = &call->want[B];
    bool fit = at.lead >= 0 && a->ndim == b->ndim;
    char where[TSRI_WHERE_BYTES];
    char one[TSRI_WHERE_BYTES];
    char two[TSRI_WHERE_BYTES];

    for (int d = 0; fit && d < at.lead; d++) {
        fit = a->shape[d] == b->shape[d];
    }
    if (!fit || a->shape[at.a_k] != b->shape[at.b_k]) {
        return TSR_RAISE(TSR_ERR_SHAPE,
                         "%s: a %s%s times b %s%s; want equal leading dims and k, dim %d of a and "
                         "%d of b",
                         tsri_op_where(call, where, sizeof(where)),
                         tsri_format_shape(a->shape, a->ndim, one, sizeof(one)),
                         attr_of_matmul(call).trans_a ? " transposed" : "",
                         tsri_format_shape(b->shape, b->ndim, two, sizeof(two)),
                         attr_of_matmul(call).trans_b ? " transposed" : "", at.a_k, at.b_k);
    }
    return TSR_OK;
}

static void want_factors_on_axis(tsri_op_call *call, dims at, int axis)
{
    tsr_placement *a = &call->want[A].place[axis];
    tsr_placement *b = &call->want[B].place[axis];
    const bool a_leads = a->kind == TSR_SHARD && a->dim < at.lead;
    const bool b_leads = b->kind == TSR_SHARD && b->dim < at.lead;

    if (a_leads || b_leads) {
        *a = a_leads ? *a : *b;
        *b = *a;
    } else if (a->kind == TSR_SHARD && a->dim == at.a_m) {
        *b = tsri_replicate();
    } else if (a->kind == TSR_SHARD || (b->kind == TSR_SHARD && b->dim == at.b_k)) {
        *a = tsri_shard(at.a_k);
        *b = tsri_shard(at.b_k);
    } else if (b->kind == TSR_SHARD) {
        *a = tsri_replicate();
    }
}

/* How y then lies on the axis, and the gradients of what is whole. */
static void give_on_axis(tsri_op_call *call, dims at, int axis)
{
    const tsr_placement a = call->want[A].place[axis];
    const tsr_placement b = call->want[B].place[axis];
    tsr_placement *y = &call->out_layout.place[axis];

    *y = tsri_replicate();
    if (a.kind == TSR_SHARD && a.dim < at.lead) {
        *y = a;
    } else if (a.kind == TSR_SHARD && a.dim == at.a_k) {
        *y = tsri_partial();
    } else if (a.kind == TSR_SHARD) {
        *y = tsri_shard(at.lead);
        call->grad_layout[B].place[axis] = tsri_partial();
    } else if (b.kind == TSR_SHARD) {
        *y = tsri_shard(at.lead + 1);
        call->grad_layout[A].place[axis] = tsri_partial();
    }
}

static tsr_status matmul_rule(tsri_op_call *call)
{
    tsr_layout *a = &call->want[A];
    tsr_layout *b = &call->want[B];
    const dims at = dims_of(call, a->ndim);
    tsr_layout order;

    TSR_TRY(check_factors(call, at));
    *a = tsri_rule_whole(a);
    *b = tsri_rule_whole(b);
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        want_factors_on_axis(call, at, axis);
    }
    /* Leading dims and k of both meet element by element. */
    order = *a;
    tsri_rule_order(&order, a, b);
    memcpy(a->order, order.order, sizeof(order.order));
    memcpy(b->order, order.order, sizeof(order.order));
    call->grad_layout[A] = *a;
    call->grad_layout[B] = *b;
    call->out_layout = *a;
    call->out_layout.shape[at.lead] = a->shape[at.a_m];
    call->out_layout.shape[at.lead + 1] = b->shape[at.b_n];
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        give_on_axis(call, at, axis);
    }
    call->keep_in = (call->needs_grad[B] ? 1U << A : 0) | (call->needs_grad[A] ? 1U << B : 0);
    return TSR_OK;
}

/* ---- products ---- */

/* c [m, n] (+)= op(x) [m, k] op(y) [k, n] for each of the leading dims. */
typedef struct product {
    const tsr_dtensor *x, *y;
    tsr_dtensor *c;
    bool trans_x, trans_y, accumulate;
} product;

static tsr_status run_product(tsri_op_call *call, const product *p)
{
    tsri_call launch = tsri_op_call_begin(call);
    const int lead = p->c->layout.ndim - 2;
    tsrk_matmul args = {.a = tsri_in(&launch, p->x),
                        .b = tsri_in(&launch, p->y),
                        .m = p->c->local_shape[lead],
                        .n = p->c->local_shape[lead + 1],
                        .k = p->x->local_shape[p->trans_x ? lead : lead + 1],
                        .lda = p->x->local_shape[lead + 1],
                        .ldb = p->y->local_shape[lead + 1],
                        .ldc = p->c->local_shape[lead + 1],
                        .batch = tsri_local_span(p->c, 0, lead),
                        .a_type = p->x->dtype,
                        .b_type = p->y->dtype,
                        .c_type = p->c->dtype,
                        .trans_a = p->trans_x,
                        .trans_b = p->trans_y,
                        .accumulate = p->accumulate};

    if (p->c->local_count == 0) {
        return TSR_OK;
    }
    args.stride_a = args.m * args.k;
    args.stride_b = args.k * args.n;
    args.stride_c = args.m * args.n;
    args.c = p->accumulate ? tsri_inout(&launch, p->c) : tsri_out(&launch, p->c);
    TSR_TRY(tsri_op_launch(call, &launch, TSRK_MATMUL, &args, &args.workspace));
    return TSR_OK;
}

static tsr_status matmul_forward(tsri_op_call *call)
{
    const matmul_attr attr = attr_of_matmul(call);

    TSR_TRY(run_product(call, &(product){.x = call->in[A],
                                         .y = call->in[B],
                                         .c = call->out,
                                         .trans_x = attr.trans_a,
                                         .trans_y = attr.trans_b}));
    return TSR_OK;
}

/* With A = op(a), B = op(b): dA = dy B^T and dB = A^T dy, or those transposed. */
static tsr_status matmul_backward(tsri_op_call *call)
{
    const matmul_attr attr = attr_of_matmul(call);
    const tsr_dtensor *dy = call->dout;
    product da = {.x = dy, .y = call->in[B], .trans_y = !attr.trans_b};
    product db = {.x = call->in[A], .y = dy, .trans_x = !attr.trans_a};

    if (attr.trans_a) {
        da = (product){.x = call->in[B], .y = dy, .trans_x = attr.trans_b, .trans_y = true};
    }
    if (attr.trans_b) {
        db = (product){.x = dy, .y = call->in[A], .trans_x = true, .trans_y = attr.trans_a};
    }
    if (call->din[A] != NULL) {
        da.c = call->din[A];
        da.accumulate = call->accumulate[A];
        TSR_TRY(run_product(call, &da));
    }
    if (call->din[B] != NULL) {
        db.c = call->din[B];
        db.accumulate = call->accumulate[B];
        TSR_TRY(run_product(call, &db));
    }
    return TSR_OK;
}

static const tsri_op_def op_matmul = {.name = "matmul",
                                      .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
                                      .inputs = "a, b",
                                      .typed_grad = 1U << A | 1U << B,
                                      .rule = matmul_rule,
                                      .forward = matmul_forward,
                                      .backward = matmul_backward};

tsr_status tsr_op_matmul(tsr_tape *tape, tsr_dtensor *a, tsr_dtensor *b,
                         const tsr_matmul_options *options, tsr_dtensor **out)
{
    TSRI_WANT(tape, a, b, out);

    tsr_dtensor *in[] = {a, b};
    const matmul_attr attr = {.trans_a = options != NULL && options->trans_a,
                              .trans_b = options != NULL && options->trans_b};

    TSR_TRY(tsri_op_apply(tape, &op_matmul, in, 2, &attr, sizeof(attr), out));
    return TSR_OK;
}
