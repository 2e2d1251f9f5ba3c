/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_elementwise.c
 * Add, scale (copies and casts), zero and block copies: cpu against the definition.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/tsr_test.h"

static const int64_t sizes[] = {0, 1, 7, 1023, 1024, 1025, 70001};
static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F64, TSR_F16};

#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

static void check_add(int64_t n, tsr_dtype a_type, tsr_dtype b_type, tsr_dtype y_type)
{
    void *a = tsr_array_random(n, a_type, 1.0, 1);
    void *b = tsr_array_random(n, b_type, 1.0, 2);
    void *got = tsr_array_new(n, y_type);
    void *want = tsr_array_new(n, y_type);
    tsrk_add args = {
        .a = a, .b = b, .y = got, .n = n, .a_type = a_type, .b_type = b_type, .y_type = y_type};
    tsrk_cpu_add(&args);
    args.y = want;
    tsrk_ref_add(&args);
    /* One rounding to f32 on the way at most. */
    tsr_array_near(got, want, n, y_type, 1.0, 0.0);
    if (a_type == y_type) {
        args.y = a;
        tsrk_cpu_add(&args);
        tsr_array_same(a, got, n, y_type);
    }
    tsr_array_free(a);
    tsr_array_free(b);
    tsr_array_free(got);
    tsr_array_free(want);
}

static void add_matches_definition(void)
{
    for (size_t s = 0; s < SIZE_COUNT; s++) {
        for (int k = 0; k < 64; k++) {
            check_add(sizes[s], types[k % 4], types[(k / 4) % 4], types[k / 16]);
        }
    }
}

static void check_scale(int64_t n, tsr_dtype x_type, tsr_dtype y_type, int variant)
{
    const float device = 0.37F;
    void *x = tsr_array_random(n, x_type, 1.0, 1);
    void *got = tsr_array_random(n, y_type, 1.0, 2);
    void *want = tsr_array_random(n, y_type, 1.0, 2);
    tsrk_scale args = {.x = x,
                       .y = got,
                       .n = n,
                       .factor = (variant & 1) ? 1.0F : -1.7F,
                       .x_type = x_type,
                       .y_type = y_type,
                       .device_factor = (variant & 2) ? &device : NULL,
                       .accumulate = (variant & 4) != 0};
    tsrk_cpu_scale(&args);
    args.y = want;
    tsrk_ref_scale(&args);
    /* The product of the factors and the product with x round; the sum is of size below 3. */
    tsr_array_near(got, want, n, y_type, 3.0, args.accumulate ? 3.0 : 0.0);
    if (args.factor == 1.0F && !args.device_factor && !args.accumulate) {
        tsr_array_same(got, want, n, y_type);
    }
    tsr_array_free(x);
    tsr_array_free(got);
    tsr_array_free(want);
}

static void scale_matches_definition(void)
{
    for (size_t s = 0; s < SIZE_COUNT; s++) {
        for (int k = 0; k < 16; k++) {
            for (int variant = 0; variant < 8; variant++) {
                check_scale(sizes[s], types[k % 4], types[k / 4], variant);
            }
        }
    }
}

static void scale_in_place(void)
{
    for (int t = 0; t < 4; t++) {
        void *x = tsr_array_random(1500, types[t], 1.0, 1);
        void *y = tsr_array_new(1500, types[t]);
        tsrk_scale args = {
            .x = x, .y = y, .n = 1500, .factor = 0.3F, .x_type = types[t], .y_type = types[t]};
        tsrk_cpu_scale(&args);
        args.y = x;
        tsrk_cpu_scale(&args);
        tsr_array_same(x, y, 1500, types[t]);
        args.factor = 1.0F;
        tsrk_cpu_scale(&args);
        tsr_array_same(x, y, 1500, types[t]);
        tsr_array_free(x);
        tsr_array_free(y);
    }
}

