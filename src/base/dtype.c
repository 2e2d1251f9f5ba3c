/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dtype.c
 * Sizes and names of element types, from one table; and what their bits mean in f32.
 */
#include "tessera/dtype.h"

#include "base/base.h"

#include <string.h>

typedef struct dtype_row {
    const char *name;
    size_t bytes;
} dtype_row;

static const dtype_row g_rows[] = {
    [TSR_DTYPE_DEFAULT] = {"auto", 0},
    [TSR_F32] = {"f32", 4},
    [TSR_BF16] = {"bf16", 2},
    [TSR_F16] = {"f16", 2},
    [TSR_F64] = {"f64", 8},
    [TSR_I32] = {"i32", 4},
    [TSR_I64] = {"i64", 8},
    [TSR_U8] = {"u8", 1},
};
enum {
    ROW_COUNT = sizeof(g_rows) / sizeof(g_rows[0])
};

size_t tsr_dtype_size(tsr_dtype dtype)
{
    return (unsigned)dtype < ROW_COUNT ? g_rows[dtype].bytes : 0;
}

const char *tsr_dtype_name(tsr_dtype dtype)
{
    return (unsigned)dtype < ROW_COUNT ? g_rows[dtype].name : "?";
}

tsr_status tsr_dtype_parse(const char *name, tsr_dtype *out)
{
    TSRI_WANT(name, out);
    for (int i = 0; i < (int)ROW_COUNT; i++) {
        if (strcmp(name, g_rows[i].name) == 0) {
            *out = (tsr_dtype)i;
            return TSR_OK;
        }
    }
    return TSR_RAISE(TSR_ERR_INVALID,
                     "dtype \"%s\" is none of auto, f32, bf16, f16, f64, i32, i64, u8", name);
}

static float from_bits(uint32_t bits)
{
    float value = 0.0F;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
static float from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    const uint32_t exponent = half >> 10 & 0x1fU;
    const uint32_t fraction = half & 0x3ffU;

    if (exponent == 0x1f) {
        return from_bits(sign | 0x7f800000U | fraction << 13);
    }
    if (exponent == 0) {
        const float magnitude = (float)fraction * 0x1p-24F;

        return sign != 0 ? -magnitude : magnitude;
    }
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

void tsri_widen(const void *from, tsr_dtype dtype, int64_t count, float *to)
{
    const uint16_t *half = from;
    const double *wide = from;

    if (dtype == TSR_F32) {
        memcpy(to, from, (size_t)count * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (dtype == TSR_BF16) {
            to[i] = from_bits((uint32_t)half[i] << 16);
        } else if (dtype == TSR_F16) {
            to[i] = from_f16(half[i]);
        } else {
            to[i] = (float)wide[i];
        }
    }
}
