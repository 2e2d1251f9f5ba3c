/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_normaliser.c
 * Steps that are given a number in place of labels: what it divides, and that ranks agree on it;
 * and losses of labels that no step was given.
 */
#include "autograd/autograd_priv.h"

#include <string.h>

#include "support/gpt2_rig.h"
#include "support/tsr_test.h"

static const gpt2_kind kind = {.preset = "hsdp"};

/* One step of two micro-batches, its end included; normaliser 0: of labels. */
static tsr_status step(gpt2_rig *r, double normaliser, double *loss_out, double *norm_out)
{
    tsr_dtensor *loss = NULL;

    TSR_TRY(normaliser > 0.0 ? tsr_step_begin_with(r->tape, 0, normaliser, 2)
                             : tsr_step_begin(r->tape, 0, r->labels, 2));
    for (int m = 0; m < 2; m++) {
        TSR_TRY(gpt2_rig_forward(r, m, &loss));
        TSR_TRY(tsr_backward(r->tape, loss));
    }
    TSR_TRY(tsr_clip_grad_norm(r->optimizer, r->tape, 0.0));
    TSR_TRY(tsr_grad_norm_read(r->optimizer, norm_out, NULL));
    TSR_TRY(tsr_step_loss(r->tape, loss_out));
    TSR_TRY(tsr_step_tokens(r->tape, &normaliser));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

/* The count of the labels gives what labels give, half of it twice as much: a power of two rounds
 * nothing. */
static void it_divides_the_loss(void)
{
    double loss[3] = {0.0};
    double norm[3] = {0.0};
    double tokens = 0.0;
    gpt2_rig r;

    REQUIRE_OK(gpt2_rig_open(&kind, &r));
    CHECK_OK(step(&r, 0.0, &loss[0], &norm[0]));
    CHECK_OK(tsr_step_tokens(r.tape, &tokens));
    CHECK_OK(step(&r, tokens, &loss[1], &norm[1]));
    CHECK_OK(step(&r, tokens / 2.0, &loss[2], &norm[2]));
    CHECK(loss[1] == loss[0] && norm[1] == norm[0]);
    CHECK(loss[2] == 2.0 * loss[0] && norm[2] == 2.0 * norm[0]);
    CHECK_OK(tsr_step_tokens(r.tape, &norm[0]));
    CHECK(norm[0] == tokens / 2.0);
    gpt2_rig_close(&r);
}

static void check_says(tsr_status expected, tsr_status status, const char *words)
{
    CHECK_EQ(status, expected);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

/* On all ranks alike, and the next step is a step. */
static void ranks_agree(void)
{
    const int rank = tsr_test_rank();
    double loss = 0.0;
    double norm = 0.0;
    gpt2_rig r;

    REQUIRE_OK(gpt2_rig_open(&kind, &r));
    check_says(TSR_ERR_INVALID, tsr_step_begin_with(r.tape, 0, 0.0, 1), "above 0");
    check_says(TSR_ERR_INVALID, tsr_step_begin_with(r.tape, 0, 2.0, 0), "at least 1");
    if (tsr_test_size() > 1) {
        check_says(TSR_ERR_DISAGREE, tsr_step_begin_with(r.tape, 0, rank == 0 ? 1.0 : 1.5, 1),
                   "with 1 to 1.5 on others");
        check_says(TSR_ERR_DISAGREE, tsr_step_begin_with(r.tape, 0, 1.0, rank == 0 ? 1 : 2),
                   "with 1 to 2 on others");
        check_says(TSR_ERR_DISAGREE,
                   rank == 0 ? tsr_step_begin_with(r.tape, 0, 1.0, 1)
                             : tsr_step_begin(r.tape, 0, r.labels, 1),
                   "with a normaliser (tsr_step_begin_with) on 1");
    }
    CHECK_OK(step(&r, 3.0, &loss, &norm));
    gpt2_rig_close(&r);
}

/* A loss of labels that were not counted is noticed; in an evaluation, which counts its own, and
 * with a number in place of labels there is nothing to notice. */
static void other_labels_are_told_of(void)
{
    gpt2_rig r;

    REQUIRE_OK(gpt2_rig_open(&kind, &r));
    for (int way = 0; way < 3; way++) {
        tsr_dtensor *x = NULL;

        CHECK_OK(way == 0   ? tsr_eval_begin(r.tape)
                 : way == 1 ? tsr_step_begin_with(r.tape, 0, 1.0, 1)
                            : tsr_step_begin(r.tape, 0, r.labels, 1));
        CHECK_OK(way == 0 ? TSR_OK : tsr_tape_begin(r.tape, 0));
        CHECK_OK(tsr_module_call(r.model, r.tape, &r.ids[0], 1, &x));
        CHECK_OK(tsr_op_cross_entropy(r.tape, x, r.labels[way == 2 ? 0 : 1], &x));
        CHECK(!r.tape->told_labels);
        CHECK_OK(tsr_module_call(r.model, r.tape, &r.ids[0], 1, &x));
        CHECK_OK(tsr_op_cross_entropy(r.tape, x, r.labels[1], &x));
        CHECK_EQ(r.tape->told_labels, way == 2);
        CHECK_OK(way == 0 ? tsr_eval_end(r.tape) : tsr_step_end(r.tape));
    }
    gpt2_rig_close(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"it_divides_the_loss", it_divides_the_loss},
    {"ranks_agree", ranks_agree},
    {"other_labels_are_told_of", other_labels_are_told_of},
    {NULL, NULL},
};
