/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_half.c
 * f16: every value, and every border between two values, through each conversion there is.
 *
 * The integer form, the processor's instructions (whole runs) and the definition give the same
 * bits.
 */
#include "kernels/cpu/cpu_priv.h"
#include "kernels/ref/ref_priv.h"

#include <stdlib.h>

#include "support/array.h"
#include "support/tsr_test.h"

enum {
    HALVES = 0x10000
};

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* y (+)= x, by the kernel that casts. */
static void convert(void *y, tsr_dtype y_type, const void *x, tsr_dtype x_type, int64_t n,
                    bool accumulate)
{
    const tsrk_scale args = {.x = x,
                             .y = y,
                             .n = n,
                             .factor = 1.0F,
                             .x_type = x_type,
                             .y_type = y_type,
                             .accumulate = accumulate};
    tsrk_cpu_scale(&args);
}

static void every_value_widens(void)
{
    uint16_t *halves = tsr_array_new(HALVES, TSR_F16);
    float *wide = tsr_array_new(HALVES, TSR_F32);

    for (int i = 0; i < HALVES; i++) {
        halves[i] = (uint16_t)i;
    }
    convert(wide, TSR_F32, halves, TSR_F16, HALVES, false);
    for (int i = 0; i < HALVES; i++) {
        const double want = tsr_array_get(halves, TSR_F16, i);
        const float ref = tsrk_ref_from_f16((uint16_t)i);

        CHECK_EQ(bits_of(wide[i]), bits_of(tsrk_cpu_from_f16((uint16_t)i)));
        if (isnan(want)) {
            CHECK(isnan(wide[i]) && isnan(ref));
        } else {
            CHECK((double)wide[i] == want && (double)ref == want);
            CHECK_EQ(signbit(wide[i]) != 0, (i & 0x8000) != 0);
        }
        CHECK_EQ(tsrk_cpu_to_f16(wide[i]) & 0xfdff, i & 0xfdff); /* a NaN may turn quiet */
    }
    tsr_array_free(halves);
    tsr_array_free(wide);
}

/* From each half to the next: the middle, and a step of f32 to either side of it. */
static void every_border_rounds(void)
{
    enum {
        N = 0x7c00
    };
    float *wide = tsr_array_new((int64_t)6 * N, TSR_F32);
    uint16_t *narrow = tsr_array_new((int64_t)6 * N, TSR_F16);
    uint16_t want;

    for (int i = 0; i < N; i++) {
        const float low = tsrk_cpu_from_f16((uint16_t)i);
        const float high = i + 1 == N ? 65536.0F : tsrk_cpu_from_f16((uint16_t)(i + 1));
        const float middle = low + ((high - low) / 2.0F);

        wide[6 * i] = middle;
        wide[(6 * i) + 1] = nextafterf(middle, 0.0F);
        wide[(6 * i) + 2] = nextafterf(middle, 1e9F);
        for (int k = 0; k < 3; k++) {
            wide[(6 * i) + 3 + k] = -wide[(6 * i) + k];
        }
    }
    convert(narrow, TSR_F16, wide, TSR_F32, (int64_t)6 * N, false);
    for (int i = 0; i < 6 * N; i++) {
        tsr_array_set(&want, TSR_F16, 0, (double)wide[i]);
        CHECK_EQ(narrow[i], want);
        CHECK_EQ(tsrk_cpu_to_f16(wide[i]), want);
        CHECK_EQ(tsrk_ref_to_f16(wide[i]), want);
    }
    tsr_array_free(wide);
    tsr_array_free(narrow);
}

static void specials_keep_their_kind(void)
{
    const float x[9] = {INFINITY, -INFINITY, NAN,        65519.996F, 65520.0F,
                        1e30F,    0x1p-25F,  0x1.8p-25F, -0.0F};
    const uint16_t y[9] = {0x7c00, 0xfc00, 0x7e00, 0x7bff, 0x7c00, 0x7c00, 0x0000, 0x0001, 0x8000};
    uint16_t run[9];

    convert(run, TSR_F16, x, TSR_F32, 9, false);
    for (int i = 0; i < 9; i++) {
        CHECK_EQ(run[i], y[i]);
        CHECK_EQ(tsrk_cpu_to_f16(x[i]), y[i]);
        CHECK_EQ(tsrk_ref_to_f16(x[i]), y[i]);
    }
}

/* A sum is rounded once. */
static void sums_round_once(void)
{
    enum {
        N = 2500
    };
    uint16_t *out = tsr_array_random(N, TSR_F16, 4.0, 1);
    uint16_t *before = tsr_array_copy(out, N, TSR_F16);
    float *x = tsr_array_random(N, TSR_F32, 4.0, 2);

    convert(out, TSR_F16, x, TSR_F32, N, true);
    for (int i = 0; i < N; i++) {
        CHECK_EQ(out[i], tsrk_ref_to_f16(tsrk_ref_from_f16(before[i]) + x[i]));
    }
    tsr_array_free(out);
    tsr_array_free(before);
    tsr_array_free(x);
}

const tsr_test_case tsr_test_cases[] = {
    {"every_value_widens", every_value_widens},
    {"every_border_rounds", every_border_rounds},
    {"specials_keep_their_kind", specials_keep_their_kind},
    {"sums_round_once", sums_round_once},
    {NULL, NULL},
};
