/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file matmul.c
 * matmul and the column sum that is its bias gradient, by definition.
 *
 * c [m, n] (+)= op(a) [m, k] * op(b) [k, n] + bias [n]; out [cols] (+)= sum over rows of x. Any of
 * f32, bf16 and f16, accumulated in double. 2 m n k flops.
 */
#include "kernels/ref/ref_priv.h"

#include "kernels/kernels.h"

void tsrk_ref_matmul(const tsrk_matmul *args)
{
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n; j++) {
            double sum = args->bias != NULL ? tsrk_ref_load(args->bias, args->bias_type, j) : 0.0;
            for (int64_t p = 0; p < args->k; p++) {
                int64_t ia = args->trans_a ? (p * args->lda) + i : (i * args->lda) + p;
                int64_t ib = args->trans_b ? (j * args->ldb) + p : (p * args->ldb) + j;
                sum += tsrk_ref_load(args->a, args->a_type, ia) *
                       tsrk_ref_load(args->b, args->b_type, ib);
            }
            tsrk_ref_put(args->c, args->c_type, (i * args->ldc) + j, sum, args->accumulate);
        }
    }
}

void tsrk_ref_col_sum(const tsrk_col_sum *args)
{
    for (int64_t j = 0; j < args->cols; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < args->rows; i++) {
            sum += tsrk_ref_load(args->x, args->x_type, (i * args->cols) + j);
        }
        tsrk_ref_put(args->out, args->out_type, j, sum, args->accumulate);
    }
}
