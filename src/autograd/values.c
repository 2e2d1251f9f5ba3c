/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file values.c
 * What changes from step to step, in device memory: written once when a step begins, read by its
 * kernels. So the calls of a step carry nothing of their own, and one that was recorded can be
 * played again as it is.
 */
#include "autograd_priv.h"

tsr_status tsri_values_open(tsr_tape *tape)
{
    TSR_TRY(tsri_comm_buffer(tape->comm, sizeof(tsri_step_values), TSRI_MEM_OTHER, "step values",
                             &tape->values));
    return TSR_OK;
}

tsr_status tsri_values_begin(tsr_tape *tape)
{
    const tsri_step_values values = {.step = tape->step};

    TSR_TRY(tsri_write(tape->values, 0, &values, sizeof(values),
                       tsri_comm_stream(tape->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

const int64_t *tsri_values_step(const tsr_tape *tape, tsri_call *call)
{
    return tsri_arg_in(call, tape->values, offsetof(tsri_step_values, step), sizeof(int64_t));
}
