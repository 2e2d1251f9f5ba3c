/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 8 */
/**
 * @file test_eval.c
 * Evaluations: what they give, where they may stand, and that training does not notice them.
 *
 * A training with evaluations at every place where they may stand has the same losses, norms and
 * parameters as one without, bit by bit: there is no tolerance.
 */
#include <string.h>

#include "comm/comm.h"
#include "support/gpt2_rig.h"
#include "support/tsr_test.h"

enum {
    MICRO = 2,
    OTHER = 2, /* the batch that is evaluated */
    STEPS = 4
};

/* ---- one evaluation, one step ---- */

static tsr_status evaluate(gpt2_rig *r, int batch, double *mean, double *tokens)
{
    tsr_dtensor *x = NULL;

    TSR_TRY(tsr_eval_begin(r->tape));
    TSR_TRY(tsr_module_call(r->model, r->tape, &r->ids[batch], 1, &x));
    TSR_TRY(tsr_op_cross_entropy(r->tape, x, r->labels[batch], &x));
    TSR_TRY(tsr_eval_loss(r->tape, x, mean, tokens));
    TSR_TRY(tsr_eval_end(r->tape));
    return TSR_OK;
}

/* What a training leaves. */
typedef struct course {
    double loss[STEPS], norm[STEPS];
    uint64_t digest;
    double mean[STEPS + 1]; /* of evaluations between steps, and before the first */
    int plans[STEPS];       /* of memory, made so far */
} course;

/* One more evaluation, where there are any: of what the last one between steps saw, or since the
 * update something else. */
static tsr_status interrupt(gpt2_rig *r, bool evaluates, double expected)
{
    double mean = 0.0;

    if (evaluates) {
        TSR_TRY(evaluate(r, OTHER, &mean, NULL));
        CHECK(mean == expected);
    }
    return TSR_OK;
}

static tsr_status train_step(gpt2_rig *r, int step, bool evaluates, course *c)
{
    const double before = c->mean[step];
    tsri_arena_stats stats = {0};
    tsr_dtensor *loss = NULL;
    double after = 0.0;

    TSR_TRY(tsr_step_begin(r->tape, step, r->labels, MICRO));
    TSR_TRY(interrupt(r, evaluates, before));
    for (int m = 0; m < MICRO; m++) {
        TSR_TRY(gpt2_rig_forward(r, m, &loss));
        TSR_TRY(interrupt(r, evaluates, before)); /* its backward is still to come */
        TSR_TRY(tsr_backward(r->tape, loss));
        TSR_TRY(interrupt(r, evaluates, before));
    }
    TSR_TRY(tsr_clip_grad_norm(r->optimizer, r->tape, 1.0));
    TSR_TRY(interrupt(r, evaluates, before));
    TSR_TRY(tsr_optimizer_step(r->optimizer, 0.01));
    TSR_TRY(tsr_grad_norm_read(r->optimizer, &c->norm[step], NULL));
    if (evaluates) {
        TSR_TRY(evaluate(r, OTHER, &after, NULL));
    }
    TSR_TRY(tsr_step_loss(r->tape, &c->loss[step]));
    TSR_TRY(tsr_step_end(r->tape));
    if (evaluates) {
        TSR_TRY(evaluate(r, OTHER, &c->mean[step + 1], NULL));
        CHECK(after == c->mean[step + 1]);
        CHECK(c->mean[step + 1] != c->mean[step]);
    }
    tsri_arena_get_stats(tsri_comm_arena(r->comm), &stats);
    c->plans[step] = stats.plans_made;
    return TSR_OK;
}

static tsr_status train(const gpt2_kind *k, bool evaluates, course *c)
{
    gpt2_rig r;
    tsr_status status = TSR_OK;

    memset(c, 0, sizeof(*c));
    TSR_TRY_GOTO(status, gpt2_rig_open(k, &r), close);
    if (evaluates) {
        TSR_TRY_GOTO(status, evaluate(&r, OTHER, &c->mean[0], NULL), close);
    }
    for (int step = 0; step < STEPS; step++) {
        TSR_TRY_GOTO(status, train_step(&r, step, evaluates, c), close);
    }
    TSR_TRY_GOTO(status, tsr_params_digest(r.model, &c->digest), close);
close:
    gpt2_rig_close(&r);
    return status;
}

