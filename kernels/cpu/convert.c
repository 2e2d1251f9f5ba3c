/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file convert.c
 * Contiguous runs between storage types and f32.
 *
 * Idea: row functions work on f32 alone and convert a chunk that stays in L1, so that no kernel
 * needs a variant per type. bf16 <-> f32 is a shift and an integer rounding, which every
 * instruction set has.
 */
#include "kernels/cpu/cpu_priv.h"

TSRK_CLONES static void widen(float *restrict out, const uint16_t *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = tsrk_cpu_from_bf16(x[i]);
    }
}

TSRK_CLONES static void narrow(uint16_t *restrict out, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = tsrk_cpu_to_bf16(x[i]);
    }
}

TSRK_CLONES static void narrow_add(uint16_t *restrict out, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] = tsrk_cpu_to_bf16(tsrk_cpu_from_bf16(out[i]) + x[i]);
    }
}

TSRK_CLONES static void add(float *restrict out, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        out[i] += x[i];
    }
}

void tsrk_cpu_load(float *out, const void *array, tsr_dtype type, int64_t i, int64_t n)
{
    if (type == TSR_BF16) {
        widen(out, (const uint16_t *)array + i, n);
    } else {
        memcpy(out, (const float *)array + i, (size_t)n * sizeof *out);
    }
}

void tsrk_cpu_store(void *array, tsr_dtype type, int64_t i, const float *x, int64_t n)
{
    if (type == TSR_BF16) {
        narrow((uint16_t *)array + i, x, n);
    } else {
        memmove((float *)array + i, x, (size_t)n * sizeof *x);
    }
}

void tsrk_cpu_store_add(void *array, tsr_dtype type, int64_t i, const float *x, int64_t n)
{
    if (type == TSR_BF16) {
        narrow_add((uint16_t *)array + i, x, n);
    } else {
        add((float *)array + i, x, n);
    }
}
