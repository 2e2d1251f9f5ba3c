/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 4 */
/* hostile: 4 */
/**
 * @file test_step_state.c
 * What a step knows, and for how long: updates are counted where they are made, norms and loss
 * scales belong to their step, and reading changes nothing.
 *
 * Where a step that is skipped changes nothing, bits are compared. Other bounds: the same f32 terms
 * are added in other orders, some 100 of them: 2^-24 * 100 relative, below 6e-6.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "optim/optim.h"
#include "support/step_rig.h"
#include "support/tsr_test.h"

static const double tolerance = 100.0 * 0x1p-24;
static const double overflow = 0x1p100; /* its square is not a finite f32 */

static bool says(const char *words)
{
    const bool said = strstr(tsr_error_message(), words) != NULL;

    if (!said) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
    return said;
}

static bool same(const float *a, const float *b)
{
    for (int i = 0; i < STEP_ELEMENTS; i++) {
        if (a[i] != b[i]) { /* nor may any be NaN */
            return false;
        }
    }
    return true;
}

/* ---- a step that is skipped ---- */

typedef enum skipper {
    NO_STEP,      /* there is no such step */
    UPDATES,      /* clip, update */
    FAILS,        /* clip ends with an error, and the program leaves the update out */
    READS,        /* the program reads that it is to be skipped, and leaves it out */
    MEASURES,     /* measure, clip, update */
    LEAVES_A_CLIP /* clip with an error in a step whose next one does not clip */
} skipper;

