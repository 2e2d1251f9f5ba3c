/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_matmul.c
 * matmul and column sums: cpu against the definition in every type and form, sizes around the
 * borders of tiles, and the same bits for any number of threads.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <omp.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/tsr_test.h"

typedef struct form {
    int64_t m, n, k;
    tsr_dtype a, b, c, bias; /* bias TSR_DTYPE_DEFAULT: none */
    bool trans_a, trans_b, accumulate;
} form;

typedef struct data {
    tsrk_matmul args;
    void *a, *b, *bias, *c, *workspace;
    int64_t c_count;
} data;

/* Rows are padded, so that a kernel that ignores a stride fails. */
static data make(const form *f, int threads)
{
    data d = {.args = {.m = f->m,
                       .n = f->n,
                       .k = f->k,
                       .lda = (f->trans_a ? f->m : f->k) + 3,
                       .ldb = (f->trans_b ? f->k : f->n) + 1,
                       .ldc = f->n + 2,
                       .a_type = f->a,
                       .b_type = f->b,
                       .c_type = f->c,
                       .bias_type = f->bias,
                       .trans_a = f->trans_a,
                       .trans_b = f->trans_b,
                       .accumulate = f->accumulate}};
    d.c_count = f->m * d.args.ldc;
    d.a = tsr_array_random((f->trans_a ? f->k : f->m) * d.args.lda, f->a, 1.0, 1);
    d.b = tsr_array_random((f->trans_b ? f->n : f->k) * d.args.ldb, f->b, 1.0, 2);
    d.c = tsr_array_random(d.c_count, f->c, 1.0, 3);
    d.bias = f->bias != TSR_DTYPE_DEFAULT ? tsr_array_random(f->n, f->bias, 1.0, 4) : NULL;
    int64_t floats =
        (int64_t)(tsrk_table_cpu()->workspace(TSRK_MATMUL, &d.args, threads) / sizeof(float));
    d.workspace = tsr_array_random(floats, TSR_F32, 1e9, 5);
    d.args.a = d.a;
    d.args.b = d.b;
    d.args.c = d.c;
    d.args.bias = d.bias;
    d.args.workspace = d.workspace;
    return d;
}

static void drop(data *d)
{
    tsr_array_free(d->a);
    tsr_array_free(d->b);
    tsr_array_free(d->bias);
    tsr_array_free(d->c);
    tsr_array_free(d->workspace);
}

/* Products are below 1, so partial sums are below sqrt(k) but for rare draws; k of them round. In
 * all at most 2^-24 k sqrt(k), and half of it is never reached as roundings go both ways. Padding
 * beyond n must stay as it was. */
static bool agrees(const form *f)
{
    data want = make(f, 1);
    data got = make(f, omp_get_max_threads());
    tsrk_ref_matmul(&want.args);
    tsrk_cpu_matmul(&got.args);
    double terms = (double)f->k + 2.0;
    bool good = tsr_array_near(got.c, want.c, got.c_count, f->c, 0.5 * terms, sqrt(terms));
    drop(&want);
    drop(&got);
    return good;
}

static void sizes_and_transposes(void)
{
    static const int64_t sizes[][3] = {{0, 5, 3},    {5, 0, 3},    {4, 3, 0},     {1, 1, 1},
                                       {1, 17, 9},   {19, 1, 33},  {15, 16, 17},  {64, 64, 64},
                                       {255, 9, 31}, {256, 8, 40}, {257, 33, 20}, {31, 257, 63}};
    for (size_t i = 0; i < 8 * sizeof sizes / sizeof sizes[0]; i++) {
        const int64_t *size = sizes[i / 18];
        form f = {.m = size[0],
                  .n = size[1],
                  .k = size[2],
                  .a = TSR_F32,
                  .b = TSR_F32,
                  .c = TSR_F32,
                  .bias = (i & 1) != 0 ? TSR_F32 : TSR_DTYPE_DEFAULT,
                  .trans_a = (i & 2) != 0,
                  .trans_b = (i & 4) != 0,
                  .accumulate = (i + (i / 8)) % 2 == 0};
        REQUIRE(agrees(&f));
    }
}

/* A c so large that its tiles are the larger ones. */
static void large_tiles(void)
{
    form f = {.m = 4100, .n = 4100, .k = 2, .a = TSR_F32, .b = TSR_BF16, .c = TSR_F32};
    REQUIRE(agrees(&f));
}

