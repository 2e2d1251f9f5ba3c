/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file rope.c
 * Rotary embedding by position: one set of cosines and sines for all heads of a token.
 *
 * Work is cut by position t. A position's factors are brought apart into two short arrays (from the
 * table, or computed in double and rounded as the table is), the sign of the turn goes into
 * the sines, and all batches and heads at t use them. Heads wider than 2 * HALF_MAX take several
 * passes.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>

#define HALF_MAX 256

typedef struct turn {
    float cosine[HALF_MAX];
    float sine[HALF_MAX];
} turn;

static void turn_split(turn *out, const float *table, float sign, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out->cosine[i] = table[2 * i];
        out->sine[i] = sign * table[(2 * i) + 1];
    }
}

static void turn_head_f32(float *y, const float *x, int64_t half, const turn *f, bool accumulate,
                          int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float low = (x[i] * f->cosine[i]) - (x[half + i] * f->sine[i]);
        float high = (x[half + i] * f->cosine[i]) + (x[i] * f->sine[i]);
        y[i] = accumulate ? y[i] + low : low;
        y[half + i] = accumulate ? y[half + i] + high : high;
    }
}

static void turn_head_bf16(uint16_t *y, const uint16_t *x, int64_t half, const turn *f,
                           bool accumulate, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x0 = tsrk_cpu_from_bf16(x[i]);
        float x1 = tsrk_cpu_from_bf16(x[half + i]);
        float low = (x0 * f->cosine[i]) - (x1 * f->sine[i]);
        float high = (x1 * f->cosine[i]) + (x0 * f->sine[i]);
        low = accumulate ? tsrk_cpu_from_bf16(y[i]) + low : low;
        high = accumulate ? tsrk_cpu_from_bf16(y[half + i]) + high : high;
        y[i] = tsrk_cpu_to_bf16(low);
        y[half + i] = tsrk_cpu_to_bf16(high);
    }
}

static void turn_head_f16(uint16_t *y, const uint16_t *x, int64_t half, const turn *f,
                          bool accumulate, int64_t n)
{
    float in[2 * HALF_MAX];
    float out[2 * HALF_MAX];

    tsrk_cpu_load(in, x, TSR_F16, 0, n);
    tsrk_cpu_load(in + n, x, TSR_F16, half, n);
    turn_head_f32(out, in, n, f, false, n);
    if (accumulate) {
        tsrk_cpu_store_add(y, TSR_F16, 0, out, n);
        tsrk_cpu_store_add(y, TSR_F16, half, out + n, n);
    } else {
        tsrk_cpu_store(y, TSR_F16, 0, out, n);
        tsrk_cpu_store(y, TSR_F16, half, out + n, n);
    }
}

/* freq [n] = theta^(-2i/dim) for i = begin .. begin + n. */
static void frequencies(double *freq, double theta, int64_t dim, int64_t begin, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        freq[i] = pow(theta, -2.0 * (double)(begin + i) / (double)dim);
    }
}

static void rope_position(const tsrk_rope *a, const double *freq, int64_t t, int64_t begin,
                          int64_t n)
{
    turn f;
    int64_t half = a->dim / 2;
    float sign = a->inverse ? -1.0F : 1.0F;
    if (a->table) {
        turn_split(&f, a->table + (2 * ((t * half) + begin)), sign, n);
    } else {
        for (int64_t i = 0; i < n; i++) {
            double angle = (double)(a->first + t) * freq[i];
            f.cosine[i] = (float)cos(angle);
            f.sine[i] = sign * (float)sin(angle);
        }
    }
    for (int64_t b = 0; b < a->batch; b++) {
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t at = (((((b * a->seq) + t) * a->heads) + h) * a->dim) + begin;
            if (a->type == TSR_BF16) {
                turn_head_bf16((uint16_t *)a->y + at, (const uint16_t *)a->x + at, half, &f,
                               a->accumulate, n);
            } else if (a->type == TSR_F16) {
                turn_head_f16((uint16_t *)a->y + at, (const uint16_t *)a->x + at, half, &f,
                              a->accumulate, n);
            } else {
                turn_head_f32((float *)a->y + at, (const float *)a->x + at, half, &f, a->accumulate,
                              n);
            }
        }
    }
}

tsr_status tsrk_cpu_rope(const tsrk_rope *args, const tsrk_context *context)
{
    const tsrk_rope *a = args;
    double freq[HALF_MAX];
    for (int64_t begin = 0; begin < a->dim / 2; begin += HALF_MAX) {
        int64_t left = (a->dim / 2) - begin;
        int64_t n = left < HALF_MAX ? left : HALF_MAX;
        if (!a->table) {
            frequencies(freq, a->theta, a->dim, begin, n);
        }
#pragma omp parallel for schedule(static) \
    num_threads(tsrk_cpu_team(context, a->batch * a->seq * a->heads * a->dim))
        for (int64_t t = 0; t < a->seq; t++) {
            rope_position(a, freq, t, begin, n);
        }
    }
    return TSR_OK;
}

tsr_status tsrk_cpu_rope_table(const tsrk_rope_table *args, const tsrk_context *context)
{
    const tsrk_rope_table *a = args;
    double freq[HALF_MAX];
    int64_t half = a->dim / 2;
    for (int64_t begin = 0; begin < half; begin += HALF_MAX) {
        int64_t n = half - begin < HALF_MAX ? half - begin : HALF_MAX;
        frequencies(freq, a->theta, a->dim, begin, n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->seq * a->dim))
        for (int64_t t = 0; t < a->seq; t++) {
            float *table = a->table + (2 * ((t * half) + begin));
            for (int64_t i = 0; i < n; i++) {
                double angle = (double)(a->first + t) * freq[i];
                table[2 * i] = (float)cos(angle);
                table[(2 * i) + 1] = (float)sin(angle);
            }
        }
    }
    return TSR_OK;
}
