/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_rope.c
 * Rotary embedding against golden values, the cpu against the definition, and turning back.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/golden.h"
#include "support/tsr_test.h"

typedef tsr_status (*rope_fn)(const tsrk_rope *args);

/* Cosine and sine are rounded, two products and a sum: 4 roundings of size |x0| + |x1|. */
#define FACTOR 4.0

/* Golden files have heads before positions: swap the two inner dims of [batch, a, b, dim]. */
static float *swapped(const float *x, int64_t batch, int64_t a, int64_t b, int64_t dim)
{
    float *out = tsr_array_new(batch * a * b * dim, TSR_F32);
    for (int64_t i = 0; i < batch * a * b; i++) {
        int64_t to = (((i / (a * b)) * b) + (i % b)) * a + ((i / b) % a);
        memcpy(out + (to * dim), x + (i * dim), (size_t)dim * sizeof(float));
    }
    return out;
}

static void check_golden_turn(const tsr_golden *tensors, const char *name, const char *in,
                              const char *out, tsrk_rope a)
{
    char path[64];
    int64_t n = a.batch * a.seq * a.heads * a.dim;
    (void)snprintf(path, sizeof path, "%s.%s", name, in);
    REQUIRE_EQ(tsr_golden_count(tensors, path), n);
    float *x =
        swapped(tsr_golden_tensor(tensors, path, NULL, NULL, NULL), a.batch, a.heads, a.seq, a.dim);
    (void)snprintf(path, sizeof path, "%s.%s", name, out);
    REQUIRE_EQ(tsr_golden_count(tensors, path), n);
    float *want =
        swapped(tsr_golden_tensor(tensors, path, NULL, NULL, NULL), a.batch, a.heads, a.seq, a.dim);
    float *got = tsr_array_new(n, TSR_F32);
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)x[i]));
    }
    const rope_fn turns[] = {tsrk_ref_rope, tsrk_cpu_rope};
    for (int k = 0; k < 2; k++) {
        a.x = x;
        a.y = got;
        turns[k](&a);
        tsr_array_near(got, want, n, TSR_F32, FACTOR, 2.0 * largest);
    }
    tsr_array_free(x);
    tsr_array_free(want);
    tsr_array_free(got);
}

static int64_t golden_int(const tsr_golden *json, int c, const char *key)
{
    char path[64];
    (void)snprintf(path, sizeof path, "cases/%d/%s", c, key);
    return (int64_t)tsr_golden_number(json, path);
}

static void golden_values(void)
{
    tsr_golden *json = tsr_golden_open("rope/rope.json");
    tsr_golden *tensors = tsr_golden_open("rope/rope.safetensors");
    REQUIRE(json && tensors);
    REQUIRE(tsr_golden_length(json, "cases") >= 4);
    for (int c = 0; c < tsr_golden_length(json, "cases"); c++) {
        char path[64];
        (void)snprintf(path, sizeof path, "cases/%d/name", c);
        const char *name = tsr_golden_text(json, path);
        (void)snprintf(path, sizeof path, "cases/%d/theta", c);
        tsrk_rope a = {.batch = golden_int(json, c, "batch"),
                       .seq = golden_int(json, c, "seq"),
                       .heads = golden_int(json, c, "heads"),
                       .dim = golden_int(json, c, "head_dim"),
                       .theta = tsr_golden_number(json, path),
                       .type = TSR_F32};
        float *table = tsr_array_new(a.seq * a.dim, TSR_F32);
        tsrk_cpu_rope_table(
            &(tsrk_rope_table){.table = table, .seq = a.seq, .dim = a.dim, .theta = a.theta});
        for (int with_table = 0; with_table < 2; with_table++) {
            a.table = with_table ? table : NULL;
            a.inverse = false;
            check_golden_turn(tensors, name, "x", "y", a);
            a.inverse = true;
            check_golden_turn(tensors, name, "dy", "dx", a);
        }
        tsr_array_free(table);
    }
    tsr_golden_close(json);
    tsr_golden_close(tensors);
}

