/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dtype.c
 * Sizes and names of element types, from one table.
 */
#include "tessera/dtype.h"

#include "base/base.h"

#include <math.h>
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

static float from_f16(uint16_t half)
{
    const double sign = (half & 0x8000U) != 0 ? -1.0 : 1.0;
    const int exponent = half >> 10 & 0x1f;
    const int fraction = half & 0x3ff;

    if (exponent == 0x1f) {
        return fraction != 0 ? NAN : (float)(sign * (double)INFINITY);
    }
    return (float)(sign *
                   (exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 0x400, exponent - 25)));
}

void tsri_widen(const void *from, tsr_dtype dtype, int64_t count, float *to)
{
    const uint16_t *half = from;

    if (dtype == TSR_F32) {
        memcpy(to, from, (size_t)count * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (dtype == TSR_BF16) {
            const uint32_t bits = (uint32_t)half[i] << 16;

            memcpy(&to[i], &bits, sizeof(bits));
        } else {
            to[i] = from_f16(half[i]);
        }
    }
}
