/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_sum.c
 * Sums over a dim and repeated products: cpu against the definition, each as the other's gradient,
 * any number of threads.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <omp.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/tsr_test.h"

/* outer, mid, inner: nothing, rows, columns, side by side, and blocks' edges. */
static const int64_t shapes[][3] = {{1, 0, 5},    {3, 0, 1},    {0, 4, 5},    {1, 3, 0},
                                    {1, 1, 1},    {1, 31, 127}, {1, 33, 128}, {2, 257, 129},
                                    {3, 70, 300}, {5, 1025, 1}, {2, 2050, 1}, {1, 1, 2000},
                                    {7, 1, 3},    {4, 9, 2}};
static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F16};

#define SHAPE_COUNT (int)(sizeof shapes / sizeof shapes[0])

/* f32 within 32 rows or a chunk of 1024, whose sums have up to 1024 / 4 roundings of a partial sum
 * below 1024; double across. */
static void check_sum(const int64_t *shape, tsr_dtype type, tsr_dtype out_type, bool weighted,
                      bool accumulate)
{
    const int64_t count = shape[0] * shape[1] * shape[2];
    const int64_t outs = shape[0] * shape[2];
    const double steps = shape[2] == 1 ? fmin(256.0, (double)shape[1]) : 32.0;
    void *x = tsr_array_random(count, type, 1.0, 1);
    void *w = tsr_array_random(count, TSR_F32, 1.0, 2);
    tsrk_sum want = {.x = x,
                     .w = weighted ? w : NULL,
                     .out = tsr_array_random(outs, out_type, 1.0, 3),
                     .outer = shape[0],
                     .mid = shape[1],
                     .inner = shape[2],
                     .factor = 0.75F,
                     .x_type = type,
                     .w_type = TSR_F32,
                     .out_type = out_type,
                     .accumulate = accumulate};
    tsrk_sum got = want;
    got.out = tsr_array_random(outs, out_type, 1.0, 3);
    tsrk_ref_sum(&want);
    tsrk_cpu_sum(&got);
    CHECK(tsr_array_near(got.out, want.out, outs, out_type, steps + 4.0, steps));
    tsr_array_free(x);
    tsr_array_free(w);
    tsr_array_free(want.out);
    tsr_array_free(got.out);
}

static void sums(void)
{
    for (int i = 0; i < SHAPE_COUNT * 9; i++) {
        for (int flags = 0; flags < 4; flags++) {
            check_sum(shapes[i / 9], types[i % 3], types[i / 3 % 3], (flags & 1) != 0,
                      (flags & 2) != 0);
        }
    }
}

static void check_multiply(const int64_t *shape, tsr_dtype type, tsr_dtype y_type, bool with_a,
                           bool accumulate)
{
    const int64_t count = shape[0] * shape[1] * shape[2];
    void *a = tsr_array_random(count, type, 1.0, 1);
    void *b = tsr_array_random(shape[0] * shape[2], TSR_F32, 1.0, 2);
    tsrk_multiply want = {.a = with_a ? a : NULL,
                          .b = b,
                          .y = tsr_array_random(count, y_type, 1.0, 3),
                          .outer = shape[0],
                          .mid = shape[1],
                          .inner = shape[2],
                          .factor = 0.75F,
                          .a_type = type,
                          .b_type = TSR_F32,
                          .y_type = y_type,
                          .accumulate = accumulate};
    tsrk_multiply got = want;
    got.y = tsr_array_random(count, y_type, 1.0, 3);
    tsrk_ref_multiply(&want);
    tsrk_cpu_multiply(&got);
    CHECK(tsr_array_near(got.y, want.y, count, y_type, 3.0, 1.0));
    tsr_array_free(a);
    tsr_array_free(b);
    tsr_array_free(want.y);
    tsr_array_free(got.y);
}

static void products(void)
{
    for (int i = 0; i < SHAPE_COUNT * 9; i++) {
        for (int flags = 0; flags < 4; flags++) {
            check_multiply(shapes[i / 9], types[i % 3], types[i / 3 % 3], (flags & 1) != 0,
                           (flags & 2) != 0);
        }
    }
}

