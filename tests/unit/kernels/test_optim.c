/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_optim.c
 * AdamW and SGD against golden trajectories and each other; clip and sum of squares.
 *
 * Tolerances after t steps, u = 2^-24. A moving average rounds a few times a step, each rounding no
 * larger than u times the largest value it has had: 4 t u max. A parameter is rounded once a step,
 * and each update of size lr * ratio is off by the errors of its state, that is by some t u times
 * lr times the largest ratio; ratio is at most some 10 for Adam (|m| / sqrt(v), with few steps).
 */
#include "kernels/cpu/cpu_priv.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/golden.h"
#include "support/tsr_test.h"

#define UNIT  0x1p-24
#define WIDTH 7 /* numbers in a golden trajectory */

typedef tsr_status (*adamw_fn)(const tsrk_adamw *args);
typedef tsr_status (*sgd_fn)(const tsrk_sgd *args);

static double number(const tsr_golden *json, int c, const char *key)
{
    char path[96];
    (void)snprintf(path, sizeof path, "cases/%d/%s", c, key);
    return tsr_golden_number(json, path);
}

static double step_number(const tsr_golden *json, int c, int t, const char *key, int i)
{
    char path[96];
    if (i < 0) {
        (void)snprintf(path, sizeof path, "cases/%d/steps/%d/%s", c, t, key);
    } else {
        (void)snprintf(path, sizeof path, "cases/%d/steps/%d/%s/%d", c, t, key, i);
    }
    return tsr_golden_number(json, path);
}

static int step_count(const tsr_golden *json, int c)
{
    char path[96];
    (void)snprintf(path, sizeof path, "cases/%d/steps", c);
    return tsr_golden_length(json, path);
}

static void initial_values(const tsr_golden *json, int c, float *p)
{
    for (int i = 0; i < WIDTH; i++) {
        char path[96];
        (void)snprintf(path, sizeof path, "cases/%d/initial/%d", c, i);
        p[i] = (float)tsr_golden_number(json, path);
    }
}

/* Compare got with the numbers called key; most [WIDTH] is the largest |value| so far. */
static void check_state(const tsr_golden *json, int c, int t, const char *key, const float *got,
                        double *most)
{
    for (int i = 0; i < WIDTH; i++) {
        double want = step_number(json, c, t, key, i);
        most[i] = fmax(most[i], fabs(want));
        CHECK_NEAR(got[i], want, 4.0 * (t + 1) * UNIT * most[i]);
    }
}

static void check_param(const tsr_golden *json, int c, int t, const float *got, double moved)
{
    for (int i = 0; i < WIDTH; i++) {
        double want = step_number(json, c, t, "param", i);
        CHECK_NEAR(got[i], want, UNIT * (t + 1) * ((2.0 * fabs(want)) + moved));
    }
}

static void adamw_trajectory(const tsr_golden *json, int c, adamw_fn step)
{
    float p[WIDTH];
    float g[WIDTH];
    float m[WIDTH] = {0};
    float v[WIDTH] = {0};
    double most_m[WIDTH] = {0};
    double most_v[WIDTH] = {0};
    double moved = 0.0;
    initial_values(json, c, p);
    REQUIRE_EQ(step_count(json, c), 12);
    for (int t = 0; t < step_count(json, c); t++) {
        for (int i = 0; i < WIDTH; i++) {
            g[i] = (float)step_number(json, c, t, "grad", i);
            most_m[i] = fmax(most_m[i], 0.1 * fabs((double)g[i])); /* m may cancel */
        }
        const int64_t number_of_step = t + 1;
        tsrk_adamw a = {.p = p,
                        .m = m,
                        .v = v,
                        .g = g,
                        .n = WIDTH,
                        .step = &number_of_step,
                        .lr = step_number(json, c, t, "lr", -1),
                        .beta1 = number(json, c, "betas/0"),
                        .beta2 = number(json, c, "betas/1"),
                        .eps = number(json, c, "eps"),
                        .weight_decay = number(json, c, "weight_decay")};
        step(&a);
        moved += 10.0 * a.lr;
        check_state(json, c, t, "m", m, most_m);
        check_state(json, c, t, "v", v, most_v);
        check_param(json, c, t, p, moved);
    }
}

