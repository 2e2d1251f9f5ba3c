/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_attention.c
 * Attention: the definition and cpu against float64 goldens, cpu against the definition around the
 * borders of blocks, the definition's gradients against central differences, causality, and the
 * same bits for any number of threads.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/golden.h"
#include "support/tsr_test.h"

typedef struct shape {
    int64_t batch, seq, heads, kv_heads, dim;
    int64_t kv_seq; /* 0: seq */
    tsr_dtype type;
    bool full;
} shape;

static int64_t keys_of(const shape *s)
{
    return s->kv_seq > 0 ? s->kv_seq : s->seq;
}

/* All arrays of a forward and a backward call; Q, K, V and DOUT are inputs. */
enum {
    Q,
    K,
    V,
    OUT,
    DOUT,
    DQ,
    DK,
    DV,
    ARRAYS
};

typedef struct data {
    shape s;
    void *array[ARRAYS];
    float *lse;
    void *workspace;
    tsrk_attention forward;
    tsrk_attention_bwd backward;
} data;

static bool has_kv_heads(int array)
{
    return array == K || array == V || array == DK || array == DV;
}

static int64_t count_of(const shape *s, int array)
{
    int64_t rows = has_kv_heads(array) ? keys_of(s) * s->kv_heads : s->seq * s->heads;
    return s->batch * rows * s->dim;
}

static void bind_args(data *d, float scale, int threads)
{
    const shape *s = &d->s;
    d->forward = (tsrk_attention){.q = d->array[Q],
                                  .k = d->array[K],
                                  .v = d->array[V],
                                  .out = d->array[OUT],
                                  .lse = d->lse,
                                  .batch = s->batch,
                                  .seq = s->seq,
                                  .kv_seq = keys_of(s),
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .dim = s->dim,
                                  .scale = scale,
                                  .type = s->type,
                                  .full = s->full};
    d->backward = (tsrk_attention_bwd){.q = d->array[Q],
                                       .k = d->array[K],
                                       .v = d->array[V],
                                       .out = d->array[OUT],
                                       .dout = d->array[DOUT],
                                       .lse = d->lse,
                                       .dq = d->array[DQ],
                                       .dk = d->array[DK],
                                       .dv = d->array[DV],
                                       .batch = s->batch,
                                       .seq = s->seq,
                                       .kv_seq = keys_of(s),
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .dim = s->dim,
                                       .scale = scale,
                                       .type = s->type,
                                       .full = s->full};
    size_t a = tsrk_table_cpu()->workspace(TSRK_ATTENTION, &d->forward, threads);
    size_t b = tsrk_table_cpu()->workspace(TSRK_ATTENTION_BWD, &d->backward, threads);
    int64_t floats = (int64_t)((a > b ? a : b) / sizeof(float));
    d->workspace = tsr_array_random(floats, TSR_F32, 1e9, 77);
    d->forward.workspace = d->backward.workspace = d->workspace;
}

static data make(const shape *s, int threads)
{
    data d = {.s = *s};
    for (int i = 0; i < ARRAYS; i++) {
        d.array[i] = tsr_array_random(count_of(s, i), s->type, 2.0, (uint64_t)i);
    }
    d.lse = tsr_array_new(s->batch * s->heads * s->seq, TSR_F32);
    bind_args(&d, (float)(1.0 / sqrt((double)s->dim)), threads);
    return d;
}

static void drop(data *d)
{
    for (int i = 0; i < ARRAYS; i++) {
        tsr_array_free(d->array[i]);
    }
    tsr_array_free(d->lse);
    tsr_array_free(d->workspace);
}

static void run_ref(data *d)
{
    tsrk_ref_attention(&d->forward);
    tsrk_ref_attention_bwd(&d->backward);
}

static void run_cpu(data *d)
{
    tsrk_cpu_attention(&d->forward);
    tsrk_cpu_attention_bwd(&d->backward);
}

/* A score adds dim products of a mean square of 16 / 9 and is scaled by 1 / sqrt(dim), so it is
 * some units large and its roundings some sqrt(dim); a probability is off by as much relatively.
 * Other sums add 16 roundings. */
