/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_random.c
 * Dropout and normal initial values: the definition's bits from the cpu and from every split.
 */
#include "kernels/cpu/cpu_priv.h"

#include "base/rng.h"

#include <math.h>
#include <omp.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/tsr_test.h"

#define KEY 0x123456789abcdef0ULL

/* Words start .. start + n of the stream, each told from its neighbours by what three rates keep.
 */
static void check_words(uint64_t start, int64_t n)
{
    float *ones = tsr_array_new(n, TSR_F32);
    float *y = tsr_array_new(n, TSR_F32);
    for (int64_t i = 0; i < n; i++) {
        ones[i] = 1.0F;
    }
    for (int quarter = 1; quarter < 4; quarter++) {
        const tsrk_dropout args = {.x = ones,
                                   .y = y,
                                   .batch = 1,
                                   .seq = 1,
                                   .cols = n,
                                   .first_col = (int64_t)start,
                                   .global_seq = 1,
                                   .global_cols = INT64_MAX,
                                   .key = KEY,
                                   .p = 0.25F * (float)quarter,
                                   .type = TSR_F32};
        tsrk_cpu_dropout(&args);
        for (int64_t i = 0; i < n; i++) {
            const uint32_t word = tsri_rng_word(KEY, start + (uint64_t)i);
            REQUIRE_EQ(y[i] != 0.0F, word >= (uint32_t)quarter << 30);
        }
    }
    tsr_array_free(ones);
    tsr_array_free(y);
}

static void words_match_the_stream(void)
{
    const uint64_t starts[] = {0, 1, 2, 3, 4, 1021, 0xffffffffULL * 4 - 6, 1ULL << 40};
    const int64_t counts[] = {0, 1, 2, 3, 4, 5, 63, 1023, 1024};
    for (size_t s = 0; s < sizeof starts / sizeof starts[0]; s++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            check_words(starts[s], counts[c]);
        }
    }
}

static void check_dropout(tsrk_dropout a)
{
    int64_t n = a.batch * a.seq * a.cols;
    void *x = tsr_array_random(n, a.type, 1.0, 1);
    void *got = tsr_array_random(n, a.type, 1.0, 2);
    void *want = tsr_array_random(n, a.type, 1.0, 2);
    a.x = x;
    a.y = got;
    tsrk_cpu_dropout(&a);
    a.y = want;
    tsrk_ref_dropout(&a);
    CHECK(tsr_array_same(got, want, n, a.type));
    tsr_array_free(x);
    tsr_array_free(got);
    tsr_array_free(want);
}

/* whole columns and rows, whole columns, and a piece of both; written and added */
static void check_dropout_kinds(int64_t cols, float p, tsr_dtype type)
{
    for (int k = 0; k < 6; k++) {
        bool whole_seq = k % 3 == 0;
        bool whole_cols = k % 3 <= 1;
        check_dropout((tsrk_dropout){.batch = 2,
                                     .seq = 7,
                                     .cols = cols,
                                     .first_row = 3,
                                     .first_pos = whole_seq ? 0 : 2,
                                     .first_col = whole_cols ? 0 : 9,
                                     .global_seq = whole_seq ? 7 : 11,
                                     .global_cols = whole_cols ? cols : cols + 20,
                                     .key = KEY,
                                     .p = p,
                                     .type = type,
                                     .accumulate = k >= 3});
    }
}

static void dropout_has_the_definitions_bits(void)
{
    static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F16};
    const int64_t cols[] = {0, 1, 5, 64, 1025};
    const float rates[] = {0.0F, 0.1F, 0.5F, 0.999F, 1.0F};
    for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
        for (size_t r = 0; r < sizeof rates / sizeof rates[0]; r++) {
            check_dropout_kinds(cols[c], rates[r], types[(c + r) % 3]);
        }
    }
}

static void dropout_large_is_parallel(void)
{
    check_dropout((tsrk_dropout){.batch = 3,
                                 .seq = 129,
                                 .cols = 200,
                                 .global_seq = 129,
                                 .global_cols = 200,
                                 .key = KEY,
                                 .p = 0.2F,
                                 .type = TSR_F32});
}

/* A [4, 6, 10] tensor, and the same from pieces of rows, positions and columns. */
static void dropout_does_not_depend_on_the_split(void)
{
    enum {
        B = 4,
        S = 6,
        C = 10
    };
    float x[B * S * C];
    float whole[B * S * C];
    int kept = 0;
    for (int i = 0; i < B * S * C; i++) {
        x[i] = (float)(i + 1);
    }
    tsrk_dropout a = {.x = x,
                      .y = whole,
                      .batch = B,
                      .seq = S,
                      .cols = C,
                      .global_seq = S,
                      .global_cols = C,
                      .key = KEY,
                      .p = 0.4F,
                      .type = TSR_F32};
    tsrk_cpu_dropout(&a);
    for (int part = 0; part < 8; part++) {
        float piece[(B / 2) * (S / 2) * (C / 2)];
        float out[(B / 2) * (S / 2) * (C / 2)];
        float want[(B / 2) * (S / 2) * (C / 2)];
        a.batch = B / 2;
        a.seq = S / 2;
        a.cols = C / 2;
        a.first_row = (part & 1) ? B / 2 : 0;
        a.first_pos = (part & 2) ? S / 2 : 0;
        a.first_col = (part & 4) ? C / 2 : 0;
        int n = (B / 2) * (S / 2) * (C / 2);
        for (int i = 0; i < n; i++) {
            int64_t row = a.first_row + (i / ((S / 2) * (C / 2)));
            int64_t pos = a.first_pos + (i / (C / 2) % (S / 2));
            int64_t at = (((row * S) + pos) * C) + a.first_col + (i % (C / 2));
            piece[i] = x[at];
            want[i] = whole[at];
            kept += want[i] != 0.0F;
        }
        a.x = piece;
        a.y = out;
        tsrk_cpu_dropout(&a);
        tsr_array_same(out, want, n, TSR_F32);
    }
    /* binomial with 240 draws of 0.6: mean 144, deviation 7.6; five deviations */
    CHECK_NEAR(kept, 0.6 * B * S * C, 5.0 * sqrt(0.6 * 0.4 * B * S * C));
}