static void adamw_golden(void)
{
    tsr_golden *json = tsr_golden_open("optim/adamw.json");
    REQUIRE(json);
    CHECK(tsr_golden_length(json, "cases") >= 6);
    for (int c = 0; c < tsr_golden_length(json, "cases"); c++) {
        adamw_trajectory(json, c, tsrk_ref_adamw);
        adamw_trajectory(json, c, tsrk_cpu_adamw);
    }
    tsr_golden_close(json);
}

/* Dampening, which the kernel has no word for, is a gradient scale after the first step (there is
 * no weight decay in that case). */
static void sgd_trajectory(const tsr_golden *json, int c, sgd_fn step)
{
    float p[WIDTH];
    float g[WIDTH];
    float buffer[WIDTH];
    double most[WIDTH] = {0};
    double moved = 0.0;
    double momentum = number(json, c, "momentum");
    double dampening = number(json, c, "dampening");
    float kept = (float)(1.0 - dampening);
    initial_values(json, c, p);
    REQUIRE(dampening == 0.0 || number(json, c, "weight_decay") == 0.0);
    REQUIRE_EQ(step_count(json, c), 12);
    for (int i = 0; i < WIDTH; i++) {
        buffer[i] = NAN; /* the first step does not read it */
    }
    for (int t = 0; t < step_count(json, c); t++) {
        double largest = 0.0;
        for (int i = 0; i < WIDTH; i++) {
            g[i] = (float)step_number(json, c, t, "grad", i);
            most[i] = fmax(most[i], fabs((double)g[i]));
            largest = fmax(largest, most[i]);
        }
        const int64_t number_of_step = t + 1;
        tsrk_sgd a = {.p = p,
                      .buffer = momentum != 0.0 ? buffer : NULL,
                      .g = g,
                      .scale = t > 0 && dampening != 0.0 ? &kept : NULL,
                      .n = WIDTH,
                      .lr = step_number(json, c, t, "lr", -1),
                      .momentum = momentum,
                      .weight_decay = number(json, c, "weight_decay"),
                      .nesterov = number(json, c, "nesterov") != 0.0,
                      .step = &number_of_step};
        step(&a);
        moved += 4.0 * a.lr * largest;
        if (a.buffer) {
            check_state(json, c, t, "momentum_buffer", buffer, most);
        }
        check_param(json, c, t, p, moved);
    }
}

static void sgd_golden(void)
{
    tsr_golden *json = tsr_golden_open("optim/sgd.json");
    REQUIRE(json);
    CHECK(tsr_golden_length(json, "cases") >= 5);
    for (int c = 0; c < tsr_golden_length(json, "cases"); c++) {
        sgd_trajectory(json, c, tsrk_ref_sgd);
        sgd_trajectory(json, c, tsrk_cpu_sgd);
    }
    tsr_golden_close(json);
}

typedef struct state {
    float *p, *m, *v;
} state;

static state state_new(int64_t n)
{
    state s = {.p = tsr_array_random(n, TSR_F32, 1.0, 1),
               .m = tsr_array_random(n, TSR_F32, 0.1, 2),
               .v = tsr_array_random(n, TSR_F32, 0.1, 3)};
    for (int64_t i = 0; i < n; i++) {
        s.v[i] = fabsf(s.v[i]) + 0.01F;
    }
    return s;
}

static void state_free(state *s)
{
    tsr_array_free(s->p);
    tsr_array_free(s->m);
    tsr_array_free(s->v);
}

static const int64_t fifth = 5;

static tsrk_adamw adamw_args(const state *s, const float *g, int64_t n)
{
    return (tsrk_adamw){.p = s->p,
                        .m = s->m,
                        .v = s->v,
                        .g = g,
                        .n = n,
                        .step = &fifth,
                        .lr = 1e-2,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = 0.1};
}

static const int64_t sizes[] = {0, 1, 7, 1023, 1024, 1025, 40000};

#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

