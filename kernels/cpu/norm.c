/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file norm.c
 * Layernorm and rmsnorm by rows, and their gradients; formulas in kernels/ref/norm.c.
 *
 * A row is worked on in chunks of f32 that stay in L1: sums are f32 within a chunk and double
 * across chunks. Forward reads each element once from memory and writes it once.
 * Gradients of gain and bias: rows are cut into at most NORM_BLOCKS blocks by their number alone;
 * each block adds its rows in order into its own part of the workspace [blocks, 2, cols], and the
 * parts are summed in order in double. So the bits do not depend on the number of threads.
 * rmsnorm's gradient is layernorm's with mean 0 and without the mean of g: mean NULL says so.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>

#define NORM_BLOCKS     64
#define NORM_BLOCK_ROWS 16

typedef struct row_stats {
    float mean, rstd;
    float mean_g, mean_gx; /* means over the row of g and of g * xhat */
} row_stats;

static float chunk_sum(const float *x, int64_t n)
{
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum;
}

static float chunk_squares(const float *x, float mean, int64_t n)
{
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float d = x[i] - mean;
        sum += d * d;
    }
    return sum;
}

static void chunk_layernorm(float *y, const float *x, const float *gain, const float *bias,
                            row_stats stats, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = ((x[i] - stats.mean) * stats.rstd * gain[i]) + bias[i];
    }
}

static void chunk_rmsnorm(float *y, const float *x, const float *gain, float rstd, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] * rstd * gain[i];
    }
}

/* bf16 without a detour through a buffer: the conversions are cheaper than another pass over L1. */
static float chunk_squares_bf16(const uint16_t *x, int64_t n)
{
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        float v = tsrk_cpu_from_bf16(x[i]);
        sum += v * v;
    }
    return sum;
}

static void chunk_rmsnorm_bf16(uint16_t *y, const uint16_t *x, const uint16_t *gain, float rstd,
                               int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float xhat = tsrk_cpu_from_bf16(x[i]) * rstd;
        y[i] = tsrk_cpu_to_bf16(xhat * tsrk_cpu_from_bf16(gain[i]));
    }
}

/* Sum over the row x[0 .. cols) of x, or of (x - mean)^2. */
static double row_reduce(const void *x, tsr_dtype type, int64_t base, int64_t cols,
                         const float *mean)
{
    float buffer[TSRK_CPU_CHUNK];
    double sum = 0.0;
    for (int64_t k = 0; k < tsrk_cpu_chunk_count(cols); k++) {
        int64_t n = tsrk_cpu_chunk_size(cols, k);
        const float *v = tsrk_cpu_view(x, type, base + (k * TSRK_CPU_CHUNK), n, buffer);
        sum += (double)(mean ? chunk_squares(v, *mean, n) : chunk_sum(v, n));
    }
    return sum;
}

static float row_rstd(double squares, int64_t cols, float eps)
{
    double mean = cols > 0 ? squares / (double)cols : 0.0;
    return (float)(1.0 / sqrt(mean + (double)eps));
}

static void layernorm_row(const tsrk_layernorm *a, int64_t r)
{
    float xs[TSRK_CPU_CHUNK];
    float gains[TSRK_CPU_CHUNK];
    float biases[TSRK_CPU_CHUNK];
    int64_t base = r * a->cols;
    row_stats stats = {0};
    if (a->cols > 0) {
        stats.mean = (float)(row_reduce(a->x, a->type, base, a->cols, NULL) / (double)a->cols);
    }
    stats.rstd = row_rstd(row_reduce(a->x, a->type, base, a->cols, &stats.mean), a->cols, a->eps);
    for (int64_t k = 0; k < tsrk_cpu_chunk_count(a->cols); k++) {
        int64_t c = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->cols, k);
        const float *x = tsrk_cpu_view(a->x, a->type, base + c, n, xs);
        const float *gain = tsrk_cpu_view(a->gain, a->type, c, n, gains);
        const float *bias = tsrk_cpu_view(a->bias, a->type, c, n, biases);
        float *y = tsrk_cpu_target(a->y, a->type, base + c, false, xs);
        chunk_layernorm(y, x, gain, bias, stats, n);
        tsrk_cpu_finish(a->y, a->type, base + c, false, y, n);
    }
    a->mean[r] = stats.mean;
    a->rstd[r] = stats.rstd;
}

tsr_status tsrk_cpu_layernorm(const tsrk_layernorm *args, const tsrk_context *context)
{
#pragma omp parallel for schedule(static) \
    num_threads(tsrk_cpu_team(context, args->rows * args->cols))
    for (int64_t r = 0; r < args->rows; r++) {
        layernorm_row(args, r);
    }
    return TSR_OK;
}

static void rmsnorm_row(const tsrk_rmsnorm *a, int64_t r)
{
    const float *x = (const float *)a->x + (r * a->cols);
    float zero = 0.0F;
    double squares = row_reduce(x, TSR_F32, 0, a->cols, &zero);
    a->rstd[r] = row_rstd(squares, a->cols, a->eps);
    chunk_rmsnorm((float *)a->y + (r * a->cols), x, a->gain, a->rstd[r], a->cols);
}