static double roundings(const shape *s)
{
    return 16.0 + (2.0 * sqrt((double)s->dim));
}

static bool agrees(const shape *s)
{
    data want = make(s, 1);
    data got = make(s, omp_get_max_threads());
    tsrk_ref_attention(&want.forward);
    tsrk_cpu_attention(&got.forward);
    int64_t rows = s->batch * s->heads * s->seq;
    bool good = tsr_array_near(got.lse, want.lse, rows, TSR_F32, roundings(s), 1.0) &&
                tsr_array_near(got.array[OUT], want.array[OUT], count_of(s, OUT), s->type,
                               roundings(s), 2.0);
    /* The same out and lse for both, else bf16 rounding of out would show in the gradients. */
    tsr_array_free(got.array[OUT]);
    tsr_array_free(got.lse);
    got.array[OUT] = tsr_array_copy(want.array[OUT], count_of(s, OUT), s->type);
    got.lse = tsr_array_copy(want.lse, rows, TSR_F32);
    got.backward.out = got.array[OUT];
    got.backward.lse = got.lse;
    tsrk_ref_attention_bwd(&want.backward);
    tsrk_cpu_attention_bwd(&got.backward);
    double group = (double)s->heads / (double)s->kv_heads;
    /* dp is below 4 sqrt(dim), ds scaled back to 4 times a probability, and k, q below 2. */
    double floor = 8.0 * group;
    for (int i = DQ; good && i <= DV; i++) {
        good = tsr_array_near(got.array[i], want.array[i], count_of(s, i), s->type, roundings(s),
                              floor);
    }
    drop(&want);
    drop(&got);
    return good;
}

static void cpu_agrees_with_ref(void)
{
    static const shape shapes[] = {
        {.batch = 0, .seq = 4, .heads = 2, .kv_heads = 2, .dim = 8},
        {.batch = 2, .seq = 0, .heads = 2, .kv_heads = 2, .dim = 8},
        {.batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .dim = 1},
        {.batch = 2, .seq = 17, .heads = 3, .kv_heads = 1, .dim = 5},
        {.batch = 1, .seq = 63, .heads = 2, .kv_heads = 2, .dim = 16},
        {.batch = 1, .seq = 64, .heads = 4, .kv_heads = 2, .dim = 33},
        {.batch = 2, .seq = 65, .heads = 2, .kv_heads = 1, .dim = 64},
        {.batch = 1, .seq = 130, .heads = 2, .kv_heads = 2, .dim = 65},
        {.batch = 1, .seq = 17, .kv_seq = 81, .heads = 2, .kv_heads = 1, .dim = 12},
        {.batch = 2, .seq = 1, .kv_seq = 200, .heads = 2, .kv_heads = 2, .dim = 16},
        {.batch = 1, .seq = 70, .heads = 4, .kv_heads = 2, .dim = 8, .full = true},
        {.batch = 2, .seq = 65, .kv_seq = 130, .heads = 2, .kv_heads = 1, .dim = 16, .full = true},
        {.batch = 1, .seq = 130, .kv_seq = 17, .heads = 2, .kv_heads = 2, .dim = 5, .full = true},
        {.batch = 1, .seq = 3, .kv_seq = 1, .heads = 2, .kv_heads = 2, .dim = 4, .full = true},
        {.batch = 1, .seq = 0, .kv_seq = 4, .heads = 2, .kv_heads = 2, .dim = 4, .full = true},
    };
    static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F16};
    for (size_t i = 0; i < 3 * sizeof shapes / sizeof shapes[0]; i++) {
        shape s = shapes[i / 3];
        s.type = types[i % 3];
        REQUIRE(agrees(&s));
    }
}

