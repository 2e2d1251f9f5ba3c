/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file matmul.c
 * matmul by definition.
 *
 * c [m, n] (+)= op(a) [m, k] * op(b) [k, n] + bias [n]. Any of f32, bf16 and f16, accumulated in
 * double. 2 m n k flops.
 */
#include "kernels/ref/ref_priv.h"

#include "kernels/kernels.h"

static void product(const tsrk_matmul *args, int64_t item)
{
    int64_t a = item * args->stride_a;
    int64_t b = item * args->stride_b;
    int64_t c = item * args->stride_c;
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n; j++) {
            double sum = args->bias != NULL ? tsrk_ref_load(args->bias, args->bias_type, j) : 0.0;
            for (int64_t p = 0; p < args->k; p++) {
                int64_t ia = args->trans_a ? (p * args->lda) + i : (i * args->lda) + p;
                int64_t ib = args->trans_b ? (j * args->ldb) + p : (p * args->ldb) + j;
                sum += tsrk_ref_load(args->a, args->a_type, a + ia) *
                       tsrk_ref_load(args->b, args->b_type, b + ib);
            }
            tsrk_ref_put(args->c, args->c_type, c + (i * args->ldc) + j, sum, args->accumulate);
        }
    }
}

tsr_status tsrk_ref_matmul(const tsrk_matmul *args)
{
    int64_t count = args->batch > 0 ? args->batch : 1;
    for (int64_t item = 0; item < count; item++) {
        product(args, item);
    }
    return TSR_OK;
}
