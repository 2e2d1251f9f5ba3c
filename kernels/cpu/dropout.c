/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dropout.c
 * Dropout by runs of consecutive global elements; bits equal kernels/ref/dropout.c.
 *
 * Where the piece holds whole columns (and whole rows), runs join. Words come by Philox block. The
 * product of two f32 is exact in double, so widening, adding and rounding once gives the
 * definition's bits whether or not the machine contracts the sum.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>

typedef struct mask {
    uint64_t threshold; /* keep if word >= threshold; up to 2^32 */
    float q;
    bool accumulate;
} mask;

static void chunk_drop(float *y, const float *x, const uint32_t *words, uint32_t least, float q,
                       int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = words[i] >= least ? x[i] * q : 0.0F;
    }
}

static void chunk_drop_add(float *y, const float *x, const uint32_t *words, uint32_t least, float q,
                           int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        double value = words[i] >= least ? (double)x[i] * (double)q : 0.0;
        y[i] = (float)((double)y[i] + value);
    }
}

/* Elements i .. i + n of the piece, which are index .. index + n of the whole. */
static void drop_chunk(const tsrk_dropout *a, uint64_t key, uint32_t least, int64_t i,
                       int64_t index, int64_t n)
{
    uint32_t words[TSRK_CPU_CHUNK];
    float xs[TSRK_CPU_CHUNK];
    float ys[TSRK_CPU_CHUNK];
    float q = (float)(1.0 / (1.0 - (double)a->p));
    const float *x = tsrk_cpu_view(a->x, a->type, i, n, xs);
    tsrk_cpu_rng_words(words, key, (uint64_t)index, n);
    if (!a->accumulate) {
        float *y = tsrk_cpu_target(a->y, a->type, i, false, ys);
        chunk_drop(y, x, words, least, q, n);
        tsrk_cpu_finish(a->y, a->type, i, false, y, n);
        return;
    }
    tsrk_cpu_load(ys, a->y, a->type, i, n);
    chunk_drop_add(ys, x, words, least, q, n);
    tsrk_cpu_store(a->y, a->type, i, ys, n);
}

tsr_status tsrk_cpu_dropout(const tsrk_dropout *args, const tsrk_context *context)
{
    const tsrk_dropout *a = args;
    double threshold = floor((double)a->p * 4294967296.0 + 0.5);
    int64_t total = a->batch * a->seq * a->cols;
    if (threshold >= 4294967296.0 || total == 0) {
        tsrk_ref_dropout(a); /* p = 1 keeps no word, which 32 bits cannot say */
        return TSR_OK;
    }
    const uint64_t key = tsrk_dropout_key(a);
    uint32_t least = (uint32_t)threshold;
    int64_t run = a->cols;
    if (a->cols == a->global_cols) {
        run *= a->seq;
        if (a->seq == a->global_seq) {
            run *= a->batch;
        }
    }
    int64_t chunks = tsrk_cpu_chunk_count(run);
    int64_t tasks = total / run * chunks;
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, total))
    for (int64_t task = 0; task < tasks; task++) {
        int64_t begin = task / chunks * run;
        int64_t row = begin / a->cols; /* the run starts at (row / seq, row % seq, 0) */
        int64_t offset = task % chunks * TSRK_CPU_CHUNK;
        int64_t global =
            ((a->first_row + (row / a->seq)) * a->global_seq) + a->first_pos + (row % a->seq);
        drop_chunk(a, key, least, begin + offset, (global * a->global_cols) + a->first_col + offset,
                   tsrk_cpu_chunk_size(run, task % chunks));
    }
    return TSR_OK;
}
