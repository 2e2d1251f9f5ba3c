/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file flops.c
 * Work of the kernels that arithmetic bounds, as functions of their arguments.
 *
 * Attention's forward multiplies scores and values, its backward scores again, dP, dV, dQ and dK.
 * Each product is 2 seq^2 dim per head, of which the mask leaves half (the diagonal is counted as
 * half, which overstates nothing).
 */
#include "kernels/kernels.h"

static double product(int64_t batch, int64_t heads, int64_t seq, int64_t dim)
{
    return (double)batch * (double)heads * (double)seq * (double)seq * (double)dim;
}

static double matmul(const tsrk_matmul *a, tsr_dtype *type_out)
{
    /* With one wide operand the narrow one is widened first. */
    *type_out = a->a_type == TSR_F32 ? a->a_type : a->b_type;
    return 2.0 * (double)a->m * (double)a->n * (double)a->k;
}

double tsrk_flops(tsrk_id id, const void *args, tsr_dtype *type_out)
{
    *type_out = TSR_F32;
    if (id == TSRK_MATMUL) {
        return matmul(args, type_out);
    }
    if (id == TSRK_ATTENTION) {
        const tsrk_attention *a = args;

        *type_out = a->type;
        return 2.0 * product(a->batch, a->heads, a->seq, a->dim);
    }
    if (id == TSRK_ATTENTION_BWD) {
        const tsrk_attention_bwd *a = args;

        *type_out = a->type;
        return 5.0 * product(a->batch, a->heads, a->seq, a->dim);
    }
    return 0.0;
}
