/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file optim.c
 * Sum of squares, clip scale, AdamW and SGD over flat f32 arrays; state f32, arithmetic double.
 */
#include "ref_priv.h"

#include <math.h>

#include "kernels/kernels.h"

tsr_status tsrk_ref_sum_squares(const tsrk_sum_squares *args)
{
    double sum = args->accumulate ? *args->out : 0.0;
    for (int64_t i = 0; i < args->n; i++) {
        double x = fabs((double)args->x[i]);
        if (args->norm == TSRK_NORM_MAX) {
            sum = isnan(x) ? (double)INFINITY : fmax(sum, x);
        } else {
            sum += args->norm == TSRK_NORM_1 ? x : x * x;
        }
    }
    *args->out = sum;
    return TSR_OK;
}

tsr_status tsrk_ref_clip(const tsrk_clip *args)
{
    double loss_scale = args->loss_scale ? (double)*args->loss_scale : 1.0;
    double total = *args->total;
    double norm = (args->kind == TSRK_NORM_2 ? sqrt(total) : total) / loss_scale;
    double scale = 1.0;
    if (args->max_norm > 0.0) {
        scale = fmin(1.0, args->max_norm / (norm + 1e-6));
    }
    bool finite = isfinite(norm) != 0;
    bool empty = args->count && *args->count == 0.0;
    int32_t before = args->again ? *args->skip : 0;
    float factor = finite ? (float)(scale / loss_scale) : 0.0F;
    *args->norm = norm;
    *args->scale = args->again ? fminf(*args->scale, factor) : factor;
    *args->skip = (!finite || empty) ? 1 : before;
    if (args->skipped) {
        *args->skipped += *args->skip - before;
    }
    return TSR_OK;
}

tsr_status tsrk_ref_loss_scale(const tsrk_loss_scale *args)
{
    double scale = (double)args->now->scale;
    tsrk_scale_state next = *args->now;
    if (!isfinite(*args->norm)) {
        *args->overflow = 1;
    } else if (!args->again) {
        *args->overflow = 0;
    }
    if (*args->overflow) {
        next = (tsrk_scale_state){.scale = (float)fmax(args->min, scale * args->backoff)};
    } else if (*args->skip == 0 && ++next.good >= args->interval) {
        next = (tsrk_scale_state){.scale = (float)fmin(args->max, scale * args->growth)};
    }
    *args->next = next;
    return TSR_OK;
}

tsr_status tsrk_ref_count_update(const tsrk_count_update *args)
{
    if (!args->skip || *args->skip == 0) {
        ++*args->count;
    }
    return TSR_OK;
}

tsr_status tsrk_ref_adamw(const tsrk_adamw *args)
{
    const tsrk_adamw *a = args;
    if (a->skip && *a->skip) {
        return TSR_OK;
    }
    double scale = a->scale ? (double)*a->scale : 1.0;
    double t = (double)*a->step;
    double bias1 = 1.0 - pow(a->beta1, t);
    double bias2 = 1.0 - pow(a->beta2, t);
    double lr = a->rate ? a->lr * *a->rate : a->lr;
    for (int64_t i = 0; i < a->n; i++) {
        double g = (double)a->g[i] * scale;
        double p = (double)a->p[i] * (1.0 - lr * a->weight_decay);
        double m = a->beta1 * (double)a->m[i] + (1.0 - a->beta1) * g;
        double v = a->beta2 * (double)a->v[i] + (1.0 - a->beta2) * g * g;
        p -= lr * (m / bias1) / (sqrt(v / bias2) + a->eps);
        a->p[i] = (float)p;
        a->m[i] = (float)m;
        a->v[i] = (float)v;
    }
    return TSR_OK;
}

tsr_status tsrk_ref_sgd(const tsrk_sgd *args)
{
    const tsrk_sgd *a = args;
    if (a->skip && *a->skip) {
        return TSR_OK;
    }
    double lr = a->rate ? a->lr * *a->rate : a->lr;
    double scale = a->scale ? (double)*a->scale : 1.0;
    for (int64_t i = 0; i < a->n; i++) {
        double p = (double)a->p[i];
        double g = (double)a->g[i] * scale + a->weight_decay * p;
        double step = g;
        if (a->buffer) {
            double buffer = *a->step == 1 ? g : a->momentum * (double)a->buffer[i] + g;
            a->buffer[i] = (float)buffer;
            step = a->nesterov ? g + a->momentum * buffer : buffer;
        }
        a->p[i] = (float)(p - lr * step);
    }
    return TSR_OK;
}
