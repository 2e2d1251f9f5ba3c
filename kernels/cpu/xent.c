/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file xent.c
 * Vocabulary-parallel cross entropy, and softmax, made of the same rows of exponentials.
 *
 * The formulas are in kernels/ref/xent.c. One pass over the logits per kernel, threads share out
 * rows; f32, bf16 or f16 logits [rows, cols], f32 statistics [rows] of which lse is saved for
 * backward. A row goes in chunks: f32 SIMD sums within a chunk, double across chunks. Sums over
 * rows are a plain loop in double on one thread: there are few rows, and their order is then fixed.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>

#define CHUNK TSRK_CPU_CHUNK

static int64_t chunk_left(int64_t cols, int64_t col)
{
    return cols - col < CHUNK ? cols - col : CHUNK;
}

tsr_status tsrk_cpu_check_ids(const tsrk_check_ids *args, const tsrk_context *context)
{
    (void)context;
    for (int64_t i = 0; *args->found == 0.0 && i < args->n; i++) {
        const int32_t id = args->ids[i];

        if ((id < 0 || id >= args->limit) && !(args->ignores && id == args->ignore_index)) {
            args->where[0] = i;
            args->where[1] = id;
            args->where[2] = args->limit;
            args->where[3] = args->call;
            *args->found = 1.0;
        }
    }
    return TSR_OK;
}

tsr_status tsrk_cpu_count_labels(const tsrk_count_labels *args, const tsrk_context *context)
{
    (void)context;
    int64_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int64_t i = 0; i < args->n; i++) {
        count += tsrk_label_counts(args->labels[i], args->ignore_index, args->limit) ? 1 : 0;
    }
    *args->out = (double)count + (args->accumulate ? *args->out : 0.0);
    return TSR_OK;
}

static float max_of(const float *x, int64_t n, float max)
{
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

/* Sum of exp(x - shift). */
static float sum_exp(const float *x, int64_t n, float shift)
{
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += tsrk_cpu_exp(x[i] - shift);
    }
    return sum;
}

/* out = factor * exp(x - shift); out may be x. */
static void scaled_exp(float *out, const float *x, int64_t n, float shift, float factor)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = factor * tsrk_cpu_exp(x[i] - shift);
    }
}

tsr_status tsrk_cpu_xent_max(const tsrk_xent_max *args, const tsrk_context *context)
{
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->rows * args->cols)) \
    schedule(static)
    for (int64_t r = 0; r < args->rows; r++) {
        float buffer[CHUNK];
        float max = -INFINITY;
        for (int64_t j = 0; j < args->cols; j += CHUNK) {
            int64_t n = chunk_left(args->cols, j);
            max = max_of(tsrk_cpu_view(args->logits, args->type, (r * args->cols) + j, n, buffer),
                         n, max);
        }
        args->row_max[r] = max;
    }
    return TSR_OK;
}

tsr_status tsrk_cpu_xent_sum(const tsrk_xent_sum *args, const tsrk_context *context)
{
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->rows * args->cols)) \
    schedule(static)
    for (int64_t r = 0; r < args->rows; r++) {
        float buffer[CHUNK];
        double sum = 0.0;
        float max = args->row_max[r];
        for (int64_t j = 0; j < args->cols; j += CHUNK) {
            int64_t n = chunk_left(args->cols, j);
            sum += (double)sum_exp(
                tsrk_cpu_view(args->logits, args->type, (r * args->cols) + j, n, buffer), n, max);
        }
        int64_t label = (int64_t)args->labels[r] - args->begin;
        float target = 0.0F;
        if (label >= 0 && label < args->cols) {
            tsrk_cpu_load(&target, args->logits, args->type, (r * args->cols) + label, 1);
            target -= max;
        }
        args->row_sum[r] = (float)sum;
        args->row_target[r] = target;
    }
    return TSR_OK;
}

tsr_status tsrk_cpu_xent_loss(const tsrk_xent_loss *args, const tsrk_context *context)
{
    (void)context;
    double sum = 0.0;
    for (int64_t r = 0; r < args->rows; r++) {
        double log_sum = log((double)args->row_sum[r]);
        args->lse[r] = (float)((double)args->row_max[r] + log_sum);
        sum += tsrk_label_counts(args->labels[r], args->ignore_index, args->limit)
                   ? log_sum - (double)args->row_target[r]
                   : 0.0;
    }
    *args->loss = *args->count > 0.0 ? (float)(sum / *args->count) : 0.0F;
    return TSR_OK;
}

