/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_ops.c
 * Operations of programs, and the two that are the program's own.
 */
#include "support/program_ops.h"

#include "tessera/custom_op.h"

#include <math.h>
#include <string.h>

#include "support/array.h"
#include "support/program.h"

/* ---- of the program's own ---- */

static double value_of(const tsr_op_work *work)
{
    double value = 0.0;

    memcpy(&value, work->attr, sizeof(value));
    return value;
}

static double get(const tsr_op_piece *piece, int64_t i)
{
    return tsr_array_get(piece->data, piece->dtype, i);
}

/* Write, or add where told to. */
static void put(const tsr_op_work *work, int64_t i, double value)
{
    const tsr_op_piece *din = &work->din[0];

    tsr_array_set(din->data, din->dtype, i, value + (work->accumulate[0] ? get(din, i) : 0.0));
}

static tsr_status cap_place(tsr_op_axis *axis)
{
    tsr_op_place_pointwise(axis);
    return TSR_OK;
}

static void cap_forward(const tsr_op_work *work)
{
    for (int64_t i = 0; i < work->out.count; i++) {
        tsr_array_set(work->out.data, work->out.dtype, i,
                      value_of(work) * tanh(get(&work->in[0], i) / value_of(work)));
    }
}

static void cap_backward(const tsr_op_work *work)
{
    for (int64_t i = 0; i < work->dout.count; i++) {
        const double t = tanh(get(&work->in[0], i) / value_of(work));

        put(work, i, get(&work->dout, i) * (1.0 - t * t));
    }
}

static const tsr_custom_op cap = {
    .name = "cap",
    .place = cap_place,
    .forward = cap_forward,
    .backward = cap_backward,
    .keep_in = 1,
    .adds_grad = 1,
    .takes = {TSR_DTYPE_BIT(TSR_F32) | TSR_DTYPE_BIT(TSR_BF16) | TSR_DTYPE_BIT(TSR_F16)}};

static tsr_status square_sum_shape(tsr_op_shapes *shapes)
{
    shapes->out = (tsr_op_tensor){.dtype = TSR_F32};
    return TSR_OK;
}

static tsr_status square_sum_place(tsr_op_axis *axis)
{
    if (axis->in[0].kind == TSR_SHARD) {
        axis->out = tsr_partial();
    } else {
        axis->in[0] = tsr_replicate();
        axis->out = tsr_replicate();
    }
    return TSR_OK;
}

static void square_sum_forward(const tsr_op_work *work)
{
    double sum = 0.0;

    for (int64_t i = 0; i < work->in[0].count; i++) {
        sum += 0.5 * get(&work->in[0], i) * get(&work->in[0], i);
    }
    tsr_array_set(work->out.data, TSR_F32, 0, value_of(work) * sum);
}

static void square_sum_backward(const tsr_op_work *work)
{
    for (int64_t i = 0; i < work->in[0].count; i++) {
        put(work, i, value_of(work) * get(&work->in[0], i) * get(&work->dout, 0));
    }
}

static const tsr_custom_op square_sum = {
    .name = "square_sum",
    .shape = square_sum_shape,
    .place = square_sum_place,
    .forward = square_sum_forward,
    .backward = square_sum_backward,
    .keep_in = 1,
    .adds_grad = 1,
    .takes = {TSR_DTYPE_BIT(TSR_F32) | TSR_DTYPE_BIT(TSR_BF16) | TSR_DTYPE_BIT(TSR_F16)}};

/* ---- of the library ---- */

static tsr_status redistribute(tsr_tape *tape, const program_op *op, tsr_dtensor *x,
                               tsr_dtensor **out)
{
    tsr_layout layout = *tsr_dtensor_layout(x);

    TSR_TRY(tsr_layout_place(&layout, tsr_mesh_axis_name(layout.mesh, op->axis), op->place));
    TSR_TRY(tsr_op_redistribute(tape, x, &layout, out));
    return TSR_OK;
}

