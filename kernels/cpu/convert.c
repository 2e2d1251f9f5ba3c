/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file convert.c
 * Contiguous runs between storage types and f32.
 *
 * Idea: row functions work on f32 alone and convert a chunk that stays in L1, so that no kernel
 * needs a variant per type. bf16 <-> f32 is a shift and an integer rounding, which every
 * instruction set has. f16 goes through F16C where the processor has it; the integer form gives the
 * same bits.
 */
#include "kernels/cpu/cpu_priv.h"

#if defined(__F16C__)
#    include <immintrin.h>
#endif

static void widen(float *restrict out, const uint16_t *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = tsrk_cpu_from_bf16(x[i]);
    }
}

static void narrow(uint16_t *restrict out, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = tsrk_cpu_to_bf16(x[i]);
    }
}

static void narrow_add(uint16_t *restrict out, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = tsrk_cpu_to_bf16(tsrk_cpu_from_bf16(out[i]) + x[i]);
    }
}

static void widen_f16(float *restrict out, const uint16_t *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = tsrk_cpu_from_f16(x[i]);
    }
}

static void narrow_f16(uint16_t *restrict out, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = tsrk_cpu_to_f16(x[i]);
    }
}

#if defined(__F16C__)
/* Whole vectors; returns how many elements they were. */
static int64_t widen_f16c(float *out, const uint16_t *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i half;
        memcpy(&half, x + i, sizeof half);
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
    }
    return i;
}

static int64_t narrow_f16c(uint16_t *out, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        memcpy(out + i, &half, sizeof half);
    }
    return i;
}
#endif

static void load_f16(float *out, const uint16_t *x, int64_t n)
{
    int64_t done = 0;
#if defined(__F16C__)
    done = widen_f16c(out, x, n);
#endif
    widen_f16(out + done, x + done, n - done);
}

static void store_f16(uint16_t *out, const float *x, int64_t n)
{
    int64_t done = 0;
#if defined(__F16C__)
    done = narrow_f16c(out, x, n);
#endif
    narrow_f16(out + done, x + done, n - done);
}

static void add(float *restrict out, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] += x[i];
    }
}

static void store_add_f16(uint16_t *out, const float *x, int64_t n)
{
    float sum[TSRK_CPU_CHUNK];
    for (int64_t i = 0; i < n; i += TSRK_CPU_CHUNK) {
        int64_t part = n - i < TSRK_CPU_CHUNK ? n - i : TSRK_CPU_CHUNK;
        load_f16(sum, out + i, part);
        add(sum, x + i, part);
        store_f16(out + i, sum, part);
    }
}

void tsrk_cpu_load(float *out, const void *array, tsr_dtype type, int64_t i, int64_t n)
{
    if (type == TSR_BF16) {
        widen(out, (const uint16_t *)array + i, n);
    } else if (type == TSR_F16) {
        load_f16(out, (const uint16_t *)array + i, n);
    } else {
        memcpy(out, (const float *)array + i, (size_t)n * sizeof *out);
    }
}

void tsrk_cpu_store(void *array, tsr_dtype type, int64_t i, const float *x, int64_t n)
{
    if (type == TSR_BF16) {
        narrow((uint16_t *)array + i, x, n);
    } else if (type == TSR_F16) {
        store_f16((uint16_t *)array + i, x, n);
    } else {
        memmove((float *)array + i, x, (size_t)n * sizeof *x);
    }
}

void tsrk_cpu_store_add(void *array, tsr_dtype type, int64_t i, const float *x, int64_t n)
{
    if (type == TSR_BF16) {
        narrow_add((uint16_t *)array + i, x, n);
    } else if (type == TSR_F16) {
        store_add_f16((uint16_t *)array + i, x, n);
    } else {
        add((float *)array + i, x, n);
    }
}
