/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file elementwise.c
 * Sum of two arrays, scaled copies and casts, zero fill, and copies of strided blocks.
 *
 * All are bound by memory: chunks go through L1 once. A copy that changes nothing is a memcpy. The
 * pair f64 with anything (device scalars) is short and goes to the definition.
 */
#include "kernels/cpu/cpu_priv.h"

/* Bytes that one thread zeroes or copies at a time. */
#define PIECE_BYTES ((int64_t)65536)

static int64_t piece_count(int64_t bytes)
{
    return (bytes + PIECE_BYTES - 1) / PIECE_BYTES;
}

static size_t piece_size(int64_t bytes, int64_t k)
{
    int64_t left = bytes - (k * PIECE_BYTES);
    return (size_t)(left < PIECE_BYTES ? left : PIECE_BYTES);
}

static bool is_narrow(tsr_dtype type)
{
    return type == TSR_F32 || tsrk_cpu_is_half(type);
}

static void chunk_add(float *y, const float *a, const float *b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = a[i] + b[i];
    }
}

static void chunk_scale(float *y, const float *x, float factor, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] * factor;
    }
}

static void chunk_scale_add(float *y, const float *x, float factor, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        y[i] += x[i] * factor;
    }
}

tsr_status tsrk_cpu_add(const tsrk_add *args, const tsrk_context *context)
{
    const tsrk_add *a = args;
    if (!is_narrow(a->a_type) || !is_narrow(a->b_type) || !is_narrow(a->y_type)) {
        return tsrk_ref_add(a);
    }
    int64_t chunks = tsrk_cpu_chunk_count(a->n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < chunks; k++) {
        float as[TSRK_CPU_CHUNK];
        float bs[TSRK_CPU_CHUNK];
        int64_t i = k * TSRK_CPU_CHUNK;
        int64_t n = tsrk_cpu_chunk_size(a->n, k);
        const float *x0 = tsrk_cpu_view(a->a, a->a_type, i, n, as);
        const float *x1 = tsrk_cpu_view(a->b, a->b_type, i, n, bs);
        float *y = tsrk_cpu_target(a->y, a->y_type, i, false, as);
        chunk_add(y, x0, x1, n);
        tsrk_cpu_finish(a->y, a->y_type, i, false, y, n);
    }
    return TSR_OK;
}

static void copy_flat(const tsrk_context *context, void *dst, const void *src, int64_t bytes)
{
    int64_t pieces = piece_count(bytes);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, bytes / 4))
    for (int64_t k = 0; k < pieces; k++) {
        memcpy((char *)dst + (k * PIECE_BYTES), (const char *)src + (k * PIECE_BYTES),
               piece_size(bytes, k));
    }
}

static void scale_chunk(const tsrk_scale *a, float factor, int64_t k)
{
    float buffer[TSRK_CPU_CHUNK];
    int64_t i = k * TSRK_CPU_CHUNK;
    int64_t n = tsrk_cpu_chunk_size(a->n, k);
    const float *x = tsrk_cpu_view(a->x, a->x_type, i, n, buffer);
    if (a->accumulate && a->y_type == TSR_F32) {
        chunk_scale_add((float *)a->y + i, x, factor, n);
        return;
    }
    float *y = tsrk_cpu_target(a->y, a->y_type, i, a->accumulate, buffer);
    chunk_scale(y, x, factor, n);
    tsrk_cpu_finish(a->y, a->y_type, i, a->accumulate, y, n);
}

tsr_status tsrk_cpu_scale(const tsrk_scale *args, const tsrk_context *context)
{
    const tsrk_scale *a = args;
    if (!is_narrow(a->x_type) || !is_narrow(a->y_type)) {
        return tsrk_ref_scale(a);
    }
    float factor = a->device_factor ? a->factor * *a->device_factor : a->factor;
    if (factor == 1.0F && a->x_type == a->y_type && !a->accumulate) {
        if (a->x != a->y) {
            copy_flat(context, a->y, a->x, a->n * (int64_t)tsrk_cpu_size(a->x_type));
        }
        return TSR_OK;
    }
    int64_t chunks = tsrk_cpu_chunk_count(a->n);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, a->n))
    for (int64_t k = 0; k < chunks; k++) {
        scale_chunk(a, factor, k);
    }
    return TSR_OK;
}

tsr_status tsrk_cpu_zero(const tsrk_zero *args, const tsrk_context *context)
{
    int64_t bytes = (int64_t)args->bytes;
    int64_t pieces = piece_count(bytes);
#pragma omp parallel for schedule(static) num_threads(tsrk_cpu_team(context, bytes / 4))
    for (int64_t k = 0; k < pieces; k++) {
        memset((char *)args->out + (k * PIECE_BYTES), 0, piece_size(bytes, k));
    }
    return TSR_OK;
}

/* mid blocks of inner bytes; the short sizes are element moves, too small for a call each. */
static void copy_mid(const tsrk_copy_blocks *a, int64_t o, int64_t begin, int64_t end)
{
    const char *src = (const char *)a->src + (o * a->src_outer_stride);
    char *dst = (char *)a->dst + (o * a->dst_outer_stride);
    for (int64_t m = begin; m < end; m++) {
        const char *from = src + (m * a->src_mid_stride);
        char *to = dst + (m * a->dst_mid_stride);
        if (a->inner_bytes == 2) {
            memcpy(to, from, 2);
        } else if (a->inner_bytes == 4) {
            memcpy(to, from, 4);
        } else {
            memcpy(to, from, a->inner_bytes);
        }
    }
}

tsr_status tsrk_cpu_copy_blocks(const tsrk_copy_blocks *args, const tsrk_context *context)
{
    tsrk_copy_blocks a = *args;
    int64_t inner = (int64_t)a.inner_bytes;
    if (a.outer <= 0 || a.mid <= 0 || inner == 0) {
        return TSR_OK;
    }
    if (a.src_mid_stride == inner && a.dst_mid_stride == inner) {
        inner *= a.mid;
        a.inner_bytes = (size_t)inner;
        a.mid = 1;
    }
    if (inner >= PIECE_BYTES) {
        for (int64_t block = 0; block < a.outer * a.mid; block++) {
            int64_t o = block / a.mid;
            int64_t m = block % a.mid;
            copy_flat(context, (char *)a.dst + (o * a.dst_outer_stride) + (m * a.dst_mid_stride),
                      (const char *)a.src + (o * a.src_outer_stride) + (m * a.src_mid_stride),
                      inner);
        }
        return TSR_OK;
    }
    /* Tasks of whole mid ranges, about a piece of bytes each. */
    int64_t step = (PIECE_BYTES + inner - 1) / inner;
    int64_t per_outer = (a.mid + step - 1) / step;
#pragma omp parallel for schedule(static) \
    num_threads(tsrk_cpu_team(context, a.outer *a.mid *inner / 4))
    for (int64_t task = 0; task < a.outer * per_outer; task++) {
        int64_t begin = task % per_outer * step;
        int64_t end = begin + step < a.mid ? begin + step : a.mid;
        copy_mid(&a, task / per_outer, begin, end);
    }
    return TSR_OK;
}
