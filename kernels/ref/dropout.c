/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dropout.c
 * Dropout whose mask depends on the global element alone, so every split of a tensor agrees.
 *
 * y = keep ? x * q : 0 with q = 1 / (1 - p) rounded to f32; keep is word >= p * 2^32. The product
 * of two f32 is exact in double and rounds once, so an implementation can match it bit for bit.
 */
#include "ref_priv.h"

#include "base/rng.h"

#include <math.h>

#include "kernels/kernels.h"

uint64_t tsrk_dropout_key(const tsrk_dropout *args)
{
    return args->step == NULL
               ? args->key
               : tsri_rng_key(args->key, (uint64_t)*args->step, args->site, args->call);
}

tsr_status tsrk_ref_dropout(const tsrk_dropout *args)
{
    const tsrk_dropout *a = args;
    double threshold = floor((double)a->p * 4294967296.0 + 0.5);
    double q = (double)(float)(1.0 / (1.0 - (double)a->p));
    const uint64_t key = tsrk_dropout_key(a);
    int64_t i = 0;
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t s = 0; s < a->seq; s++) {
            int64_t row = (a->first_row + b) * a->global_seq + a->first_pos + s;
            for (int64_t c = 0; c < a->cols; c++, i++) {
                int64_t index = row * a->global_cols + a->first_col + c;
                bool keep = (double)tsri_rng_word(key, (uint64_t)index) >= threshold;
                double x = keep ? tsrk_ref_load(a->x, a->type, i) * q : 0.0;
                tsrk_ref_put(a->y, a->type, i, x, a->accumulate);
            }
        }
    }
    return TSR_OK;
}
