/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file array.h
 * Arrays of any element type for tests of kernels: seeded values, guards, comparisons.
 *
 * An array is followed by guard bytes that tsr_array_free() checks, so a kernel that writes past
 * the end fails its test in every build.
 */
#pragma once

#include "tessera/dtype.h"

#include <stdbool.h>
#include <stdint.h>

/** Largest relative error of one rounding: 2^-24 for f32, 2^-8 for bf16, 2^-11 for f16, 2^-53 for
 * f64. */
double tsr_array_unit(tsr_dtype type);

/** n zeroed elements. */
void *tsr_array_new(int64_t n, tsr_dtype type);
/** n elements uniform in [-scale, scale), rounded to type. */
void *tsr_array_random(int64_t n, tsr_dtype type, double scale, uint64_t seed);
void *tsr_array_copy(const void *array, int64_t n, tsr_dtype type);
/** Check the guard and free; NULL is allowed. */
void tsr_array_free(void *array);

double tsr_array_get(const void *array, tsr_dtype type, int64_t i);
void tsr_array_set(void *array, tsr_dtype type, int64_t i, double value);

/** Every element: |got - want| <= s (u |want| + 2^-24 factor (|want| + floor)), where u is the unit
 *  of type (u |want| at least 2^-25 for f16, whose small values are multiples of 2^-24) and s = 2,
 *  as both sides were rounded once to type. factor counts the roundings on the
 *  way and floor is the size of what was added up. The first miss fails the case. */
bool tsr_array_near(const void *got, const void *want, int64_t n, tsr_dtype type, double factor,
                    double floor);
/** The same bits; the first difference fails the case. */
bool tsr_array_same(const void *got, const void *want, int64_t n, tsr_dtype type);
