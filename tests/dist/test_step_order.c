/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_step_order.c
 * What a step may do in which order: gradients that a clip or an update takes are final, whatever
 * the program ran before and told its units, or the call says what is missing.
 *
 * Steps are compared with plain ones of single ranks, for units of each level; what adds nothing is
 * there a loss times 0. Bound: f32 sums of some 100 terms in another order, 2^-24 * 100 relative; a
 * weight, below 2, moves by lr times its gradient, both below 1.
 */
#include "tessera/unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/step_rig.h"
#include "support/tsr_test.h"

static const double tolerance = 2.0 * 100.0 * 0x1p-24;
static const double lr = 0.1;

static const step_rig_options kinds[] = {
    {.optimizer = {.kind = TSR_SGD}},
    {.optimizer = {.kind = TSR_SGD}, .unit = {.levels = {{"shard", TSR_LEVEL_REPLICATE}}}},
    {.optimizer = {.kind = TSR_SGD}, .unit = {.levels = {{"shard", TSR_LEVEL_OPTIM}}}},
    {.optimizer = {.kind = TSR_SGD}, .unit = {.levels = {{"shard", TSR_LEVEL_GRADS}}}},
    {.optimizer = {.kind = TSR_SGD}, .unit = {.offload_grads = true, .gradient_divisor = 3.0}},
};
/* On four ranks: replicas that keep a part of the update each. */
static const step_rig_options split_replicas = {
    .optimizer = {.kind = TSR_SGD},
    .unit = {.levels = {{"replicate", TSR_LEVEL_OPTIM}}, .gradient_divisor = 3.0}};

static const step_rig_options split_sequences = {.optimizer = {.kind = TSR_SGD}, .tp = true};