static tsr_status run_heads(tsr_tape *tape, const program_op *op, tsr_dtensor *const *in,
                            tsr_dtensor **out)
{
    const tsr_attention_options options = {.full = op->number == 1};

    switch ((int)op->kind) {
    case PROGRAM_SPLIT_HEADS:
        return tsr_op_split_heads(tape, in[0], op->number, out);
    case PROGRAM_MERGE_HEADS:
        return tsr_op_merge_heads(tape, in[0], out);
    case PROGRAM_ROPE:
        return tsr_op_rope_at(tape, in[0], op->value, op->number, out);
    default:
        return tsr_op_attention_with(tape, in[0], in[1], in[2], &options, out);
    }
}

/* Of those that no model of the library uses. */
static tsr_status run_more(tsr_tape *tape, const program_op *op, tsr_dtensor *const *in,
                           tsr_dtensor **out)
{
    const tsr_matmul_options options = {.trans_b = op->number == 1};
    const int last = tsr_dtensor_layout(in[0])->ndim - 1;

    switch ((int)op->kind) {
    case PROGRAM_TANH:
        return tsr_op_tanh(tape, in[0], out);
    case PROGRAM_SIGMOID:
        return tsr_op_sigmoid(tape, in[0], out);
    case PROGRAM_SOFTMAX:
        return tsr_op_softmax(tape, in[0], out);
    case PROGRAM_MULTIPLY:
        return tsr_op_multiply(tape, in[0], in[1], out);
    case PROGRAM_MEAN:
        return tsr_op_mean(tape, in[0], op->number, true, out);
    case PROGRAM_SLICE:
        return tsr_op_slice(tape, in[0], last, op->number, op->span, out);
    case PROGRAM_CONCAT:
        return tsr_op_concat(tape, in, op->in_count, last, out);
    case PROGRAM_MATMUL:
        return tsr_op_matmul(tape, in[0], in[1], &options, out);
    default:
        return run_heads(tape, op, in, out);
    }
}

tsr_status program_op_run(tsr_tape *tape, const program_op *op, tsr_dtensor *const *in,
                          tsr_dtensor **out)
{
    switch ((int)op->kind) {
    case PROGRAM_LINEAR:
        return tsr_op_linear(tape, in[0], in[1], op->in_count > 2 ? in[2] : NULL, out);
    case PROGRAM_EMBEDDING:
        return tsr_op_embedding(tape, in[0], in[1], out);
    case PROGRAM_POSITION:
        return tsr_op_add_position(tape, in[0], in[1], out);
    case PROGRAM_LAYERNORM:
        return tsr_op_layernorm(tape, in[0], in[1], in[2], op->value, out);
    case PROGRAM_RMSNORM:
        return tsr_op_rmsnorm(tape, in[0], in[1], op->value, out);
    case PROGRAM_GELU:
        return tsr_op_gelu(tape, in[0], out);
    case PROGRAM_SILU_MUL:
        return tsr_op_silu_mul(tape, in[0], in[1], out);
    case PROGRAM_ADD:
        return tsr_op_add(tape, in[0], in[1], out);
    case PROGRAM_SCALE:
        return tsr_op_scale(tape, in[0], op->value, out);
    case PROGRAM_DROPOUT:
        return tsr_op_dropout(tape, in[0], op->value, out);
    case PROGRAM_CROSS_ENTROPY:
        return tsr_op_cross_entropy(tape, in[0], in[1], out);
    case PROGRAM_CAP:
        return tsr_op_custom(tape, &cap, in, 1, &op->value, sizeof(op->value), out);
    case PROGRAM_SQUARE_SUM:
        return tsr_op_custom(tape, &square_sum, in, 1, &op->value, sizeof(op->value), out);
    case PROGRAM_REDISTRIBUTE:
        return redistribute(tape, op, in[0], out);
    default:
        return run_more(tape, op, in, out);
    }
}
