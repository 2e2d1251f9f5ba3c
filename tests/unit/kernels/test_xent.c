/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_xent.c
 * Cross entropy: the definition and cpu against float64 goldens, cpu against the definition, a
 * vocabulary in pieces against the whole, gradients against central differences, and the same bits
 * for any number of threads. And the exp that all cpu kernels share.
 */
#include "kernels/cpu/cpu_priv.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/golden.h"
#include "support/tsr_test.h"

#define IGNORE (-100)

/* The kernels of one implementation. */
typedef struct impl {
    tsr_status (*max)(const tsrk_xent_max *);
    tsr_status (*sum)(const tsrk_xent_sum *);
    tsr_status (*loss)(const tsrk_xent_loss *);
    tsr_status (*bwd)(const tsrk_xent_bwd *);
    tsr_status (*count)(const tsrk_count_labels *);
} impl;

static const impl ref = {tsrk_ref_xent_max, tsrk_ref_xent_sum, tsrk_ref_xent_loss,
                         tsrk_ref_xent_bwd, tsrk_ref_count_labels};
static const impl cpu = {tsrk_cpu_xent_max, tsrk_cpu_xent_sum, tsrk_cpu_xent_loss,
                         tsrk_cpu_xent_bwd, tsrk_cpu_count_labels};

typedef struct data {
    int64_t rows, cols, begin;
    tsr_dtype type;
    void *logits, *dlogits;
    int32_t *labels;
    float *max, *sum, *target, *lse;
    float loss, dloss;
    double count;
} data;

/* Labels run a little beyond the piece on both sides, and every fifth row is ignored. */
static data make(int64_t rows, int64_t cols, int64_t begin, tsr_dtype type)
{
    data d = {.rows = rows, .cols = cols, .begin = begin, .type = type, .dloss = 1.5F};
    d.logits = tsr_array_random(rows * cols, type, 6.0, 1);
    d.dlogits = tsr_array_random(rows * cols, type, 6.0, 2);
    d.labels = tsr_array_new(rows, TSR_I32);
    for (int64_t r = 0; r < rows; r++) {
        d.labels[r] = r % 5 == 4 ? IGNORE : (int32_t)(begin - 1 + ((r * 7) % (cols + 2)));
    }
    d.max = tsr_array_new(rows, TSR_F32);
    d.sum = tsr_array_new(rows, TSR_F32);
    d.target = tsr_array_new(rows, TSR_F32);
    d.lse = tsr_array_new(rows, TSR_F32);
    return d;
}

static void drop(data *d)
{
    tsr_array_free(d->logits);
    tsr_array_free(d->dlogits);
    tsr_array_free(d->labels);
    tsr_array_free(d->max);
    tsr_array_free(d->sum);
    tsr_array_free(d->target);
    tsr_array_free(d->lse);
}

static tsrk_xent_max max_args(const data *d)
{
    return (tsrk_xent_max){
        .logits = d->logits, .row_max = d->max, .rows = d->rows, .cols = d->cols, .type = d->type};
}

static tsrk_xent_sum sum_args(const data *d)
{
    return (tsrk_xent_sum){.logits = d->logits,
                           .labels = d->labels,
                           .row_max = d->max,
                           .row_sum = d->sum,
                           .row_target = d->target,
                           .rows = d->rows,
                           .cols = d->cols,
                           .begin = d->begin,
                           .type = d->type};
}

static tsrk_xent_bwd bwd_args(const data *d)
{
    return (tsrk_xent_bwd){.logits = d->logits,
                           .labels = d->labels,
                           .lse = d->lse,
                           .dloss = &d->dloss,
                           .count = &d->count,
                           .dlogits = d->dlogits,
                           .rows = d->rows,
                           .cols = d->cols,
                           .begin = d->begin,
                           .ignore_index = IGNORE,
                           .type = d->type};
}

static void run(const impl *k, data *d)
{
    tsrk_count_labels count = {
        .labels = d->labels, .out = &d->count, .n = d->rows, .ignore_index = IGNORE};
    tsrk_xent_max max = max_args(d);
    tsrk_xent_sum sum = sum_args(d);
    tsrk_xent_loss loss = {.labels = d->labels,
                           .row_max = d->max,
                           .row_sum = d->sum,
                           .row_target = d->target,
                           .count = &d->count,
                           .loss = &d->loss,
                           .lse = d->lse,
                           .rows = d->rows,
                           .ignore_index = IGNORE};
    tsrk_xent_bwd bwd = bwd_args(d);
    k->count(&count);
    k->max(&max);
    k->sum(&sum);
    k->loss(&loss);
    k->bwd(&bwd);
}