static void adamw_matches_definition(void)
{
    const float scale = 0.3F;
    for (size_t k = 0; k < SIZE_COUNT; k++) {
        int64_t n = sizes[k];
        state cpu = state_new(n);
        state ref = state_new(n);
        float *g = tsr_array_random(n, TSR_F32, 1.0, 4);
        tsrk_adamw a = adamw_args(&cpu, g, n);
        a.scale = &scale;
        tsrk_cpu_adamw(&a);
        a = adamw_args(&ref, g, n);
        a.scale = &scale;
        tsrk_ref_adamw(&a);
        tsr_array_near(cpu.m, ref.m, n, TSR_F32, 4.0, 0.1);
        tsr_array_near(cpu.v, ref.v, n, TSR_F32, 4.0, 0.1);
        tsr_array_near(cpu.p, ref.p, n, TSR_F32, 2.0, 10.0 * a.lr);
        state_free(&cpu);
        state_free(&ref);
        tsr_array_free(g);
    }
}

static void sgd_matches_definition(void)
{
    const float scale = 0.3F;
    for (size_t k = 0; k < SIZE_COUNT; k++) {
        int64_t n = sizes[k];
        for (int variant = 0; variant < 8; variant++) {
            const int64_t number_of_step = (variant & 4) ? 1 : 2;
            state cpu = state_new(n);
            state ref = state_new(n);
            float *g = tsr_array_random(n, TSR_F32, 1.0, 4);
            tsrk_sgd a = {.p = cpu.p,
                          .buffer = (variant & 1) ? cpu.m : NULL,
                          .g = g,
                          .scale = &scale,
                          .n = n,
                          .lr = 0.1,
                          .momentum = (variant & 1) ? 0.9 : 0.0,
                          .weight_decay = 0.01,
                          .nesterov = (variant & 2) != 0,
                          .step = &number_of_step};
            tsrk_cpu_sgd(&a);
            a.p = ref.p;
            a.buffer = (variant & 1) ? ref.m : NULL;
            tsrk_ref_sgd(&a);
            tsr_array_near(cpu.m, ref.m, n, TSR_F32, 4.0, 0.5);
            tsr_array_near(cpu.p, ref.p, n, TSR_F32, 2.0, 4.0 * a.lr);
            state_free(&cpu);
            state_free(&ref);
            tsr_array_free(g);
        }
    }
}

static void skip_changes_nothing(void)
{
    const int32_t skip = 1;
    const int32_t go = 0;
    const int64_t first = 1;
    state s = state_new(9);
    state before = state_new(9);
    float *g = tsr_array_random(9, TSR_F32, 1.0, 4);
    const adamw_fn adamw[] = {tsrk_ref_adamw, tsrk_cpu_adamw};
    const sgd_fn sgd[] = {tsrk_ref_sgd, tsrk_cpu_sgd};
    for (int k = 0; k < 2; k++) {
        tsrk_adamw a = adamw_args(&s, g, 9);
        a.skip = &skip;
        adamw[k](&a);
        tsrk_sgd b = {.p = s.p,
                      .buffer = s.m,
                      .g = g,
                      .skip = &skip,
                      .n = 9,
                      .lr = 0.1,
                      .momentum = 0.9,
                      .step = &first};
        sgd[k](&b);
        tsr_array_same(s.p, before.p, 9, TSR_F32);
        tsr_array_same(s.m, before.m, 9, TSR_F32);
        tsr_array_same(s.v, before.v, 9, TSR_F32);
    }
    for (int k = 0; k < 2; k++) {
        float was = s.p[0];
        tsrk_adamw a = adamw_args(&s, g, 9);
        a.skip = &go;
        adamw[k](&a);
        CHECK(s.p[0] != was);
    }
    state_free(&s);
    state_free(&before);
    tsr_array_free(g);
}

static void sum_of_squares(void)
{
    const int64_t counts[] = {0, 1, 7, 1023, 1025, 40000, 300007};
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        int64_t n = counts[k];
        float *x = tsr_array_random(n, TSR_F32, 3.0, 1);
        double got = 5.0;
        double want = 5.0;
        for (int add = 0; add < 2; add++) {
            tsrk_sum_squares a = {.x = x, .out = &got, .n = n, .accumulate = add == 1};
            tsrk_cpu_sum_squares(&a);
            a.out = &want;
            tsrk_ref_sum_squares(&a);
            /* a chain of n additions in double, all terms positive */
            CHECK_NEAR(got, want, 0x1p-53 * (double)(n + 1) * want);
        }
        CHECK(n == 0 ? got == 0.0 : got > 0.0);
        tsr_array_free(x);
    }
}