#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static void check_says(const char *words)
{
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

#define CHECK_REFUSED(words, call) \
    do { \
        CHECK_EQ((call), TSR_ERR_STATE); \
        check_says(words); \
    } while (0)

/* ---- the same step in other words ---- */

typedef struct course {
    const char *name;
    tsr_last_backward mark[STEP_MICRO]; /* said before each micro-batch */
    bool unmarks;                       /* before the clip */
    bool no_sync;                       /* gradients add up unreduced */
    bool reduces_late;                  /* all-reduce is off during backward alone */
    bool measures;                      /* also before it clips */
    int idle;                           /* number from 1 of the one without backward */
    bool ends_early;                    /* that one does not begin */
    int alone;                          /* number from 1 on from which the block runs alone */
} course;

#define YES TSR_LAST_YES
#define NO  TSR_LAST_NO

static const course courses[] = {
    {.name = "plain"},
    {.name = "each is marked", .mark = {YES, YES, YES}},
    {.name = "the first is marked", .mark = {YES, TSR_LAST_AUTO, TSR_LAST_AUTO}},
    {.name = "the first two are marked", .mark = {YES, YES, NO}},
    {.name = "none is marked", .mark = {NO, NO, NO}},
    {.name = "none is marked until the clip", .mark = {NO, NO, NO}, .unmarks = true},
    {.name = "no sync", .no_sync = true},
    {.name = "no sync, none is marked", .no_sync = true, .mark = {NO, NO, NO}},
    {.name = "all-reduce comes late", .reduces_late = true},
    {.name = "measures", .measures = true},
    {.name = "first idle", .idle = 1},
    {.name = "middle idle", .idle = 2},
    {.name = "last idle", .idle = 3},
    {.name = "middle idle, no sync", .idle = 2, .no_sync = true},
    {.name = "last idle, no sync", .idle = 3, .no_sync = true},
    {.name = "last idle, all marked", .idle = 3, .mark = {YES, YES, YES}},
    {.name = "last idle, none marked", .idle = 3, .mark = {NO, NO, NO}, .no_sync = true},
    {.name = "ends early", .idle = 3, .ends_early = true, .mark = {NO, YES, YES}},
    {.name = "block alone at the end", .alone = 3},
    {.name = "block alone", .alone = 1},
    {.name = "block alone, each marked", .alone = 2, .mark = {YES, YES, YES}},
    {.name = "block alone, no sync", .alone = 3, .no_sync = true},
    {.name = "block alone, no sync, one marked",
     .alone = 2,
     .no_sync = true,
     .mark = {NO, YES, NO}},
};

#define COURSES ((int)(sizeof(courses) / sizeof(courses[0])))

/* One micro-batch; on a single rank the idle one adds a loss times 0. */
static tsr_status course_batch(step_rig *r, const course *c, int micro, bool single)
{
    const bool is_idle = micro + 1 == c->idle;
    tsr_dtensor *loss = NULL;

    if (!single) {
        TSR_TRY(tsr_fsdp_set_last_backward(r->model, c->mark[micro]));
    }
    if (c->alone != 0 && micro + 1 >= c->alone) {
        TSR_TRY(step_rig_block(r, micro));
    } else if (single || !is_idle) {
        TSR_TRY(step_rig_micro(r, micro, is_idle ? 0.0 : 1.0));
    } else if (!c->ends_early) {
        TSR_TRY(step_rig_forward(r, micro, 1.0, &loss));
    }
    return TSR_OK;
}

static tsr_status course_step(step_rig *r, int64_t step, const course *c, bool single, double rate,
                              double *norm)
{
    TSR_TRY(tsr_unit_set_gradient_sync(r->model, single || !c->no_sync, true));
    TSR_TRY(tsr_unit_set_all_reduce(r->model, single || !c->reduces_late, true));
    TSR_TRY(step_rig_begin(r, step, STEP_MICRO));
    for (int m = 0; m < STEP_MICRO; m++) {
        TSR_TRY(course_batch(r, c, m, single));
    }
    if (c->unmarks) {
        TSR_TRY(tsr_fsdp_set_last_backward(r->model, TSR_LAST_AUTO));
    }
    TSR_TRY(tsr_unit_set_all_reduce(r->model, true, true));
    for (int times = c->measures ? 2 : 1; times > 0; times--) {
        TSR_TRY(tsr_clip_grad_norm(r->optimizer[0], r->tape, 0.0));
    }
    TSR_TRY(tsr_grad_norm_read(r->optimizer[0], norm, NULL));
    TSR_TRY(tsr_optimizer_step(r->optimizer[0], rate));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

typedef struct truth {
    double norm[COURSES][2];
    float whole[COURSES][2][STEP_ELEMENTS];
} truth;

static void check_course(const step_rig *r, int c, int step, double norm, const truth *t)
{
    const double want = t->norm[c][step];

    if (!(fabs(norm - want) <= tolerance * want) ||
        !step_rig_near(r, t->whole[c][step], tolerance)) {
        (void)printf("# %s, step %d: norm %.9g, wants %.9g\n", courses[c].name, step, norm, want);
        CHECK(false);
    }
}

/* A course as the first step of a run, and a plain one after it: nothing is left over. A single
 * rank divides by the learning rate. */
static tsr_status run_course(const step_rig_options *o, double divisor, int c, truth *t)
{
    const double rate = o->single ? lr / divisor : lr;
    step_rig r;

    TSR_TRY(step_rig_open(o, &r));
    for (int i = 0; i < 2; i++) {
        double norm = 0.0;

        TSR_TRY(course_step(&r, i, &courses[i == 0 ? c : 0], o->single, rate, &norm));
        if (o->single) {
            t->norm[c][i] = norm;
            TSR_TRY(step_rig_read(&r, t->whole[c][i]));
        } else {
            check_course(&r, c, i, norm * divisor, t);
        }
    }
    TSR_TRY(o->single ? TSR_OK : tsr_params_digest(r.model, NULL));
    step_rig_close(&r);
    return TSR_OK;
}

static tsr_status run_courses(const step_rig_options *o, double divisor, truth *t)
{
    for (int c = 0; c < COURSES; c++) {
        TSR_TRY(run_course(o, divisor, c, t));
    }
    return TSR_OK;
}

static void every_course(void)
{
    static truth by[2]; /* divided by 1 and by 3 */
    const step_rig_options one = {.optimizer = {.kind = TSR_SGD}, .single = true};

    for (int d = 0; d < 2; d++) {
        REQUIRE_OK(run_courses(&one, 1.0 + 2.0 * d, &by[d]));
    }
    CHECK(by[0].norm[0][0] > 0.1);
    for (int k = 0; k < KINDS; k++) {
        const double divisor = kinds[k].unit.gradient_divisor;

        REQUIRE_OK(run_courses(&kinds[k], divisor > 0.0 ? divisor : 1.0, &by[divisor > 0.0]));
    }
    if (tsr_test_size() == 4) {
        REQUIRE_OK(run_courses(&split_replicas, 3.0, &by[1]));
        REQUIRE_OK(run_courses(&split_sequences, 1.0, &by[0]));
    }
}

/* ---- gradients over steps ---- */

typedef enum keeper {
    SWITCHED_OFF, /* all-reduce is off in all steps but the last */
    NOT_MARKED,   /* no backward of them is the last */
    MEASURED      /* and their norms are measured */
} keeper;

/* Three steps of one micro-batch, or one of two whose second is idle, of the same data: gradients
 * of the last are three times those of one. */
static void run_keeper(const step_rig_options *o, keeper how, bool idles, double *norm)
{
    step_rig r;

    REQUIRE_OK(step_rig_open(o, &r));
    for (int step = 0; step < 3; step++) {
        tsr_dtensor *loss = NULL;

        CHECK_OK(tsr_unit_set_all_reduce(r.model, how != SWITCHED_OFF || step == 2, true));
        CHECK_OK(tsr_fsdp_set_last_backward(
            r.model, how == SWITCHED_OFF || step == 2 ? TSR_LAST_AUTO : TSR_LAST_NO));
        CHECK_OK(tsr_unit_set_gradient_sync(r.model, !idles, true));
        CHECK_OK(step_rig_begin(&r, step, idles ? 2 : 1));
        CHECK_OK(step_rig_micro(&r, 0, 1.0));
        if (idles) {
            CHECK_OK(step_rig_forward(&r, 1, 1.0, &loss));
        }
        if (how == MEASURED || step == 2) {
            CHECK_OK(tsr_clip_grad_norm(r.optimizer[0], r.tape, 0.0));
            CHECK_OK(tsr_grad_norm_read(r.optimizer[0], &norm[step], NULL));
        } else {
            norm[step] = 0.0;
        }
        CHECK_OK(tsr_step_end(r.tape));
    }
    step_rig_close(&r);
}

static void kept_gradients_add_up(void)
{
    for (int k = 0; k < KINDS + (tsr_test_size() == 4); k++) {
        const step_rig_options *o = k < KINDS ? &kinds[k] : &split_replicas;
        double one[2] = {0.0};

        for (int i = 0; i < 6; i++) {
            const keeper how = (keeper)(i % 3);
            double norm[3] = {0.0};

            run_keeper(o, MEASURED, i >= 3, norm);
            one[0] = norm[0];
            run_keeper(o, how, i >= 3, norm);
            CHECK_NEAR(norm[2], 3.0 * one[0], tolerance * norm[2]);
            CHECK(how != MEASURED || fabs(norm[1] - 2.0 * one[0]) <= tolerance * norm[1]);
        }
    }
}

/* ---- what is refused ---- */

/* The call says what is missing; and once it is there, all is well. */
static void missing_parts_are_named(void)
{
    double norm = 0.0;
    step_rig r;

    REQUIRE_OK(step_rig_open(&kinds[0], &r));
    CHECK_REFUSED("has no gradient now", tsr_clip_grad_norm(r.optimizer[0], r.tape, 1.0));
    CHECK_OK(step_rig_begin(&r, 0, 3));
    CHECK_REFUSED("has no gradient now", tsr_optimizer_step(r.optimizer[0], lr));
    CHECK_OK(step_rig_micro(&r, 0, 1.0));
    CHECK_REFUSED("micro-batch 1 of 3 has no backward",
                  tsr_clip_grad_norm(r.optimizer[0], r.tape, 1.0));
    CHECK_OK(step_rig_micro(&r, 1, 1.0));
    CHECK_REFUSED("micro-batch 2 of 3 has no backward", tsr_optimizer_step(r.optimizer[0], lr));
    CHECK_OK(tsr_unit_set_all_reduce(r.block, false, false));
    CHECK_OK(step_rig_micro(&r, 2, 1.0));
    CHECK_REFUSED(tsr_test_size() == 1
                      ? "unit \"block\": all-reduce is off (tsr_unit_set_all_reduce), its "
                        "gradients are this rank's alone"
                      : "unit \"block\": all-reduce is off (tsr_unit_set_all_reduce), its "
                        "gradients are sums over shard alone",
                  tsr_clip_grad_norm(r.optimizer[0], r.tape, 1.0));
    CHECK_REFUSED("unit \"block\"", tsr_optimizer_step(r.optimizer[0], lr));
    CHECK_OK(tsr_unit_set_all_reduce(r.block, true, false));
    CHECK_OK(tsr_clip_grad_norm(r.optimizer[0], r.tape, 0.0));
    CHECK_OK(tsr_grad_norm_read(r.optimizer[0], &norm, NULL));
    CHECK(isfinite(norm) && norm > 0.0);
    CHECK_OK(tsr_step_end(r.tape));
    CHECK_REFUSED("has no gradient now", tsr_optimizer_step(r.optimizer[0], lr));

    /* What stays for the next step is of all micro-batches too. */
    CHECK_OK(tsr_fsdp_set_last_backward(r.model, TSR_LAST_NO));
    CHECK_OK(step_rig_begin(&r, 1, 2));
    CHECK_OK(step_rig_micro(&r, 0, 1.0));
    CHECK_REFUSED("micro-batch 1 of 2 has no backward", tsr_step_end(r.tape));
    CHECK_OK(tsr_fsdp_set_last_backward(r.model, TSR_LAST_AUTO));
    CHECK_OK(step_rig_run(&r, 1, 1, 1.0));
    CHECK_OK(tsr_step_end(r.tape));
    step_rig_close(&r);
}

static void calls_out_of_order(void)
{
    const step_rig_options o = {.two_optimizers = true};
    tsr_dtensor *x = NULL;
    double value = 0.0;
    step_rig r;

    REQUIRE_OK(step_rig_open(&o, &r));
    CHECK_REFUSED("before the first tsr_step_begin", tsr_step_loss(r.tape, &value));
    CHECK_REFUSED("before the first tsr_step_begin", tsr_step_tokens(r.tape, &value));
    CHECK_REFUSED("before tsr_tape_begin", tsr_module_call(r.model, r.tape, &r.ids[0], 1, &x));
    CHECK_OK(step_rig_begin(&r, 0, 1));
    CHECK_REFUSED("before step 0 has ended", step_rig_begin(&r, 1, 1));
    CHECK_REFUSED("within step 0", tsr_loss_scale_begin(r.optimizer[0], r.tape, NULL));
    CHECK_REFUSED("before tsr_tape_begin", tsr_module_call(r.model, r.tape, &r.ids[0], 1, &x));
    CHECK_OK(step_rig_forward(&r, 0, 1.0, &x));
    CHECK_OK(tsr_backward(r.tape, x));
    CHECK_REFUSED("a second time", tsr_backward(r.tape, x));
    CHECK_REFUSED("micro-batch 1 of 1", tsr_tape_begin(r.tape, 1));
    CHECK_REFUSED("after the micro-batch's backward",
                  tsr_module_call(r.model, r.tape, &r.ids[0], 1, &x));
    CHECK_OK(tsr_clip_grad_norm(r.optimizer[0], r.tape, 1.0));
    CHECK_REFUSED("taken as final", tsr_tape_begin(r.tape, 1));
    CHECK_OK(tsr_optimizer_step(r.optimizer[0], lr));
    CHECK_REFUSED("parameter embed was updated", tsr_optimizer_step(r.optimizer[0], lr));
    CHECK_REFUSED("parameter embed was updated", tsr_clip_grad_norm(r.optimizer[0], r.tape, 1.0));
    CHECK_OK(tsr_clip_grad_norm(r.optimizer[0], r.tape, 0.0)); /* for the log */
    CHECK_OK(tsr_optimizer_step(r.optimizer[1], lr));
    CHECK_REFUSED("parameter block.weight was updated", tsr_optimizer_step(r.optimizer[1], lr));
    CHECK_REFUSED("after the step's update", tsr_tape_begin(r.tape, 1));
    CHECK_OK(tsr_step_loss(r.tape, &value));
    CHECK_OK(tsr_step_end(r.tape));
    CHECK_OK(tsr_step_loss(r.tape, &value)); /* of the step that has ended */
    CHECK_STATUS(TSR_ERR_INVALID, tsr_fsdp_set_last_backward(r.model, (tsr_last_backward)7));
    step_rig_close(&r);
}

/* Every optimizer of a tape divides by the scale that another began, or says that it must. */
static void an_update_takes_the_scale_off(void)
{
    const step_rig_options o = {.two_optimizers = true};
    step_rig r;

    REQUIRE_OK(step_rig_open(&o, &r));
    CHECK_OK(tsr_loss_scale_begin(r.optimizer[0], r.tape, NULL));
    CHECK_OK(step_rig_run(&r, 0, 1, 1.0));
    for (int i = 0; i < 2; i++) {
        CHECK_REFUSED("their tape's loss scale", tsr_optimizer_step(r.optimizer[i], lr));
        CHECK_OK(tsr_clip_grad_norm(r.optimizer[i], r.tape, 0.0));
        CHECK_OK(tsr_optimizer_step(r.optimizer[i], lr));
    }
    CHECK_OK(tsr_step_end(r.tape));
    step_rig_close(&r);
}

static void evaluate(step_rig *r, int step, bool plays_first)
{
    tsr_dtensor *loss = NULL;

    CHECK_OK(step_rig_begin(r, step, 2));
    CHECK_OK(step_rig_forward(r, 0, 1.0, &loss));
    if (plays_first) {
        CHECK_OK(tsr_backward(r->tape, loss));
    }
    CHECK_OK(step_rig_forward(r, 1, 1.0, &loss));
    if (!plays_first) {
        CHECK_REFUSED("has no gradient now", tsr_clip_grad_norm(r->optimizer[0], r->tape, 1.0));
    }
    CHECK_OK(tsr_step_end(r->tape));
}

/* Forward alone is a step; and one that ends half-way leaves nothing to the next. */
static void evaluations_are_steps(void)
{
    for (int k = 0; k < KINDS; k++) {
        step_rig r;

        REQUIRE_OK(step_rig_open(&kinds[k], &r));
        for (int step = 0; step < 4; step++) {
            evaluate(&r, step, step >= 2);
        }
        step_rig_close(&r);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"every_course", every_course},
    {"kept_gradients_add_up", kept_gradients_add_up},
    {"missing_parts_are_named", missing_parts_are_named},
    {"calls_out_of_order", calls_out_of_order},
    {"an_update_takes_the_scale_off", an_update_takes_the_scale_off},
    {"evaluations_are_steps", evaluations_are_steps},
    {NULL, NULL},
};
