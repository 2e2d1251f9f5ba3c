/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file optim.c
 * Sum of squares, clip scale, AdamW and SGD over flat f32 arrays, each in one pass over memory.
 *
 * AdamW moves 28 bytes an element and SGD 12 or 20; arithmetic is f32. Constants that multiply are
 * formed in double and rounded once; decays are written as x += w * (y - x), where an error in w
 * is relative to the change and not to x, so that a beta near 1 loses nothing. The parameter is
 * rounded once a step: decay and update are subtracted together.
 * Sum of squares: the array is cut into at most SUM_PARTS parts by its length alone and their
 * sums, in double, are added in order.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <string.h>

#define SUM_PARTS 256

typedef struct adamw_rule {
    float scale, decay, w1, w2; /* w1 = 1 - beta1, w2 = 1 - beta2, decay = lr * weight decay */
    float rate;                 /* lr / (1 - beta1^t) */
    float root;                 /* 1 / sqrt(1 - beta2^t) */
    float eps;
} adamw_rule;

typedef struct sgd_rule {
    float scale, decay, momentum, lr;
    bool nesterov;
} sgd_rule;

static double part_squares(const float *x, int64_t n)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sum;
}

static double part_absolute(const float *x, int64_t n)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        sum += fabs((double)x[i]);
    }
    return sum;
}

/* As integers absolute values keep their order, and NaN comes above infinity. */
static double part_greatest(const float *x, int64_t n)
{
    uint32_t most = 0;
    float value = 0.0F;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = 0;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffU;
        most = bits > most ? bits : most;
    }
    most = most > 0x7f800000U ? 0x7f800000U : most;
    memcpy(&value, &most, sizeof value);
    return (double)value;
}

static double part_of(tsrk_norm norm, const float *x, int64_t n)
{
    if (norm == TSRK_NORM_2) {
        return part_squares(x, n);
    }
    return norm == TSRK_NORM_1 ? part_absolute(x, n) : part_greatest(x, n);
}

tsr_status tsrk_cpu_sum_squares(const tsrk_sum_squares *args, const tsrk_context *context)
{
    const tsrk_sum_squares *a = args;
    double parts[SUM_PARTS];
    int64_t even = (a->n + SUM_PARTS - 1) / SUM_PARTS;
    int64_t size = even > TSRK_CPU_CHUNK ? even : TSRK_CPU_CHUNK;
    int64_t count = (a->n + size - 1) / size;
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < count; k++) {
        int64_t left = a->n - (k * size);
        parts[k] = part_of(a->norm, a->x + (k * size), left < size ? left : size);
    }
    double sum = a->accumulate ? *a->out : 0.0;
    for (int64_t k = 0; k < count; k++) {
        if (a->norm != TSRK_NORM_MAX) {
            sum += parts[k];
        } else if (parts[k] > sum) {
            sum = parts[k];
        }
    }
    *a->out = sum;
    return TSR_OK;
}

tsr_status tsrk_cpu_clip(const tsrk_clip *args, const tsrk_context *context)
{
    (void)context;
    return tsrk_ref_clip(args);
}

tsr_status tsrk_cpu_loss_scale(const tsrk_loss_scale *args, const tsrk_context *context)
{
    (void)context;
    return tsrk_ref_loss_scale(args);
}

tsr_status tsrk_cpu_count_update(const tsrk_count_update *args, const tsrk_context *context)
{
    (void)context;
    return tsrk_ref_count_update(args);
}

static void chunk_adamw(const tsrk_adamw *a, const adamw_rule *rule, int64_t begin, int64_t n)
{
    float *restrict p = a->p + begin;
    float *restrict m = a->m + begin;
    float *restrict v = a->v + begin;
    const float *restrict grad = a->g + begin;
    const adamw_rule k = *rule;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * k.scale;
        float m1 = m[i] + (k.w1 * (g - m[i]));
        float v1 = v[i] + (k.w2 * ((g * g) - v[i]));
        float step = k.rate * m1 / ((sqrtf(v1) * k.root) + k.eps);
        m[i] = m1;
        v[i] = v1;
        p[i] = p[i] - ((p[i] * k.decay) + step);
    }
}

tsr_status tsrk_cpu_adamw(const tsrk_adamw *args, const tsrk_context *context)
{
    const tsrk_adamw *a = args;
    if (a->skip && *a->skip) {
        return TSR_OK;
    }
    double t = (double)*a->step;
    double lr = a->rate ? a->lr * *a->rate : a->lr;
    const adamw_rule rule = {
        .scale = a->scale ? *a->scale : 1.0F,
        .decay = (float)(lr * a->weight_decay),
        .w1 = (float)(1.0 - a->beta1),
        .w2 = (float)(1.0 - a->beta2),
        .rate = (float)(lr / (1.0 - pow(a->beta1, t))),
        .root = (float)(1.0 / sqrt(1.0 - pow(a->beta2, t))),
        .eps = (float)a->eps,
    };
    int64_t chunks = tsrk_cpu_chunk_count(a->n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < chunks; k++) {
        chunk_adamw(a, &rule, k * TSRK_CPU_CHUNK, tsrk_cpu_chunk_size(a->n, k));
    }
    return TSR_OK;
}

static void chunk_sgd(float *restrict p, const float *restrict grad, const sgd_rule *rule,
                      int64_t n)
{
    const sgd_rule k = *rule;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        p[i] -= k.lr * ((grad[i] * k.scale) + (k.decay * p[i]));
    }
}

static void chunk_momentum(float *restrict p, float *restrict buffer, const float *restrict grad,
                           const sgd_rule *rule, int64_t n)
{
    const sgd_rule k = *rule;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = (grad[i] * k.scale) + (k.decay * p[i]);
        float b = (k.momentum * buffer[i]) + g;
        buffer[i] = b;
        p[i] -= k.lr * (k.nesterov ? g + (k.momentum * b) : b);
    }
}

tsr_status tsrk_cpu_sgd(const tsrk_sgd *args, const tsrk_context *context)
{
    const tsrk_sgd *a = args;
    if (a->skip && *a->skip) {
        return TSR_OK;
    }
    const sgd_rule rule = {
        .scale = a->scale ? *a->scale : 1.0F,
        .decay = (float)a->weight_decay,
        .momentum = (float)a->momentum,
        .lr = (float)(a->rate ? a->lr * *a->rate : a->lr),
        .nesterov = a->nesterov,
    };
    int64_t chunks = tsrk_cpu_chunk_count(a->n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < chunks; k++) {
        int64_t i = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->n, k);
        if (!a->buffer) {
            chunk_sgd(a->p + i, a->g + i, &rule, n);
            continue;
        }
        if (*a->step == 1) {
            memset(a->buffer + i, 0, (size_t)n * sizeof *a->buffer);
        }
        chunk_momentum(a->p + i, a->buffer + i, a->g + i, &rule, n);
    }
    return TSR_OK;
}
