/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_activation.c
 * Functions of one number and silu-mul: cpu against the definition, gradients against central
 * differences, inputs where the logistic function is 0 or 1, writing over the gradient, any number
 * of threads.
 *
 * Errors. exp is within 4 roundings and its argument within 4 of size |2u|; where that is large,
 * x s (1 - s) |2u| stays below 2, so an absolute floor of some units covers it.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <omp.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/tsr_test.h"

#define FACTOR 16.0
#define FLOOR  2.0

static const int64_t sizes[] = {0, 1, 7, 1023, 1024, 1025, 5000};
static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F16};

#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

/* y for backward of functions that read it. */
static const void *from_of(tsrk_function function, const void *x, const void *y)
{
    return function == TSRK_GELU ? x : y;
}

static void check_function(tsrk_function function, int64_t n, tsr_dtype type, double scale,
                           double floor)
{
    void *x = tsr_array_random(n, type, scale, 1);
    void *dy = tsr_array_random(n, type, 1.0, 2);
    void *y = tsr_array_new(n, type);
    for (int add = 0; add < 2; add++) {
        void *got = tsr_array_random(n, type, 1.0, 3);
        void *want = tsr_array_random(n, type, 1.0, 3);
        tsrk_pointwise f = {.x = x, .y = got, .n = n, .function = function, .type = type};
        tsrk_cpu_pointwise(&f);
        f.y = want;
        tsrk_ref_pointwise(&f);
        tsr_array_near(got, want, n, type, FACTOR, floor);
        memcpy(y, want, (size_t)n * tsr_dtype_size(type));
        tsrk_pointwise_bwd b = {.dy = dy,
                                .from = from_of(function, x, y),
                                .dx = got,
                                .n = n,
                                .function = function,
                                .type = type,
                                .accumulate = add == 1};
        memcpy(got, want, (size_t)n * tsr_dtype_size(type));
        tsrk_cpu_pointwise_bwd(&b);
        b.dx = want;
        tsrk_ref_pointwise_bwd(&b);
        tsr_array_near(got, want, n, type, FACTOR, add ? fmax(floor, scale) : floor);
        tsr_array_free(got);
        tsr_array_free(want);
    }
    tsr_array_free(x);
    tsr_array_free(dy);
    tsr_array_free(y);
}

static void check_silu_mul(int64_t n, tsr_dtype type, double scale, bool add)
{
    void *gate = tsr_array_random(n, type, scale, 1);
    void *up = tsr_array_random(n, type, 1.0, 2);
    void *dy = tsr_array_random(n, type, 1.0, 3);
    void *got[2] = {tsr_array_random(n, type, 1.0, 4), tsr_array_random(n, type, 1.0, 5)};
    void *want[2] = {tsr_array_random(n, type, 1.0, 4), tsr_array_random(n, type, 1.0, 5)};
    tsrk_silu_mul_bwd b = {.dy = dy,
                           .gate = gate,
                           .up = up,
                           .n = n,
                           .type = type,
                           .accumulate_dgate = add,
                           .accumulate_dup = !add};
    b.dgate = got[0];
    b.dup = got[1];
    tsrk_cpu_silu_mul_bwd(&b);
    b.dgate = want[0];
    b.dup = want[1];
    tsrk_ref_silu_mul_bwd(&b);
    tsr_array_near(got[0], want[0], n, type, FACTOR, FLOOR);
    tsr_array_near(got[1], want[1], n, type, FACTOR, FLOOR);
    tsrk_cpu_silu_mul(&(tsrk_silu_mul){.gate = gate, .up = up, .y = got[0], .n = n, .type = type});
    tsrk_ref_silu_mul(&(tsrk_silu_mul){.gate = gate, .up = up, .y = want[0], .n = n, .type = type});
    tsr_array_near(got[0], want[0], n, type, FACTOR, FLOOR);
    void *arrays[] = {gate, up, dy, got[0], got[1], want[0], want[1]};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        tsr_array_free(arrays[i]);
    }
}

static void cpu_matches_definition(void)
{
    for (size_t s = 0; s < SIZE_COUNT; s++) {
        for (int t = 0; t < 3; t++) {
            for (int f = 0; f < TSRK_FUNCTION_COUNT; f++) {
                check_function((tsrk_function)f, sizes[s], types[t], 5.0, FLOOR);
            }
            check_silu_mul(sizes[s], types[t], 8.0, t == 0);
            check_silu_mul(sizes[s], types[t], 8.0, t != 0);
        }
    }
}

