/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_softmax.c
 * Softmax: cpu against the definition, gradient against central differences, large and hidden
 * entries, writing over the gradient, any number of threads.
 *
 * Errors. exp is within 4 roundings and its argument within 1 of size up to 12 here; the sum of a
 * row has up to 1024 / 4 roundings of a partial sum, each of which is at most the whole.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <omp.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/tsr_test.h"

#define FACTOR 300.0

static const int64_t shapes[][2] = {{0, 5},    {3, 0},    {4, 1},   {7, 13},
                                    {3, 1023}, {2, 1025}, {2, 3000}};
static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F16};

static void check(int64_t rows, int64_t cols, tsr_dtype type, bool accumulate)
{
    const int64_t n = rows * cols;
    void *x = tsr_array_random(n, type, 6.0, 1);
    void *dy = tsr_array_random(n, type, 1.0, 2);
    void *got = tsr_array_new(n, type);
    void *want = tsr_array_new(n, type);
    void *dgot = tsr_array_random(n, type, 1.0, 3);
    void *dwant = tsr_array_random(n, type, 1.0, 3);
    tsrk_softmax f = {.x = x, .y = got, .rows = rows, .cols = cols, .type = type};
    tsrk_cpu_softmax(&f);
    f.y = want;
    tsrk_ref_softmax(&f);
    CHECK(tsr_array_near(got, want, n, type, FACTOR, 0.0));
    tsrk_softmax_bwd b = {.dy = dy,
                          .y = want,
                          .dx = dgot,
                          .rows = rows,
                          .cols = cols,
                          .type = type,
                          .accumulate = accumulate};
    tsrk_cpu_softmax_bwd(&b);
    b.dx = dwant;
    tsrk_ref_softmax_bwd(&b);
    /* dy - mean of up to 1 is rounded, and added to what was there. */
    CHECK(tsr_array_near(dgot, dwant, n, type, 8.0, 1.0));
    void *arrays[] = {x, dy, got, want, dgot, dwant};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        tsr_array_free(arrays[i]);
    }
}

static void cpu_matches_definition(void)
{
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (int t = 0; t < 3; t++) {
            check(shapes[s][0], shapes[s][1], types[t], t != 1);
        }
    }
}

/* Rows sum to 1 whatever is in them; an entry of -inf gets nothing. */
static void large_and_hidden_entries(void)
{
    const float x[] = {1e30F, 1e30F, -INFINITY, -1e30F, -200.0F, -201.0F, -INFINITY, -200.0F};
    const float want[] = {0.5F,          0.5F,          0.0F, 0.0F,
                          0.4223187983F, 0.1553624034F, 0.0F, 0.4223187983F};
    for (int cpu = 0; cpu < 2; cpu++) {
        float y[8];
        tsrk_softmax f = {.x = x, .y = y, .rows = 2, .cols = 4, .type = TSR_F32};
        if (cpu == 1) {
            tsrk_cpu_softmax(&f);
        } else {
            tsrk_ref_softmax(&f);
        }
        CHECK(tsr_array_near(y, want, 8, TSR_F32, 8.0, 0.0));
    }
}

/* Central differences in f64 with step h: h^2 over 6 times a third derivative, plus rounding of
 * some 2^-50 / h. */
static void gradient_is_the_slope(void)
{
    enum {
        N = 5
    };
    const double step = 1e-4;
    double *x = tsr_array_random(N, TSR_F64, 1.0, 1);
    double *dy = tsr_array_random(N, TSR_F64, 1.0, 2);
    double y[N];
    double dx[N];
    tsrk_softmax f = {.x = x, .y = y, .rows = 1, .cols = N, .type = TSR_F64};
    tsrk_ref_softmax(&f);
    tsrk_ref_softmax_bwd(
        &(tsrk_softmax_bwd){.dy = dy, .y = y, .dx = dx, .rows = 1, .cols = N, .type = TSR_F64});
    for (int i = 0; i < N; i++) {
        double slope = 0.0;
        for (int side = -1; side <= 1; side += 2) {
            x[i] += side * step;
            tsrk_ref_softmax(&f);
            for (int j = 0; j < N; j++) {
                slope += side * dy[j] * y[j] / (2.0 * step);
            }
            x[i] -= side * step;
        }
        CHECK_NEAR(dx[i], slope, (step * step) + (0x1p-50 / step));
    }
    tsr_array_free(x);
    tsr_array_free(dy);
}

static void gradient_may_be_overwritten(void)
{
    const int64_t n = (int64_t)3 * 1500;
    for (int t = 0; t < 3; t++) {
        void *y = tsr_array_random(n, types[t], 1.0, 1);
        void *dy = tsr_array_random(n, types[t], 1.0, 2);
        void *dx = tsr_array_new(n, types[t]);
        tsrk_softmax_bwd b = {
            .dy = dy, .y = y, .dx = dx, .rows = 3, .cols = 1500, .type = types[t]};
        tsrk_cpu_softmax_bwd(&b);
        b.dx = dy;
        tsrk_cpu_softmax_bwd(&b);
        tsr_array_same(dy, dx, n, types[t]);
        tsr_array_free(y);
        tsr_array_free(dy);
        tsr_array_free(dx);
    }
}

static void bits_do_not_depend_on_threads(void)
{
    const int64_t n = (int64_t)50 * 1100;
    int before = omp_get_max_threads();
    void *x = tsr_array_random(n, TSR_F32, 6.0, 1);
    void *one = tsr_array_new(n, TSR_F32);
    void *more = tsr_array_new(n, TSR_F32);
    tsrk_softmax f = {.x = x, .y = one, .rows = 50, .cols = 1100, .type = TSR_F32};
    omp_set_num_threads(1);
    tsrk_cpu_softmax(&f);
    omp_set_num_threads(3);
    f.y = more;
    tsrk_cpu_softmax(&f);
    tsr_array_same(more, one, n, TSR_F32);
    omp_set_num_threads(before);
    tsr_array_free(x);
    tsr_array_free(one);
    tsr_array_free(more);
}

const tsr_test_case tsr_test_cases[] = {
    {"cpu_matches_definition", cpu_matches_definition},
    {"large_and_hidden_entries", large_and_hidden_entries},
    {"gradient_is_the_slope", gradient_is_the_slope},
    {"gradient_may_be_overwritten", gradient_may_be_overwritten},
    {"bits_do_not_depend_on_threads", bits_do_not_depend_on_threads},
    {NULL, NULL},
};
