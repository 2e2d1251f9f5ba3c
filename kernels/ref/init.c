/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file init.c
 * Normal initial values by global element, so every split of a tensor agrees bit for bit.
 *
 * mean + std * z is computed in double, where the product of two f32 is exact, and rounded once.
 */
#include "ref_priv.h"

#include "base/rng.h"

#include "kernels/kernels.h"

tsr_status tsrk_ref_init_normal(const tsrk_init_normal *args)
{
    const tsrk_init_normal *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        for (int64_t c = 0; c < a->cols; c++) {
            float value = a->mean;
            if (a->std != 0.0F) {
                int64_t index = (a->first_row + r) * a->global_cols + a->first_col + c;
                double z = (double)tsri_rng_normal(a->key, (uint64_t)index);
                value = (float)((double)a->mean + (double)a->std * z);
            }
            a->out[r * a->cols + c] = value;
        }
    }
    return TSR_OK;
}