/* Both sides of where tanh changes from its series to exp. */
static void check_values_keep_relative_accuracy(tsrk_function function)
{
    const int64_t n = 2000;
    double scale = 1e-3;
    for (int turn = 0; turn < 7; turn++, scale *= 3.0) {
        void *x = tsr_array_random(n, TSR_F32, scale, 1);
        void *got = tsr_array_new(n, TSR_F32);
        void *want = tsr_array_new(n, TSR_F32);
        tsrk_pointwise f = {.x = x, .y = got, .n = n, .function = function, .type = TSR_F32};
        tsrk_cpu_pointwise(&f);
        f.y = want;
        tsrk_ref_pointwise(&f);
        tsr_array_near(got, want, n, TSR_F32, FACTOR, 0.0);
        tsr_array_free(x);
        tsr_array_free(got);
        tsr_array_free(want);
    }
}

static void small_inputs_keep_relative_accuracy(void)
{
    for (int f = 0; f < TSRK_FUNCTION_COUNT; f++) {
        /* Where backward takes 1 - y^2 or y (1 - y), the difference's own rounding: of size 1. */
        check_function((tsrk_function)f, 300, TSR_F32, 1e-3, f == TSRK_GELU ? 0.0 : 0x1p-4);
        check_function((tsrk_function)f, 300, TSR_BF16, 1e-3, f == TSRK_GELU ? 0.0 : 0x1p-4);
    }
    check_values_keep_relative_accuracy(TSRK_TANH);
}

/* Where the result is 0 or the input itself, and where exp would overflow. */
static void saturated_inputs_are_finite(void)
{
    const float xs[] = {0.0F,  -0.0F,  10.0F, -10.0F, 20.0F, -20.0F, 87.0F,  -87.0F,
                        89.0F, -89.0F, 1e4F,  -1e4F,  1e9F,  -1e9F,  1e-30F, -1e-30F};
    enum {
        N = sizeof xs / sizeof xs[0]
    };
    float ones[N];
    float got[2][N];
    float want[2][N];
    for (int i = 0; i < N; i++) {
        ones[i] = 1.0F;
    }
    for (int k = 0; k < TSRK_FUNCTION_COUNT; k++) {
        const tsrk_function function = (tsrk_function)k;
        tsrk_pointwise v = {.x = xs, .y = got[0], .n = N, .function = function, .type = TSR_F32};
        tsrk_cpu_pointwise(&v);
        v.y = want[0];
        tsrk_ref_pointwise(&v);
        tsr_array_near(got[0], want[0], N, TSR_F32, FACTOR, FLOOR);
        tsrk_pointwise_bwd b = {.dy = ones,
                                .from = from_of(function, xs, want[0]),
                                .dx = got[1],
                                .n = N,
                                .function = function,
                                .type = TSR_F32};
        tsrk_cpu_pointwise_bwd(&b);
        b.dx = want[1];
        tsrk_ref_pointwise_bwd(&b);
        tsr_array_near(got[1], want[1], N, TSR_F32, FACTOR, FLOOR);
    }
    tsrk_silu_mul f = {.gate = xs, .up = ones, .y = got[0], .n = N, .type = TSR_F32};
    tsrk_cpu_silu_mul(&f);
    f.y = want[0];
    tsrk_ref_silu_mul(&f);
    tsr_array_near(got[0], want[0], N, TSR_F32, FACTOR, FLOOR);
    tsrk_silu_mul_bwd s = {.dy = ones, .gate = xs, .up = ones, .n = N, .type = TSR_F32};
    s.dgate = got[0];
    s.dup = got[1];
    tsrk_cpu_silu_mul_bwd(&s);
    s.dgate = want[0];
    s.dup = want[1];
    tsrk_ref_silu_mul_bwd(&s);
    tsr_array_near(got[0], want[0], N, TSR_F32, FACTOR, FLOOR);
    tsr_array_near(got[1], want[1], N, TSR_F32, FACTOR, FLOOR);
}

static void nan_is_kept(void)
{
    float x = NAN;
    float one = 1.0F;
    float y = 0.0F;
    for (int f = 0; f < TSRK_FUNCTION_COUNT; f++) {
        y = 0.0F;
        tsrk_cpu_pointwise(&(tsrk_pointwise){
            .x = &x, .y = &y, .n = 1, .function = (tsrk_function)f, .type = TSR_F32});
        CHECK(isnan(y));
    }
    y = 0.0F;
    tsrk_cpu_silu_mul(&(tsrk_silu_mul){.gate = &x, .up = &one, .y = &y, .n = 1, .type = TSR_F32});
    CHECK(isnan(y));
}

