/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_loss.c
 * Cross entropy over a vocabulary that may be sharded, normalised by the step's token count; in an
 * evaluation by that of its own labels.
 *
 * Axes that shard the vocabulary cost one max and one list of two sums per row; the logits are
 * never gathered. Axes that shard rows leave the loss Partial. The gradient of the logits is
 * written over them where nobody else holds them: they are the largest activation there is.
 */
#include "autograd_priv.h"

enum {
    LOGITS = 0,
    LABELS = 1,
    LSE = 0 /* saved */
};

/* Per row of this rank. */
typedef struct row_stats {
    tsr_dtensor *max, *sum, *target;
} row_stats;

static tsr_status check_labels(const tsri_op_call *call)
{
    const tsr_layout *logits = &call->want[LOGITS];
    const tsr_layout *labels = &call->want[LABELS];
    bool fit = logits->ndim >= 1 && labels->ndim == logits->ndim - 1;
    char where[TSRI_WHERE_BYTES];

    for (int d = 0; fit && d < labels->ndim; d++) {
        fit = logits->shape[d] == labels->shape[d];
    }
    if (!fit) {
        char a[TSRI_WHERE_BYTES];
        char b[TSRI_WHERE_BYTES];

        return TSR_RAISE(TSR_ERR_SHAPE, "%s: logits %s with labels %s",
                         tsri_op_where(call, where, sizeof(where)),
                         tsri_format_shape(logits->shape, logits->ndim, a, sizeof(a)),
                         tsri_format_shape(labels->shape, labels->ndim, b, sizeof(b)));
    }
    if (call->tape->outside != 0 && call->tape->outside != logits->shape[labels->ndim]) {
        return TSR_RAISE(TSR_ERR_SHAPE,
                         "%s: vocabulary of %lld, tsr_tape_ignore_outside was told %lld",
                         tsri_op_where(call, where, sizeof(where)),
                         (long long)logits->shape[labels->ndim], (long long)call->tape->outside);
    }
    return TSR_OK;
}

static tsr_status loss_rule(tsri_op_call *call)
{
    tsr_layout *logits = &call->want[LOGITS];
    tsr_layout *labels = &call->want[LABELS];
    tsr_layout loss;
    int last = 0;

    TSR_TRY(check_labels(call));
    last = logits->ndim - 1;
    *logits = tsri_rule_whole(logits);
    *labels = tsri_rule_whole(labels);
    TSR_TRY(tsr_layout_init(logits->mesh, NULL, 0, &loss));
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (logits->place[axis].kind == TSR_REPLICATE) {
            logits->place[axis] = labels->place[axis];
        }
        labels->place[axis] =
            tsri_is_shard(logits, axis, last) ? tsri_replicate() : logits->place[axis];
        if (labels->place[axis].kind == TSR_SHARD) {
            loss.place[axis] = tsri_partial();
        }
    }
    tsri_rule_order(logits, logits, labels);
    tsri_rule_order(labels, logits, labels);
    call->out_layout = loss;
    call->out_dtype = TSR_F32;
    call->needs_grad[LABELS] = false;
    return TSR_OK;
}

static void release_stats(row_stats *stats)
{
    tsr_dtensor_release(&stats->max);
    tsr_dtensor_release(&stats->sum);
    tsr_dtensor_release(&stats->target);
}

static tsr_status acquire_stats(tsri_op_call *call, row_stats *stats)
{
    const tsr_layout rows =
        tsri_rule_leading(&call->in_layout[LOGITS], call->in_layout[LOGITS].ndim - 1);

    TSR_TRY(tsri_op_acquire(call, &rows, TSR_F32, TSRI_MEM_ACTIVATION, &call->saved[LSE]));
    call->saved_count = 1;
    TSR_TRY(tsri_op_acquire(call, &rows, TSR_F32, TSRI_MEM_WORKSPACE, &stats->max));
    TSR_TRY(tsri_op_acquire(call, &rows, TSR_F32, TSRI_MEM_WORKSPACE, &stats->sum));
    TSR_TRY(tsri_op_acquire(call, &rows, TSR_F32, TSRI_MEM_WORKSPACE, &stats->target));
    return TSR_OK;
}

static tsr_status find_max(tsri_op_call *call, unsigned mask, row_stats *stats)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *logits = call->in[LOGITS];
    const tsrk_xent_max args = {.logits = tsri_in(&launch, logits),
                                .row_max = tsri_out(&launch, stats->max),
                                .rows = stats->max->local_count,
                                .cols = tsri_op_cols(logits),
                                .type = logits->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, XENT_MAX, &args));
    if (mask != 0 && stats->max->local_count > 0) {
        TSR_TRY(tsri_comm_all_reduce(call->comm, mask, tsri_dtensor_buffer(stats->max),
                                     tsri_dtensor_buffer_offset(stats->max),
                                     stats->max->local_count, TSR_F32, TSRI_MAX, call->path));
    }
    return TSR_OK;
}