/* Gradient of one row that counts. */
static void gradient_row(const tsrk_xent_bwd *args, int64_t r, float factor)
{
    int64_t label = (int64_t)args->labels[r] - args->begin;
    for (int64_t j = 0; j < args->cols; j += CHUNK) {
        float buffer[CHUNK];
        float out[CHUNK];
        int64_t n = chunk_left(args->cols, j);
        int64_t i = (r * args->cols) + j;
        const float *x = tsrk_cpu_view(args->logits, args->type, i, n, buffer);
        float at_label = label >= j && label < j + n ? x[label - j] : 0.0F;
        float *direct = tsrk_cpu_is_half(args->type)
                            ? out
                            : (float *)tsrk_cpu_at_mut(args->dlogits, TSR_F32, i);
        scaled_exp(direct, x, n, args->lse[r], factor);
        if (label >= j && label < j + n) {
            /* expm1 in double: where p is nearly 1 the f32 difference would cancel to nothing. */
            direct[label - j] =
                (float)((double)factor * expm1((double)at_label - (double)args->lse[r]));
        }
        if (tsrk_cpu_is_half(args->type)) {
            tsrk_cpu_store(args->dlogits, args->type, i, out, n);
        }
    }
}

tsr_status tsrk_cpu_xent_bwd(const tsrk_xent_bwd *args, const tsrk_context *context)
{
    double count = *args->count;
    float factor = count > 0.0 ? (float)((double)*args->dloss / count) : 0.0F;
    size_t row_bytes = (size_t)args->cols * tsrk_cpu_size(args->type);
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->rows * args->cols)) \
    schedule(static)
    for (int64_t r = 0; r < args->rows; r++) {
        if (!tsrk_label_counts(args->labels[r], args->ignore_index, args->limit) || count <= 0.0) {
            memset(tsrk_cpu_at_mut(args->dlogits, args->type, r * args->cols), 0, row_bytes);
        } else {
            gradient_row(args, r, factor);
        }
    }
    return TSR_OK;
}

/* ---- softmax ---- */

static float row_max(const tsrk_softmax *args, int64_t r)
{
    float buffer[CHUNK];
    float max = -INFINITY;
    for (int64_t j = 0; j < args->cols; j += CHUNK) {
        int64_t n = chunk_left(args->cols, j);
        max = max_of(tsrk_cpu_view(args->x, args->type, (r * args->cols) + j, n, buffer), n, max);
    }
    return max;
}

static void softmax_row(const tsrk_softmax *args, int64_t r)
{
    float buffer[CHUNK];
    float max = row_max(args, r);
    double sum = 0.0;
    for (int64_t j = 0; j < args->cols; j += CHUNK) {
        int64_t n = chunk_left(args->cols, j);
        sum += (double)sum_exp(tsrk_cpu_view(args->x, args->type, (r * args->cols) + j, n, buffer),
                               n, max);
    }
    for (int64_t j = 0; j < args->cols; j += CHUNK) {
        int64_t n = chunk_left(args->cols, j);
        int64_t at = (r * args->cols) + j;
        const float *x = tsrk_cpu_view(args->x, args->type, at, n, buffer);
        float *y = tsrk_cpu_target(args->y, args->type, at, false, buffer);
        scaled_exp(y, x, n, max, (float)(1.0 / sum));
        tsrk_cpu_finish(args->y, args->type, at, false, y, n);
    }
}

tsr_status tsrk_cpu_softmax(const tsrk_softmax *args, const tsrk_context *context)
{
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->rows * args->cols)) \
    schedule(static)
    for (int64_t r = 0; r < args->rows; r++) {
        softmax_row(args, r);
    }
    return TSR_OK;
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* dx = y * (dy - mean); dx may be dy. */
static void centre(float *dx, const float *dy, const float *y, float mean, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dx[i] = y[i] * (dy[i] - mean);
    }
}

static void softmax_bwd_row(const tsrk_softmax_bwd *args, int64_t r)
{
    float dys[CHUNK];
    float ys[CHUNK];
    double mean = 0.0;
    for (int64_t j = 0; j < args->cols; j += CHUNK) {
        int64_t n = chunk_left(args->cols, j);
        int64_t at = (r * args->cols) + j;
        mean += (double)dot(tsrk_cpu_view(args->dy, args->type, at, n, dys),
                            tsrk_cpu_view(args->y, args->type, at, n, ys), n);
    }
    for (int64_t j = 0; j < args->cols; j += CHUNK) {
        int64_t n = chunk_left(args->cols, j);
        int64_t at = (r * args->cols) + j;
        const float *dy = tsrk_cpu_view(args->dy, args->type, at, n, dys);
        const float *y = tsrk_cpu_view(args->y, args->type, at, n, ys);
        float *dx = tsrk_cpu_target(args->dx, args->type, at, args->accumulate, dys);
        centre(dx, dy, y, (float)mean, n);
        tsrk_cpu_finish(args->dx, args->type, at, args->accumulate, dx, n);
    }
}

tsr_status tsrk_cpu_softmax_bwd(const tsrk_softmax_bwd *args, const tsrk_context *context)
{
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->rows * args->cols)) \
    schedule(static)
    for (int64_t r = 0; r < args->rows; r++) {
        softmax_bwd_row(args, r);
    }
    return TSR_OK;
}
