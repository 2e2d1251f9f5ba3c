/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_norm.c
 * Layernorm and rmsnorm: cpu against the definition, the definition's gradients against
 * central differences, and the same bits for any number of threads.
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/tsr_test.h"

typedef struct norm_case {
    int64_t rows, cols;
    tsr_dtype type, grad_type;
    double offset; /* added to x */
} norm_case;

/* Everything both kernels read or write, with outputs filled with the same noise. */
typedef struct norm_data {
    void *x, *gain, *bias, *dy, *y, *dx, *dgain, *dbias, *workspace;
    float *mean, *rstd;
} norm_data;

static norm_data norm_data_new(const norm_case *c)
{
    int64_t n = c->rows * c->cols;
    norm_data d = {
        .x = tsr_array_random(n, c->type, 2.0, 1),
        .gain = tsr_array_random(c->cols, c->type, 1.5, 2),
        .bias = tsr_array_random(c->cols, c->type, 1.0, 3),
        .dy = tsr_array_random(n, c->type, 1.0, 4),
        .y = tsr_array_random(n, c->type, 1.0, 5),
        .dx = tsr_array_random(n, c->type, 1.0, 6),
        .dgain = tsr_array_random(c->cols, c->grad_type, 1.0, 7),
        .dbias = tsr_array_random(c->cols, c->grad_type, 1.0, 8),
        .mean = tsr_array_new(c->rows, TSR_F32),
        .rstd = tsr_array_new(c->rows, TSR_F32),
    };
    for (int64_t i = 0; i < n; i++) {
        tsr_array_set(d.x, c->type, i, tsr_array_get(d.x, c->type, i) + c->offset);
    }
    tsrk_layernorm_bwd sizes = {.rows = c->rows, .cols = c->cols};
    int64_t floats =
        (int64_t)(tsrk_table_cpu()->workspace(TSRK_LAYERNORM_BWD, &sizes, 1) / sizeof(float));
    d.workspace = tsr_array_random(floats, TSR_F32, 1e9, 9);
    return d;
}

static void norm_data_free(norm_data *d)
{
    void *arrays[] = {d->x,     d->gain,  d->bias,      d->dy,   d->y,   d->dx,
                      d->dgain, d->dbias, d->workspace, d->mean, d->rstd};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        tsr_array_free(arrays[i]);
    }
}

static tsrk_layernorm layernorm_args(const norm_case *c, const norm_data *d)
{
    return (tsrk_layernorm){.x = d->x,
                            .gain = d->gain,
                            .bias = d->bias,
                            .y = d->y,
                            .mean = d->mean,
                            .rstd = d->rstd,
                            .rows = c->rows,
                            .cols = c->cols,
                            .eps = 1e-5F,
                            .type = c->type};
}

static tsrk_rmsnorm rmsnorm_args(const norm_case *c, const norm_data *d)
{
    return (tsrk_rmsnorm){.x = d->x,
                          .gain = d->gain,
                          .y = d->y,
                          .rstd = d->rstd,
                          .rows = c->rows,
                          .cols = c->cols,
                          .eps = 1e-6F,
                          .type = c->type};
}

static tsrk_layernorm_bwd layernorm_bwd_args(const norm_case *c, const norm_data *d, bool add)
{
    return (tsrk_layernorm_bwd){.dy = d->dy,
                                .x = d->x,
                                .gain = d->gain,
                                .mean = d->mean,
                                .rstd = d->rstd,
                                .dx = d->dx,
                                .dgain = d->dgain,
                                .dbias = d->dbias,
                                .workspace = d->workspace,
                                .rows = c->rows,
                                .cols = c->cols,
                                .type = c->type,
                                .grad_type = c->grad_type,
                                .accumulate_dx = add,
                                .accumulate_dgain = add,
                                .accumulate_dbias = !add};
}

static tsrk_rmsnorm_bwd rmsnorm_bwd_args(const norm_case *c, const norm_data *d, bool add)
{
    return (tsrk_rmsnorm_bwd){.dy = d->dy,
                              .x = d->x,
                              .gain = d->gain,
                              .rstd = d->rstd,
                              .dx = d->dx,
                              .dgain = d->dgain,
                              .workspace = d->workspace,
                              .rows = c->rows,
                              .cols = c->cols,
                              .type = c->type,
                              .grad_type = c->grad_type,
                              .accumulate_dx = !add,
                              .accumulate_dgain = add};
}