/* Beyond one chunk of a row of scores; every 97th query is enough for the slow definition. */
static void long_rows(void)
{
    shape s = {.batch = 1, .seq = 1100, .heads = 1, .kv_heads = 1, .dim = 4, .type = TSR_F32};
    data got = make(&s, 1);
    omp_set_num_threads(1);
    tsrk_cpu_attention(&got.forward);
    const float *q = got.array[Q];
    const float *k = got.array[K];
    for (int64_t t = 0; t < s.seq; t += 97) {
        double sum = 0.0;
        for (int64_t j = 0; j <= t; j++) {
            double score = 0.0;
            for (int64_t d = 0; d < s.dim; d++) {
                score += (double)q[(t * s.dim) + d] * (double)k[(j * s.dim) + d];
            }
            sum += exp(score * (double)got.forward.scale);
        }
        CHECK_NEAR(got.lse[t], log(sum), 0x1p-24 * roundings(&s));
    }
    omp_set_num_threads(omp_get_num_procs());
    drop(&got);
}

/* A later token must not change anything before it. */
static void causal(void)
{
    shape s = {.batch = 1, .seq = 70, .heads = 2, .kv_heads = 1, .dim = 8, .type = TSR_F32};
    data a = make(&s, 1);
    data b = make(&s, 1);
    int64_t kv_row = s.kv_heads * s.dim;
    for (int64_t i = (s.seq - 1) * kv_row; i < s.seq * kv_row; i++) {
        tsr_array_set(b.array[K], s.type, i, 9.0);
        tsr_array_set(b.array[V], s.type, i, -9.0);
    }
    omp_set_num_threads(1);
    tsrk_cpu_attention(&a.forward);
    tsrk_cpu_attention(&b.forward);
    omp_set_num_threads(omp_get_num_procs());
    int64_t before = (s.seq - 1) * s.heads * s.dim;
    CHECK(tsr_array_same(a.array[OUT], b.array[OUT], before, s.type));
    CHECK(tsr_array_get(a.array[OUT], s.type, before) !=
          tsr_array_get(b.array[OUT], s.type, before));
    drop(&a);
    drop(&b);
}

/* The first query sees one key, whose probability is 1 whatever its score: no gradient may reach
 * the score, not even rounding, which Adam would blow up to whole steps. */
static void check_first_query(const shape *s, void (*run)(data *))
{
    data d = make(s, omp_get_max_threads());
    int64_t row = s->heads * s->dim;
    run(&d);
    for (int64_t b = 0; b < s->batch; b++) {
        for (int64_t i = 0; i < row; i++) {
            CHECK(tsr_array_get(d.array[DQ], s->type, (b * s->seq * row) + i) == 0.0);
        }
    }
    for (int64_t i = 0; s->seq == 1 && i < count_of(s, DK); i++) {
        CHECK(tsr_array_get(d.array[DK], s->type, i) == 0.0);
    }
    CHECK(tsr_array_get(d.array[DV], s->type, 0) != 0.0);
    drop(&d);
}

static void first_query_moves_no_score(void)
{
    static const shape shapes[] = {
        {.batch = 5, .seq = 1, .heads = 4, .kv_heads = 2, .dim = 6, .type = TSR_F32},
        {.batch = 2, .seq = 70, .heads = 4, .kv_heads = 1, .dim = 24, .type = TSR_F32},
        {.batch = 3, .seq = 1, .heads = 2, .kv_heads = 2, .dim = 8, .type = TSR_BF16},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_first_query(&shapes[i], run_ref);
        check_first_query(&shapes[i], run_cpu);
    }
}

static void threads_do_not_change_bits(void)
{
    int before = omp_get_max_threads();
    for (int i = 0; i < 2; i++) {
        shape s = {.batch = 2,
                   .seq = 90,
                   .heads = 4,
                   .kv_heads = 2,
                   .dim = 20,
                   .type = i == 0 ? TSR_F32 : TSR_BF16};
        data one = make(&s, 1);
        omp_set_num_threads(1);
        run_cpu(&one);
        for (int threads = 2; threads <= 5; threads += 3) {
            data more = make(&s, threads);
            omp_set_num_threads(threads);
            run_cpu(&more);
            for (int a = OUT; a <= DV; a++) {
                CHECK(tsr_array_same(more.array[a], one.array[a], count_of(&s, a), s.type));
            }
            drop(&more);
        }
        drop(&one);
    }
    omp_set_num_threads(before);
}

