/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cpu_priv.h
 * What the cpu kernels share: a fast exp, conversions, teams, gemm.
 *
 * Every cpu kernel gives the same bits for any number of threads: work is cut into pieces whose
 * borders depend on sizes alone, and no sum crosses a piece in an order that threads decide.
 *
 * Teams. A kernel uses up to context->threads, and its workspace must be sized for as many: each
 * member has a slice of it.
 *
 * Levels. Every file of this folder is compiled once per instruction level (level.h), so loops are
 * plain and become the SIMD of each level, in parallel regions too. The levels' bits differ.
 */
#pragma once

#include "tessera/dtype.h"

#include <omp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/level.h"
#include "kernels/kernels.h"

/** Elements below which a second thread costs more than it brings (some 10 us of streaming). */
#define TSRK_CPU_GRAIN 32768

/** Elements that row functions convert or reduce at a time: 4 KiB of f32, well inside L1. */
#define TSRK_CPU_CHUNK 1024

/** Threads for a kernel that touches this many elements: 1 when small, else the context's. */
static inline int tsrk_cpu_team(const tsrk_context *context, int64_t elements)
{
    return elements < TSRK_CPU_GRAIN ? 1 : context->threads;
}

#ifdef TSRK_LEVEL
#    define TSRK_DECLARE(upper, lower) \
        tsr_status tsrk_cpu_##lower(const tsrk_##lower *args, const tsrk_context *context);
TSRK_MAP(TSRK_DECLARE)
#    undef TSRK_DECLARE
#endif

/** exp(x), relative error below 2e-7; 0 below -87, +inf above 88.73; NaN stays NaN. Branch-free, so
 *  that a loop over it becomes SIMD. */
static inline float tsrk_cpu_exp(float x)
{
    const float magic =
        12582912.0F; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    x = x < -87.5F ? -87.5F : x;
    x = x > 88.8F ? 88.8F : x;
    float shifted = (x * 1.44269504F) + magic;
    float n = shifted - magic;
    float r = x - (n * 0.693359375F); /* ln 2 in two parts; the first has few bits, so exact */
    r = r - (n * -2.12194440e-4F);
    /* Cephes' minimax polynomial for exp on [-ln2/2, ln2/2]. */
    float p = 1.9875691500e-4F;
    p = (p * r) + 1.3981999507e-3F;
    p = (p * r) + 8.3334519073e-3F;
    p = (p * r) + 4.1665795894e-2F;
    p = (p * r) + 1.6666665459e-1F;
    p = (p * r) + 5.0000001201e-1F;
    p = (p * r * r) + r + 1.0F;
    /* 2^(n-1), doubled after: n = 128 has no float of its own; n = -126 becomes 0. */
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 126U) << 23;
    float half;
    memcpy(&half, &bits, sizeof half);
    return p * half * 2.0F;
}

static inline float tsrk_cpu_from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

