/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file elementwise.c
 * Sum of two arrays, scaled copies and casts, zero fill, and copies of strided blocks of bytes.
 */
#include "ref_priv.h"

#include <string.h>

#include "kernels/kernels.h"

tsr_status tsrk_ref_add(const tsrk_add *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        double a = tsrk_ref_load(args->a, args->a_type, i);
        double b = tsrk_ref_load(args->b, args->b_type, i);
        tsrk_ref_store(args->y, args->y_type, i, a + b);
    }
    return TSR_OK;
}

tsr_status tsrk_ref_scale(const tsrk_scale *args)
{
    double factor = (double)args->factor;
    if (args->device_factor) {
        factor *= (double)*args->device_factor;
    }
    for (int64_t i = 0; i < args->n; i++) {
        double x = tsrk_ref_load(args->x, args->x_type, i);
        tsrk_ref_put(args->y, args->y_type, i, x * factor, args->accumulate);
    }
    return TSR_OK;
}

tsr_status tsrk_ref_zero(const tsrk_zero *args)
{
    if (args->bytes > 0) {
        memset(args->out, 0, args->bytes);
    }
    return TSR_OK;
}

tsr_status tsrk_ref_copy_blocks(const tsrk_copy_blocks *args)
{
    if (args->inner_bytes == 0) {
        return TSR_OK;
    }
    const char *src = args->src;
    char *dst = args->dst;
    for (int64_t o = 0; o < args->outer; o++) {
        for (int64_t m = 0; m < args->mid; m++) {
            memcpy(dst + o * args->dst_outer_stride + m * args->dst_mid_stride,
                   src + o * args->src_outer_stride + m * args->src_mid_stride, args->inner_bytes);
        }
    }
    return TSR_OK;
}
