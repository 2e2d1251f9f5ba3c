/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_two_tapes.c
 * Tapes of one comm take turns: steps that alternate between two of them are those of one, to the
 * bit, and none begins inside another's.
 */
#include <math.h>
#include <string.h>

#include "support/step_rig.h"
#include "support/tsr_test.h"

enum {
    STEPS = 6
};

/* A step as a program of its own would make it, on the tape that rig has now. */
static tsr_status train(step_rig *r, int step)
{
    const int micro_batches = 1 + step / 2 % 2; /* the same for two steps, one on each tape */

    TSR_TRY(step_rig_run(r, step, micro_batches, 1.0));
    TSR_TRY(tsr_clip_grad_norm(r->optimizer[0], r->tape, 0.5));
    TSR_TRY(tsr_optimizer_step(r->optimizer[0], 0.1));
    return TSR_OK;
}

static tsr_status evaluate(step_rig *r, int step, double *out)
{
    tsr_dtensor *loss = NULL;

    TSR_TRY(step_rig_begin(r, step, 1));
    TSR_TRY(step_rig_forward(r, 0, 1.0, &loss));
    TSR_TRY(tsr_backward(r->tape, loss));
    TSR_TRY(tsr_step_loss(r->tape, out));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

static void swap(step_rig *r, tsr_tape **other)
{
    tsr_tape *tape = r->tape;

    r->tape = *other;
    *other = tape;
}

typedef enum turns {
    ONE_TAPE,   /* all steps on one */
    ALTERNATE,  /* one after another on two */
    EVALUATIONS /* training on one, after each step an evaluation on the other */
} turns;

typedef struct course {
    double loss[STEPS];
    float params[STEP_ELEMENTS];
} course;

static tsr_status follow(step_rig *r, tsr_tape **other, turns how, course *out)
{
    for (int step = 0; step < STEPS; step++) {
        double unused = 0.0;

        TSR_TRY(train(r, step));
        TSR_TRY(tsr_step_loss(r->tape, &out->loss[step]));
        TSR_TRY(tsr_step_end(r->tape));
        if (how != ONE_TAPE) {
            swap(r, other);
        }
        if (how == EVALUATIONS) {
            TSR_TRY(evaluate(r, step, &unused));
            swap(r, other);
        }
    }
    TSR_TRY(step_rig_read(r, out->params));
    return TSR_OK;
}

static void run(const step_rig_options *o, turns how, course *out)
{
    tsr_tape *other = NULL;
    step_rig r;

    memset(out, 0, sizeof(*out));
    REQUIRE_OK(step_rig_open(o, &r));
    REQUIRE_OK(tsr_tape_create(r.comm, &other));
    CHECK_OK(follow(&r, &other, how, out));
    tsr_tape_destroy(&other);
    step_rig_close(&r);
}

static void check_same(const course *have, const course *want)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK(isfinite(want->loss[step]) && have->loss[step] == want->loss[step]);
    }
    for (int i = 0; i < STEP_ELEMENTS; i++) {
        CHECK(have->params[i] == want->params[i]);
    }
    CHECK(want->loss[STEPS - 1] != want->loss[0]);
}

static void steps_alternate(void)
{
    const step_rig_options options[] = {
        {.two_optimizers = false},
        {.unit = {.levels = {{TSR_AXIS_OTHERS, TSR_LEVEL_REPLICATE},
                             {TSR_AXIS_INNER, TSR_LEVEL_REPLICATE}}}},
        {.unit = {.levels = {{TSR_AXIS_OTHERS, TSR_LEVEL_OPTIM},
                             {TSR_AXIS_INNER, TSR_LEVEL_OPTIM}}}},
    };

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        course one;
        course two;
        course between;

        run(&options[i], ONE_TAPE, &one);
        run(&options[i], ALTERNATE, &two);
        run(&options[i], EVALUATIONS, &between);
        check_same(&two, &one);
        check_same(&between, &one);
    }
}

/* The other tape's step is untouched by what is refused, and goes on. */
static void steps_do_not_overlap(void)
{
    const step_rig_options o = {.two_optimizers = false};
    tsr_tape *other = NULL;
    tsr_dtensor *loss = NULL;
    double have = 0.0;
    double want = 0.0;
    step_rig r;

    REQUIRE_OK(step_rig_open(&o, &r));
    REQUIRE_OK(tsr_tape_create(r.comm, &other));
    CHECK_OK(evaluate(&r, 0, &want));
    CHECK_OK(step_rig_begin(&r, 3, 1));
    swap(&r, &other);
    CHECK_EQ(step_rig_begin(&r, 4, 1), TSR_ERR_STATE);
    CHECK(strstr(tsr_error_message(), "step 4 begins before step 3 of another tape") != NULL);
    tsr_error_clear();
    CHECK_STATUS(TSR_ERR_STATE, tsr_step_end(r.tape)); /* it has not begun */
    swap(&r, &other);
    CHECK_OK(step_rig_forward(&r, 0, 1.0, &loss));
    CHECK_OK(tsr_backward(r.tape, loss));
    CHECK_OK(tsr_step_loss(r.tape, &have));
    CHECK_EQ(have == want, 1);
    CHECK_OK(tsr_step_end(r.tape));
    swap(&r, &other);
    CHECK_OK(evaluate(&r, 4, &have));
    CHECK_EQ(have == want, 1);
    tsr_tape_destroy(&other);
    step_rig_close(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"steps_alternate", steps_alternate},
    {"steps_do_not_overlap", steps_do_not_overlap},
    {NULL, NULL},
};