/* Sums of absolute values and greatest ones; no number hides behind NaN. */
static void other_norms(void)
{
    const int64_t counts[] = {0, 1, 7, 1025, 40000};
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        int64_t n = counts[k];
        float *x = tsr_array_random(n, TSR_F32, 3.0, 1);
        double got[2] = {2.0, 2.0};
        double want[2] = {2.0, 2.0};
        for (int m = 0; m < 2; m++) {
            tsrk_sum_squares a = {.x = x,
                                  .out = &got[m],
                                  .n = n,
                                  .accumulate = true,
                                  .norm = m == 0 ? TSRK_NORM_1 : TSRK_NORM_MAX};
            tsrk_cpu_sum_squares(&a);
            a.out = &want[m];
            tsrk_ref_sum_squares(&a);
        }
        /* a chain of n additions in double, all terms positive; a maximum is exact */
        CHECK_NEAR(got[0], want[0], 0x1p-53 * (double)(n + 1) * want[0]);
        CHECK_NEAR(got[1], want[1], 0.0);
        CHECK(n < 1000 || (got[0] > 2.0 && got[1] > 2.0));
        for (int m = 0; m < 2 && n > 0; m++) {
            tsrk_sum_squares a = {.x = x, .out = &got[m], .n = n, .norm = TSRK_NORM_MAX};
            x[n / 2] = m == 0 ? NAN : INFINITY;
            tsrk_cpu_sum_squares(&a);
            a.out = &want[m];
            tsrk_ref_sum_squares(&a);
            CHECK(isinf(got[m]) && isinf(want[m]));
        }
        tsr_array_free(x);
    }
}

static void clip_of_other_norms(void)
{
    tsr_status (*const clips[])(const tsrk_clip *) = {tsrk_ref_clip, tsrk_cpu_clip};
    for (int k = 0; k < 2; k++) {
        const double total = 9.0;
        double norm = 0.0;
        float scale = 0.0F;
        int32_t skip = -1;
        clips[k](&(tsrk_clip){.total = &total,
                              .norm = &norm,
                              .scale = &scale,
                              .skip = &skip,
                              .max_norm = 3.0,
                              .kind = TSRK_NORM_1});
        CHECK(norm == 9.0 && skip == 0);
        CHECK_NEAR(scale, 1.0 / 3.0, 1e-6 + 0x1p-24); /* 1e-6 is clip's own */
    }
}

typedef struct clip_case {
    double total, count, max_norm; /* count < 0: none */
    double norm;
    float scale;
    int32_t skip;
} clip_case;

static void clip_cases(void)
{
    const clip_case cases[] = {
        {25.0, -1.0, 1.0, 5.0, (float)(1.0 / (5.0 + 1e-6)), 0},
        {25.0, 3.0, 10.0, 5.0, 1.0F, 0},
        {25.0, 3.0, 0.0, 5.0, 1.0F, 0},
        {0.0, 3.0, 1.0, 0.0, 1.0F, 0},
        {25.0, 0.0, 1.0, 5.0, (float)(1.0 / (5.0 + 1e-6)), 1},
        {(double)INFINITY, 3.0, 1.0, (double)INFINITY, 0.0F, 1},
        {(double)INFINITY, -1.0, 0.0, (double)INFINITY, 0.0F, 1},
    };
    tsr_status (*const clips[])(const tsrk_clip *) = {tsrk_ref_clip, tsrk_cpu_clip};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int k = 0; k < 2; k++) {
            double norm = -1.0;
            float scale = -1.0F;
            int32_t skip = -1;
            clips[k](&(tsrk_clip){.total = &cases[c].total,
                                  .count = cases[c].count < 0.0 ? NULL : &cases[c].count,
                                  .norm = &norm,
                                  .scale = &scale,
                                  .skip = &skip,
                                  .max_norm = cases[c].max_norm});
            CHECK(norm == cases[c].norm);
            CHECK(scale == cases[c].scale);
            CHECK_EQ(skip, cases[c].skip);
        }
    }
    const double total = (double)NAN;
    double norm = 0.0;
    float scale = -1.0F;
    int32_t skip = -1;
    tsrk_cpu_clip(&(tsrk_clip){
        .total = &total, .norm = &norm, .scale = &scale, .skip = &skip, .max_norm = 1.0});
    CHECK(isnan(norm));
    CHECK(scale == 0.0F);
    CHECK_EQ(skip, 1);
}