static void training_does_not_notice(void)
{
    for (const gpt2_kind *k = gpt2_kinds; k->name != NULL; k++) {
        course plain;
        course evaluated;

        CHECK_OK(train(k, false, &plain));
        CHECK_OK(train(k, true, &evaluated));
        for (int step = 0; step < STEPS; step++) {
            const bool same = plain.loss[step] == evaluated.loss[step] &&
                              plain.norm[step] == evaluated.norm[step];

            CHECK(same);
            if (!same) {
                CHECK_STR(k->name, "like without evaluations");
            }
        }
        CHECK(plain.digest == evaluated.digest);
        /* Each place has been met with a plan around it: nothing is planned again. (But between
         * clip and update, and behind it, is one place in memory, and offloaded parameters are
         * refreshed in step memory there.) */
        CHECK(k->unit.offload_params || evaluated.plans[STEPS - 1] == evaluated.plans[STEPS - 2]);
    }
}

/* ---- what it gives ---- */

/* Without dropout the loss of an evaluation is that of a step of the same labels, bit by bit: sums
 * and count are formed alike. */
static void loss_is_the_steps(void)
{
    const gpt2_kind k = {.preset = "hsdp"};
    tsr_dtensor *loss = NULL;
    double mean = 0.0;
    double tokens = 0.0;
    double step_loss = 0.0;
    double step_tokens = 0.0;
    tsr_traffic traffic[2][8];
    int sets[2];
    gpt2_rig r;

    CHECK_OK(gpt2_rig_open(&k, &r));
    CHECK_OK(evaluate(&r, 0, &mean, &tokens));
    CHECK_OK(tsr_step_begin(r.tape, 0, r.labels, 1));
    CHECK_OK(gpt2_rig_forward(&r, 0, &loss));
    CHECK_OK(tsr_backward(r.tape, loss));
    CHECK_OK(tsr_step_loss(r.tape, &step_loss));
    CHECK_OK(tsr_step_tokens(r.tape, &step_tokens));
    CHECK_OK(tsr_step_end(r.tape));
    CHECK(mean == step_loss);
    CHECK(tokens == step_tokens);
    sets[0] = tsr_collectives_count(r.model, traffic[0], 8);
    CHECK_OK(evaluate(&r, 0, &mean, NULL)); /* of no step: the newest stays what it was */
    sets[1] = tsr_collectives_count(r.model, traffic[1], 8);
    CHECK_EQ(sets[1], sets[0]);
    for (int i = 0; i < sets[0] && i < 8; i++) {
        CHECK_EQ(traffic[1][i].collectives, traffic[0][i].collectives);
    }
    gpt2_rig_close(&r);
}

/* Dropout changes a step's loss and not an evaluation's. */
static void dropout_passes(void)
{
    const gpt2_kind with = {.preset = "hsdp", .dropout = 0.5};
    const gpt2_kind without = {.preset = "hsdp"};
    double mean[2] = {0.0};
    gpt2_rig r;

    CHECK_OK(gpt2_rig_open(&with, &r));
    CHECK_OK(evaluate(&r, 0, &mean[0], NULL));
    gpt2_rig_close(&r);
    CHECK_OK(gpt2_rig_open(&without, &r));
    CHECK_OK(evaluate(&r, 0, &mean[1], NULL));
    gpt2_rig_close(&r);
    CHECK(mean[0] == mean[1]);
}

/* ---- where it may not stand ---- */

