/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_embedding.c
 * Token embedding, and learned positions.
 *
 * embedding, per axis, by how the table [vocab, dim] lies on it:
 *   Shard(0)   ids Replicate  y Partial      dtable Shard(0): a row is looked up by its one owner
 *   Shard(1)   ids Replicate  y Shard(last)  dtable Shard(1)
 *   Replicate  ids Shard(d)   y Shard(d)     dtable Partial
 * add_position: x Shard(0) or Shard(1) stays, the table is whole and its gradient Partial; where x
 * is Shard(2) the table is Shard(1).
 */
#include "autograd_priv.h"

enum {
    IDS = 0,
    X = 0,
    TABLE = 1
};

static tsr_status check_embedding(const tsri_op_call *call)
{
    char where[TSRI_WHERE_BYTES];

    if (call->want[TABLE].ndim != 2 || call->want[IDS].ndim >= TSR_MAX_DIMS) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: ids of %d dims, table of %d, wants less than %d and 2",
                         tsri_op_where(call, where, sizeof(where)), call->want[IDS].ndim,
                         call->want[TABLE].ndim, TSR_MAX_DIMS);
    }
    return TSR_OK;
}

static tsr_status embedding_rule(tsri_op_call *call)
{
    const int last = call->want[IDS].ndim;
    tsr_layout y;

    TSR_TRY(check_embedding(call));
    call->want[IDS] = tsri_rule_whole(&call->want[IDS]);
    call->want[TABLE] = tsri_rule_whole(&call->want[TABLE]);
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (call->want[TABLE].place[axis].kind == TSR_SHARD) {
            call->want[IDS].place[axis] = tsri_replicate();
        }
    }
    y = call->want[IDS];
    y.ndim = last + 1;
    y.shape[last] = call->want[TABLE].shape[1];
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (tsri_is_shard(&call->want[TABLE], axis, 0)) {
            y.place[axis] = tsri_partial();
        } else if (tsri_is_shard(&call->want[TABLE], axis, 1)) {
            y.place[axis] = tsri_shard(last);
        }
    }
    tsri_rule_order(&y, &call->want[IDS], &call->want[TABLE]);
    tsri_rule_param_grad(call, TABLE, &call->want[IDS]);
    call->out_layout = y;
    call->out_dtype = call->in_dtype[TABLE];
    call->needs_grad[IDS] = false;
    return TSR_OK;
}

static tsr_status embedding_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    tsrk_embedding args = {.ids = tsri_in(&launch, call->in[IDS]),
                           .table = tsri_in(&launch, call->in[TABLE]),
                           .y = tsri_out(&launch, call->out),
                           .rows = call->in[IDS]->local_count,
                           .cols = call->in[TABLE]->local_shape[1],
                           .begin = call->in[TABLE]->local_offset[0],
                           .table_rows = call->in[TABLE]->local_shape[0],
                           .type = call->in[TABLE]->dtype};

    TSR_TRY(tsri_facts_look(call, IDS, call->in[TABLE]->layout.shape[0], "id", false));
    TSR_TRY(tsri_op_launch(call, &launch, TSRK_EMBEDDING, &args, NULL));
    return TSR_OK;
}

/* Where row 0 of the local piece lies; the table itself is not kept. */
static tsr_status table_block(const tsri_op_call *call, int64_t *shape, int64_t *offset)
{
    TSR_TRY(tsr_layout_local(&call->in_layout[TABLE], tsr_comm_rank(call->comm), shape, offset));
    return TSR_OK;
}

static tsr_status embedding_backward(tsri_op_call *call)
{
    int64_t shape[TSR_MAX_DIMS] = {0};
    int64_t offset[TSR_MAX_DIMS] = {0};
    tsri_call launch = tsri_op_call_begin(call);
    tsrk_embedding_bwd args = {.accumulate = call->accumulate[TABLE]};

    if (call->din[TABLE] == NULL) {
        return TSR_OK;
    }
    TSR_TRY(table_block(call, shape, offset));
    args.ids = tsri_in(&launch, call->in[IDS]);
    args.dy = tsri_in(&launch, call->dout);
    args.dtable = args.accumulate ? tsri_inout(&launch, call->din[TABLE])
                                  : tsri_out(&launch, call->din[TABLE]);
    args.rows = call->in[IDS]->local_count;
    args.cols = shape[1];
    args.begin = offset[0];
    args.table_rows = shape[0];
    args.type = call->dout->dtype;
    args.grad_type = call->din[TABLE]->dtype;
    TSR_TRY(tsri_op_launch(call, &launch, TSRK_EMBEDDING_BWD, &args, NULL));
    return TSR_OK;
}