/* Norm and update are those of gradients without the scale. */
static void clip_takes_the_loss_scale_off(void)
{
    const double total = 25.0 * 0x1p20;
    const double bad = (double)INFINITY;
    const float loss_scale = 0x1p10F;
    double norm = -1.0;
    float scale = -1.0F;
    int32_t skip = -1;
    int64_t skipped = 4;
    tsrk_clip a = {.total = &total,
                   .loss_scale = &loss_scale,
                   .norm = &norm,
                   .scale = &scale,
                   .skip = &skip,
                   .skipped = &skipped,
                   .max_norm = 1.0};
    tsrk_cpu_clip(&a);
    CHECK(norm == 5.0);
    CHECK(scale == (float)(1.0 / (5.0 + 1e-6) / 0x1p10));
    CHECK_EQ(skipped, 4);
    a.max_norm = 0.0;
    tsrk_cpu_clip(&a);
    CHECK(scale == 0x1p-10F);
    a.total = &bad;
    tsrk_cpu_clip(&a);
    CHECK(scale == 0.0F);
    CHECK_EQ(skipped, 5);
}

/* Clips of one step all hold, and it is skipped once. */
static void clips_of_one_step(void)
{
    tsr_status (*const clips[])(const tsrk_clip *) = {tsrk_ref_clip, tsrk_cpu_clip};
    const double total = 25.0;
    const double bad = (double)INFINITY;
    for (int k = 0; k < 2; k++) {
        double norm = -1.0;
        float scale = 0.0F;
        float least = 0.0F;
        int32_t skip = 1;
        int64_t skipped = 4;
        tsrk_clip a = {.total = &total,
                       .norm = &norm,
                       .scale = &scale,
                       .skip = &skip,
                       .skipped = &skipped,
                       .max_norm = 1.0};
        clips[k](&a);
        CHECK_EQ(skip, 0); /* the step before's is gone */
        least = scale;
        a.again = true;
        for (int i = 0; i < 3; i++) {
            a.max_norm = 2.0 * i;
            clips[k](&a);
            CHECK(norm == 5.0 && scale == least && skip == 0 && skipped == 4);
        }
        a.total = &bad;
        clips[k](&a);
        clips[k](&a);
        a.total = &total;
        clips[k](&a);
        CHECK(norm == 5.0 && scale == 0.0F && skip == 1 && skipped == 5);
    }
}

typedef struct scale_step {
    double norm;
    int32_t skip;
    float scale; /* after it */
    int32_t good;
} scale_step;