/** Round to nearest even; a NaN stays one. */
static inline uint16_t tsrk_cpu_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40U;
    return (uint16_t)((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

static inline float tsrk_cpu_from_f16(uint16_t value)
{
    /* The exponent moves by 112 in a product, which also brings subnormals to normal form. */
    uint32_t bits = (value & 0x7fffU) << 13;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    wide *= 0x1p112F;
    memcpy(&bits, &wide, sizeof bits);
    bits |= bits >= 0x47800000U ? 0x7f800000U : 0U; /* infinity and NaN */
    bits |= bits > 0x7f800000U ? 0x400000U : 0U;    /* quiet, as processors make it */
    bits |= (uint32_t)(value & 0x8000U) << 16;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/** Round to nearest even; above 65519 infinity; a NaN stays one. */
static inline uint16_t tsrk_cpu_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000U;
    bits &= 0x7fffffffU;
    /* Below 2^-14: the sum with 0.5 has the subnormal's bits last, rounded by the addition. */
    float small;
    memcpy(&small, &bits, sizeof small);
    small += 0.5F;
    uint32_t subnormal;
    memcpy(&subnormal, &small, sizeof subnormal);
    subnormal -= 0x3f000000U;
    uint32_t normal = (bits + 0xfffU + ((bits >> 13) & 1U) - (112U << 23)) >> 13;
    uint32_t out = bits < 0x38800000U ? subnormal : normal;
    out = bits >= 0x47800000U ? 0x7c00U : out;
    out = bits > 0x7f800000U ? 0x7e00U | ((bits >> 13) & 0x3ffU) : out;
    return (uint16_t)(out | sign);
}

/** Whether elements are stored in 16 bits and computed on in f32. */
static inline bool tsrk_cpu_is_half(tsr_dtype type)
{
    return type == TSR_BF16 || type == TSR_F16;
}

/** Bytes of an element of an f32, bf16 or f16 array. */
static inline size_t tsrk_cpu_size(tsr_dtype type)
{
    return tsrk_cpu_is_half(type) ? 2U : 4U;
}

/** Address of element i of an f32, bf16 or f16 array. */
static inline const void *tsrk_cpu_at(const void *array, tsr_dtype type, int64_t i)
{
    return (const char *)array + ((size_t)i * tsrk_cpu_size(type));
}

static inline void *tsrk_cpu_at_mut(void *array, tsr_dtype type, int64_t i)
{
    return (char *)array + ((size_t)i * tsrk_cpu_size(type));
}

/* ---- convert.c: contiguous runs, SIMD, one thread ---- */

/** out [n] f32 = elements i .. i + n of array (f32, bf16 or f16). */
void tsrk_cpu_load(float *out, const void *array, tsr_dtype type, int64_t i, int64_t n);
/** Elements i .. i + n of array (f32, bf16 or f16) = x [n]. */
void tsrk_cpu_store(void *array, tsr_dtype type, int64_t i, const float *x, int64_t n);
/** Elements i .. i + n of array (f32, bf16 or f16) += x [n]. */
void tsrk_cpu_store_add(void *array, tsr_dtype type, int64_t i, const float *x, int64_t n);

/** Elements i .. i + n as f32: the array itself when it is f32, else converted into buffer [n]. */
static inline const float *tsrk_cpu_view(const void *array, tsr_dtype type, int64_t i, int64_t n,
                                         float *buffer)
{
    if (!tsrk_cpu_is_half(type)) {
        return (const float *)array + i;
    }
    tsrk_cpu_load(buffer, array, type, i, n);
    return buffer;
}

/* ---- product.c ---- */

/** Blocks of k and n: a slice of b takes half a MiB, and blocks of k set the order of sums. */
#define TSRK_CPU_K_BLOCK 256
#define TSRK_CPU_N_BLOCK 512
/** Rows whose f32 sums the workspace holds at a time where c is bf16 or f16. */
#define TSRK_CPU_SUM_ROWS 2048

/** matmul in f32, by team threads; the workspace is product_bytes(args, team) at least. */
void tsrk_cpu_product(const tsrk_matmul *args, int team, void *workspace);
/** The same at every level. */
size_t tsrk_cpu_product_bytes(const tsrk_matmul *args, int threads);

/* ---- panels.c: on the calling thread alone, in f32 ---- */

/** A packed second operand [k, n]. */
typedef struct tsrk_cpu_panels {
    const float *at;
    int64_t k, n;
} tsrk_cpu_panels;

/** c [m, n] (+)= op(a) [m, k] * b [k, n]; b may be packed from more rows and columns. Where n or k
 * grows, it is the first row's, and each row has one more than the row before: what a triangle
 * needs, at least. */
typedef struct tsrk_cpu_times {
    const float *a;
    tsrk_cpu_panels b;
    float *c, *scratch; /* scratch [tsrk_cpu_panels_scratch()] */
    int64_t m, n, k, lda, ldc;
    bool trans_a, add, n_grows, k_grows;
} tsrk_cpu_times;

/** Floats that packing [k, n] takes, and those of a scratch; the same at every level. */
int64_t tsrk_cpu_panels_floats(int64_t k, int64_t n);
int64_t tsrk_cpu_panels_scratch(void);
/** Pack op(b) [k, n] into out. */
tsrk_cpu_panels tsrk_cpu_panels_pack(float *out, const float *b, int64_t ldb, bool trans_b,
                                     int64_t k, int64_t n);
void tsrk_cpu_panels_times(const tsrk_cpu_times *args);

/* ---- gemm.c ---- */

/** One thread's oneDNN objects for the bf16 tiles of one matmul; zero-initialise. A tile of the
 * same shape as the one before reuses them. */
typedef struct tsrk_cpu_bf16_gemm {
    void *engine, *stream, *primitive, *a, *b, *c;
    int64_t m, n;
    tsr_dtype c_type;
    bool refused;
} tsrk_cpu_bf16_gemm;

/** c [m, n] (f32 or bf16) = op(a) * op(b); k and how a and b lie are those of the matmul. */
typedef struct tsrk_cpu_bf16_tile {
    const void *a, *b;
    void *c;
    int64_t m, n, ldc;
    tsr_dtype c_type;
} tsrk_cpu_bf16_tile;

/** Whether level, processor and oneDNN have products of bf16. */
bool tsrk_cpu_has_bf16(void);
/** On the calling thread alone. False when oneDNN has no fast bf16 product of this form. */
bool tsrk_cpu_bf16_gemm_run(tsrk_cpu_bf16_gemm *gemm, const tsrk_matmul *args,
                            const tsrk_cpu_bf16_tile *tile);
void tsrk_cpu_bf16_gemm_close(tsrk_cpu_bf16_gemm *gemm);

/** The table of this level. */
const tsri_kernel_table *tsrk_cpu_table(void);

/* ---- workspace bytes of the kernels that need some; table.c dispatches ---- */
size_t tsrk_cpu_ws_matmul(const tsrk_matmul *args, int threads);
size_t tsrk_cpu_ws_layernorm_bwd(const tsrk_layernorm_bwd *args, int threads);
size_t tsrk_cpu_ws_rmsnorm_bwd(const tsrk_rmsnorm_bwd *args, int threads);
size_t tsrk_cpu_ws_attention(const tsrk_attention *args, int threads);
size_t tsrk_cpu_ws_attention_bwd(const tsrk_attention_bwd *args, int threads);

/* ---- results by chunk: where f32 results are formed, and how they reach the array ---- */

/** Elements i .. as f32 to write: the array itself when it is f32 and overwritten, else buffer. */
static inline float *tsrk_cpu_target(void *array, tsr_dtype type, int64_t i, bool accumulate,
                                     float *buffer)
{
    return tsrk_cpu_is_half(type) || accumulate ? buffer : (float *)array + i;
}

/** Bring x [n], which tsrk_cpu_target() gave, to elements i .. i + n of array. */
static inline void tsrk_cpu_finish(void *array, tsr_dtype type, int64_t i, bool accumulate,
                                   const float *x, int64_t n)
{
    if (accumulate) {
        tsrk_cpu_store_add(array, type, i, x, n);
    } else if (tsrk_cpu_is_half(type)) {
        tsrk_cpu_store(array, type, i, x, n);
    }
}

/** Elements in chunk number k of n elements. */
static inline int64_t tsrk_cpu_chunk_size(int64_t n, int64_t k)
{
    int64_t left = n - (k * TSRK_CPU_CHUNK);
    return left < TSRK_CPU_CHUNK ? left : TSRK_CPU_CHUNK;
}

static inline int64_t tsrk_cpu_chunk_count(int64_t n)
{
    return (n + TSRK_CPU_CHUNK - 1) / TSRK_CPU_CHUNK;
}

/* ---- random.c ---- */

/** out [n] = words index .. index + n of the stream of key (tsri_rng_word), n <= TSRK_CPU_CHUNK. */
void tsrk_cpu_rng_words(uint32_t *out, uint64_t key, uint64_t index, int64_t n);
