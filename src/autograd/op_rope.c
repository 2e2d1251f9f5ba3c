/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_rope.c
 * Rotary embedding of x [batch, seq, heads, d]; the gradient turns back by the same angle.
 *
 * Shards of batch, sequence and heads stay. Angles come from a table per (positions, d, theta) that
 * the tape computes once and keeps: its cosines are in double, too slow for every call. A table
 * that holds the positions among others serves too; one that begins at an offset is made larger,
 * for programs that go on position by position.
 */
#include "autograd_priv.h"

#include <string.h>

typedef struct rope_attr {
    double theta;
    int64_t first;
} rope_attr;

/* Positions that a double counts exactly, with room for a sequence behind them. */
#define MOST_POSITIONS ((int64_t)1 << 52)

enum {
    SEQ = 1,
    HEADS = 2,
    DIM = 3,
    TABLE = 256 /* positions by which tables at an offset begin and end */
};

static rope_attr attr_of(const tsri_op_call *call)
{
    rope_attr attr;

    memcpy(&attr, call->attr, sizeof(attr));
    return attr;
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

/* The table that has x's positions, and where they begin in it. */
static tsr_status find_table(tsri_op_call *call, const tsr_dtensor *x, const tsri_rope_cache **out,
                             size_t *offset_out)
{
    tsr_tape *tape = call->tape;
    const rope_attr attr = attr_of(call);
    const int64_t first = attr.first + x->local_offset[SEQ];
    const int64_t seq = x->local_shape[SEQ];
    const int64_t skip = attr.first > 0 ? first % TABLE : 0;
    tsri_rope_cache rope = {
        .seq = seq + skip, .dim = x->local_shape[DIM], .first = first - skip, .theta = attr.theta};
    tsr_status status = TSR_OK;

    if (attr.first > 0) {
        rope.seq = (rope.seq + TABLE - 1) / TABLE * TABLE;
    }
    for (int i = 0; i < tape->rope_count; i++) {
        const tsri_rope_cache *old = &tape->ropes[i];

        if (old->dim == rope.dim && old->first <= first && old->first + old->seq >= first + seq &&
            !(old->theta < rope.theta) && !(old->theta > rope.theta)) {
            *out = old;
            *offset_out = (size_t)((first - old->first) * old->dim) * sizeof(float);
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
    *offset_out = (size_t)(skip * rope.dim) * sizeof(float);
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
    const rope_attr attr = attr_of(call);
    const tsri_rope_cache *rope = NULL;
    size_t offset = 0;
    tsrk_rope args = {.batch = x->local_shape[0],
                      .seq = x->local_shape[SEQ],
                      .heads = x->local_shape[HEADS],
                      .dim = x->local_shape[DIM],
                      .first = attr.first + x->local_offset[SEQ],
                      .theta = attr.theta,
                      .type = x->dtype,
                      .inverse = inverse,
                      .accumulate = accumulate};

    if (x->local_count == 0) {
        return TSR_OK;
    }
    TSR_TRY(find_table(call, x, &rope, &offset));
    args.table =
        tsri_arg_in(&launch, rope->table, offset, (size_t)(args.seq * args.dim) * sizeof(float));
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

tsr_status tsr_op_rope_at(tsr_tape *tape, tsr_dtensor *x, double theta, int64_t first,
                          tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);
    TSRI_WANT_COUNT(first);

    char where[TSRI_WHERE_BYTES];

    if (!(theta > 0.0 && theta <= DBL_MAX)) {
        return TSR_RAISE(
            TSR_ERR_INVALID, "%s: theta is %g, wants a finite number above 0 (10000 is usual)",
            tsri_where(op_rope.name, tsri_tape_path(tape), where, sizeof(where)), theta);
    }

    if (first > MOST_POSITIONS) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: first is %lld, wants %lld at most",
                         tsri_where(op_rope.name, tsri_tape_path(tape), where, sizeof(where)),
                         (long long)first, (long long)MOST_POSITIONS);
    }

    const rope_attr attr = {.theta = theta, .first = first};

    TSR_TRY(tsri_op_apply(tape, &op_rope, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}

tsr_status tsr_op_rope(tsr_tape *tape, tsr_dtensor *x, double theta, tsr_dtensor **out)
{
    TSR_TRY(tsr_op_rope_at(tape, x, theta, 0, out));
    return TSR_OK;
}