/* exp: one rounding of the argument's reduction, some of the polynomial, below 2e-7 in all. */
static void exp_is_accurate(void)
{
    double worst = 0.0;
    for (int i = -87000; i <= 88700; i++) {
        float x = (float)i * 1e-3F;
        double want = exp((double)x);
        double error = fabs(((double)tsrk_cpu_exp(x) / want) - 1.0);
        worst = want >= 2.0 * (double)FLT_MIN ? fmax(worst, error) : worst;
    }
    CHECK_NEAR(worst, 0.0, 3.0 * 0x1p-24);
    CHECK_NEAR(tsrk_cpu_exp(0.0F), 1.0, 0.0);
    CHECK_NEAR(tsrk_cpu_exp(-INFINITY), 0.0, 0.0);
    CHECK_NEAR(tsrk_cpu_exp(-104.0F), 0.0, 0.0);
    CHECK(isinf(tsrk_cpu_exp(89.0F)));
    CHECK(isinf(tsrk_cpu_exp(INFINITY)));
    CHECK(isnan(tsrk_cpu_exp(NAN)));
}

static void bf16_rounds_to_even(void)
{
    CHECK_EQ(tsrk_cpu_to_bf16(1.0F), 0x3f80);
    CHECK_EQ(tsrk_cpu_to_bf16(1.0F + 0x1p-8F), 0x3f80);           /* a tie, to even below */
    CHECK_EQ(tsrk_cpu_to_bf16(1.0F + 0x1p-7F + 0x1p-8F), 0x3f82); /* a tie, to even above */
    CHECK_EQ(tsrk_cpu_to_bf16(1.0F + 0x1p-8F + 0x1p-23F), 0x3f81);
    CHECK_EQ(tsrk_cpu_to_bf16(FLT_MAX), 0x7f80);
    CHECK(isnan(tsrk_cpu_from_bf16(tsrk_cpu_to_bf16(NAN))));
    CHECK(isnan(tsrk_cpu_from_bf16(tsrk_cpu_to_bf16(-NAN))));
}

static void check_agrees(int64_t rows, int64_t cols, int64_t begin, tsr_dtype type)
{
    data want = make(rows, cols, begin, type);
    data got = make(rows, cols, begin, type);
    run(&ref, &want);
    run(&cpu, &got);
    CHECK(tsr_array_same(got.max, want.max, rows, TSR_F32));
    /* Exponents are below 12 and rounded once, a relative error of 12 roundings in exp; the rest
     * of exp, and the sum of positive terms in lanes and chunks, add fewer than 20. */
    CHECK(tsr_array_near(got.sum, want.sum, rows, TSR_F32, 32.0, 0.0));
    CHECK(tsr_array_near(got.target, want.target, rows, TSR_F32, 1.0, 0.0));
    for (int64_t r = 0; r < rows; r++) {
        CHECK(got.lse[r] == want.lse[r] || /* both -inf without columns */
              fabs((double)got.lse[r] - (double)want.lse[r]) <=
                  0x1p-24 * 32.0 * (1.0 + fabs((double)want.lse[r])));
    }
    CHECK_NEAR(got.count, want.count, 0.0);
    CHECK(got.loss == want.loss || fabs((double)got.loss - (double)want.loss) <=
                                       0x1p-24 * 32.0 * (1.0 + fabs((double)want.loss)));
    /* lse is off by its own rounding, 12 * 2^-24; probabilities are at most 1. */
    double scale = want.count > 0.0 ? (double)want.dloss / want.count : 0.0;
    CHECK(tsr_array_near(got.dlogits, want.dlogits, rows * cols, type, 32.0, scale));
    drop(&want);
    drop(&got);
}

static void cpu_agrees_with_ref(void)
{
    static const int64_t sizes[][3] = {{0, 9, 0},   {3, 0, 4},    {1, 1, 0},    {6, 7, 3},
                                       {40, 16, 0}, {5, 1023, 2}, {5, 1024, 0}, {11, 3075, 100}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_agrees(sizes[i][0], sizes[i][1], sizes[i][2], TSR_F32);
        check_agrees(sizes[i][0], sizes[i][1], sizes[i][2], TSR_BF16);
        check_agrees(sizes[i][0], sizes[i][1], sizes[i][2], TSR_F16);
    }
}

