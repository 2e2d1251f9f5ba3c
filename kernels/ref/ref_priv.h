/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file ref_priv.h
 * Elements by index, as double: how the definitions read and write every type.
 *
 * A store rounds to f32 first and then, for bf16 and f16, to nearest even, as the fast kernels do.
 */
#pragma once

#include "tessera/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t tsrk_ref_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
        return (uint16_t)((bits >> 16) | 0x40U); /* a NaN stays one, whatever its low bits */
    }
    return (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

static inline float tsrk_ref_from_bf16(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static inline uint16_t tsrk_ref_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000U);
    double size = fabs((double)value);
    if (isnan(value)) {
        return (uint16_t)(sign | 0x7e00U | ((bits >> 13) & 0x3ffU));
    }
    if (size >= 65520.0) { /* halfway between the largest and 2^16 */
        return (uint16_t)(sign | 0x7c00U);
    }
    if (size < 0x1p-14) { /* subnormal: multiples of 2^-24 */
        return (uint16_t)(sign | (uint16_t)rint(size * 0x1p24));
    }
    int exponent = 0;
    double mantissa = frexp(size, &exponent);   /* [0.5, 1) */
    int rounded = (int)rint(mantissa * 0x1p11); /* [1024, 2048]; 2048 carries into the exponent */
    return (uint16_t)(sign | (uint16_t)(((exponent + 13) << 10) + rounded));
}

static inline float tsrk_ref_from_f16(uint16_t value)
{
    int exponent = (value >> 10) & 0x1f;
    int mantissa = value & 0x3ff;
    float size = ldexpf((float)(mantissa + 1024), exponent - 25);
    if (exponent == 0) {
        size = ldexpf((float)mantissa, -24);
    } else if (exponent == 31) {
        size = mantissa == 0 ? INFINITY : NAN;
    }
    return (value & 0x8000U) != 0 ? -size : size;
}

/** Element i of array, which holds f32, bf16, f16 or f64. */
static inline double tsrk_ref_load(const void *array, tsr_dtype type, int64_t i)
{
    if (type == TSR_BF16) {
        return (double)tsrk_ref_from_bf16(((const uint16_t *)array)[i]);
    }
    if (type == TSR_F16) {
        return (double)tsrk_ref_from_f16(((const uint16_t *)array)[i]);
    }
    if (type == TSR_F64) {
        return ((const double *)array)[i];
    }
    return (double)((const float *)array)[i];
}

/** array[i] = value. */
static inline void tsrk_ref_store(void *array, tsr_dtype type, int64_t i, double value)
{
    if (type == TSR_BF16) {
        ((uint16_t *)array)[i] = tsrk_ref_to_bf16((float)value);
    } else if (type == TSR_F16) {
        ((uint16_t *)array)[i] = tsrk_ref_to_f16((float)value);
    } else if (type == TSR_F64) {
        ((double *)array)[i] = value;
    } else {
        ((float *)array)[i] = (float)value;
    }
}

/** array[i] (+)= value. */
static inline void tsrk_ref_put(void *array, tsr_dtype type, int64_t i, double value,
                                bool accumulate)
{
    if (accumulate) {
        value += tsrk_ref_load(array, type, i);
    }
    tsrk_ref_store(array, type, i, value);
}
