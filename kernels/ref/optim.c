/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file optim.c
 * Sum of squares, clip scale, AdamW and SGD over flat f32 arrays; state f32, arithmetic double.
 */
#include "ref_priv.h"

#include <math.h>

#include "kernels/kernels.h"

void tsrk_ref_sum_squares(const tsrk_sum_squares *args)
{
    double sum = args->accumulate ? *args->out : 0.0;
    for (int64_t i = 0; i < args->n; i++) {
        double x = (double)args->x[i];
        sum += x * x;
    }
    *args->out = sum;
}

void tsrk_ref_clip(const tsrk_clip *args)
{
    double norm = sqrt(*args->total);
    double scale = 1.0;
    if (args->max_norm > 0.0) {
        scale = fmin(1.0, args->max_norm / (norm + 1e-6));
    }
    bool finite = isfinite(norm) != 0;
    bool empty = args->count && *args->count == 0.0;
    *args->norm = norm;
    *args->scale = finite ? (float)scale : 0.0F;
    *args->skip = (!finite || empty) ? 1 : 0;
}

void tsrk_ref_adamw(const tsrk_adamw *args)
{
    const tsrk_adamw *a = args;
    if (a->skip && *a->skip) {
        return;
    }
    double scale = a->scale ? (double)*a->scale : 1.0;
    double bias1 = 1.0 - pow(a->beta1, (double)a->step);
    double bias2 = 1.0 - pow(a->beta2, (double)a->step);
    for (int64_t i = 0; i < a->n; i++) {
        double g = (double)a->g[i] * scale;
        double p = (double)a->p[i] * (1.0 - a->lr * a->weight_decay);
        double m = a->beta1 * (double)a->m[i] + (1.0 - a->beta1) * g;
        double v = a->beta2 * (double)a->v[i] + (1.0 - a->beta2) * g * g;
        p -= a->lr * (m / bias1) / (sqrt(v / bias2) + a->eps);
        a->p[i] = (float)p;
        a->m[i] = (float)m;
        a->v[i] = (float)v;
    }
}

void tsrk_ref_sgd(const tsrk_sgd *args)
{
    const tsrk_sgd *a = args;
    if (a->skip && *a->skip) {
        return;
    }
    double scale = a->scale ? (double)*a->scale : 1.0;
    for (int64_t i = 0; i < a->n; i++) {
        double p = (double)a->p[i];
        double g = (double)a->g[i] * scale + a->weight_decay * p;
        double step = g;
        if (a->buffer) {
            double buffer = a->first ? g : a->momentum * (double)a->buffer[i] + g;
            a->buffer[i] = (float)buffer;
            step = a->nesterov ? g + a->momentum * buffer : buffer;
        }
        a->p[i] = (float)(p - a->lr * step);
    }
}
