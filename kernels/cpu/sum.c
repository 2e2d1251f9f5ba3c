/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file sum.c
 * Sums over a dim, and products with what is repeated along one.
 *
 * Sums: terms that lie side by side (inner 1) are added a chunk at a time, others a block of
 * columns at a time, in f32 within 32 rows or a chunk and in double across. Products go through L1
 * once, a row of b at a time.
 */
#include "kernels/cpu/cpu_priv.h"

#define CHUNK TSRK_CPU_CHUNK

/* Columns that one thread sums at a time, and rows that it adds in f32 before it goes to double. */
#define SUM_COLS 128
#define SUM_ROWS 32

static int64_t at_most(int64_t size, int64_t limit)
{
    return size < limit ? size : limit;
}

/* ---- sums ---- */

static void add_rows(float *restrict sum, const tsrk_sum *args, int64_t begin, int64_t rows,
                     int64_t cols)
{
    float xs[SUM_COLS];
    float ws[SUM_COLS];
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = begin + (r * args->inner);
        const float *x = tsrk_cpu_view(args->x, args->x_type, at, cols, xs);
        if (args->w != NULL) {
            const float *w = tsrk_cpu_view(args->w, args->w_type, at, cols, ws);
#pragma omp simd
            for (int64_t j = 0; j < cols; j++) {
                sum[j] += x[j] * w[j];
            }
        } else {
#pragma omp simd
            for (int64_t j = 0; j < cols; j++) {
                sum[j] += x[j];
            }
        }
    }
}

static void put(const tsrk_sum *args, int64_t at, const double *total, int64_t n)
{
    float out[SUM_COLS];
    for (int64_t j = 0; j < n; j++) {
        out[j] = (float)((double)args->factor * total[j]);
    }
    if (args->accumulate) {
        tsrk_cpu_store_add(args->out, args->out_type, at, out, n);
    } else {
        tsrk_cpu_store(args->out, args->out_type, at, out, n);
    }
}

/* Columns col .. col + cols of outer o. */
static void sum_columns(const tsrk_sum *args, int64_t o, int64_t col, int64_t cols)
{
    double total[SUM_COLS] = {0.0};
    for (int64_t m = 0; m < args->mid; m += SUM_ROWS) {
        float part[SUM_COLS] = {0.0F};
        add_rows(part, args, (((o * args->mid) + m) * args->inner) + col,
                 at_most(args->mid - m, SUM_ROWS), cols);
        for (int64_t j = 0; j < cols; j++) {
            total[j] += (double)part[j];
        }
    }
    put(args, (o * args->inner) + col, total, cols);
}

static float sum_chunk(const tsrk_sum *args, int64_t at, int64_t n)
{
    float xs[CHUNK];
    float ws[CHUNK];
    float sum = 0.0F;
    const float *x = tsrk_cpu_view(args->x, args->x_type, at, n, xs);
    if (args->w != NULL) {
        const float *w = tsrk_cpu_view(args->w, args->w_type, at, n, ws);
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++) {
            sum += x[j] * w[j];
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < n; j++) {
            sum += x[j];
        }
    }
    return sum;
}

static void sum_row(const tsrk_sum *args, int64_t o)
{
    double total = 0.0;
    for (int64_t m = 0; m < args->mid; m += CHUNK) {
        total += (double)sum_chunk(args, (o * args->mid) + m, at_most(args->mid - m, CHUNK));
    }
    put(args, o, &total, 1);
}

tsr_status tsrk_cpu_sum(const tsrk_sum *args, const tsrk_context *context)
{
    int64_t blocks = (args->inner + SUM_COLS - 1) / SUM_COLS;
#pragma omp parallel for num_threads( \
    tsrk_cpu_team(context, args->outer * args->mid * args->inner)) schedule(static)
    for (int64_t task = 0; task < args->outer * blocks; task++) {
        int64_t col = task % blocks * SUM_COLS;
        if (args->inner == 1) {
            sum_row(args, task);
        } else {
            sum_columns(args, task / blocks, col, at_most(args->inner - col, SUM_COLS));
        }
    }
    return TSR_OK;
}

/* ---- products ---- */

/* y = a * b * factor; a NULL: 1. */
static void times(float *y, const float *a, const float *b, float factor, int64_t n)
{
    if (a == NULL) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            y[i] = b[i] * factor;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            y[i] = a[i] * (b[i] * factor);
        }
    }
}

/* y = a * factor; a NULL: 1. */
static void times_one(float *y, const float *a, float factor, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = a == NULL ? factor : a[i] * factor;
    }
}

/* n elements of y at at, with those of b at b_at, or with b's one element there. */
static void multiply_chunk(const tsrk_multiply *args, int64_t at, int64_t b_at, bool one, int64_t n)
{
    float as[CHUNK];
    float bs[CHUNK];
    const float *a = args->a != NULL ? tsrk_cpu_view(args->a, args->a_type, at, n, as) : NULL;
    const float *b = tsrk_cpu_view(args->b, args->b_type, b_at, one ? 1 : n, bs);
    float *y = tsrk_cpu_target(args->y, args->y_type, at, args->accumulate, as);
    if (one) {
        times_one(y, a, *b * args->factor, n);
    } else {
        times(y, a, b, args->factor, n);
    }
    tsrk_cpu_finish(args->y, args->y_type, at, args->accumulate, y, n);
}

tsr_status tsrk_cpu_multiply(const tsrk_multiply *args, const tsrk_context *context)
{
    bool one = args->inner == 1 && args->mid > 1;
    bool flat = args->mid == 1;
    /* Rows in which b lies as y does, or is one element. */
    int64_t rows = flat ? 1 : one ? args->outer : args->outer * args->mid;
    int64_t elements = args->outer * args->mid * args->inner;
    int64_t row = rows > 0 ? elements / rows : 0;
    int64_t chunks = tsrk_cpu_chunk_count(row);
#pragma omp parallel for num_threads(tsrk_cpu_team(context, elements)) schedule(static)
    for (int64_t task = 0; task < rows * chunks; task++) {
        int64_t r = task / chunks;
        int64_t i = task % chunks * CHUNK;
        int64_t b_at = one ? r : flat ? i : (r / args->mid * row) + i;
        multiply_chunk(args, (r * row) + i, b_at, one, at_most(row - i, CHUNK));
    }
    return TSR_OK;
}