static void gradient_may_be_overwritten(void)
{
    const int64_t n = 2100;
    for (int t = 0; t < 3; t++) {
        void *x = tsr_array_random(n, types[t], 4.0, 1);
        void *dy = tsr_array_random(n, types[t], 1.0, 2);
        void *dx = tsr_array_new(n, types[t]);
        tsrk_pointwise_bwd b = {.dy = dy, .from = x, .dx = dx, .n = n, .type = types[t]};
        tsrk_cpu_pointwise_bwd(&b);
        b.dx = dy;
        tsrk_cpu_pointwise_bwd(&b);
        tsr_array_same(dy, dx, n, types[t]);
        tsr_array_free(x);
        tsr_array_free(dy);
        tsr_array_free(dx);
    }
}

/* Central differences in f64 with step h: h^2 f''' / 6 < h^2 plus rounding of some 2^-50 / h. */
#define STEP        1e-4
#define SLOPE_LIMIT ((STEP * STEP) + (0x1p-50 / STEP))

static void gradients_are_slopes(void)
{
    for (int i = -40; i <= 40; i++) {
        double x[2] = {(0.2 * i) + STEP, (0.2 * i) - STEP};
        double at = 0.2 * i;
        double one = 1.0;
        double up[2] = {0.7, 0.7};
        double y[2];
        double slope = 0.0;
        double dup = 0.0;
        for (int k = 0; k < TSRK_FUNCTION_COUNT; k++) {
            const tsrk_function function = (tsrk_function)k;
            double mid = 0.0;
            tsrk_pointwise f = {.x = x, .y = y, .n = 2, .function = function, .type = TSR_F64};
            tsrk_ref_pointwise(&f);
            f = (tsrk_pointwise){
                .x = &at, .y = &mid, .n = 1, .function = function, .type = TSR_F64};
            tsrk_ref_pointwise(&f);
            tsrk_ref_pointwise_bwd(&(tsrk_pointwise_bwd){.dy = &one,
                                                         .from = from_of(function, &at, &mid),
                                                         .dx = &slope,
                                                         .n = 1,
                                                         .function = function,
                                                         .type = TSR_F64});
            if (function != TSRK_RELU || i != 0) { /* which has none at 0 */
                CHECK_NEAR(slope, (y[0] - y[1]) / (2.0 * STEP), SLOPE_LIMIT);
            }
        }
        tsrk_ref_silu_mul(&(tsrk_silu_mul){.gate = x, .up = up, .y = y, .n = 2, .type = TSR_F64});
        tsrk_ref_silu_mul_bwd(&(tsrk_silu_mul_bwd){.dy = &one,
                                                   .gate = &at,
                                                   .up = up,
                                                   .dgate = &slope,
                                                   .dup = &dup,
                                                   .n = 1,
                                                   .type = TSR_F64});
        CHECK_NEAR(slope, (y[0] - y[1]) / (2.0 * STEP), SLOPE_LIMIT);
        CHECK_NEAR(dup, at / (1.0 + exp(-at)), 0x1p-50 * (1.0 + fabs(at)));
    }
}

static void bits_do_not_depend_on_threads(void)
{
    const int64_t n = (3 * TSRK_CPU_GRAIN) + 17;
    int before = omp_get_max_threads();
    void *x = tsr_array_random(n, TSR_F32, 6.0, 1);
    void *up = tsr_array_random(n, TSR_F32, 1.0, 2);
    void *one = tsr_array_new(n, TSR_F32);
    void *more = tsr_array_new(n, TSR_F32);
    omp_set_num_threads(1);
    tsrk_cpu_silu_mul(&(tsrk_silu_mul){.gate = x, .up = up, .y = one, .n = n, .type = TSR_F32});
    omp_set_num_threads(3);
    tsrk_cpu_silu_mul(&(tsrk_silu_mul){.gate = x, .up = up, .y = more, .n = n, .type = TSR_F32});
    tsr_array_same(more, one, n, TSR_F32);
    omp_set_num_threads(1);
    tsrk_cpu_pointwise(&(tsrk_pointwise){.x = x, .y = one, .n = n, .type = TSR_F32});
    omp_set_num_threads(3);
    tsrk_cpu_pointwise(&(tsrk_pointwise){.x = x, .y = more, .n = n, .type = TSR_F32});
    tsr_array_same(more, one, n, TSR_F32);
    omp_set_num_threads(before);
    tsr_array_free(x);
    tsr_array_free(up);
    tsr_array_free(one);
    tsr_array_free(more);
}

const tsr_test_case tsr_test_cases[] = {
    {"cpu_matches_definition", cpu_matches_definition},
    {"small_inputs_keep_relative_accuracy", small_inputs_keep_relative_accuracy},
    {"saturated_inputs_are_finite", saturated_inputs_are_finite},
    {"nan_is_kept", nan_is_kept},
    {"gradient_may_be_overwritten", gradient_may_be_overwritten},
    {"gradients_are_slopes", gradients_are_slopes},
    {"bits_do_not_depend_on_threads", bits_do_not_depend_on_threads},
    {NULL, NULL},
};
