/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file reduce.c
 * Sum and maximum over ranks: ((source 0 op source 1) op source 2) ..., element by element.
 *
 * The order is fixed, so the bits are too, whoever reduces and however the elements are cut.
 * bf16 and f16 accumulate in f32 and are rounded once, to nearest even. Integers wrap around. The
 * maximum of anything and NaN is NaN. Works through blocks that stay in the first-level cache:
 * reads every source once, writes once.
 */
#include "backend/cpu/cpu_priv.h"

#include <string.h>

/* As for the kernels: resolvers of clones run before a sanitizer is ready, clang 14 has none for C.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#    define CLONES \
        __attribute__((noinline, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#    define CLONES __attribute__((noinline))
#endif

/* out may be a or b itself, so there is no dependence between different elements. */
#define INDEPENDENT _Pragma("GCC ivdep")

#define BLOCK_BYTES 8192

typedef void (*fold_fn)(const void *a, const void *b, void *out, int64_t count);

CLONES static void sum_f32(const float *a, const float *b, float *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] + b[i];
    }
}

CLONES static void max_f32(const float *a, const float *b, float *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
    }
}

CLONES static void sum_f64(const double *a, const double *b, double *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] + b[i];
    }
}

CLONES static void max_f64(const double *a, const double *b, double *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
    }
}

CLONES static void sum_u32(const uint32_t *a, const uint32_t *b, uint32_t *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] + b[i];
    }
}

CLONES static void max_i32(const int32_t *a, const int32_t *b, int32_t *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] > b[i] ? a[i] : b[i];
    }
}

CLONES static void sum_u64(const uint64_t *a, const uint64_t *b, uint64_t *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] + b[i];
    }
}

CLONES static void max_i64(const int64_t *a, const int64_t *b, int64_t *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] > b[i] ? a[i] : b[i];
    }
}

CLONES static void sum_u8(const uint8_t *a, const uint8_t *b, uint8_t *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = (uint8_t)(a[i] + b[i]);
    }
}

CLONES static void max_u8(const uint8_t *a, const uint8_t *b, uint8_t *out, int64_t count)
{
    INDEPENDENT
    for (int64_t i = 0; i < count; i++) {
        out[i] = a[i] > b[i] ? a[i] : b[i];
    }
}

static void fold_sum_f32(const void *a, const void *b, void *out, int64_t count)
{
    sum_f32(a, b, out, count);
}

static void fold_max_f32(const void *a, const void *b, void *out, int64_t count)
{
    max_f32(a, b, out, count);
}

static void fold_sum_f64(const void *a, const void *b, void *out, int64_t count)
{
    sum_f64(a, b, out, count);
}

static void fold_max_f64(const void *a, const void *b, void *out, int64_t count)
{
    max_f64(a, b, out, count);
}

static void fold_sum_i32(const void *a, const void *b, void *out, int64_t count)
{
    sum_u32(a, b, out, count);
}

static void fold_max_i32(const void *a, const void *b, void *out, int64_t count)
{
    max_i32(a, b, out, count);
}

static void fold_sum_i64(const void *a, const void *b, void *out, int64_t count)
{
    sum_u64(a, b, out, count);
}

static void fold_max_i64(const void *a, const void *b, void *out, int64_t count)
{
    max_i64(a, b, out, count);
}

static void fold_sum_u8(const void *a, const void *b, void *out, int64_t count)
{
    sum_u8(a, b, out, count);
}

static void fold_max_u8(const void *a, const void *b, void *out, int64_t count)
{
    max_u8(a, b, out, count);
}

CLONES static void widen_bf16(const uint16_t *in, float *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)in[i] << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

CLONES static void narrow_bf16(const float *in, uint16_t *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &in[i], sizeof bits);
        uint32_t rounded = bits + 0x7FFFU + ((bits >> 16) & 1U);
        uint32_t quiet = bits | 0x400000U;
        out[i] = (uint16_t)(((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded) >> 16);
    }
}

static float from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    uint32_t rest = half & 0x7FFFU;
    uint32_t bits = 0;
    float value;

    if (rest >= 0x7C00U) {
        bits = 0x7F800000U | ((rest & 0x3FFU) << 13);
    } else if (rest >= 0x400U) {
        bits = (rest << 13) + (112U << 23);
    } else {
        value = (float)rest * 0x1p-24F;
        memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000U;

    bits &= 0x7FFFFFFFU;
    if (bits > 0x7F800000U) {
        return (uint16_t)(sign | 0x7E00U);
    }
    if (bits >=
        0x47800000U) { /* 2^16 and above; what rounds up to it carries into infinity below */
        return (uint16_t)(sign | 0x7C00U);
    }
    if (bits < 0x38800000U) {
        /* Below 2^-14: adding 0.5 leaves exactly the bits that a subnormal half has. */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5F;
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3F000000U));
    }
    bits += 0xFFFU + ((bits >> 13) & 1U);
    return (uint16_t)(sign | ((bits - (112U << 23)) >> 13));
}