static void threads_do_not_change_bits(void)
{
    int before = omp_get_max_threads();
    data one = make(50, 1500, 0, TSR_F32);
    data more = make(50, 1500, 0, TSR_F32);
    omp_set_num_threads(1);
    run(&cpu, &one);
    omp_set_num_threads(3);
    run(&cpu, &more);
    omp_set_num_threads(before);
    CHECK(tsr_array_same(more.sum, one.sum, one.rows, TSR_F32));
    CHECK(tsr_array_same(more.lse, one.lse, one.rows, TSR_F32));
    CHECK(tsr_array_same(&more.loss, &one.loss, 1, TSR_F32));
    CHECK(tsr_array_same(more.dlogits, one.dlogits, one.rows * one.cols, TSR_F32));
    drop(&one);
    drop(&more);
}

/* Two pieces, with the reductions that the caller does between the kernels, give the whole. */
static void pieces_of_a_vocabulary(void)
{
    enum {
        ROWS = 20,
        COLS = 30,
        SPLIT = 11
    };
    data whole = make(ROWS, COLS, 0, TSR_F32);
    data part[2] = {make(ROWS, SPLIT, 0, TSR_F32), make(ROWS, COLS - SPLIT, SPLIT, TSR_F32)};
    run(&cpu, &whole);
    for (int p = 0; p < 2; p++) {
        for (int64_t r = 0; r < ROWS; r++) {
            for (int64_t j = 0; j < part[p].cols; j++) {
                double value = ((float *)whole.logits)[(r * COLS) + part[p].begin + j];
                tsr_array_set(part[p].logits, TSR_F32, (r * part[p].cols) + j, value);
            }
            part[p].labels[r] = whole.labels[r];
        }
        tsrk_xent_max max = max_args(&part[p]);
        tsrk_cpu_xent_max(&max);
    }
    for (int64_t r = 0; r < ROWS; r++) {
        part[0].max[r] = part[1].max[r] = fmaxf(part[0].max[r], part[1].max[r]);
    }
    for (int p = 0; p < 2; p++) {
        tsrk_xent_sum sum = sum_args(&part[p]);
        tsrk_cpu_xent_sum(&sum);
    }
    for (int64_t r = 0; r < ROWS; r++) {
        double sum = (double)part[0].sum[r] + (double)part[1].sum[r];
        CHECK_NEAR(part[0].target[r] + part[1].target[r], whole.target[r], 0.0);
        /* Both sides round some 30 terms. */
        CHECK_NEAR(sum, whole.sum[r], 32.0 * 0x1p-24 * sum);
    }
    for (int p = 0; p < 2; p++) {
        part[p].count = whole.count;
        memcpy(part[p].lse, whole.lse, ROWS * sizeof(float));
        tsrk_xent_bwd bwd = bwd_args(&part[p]);
        tsrk_cpu_xent_bwd(&bwd);
        for (int64_t i = 0; i < ROWS * part[p].cols; i++) {
            int64_t at = (i / part[p].cols * COLS) + part[p].begin + (i % part[p].cols);
            /* Other lanes of a vector may have contracted otherwise: some roundings of exp. */
            CHECK_NEAR(((float *)part[p].dlogits)[i], ((float *)whole.dlogits)[at],
                       8.0 * 0x1p-24 * 1.5 / whole.count);
        }
        drop(&part[p]);
    }
    drop(&whole);
}

/* Five-point differences of the loss, which is f32: h^4 of the fifth derivative, below 1, and the
 * loss' rounding over h. */
static void gradients_are_slopes(void)
{
    const float step = 0x1p-4F;
    data d = make(6, 5, 0, TSR_F32);
    for (int64_t r = 0; r < d.rows; r++) {
        d.labels[r] = r == 3 ? IGNORE : (int32_t)(r % d.cols);
    }
    run(&ref, &d);
    float *slope = tsr_array_copy(d.dlogits, d.rows * d.cols, TSR_F32);
    double size = (double)d.loss;
    for (int64_t i = 0; i < d.rows * d.cols; i++) {
        static const double weight[] = {1.0, -8.0, 0.0, 8.0, -1.0};
        float at = ((float *)d.logits)[i];
        double sum = 0.0;
        for (int s = 0; s < 5; s++) {
            ((float *)d.logits)[i] = at + ((float)(s - 2) * step);
            run(&ref, &d);
            sum += weight[s] * (double)d.loss;
        }
        ((float *)d.logits)[i] = at;
        double h = (double)step;
        CHECK_NEAR(slope[i], 1.5 * sum / (12.0 * h), (h * h * h * h) + (8.0 * 0x1p-24 * size / h));
    }
    tsr_array_free(slope);
    drop(&d);
}