/* Both sums of all rows travel as one collective. */
static tsr_status reduce_sums(tsri_op_call *call, unsigned mask, const row_stats *stats)
{
    tsr_dtensor *const parts[] = {stats->sum, stats->target};
    tsri_coll_item items[2];
    tsr_group *group = NULL;
    const tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                            .dtype = TSR_F32,
                            .op = TSRI_SUM,
                            .items = items,
                            .item_count = 2,
                            .label = call->path};

    if (mask == 0 || stats->sum->local_count == 0) {
        return TSR_OK;
    }
    for (int i = 0; i < 2; i++) {
        items[i] = (tsri_coll_item){.in = tsri_dtensor_buffer(parts[i]),
                                    .in_offset = tsri_dtensor_buffer_offset(parts[i]),
                                    .out = tsri_dtensor_buffer(parts[i]),
                                    .out_offset = tsri_dtensor_buffer_offset(parts[i]),
                                    .count = parts[i]->local_count};
    }
    TSR_TRY(tsri_comm_group(call->comm, mask, TSRI_STREAM_COMPUTE, &group));
    TSR_TRY(tsri_collective(group, &coll, tsri_comm_stream(call->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

static tsr_status find_sums(tsri_op_call *call, unsigned mask, row_stats *stats)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *logits = call->in[LOGITS];
    const tsrk_xent_sum args = {.logits = tsri_in(&launch, logits),
                                .labels = tsri_in(&launch, call->in[LABELS]),
                                .row_max = tsri_in(&launch, stats->max),
                                .row_sum = tsri_out(&launch, stats->sum),
                                .row_target = tsri_out(&launch, stats->target),
                                .rows = stats->sum->local_count,
                                .cols = tsri_op_cols(logits),
                                .begin = logits->local_offset[logits->layout.ndim - 1],
                                .type = logits->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, XENT_SUM, &args));
    TSR_TRY(reduce_sums(call, mask, stats));
    return TSR_OK;
}

static tsr_status finish(tsri_op_call *call, const row_stats *stats)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsrk_xent_loss args = {
        .labels = tsri_in(&launch, call->in[LABELS]),
        .row_max = tsri_in(&launch, stats->max),
        .row_sum = tsri_in(&launch, stats->sum),
        .row_target = tsri_in(&launch, stats->target),
        .count = tsri_arg_in(&launch, tsri_tape_token_count(call->tape), 0, sizeof(double)),
        .loss = tsri_out(&launch, call->out),
        .lse = tsri_out(&launch, call->saved[LSE]),
        .rows = stats->max->local_count,
        .limit = call->tape->outside,
        .ignore_index = TSR_IGNORE_INDEX};

    TSR_TRY(TSRI_LAUNCH(&launch, XENT_LOSS, &args));
    return TSR_OK;
}

static tsr_status loss_forward(tsri_op_call *call)
{
    const tsr_layout *logits = &call->in_layout[LOGITS];
    const unsigned mask = tsri_rule_mask(logits, logits->ndim - 1);
    row_stats stats = {.max = NULL};
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_facts_look(call, LABELS, logits->shape[logits->ndim - 1], "label", true));
    if (tsr_tape_in_eval(call->tape)) {
        TSR_TRY(tsri_loss_count(call, call->in[LABELS]));
    }
    TSR_TRY_GOTO(status, acquire_stats(call, &stats), release);
    TSR_TRY_GOTO(status, tsri_tape_meet(call->tape, mask), release);
    TSR_TRY_GOTO(status, find_max(call, mask, &stats), release);
    TSR_TRY_GOTO(status, find_sums(call, mask, &stats), release);
    TSR_TRY_GOTO(status, finish(call, &stats), release);
release:
    release_stats(&stats);
    return status;
}

static tsr_status loss_backward(tsri_op_call *call)
{
    tsri_call launch = tsri_op_call_begin(call);
    const tsr_dtensor *logits = call->in[LOGITS];
    const tsrk_xent_bwd args = {
        .logits = tsri_in(&launch, logits),
        .labels = tsri_in(&launch, call->in[LABELS]),
        .lse = tsri_in(&launch, call->saved[LSE]),
        .dloss = tsri_in(&launch, call->dout),
        .count = tsri_arg_in(&launch, tsri_tape_token_count(call->tape), 0, sizeof(double)),
        .dlogits = tsri_out(&launch, call->din[LOGITS]),
        .rows = call->saved[LSE]->local_count,
        .cols = tsri_op_cols(logits),
        .begin = logits->local_offset[logits->layout.ndim - 1],
        .limit = call->tape->outside,
        .ignore_index = TSR_IGNORE_INDEX,
        .type = logits->dtype};

    TSR_TRY(TSRI_LAUNCH(&launch, XENT_BWD, &args));
    return TSR_OK;
}

static const tsri_op_def op_loss = {.name = "cross_entropy",
                                    .takes = {TSR_DTYPES_FLOAT, TSR_DTYPE_BIT(TSR_I32)},
                                    .inputs = "logits, labels",
                                    .rule = loss_rule,
                                    .forward = loss_forward,
                                    .backward = loss_backward,
                                    .keep_in = 1U << LOGITS | 1U << LABELS,
                                    .no_accumulate = 1U << LOGITS,
                                    .over_in = 1U << LOGITS};

tsr_status tsr_op_cross_entropy(tsr_tape *tape, tsr_dtensor *logits, tsr_dtensor *labels,
                                tsr_dtensor **out)
{
    TSRI_WANT(tape, logits, labels, out);

    tsr_dtensor *in[] = {logits, labels};

    tsri_tokens_look(tape, labels);
    TSR_TRY(tsri_op_apply(tape, &op_loss, in, 2, NULL, 0, out));
    return TSR_OK;
}
