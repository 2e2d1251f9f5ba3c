/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file step.c
 * A step's states, and which call is legal in which.
 *
 *   NONE -- tsr_step_begin --> BEGUN -- tsr_tape_begin --> FORWARD -- tsr_backward --> BACKWARD
 *                                          ^    ^             |                           |
 *                                          |    +-------------+                           |
 *                                          +------------- PLAYED <------------------------+
 *
 *   FORWARD, PLAYED -- the first clip or update --> FINAL -- tsr_optimizer_step --> UPDATED
 *
 * tsr_step_end leads from each of them to NONE. What fails half-way leads to FAILED, whose only
 * ways out are the step's end and the next step's begin. A micro-batch that has begun and is not
 * played backward is an evaluation: it adds nothing, and takes nothing away. Gradients may become
 * final when every micro-batch has begun, since the labels of all are counted, or when the program
 * has marked the last backward itself. From then on nothing adds to them.
 */
#include "autograd_priv.h"

static bool in_step(const tsr_tape *tape)
{
    return tape->state != TSRI_STEP_NONE;
}

/* ---- asked by public calls ---- */

tsr_status tsri_step_check_begin(const tsr_tape *tape, int64_t step)
{
    int64_t other = 0;

    if (in_step(tape) && tape->state != TSRI_STEP_FAILED) {
        return TSR_RAISE(TSR_ERR_STATE, "step %lld begins before step %lld has ended",
                         (long long)step, (long long)tape->step);
    }
    if (!in_step(tape) && tsri_arena_step(tsri_comm_arena(tape->comm), &other)) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "step %lld begins before step %lld of another tape of the comm has ended: "
                         "tsr_step_end there first",
                         (long long)step, (long long)other);
    }
    return TSR_OK;
}

tsr_status tsri_step_check_micro_batch(const tsr_tape *tape, int micro_batch)
{
    const char *why = NULL;

    switch (tape->state) {
    case TSRI_STEP_NONE:
        why = "outside of a step";
        break;
    case TSRI_STEP_FAILED:
        why = "in a step that failed";
        break;
    case TSRI_STEP_BACKWARD:
        why = "during backward";
        break;
    case TSRI_STEP_FINAL:
        why = "after the step's gradients were taken as final by a clip or an update";
        break;
    case TSRI_STEP_UPDATED:
        why = "after the step's update: tsr_step_end first";
        break;
    case TSRI_STEP_BEGUN:
    case TSRI_STEP_FORWARD:
    case TSRI_STEP_PLAYED:
        break;
    }
    if (why != NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "micro-batch %d begins %s", micro_batch, why);
    }
    if (micro_batch != tape->micro_batch + 1 || micro_batch >= tape->micro_batch_count) {
        return TSR_RAISE(TSR_ERR_STATE, "micro-batch %d of %d begins, expected %d", micro_batch,
                         tape->micro_batch_count, tape->micro_batch + 1);
    }
    return TSR_OK;
}

const char *tsri_step_refuses_forward(const tsr_tape *tape)
{
    switch (tape->state) {
    case TSRI_STEP_FORWARD:
        return NULL;
    case TSRI_STEP_BACKWARD:
        return tape->recomputing ? NULL : "during backward";
    case TSRI_STEP_FAILED:
        return "in a step that failed";
    case TSRI_STEP_PLAYED:
        return "after the micro-batch's backward: tsr_tape_begin first";
    case TSRI_STEP_FINAL:
    case TSRI_STEP_UPDATED:
        return "after the step's gradients were taken as final";
    case TSRI_STEP_NONE:
    case TSRI_STEP_BEGUN:
        break;
    }
    return "before tsr_tape_begin";
}

tsr_status tsri_step_check_forward(const tsr_tape *tape, const char *what)
{
    const char *why = tsri_step_refuses_forward(tape);

    if (why != NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "%s: called %s", what, why);
    }
    return TSR_OK;
}

