/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file ref_priv.h
 * Elements by index, as double: how the definitions read and write every type.
 *
 * A store rounds to f32 first and then, for bf16, to nearest even, as the fast kernels do.
 */
#pragma once

#include "tessera/dtype.h"

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

/** Element i of array, which holds f32, bf16 or f64. */
static inline double tsrk_ref_load(const void *array, tsr_dtype type, int64_t i)
{
    if (type == TSR_BF16) {
        return (double)tsrk_ref_from_bf16(((const uint16_t *)array)[i]);
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