/* Largest rstd: how much a rounding of x or of the mean grows on its way to xhat. */
static double largest_rstd(const norm_case *c, const norm_data *d)
{
    double largest = 0.0;
    for (int64_t r = 0; r < c->rows; r++) {
        largest = fmax(largest, (double)d->rstd[r]);
    }
    return largest;
}

static double row_size(const norm_case *c)
{
    return fabs(c->offset) + 2.0;
}

/* One row has xhat = (x - mean) rstd within two roundings of size |x| rstd; a mean over the row
 * adds up to log2(cols) roundings of pairwise or vector sums and no more than sqrt(cols) of a
 * chain. */
static double norm_factor(const norm_case *c)
{
    return 8.0 + sqrt((double)c->cols);
}

static void check_layernorm(const norm_case *c, bool add)
{
    norm_data cpu = norm_data_new(c);
    norm_data ref = norm_data_new(c);
    int64_t n = c->rows * c->cols;
    tsrk_layernorm fc = layernorm_args(c, &cpu);
    tsrk_layernorm fr = layernorm_args(c, &ref);
    tsrk_cpu_layernorm(&fc);
    tsrk_ref_layernorm(&fr);
    double grow = row_size(c) * largest_rstd(c, &ref);
    double factor = norm_factor(c);
    tsr_array_near(cpu.mean, ref.mean, c->rows, TSR_F32, factor, row_size(c));
    /* The mean's rounding enters the variance squared, the sum of squares enters halved. */
    tsr_array_near(cpu.rstd, ref.rstd, c->rows, TSR_F32, factor + (grow * grow * 0x1p-20), 0.0);
    tsr_array_near(cpu.y, ref.y, n, c->type, factor, (1.5 * grow) + 1.0);

    memcpy(cpu.mean, ref.mean, (size_t)c->rows * sizeof(float));
    memcpy(cpu.rstd, ref.rstd, (size_t)c->rows * sizeof(float));
    tsrk_layernorm_bwd bc = layernorm_bwd_args(c, &cpu, add);
    tsrk_layernorm_bwd br = layernorm_bwd_args(c, &ref, add);
    tsrk_cpu_layernorm_bwd(&bc);
    tsrk_ref_layernorm_bwd(&br);
    double xhat = fmax(1.0, grow);
    tsr_array_near(cpu.dx, ref.dx, n, c->type, factor,
                   1.0 + (1.5 * largest_rstd(c, &ref) * (2.0 + (xhat * xhat))));
    double rows = (double)c->rows;
    tsr_array_near(cpu.dgain, ref.dgain, c->cols, c->grad_type, 8.0, 1.0 + (rows * xhat));
    tsr_array_near(cpu.dbias, ref.dbias, c->cols, c->grad_type, 8.0, 1.0 + rows);
    norm_data_free(&cpu);
    norm_data_free(&ref);
}

static void check_rmsnorm(const norm_case *c, bool add)
{
    norm_data cpu = norm_data_new(c);
    norm_data ref = norm_data_new(c);
    int64_t n = c->rows * c->cols;
    tsrk_rmsnorm fc = rmsnorm_args(c, &cpu);
    tsrk_rmsnorm fr = rmsnorm_args(c, &ref);
    tsrk_cpu_rmsnorm(&fc);
    tsrk_ref_rmsnorm(&fr);
    double factor = norm_factor(c);
    tsr_array_near(cpu.rstd, ref.rstd, c->rows, TSR_F32, factor, 0.0);
    tsr_array_near(cpu.y, ref.y, n, c->type, factor, 0.0);

    memcpy(cpu.rstd, ref.rstd, (size_t)c->rows * sizeof(float));
    tsrk_rmsnorm_bwd bc = rmsnorm_bwd_args(c, &cpu, add);
    tsrk_rmsnorm_bwd br = rmsnorm_bwd_args(c, &ref, add);
    tsrk_cpu_rmsnorm_bwd(&bc);
    tsrk_ref_rmsnorm_bwd(&br);
    double xhat = fmax(1.0, row_size(c) * largest_rstd(c, &ref));
    tsr_array_near(cpu.dx, ref.dx, n, c->type, factor,
                   1.0 + (1.5 * largest_rstd(c, &ref) * (1.0 + (xhat * xhat))));
    tsr_array_near(cpu.dgain, ref.dgain, c->cols, c->grad_type, 8.0,
                   1.0 + ((double)c->rows * xhat));
    norm_data_free(&cpu);
    norm_data_free(&ref);
}