/* Halfway cases go to the even neighbour; specials keep their kind. */
static void casts_round_to_even(void)
{
    const float x[] = {0x1.01p0F,     0x1.03p0F, -0x1.01p0F, 0x1.010002p0F, INFINITY,
                       0x1.ffffp127F, -INFINITY, -0.0F,      0x1p-133F,     0x1.8p-133F};
    const float y[] = {0x1p0F,   0x1.04p0F, -0x1p0F, 0x1.02p0F, INFINITY,
                       INFINITY, -INFINITY, -0.0F,   0x1p-133F, 0x1p-132F};
    enum {
        N = sizeof x / sizeof x[0]
    };
    uint16_t narrow[N];
    float back[N];
    tsr_status (*const scales[])(const tsrk_scale *) = {tsrk_ref_scale, tsrk_cpu_scale};
    for (int k = 0; k < 2; k++) {
        tsrk_scale args = {
            .x = x, .y = narrow, .n = N, .factor = 1.0F, .x_type = TSR_F32, .y_type = TSR_BF16};
        scales[k](&args);
        args = (tsrk_scale){
            .x = narrow, .y = back, .n = N, .factor = 1.0F, .x_type = TSR_BF16, .y_type = TSR_F32};
        scales[k](&args);
        tsr_array_same(back, y, N, TSR_F32);
        uint32_t low_nan = 0x7f800001U; /* its payload would be cut off */
        float nan_in;
        memcpy(&nan_in, &low_nan, sizeof nan_in);
        args = (tsrk_scale){.x = &nan_in,
                            .y = narrow,
                            .n = 1,
                            .factor = 1.0F,
                            .x_type = TSR_F32,
                            .y_type = TSR_BF16};
        scales[k](&args);
        CHECK((narrow[0] & 0x7fffU) > 0x7f80U);
    }
}

static void zero_writes_every_byte(void)
{
    const int64_t bytes[] = {0, 1, 65535, 65536, 65537, 300001};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        unsigned char *out = tsr_array_new(bytes[i], TSR_U8);
        memset(out, 1, (size_t)bytes[i]);
        tsrk_cpu_zero(&(tsrk_zero){.out = out, .bytes = (size_t)bytes[i]});
        int64_t left = 0;
        for (int64_t b = 0; b < bytes[i]; b++) {
            left += out[b];
        }
        CHECK_EQ(left, 0);
        tsr_array_free(out);
    }
}

static void check_copy(int64_t outer, int64_t mid, int64_t inner, int64_t gap)
{
    tsrk_copy_blocks args = {.outer = outer,
                             .mid = mid,
                             .inner_bytes = (size_t)inner,
                             .src_outer_stride = (mid * (inner + gap)) + gap,
                             .src_mid_stride = inner + gap,
                             .dst_outer_stride = (mid * (inner + (2 * gap))) + 1,
                             .dst_mid_stride = inner + (2 * gap)};
    int64_t src_bytes = outer * args.src_outer_stride;
    int64_t dst_bytes = outer * args.dst_outer_stride;
    unsigned char *src = tsr_array_new(src_bytes, TSR_U8);
    unsigned char *got = tsr_array_new(dst_bytes, TSR_U8);
    unsigned char *want = tsr_array_new(dst_bytes, TSR_U8);
    for (int64_t i = 0; i < src_bytes; i++) {
        src[i] = (unsigned char)((i * 131 + i / 251) % 255 + 1);
    }
    args.src = src;
    args.dst = got;
    tsrk_cpu_copy_blocks(&args);
    for (int64_t i = 0; i < outer * mid * inner; i++) {
        int64_t o = i / (mid * inner);
        int64_t m = i / inner % mid;
        int64_t b = i % inner;
        want[(o * args.dst_outer_stride) + (m * args.dst_mid_stride) + b] =
            src[(o * args.src_outer_stride) + (m * args.src_mid_stride) + b];
    }
    CHECK_EQ(memcmp(got, want, (size_t)dst_bytes), 0);
    memset(got, 0, (size_t)dst_bytes);
    args.dst = got;
    tsrk_ref_copy_blocks(&args);
    CHECK_EQ(memcmp(got, want, (size_t)dst_bytes), 0);
    tsr_array_free(src);
    tsr_array_free(got);
    tsr_array_free(want);
}

static void copies_of_blocks(void)
{
    const int64_t inner[] = {0, 1, 2, 4, 12, 1000, 65536, 70000};
    for (size_t i = 0; i < sizeof inner / sizeof inner[0]; i++) {
        for (int64_t gap = 0; gap < 6; gap += 5) {
            check_copy(0, 3, inner[i], gap);
            check_copy(3, 0, inner[i], gap);
            check_copy(1, 1, inner[i], gap);
            check_copy(3, 5, inner[i], gap);
        }
    }
    check_copy(2, 40000, 2, 4);
    check_copy(40000, 1, 4, 0);
}

const tsr_test_case tsr_test_cases[] = {
    {"add_matches_definition", add_matches_definition},
    {"scale_matches_definition", scale_matches_definition},
    {"scale_in_place", scale_in_place},
    {"casts_round_to_even", casts_round_to_even},
    {"zero_writes_every_byte", zero_writes_every_byte},
    {"copies_of_blocks", copies_of_blocks},
    {NULL, NULL},
};