/* <dy, a * b> = <db, b> for db = sum of dy a: what backward relies on. */
static void each_is_the_others_gradient(void)
{
    enum {
        OUTER = 3,
        MID = 5,
        INNER = 4,
        N = OUTER * MID * INNER,
        M = OUTER * INNER
    };
    double *a = tsr_array_random(N, TSR_F64, 1.0, 1);
    double *b = tsr_array_random(M, TSR_F64, 1.0, 2);
    double *dy = tsr_array_random(N, TSR_F64, 1.0, 3);
    double y[N];
    double db[M];
    double left = 0.0;
    double right = 0.0;
    tsrk_ref_multiply(&(tsrk_multiply){.a = a,
                                       .b = b,
                                       .y = y,
                                       .outer = OUTER,
                                       .mid = MID,
                                       .inner = INNER,
                                       .factor = 0.5F,
                                       .a_type = TSR_F64,
                                       .b_type = TSR_F64,
                                       .y_type = TSR_F64});
    tsrk_ref_sum(&(tsrk_sum){.x = dy,
                             .w = a,
                             .out = db,
                             .outer = OUTER,
                             .mid = MID,
                             .inner = INNER,
                             .factor = 0.5F,
                             .x_type = TSR_F64,
                             .w_type = TSR_F64,
                             .out_type = TSR_F64});
    for (int i = 0; i < N; i++) {
        left += dy[i] * y[i];
    }
    for (int i = 0; i < M; i++) {
        right += db[i] * b[i];
    }
    CHECK_NEAR(left, right, 0x1p-52 * N);
    CHECK(fabs(left) > 0x1p-10);
    tsr_array_free(a);
    tsr_array_free(b);
    tsr_array_free(dy);
}

static void bits_do_not_depend_on_threads(void)
{
    static const int64_t large[][3] = {{1, 700, 300}, {900, 70, 1}, {40, 70, 30}};
    int before = omp_get_max_threads();
    for (int i = 0; i < 3; i++) {
        const int64_t *s = large[i];
        void *x = tsr_array_random(s[0] * s[1] * s[2], TSR_F32, 1.0, 1);
        void *one = tsr_array_new(s[0] * s[2], TSR_F32);
        void *more = tsr_array_new(s[0] * s[2], TSR_F32);
        tsrk_sum args = {.x = x,
                         .out = one,
                         .outer = s[0],
                         .mid = s[1],
                         .inner = s[2],
                         .factor = 1.0F,
                         .x_type = TSR_F32,
                         .out_type = TSR_F32};
        omp_set_num_threads(1);
        tsrk_cpu_sum(&args);
        omp_set_num_threads(3);
        args.out = more;
        tsrk_cpu_sum(&args);
        tsr_array_same(more, one, s[0] * s[2], TSR_F32);
        tsr_array_free(x);
        tsr_array_free(one);
        tsr_array_free(more);
    }
    omp_set_num_threads(before);
}

/* The comparison must notice one term too few. */
static void a_missing_term_is_noticed(void)
{
    float *x = tsr_array_random(300, TSR_F32, 1.0, 1);
    float out[2] = {0.0F, 0.0F};
    tsrk_sum args = {.x = x,
                     .out = &out[0],
                     .outer = 1,
                     .mid = 300,
                     .inner = 1,
                     .factor = 1.0F,
                     .x_type = TSR_F32,
                     .out_type = TSR_F32};
    tsrk_ref_sum(&args);
    args.out = &out[1];
    args.mid = 299;
    tsrk_cpu_sum(&args);
    CHECK(fabs((double)out[0] - (double)out[1]) > 2.0 * 260.0 * 256.0 * 0x1p-24);
    tsr_array_free(x);
}

const tsr_test_case tsr_test_cases[] = {
    {"sums", sums},
    {"products", products},
    {"each_is_the_others_gradient", each_is_the_others_gradient},
    {"bits_do_not_depend_on_threads", bits_do_not_depend_on_threads},
    {"a_missing_term_is_noticed", a_missing_term_is_noticed},
    {NULL, NULL},
};