static void cpu_matches_definition(void)
{
    static const tsr_dtype type[] = {TSR_F32, TSR_BF16, TSR_BF16, TSR_F16, TSR_F16};
    static const tsr_dtype grad_type[] = {TSR_F32, TSR_F32, TSR_BF16, TSR_F32, TSR_F16};
    const int64_t rows[] = {0, 1, 15, 16, 17, 70};
    const int64_t cols[] = {0, 1, 5, 48, 1023, 1024, 1025};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (size_t k = 0; k < sizeof cols / sizeof cols[0]; k++) {
            for (int types = 0; types < 5; types++) {
                norm_case c = {.rows = rows[r],
                               .cols = cols[k],
                               .type = type[types],
                               .grad_type = grad_type[types]};
                check_layernorm(&c, types % 2 == 0);
                check_rmsnorm(&c, types % 2 == 1);
            }
        }
    }
}

static void large_mean_keeps_variance(void)
{
    norm_case c = {.rows = 9, .cols = 2500, .type = TSR_F32, .grad_type = TSR_F32, .offset = 500.0};
    check_layernorm(&c, false);
    check_rmsnorm(&c, true);
}

static void many_rows_fill_every_block(void)
{
    norm_case c = {.rows = 1500, .cols = 33, .type = TSR_F32, .grad_type = TSR_F32};
    check_layernorm(&c, true);
    check_rmsnorm(&c, false);
}

static void absent_weight_gradients_need_no_workspace(void)
{
    norm_case c = {.rows = 40, .cols = 70, .type = TSR_F32, .grad_type = TSR_F32};
    norm_data with = norm_data_new(&c);
    norm_data without = norm_data_new(&c);
    tsrk_layernorm f = layernorm_args(&c, &with);
    tsrk_ref_layernorm(&f);
    tsrk_layernorm_bwd a = layernorm_bwd_args(&c, &with, false);
    tsrk_cpu_layernorm_bwd(&a);
    a.dx = without.dx;
    a.dgain = NULL;
    a.dbias = NULL;
    a.workspace = NULL;
    tsrk_cpu_layernorm_bwd(&a);
    tsr_array_same(without.dx, with.dx, c.rows * c.cols, TSR_F32);
    norm_data_free(&with);
    norm_data_free(&without);
}

/* Loss = sum of dy * y, in double, of the definition. */
static double layernorm_loss(const tsrk_layernorm *f, const void *dy)
{
    double loss = 0.0;
    tsrk_ref_layernorm(f);
    for (int64_t i = 0; i < f->rows * f->cols; i++) {
        loss += tsr_array_get(dy, TSR_F64, i) * tsr_array_get(f->y, TSR_F64, i);
    }
    return loss;
}

static double rmsnorm_loss(const tsrk_rmsnorm *f, const void *dy)
{
    double loss = 0.0;
    tsrk_ref_rmsnorm(f);
    for (int64_t i = 0; i < f->rows * f->cols; i++) {
        loss += tsr_array_get(dy, TSR_F64, i) * tsr_array_get(f->y, TSR_F64, i);
    }
    return loss;
}

/* Central differences in f64 with step h are off by h^2 f''' / 6 < 64 h^2 here and by rounding,
 * some 2^-52 * loss / h; the gradients use mean and rstd rounded to f32, each within 2^-24. */
#define STEP        1e-4
#define SLOPE_LIMIT ((64.0 * STEP * STEP) + (0x1p-52 * 100.0 / STEP) + (16.0 * 0x1p-24))