static void check_says(tsr_status expected, tsr_status status, const char *words)
{
    CHECK_EQ(status, expected);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

static void order(void)
{
    const gpt2_kind k = {.preset = "hsdp"};
    tsr_dtensor *x = NULL;
    tsr_dtensor *loss = NULL;
    double number = 0.0;
    gpt2_rig r;

    CHECK_OK(gpt2_rig_open(&k, &r));
    check_says(TSR_ERR_STATE, tsr_eval_end(r.tape), "has not begun");
    CHECK(!tsr_tape_in_eval(r.tape));
    CHECK_OK(tsr_eval_begin(r.tape));
    CHECK(tsr_tape_in_eval(r.tape));
    check_says(TSR_ERR_STATE, tsr_eval_begin(r.tape), "within an evaluation");
    check_says(TSR_ERR_STATE, tsr_step_begin(r.tape, 0, r.labels, 1), "within an evaluation");
    CHECK_OK(tsr_module_call(r.model, r.tape, &r.ids[0], 1, &x));
    CHECK_OK(tsr_eval_end(r.tape));
    check_says(TSR_ERR_STATE, tsr_op_gelu(r.tape, x, &x), ""); /* its value is gone */
    CHECK_OK(tsr_step_begin(r.tape, 0, r.labels, 1));
    CHECK_OK(gpt2_rig_forward(&r, 0, &loss));
    CHECK_OK(tsr_eval_begin(r.tape));
    check_says(TSR_ERR_STATE, tsr_backward(r.tape, loss), "within an evaluation");
    check_says(TSR_ERR_STATE, tsr_tape_begin(r.tape, 1), "within an evaluation");
    check_says(TSR_ERR_STATE, tsr_step_end(r.tape), "within an evaluation");
    CHECK_OK(tsr_eval_end(r.tape));
    check_says(TSR_ERR_STATE, tsr_eval_loss(r.tape, loss, &number, NULL), "outside");
    CHECK_OK(tsr_backward(r.tape, loss));
    CHECK_OK(tsr_eval_begin(r.tape));
    check_says(TSR_ERR_STATE, tsr_clip_grad_norm(r.optimizer, r.tape, 1.0), "within an evaluation");
    check_says(TSR_ERR_STATE, tsr_optimizer_step(r.optimizer, 0.1), "within an evaluation");
    CHECK_OK(tsr_eval_end(r.tape));
    CHECK_OK(tsr_step_end(r.tape));
    gpt2_rig_close(&r);
}

/* A label out of range is told of on all ranks; a step around it is over then, one behind is not.
 */
static void failures(void)
{
    const gpt2_kind k = {.preset = "hsdp"};
    int32_t wrong[GPT2_BATCH * GPT2_SEQ] = {0};
    double mean = 0.0;
    tsr_dtensor *x = NULL;
    gpt2_rig r;

    CHECK_OK(gpt2_rig_open(&k, &r));
    wrong[1] = tsr_test_rank() == 0 ? GPT2_VOCAB : 0;
    CHECK_OK(tsr_dtensor_write(r.labels[OTHER], wrong));
    check_says(TSR_ERR_INVALID, evaluate(&r, OTHER, &mean, NULL), "of an evaluation is outside");
    CHECK(!tsr_tape_in_eval(r.tape));
    CHECK_OK(evaluate(&r, 0, &mean, NULL));

    CHECK_OK(tsr_step_begin(r.tape, 0, r.labels, 1));
    check_says(TSR_ERR_INVALID, evaluate(&r, OTHER, &mean, NULL), "of an evaluation is outside");
    check_says(TSR_ERR_STATE, tsr_tape_begin(r.tape, 0), "failed");
    CHECK_OK(tsr_step_end(r.tape));

    CHECK_OK(tsr_eval_begin(r.tape)); /* a module that is called wrongly half-way */
    CHECK_EQ(tsr_module_call(r.model, r.tape, &r.labels[0], 2, &x), TSR_ERR_INVALID);
    CHECK_EQ(tsr_op_add(r.tape, r.ids[0], r.ids[1], &x), TSR_ERR_INVALID);
    tsr_error_clear();
    CHECK_OK(tsr_eval_end(r.tape));
    CHECK_OK(evaluate(&r, 1, &mean, NULL));
    gpt2_rig_close(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"training_does_not_notice", training_does_not_notice},
    {"loss_is_the_steps", loss_is_the_steps},
    {"dropout_passes", dropout_passes},
    {"order", order},
    {"failures", failures},
    {NULL, NULL},
};
