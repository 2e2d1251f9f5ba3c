/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file array.c
 * Layout of an allocation: 64 bytes that hold the size, the elements, 64 guard bytes.
 */
#include "array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

#define MARGIN ((size_t)64)
#define GUARD  0xA5

double tsr_array_unit(tsr_dtype type)
{
    if (type == TSR_BF16) {
        return 0x1p-8;
    }
    if (type == TSR_F16) {
        return 0x1p-11;
    }
    return type == TSR_F64 ? 0x1p-53 : 0x1p-24;
}

void *tsr_array_new(int64_t n, tsr_dtype type)
{
    size_t bytes = (size_t)n * tsr_dtype_size(type);
    char *base = calloc(1, bytes + (2 * MARGIN));
    if (!base) {
        abort();
    }
    memcpy(base, &bytes, sizeof bytes);
    memset(base + MARGIN + bytes, GUARD, MARGIN);
    return base + MARGIN;
}

void tsr_array_free(void *array)
{
    if (!array) {
        return;
    }
    char *base = (char *)array - MARGIN;
    size_t bytes;
    memcpy(&bytes, base, sizeof bytes);
    int written = 0;
    for (size_t i = 0; i < MARGIN; i++) {
        written += (unsigned char)base[MARGIN + bytes + i] != GUARD;
    }
    CHECK_EQ(written, 0);
    free(base);
}

void *tsr_array_copy(const void *array, int64_t n, tsr_dtype type)
{
    void *copy = tsr_array_new(n, type);
    memcpy(copy, array, (size_t)n * tsr_dtype_size(type));
    return copy;
}

static double f16_value(uint16_t bits)
{
    const int exponent = bits >> 10 & 0x1f;
    const int mantissa = bits & 0x3ff;
    double size = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);

    if (exponent == 31) {
        size = mantissa == 0 ? (double)INFINITY : (double)NAN;
    }
    return bits & 0x8000 ? -size : size;
}

/* The sizes of halves grow with their bits, so the nearest is found by halving the range. */
static uint16_t f16_nearest(double value)
{
    const uint16_t sign = signbit(value) ? 0x8000 : 0;
    const double size = fabs(value);
    uint16_t low = 0;
    uint16_t high = 0x7c00;

    if (isnan(value)) {
        return 0x7e00;
    }
    if (size >= 65520.0) {
        return (uint16_t)(sign | 0x7c00);
    }
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);

        if (f16_value(middle) <= size) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const double below = size - f16_value(low);
    const double above = (low == 0x7bff ? 65536.0 : f16_value((uint16_t)(low + 1))) - size;
    const bool up = above < below || (above == below && (low & 1) != 0);

    return (uint16_t)(sign | (low + (up ? 1 : 0)));
}

double tsr_array_get(const void *array, tsr_dtype type, int64_t i)
{
    if (type == TSR_BF16) {
        uint32_t bits = (uint32_t)((const uint16_t *)array)[i] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    }
    if (type == TSR_F16) {
        return f16_value(((const uint16_t *)array)[i]);
    }
    return type == TSR_F64 ? ((const double *)array)[i] : (double)((const float *)array)[i];
}

void tsr_array_set(void *array, tsr_dtype type, int64_t i, double value)
{
    if (type == TSR_F64) {
        ((double *)array)[i] = value;
        return;
    }
    float narrow = (float)value;
    if (type == TSR_BF16) {
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        ((uint16_t *)array)[i] = (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
        return;
    }
    if (type == TSR_F16) {
        ((uint16_t *)array)[i] = f16_nearest((double)narrow);
        return;
    }
    ((float *)array)[i] = narrow;
}

void *tsr_array_random(int64_t n, tsr_dtype type, double scale, uint64_t seed)
{
    void *array = tsr_array_new(n, type);
    uint64_t state = seed;
    for (int64_t i = 0; i < n; i++) {
        state += 0x9E3779B97F4A7C15ULL; /* splitmix64 */
        uint64_t z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        double unit = (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
        tsr_array_set(array, type, i, scale * ((2.0 * unit) - 1.0));
    }
    return array;
}

bool tsr_array_near(const void *got, const void *want, int64_t n, tsr_dtype type, double factor,
                    double floor)
{
    for (int64_t i = 0; i < n; i++) {
        double g = tsr_array_get(got, type, i);
        double w = tsr_array_get(want, type, i);
        double size = fabs(w);
        double rounding = tsr_array_unit(type) * size;
        if (type == TSR_F16) {
            rounding = fmax(rounding, 0x1p-25);
        }
        double tolerance = 2.0 * (rounding + (0x1p-24 * factor * (size + floor)));
        if (!(fabs(g - w) <= tolerance)) {
            CHECK_NEAR(g, w, tolerance);
            CHECK_EQ(i, -1); /* the element that is off */
            return false;
        }
    }
    return true;
}

bool tsr_array_same(const void *got, const void *want, int64_t n, tsr_dtype type)
{
    size_t size = tsr_dtype_size(type);
    for (int64_t i = 0; i < n; i++) {
        const char *g = (const char *)got + ((size_t)i * size);
        if (memcmp(g, (const char *)want + ((size_t)i * size), size) != 0) {
            CHECK_NEAR(tsr_array_get(got, type, i), tsr_array_get(want, type, i), 0.0);
            CHECK_EQ(i, -1); /* the element that differs */
            return false;
        }
    }
    return true;
}