/* Slopes of sum(out * dout) by f64 central differences. Third derivatives are below 100 here, and
 * backward has lse rounded to f32, 2^-24 of some 4. */
#define STEP        1e-4
#define SLOPE_LIMIT ((100.0 * STEP * STEP) + (0x1p-52 * 1000.0 / STEP) + (256.0 * 0x1p-24))

static double loss_of(data *d)
{
    double sum = 0.0;
    tsrk_ref_attention(&d->forward);
    for (int64_t i = 0; i < count_of(&d->s, OUT); i++) {
        sum += ((const double *)d->array[OUT])[i] * ((const double *)d->array[DOUT])[i];
    }
    return sum;
}

static void check_slopes(int64_t seq, int64_t kv_seq, bool full)
{
    shape s = {.batch = 2,
               .seq = seq,
               .heads = 4,
               .kv_heads = 2,
               .dim = 3,
               .type = TSR_F64,
               .kv_seq = kv_seq,
               .full = full};
    data d = make(&s, 1);
    run_ref(&d);
    for (int input = Q; input <= V; input++) {
        double *x = d.array[input];
        const double *slope = d.array[DQ + input];
        for (int64_t i = 0; i < count_of(&s, input); i++) {
            double at = x[i];
            x[i] = at + STEP;
            double above = loss_of(&d);
            x[i] = at - STEP;
            double below = loss_of(&d);
            x[i] = at;
            CHECK_NEAR(slope[i], (above - below) / (2.0 * STEP), SLOPE_LIMIT);
        }
    }
    drop(&d);
}

static void gradients_are_slopes(void)
{
    check_slopes(5, 5, false);
    check_slopes(3, 5, false);
    check_slopes(5, 3, true);
}

/* Queries one by one, each with the keys up to its own, are the rows of all at once: what a program
 * that goes on from where it was relies on. */
static void last_queries_are_the_last_rows(void)
{
    shape whole = {.batch = 1, .seq = 70, .heads = 2, .kv_heads = 1, .dim = 8, .type = TSR_F32};
    shape last = whole;
    last.seq = 3;
    last.kv_seq = 70;
    data a = make(&whole, 1);
    data b = make(&last, 1);
    int64_t row = whole.heads * whole.dim;
    memcpy(b.array[Q], (float *)a.array[Q] + (67 * row), (size_t)(3 * row) * sizeof(float));
    omp_set_num_threads(1);
    tsrk_cpu_attention(&a.forward);
    tsrk_cpu_attention(&b.forward);
    omp_set_num_threads(omp_get_num_procs());
    CHECK(tsr_array_near(b.array[OUT], (float *)a.array[OUT] + (67 * row), 3 * row, TSR_F32,
                         roundings(&whole), 2.0));
    drop(&a);
    drop(&b);
}

/* ---- goldens: [batch, heads, seq, dim] ---- */

static const float *golden_tensor(const tsr_golden *g, const char *name, const char *key)
{
    char full[96];
    (void)snprintf(full, sizeof full, "%s.%s", name, key);
    return tsr_golden_tensor(g, full, NULL, NULL, NULL);
}

/* Index in a golden of element i of an array [batch, seq, heads, dim]. */
static int64_t golden_index(const shape *s, int64_t heads, int64_t i)
{
    int64_t e = i % s->dim;
    int64_t h = i / s->dim % heads;
    int64_t t = i / s->dim / heads % s->seq;
    int64_t b = i / s->dim / heads / s->seq;
    return ((((b * heads) + h) * s->seq) + t) * s->dim + e;
}

/* Largest |array - golden| divided by the golden's largest entry, or by 1, the size of the inputs,
 * where that is less: a single token has gradients that are zero in theory. */
