/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_dropout.c
 * Dropout whose mask is recomputed in backward from (seed, step, module path, call, element), where
 * the step's number is read from device memory.
 *
 * Rows are counted over the whole step: micro-batch number times its global rows, plus the row. So
 * a mask changes neither with the mesh nor, rows being equal, with the number of micro-batches. Any
 * shard will do whose piece is a block of [row, position, column]: all but those of dims behind the
 * third.
 */
#include "autograd_priv.h"

#include <string.h>

enum {
    COLUMN_DIM = 2
};

typedef struct dropout_attr {
    uint64_t site, number; /* hash of the path; of the call there */
    int64_t first_row;     /* of the micro-batch in the step */
    float p;
} dropout_attr;

static tsr_status dropout_rule(tsri_op_call *call)
{
    char where[TSRI_WHERE_BYTES];

    if (call->want[0].ndim < 1) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%s: of a scalar",
                         tsri_op_where(call, where, sizeof(where)));
    }
    tsri_rule_local_dims(call, 0, COLUMN_DIM + 1);
    call->out_layout = call->want[0];
    return TSR_OK;
}

/* Extent of the global tensor or, by offset, of what lies before the piece, in dims from dim on. */
static int64_t trailing(const int64_t *extent, const tsr_layout *layout, int dim)
{
    int64_t count = dim < layout->ndim ? extent[dim] : 1;

    for (int d = dim + 1; d < layout->ndim; d++) {
        count *= layout->shape[d];
    }
    return count;
}

static tsr_status run(tsri_op_call *call, const tsr_dtensor *x, tsr_dtensor *y, bool accumulate)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_layout *layout = &x->layout;
    const bool has_seq = layout->ndim > 2;
    const int column_dim = has_seq ? COLUMN_DIM : 1;
    const bool has_columns = layout->ndim > 1;
    dropout_attr attr;
    tsrk_dropout args = {.x = tsri_in(&launch, x),
                         .batch = x->local_shape[0],
                         .seq = has_seq ? x->local_shape[1] : 1,
                         .cols = tsri_local_span(x, column_dim, layout->ndim),
                         .first_pos = has_seq ? x->local_offset[1] : 0,
                         .first_col =
                             has_columns ? trailing(x->local_offset, layout, column_dim) : 0,
                         .global_seq = has_seq ? layout->shape[1] : 1,
                         .global_cols = trailing(layout->shape, layout, column_dim),
                         .type = x->dtype,
                         .accumulate = accumulate};

    memcpy(&attr, call->attr, sizeof(attr));
    args.key = call->tape->seed;
    args.site = attr.site;
    args.call = attr.number;
    args.step = tsri_values_step(call->tape, &launch);
    args.p = attr.p;
    args.first_row = attr.first_row + x->local_offset[0];
    args.y = accumulate ? tsri_inout(&launch, y) : tsri_out(&launch, y);
    TSR_TRY(TSRI_LAUNCH(&launch, DROPOUT, &args));
    return TSR_OK;
}

static tsr_status dropout_forward(tsri_op_call *call)
{
    TSR_TRY(run(call, call->in[0], call->out, false));
    return TSR_OK;
}

static tsr_status dropout_backward(tsri_op_call *call)
{
    TSR_TRY(run(call, call->dout, call->din[0], call->accumulate[0]));
    return TSR_OK;
}

static const tsri_op_def op_dropout = {.name = "dropout",
                                       .takes = {TSR_DTYPES_FLOAT},
                                       .inputs = "x",
                                       .rule = dropout_rule,
                                       .forward = dropout_forward,
                                       .backward = dropout_backward};

tsr_status tsr_op_dropout(tsr_tape *tape, tsr_dtensor *x, double p, tsr_dtensor **out)
{
    TSRI_WANT(tape, x, out);

    char where[TSRI_WHERE_BYTES];

    const char *path = tsri_tape_path(tape);
    dropout_attr attr = {.p = (float)p};

    if (!(p >= 0.0 && p < 1.0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: p is %g, wants 0 <= p < 1",
                         tsri_where("dropout", path, where, sizeof(where)), p);
    }
    if (p <= 0.0 || tsr_tape_in_eval(tape)) {
        *out = x;
        return TSR_OK;
    }
    TSR_TRY(tsri_tape_count_call(tape, path, &attr.number));
    attr.site = tsri_hash_text(path);
    attr.first_row = tape->frame->micro_batch * (x->layout.ndim > 0 ? x->layout.shape[0] : 0);
    TSR_TRY(tsri_op_apply(tape, &op_dropout, &x, 1, &attr, sizeof(attr), out));
    return TSR_OK;
}