static tsr_status skipped_step(step_rig *r, skipper how)
{
    const tsr_clip_options failing = {.max_norm = 1.0, .nonfinite = TSR_NONFINITE_ERROR};
    tsr_optimizer *opt = r->optimizer[0];
    double norm = 0.0;
    bool skipped = false;

    TSR_TRY(step_rig_run(r, 0, 1, overflow));
    if (how == FAILS || how == LEAVES_A_CLIP) {
        CHECK_STATUS(TSR_ERR_INVALID, tsr_clip_grad_norm_with(opt, r->tape, &failing));
    } else {
        if (how == MEASURES) {
            TSR_TRY(tsr_clip_grad_norm(opt, r->tape, 0.0));
        }
        TSR_TRY(tsr_clip_grad_norm(opt, r->tape, 1.0));
        TSR_TRY(tsr_grad_norm_read(opt, &norm, &skipped));
        CHECK(skipped && !isfinite(norm));
        if (how != READS) {
            TSR_TRY(tsr_optimizer_step(opt, 0.1));
        }
    }
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

static tsr_status good_step(step_rig *r, int64_t step, bool clips)
{
    TSR_TRY(step_rig_run(r, step, 2, 1.0));
    if (clips) {
        TSR_TRY(tsr_clip_grad_norm(r->optimizer[0], r->tape, 0.01));
    }
    TSR_TRY(tsr_optimizer_step(r->optimizer[0], 0.1));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

/* Two good steps, after a step that overflows in some way; scale: init of a loss scale, 0: none. */
static void run_skipped(const step_rig_options *o, skipper how, double scale, float *out)
{
    const tsr_loss_scale_options scaling = {.init = scale, .max = 0x1p127, .interval = 3};
    const bool clips = how != LEAVES_A_CLIP || scale > 0.0;
    int64_t updates = 0;
    int64_t skipped = 0;
    double now = 0.0;
    step_rig r;

    CHECK_OK(step_rig_open(o, &r));
    if (scale > 0.0) {
        CHECK_OK(tsr_loss_scale_begin(r.optimizer[0], r.tape, &scaling));
    }
    if (how != NO_STEP) {
        CHECK_OK(skipped_step(&r, how));
    }
    for (int step = 1; step < 4; step++) {
        CHECK_OK(good_step(&r, step, clips));
    }
    CHECK_OK(tsri_optimizer_get_steps(r.optimizer[0], &updates));
    CHECK_EQ(updates, 3);
    CHECK_OK(tsr_loss_scale_read(r.optimizer[0], r.tape, &now, &skipped));
    CHECK_EQ(skipped, how != NO_STEP);
    /* Halved once, and grown once after three good steps. */
    CHECK(scale > 0.0 ? now == (how != NO_STEP ? scale : 2.0 * scale) : now == 1.0);
    CHECK_OK(step_rig_read(&r, out));
    step_rig_close(&r);
}

static void check_skipped(const step_rig_options *o, double scale)
{
    float want[STEP_ELEMENTS];
    float without[STEP_ELEMENTS];
    float have[STEP_ELEMENTS];

    run_skipped(o, NO_STEP, scale, want);
    for (skipper how = UPDATES; how <= MEASURES; how++) {
        run_skipped(o, how, scale, have);
        CHECK(same(have, want));
    }
    CHECK(isfinite(want[0]));
    if (scale == 0.0) {
        step_rig r;

        run_skipped(o, LEAVES_A_CLIP, scale, have);
        CHECK_OK(step_rig_open(o, &r));
        for (int step = 1; step < 4; step++) {
            CHECK_OK(good_step(&r, step, false));
        }
        CHECK_OK(step_rig_read(&r, without));
        step_rig_close(&r);
        CHECK(same(have, without));
        CHECK(!same(want, without)); /* clipping matters */
    }
}

static void a_skipped_step_changes_nothing(void)
{
    const step_rig_options adamw = {.two_optimizers = false};
    const step_rig_options sgd = {.optimizer = {.kind = TSR_SGD, .momentum = 0.9}};

    check_skipped(&adamw, 0.0);
    check_skipped(&adamw, 0x1p4);
    check_skipped(&sgd, 0x1p4);
}

/* ---- norms ---- */

static void measuring_again_gives_the_same(void)
{
    const step_rig_options o = {.two_optimizers = false};
    const tsr_loss_scale_options scaling = {.interval = 1};
    double norm[4] = {0.0};
    step_rig r;

    REQUIRE_OK(step_rig_open(&o, &r));
    CHECK_STATUS(TSR_ERR_STATE, tsr_grad_norm_read(r.optimizer[0], norm, NULL));
    for (int scaled = 0; scaled < 2; scaled++) {
        if (scaled == 1) {
            CHECK_OK(tsr_loss_scale_begin(r.optimizer[0], r.tape, &scaling));
        }
        CHECK_OK(step_rig_run(&r, scaled, 2, 1.0));
        for (int i = 0; i < 2; i++) {
            CHECK_OK(tsr_clip_grad_norm(r.optimizer[0], r.tape, 0.01));
            CHECK_OK(tsr_grad_norm_read(r.optimizer[0], &norm[2 * scaled + i], NULL));
        }
        CHECK_OK(tsr_step_end(r.tape));
    }
    CHECK(norm[0] > 0.01);
    for (int i = 1; i < 4; i++) {
        CHECK(norm[i] == norm[0]);
    }
    step_rig_close(&r);
}

/* A clip, and then a norm for the log, is a clip. */
static void measuring_undoes_no_clip(void)
{
    const step_rig_options o = {.optimizer = {.kind = TSR_SGD}};
    const tsr_clip_options greatest = {.p = (double)INFINITY};
    float have[2][STEP_ELEMENTS];

    for (int logs = 0; logs < 2; logs++) {
        step_rig r;

        REQUIRE_OK(step_rig_open(&o, &r));
        CHECK_OK(step_rig_run(&r, 0, 2, 1.0));
        CHECK_OK(tsr_clip_grad_norm(r.optimizer[0], r.tape, 0.01));
        if (logs == 1) {
            CHECK_OK(tsr_clip_grad_norm_with(r.optimizer[0], r.tape, &greatest));
        }
        CHECK_OK(tsr_optimizer_step(r.optimizer[0], 0.1));
        CHECK_OK(tsr_step_end(r.tape));
        CHECK_OK(step_rig_read(&r, have[logs]));
        step_rig_close(&r);
    }
    CHECK(same(have[0], have[1]));
}

/* ---- two optimizers on one tape ---- */

/* Scaling begun by: neither, the first, both. */
static void run_two(int begun, double norm[3][2], float *out)
{
    const step_rig_options o = {.two_optimizers = true};
    const tsr_loss_scale_options scaling = {.init = 0x1p10, .interval = 2};
    double scale = 0.0;
    step_rig r;

    REQUIRE_OK(step_rig_open(&o, &r));
    for (int i = 0; i < begun; i++) {
        CHECK_OK(tsr_loss_scale_begin(r.optimizer[i], r.tape, &scaling));
    }
    for (int step = 0; step < 3; step++) {
        CHECK_OK(step_rig_run(&r, step, 2, 1.0));
        for (int i = 0; i < 2; i++) {
            CHECK_OK(tsr_clip_grad_norm(r.optimizer[i], r.tape, 0.05));
            CHECK_OK(tsr_grad_norm_read(r.optimizer[i], &norm[step][i], NULL));
            CHECK_OK(tsr_optimizer_step(r.optimizer[i], 0.1));
        }
        CHECK_OK(tsr_loss_scale_read(r.optimizer[1], r.tape, &scale, NULL));
        CHECK(scale == (begun == 0 ? 1.0 : step == 0 ? 0x1p10 : 0x1p11)); /* counted once a step */
        CHECK_OK(tsr_step_end(r.tape));
    }
    CHECK_OK(step_rig_read(&r, out));
    step_rig_close(&r);
}

static void two_optimizers_share_one_scale(void)
{
    double norm[3][3][2] = {{{0.0}}};
    float have[3][STEP_ELEMENTS];

    for (int begun = 0; begun < 3; begun++) {
        run_two(begun, norm[begun], have[begun]);
        for (int i = 0; i < 6; i++) {
            CHECK(norm[begun][i / 2][i % 2] == norm[0][i / 2][i % 2]);
        }
        CHECK(same(have[begun], have[0]));
    }
    CHECK(norm[0][0][0] > 0.05 && norm[0][0][1] > 0.0);
}

/* ---- losses ---- */

/* Losses of a step of 3, of which whole says by bits which are made whole before backward; read
 * after each micro-batch, or at the end alone. */
static double step_loss(step_rig *r, unsigned whole, bool between)
{
    double loss = 0.0;

    CHECK_OK(step_rig_begin(r, 0, 3));
    for (int m = 0; m < 3; m++) {
        tsr_dtensor *value = NULL;
        double now = 0.0;

        CHECK_OK(step_rig_forward(r, m, 1.0, &value));
        if ((whole >> m & 1U) != 0) {
            tsr_layout layout;

            CHECK_OK(tsr_layout_init(r->mesh, NULL, 0, &layout));
            CHECK_OK(tsr_op_redistribute(r->tape, value, &layout, &value));
        }
        CHECK_OK(tsr_backward(r->tape, value));
        if (between) {
            CHECK_OK(tsr_step_loss(r->tape, &now));
            CHECK(now > loss);
            loss = now;
        }
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tsr_step_loss(r->tape, &loss));
    }
    CHECK_OK(tsr_step_end(r->tape));
    return loss;
}

static void reading_the_loss_changes_nothing(void)
{
    const step_rig_options o = {.two_optimizers = false};
    double want = 0.0;
    step_rig r;

    REQUIRE_OK(step_rig_open(&o, &r));
    want = step_loss(&r, 0, false);
    CHECK(want > 0.5 * log(STEP_VOCAB));
    CHECK(step_loss(&r, 0, true) == want);
    for (unsigned whole = 1; whole < 8; whole++) {
        CHECK_NEAR(step_loss(&r, whole, false), want, tolerance * want);
        CHECK_NEAR(step_loss(&r, whole, true), want, tolerance * want);
    }
    step_rig_close(&r);
}

/* ---- values ---- */

static void learning_rates_are_checked(void)
{
    const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, -1.0};
    const step_rig_options o = {.two_optimizers = false};
    float before[STEP_ELEMENTS];
    float after[STEP_ELEMENTS];
    step_rig r;

    REQUIRE_OK(step_rig_open(&o, &r));
    CHECK_OK(step_rig_read(&r, before));
    CHECK_OK(step_rig_run(&r, 0, 1, 1.0));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_EQ(tsr_optimizer_step(r.optimizer[0], bad[i]), TSR_ERR_INVALID);
        CHECK(says("lr is"));
    }
    CHECK_OK(step_rig_read(&r, after));
    CHECK(same(before, after));
    CHECK_OK(tsr_optimizer_step(r.optimizer[0], 0.0));
    CHECK_OK(tsr_step_end(r.tape));
    step_rig_close(&r);
}