static void loss_scale_grows_and_backs_off(void)
{
    const double bad = (double)INFINITY;
    const double none = (double)NAN;
    const scale_step steps[] = {
        {1.0, 0, 8.0F, 1},  {1.0, 0, 8.0F, 2},  {1.0, 0, 16.0F, 0}, /* three good ones */
        {1.0, 0, 16.0F, 1}, {1.0, 1, 16.0F, 1},                     /* skipped without tokens */
        {bad, 1, 4.0F, 0},  {none, 1, 1.0F, 0}, {bad, 1, 0.5F, 0},  /* not below min */
        {1.0, 0, 0.5F, 1},  {1.0, 0, 0.5F, 2},  {1.0, 0, 1.0F, 0},
    };
    tsr_status (*const kernels[])(const tsrk_loss_scale *) = {tsrk_ref_loss_scale,
                                                              tsrk_cpu_loss_scale};
    for (int k = 0; k < 2; k++) {
        tsrk_scale_state now = {.scale = 8.0F};
        tsrk_scale_state next = {0};
        int32_t overflow = 1; /* the step before's */
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            tsrk_loss_scale a = {.norm = &steps[i].norm,
                                 .skip = &steps[i].skip,
                                 .now = &now,
                                 .next = &next,
                                 .overflow = &overflow,
                                 .growth = 2.0,
                                 .backoff = 0.25,
                                 .min = 0.5,
                                 .max = 16.0,
                                 .interval = 3};
            for (int times = 0; times < 3; times++) { /* a step is counted once */
                a.again = times > 0;
                kernels[k](&a);
                CHECK(next.scale == steps[i].scale);
                CHECK_EQ(next.good, steps[i].good);
            }
            a.norm = &steps[0].norm; /* nor does a later norm of it hide an overflow */
            kernels[k](&a);
            CHECK(isfinite(steps[i].norm) || next.scale == steps[i].scale);
            now = next;
        }
        now = (tsrk_scale_state){.scale = 12.0F, .good = 2};
        kernels[k](&(tsrk_loss_scale){.norm = &steps[0].norm,
                                      .skip = &steps[0].skip,
                                      .now = &now,
                                      .next = &next,
                                      .overflow = &overflow,
                                      .growth = 2.0,
                                      .backoff = 0.25,
                                      .min = 0.5,
                                      .max = 16.0,
                                      .interval = 3});
        CHECK(next.scale == 16.0F); /* not above max */
    }
}

static void updates_are_counted(void)
{
    tsr_status (*const kernels[])(const tsrk_count_update *) = {tsrk_ref_count_update,
                                                                tsrk_cpu_count_update};
    for (int k = 0; k < 2; k++) {
        int64_t count = 6;
        int32_t skip = 1;
        tsrk_count_update a = {.count = &count, .skip = &skip};
        kernels[k](&a);
        CHECK_EQ(count, 6);
        skip = 0;
        kernels[k](&a);
        a.skip = NULL;
        kernels[k](&a);
        CHECK_EQ(count, 8);
    }
}

static void bits_do_not_depend_on_threads(void)
{
    const int64_t n = (2 * TSRK_CPU_GRAIN) + 77;
    int before = omp_get_max_threads();
    float *g = tsr_array_random(n, TSR_F32, 1.0, 4);
    state one = state_new(n);
    double sum_one = 0.0;
    omp_set_num_threads(1);
    tsrk_adamw a = adamw_args(&one, g, n);
    tsrk_cpu_adamw(&a);
    tsrk_cpu_sum_squares(&(tsrk_sum_squares){.x = g, .out = &sum_one, .n = n});
    for (int threads = 2; threads < 5; threads++) {
        state more = state_new(n);
        double sum = 0.0;
        omp_set_num_threads(threads);
        a = adamw_args(&more, g, n);
        tsrk_cpu_adamw(&a);
        tsrk_cpu_sum_squares(&(tsrk_sum_squares){.x = g, .out = &sum, .n = n});
        tsr_array_same(more.p, one.p, n, TSR_F32);
        tsr_array_same(more.v, one.v, n, TSR_F32);
        CHECK(sum == sum_one);
        state_free(&more);
    }
    omp_set_num_threads(before);
    state_free(&one);
    tsr_array_free(g);
}

const tsr_test_case tsr_test_cases[] = {
    {"adamw_golden", adamw_golden},
    {"sgd_golden", sgd_golden},
    {"adamw_matches_definition", adamw_matches_definition},
    {"sgd_matches_definition", sgd_matches_definition},
    {"skip_changes_nothing", skip_changes_nothing},
    {"sum_of_squares", sum_of_squares},
    {"other_norms", other_norms},
    {"clip_of_other_norms", clip_of_other_norms},
    {"clip_cases", clip_cases},
    {"clip_takes_the_loss_scale_off", clip_takes_the_loss_scale_off},
    {"loss_scale_grows_and_backs_off", loss_scale_grows_and_backs_off},
    {"clips_of_one_step", clips_of_one_step},
    {"updates_are_counted", updates_are_counted},
    {"bits_do_not_depend_on_threads", bits_do_not_depend_on_threads},
    {NULL, NULL},
};
