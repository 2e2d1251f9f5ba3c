/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 8 */
/**
 * @file test_in_flight.c
 * Several micro-batches in flight: forwards that run ahead of backwards.
 *
 * Where backwards come in the order of micro-batches every sum is formed in the same order, so
 * losses, norms and parameters are those of one micro-batch after the other, bit by bit. In another
 * order the same f32 terms are summed otherwise: relative to the largest 2^-24 for each of 4 terms,
 * in each of 2 steps; an update of lr 0.01 in AdamW may turn a gradient of that size into lr.
 */
#include <string.h>

#include "support/gpt2_rig.h"
#include "support/tsr_test.h"

enum {
    STEPS = 2,
    MOST = 2 * GPT2_MICRO + 1
};

/* What is done in turn: +m begins micro-batch m - 1 and runs its forward, -m plays its backward. */
typedef struct order {
    const char *name;
    int most; /* in flight */
    int moves[MOST];
} order;

static const order sequential = {"one by one", 1, {1, -1, 2, -2, 3, -3, 4, -4}};
static const order same_sums[] = {
    {"one ahead", 2, {1, 2, -1, 3, -2, 4, -3, -4}},
    {"two ahead, then one", 3, {1, 2, 3, -1, -2, 4, -3, -4}},
    {"all forwards first", 4, {1, 2, 3, 4, -1, -2, -3, -4}},
    {"more than needed", 16, {1, 2, -1, 3, -2, 4, -3, -4}},
};
#define ORDERS ((int)(sizeof(same_sums) / sizeof(same_sums[0])))
static const order backwards_last_first = {"last first", 4, {1, 2, 3, 4, -4, -3, -2, -1}};

typedef struct course {
    double loss[STEPS], norm[STEPS];
    uint64_t digest;
} course;

static tsr_status train_step(gpt2_rig *r, int step, const order *o, course *c)
{
    tsr_dtensor *loss[GPT2_MICRO] = {NULL};

    TSR_TRY(tsr_step_begin(r->tape, step, r->labels, GPT2_MICRO));
    for (int i = 0; i < MOST && o->moves[i] != 0; i++) {
        const int micro = (o->moves[i] > 0 ? o->moves[i] : -o->moves[i]) - 1;

        if (o->moves[i] > 0) {
            TSR_TRY(gpt2_rig_forward(r, micro, &loss[micro]));
        } else {
            TSR_TRY(tsr_backward(r->tape, loss[micro]));
        }
    }
    TSR_TRY(tsr_clip_grad_norm(r->optimizer, r->tape, 1.0));
    TSR_TRY(tsr_optimizer_step(r->optimizer, 0.01));
    TSR_TRY(tsr_grad_norm_read(r->optimizer, &c->norm[step], NULL));
    TSR_TRY(tsr_step_loss(r->tape, &c->loss[step]));
    TSR_TRY(tsr_step_end(r->tape));
    return TSR_OK;
}

static tsr_status train(const gpt2_kind *k, const order *o, course *c)
{
    gpt2_rig r;
    tsr_status status = TSR_OK;

    memset(c, 0, sizeof(*c));
    TSR_TRY_GOTO(status, gpt2_rig_open(k, &r), close);
    TSR_TRY_GOTO(status, tsr_tape_set_in_flight(r.tape, o->most), close);
    for (int step = 0; step < STEPS; step++) {
        TSR_TRY_GOTO(status, train_step(&r, step, o, c), close);
    }
    TSR_TRY_GOTO(status, tsr_params_digest(r.model, &c->digest), close);
close:
    gpt2_rig_close(&r);
    return status;
}

static void backwards_in_order_give_the_same_bits(void)
{
    for (const gpt2_kind *k = gpt2_kinds; k->name != NULL; k++) {
        const order *o = &same_sums[(k - gpt2_kinds) % ORDERS]; /* one each: 8 ranks take long */
        course plain;
        course ahead;
        bool same = true;

        CHECK_OK(train(k, &sequential, &plain));
        CHECK_OK(train(k, o, &ahead));
        for (int step = 0; step < STEPS; step++) {
            same = same && plain.loss[step] == ahead.loss[step] &&
                   plain.norm[step] == ahead.norm[step];
        }
        CHECK(same && plain.digest == ahead.digest);
        if (!same) {
            CHECK_STR(k->name, o->name);
        }
    }
}

static void another_order_gives_the_same_sums(void)
{
    const double relative = STEPS * GPT2_MICRO * 0x1p-24;

    for (const gpt2_kind *k = gpt2_kinds; k->name != NULL; k++) {
        course plain;
        course other;

        if (k->unit.param_dtype != TSR_DTYPE_DEFAULT || (k - gpt2_kinds) % 2 != 0) {
            continue; /* sums in halves; and every second one is enough */
        }
        CHECK_OK(train(k, &sequential, &plain));
        CHECK_OK(train(k, &backwards_last_first, &other));
        CHECK_NEAR(other.loss[0], plain.loss[0], relative * plain.loss[0]);
        CHECK_NEAR(other.norm[0], plain.norm[0], 100.0 * relative * plain.norm[0]);
    }
}

/* ---- what is refused ---- */

static void check_says(tsr_status expected, tsr_status status, const char *words)
{
    CHECK_EQ(status, expected);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

static void out_of_order(void)
{
    const gpt2_kind k = {.preset = "hsdp"};
    tsr_dtensor *loss[GPT2_MICRO] = {NULL};
    gpt2_rig r;

    REQUIRE_OK(gpt2_rig_open(&k, &r));
    check_says(TSR_ERR_INVALID, tsr_tape_set_in_flight(r.tape, 0), "wants 1 to 16");
    check_says(TSR_ERR_INVALID, tsr_tape_set_in_flight(r.tape, 17), "wants 1 to 16");
    CHECK_OK(tsr_tape_set_in_flight(r.tape, 2));
    CHECK_OK(tsr_step_begin(r.tape, 0, r.labels, GPT2_MICRO));
    check_says(TSR_ERR_STATE, tsr_tape_set_in_flight(r.tape, 3), "within step");
    for (int m = 0; m < 3; m++) {
        CHECK_OK(gpt2_rig_forward(&r, m, &loss[m]));
    }
    check_says(TSR_ERR_STATE, tsr_backward(r.tape, loss[0]), ""); /* the third took its place */
    CHECK_OK(tsr_backward(r.tape, loss[1]));
    check_says(TSR_ERR_STATE, tsr_backward(r.tape, loss[1]), "not in flight");
    CHECK_OK(tsr_backward(r.tape, loss[2]));
    check_says(TSR_ERR_STATE, tsr_backward(r.tape, loss[2]), "second time");
    CHECK_OK(gpt2_rig_forward(&r, 3, &loss[3]));
    CHECK_OK(tsr_backward(r.tape, loss[3]));
    CHECK_OK(tsr_clip_grad_norm(r.optimizer, r.tape, 1.0));
    CHECK_OK(tsr_step_end(r.tape));
    gpt2_rig_close(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"backwards_in_order_give_the_same_bits", backwards_in_order_give_the_same_bits},
    {"another_order_gives_the_same_sums", another_order_gives_the_same_sums},
    {"out_of_order", out_of_order},
    {NULL, NULL},
};