static void check_rope(tsrk_rope a)
{
    int64_t n = a.batch * a.seq * a.heads * a.dim;
    void *x = tsr_array_random(n, a.type, 1.0, 1);
    void *got = tsr_array_random(n, a.type, 1.0, 2);
    void *want = tsr_array_random(n, a.type, 1.0, 2);
    float *table = tsr_array_new(a.seq * a.dim, TSR_F32);
    float *table_want = tsr_array_new(a.seq * a.dim, TSR_F32);
    tsrk_rope_table t = {
        .table = table, .seq = a.seq, .dim = a.dim, .first = a.first, .theta = a.theta};
    tsrk_cpu_rope_table(&t);
    t.table = table_want;
    tsrk_ref_rope_table(&t);
    tsr_array_same(table, table_want, a.seq * a.dim, TSR_F32);
    a.x = x;
    for (int with_table = 0; with_table < 2; with_table++) {
        a.table = with_table ? table : NULL;
        a.y = got;
        tsrk_cpu_rope(&a);
        a.y = want;
        tsrk_ref_rope(&a);
        tsr_array_near(got, want, n, a.type, FACTOR, a.accumulate ? 4.0 : 2.0);
        memcpy(got, want, (size_t)n * tsr_dtype_size(a.type));
    }
    tsr_array_free(x);
    tsr_array_free(got);
    tsr_array_free(want);
    tsr_array_free(table);
    tsr_array_free(table_want);
}

static void cpu_matches_definition(void)
{
    const int64_t dims[] = {0, 2, 6, 32, 34, 128, 510, 516};
    const int64_t seqs[] = {0, 1, 19};
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
        for (size_t s = 0; s < sizeof seqs / sizeof seqs[0]; s++) {
            for (int k = 0; k < 12; k++) {
                check_rope((tsrk_rope){.batch = 2,
                                       .seq = seqs[s],
                                       .heads = 3,
                                       .dim = dims[d],
                                       .first = (k & 1) ? 1000 : 0,
                                       .theta = 10000.0,
                                       .type = k >= 8    ? TSR_F16
                                               : (k & 1) ? TSR_BF16
                                                         : TSR_F32,
                                       .inverse = (k & 2) != 0,
                                       .accumulate = (k & 4) != 0});
            }
        }
    }
}

static void in_place_and_back(void)
{
    const int64_t n = (int64_t)2 * 9 * 4 * 20;
    float *x = tsr_array_random(n, TSR_F32, 1.0, 1);
    float *y = tsr_array_new(n, TSR_F32);
    float *before = tsr_array_copy(x, n, TSR_F32);
    tsrk_rope a = {.x = x,
                   .y = y,
                   .batch = 2,
                   .seq = 9,
                   .heads = 4,
                   .dim = 20,
                   .first = 5,
                   .theta = 10000.0,
                   .type = TSR_F32};
    tsrk_cpu_rope(&a);
    a.y = x;
    tsrk_cpu_rope(&a);
    tsr_array_same(x, y, n, TSR_F32);
    a.inverse = true;
    tsrk_cpu_rope(&a);
    /* twice the roundings of one turn; cos^2 + sin^2 of rounded factors is 1 within two more */
    tsr_array_near(x, before, n, TSR_F32, (2.0 * FACTOR) + 2.0, 2.0);
    tsr_array_free(x);
    tsr_array_free(y);
    tsr_array_free(before);
}

static void bits_do_not_depend_on_threads(void)
{
    const int64_t n = (int64_t)2 * 130 * 4 * 64;
    int before = omp_get_max_threads();
    float *x = tsr_array_random(n, TSR_F32, 1.0, 1);
    float *one = tsr_array_new(n, TSR_F32);
    float *more = tsr_array_new(n, TSR_F32);
    CHECK(n > TSRK_CPU_GRAIN); /* or one thread would do it all */
    tsrk_rope a = {.x = x,
                   .y = one,
                   .batch = 2,
                   .seq = 130,
                   .heads = 4,
                   .dim = 64,
                   .theta = 10000.0,
                   .type = TSR_F32};
    omp_set_num_threads(1);
    tsrk_cpu_rope(&a);
    omp_set_num_threads(3);
    a.y = more;
    tsrk_cpu_rope(&a);
    tsr_array_same(more, one, n, TSR_F32);
    omp_set_num_threads(before);
    tsr_array_free(x);
    tsr_array_free(one);
    tsr_array_free(more);
}

const tsr_test_case tsr_test_cases[] = {
    {"golden_values", golden_values},
    {"cpu_matches_definition", cpu_matches_definition},
    {"in_place_and_back", in_place_and_back},
    {"bits_do_not_depend_on_threads", bits_do_not_depend_on_threads},
    {NULL, NULL},
};
