/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file flops.c
 * Work of the kernels that arithmetic bounds, as functions of their arguments.
 *
 * Attention's forward multiplies scores and values, its backward scores again, dP, dV, dQ and dK.
 * Each product is 2 seq kv_seq dim per head, less half of seq^2 under a causal mask (the diagonal
 * is counted as half, which overstates nothing).
 */
#include "kernels/kernels.h"

/* Pairs of query and key that are seen. */
static double pairs(int64_t seq, int64_t kv_seq, bool full)
{
    return (double)seq * ((double)kv_seq - (full ? 0.0 : 0.5 * (double)seq));
}

static double matmul(const tsrk_matmul *a, tsr_dtype *type_out)
{
    /* With one wide operand the narrow one is widened first. */
    *type_out = a->a_type == TSR_F32 ? a->a_type : a->b_type;
    return 2.0 * (double)a->m * (double)a->n * (double)a->k *
           (a->batch > 1 ? (double)a->batch : 1.0);
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
        return 4.0 * (double)(a->batch * a->heads * a->dim) * pairs(a->seq, a->kv_seq, a->full);
    }
    if (id == TSRK_ATTENTION_BWD) {
        const tsrk_attention_bwd *a = args;

        *type_out = a->type;
        return 10.0 * (double)(a->batch * a->heads * a->dim) * pairs(a->seq, a->kv_seq, a->full);
    }
    return 0.0;
}