static void rmsnorm_row_bf16(const tsrk_rmsnorm *a, int64_t r)
{
    const uint16_t *x = (const uint16_t *)a->x + (r * a->cols);
    double squares = 0.0;
    for (int64_t k = 0; k < tsrk_cpu_chunk_count(a->cols); k++) {
        int64_t n = tsrk_cpu_chunk_size(a->cols, k);
        squares += (double)chunk_squares_bf16(x + (k * TSRK_CPU_CHUNK), n);
    }
    a->rstd[r] = row_rstd(squares, a->cols, a->eps);
    chunk_rmsnorm_bf16((uint16_t *)a->y + (r * a->cols), x, a->gain, a->rstd[r], a->cols);
}

static void rmsnorm_row_f16(const tsrk_rmsnorm *a, int64_t r)
{
    float xs[TSRK_CPU_CHUNK];
    float gains[TSRK_CPU_CHUNK];
    float zero = 0.0F;
    int64_t base = r * a->cols;
    a->rstd[r] = row_rstd(row_reduce(a->x, TSR_F16, base, a->cols, &zero), a->cols, a->eps);
    for (int64_t k = 0; k < tsrk_cpu_chunk_count(a->cols); k++) {
        int64_t c = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->cols, k);
        tsrk_cpu_load(xs, a->x, TSR_F16, base + c, n);
        tsrk_cpu_load(gains, a->gain, TSR_F16, c, n);
        chunk_rmsnorm(xs, xs, gains, a->rstd[r], n);
        tsrk_cpu_store(a->y, TSR_F16, base + c, xs, n);
    }
}

tsr_status tsrk_cpu_rmsnorm(const tsrk_rmsnorm *args, const tsrk_context *context)
{
#pragma omp parallel for schedule(static) \
    num_threads(tsrk_cpu_team(context, args->rows * args->cols))
    for (int64_t r = 0; r < args->rows; r++) {
        if (args->type == TSR_BF16) {
            rmsnorm_row_bf16(args, r);
        } else if (args->type == TSR_F16) {
            rmsnorm_row_f16(args, r);
        } else {
            rmsnorm_row(args, r);
        }
    }
    return TSR_OK;
}

/* ---- gradients ---- */

/* sums[2] = sums over the chunk of g = dy * gain and of g * xhat. */
static void chunk_dot(float *sums, const float *dy, const float *x, const float *gain,
                      row_stats stats, int64_t n)
{
    float sum_g = 0.0F;
    float sum_gx = 0.0F;
#pragma omp simd reduction(+ : sum_g, sum_gx)
    for (int64_t i = 0; i < n; i++) {
        float g = dy[i] * gain[i];
        sum_g += g;
        sum_gx += g * ((x[i] - stats.mean) * stats.rstd);
    }
    sums[0] = sum_g;
    sums[1] = sum_gx;
}

static void chunk_dx(float *dx, const float *dy, const float *x, const float *gain, row_stats stats,
                     int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float xhat = (x[i] - stats.mean) * stats.rstd;
        dx[i] = stats.rstd * ((dy[i] * gain[i]) - stats.mean_g - (xhat * stats.mean_gx));
    }
}

static void chunk_dgain(float *dgain, const float *dy, const float *x, row_stats stats, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dgain[i] += dy[i] * ((x[i] - stats.mean) * stats.rstd);
    }
}

static void chunk_dbias(float *dbias, const float *dy, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dbias[i] += dy[i];
    }
}

static void chunk_sum_blocks(float *restrict out, const float *restrict parts, int64_t blocks,
                             int64_t stride, int64_t n)
{
    double sums[TSRK_CPU_CHUNK] = {0};
    for (int64_t b = 0; b < blocks; b++) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            sums[i] += (double)parts[(b * stride) + i];
        }
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)sums[i];
    }
}

static void bwd_row(const tsrk_layernorm_bwd *a, int64_t r, float *dgain, float *dbias)
{
    float dys[TSRK_CPU_CHUNK];
    float xs[TSRK_CPU_CHUNK];
    float gains[TSRK_CPU_CHUNK];
    float dxs[TSRK_CPU_CHUNK];
    int64_t base = r * a->cols;
    row_stats stats = {.mean = a->mean ? a->mean[r] : 0.0F, .rstd = a->rstd[r]};
    double sum_g = 0.0;
    double sum_gx = 0.0;
    for (int64_t k = 0; k < tsrk_cpu_chunk_count(a->cols); k++) {
        int64_t c = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->cols, k);
        float sums[2];
        chunk_dot(sums, tsrk_cpu_view(a->dy, a->type, base + c, n, dys),
                  tsrk_cpu_view(a->x, a->type, base + c, n, xs),
                  tsrk_cpu_view(a->gain, a->type, c, n, gains), stats, n);
        sum_g += (double)sums[0];
        sum_gx += (double)sums[1];
    }
    stats.mean_g = a->mean ? (float)(sum_g / (double)a->cols) : 0.0F;
    stats.mean_gx = (float)(sum_gx / (double)a->cols);
    for (int64_t k = 0; k < tsrk_cpu_chunk_count(a->cols); k++) {
        int64_t c = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->cols, k);
        const float *dy = tsrk_cpu_view(a->dy, a->type, base + c, n, dys);
        const float *x = tsrk_cpu_view(a->x, a->type, base + c, n, xs);
        const float *gain = tsrk_cpu_view(a->gain, a->type, c, n, gains);
        if (dgain) {
            chunk_dgain(dgain + c, dy, x, stats, n);
        }
        if (dbias) {
            chunk_dbias(dbias + c, dy, n);
        }
        float *dx = tsrk_cpu_target(a->dx, a->type, base + c, a->accumulate_dx, dxs);
        chunk_dx(dx, dy, x, gain, stats, n);
        tsrk_cpu_finish(a->dx, a->type, base + c, a->accumulate_dx, dx, n);
    }
}