static void layernorm_gradients_are_slopes(void)
{
    norm_case c = {.rows = 3, .cols = 7, .type = TSR_F64, .grad_type = TSR_F64};
    norm_data d = norm_data_new(&c);
    tsrk_layernorm f = layernorm_args(&c, &d);
    tsrk_layernorm_bwd b = layernorm_bwd_args(&c, &d, false);
    b.accumulate_dbias = false;
    tsrk_ref_layernorm(&f);
    tsrk_ref_layernorm_bwd(&b);
    double *inputs[] = {d.x, d.gain, d.bias};
    double *slopes[] = {d.dx, d.dgain, d.dbias};
    int64_t counts[] = {c.rows * c.cols, c.cols, c.cols};
    for (int k = 0; k < 3; k++) {
        for (int64_t i = 0; i < counts[k]; i++) {
            double at = inputs[k][i];
            inputs[k][i] = at + STEP;
            double above = layernorm_loss(&f, d.dy);
            inputs[k][i] = at - STEP;
            double below = layernorm_loss(&f, d.dy);
            inputs[k][i] = at;
            CHECK_NEAR(slopes[k][i], (above - below) / (2.0 * STEP), SLOPE_LIMIT);
        }
    }
    norm_data_free(&d);
}

static void rmsnorm_gradients_are_slopes(void)
{
    norm_case c = {.rows = 3, .cols = 7, .type = TSR_F64, .grad_type = TSR_F64};
    norm_data d = norm_data_new(&c);
    tsrk_rmsnorm f = rmsnorm_args(&c, &d);
    tsrk_rmsnorm_bwd b = rmsnorm_bwd_args(&c, &d, false);
    b.accumulate_dx = false;
    tsrk_ref_rmsnorm(&f);
    tsrk_ref_rmsnorm_bwd(&b);
    double *inputs[] = {d.x, d.gain};
    double *slopes[] = {d.dx, d.dgain};
    int64_t counts[] = {c.rows * c.cols, c.cols};
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < counts[k]; i++) {
            double at = inputs[k][i];
            inputs[k][i] = at + STEP;
            double above = rmsnorm_loss(&f, d.dy);
            inputs[k][i] = at - STEP;
            double below = rmsnorm_loss(&f, d.dy);
            inputs[k][i] = at;
            CHECK_NEAR(slopes[k][i], (above - below) / (2.0 * STEP), SLOPE_LIMIT);
        }
    }
    norm_data_free(&d);
}

static void bits_do_not_depend_on_threads(void)
{
    const int teams[] = {2, 3, 5};
    int before = omp_get_max_threads();
    norm_case c = {.rows = 333, .cols = 130, .type = TSR_F32, .grad_type = TSR_F32};
    int64_t n = c.rows * c.cols;
    CHECK(n > TSRK_CPU_GRAIN); /* or one thread would do it all */
    norm_data one = norm_data_new(&c);
    omp_set_num_threads(1);
    tsrk_layernorm f = layernorm_args(&c, &one);
    tsrk_cpu_layernorm(&f);
    tsrk_layernorm_bwd b = layernorm_bwd_args(&c, &one, true);
    tsrk_cpu_layernorm_bwd(&b);
    for (size_t t = 0; t < sizeof teams / sizeof teams[0]; t++) {
        norm_data more = norm_data_new(&c);
        omp_set_num_threads(teams[t]);
        f = layernorm_args(&c, &more);
        tsrk_cpu_layernorm(&f);
        b = layernorm_bwd_args(&c, &more, true);
        tsrk_cpu_layernorm_bwd(&b);
        tsr_array_same(more.y, one.y, n, c.type);
        tsr_array_same(more.dx, one.dx, n, c.type);
        tsr_array_same(more.dgain, one.dgain, c.cols, c.grad_type);
        tsr_array_same(more.dbias, one.dbias, c.cols, c.grad_type);
        norm_data_free(&more);
    }
    norm_data_free(&one);
    omp_set_num_threads(before);
}

const tsr_test_case tsr_test_cases[] = {
    {"cpu_matches_definition", cpu_matches_definition},
    {"large_mean_keeps_variance", large_mean_keeps_variance},
    {"many_rows_fill_every_block", many_rows_fill_every_block},
    {"absent_weight_gradients_need_no_workspace", absent_weight_gradients_need_no_workspace},
    {"layernorm_gradients_are_slopes", layernorm_gradients_are_slopes},
    {"rmsnorm_gradients_are_slopes", rmsnorm_gradients_are_slopes},
    {"bits_do_not_depend_on_threads", bits_do_not_depend_on_threads},
    {NULL, NULL},
};
