/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file activation.c
 * Functions of one number and silu(gate) * up by chunks of f32, and their gradients.
 *
 * 0.5 (1 + tanh(u)) is the logistic function s of 2u, which needs one exp and one division and
 * loses nothing where tanh is near -1. With e = exp(-2u): s = 1 / (1 + e) and 1 - s = e s.
 * Forward an infinite e gives the right 0. Gradients multiply by e, so there arguments are clamped
 * where s has long been 0 or 1, and no inf meets a 0. tanh is (1 - e) / (1 + e) with e =
 * exp(-2|x|), which cancels near 0: there it is its series, whose next term is 1e-8 of it.
 */
#include "kernels/cpu/cpu_priv.h"

#define GELU_SCALE 1.5957691216057308F /* 2 sqrt(2 / pi) */
#define GELU_CUBIC 0.044715F
#define GELU_CLAMP 12.0F /* 2u is 142 there */
#define EXP_CLAMP  80.0F
#define TANH_SMALL 0.25F

static inline float at_most(float x, float limit)
{
    return x > limit ? limit : x;
}

static void chunk_gelu(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float u2 = GELU_SCALE * (x[i] + (GELU_CUBIC * x[i] * x[i] * x[i]));
        y[i] = x[i] / (1.0F + tsrk_cpu_exp(-u2));
    }
}

static void chunk_gelu_bwd(float *dx, const float *dy, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float z = at_most(x[i], GELU_CLAMP);
        z = z < -GELU_CLAMP ? -GELU_CLAMP : z;
        float square = GELU_CUBIC * z * z;
        float e = tsrk_cpu_exp(at_most(-GELU_SCALE * (z + (square * z)), EXP_CLAMP));
        float s = 1.0F / (1.0F + e);
        float du2 = GELU_SCALE * (1.0F + (3.0F * square));
        dx[i] = dy[i] * (s + (z * du2 * (e * s) * s));
    }
}

static void chunk_relu(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] <= 0.0F ? 0.0F : x[i];
    }
}

static void chunk_relu_bwd(float *dx, const float *dy, const float *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dx[i] = y[i] <= 0.0F ? 0.0F : dy[i];
    }
}

static void chunk_tanh(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float size = x[i] < 0.0F ? -x[i] : x[i];
        float e = tsrk_cpu_exp(-2.0F * size);
        float large = (1.0F - e) / (1.0F + e);
        float z = x[i] * x[i];
        float series = 62.0F / 2835.0F;
        series = (series * z) - (17.0F / 315.0F);
        series = (series * z) + (2.0F / 15.0F);
        series = (series * z) - (1.0F / 3.0F);
        float small = x[i] + (x[i] * z * series);
        y[i] = size < TANH_SMALL ? small : (x[i] < 0.0F ? -large : large);
    }
}

static void chunk_tanh_bwd(float *dx, const float *dy, const float *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dx[i] = dy[i] * (1.0F - (y[i] * y[i]));
    }
}

static void chunk_sigmoid(float *y, const float *x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = 1.0F / (1.0F + tsrk_cpu_exp(-x[i]));
    }
}

static void chunk_sigmoid_bwd(float *dx, const float *dy, const float *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dx[i] = dy[i] * y[i] * (1.0F - y[i]);
    }
}

/* Each function and dy times its slope, for a chunk. */
static const struct {
    void (*value)(float *y, const float *x, int64_t n);
    void (*slope)(float *dx, const float *dy, const float *from, int64_t n);
} functions[TSRK_FUNCTION_COUNT] = {[TSRK_GELU] = {chunk_gelu, chunk_gelu_bwd},
                                    [TSRK_RELU] = {chunk_relu, chunk_relu_bwd},
                                    [TSRK_TANH] = {chunk_tanh, chunk_tanh_bwd},
                                    [TSRK_SIGMOID] = {chunk_sigmoid, chunk_sigmoid_bwd}};

static void chunk_silu_mul(float *y, const float *gate, const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = gate[i] / (1.0F + tsrk_cpu_exp(-gate[i])) * up[i];
    }
}

