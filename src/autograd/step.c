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
 * Where several micro-batches are in flight, the backward of one leads to FORWARD as long as there
 * is another. tsr_step_end leads from each of them to NONE. What fails half-way leads to FAILED,
 * whose only ways out are the step's end and the next step's begin. A micro-batch that has begun
 * and is not played backward adds nothing, and takes nothing away. Gradients may become final when
 * every micro-batch has begun, since the labels of all are counted, or when the program has marked
 * the last backward itself. From then on nothing adds to them.
 *
 * An evaluation stands beside the states: it may begin in each but BACKWARD and FAILED, changes
 * none, and until it ends nothing else may happen than its operations. One that fails takes the
 * step around it along.
 */
#include "autograd_priv.h"

static bool in_step(const tsr_tape *tape)
{
    return tape->state != TSRI_STEP_NONE;
}

/* What else than an evaluation's operations is called before its end. */
static tsr_status check_no_eval(const tsr_tape *tape, const char *what)
{
    if (tsr_tape_in_eval(tape)) {
        return TSR_RAISE(TSR_ERR_STATE, "%s within an evaluation: tsr_eval_end first", what);
    }
    return TSR_OK;
}

/* ---- asked by public calls ---- */

tsr_status tsri_step_check_begin(const tsr_tape *tape, int64_t step)
{
    int64_t other = 0;

    TSR_TRY(check_no_eval(tape, "tsr_step_begin"));
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

tsr_status tsri_step_check_eval(const tsr_tape *tape)
{
    const char *why = NULL;
    int64_t other = 0;

    TSR_TRY(check_no_eval(tape, "tsr_eval_begin"));
    if (tape->state == TSRI_STEP_BACKWARD) {
        why = "during backward";
    } else if (tape->state == TSRI_STEP_FAILED) {
        why = "in a step that failed: tsr_step_end first";
    } else if (tape->frame->depth > 0) {
        why = "within a module's forward";
    } else if (!in_step(tape) && tsri_arena_step(tsri_comm_arena(tape->comm), &other)) {
        why = "before a step of another tape of the comm has ended: tsr_step_end there first";
    }
    if (why != NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "an evaluation begins %s", why);
    }
    return TSR_OK;
}

tsr_status tsri_step_check_eval_end(const tsr_tape *tape)
{
    if (!tsr_tape_in_eval(tape)) {
        return TSR_RAISE(TSR_ERR_STATE, "an evaluation ends that has not begun");
    }
    if (tape->frame->depth > 0) {
        return TSR_RAISE(TSR_ERR_STATE, "an evaluation ends within a module's forward");
    }
    return TSR_OK;
}

tsr_status tsri_step_check_end(const tsr_tape *tape)
{
    TSR_TRY(check_no_eval(tape, "tsr_step_end"));
    if (!in_step(tape)) {
        return TSR_RAISE(TSR_ERR_STATE, "a step ends that has not begun");
    }
    if (tape->state == TSRI_STEP_BACKWARD) { /* whose nodes it would free */
        return TSR_RAISE(TSR_ERR_STATE, "tsr_step_end during backward");
    }
    return TSR_OK;
}

tsr_status tsri_step_check_micro_batch(const tsr_tape *tape, int micro_batch)
{
    const char *why = NULL;

    TSR_TRY(check_no_eval(tape, "tsr_tape_begin"));
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
    if (micro_batch != tape->begun || micro_batch >= tape->micro_batch_count) {
        return TSR_RAISE(TSR_ERR_STATE, "micro-batch %d of %d begins, expected %d", micro_batch,
                         tape->micro_batch_count, tape->begun);
    }
    return TSR_OK;
}

const char *tsri_step_refuses_forward(const tsr_tape *tape)
{
    if (tsr_tape_in_eval(tape)) {
        return tape->frame->failed ? "in an evaluation that failed" : NULL;
    }
    switch (tape->state) {
    case TSRI_STEP_FORWARD:
        return NULL;
    case TSRI_STEP_BACKWARD:
        return tape->frame->recomputing ? NULL : "during backward";
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
    return "before tsr_tape_begin or tsr_eval_begin";
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

    TSR_TRY(check_no_eval(tape, "tsr_backward"));
    if (tape->state == TSRI_STEP_PLAYED) {
        return TSR_RAISE(TSR_ERR_STATE, "backward of micro-batch %d a second time",
                         tape->frame->micro_batch);
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

    TSR_TRY(check_no_eval(tape, what));
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
                         what, tape->begun, tape->micro_batch_count);
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
    TSR_TRY(check_no_eval(tape, what));
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
    return tape->marked_last || tape->begun == tape->micro_batch_count;
}

void tsri_step_begun(tsr_tape *tape, int64_t step, int micro_batch_count)
{
    tape->state = TSRI_STEP_BEGUN;
    tape->step = step;
    tape->begun = 0;
    tape->micro_batch_count = micro_batch_count;
    tape->marked_last = false;
    tape->has_begun = true;
}

void tsri_step_forward(tsr_tape *tape)
{
    tape->state = TSRI_STEP_FORWARD;
    tape->begun++;
}

void tsri_step_backward(tsr_tape *tape)
{
    tape->state = TSRI_STEP_BACKWARD;
}

void tsri_step_played(tsr_tape *tape, bool more)
{
    tape->state = more ? TSRI_STEP_FORWARD : TSRI_STEP_PLAYED;
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
    tape->frame->failed = tsr_tape_in_eval(tape);
    if (in_step(tape)) {
        tape->state = TSRI_STEP_FAILED;
    }
}

void tsri_step_ended(tsr_tape *tape)
{
    tape->state = TSRI_STEP_NONE;
}
