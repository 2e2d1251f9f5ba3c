/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file sum.c
 * Sums over a dim, and products with what is repeated along one, by definition.
 *
 * Each is the other's gradient: of out = sum over mid of x w, dx = w dout, repeated along mid; of
 * y = a b with b repeated, db = sum over mid of dy a.
 */
#include "ref_priv.h"

#include "kernels/kernels.h"

tsr_status tsrk_ref_sum(const tsrk_sum *args)
{
    for (int64_t o = 0; o < args->outer; o++) {
        for (int64_t i = 0; i < args->inner; i++) {
            double sum = 0.0;
            for (int64_t m = 0; m < args->mid; m++) {
                int64_t at = (((o * args->mid) + m) * args->inner) + i;
                double w = args->w != NULL ? tsrk_ref_load(args->w, args->w_type, at) : 1.0;
                sum += tsrk_ref_load(args->x, args->x_type, at) * w;
            }
            tsrk_ref_put(args->out, args->out_type, (o * args->inner) + i,
                         (double)args->factor * sum, args->accumulate);
        }
    }
    return TSR_OK;
}

tsr_status tsrk_ref_multiply(const tsrk_multiply *args)
{
    for (int64_t o = 0; o < args->outer; o++) {
        for (int64_t m = 0; m < args->mid; m++) {
            for (int64_t i = 0; i < args->inner; i++) {
                int64_t at = (((o * args->mid) + m) * args->inner) + i;
                double a = args->a != NULL ? tsrk_ref_load(args->a, args->a_type, at) : 1.0;
                double b = tsrk_ref_load(args->b, args->b_type, (o * args->inner) + i);
                tsrk_ref_put(args->y, args->y_type, at, (double)args->factor * a * b,
                             args->accumulate);
            }
        }
    }
    return TSR_OK;
}