/* ---- ranks that begin different steps ---- */

/* One rank is alone along each axis, also along the one that splits no labels: all are told. */
static void micro_batches_are_compared(void)
{
    const step_rig_options options = {.tp = tsr_test_size() == 4};
    const bool other = tsr_test_rank() == tsr_test_size() - 1;
    step_rig r;

    if (tsr_test_size() == 1) {
        return;
    }
    REQUIRE_OK(step_rig_open(&options, &r));
    CHECK_EQ(step_rig_begin(&r, 0, other ? 1 : 3), TSR_ERR_DISAGREE);
    CHECK(says(other ? "micro_batch_count 1 on this rank, with 1 to 3 on others"
                     : "micro_batch_count 3 on this rank, with 1 to 3 on others"));
    CHECK_OK(good_step(&r, 0, true));
    step_rig_close(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"a_skipped_step_changes_nothing", a_skipped_step_changes_nothing},
    {"measuring_again_gives_the_same", measuring_again_gives_the_same},
    {"measuring_undoes_no_clip", measuring_undoes_no_clip},
    {"two_optimizers_share_one_scale", two_optimizers_share_one_scale},
    {"reading_the_loss_changes_nothing", reading_the_loss_changes_nothing},
    {"learning_rates_are_checked", learning_rates_are_checked},
    {"micro_batches_are_compared", micro_batches_are_compared},
    {NULL, NULL},
};