static const tsri_op_def op_embedding = {.name = "embedding",
                                         .typed_grad = 1U << TABLE,
                                         .takes = {TSR_DTYPE_BIT(TSR_I32), TSR_DTYPES_FLOAT},
                                         .inputs = "ids, table",
                                         .rule = embedding_rule,
                                         .forward = embedding_forward,
                                         .backward = embedding_backward,
                                         .keep_in = 1U << IDS};

tsr_status tsr_op_embedding(tsr_tape *tape, tsr_dtensor *ids, tsr_dtensor *table, tsr_dtensor **out)
{
    TSRI_WANT(tape, ids, table, out);

    tsr_dtensor *in[] = {ids, table};

    TSR_TRY(tsri_op_apply(tape, &op_embedding, in, 2, NULL, 0, out));
    return TSR_OK;
}

/* ---- learned positions ---- */

static tsr_status check_position(const tsri_op_call *call)
{
    const tsr_layout *x = &call->want[X];
    const tsr_layout *table = &call->want[TABLE];
    char where[TSRI_WHERE_BYTES];

    if (x->ndim != 3 || table->ndim != 2 || x->shape[2] != table->shape[1] ||
        x->shape[1] > table->shape[0]) {
        char a[TSRI_WHERE_BYTES];
        char b[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_SHAPE,
                         "%s: x %s with table %s, wants [batch, seq, dim] and [>= seq, dim]",
                         tsri_op_where(call, where, sizeof(where)),
                         tsri_format_shape(x->shape, x->ndim, a, sizeof(a)),
                         tsri_format_shape(table->shape, table->ndim, b, sizeof(b)));
    }
    return TSR_OK;
}

static tsr_status position_rule(tsri_op_call *call)
{
    TSR_TRY(check_position(call));
    call->want[X] = tsri_rule_whole(&call->want[X]);
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        call->want[TABLE].place[axis] =
            tsri_is_shard(&call->want[X], axis, 2) ? tsri_shard(1) : tsri_replicate();
    }
    tsri_rule_order(&call->want[TABLE], &call->want[X], &call->want[TABLE]);
    tsri_rule_param_grad(call, TABLE, &call->want[X]);
    call->out_layout = call->want[X];
    return TSR_OK;
}

static tsr_status position_forward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *x = call->in[X];
    const tsrk_add_position args = {.x = tsri_in(&launch, x),
                                    .table = tsri_in(&launch, call->in[TABLE]),
                                    .y = tsri_out(&launch, call->out),
                                    .batch = x->local_shape[0],
                                    .seq = x->local_shape[1],
                                    .cols = x->local_shape[2],
                                    .first = x->local_offset[1],
                                    .type = x->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, ADD_POSITION, &args));
    return TSR_OK;
}

static tsr_status position_backward(tsri_op_call *call)
{
    const tsr_dtensor *dout = call->dout;
    int64_t shape[TSR_MAX_DIMS] = {0};
    int64_t offset[TSR_MAX_DIMS] = {0};

    TSR_TRY(table_block(call, shape, offset));
    if (call->din[TABLE] != NULL) {
        tsri_call launch = tsri_op_call_begin(call);
        tsrk_add_position_bwd args = {.dy = tsri_in(&launch, dout),
                                      .batch = dout->local_shape[0],
                                      .seq = dout->local_shape[1],
                                      .cols = dout->local_shape[2],
                                      .first = dout->local_offset[1],
                                      .table_rows = shape[0],
                                      .type = dout->dtype,
                                      .grad_type = call->din[TABLE]->dtype,
                                      .accumulate = call->accumulate[TABLE]};

        args.dtable = args.accumulate ? tsri_inout(&launch, call->din[TABLE])
                                      : tsri_out(&launch, call->din[TABLE]);
        TSR_TRY(TSRI_LAUNCH(&launch, ADD_POSITION_BWD, &args));
    }
    if (call->needs_grad[X]) {
        call->din[X] = tsr_dtensor_retain(call->dout);
    }
    return TSR_OK;
}

static const tsri_op_def op_position = {.name = "add_position",
                                        .typed_grad = 1U << TABLE,
                                        .takes = {TSR_DTYPES_FLOAT, TSR_DTYPES_FLOAT},
                                        .inputs = "x, table",
                                        .alike = 1U << TABLE,
                                        .rule = position_rule,
                                        .forward = position_forward,
                                        .backward = position_backward,
                                        .makes_grad = 1U << X};

tsr_status tsr_op_add_position(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *table,
                               tsr_dtensor **out)
{
    TSRI_WANT(tape, x, table, out);

    tsr_dtensor *in[] = {x, table};

    TSR_TRY(tsri_op_apply(tape, &op_position, in, 2, NULL, 0, out));
    return TSR_OK;
}