/* Every mix of types; some at a size that takes the bf16 product. */
static void types(void)
{
    static const tsr_dtype type[] = {TSR_F32, TSR_BF16, TSR_F16};
    static const tsr_dtype bias[] = {TSR_DTYPE_DEFAULT, TSR_F32, TSR_BF16, TSR_F16};
    for (int i = 0; i < 216; i++) {
        bool large = i % 5 == 0;
        form f = {.m = large ? 140 : 33,
                  .n = large ? 130 : 29,
                  .k = large ? 260 : 40,
                  .a = type[i % 3],
                  .b = type[i / 3 % 3],
                  .c = type[i / 9 % 3],
                  .bias = bias[i / 54],
                  .trans_a = i % 7 < 3,
                  .trans_b = i % 4 < 2,
                  .accumulate = i / 27 % 2 != 0};
        REQUIRE(agrees(&f));
    }
}

/* Several tiles of each kind, blocks of k that are converted one by one, bf16 tiles of two shapes.
 */
static void tiles_and_blocks(void)
{
    static const tsr_dtype type[] = {TSR_F32, TSR_BF16, TSR_F16};
    static const int mixes[] = {0, 4, 8, 12, 13, 16, 20, 22, 24}; /* base 3: c, b, a */
    for (int k = 0; k < 9; k++) {
        int i = mixes[k];
        form f = {.m = 263,
                  .n = 259,
                  .k = 517,
                  .a = type[i % 3],
                  .b = type[i / 3 % 3],
                  .c = type[i / 9],
                  .bias = TSR_F32,
                  .trans_a = i % 3 == 0,
                  .trans_b = k % 2 == 0,
                  .accumulate = k > 2};
        REQUIRE(agrees(&f));
    }
}

static void threads_do_not_change_bits(void)
{
    static const tsr_dtype type[] = {TSR_F32, TSR_BF16, TSR_F16};
    int before = omp_get_max_threads();
    for (int i = 0; i < 18; i++) {
        form f = {.m = 300,
                  .n = 290,
                  .k = i < 9 ? 1100 : 70,
                  .a = type[i % 3],
                  .b = type[i % 3],
                  .c = type[i / 3 % 3],
                  .trans_a = true};
        data one = make(&f, 1);
        omp_set_num_threads(1);
        tsrk_cpu_matmul(&one.args);
        for (int threads = 2; threads <= 3; threads++) {
            data more = make(&f, threads);
            omp_set_num_threads(threads);
            tsrk_cpu_matmul(&more.args);
            CHECK(tsr_array_same(more.c, one.c, one.c_count, f.c));
            drop(&more);
        }
        drop(&one);
    }
    omp_set_num_threads(before);
}

/* A layer's three products, in which the team decides on runs of rows; narrow ones, whose slices
 * are several blocks deep. */
static void tiles_do_not_change_bits(void)
{
    static const int64_t size[][3] = {{512, 512, 512},   {512, 1408, 512}, {1408, 512, 2048},
                                      {1000, 512, 1408}, {256, 700, 1024}, {2048, 300, 64},
                                      {200, 100, 3000},  {45, 30, 9000}};
    int before = omp_get_max_threads();
    for (int i = 0; i < 24; i++) {
        form f = {.m = size[i % 8][0],
                  .n = size[i % 8][1],
                  .k = size[i % 8][2],
                  .a = TSR_F32,
                  .b = TSR_F32,
                  .c = TSR_F32,
                  .trans_a = i / 8 == 2,
                  .trans_b = i / 8 == 0,
                  .accumulate = i % 4 == 3};
        data one = make(&f, 1);
        data more = make(&f, 3);
        omp_set_num_threads(1);
        tsrk_cpu_matmul(&one.args);
        omp_set_num_threads(3);
        tsrk_cpu_matmul(&more.args);
        CHECK(tsr_array_same(more.c, one.c, one.c_count, f.c));
        drop(&more);
        drop(&one);
    }
    omp_set_num_threads(before);
}

/* NaN must come out, and a stale NaN in c must not when c is not accumulated to. */
static void not_a_number(void)
{
    form f = {.m = 20, .n = 20, .k = 20, .a = TSR_F32, .b = TSR_F32, .c = TSR_F32};
    data d = make(&f, 1);
    for (int64_t i = 0; i < d.c_count; i++) {
        tsr_array_set(d.c, TSR_F32, i, (double)NAN);
    }
    tsr_array_set(d.a, TSR_F32, 3 * d.args.lda, (double)NAN);
    tsrk_cpu_matmul(&d.args);
    int wrong = 0;
    for (int64_t i = 0; i < f.m * f.n; i++) {
        double value = tsr_array_get(d.c, TSR_F32, (i / f.n * d.args.ldc) + (i % f.n));
        wrong += (isnan(value) != 0) != (i / f.n == 3);
    }
    CHECK_EQ(wrong, 0);
    drop(&d);
}