/* dlogits over logits; count 0 gives zeros; a counter may start from before. */
static void in_place_and_empty(void)
{
    data apart = make(9, 40, 0, TSR_BF16);
    data place = make(9, 40, 0, TSR_BF16);
    run(&cpu, &apart);
    run(&cpu, &place);
    tsrk_xent_bwd bwd = bwd_args(&place);
    bwd.dlogits = place.logits;
    tsrk_cpu_xent_bwd(&bwd);
    CHECK(tsr_array_same(place.logits, apart.dlogits, apart.rows * apart.cols, TSR_BF16));
    const impl *impls[] = {&ref, &cpu};
    for (int k = 0; k < 2; k++) {
        for (int64_t r = 0; r < apart.rows; r++) {
            apart.labels[r] = IGNORE;
        }
        run(impls[k], &apart);
        CHECK_NEAR(apart.count, 0.0, 0.0);
        CHECK_NEAR(apart.loss, 0.0, 0.0);
        for (int64_t i = 0; i < apart.rows * apart.cols; i++) {
            CHECK_EQ(((uint16_t *)apart.dlogits)[i], 0);
        }
        tsrk_count_labels more = {.labels = place.labels,
                                  .out = &place.count,
                                  .n = 9,
                                  .ignore_index = IGNORE,
                                  .accumulate = true};
        place.count = 100.0;
        impls[k]->count(&more);
        CHECK_NEAR(place.count, 108.0, 0.0);
    }
    drop(&apart);
    drop(&place);
}

/* ---- goldens ---- */

static const void *golden_tensor(const tsr_golden *g, const char *name, const char *key,
                                 int64_t *shape)
{
    char full[96];
    (void)snprintf(full, sizeof full, "%s.%s", name, key);
    return tsr_golden_tensor(g, full, NULL, shape, NULL);
}

static void check_golden(const tsr_golden *g, const char *name, double loss, const impl *k)
{
    int64_t shape[TSR_GOLDEN_MAX_DIMS];
    const float *logits = golden_tensor(g, name, "logits", shape);
    const float *dlogits = golden_tensor(g, name, "dlogits", NULL);
    const float *lse = golden_tensor(g, name, "lse", NULL);
    const int32_t *labels = golden_tensor(g, name, "labels", NULL);
    bool found = logits != NULL && dlogits != NULL && lse != NULL && labels != NULL;
    CHECK(found);
    if (!found) {
        return;
    }
    data d = make(shape[0], shape[1], 0, TSR_F32);
    d.dloss = 1.0F;
    memcpy(d.logits, logits, (size_t)(d.rows * d.cols) * sizeof(float));
    memcpy(d.labels, labels, (size_t)d.rows * sizeof(int32_t));
    run(k, &d);
    double largest = 0.0;
    for (int64_t r = 0; r < d.rows; r++) {
        CHECK_NEAR(d.lse[r], lse[r], 0x1p-24 * 4.0 * (1.0 + fabs((double)lse[r])));
        largest = fmax(largest, fabs((double)lse[r]));
    }
    CHECK_NEAR(d.loss, loss, 0x1p-24 * 8.0 * loss);
    /* lse of that size is f32: its last bit is a relative error of a probability. */
    double limit = 0x1p-24 * (8.0 + (2.0 * largest)) / d.count;
    for (int64_t i = 0; i < d.rows * d.cols; i++) {
        CHECK_NEAR(((float *)d.dlogits)[i], dlogits[i], limit);
    }
    drop(&d);
}

static void goldens(void)
{
    tsr_golden *list = tsr_golden_open("loss/cross_entropy.json");
    tsr_golden *g = tsr_golden_open("loss/cross_entropy.safetensors");
    REQUIRE(list != NULL && g != NULL);
    int cases = tsr_golden_length(list, "cases");
    CHECK(cases > 0);
    for (int i = 0; i < cases; i++) {
        char name[32];
        char loss[32];
        (void)snprintf(name, sizeof name, "cases/%d/name", i);
        (void)snprintf(loss, sizeof loss, "cases/%d/loss", i);
        REQUIRE(tsr_golden_text(list, name) != NULL);
        check_golden(g, tsr_golden_text(list, name), tsr_golden_number(list, loss), &ref);
        check_golden(g, tsr_golden_text(list, name), tsr_golden_number(list, loss), &cpu);
    }
    tsr_golden_close(list);
    tsr_golden_close(g);
}

const tsr_test_case tsr_test_cases[] = {
    {"exp_is_accurate", exp_is_accurate},
    {"bf16_rounds_to_even", bf16_rounds_to_even},
    {"goldens", goldens},
    {"cpu_agrees_with_ref", cpu_agrees_with_ref},
    {"threads_do_not_change_bits", threads_do_not_change_bits},
    {"pieces_of_a_vocabulary", pieces_of_a_vocabulary},
    {"gradients_are_slopes", gradients_are_slopes},
    {"in_place_and_empty", in_place_and_empty},
    {NULL, NULL},
};
