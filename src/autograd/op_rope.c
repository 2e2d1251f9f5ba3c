/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_rope.c
 * Rotary embedding of x [batch, seq, heads, d]; the gradient turns back by the same angle.
 *
 * Shards of batch, sequence and heads stay. Angles come from a table per (positions, d, theta) that
 * the tape computes once and keeps: its cosines are in double, too slow for every call.
 */
#include "autograd_priv.h"

#include <string.h>

typedef struct rope_attr {
    double theta;
} rope_attr;

enum {
    SEQ = 1,
    HEADS = 2,
    DIM = 3
};

static double rope_theta(const tsri_op_call *call)
{
    rope_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr.theta;
}

static tsr_status rope_rule(tsri_op_call *call)
{
    const tsr_layout *x = &call->want[0];
    char where[TSRI_WHERE_BYTES];

    if (x->ndim != 4 || x->shape[DIM] % 2 != 0) {
        char text[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_SHAPE, "%s: x %s, wants [batch, seq, heads, even]",
                         tsri_op_where(call, where, sizeof(where)),
                         tsri_format_shape(x->shape, x->ndim, text, sizeof(text)));
    }
    tsri_rule_local_dims(call, 0, DIM);
    call->out_layout = call->want[0];
    return TSR_OK;
}

static size_t table_bytes(const tsri_rope_cache *rope)
{
    return (size_t)(rope->seq * rope->dim) * sizeof(float);
}

static tsr_status fill_table(tsri_op_call *call, const tsri_rope_cache *rope)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_rope_table args = {.table = tsri_arg_out(&launch, rope->table, 0, table_bytes(rope)),
                                  .seq = rope->seq,
                                  .dim = rope->dim,
                                  .first = rope->first,
                                  .theta = rope->theta};

    TSR_TRY(TSRI_LAUNCH(&launch, ROPE_TABLE, &args));
    return TSR_OK;
}

static tsr_status find_table(tsri_op_call *call, const tsr_dtensor *x, const tsri_rope_cache **out)
{
    tsr_tape *tape = call->tape;
    tsri_rope_cache rope = {.seq = x->local_shape[SEQ],
                            .dim = x->local_shape[DIM],
                            .first = x->local_offset[SEQ],
                            .theta = rope_theta(call)};
    tsr_status status = TSR_OK;

    for (int i = 0; i < tape->rope_count; i++) {
        const tsri_rope_cache *old = &tape->ropes[i];

        if (old->seq == rope.seq && old->dim == rope.dim && old->first == rope.first &&
            !(old->theta < rope.theta) && !(old->theta > rope.theta)) {
            *out = old;
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_grow(&tape->ropes, &tape->rope_capacity, tape->rope_count + 1,
                      sizeof(tape->ropes[0])));
    TSR_TRY(tsri_comm_buffer(call->comm, table_bytes(&rope), TSRI_MEM_OTHER, "rope table",
                             &rope.table));
    TSR_TRY_GOTO(status, fill_table(call, &rope), release_table);
    tape->ropes[tape->rope_count] = rope;
    *out = &tape->ropes[tape->rope_count++];
    return TSR_OK;
release_table:
    tsri_buffer_release(&rope.table);
    return status;
}

/* y (+)= x turned by the angles, or back. */
static tsr_status turn(tsri_op_call *call, const tsr_dtensor *x, tsr_dtensor *y, bool inverse,
                       bool accumulate)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsri_rope_cache *rope = NULL;
    tsrk_rope args = {.batch = x->local_shape[0],
                      .seq = x->local_shape[SEQ],
                      .heads = x->local_shape[HEADS],
                      .dim = x->local_shape[DIM],
                      .first = x->local_offset[SEQ],
                      .theta = rope_theta(call),
                      .type = x->dtype,
                      .inverse = inverse,
                      .accumulate = accumulate};

    if (x->local_count == 0) {
        return TSR_OK;
    }
    TSR_TRY(find_table(call, x, &rope));
    args.table = tsri_arg_in(&launch, rope->table, 0, table_bytes(rope));
    args.x = tsri_in(&launch, x);
    args.y = accumulate ? tsri_inout(&launch, y) : tsri_out(&launch, y);
    TSR_TRY(TSRI_LAUNCH(&launch, ROPE, &args));
    return TSR_OK;
}

static tsr_status rope_forward(tsri_op_call *call)
{
    TSR_TRY(turn(call, call->in[0], call->out, false, false));
    return TSR_OK;
}

static tsr_status rope_backward(tsri_op_call *call)
{
    TSR_TRY(turn(call, call->dout, call->din[0], true, call->accumulate[0]));
    return TSR_OK;
}

static const tsri_op_def op_rope = {.name = "rope",
                                    .takes = {TSR_DTYPES_FLOAT},
                                    .inputs = "x",
                                    .rule = rope_rule,
                                    .forward = rope_forward,
                                    .backward = rope_backward,
                                    .over_grad = 1};

tsr_status tsr_op_rope(tsr_tape *tape, tsr_dtensor *x, double theta, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);
    if (!(theta > 0.0 && theta <= DBL_MAX)) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "rope in %s: theta is %g, wants a finite number above 0 (10000 is usual)",
                         tsri_tape_path(tape), theta);
    }

    const rope_attr attr = {.theta = theta};

    TSR_TRY(tsri_op_apply(tape, &op_rope, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}