/* A batch is its products one by one, with gaps between operands, whatever the threads. */
static void batches(void)
{
    static const int64_t sizes[][4] = {
        {1, 4, 5, 6}, {3, 7, 16, 9}, {5, 64, 64, 64}, {2, 150, 90, 200}};
    static const tsr_dtype types[] = {TSR_F32, TSR_BF16};
    int before = omp_get_max_threads();
    for (int i = 0; i < 4 * 8; i++) {
        const int64_t *s = sizes[i / 8];
        tsrk_matmul args = {.m = s[1],
                            .n = s[2],
                            .k = s[3],
                            .batch = s[0],
                            .stride_a = (s[1] * s[3]) + 3,
                            .stride_b = (s[3] * s[2]) + 5,
                            .stride_c = (s[1] * s[2]) + 7,
                            .ldc = s[2],
                            .a_type = types[i % 2],
                            .b_type = types[i % 2],
                            .c_type = TSR_F32,
                            .trans_a = i / 2 % 2 != 0,
                            .trans_b = i / 4 % 2 != 0};
        args.lda = args.trans_a ? s[1] : s[3];
        args.ldb = args.trans_b ? s[3] : s[2];
        int64_t c_count = s[0] * args.stride_c;
        void *a = tsr_array_random(s[0] * args.stride_a, args.a_type, 1.0, 1);
        void *b = tsr_array_random(s[0] * args.stride_b, args.b_type, 1.0, 2);
        size_t bytes = tsrk_table_cpu()->workspace(TSRK_MATMUL, &args, 4);
        void *workspace = tsr_array_new((int64_t)(bytes / sizeof(float)) + 1, TSR_F32);
        void *c[3];
        args.a = a;
        args.b = b;
        args.workspace = workspace;
        for (int t = 0; t < 3; t++) {
            args.c = c[t] = tsr_array_random(c_count, TSR_F32, 1.0, 3);
            omp_set_num_threads(t == 1 ? 1 : 4);
            if (t == 0) {
                tsrk_ref_matmul(&args);
            } else {
                tsrk_cpu_matmul(&args);
            }
        }
        CHECK(tsr_array_near(c[1], c[0], c_count, TSR_F32, (double)s[3], sqrt((double)s[3])));
        CHECK(tsr_array_same(c[2], c[1], c_count, TSR_F32));
        void *arrays[] = {a, b, workspace, c[0], c[1], c[2]};
        for (size_t k = 0; k < sizeof arrays / sizeof arrays[0]; k++) {
            tsr_array_free(arrays[k]);
        }
    }
    omp_set_num_threads(before);
}

/* The comparison must notice one product too few. */
static void a_missing_product_is_noticed(void)
{
    form f = {.m = 9, .n = 9, .k = 300, .a = TSR_F32, .b = TSR_F32, .c = TSR_F32};
    data want = make(&f, 1);
    data got = make(&f, 1);
    tsrk_ref_matmul(&want.args);
    got.args.k = f.k - 1;
    tsrk_cpu_matmul(&got.args);
    double largest = 0.0;
    for (int64_t i = 0; i < got.c_count; i++) {
        largest = fmax(largest, fabs(tsr_array_get(got.c, f.c, i) - tsr_array_get(want.c, f.c, i)));
    }
    double terms = (double)f.k + 2.0;
    CHECK(largest > 100.0 * 0x1p-24 * terms * sqrt(terms));
    drop(&want);
    drop(&got);
}

const tsr_test_case tsr_test_cases[] = {
    {"sizes_and_transposes", sizes_and_transposes},
    {"large_tiles", large_tiles},
    {"types", types},
    {"tiles_and_blocks", tiles_and_blocks},
    {"threads_do_not_change_bits", threads_do_not_change_bits},
    {"tiles_do_not_change_bits", tiles_do_not_change_bits},
    {"not_a_number", not_a_number},
    {"batches", batches},
    {"a_missing_product_is_noticed", a_missing_product_is_noticed},
    {NULL, NULL},
};