tsr_status tsri_step_check_backward(const tsr_tape *tape)
{
    const char *why = tsri_step_refuses_forward(tape);

    if (tape->state == TSRI_STEP_PLAYED) {
        return TSR_RAISE(TSR_ERR_STATE, "backward of micro-batch %d a second time",
                         tape->micro_batch);
    }
    if (why == NULL && tape->state == TSRI_STEP_BACKWARD) {
        why = "during backward";
    }
    if (why != NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "backward %s", why);
    }
    return TSR_OK;
}

tsr_status tsri_step_check_final(const tsr_tape *tape, const char *what)
{
    const char *why = NULL;

    switch (tape->state) {
    case TSRI_STEP_NONE:
        why = "outside of a step: gradients are there from backward to tsr_step_end";
        break;
    case TSRI_STEP_FAILED:
        why = "in a step that failed";
        break;
    case TSRI_STEP_BACKWARD:
        why = "during backward";
        break;
    case TSRI_STEP_BEGUN:
    case TSRI_STEP_FORWARD:
    case TSRI_STEP_PLAYED:
    case TSRI_STEP_FINAL:
    case TSRI_STEP_UPDATED:
        break;
    }
    if (why != NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "%s %s", what, why);
    }
    if (!tsri_step_is_complete(tape)) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "%s: micro-batch %d of %d has no backward: it has not begun, and its "
                         "labels are counted; run it, or end early by tsr_fsdp_set_last_backward "
                         "(TSR_LAST_YES)",
                         what, tape->micro_batch + 1, tape->micro_batch_count);
    }
    return TSR_OK;
}

tsr_status tsri_step_check_read(const tsr_tape *tape, const char *what)
{
    if (tape->state == TSRI_STEP_FAILED) {
        return TSR_RAISE(TSR_ERR_STATE, "%s of a step that failed", what);
    }
    if (!tape->has_begun) {
        return TSR_RAISE(TSR_ERR_STATE, "%s before the first tsr_step_begin", what);
    }
    return TSR_OK;
}

tsr_status tsri_step_check_setting(const tsr_tape *tape, const char *what)
{
    if (tape->state == TSRI_STEP_BACKWARD) {
        return TSR_RAISE(TSR_ERR_STATE, "%s during backward", what);
    }
    return TSR_OK;
}

tsr_status tsri_step_check_outside(const tsr_tape *tape, const char *what)
{
    if (in_step(tape) && tape->state != TSRI_STEP_FAILED) {
        return TSR_RAISE(TSR_ERR_STATE, "%s within step %lld, which has not ended", what,
                         (long long)tape->step);
    }
    return TSR_OK;
}

/* ---- what has happened ---- */

bool tsri_step_is_under_way(const tsr_tape *tape)
{
    return in_step(tape);
}

bool tsri_step_has_failed(const tsr_tape *tape)
{
    return tape->state == TSRI_STEP_FAILED;
}

bool tsri_step_is_complete(const tsr_tape *tape)
{
    return tape->marked_last || tape->micro_batch + 1 == tape->micro_batch_count;
}

void tsri_step_begun(tsr_tape *tape, int64_t step, int micro_batch_count)
{
    tape->state = TSRI_STEP_BEGUN;
    tape->step = step;
    tape->micro_batch = -1;
    tape->micro_batch_count = micro_batch_count;
    tape->marked_last = false;
    tape->has_begun = true;
}

void tsri_step_forward(tsr_tape *tape, int micro_batch)
{
    tape->state = TSRI_STEP_FORWARD;
    tape->micro_batch = micro_batch;
}

void tsri_step_backward(tsr_tape *tape, bool over)
{
    tape->state = over ? TSRI_STEP_PLAYED : TSRI_STEP_BACKWARD;
}

void tsri_step_mark_last(tsr_tape *tape)
{
    tape->marked_last = true;
}

void tsri_step_final(tsr_tape *tape)
{
    if (tape->state != TSRI_STEP_UPDATED) {
        tape->state = TSRI_STEP_FINAL;
    }
}

void tsri_step_updated(tsr_tape *tape)
{
    tape->state = TSRI_STEP_UPDATED;
}

void tsri_step_fail(tsr_tape *tape)
{
    if (in_step(tape)) {
        tape->state = TSRI_STEP_FAILED;
    }
}

void tsri_step_ended(tsr_tape *tape)
{
    tape->state = TSRI_STEP_NONE;
}