static int64_t block_rows(int64_t rows)
{
    int64_t even = (rows + NORM_BLOCKS - 1) / NORM_BLOCKS;
    return even > NORM_BLOCK_ROWS ? even : NORM_BLOCK_ROWS;
}

static int64_t block_count(int64_t rows)
{
    return (rows + block_rows(rows) - 1) / block_rows(rows);
}

static void bwd_block(const tsrk_layernorm_bwd *a, int64_t b)
{
    float *part = a->workspace;
    float *dgain = a->dgain ? part + (b * 2 * a->cols) : NULL;
    float *dbias = a->dbias ? part + (((b * 2) + 1) * a->cols) : NULL;
    if (dgain) {
        memset(dgain, 0, (size_t)a->cols * sizeof *dgain);
    }
    if (dbias) {
        memset(dbias, 0, (size_t)a->cols * sizeof *dbias);
    }
    int64_t first = b * block_rows(a->rows);
    int64_t end = first + block_rows(a->rows);
    end = end < a->rows ? end : a->rows;
    for (int64_t r = first; r < end; r++) {
        bwd_row(a, r, dgain, dbias);
    }
}

/* out [cols] (+)= the blocks' parts number which: 0 gain, 1 bias. */
static void bwd_sum(const tsrk_layernorm_bwd *a, int which, void *out, bool accumulate, int64_t k)
{
    float buffer[TSRK_CPU_CHUNK];
    int64_t c = k * TSRK_CPU_CHUNK;
    int64_t n = tsrk_cpu_chunk_size(a->cols, k);
    int64_t blocks = block_count(a->rows);
    const float *parts = blocks > 0 ? (const float *)a->workspace + (which * a->cols) + c : buffer;
    float *sum = tsrk_cpu_target(out, a->grad_type, c, accumulate, buffer);
    chunk_sum_blocks(sum, parts, blocks, 2 * a->cols, n);
    tsrk_cpu_finish(out, a->grad_type, c, accumulate, sum, n);
}

static void norm_bwd(const tsrk_context *context, const tsrk_layernorm_bwd *a)
{
    int64_t blocks = block_count(a->rows);
    int64_t chunks = tsrk_cpu_chunk_count(a->cols);
    if (a->cols == 0) {
        return;
    }
#pragma omp parallel num_threads(tsrk_cpu_team(context, a->rows * a->cols))
    {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++) {
            bwd_block(a, b);
        }
#pragma omp for schedule(static)
        for (int64_t k = 0; k < chunks; k++) {
            if (a->dgain) {
                bwd_sum(a, 0, a->dgain, a->accumulate_dgain, k);
            }
            if (a->dbias) {
                bwd_sum(a, 1, a->dbias, a->accumulate_dbias, k);
            }
        }
    }
}

tsr_status tsrk_cpu_layernorm_bwd(const tsrk_layernorm_bwd *args, const tsrk_context *context)
{
    norm_bwd(context, args);
    return TSR_OK;
}

tsr_status tsrk_cpu_rmsnorm_bwd(const tsrk_rmsnorm_bwd *args, const tsrk_context *context)
{
    tsrk_layernorm_bwd a = {
        .dy = args->dy,
        .x = args->x,
        .gain = args->gain,
        .rstd = args->rstd,
        .dx = args->dx,
        .dgain = args->dgain,
        .workspace = args->workspace,
        .rows = args->rows,
        .cols = args->cols,
        .type = args->type,
        .grad_type = args->grad_type,
        .accumulate_dx = args->accumulate_dx,
        .accumulate_dgain = args->accumulate_dgain,
    };
    norm_bwd(context, &a);
    return TSR_OK;
}

size_t tsrk_cpu_ws_layernorm_bwd(const tsrk_layernorm_bwd *args, int threads)
{
    (void)threads;
    return (size_t)(block_count(args->rows) * 2 * args->cols) * sizeof(float);
}

size_t tsrk_cpu_ws_rmsnorm_bwd(const tsrk_rmsnorm_bwd *args, int threads)
{
    (void)threads;
    return (size_t)(block_count(args->rows) * 2 * args->cols) * sizeof(float);
}
