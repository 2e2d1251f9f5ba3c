/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file init.c
 * Normal initial values by runs of consecutive global elements; bits equal kernels/ref/init.c.
 *
 * Words come by Philox block; each goes through the one scalar formula of base/rng.h.
 */
#include "kernels/cpu/cpu_priv.h"

#include "base/rng.h"

static void normal_chunk(const tsrk_init_normal *a, float *out, int64_t index, int64_t n)
{
    uint32_t words[TSRK_CPU_CHUNK];
    tsrk_cpu_rng_words(words, a->key, (uint64_t)index, n);
    for (int64_t i = 0; i < n; i++) {
        float z = (float)tsri_normal_quantile(((double)words[i] + 0.5) * 0x1p-32);
        out[i] = (float)((double)a->mean + ((double)a->std * (double)z));
    }
}

static void fill_chunk(float *out, float value, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = value;
    }
}

tsr_status tsrk_cpu_init_normal(const tsrk_init_normal *args, const tsrk_context *context)
{
    const tsrk_init_normal *a = args;
    int64_t total = a->rows * a->cols;
    if (total == 0) {
        return TSR_OK;
    }
    int64_t run = a->cols == a->global_cols ? total : a->cols;
    int64_t chunks = tsrk_cpu_chunk_count(run);
    int64_t tasks = total / run * chunks;
    /* A normal costs some 20 times a streamed element. */
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, total * 20))
    for (int64_t task = 0; task < tasks; task++) {
        int64_t row = task / chunks * run / a->cols;
        int64_t offset = task % chunks * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(run, task % chunks);
        float *out = a->out + (row * a->cols) + offset;
        if (a->std == 0.0F) {
            fill_chunk(out, a->mean, n);
        } else {
            int64_t index = ((a->first_row + row) * a->global_cols) + a->first_col + offset;
            normal_chunk(a, out, index, n);
        }
    }
    return TSR_OK;
}