static double golden_error(const data *d, int array, const float *golden)
{
    int64_t heads = has_kv_heads(array) ? d->s.kv_heads : d->s.heads;
    double error = 0.0;
    double largest = 1.0;
    for (int64_t i = 0; i < count_of(&d->s, array); i++) {
        double want = (double)golden[golden_index(&d->s, heads, i)];
        error = fmax(error, fabs((double)((const float *)d->array[array])[i] - want));
        largest = fmax(largest, fabs(want));
    }
    return error / largest;
}

static void check_golden(const tsr_golden *g, const char *name, data *d, void (*run)(data *))
{
    static const char *const keys[] = {"q", "k", "v", "out", "dout", "dq", "dk", "dv"};
    const float *lse = golden_tensor(g, name, "lse");
    REQUIRE(lse != NULL);
    double largest = 0.0;
    run(d);
    for (int64_t i = 0; i < d->s.batch * d->s.heads * d->s.seq; i++) {
        largest = fmax(largest, fabs((double)lse[i]));
    }
    /* Scores and lse of that size are f32: their last bit is a relative error of a probability;
     * other roundings are a few of the result's own size. */
    double limit = 0x1p-24 * (8.0 + (4.0 * largest));
    for (int64_t i = 0; i < d->s.batch * d->s.heads * d->s.seq; i++) {
        CHECK_NEAR(d->lse[i], lse[i], limit);
    }
    for (int a = OUT; a <= DV; a++) {
        CHECK_NEAR(golden_error(d, a, golden_tensor(g, name, keys[a])), 0.0, limit);
    }
}

static void run_golden(const tsr_golden *g, const char *name)
{
    static const char *const keys[] = {"q", "k", "v", NULL, "dout"};
    int64_t q[TSR_GOLDEN_MAX_DIMS];
    int64_t k[TSR_GOLDEN_MAX_DIMS];
    char full[96];
    (void)snprintf(full, sizeof full, "%s.q", name);
    REQUIRE(tsr_golden_tensor(g, full, NULL, q, NULL) != NULL);
    (void)snprintf(full, sizeof full, "%s.k", name);
    REQUIRE(tsr_golden_tensor(g, full, NULL, k, NULL) != NULL);
    shape s = {.batch = q[0], .heads = q[1], .seq = q[2], .dim = q[3], .kv_heads = k[1]};
    s.type = TSR_F32;
    data d = make(&s, omp_get_max_threads());
    for (int a = Q; a <= DOUT; a++) {
        const float *from = keys[a] != NULL ? golden_tensor(g, name, keys[a]) : NULL;
        int64_t heads = has_kv_heads(a) ? s.kv_heads : s.heads;
        for (int64_t i = 0; from != NULL && i < count_of(&s, a); i++) {
            ((float *)d.array[a])[i] = from[golden_index(&s, heads, i)];
        }
    }
    check_golden(g, name, &d, run_ref);
    check_golden(g, name, &d, run_cpu);
    drop(&d);
}

static void goldens(void)
{
    tsr_golden *list = tsr_golden_open("attention/attention.json");
    tsr_golden *g = tsr_golden_open("attention/attention.safetensors");
    REQUIRE(list != NULL && g != NULL);
    int cases = tsr_golden_length(list, "cases");
    CHECK(cases > 0);
    for (int i = 0; i < cases; i++) {
        char path[32];
        (void)snprintf(path, sizeof path, "cases/%d/name", i);
        REQUIRE(tsr_golden_text(list, path) != NULL);
        run_golden(g, tsr_golden_text(list, path));
    }
    tsr_golden_close(list);
    tsr_golden_close(g);
}

const tsr_test_case tsr_test_cases[] = {
    {"goldens", goldens},
    {"cpu_agrees_with_ref", cpu_agrees_with_ref},
    {"long_rows", long_rows},
    {"causal", causal},
    {"last_queries_are_the_last_rows", last_queries_are_the_last_rows},
    {"first_query_moves_no_score", first_query_moves_no_score},
    {"threads_do_not_change_bits", threads_do_not_change_bits},
    {"gradients_are_slopes", gradients_are_slopes},
    {NULL, NULL},
};
