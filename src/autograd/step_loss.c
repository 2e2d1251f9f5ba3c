/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file step_loss.c
 * The sum of a step's losses.
 *
 * Each loss is Partial on axes of its own, and losses of equal axes are added up as they lie; what
 * reading reduces is a copy. So reading changes nothing, and may happen at any time of a step.
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

tsr_status tsri_loss_add(tsr_tape *tape, const tsr_dtensor *loss)
{
    tsri_call launch = begin_call(tape);
    tsrk_scale args = {.x = tsri_in(&launch, loss),
                       .n = 1,
                       .factor = 1.0F,
                       .x_type = TSR_F32,
                       .y_type = TSR_F32,
                       .accumulate = true};
    unsigned mask = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(loss->layout.mesh); axis++) {
        if (loss->layout.place[axis].kind == TSR_PARTIAL &&
            tsr_mesh_axis_size(loss->layout.mesh, axis) > 1) {
            mask |= 1U << axis;
        }
    }
    args.y = tsri_arg_inout(&launch, tape->loss.sums, mask * (size_t)F32, sizeof(float));
    tape->loss.used[mask] = true;
    TSR_TRY(TSRI_LAUNCH(&launch, SCALE, &args));
    return TSR_OK;
}

/* The sum of mask's axes, reduced beside it. */
static tsr_status read_sum(const tsr_tape *tape, unsigned mask, float *out)
{
    tsr_buffer *buffer = tape->loss.sums;
    const size_t from = mask * (size_t)F32;
    const size_t beside = mask_count(tape) * (size_t)F32;
    const size_t at = mask != 0 ? beside : from;

    if (mask != 0) {
        tsri_call launch = begin_call(tape);
        const tsrk_scale args = {.x = tsri_arg_in(&launch, buffer, from, sizeof(float)),
                                 .y = tsri_arg_out(&launch, buffer, beside, sizeof(float)),
                                 .n = 1,
                                 .factor = 1.0F,
                                 .x_type = TSR_F32,
                                 .y_type = TSR_F32};

        TSR_TRY(TSRI_LAUNCH(&launch, SCALE, &args));
        TSR_TRY(
            tsri_comm_all_reduce(tape->comm, mask, buffer, beside, 1, TSR_F32, TSRI_SUM, "loss"));
    }
    TSR_TRY(tsri_read(buffer, at, out, sizeof(*out),
                      tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
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
            TSR_TRY(read_sum(tape, mask, &part));
            sum += (double)part;
        }
    }
    *out = sum;
    return TSR_OK;
}