static void dropout_scales_what_it_keeps(void)
{
    float x[1000];
    float y[1000];
    for (int i = 0; i < 1000; i++) {
        x[i] = 2.0F;
    }
    tsrk_cpu_dropout(&(tsrk_dropout){.x = x,
                                     .y = y,
                                     .batch = 1,
                                     .seq = 1,
                                     .cols = 1000,
                                     .global_seq = 1,
                                     .global_cols = 1000,
                                     .key = KEY,
                                     .p = 0.75F,
                                     .type = TSR_F32});
    for (int i = 0; i < 1000; i++) {
        bool keep = tsri_rng_word(KEY, (uint64_t)i) >= 3221225472U; /* 0.75 * 2^32 */
        REQUIRE_NEAR(y[i], keep ? 8.0 : 0.0, 0.0);
    }
}

/* A word equal to the threshold is kept: take p from a word of the stream that f32 holds exactly.
 */
static void dropout_keeps_the_threshold(void)
{
    uint64_t index = 0;
    while (tsri_rng_word(KEY, index) % 256 != 0) {
        index++;
    }
    const float x = 1.0F;
    float y[2] = {0.0F, 0.0F};
    tsrk_dropout a = {.x = &x,
                      .batch = 1,
                      .seq = 1,
                      .cols = 1,
                      .first_col = (int64_t)index,
                      .global_seq = 1,
                      .global_cols = 1 << 20,
                      .key = KEY,
                      .p = (float)tsri_rng_word(KEY, index) * 0x1p-32F,
                      .type = TSR_F32};
    a.y = &y[0];
    tsrk_ref_dropout(&a);
    a.y = &y[1];
    tsrk_cpu_dropout(&a);
    CHECK(y[0] > 1.0F);
    CHECK(y[1] > 1.0F);
}

static void check_init(tsrk_init_normal a)
{
    int64_t n = a.rows * a.cols;
    float *got = tsr_array_new(n, TSR_F32);
    float *want = tsr_array_new(n, TSR_F32);
    a.out = got;
    tsrk_cpu_init_normal(&a);
    a.out = want;
    tsrk_ref_init_normal(&a);
    tsr_array_same(got, want, n, TSR_F32);
    for (int64_t i = 0; i < n; i++) {
        int64_t index = ((a.first_row + (i / a.cols)) * a.global_cols) + a.first_col + (i % a.cols);
        double z = (double)tsri_rng_normal(a.key, (uint64_t)index);
        double size = fabs((double)a.mean) + fabs((double)a.std * z);
        REQUIRE_NEAR(want[i], (double)a.mean + ((double)a.std * z), 0x1p-24 * size);
    }
    tsr_array_free(got);
    tsr_array_free(want);
}

static void init_has_the_definitions_bits(void)
{
    const int64_t cols[] = {0, 1, 5, 1023, 1024, 1025};
    for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
        for (int64_t rows = 0; rows < 4; rows++) {
            for (int k = 0; k < 4; k++) {
                check_init((tsrk_init_normal){.rows = rows,
                                              .cols = cols[c],
                                              .first_row = 7 * rows,
                                              .first_col = (k & 1) ? 3 : 0,
                                              .global_cols = cols[c] + ((k & 1) ? 6 : 0),
                                              .key = KEY,
                                              .mean = (k & 2) ? 0.5F : 0.0F,
                                              .std = rows == 3 ? 0.0F : 0.02F});
            }
        }
    }
}

static void init_does_not_depend_on_threads(void)
{
    int before = omp_get_max_threads();
    for (int threads = 1; threads < 4; threads++) {
        omp_set_num_threads(threads);
        check_init((tsrk_init_normal){
            .rows = 100, .cols = 101, .global_cols = 101, .key = KEY, .std = 1.0F});
    }
    omp_set_num_threads(before);
}

const tsr_test_case tsr_test_cases[] = {
    {"words_match_the_stream", words_match_the_stream},
    {"dropout_has_the_definitions_bits", dropout_has_the_definitions_bits},
    {"dropout_large_is_parallel", dropout_large_is_parallel},
    {"dropout_does_not_depend_on_the_split", dropout_does_not_depend_on_the_split},
    {"dropout_scales_what_it_keeps", dropout_scales_what_it_keeps},
    {"dropout_keeps_the_threshold", dropout_keeps_the_threshold},
    {"init_has_the_definitions_bits", init_has_the_definitions_bits},
    {"init_does_not_depend_on_threads", init_does_not_depend_on_threads},
    {NULL, NULL},
};
