/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file step_loss.c
 * The sum of a step's losses, and the loss of an evaluation.
 *
 * Each loss is Partial on axes of its own, and losses of equal axes are added up as they lie; what
 * reading reduces is a copy. So reading changes nothing, and may happen at any time of a step.
 * A loss of an evaluation, which knows no labels beforehand, counts its own.
 */
#include "autograd_priv.h"

#include <string.h>

enum {
    F32 = (int)sizeof(float)
};

static unsigned mask_count(const tsr_tape *tape)
{
    return 1U << tsr_mesh_axis_count(tsr_comm_mesh(tape->comm));
}

static tsri_call begin_call(const tsr_tape *tape)
{
    return (tsri_call){.stream = tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE),
                       .label = "loss"};
}

tsr_status tsri_loss_open(tsr_tape *tape)
{
    TSR_TRY(tsri_comm_buffer(tape->comm, (mask_count(tape) + 1) * (size_t)F32, TSRI_MEM_OTHER,
                             "loss", &tape->loss.sums));
    TSR_TRY(tsri_comm_buffer(tape->comm, sizeof(double), TSRI_MEM_OTHER, "token count",
                             &tape->eval_count));
    return TSR_OK;
}

tsr_status tsri_loss_zero(tsr_tape *tape)
{
    tsri_call launch = begin_call(tape);
    const size_t bytes = mask_count(tape) * (size_t)F32;
    const tsrk_zero args = {.out = tsri_arg_out(&launch, tape->loss.sums, 0, bytes),
                            .bytes = bytes};

    memset(tape->loss.used, 0, sizeof(tape->loss.used));
    TSR_TRY(TSRI_LAUNCH(&launch, ZERO, &args));
    return TSR_OK;
}

static unsigned partial_axes(const tsr_dtensor *loss)
{
    unsigned mask = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(loss->layout.mesh); axis++) {
        if (loss->layout.place[axis].kind == TSR_PARTIAL &&
            tsr_mesh_axis_size(loss->layout.mesh, axis) > 1) {
            mask |= 1U << axis;
        }
    }
    return mask;
}

tsr_status tsri_loss_add(tsr_tape *tape, const tsr_dtensor *loss)
{
    tsri_call launch = begin_call(tape);
    tsrk_scale args = {.x = tsri_in(&launch, loss),
                       .n = 1,
                       .factor = 1.0F,
                       .x_type = TSR_F32,
                       .y_type = TSR_F32,
                       .accumulate = true};
    const unsigned mask = partial_axes(loss);

    args.y = tsri_arg_inout(&launch, tape->loss.sums, mask * (size_t)F32, sizeof(float));
    tape->loss.used[mask] = true;
    TSR_TRY(TSRI_LAUNCH(&launch, SCALE, &args));
    return TSR_OK;
}

/* The scalar at (buffer, from), a term on the axes of mask, reduced beside the sums. */
static tsr_status read_scalar(const tsr_tape *tape, unsigned mask, tsr_buffer *buffer, size_t from,
                              float *out)
{
    const size_t beside = mask_count(tape) * (size_t)F32;

    if (mask != 0) {
        tsri_call launch = begin_call(tape);
        const tsrk_scale args = {.x = tsri_arg_in(&launch, buffer, from, sizeof(float)),
                                 .y = tsri_arg_out(&launch, tape->loss.sums, beside, sizeof(float)),
                                 .n = 1,
                                 .factor = 1.0F,
                                 .x_type = TSR_F32,
                                 .y_type = TSR_F32};

        TSR_TRY(TSRI_LAUNCH(&launch, SCALE, &args));
        TSR_TRY(tsri_comm_all_reduce(tape->comm, mask, tape->loss.sums, beside, 1, TSR_F32,
                                     TSRI_SUM, "loss"));
    }
    TSR_TRY(tsri_read(mask != 0 ? tape->loss.sums : buffer, mask != 0 ? beside : from, out,
                      sizeof(*out), tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

tsr_status tsr_step_loss(tsr_tape *tape, double *out)
{
    TSRI_WANT(tape, out);

    double sum = 0.0;

    TSR_TRY(tsri_step_check_read(tape, "loss"));
    for (unsigned mask = 0; mask < mask_count(tape); mask++) {
        float part = 0.0F;

        if (tape->loss.used[mask]) {
            TSR_TRY(read_scalar(tape, mask, tape->loss.sums, mask * (size_t)F32, &part));
            sum += (double)part;
        }
    }
    *out = sum;
    return TSR_OK;
}

/* ---- of an evaluation ---- */

tsr_status tsri_loss_count(tsri_op_call *call, const tsr_dtensor *labels)
{
    const tsr_tape *tape = call->tape;
    tsri_call launch = tsri_op_call_begin(call);
    tsrk_count_labels args = {.labels = tsri_in(&launch, labels),
                              .n = labels->local_count,
                              .limit = tape->outside,
                              .ignore_index = TSR_IGNORE_INDEX};
    unsigned mask = 0;

    for (int dim = 0; dim < labels->layout.ndim; dim++) {
        mask |= tsri_rule_mask(&labels->layout, dim);
    }
    args.out = tsri_arg_out(&launch, tape->eval_count, 0, sizeof(double));
    TSR_TRY(TSRI_LAUNCH(&launch, COUNT_LABELS, &args));
    if (mask != 0) {
        TSR_TRY(tsri_tape_meet(call->tape, mask));
        TSR_TRY(tsri_comm_all_reduce(call->comm, mask, tape->eval_count, 0, 1, TSR_F64, TSRI_SUM,
                                     call->path));
    }
    return TSR_OK;
}

tsr_status tsr_eval_loss(tsr_tape *tape, tsr_dtensor *loss, double *mean_out, double *tokens_out)
{
    TSRI_WANT(tape, loss, mean_out);

    float mean = 0.0F;

    if (!tsr_tape_in_eval(tape)) {
        return TSR_RAISE(TSR_ERR_STATE, "tsr_eval_loss outside of an evaluation");
    }
    TSR_TRY(tsri_step_check_forward(tape, "tsr_eval_loss"));
    TSR_TRY(tsri_dtensor_check(loss, "tsr_eval_loss"));
    if (loss->comm != tape->comm || loss->layout.ndim != 0 || loss->dtype != TSR_F32) {
        return TSR_RAISE(TSR_ERR_INVALID, "tsr_eval_loss: %d dims of %s%s, wants an f32 scalar",
                         loss->layout.ndim, tsr_dtype_name(loss->dtype),
                         loss->comm != tape->comm ? " of another comm than the tape" : "");
    }
    TSR_TRY(read_scalar(tape, partial_axes(loss), tsri_dtensor_buffer(loss),
                        tsri_dtensor_buffer_offset(loss), &mean));
    if (tokens_out != NULL) {
        TSR_TRY(tsri_read(tape->eval_count, 0, tokens_out, sizeof(*tokens_out),
                          tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    }
    *mean_out = (double)mean;
    return TSR_OK;
}
