/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_heads.c
 * The last dim seen as heads and back. Views: same bytes, another shape.
 *
 * A Shard of the last dim is a Shard of heads exactly when the ranks that split it divide the
 * heads; then no dim that is sharded is ever merged with another. Placements carry over unchanged,
 * since the dim of heads has the index that the last dim had.
 */
#include "autograd_priv.h"

#include <string.h>

typedef struct heads_attr {
    int64_t heads;
} heads_attr;

static int64_t heads_of(const tsri_op_call *call)
{
    heads_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr.heads;
}

static tsr_status check_ways(const tsri_op_call *call, int dim, int64_t heads)
{
    const int64_t ways = tsri_rule_ways(&call->want[0], dim);
    char where[TSRI_WHERE_BYTES];
    char names[TSRI_WHERE_BYTES];

    if (heads % ways != 0) {
        return TSR_RAISE(TSR_ERR_PLACEMENT,
                         "%s: %lld heads over %s of %lld ranks: %lld %% %lld != 0",
                         tsri_op_where(call, where, sizeof(where)), (long long)heads,
                         tsri_comm_mask_name(call->comm, tsri_rule_mask(&call->want[0], dim), names,
                                             sizeof(names)),
                         (long long)ways, (long long)heads, (long long)ways);
    }
    return TSR_OK;
}

static tsr_status split_rule(tsri_op_call *call)
{
    const tsr_layout *x = &call->want[0];
    const int last = x->ndim - 1;
    const int64_t heads = heads_of(call);
    char where[TSRI_WHERE_BYTES];

    if (last < 0 || last + 1 >= TSR_MAX_DIMS || heads < 1 || x->shape[last] % heads != 0) {
        char text[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_SHAPE, "%s: last dim of x %s as %lld heads",
                         tsri_op_where(call, where, sizeof(where)),
                         tsri_format_shape(x->shape, x->ndim, text, sizeof(text)),
                         (long long)heads);
    }
    TSR_TRY(check_ways(call, last, heads));
    call->out_layout = *x;
    call->out_layout.ndim = last + 2;
    call->out_layout.shape[last] = heads;
    call->out_layout.shape[last + 1] = x->shape[last] / heads;
    return TSR_OK;
}

static tsr_status merge_rule(tsri_op_call *call)
{
    tsr_layout *x = &call->want[0];
    const int last = x->ndim - 1;
    char where[TSRI_WHERE_BYTES];

    if (last < 1) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: x of %d dims, wants at least 2",
                         tsri_op_where(call, where, sizeof(where)), x->ndim);
    }
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (tsri_is_shard(x, axis, last)) {
            x->place[axis] = tsri_replicate();
        }
    }
    TSR_TRY(check_ways(call, last - 1, x->shape[last - 1]));
    call->out_layout = tsri_rule_leading(x, last);
    call->out_layout.shape[last - 1] = x->shape[last - 1] * x->shape[last];
    return TSR_OK;
}

static tsr_status view_forward(tsri_op_call *call)
{
    TSR_TRY(tsri_dtensor_view(call->in[0], &call->out_layout, 0, &call->out));
    return TSR_OK;
}

/* dout's bytes in the shape of x. */
static tsr_status view_backward(tsri_op_call *call)
{
    tsr_layout layout = call->in_layout[0];

    memcpy(layout.place, call->dout->layout.place, sizeof(layout.place));
    memcpy(layout.order, call->dout->layout.order, sizeof(layout.order));
    TSR_TRY(tsri_dtensor_view(call->dout, &layout, 0, &call->din[0]));
    return TSR_OK;
}

static const tsri_op_def op_split = {.name = "split_heads",
                                     .takes = {TSR_DTYPES_FLOAT},
                                     .inputs = "x",
                                     .rule = split_rule,
                                     .forward = view_forward,
                                     .backward = view_backward,
                                     .makes_out = true,
                                     .linear = true,
                                     .makes_grad = 1};

static const tsri_op_def op_merge = {.name = "merge_heads",
                                     .takes = {TSR_DTYPES_FLOAT},
                                     .inputs = "x",
                                     .rule = merge_rule,
                                     .forward = view_forward,
                                     .backward = view_backward,
                                     .makes_out = true,
                                     .linear = true,
                                     .makes_grad = 1};

tsr_status tsr_op_split_heads(tsr_tape *tape, tsr_dtensor *x, int heads, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);

    const heads_attr attr = {.heads = heads};

    TSR_TRY(tsri_op_apply(tape, &op_split, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}

tsr_status tsr_op_merge_heads(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);
    TSR_TRY(tsri_op_apply(tape, &op_merge, &x, 1, NULL, 0, out));
    return TSR_OK;
}