void tsri_cpu_widen(tsr_dtype dtype, const void *in, float *out, int64_t count)
{
    const uint16_t *half = in;

    if (dtype == TSR_BF16) {
        widen_bf16(half, out, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        out[i] = from_f16(half[i]);
    }
}

void tsri_cpu_narrow(tsr_dtype dtype, const float *in, void *out, int64_t count)
{
    uint16_t *half = out;

    if (dtype == TSR_BF16) {
        narrow_bf16(in, half, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        half[i] = to_f16(in[i]);
    }
}

static fold_fn find_fold(tsr_dtype dtype, tsri_reduce_op op)
{
    bool max = op == TSRI_MAX;

    switch (dtype) {
    case TSR_F64:
        return max ? fold_max_f64 : fold_sum_f64;
    case TSR_I32:
        return max ? fold_max_i32 : fold_sum_i32;
    case TSR_I64:
        return max ? fold_max_i64 : fold_sum_i64;
    case TSR_U8:
        return max ? fold_max_u8 : fold_sum_u8;
    case TSR_F32:
    case TSR_BF16: /* widened */
    case TSR_F16:
    case TSR_DTYPE_DEFAULT:
        break;
    }
    return max ? fold_max_f32 : fold_sum_f32;
}

/* One block of a type that is its own accumulator. acc [BLOCK_BYTES]. */
static void reduce_block(fold_fn fold, const void *const *source, int source_count, size_t skip,
                         unsigned char *acc, unsigned char *out, int64_t count)
{
    const void *left = (const unsigned char *)source[0] + skip;

    for (int m = 1; m < source_count; m++) {
        void *to = m + 1 == source_count ? (void *)out : (void *)acc;
        fold(left, (const unsigned char *)source[m] + skip, to, count);
        left = to;
    }
}

static void reduce_halves(tsr_dtype dtype, fold_fn fold, const void *const *source,
                          int source_count, uint16_t *out, int64_t count)
{
    float acc[BLOCK_BYTES / sizeof(float)];
    float next[BLOCK_BYTES / sizeof(float)];
    const int64_t block = BLOCK_BYTES / (int64_t)sizeof(float);

    for (int64_t at = 0; at < count; at += block) {
        int64_t n = tsri_min64(block, count - at);
        tsri_cpu_widen(dtype, (const uint16_t *)source[0] + at, acc, n);
        for (int m = 1; m < source_count; m++) {
            tsri_cpu_widen(dtype, (const uint16_t *)source[m] + at, next, n);
            fold(acc, next, acc, n);
        }
        tsri_cpu_narrow(dtype, acc, out + at, n);
    }
}

void tsri_cpu_reduce(tsr_dtype dtype, tsri_reduce_op op, const void *const *source,
                     int source_count, void *out, int64_t count)
{
    _Alignas(64) unsigned char acc[BLOCK_BYTES];
    fold_fn fold = find_fold(dtype, op);
    size_t unit = tsr_dtype_size(dtype);
    int64_t block = BLOCK_BYTES / (int64_t)unit;

    if (source_count == 1) {
        memmove(out, source[0], (size_t)count * unit);
        return;
    }
    if (dtype == TSR_BF16 || dtype == TSR_F16) {
        reduce_halves(dtype, fold, source, source_count, out, count);
        return;
    }
    for (int64_t at = 0; at < count; at += block) {
        size_t skip = (size_t)at * unit;
        reduce_block(fold, source, source_count, skip, acc, (unsigned char *)out + skip,
                     tsri_min64(block, count - at));
    }
}

void tsri_cpu_accumulate(tsr_dtype dtype, tsri_reduce_op op, void *acc, const void *term,
                         int64_t count)
{
    float wide[BLOCK_BYTES / sizeof(float)];
    const int64_t block = BLOCK_BYTES / (int64_t)sizeof(float);
    fold_fn fold = find_fold(dtype, op);

    if (dtype != TSR_BF16 && dtype != TSR_F16) {
        fold(acc, term, acc, count);
        return;
    }
    for (int64_t at = 0; at < count; at += block) {
        int64_t n = tsri_min64(block, count - at);
        float *sum = (float *)acc + at;
        tsri_cpu_widen(dtype, (const uint16_t *)term + at, wide, n);
        fold(sum, wide, sum, n);
    }
}