static void chunk_silu_mul_bwd(float *dgate, float *dup, const float *dy, const float *gate,
                               const float *up, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float e = tsrk_cpu_exp(at_most(-gate[i], EXP_CLAMP));
        float s = 1.0F / (1.0F + e);
        float dys = dy[i] * s;
        dgate[i] = dys * up[i] * (1.0F + (gate[i] * (e * s)));
        dup[i] = dys * gate[i];
    }
}

tsr_status tsrk_cpu_pointwise(const tsrk_pointwise *args, const tsrk_context *context)
{
    const tsrk_pointwise *a = args;
    int64_t chunks = tsrk_cpu_chunk_count(a->n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < chunks; k++) {
        float buffer[TSRK_CPU_CHUNK];
        int64_t i = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->n, k);
        const float *x = tsrk_cpu_view(a->x, a->type, i, n, buffer);
        float *y = tsrk_cpu_target(a->y, a->type, i, false, buffer);
        functions[a->function].value(y, x, n);
        tsrk_cpu_finish(a->y, a->type, i, false, y, n);
    }
    return TSR_OK;
}

tsr_status tsrk_cpu_pointwise_bwd(const tsrk_pointwise_bwd *args, const tsrk_context *context)
{
    const tsrk_pointwise_bwd *a = args;
    int64_t chunks = tsrk_cpu_chunk_count(a->n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < chunks; k++) {
        float dys[TSRK_CPU_CHUNK];
        float froms[TSRK_CPU_CHUNK];
        int64_t i = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->n, k);
        const float *dy = tsrk_cpu_view(a->dy, a->type, i, n, dys);
        const float *from = tsrk_cpu_view(a->from, a->type, i, n, froms);
        float *dx = tsrk_cpu_target(a->dx, a->type, i, a->accumulate, froms);
        functions[a->function].slope(dx, dy, from, n);
        tsrk_cpu_finish(a->dx, a->type, i, a->accumulate, dx, n);
    }
    return TSR_OK;
}

tsr_status tsrk_cpu_silu_mul(const tsrk_silu_mul *args, const tsrk_context *context)
{
    const tsrk_silu_mul *a = args;
    int64_t chunks = tsrk_cpu_chunk_count(a->n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < chunks; k++) {
        float gates[TSRK_CPU_CHUNK];
        float ups[TSRK_CPU_CHUNK];
        int64_t i = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->n, k);
        const float *gate = tsrk_cpu_view(a->gate, a->type, i, n, gates);
        const float *up = tsrk_cpu_view(a->up, a->type, i, n, ups);
        float *y = tsrk_cpu_target(a->y, a->type, i, false, gates);
        chunk_silu_mul(y, gate, up, n);
        tsrk_cpu_finish(a->y, a->type, i, false, y, n);
    }
    return TSR_OK;
}

tsr_status tsrk_cpu_silu_mul_bwd(const tsrk_silu_mul_bwd *args, const tsrk_context *context)
{
    const tsrk_silu_mul_bwd *a = args;
    int64_t chunks = tsrk_cpu_chunk_count(a->n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < chunks; k++) {
        float dys[TSRK_CPU_CHUNK];
        float gates[TSRK_CPU_CHUNK];
        float ups[TSRK_CPU_CHUNK];
        float dgates[TSRK_CPU_CHUNK];
        float dups[TSRK_CPU_CHUNK];
        int64_t i = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->n, k);
        const float *dy = tsrk_cpu_view(a->dy, a->type, i, n, dys);
        const float *gate = tsrk_cpu_view(a->gate, a->type, i, n, gates);
        const float *up = tsrk_cpu_view(a->up, a->type, i, n, ups);
        float *dgate = tsrk_cpu_target(a->dgate, a->type, i, a->accumulate_dgate, dgates);
        float *dup = tsrk_cpu_target(a->dup, a->type, i, a->accumulate_dup, dups);
        chunk_silu_mul_bwd(dgate, dup, dy, gate, up, n);
        tsrk_cpu_finish(a->dgate, a->type, i, a->accumulate_dgate, dgate, n);
        tsrk_cpu_finish(a->dup, a->type, i, a->accumulate_dup, dup, n);
    }
    return TSR_OK;
}
