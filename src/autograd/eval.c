/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file eval.c
 * Evaluations: a forward that no backward follows, between steps or inside one.
 *
 * It has a frame of its own (frame.c), in which nothing is recorded, and a step of the arena of its
 * own, with a plan called "eval". Of the step around it, of steps to come and of what counts them
 * it changes nothing, so a training that is evaluated takes the same course bit by bit.
 */
#include "autograd_priv.h"

/* A forward that no backward follows is over. */
static tsr_status tell_left(const tsr_tape *tape, bool failed)
{
    for (const tsri_step_watch *w = tape->watches; w != NULL; w = w->next) {
        const tsr_status status = w->left != NULL ? w->left(w->context, tape, failed) : TSR_OK;

        if (status != TSR_OK && !failed) {
            return tsr_error_pass(status, __FILE__, __LINE__, __func__);
        }
    }
    return TSR_OK;
}

/* Facts are the step's that is under way. */
static tsr_status begin_eval(tsr_tape *tape)
{
    if (!tsri_step_is_under_way(tape)) {
        tsri_recorder_set_step(tsri_comm_device(tape->comm), -1); /* of no step */
        TSR_TRY(tsri_facts_begin(tape));
    }
    TSR_TRY(tsri_frame_begin_eval(tape));
    return TSR_OK;
}

tsr_status tsr_eval_begin(tsr_tape *tape)
{
    TSRI_WANT(tape);

    tsri_arena *arena = tsri_comm_arena(tape->comm);
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_step_check_eval(tape));
    TSR_TRY(tsri_arena_step_begin(arena, "eval", tape->step));
    TSR_TRY_GOTO(status, begin_eval(tape), abandon);
    return TSR_OK;
abandon:
    tsri_arena_step_abort(arena);
    tsri_step_fail(tape);
    return status;
}

/* It is over, well or not. What it kept alive is the step's, if there is one. */
static void leave_evaluation(tsr_tape *tape)
{
    tsri_frame_end_eval(tape);
    if (!tsri_step_is_under_way(tape)) {
        tsri_tape_drop_objects(tape);
    }
}

/* What was looked at is told of now. Facts of the step around it stay due. */
static tsr_status end_eval(tsr_tape *tape)
{
    if (tape->check_count > 0) {
        TSR_TRY(tsri_facts_compare(tape));
    }
    tape->facts_due = tsri_step_is_under_way(tape);
    TSR_TRY(tell_left(tape, false));
    return TSR_OK;
}

tsr_status tsr_eval_end(tsr_tape *tape)
{
    TSRI_WANT(tape);

    tsri_arena *arena = tsri_comm_arena(tape->comm);
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_step_check_eval_end(tape));
    if (tape->frame->failed) {
        goto abandon;
    }
    TSR_TRY_GOTO(status, end_eval(tape), abandon);
    leave_evaluation(tape);
    TSR_TRY(tsri_arena_step_end(arena));
    return TSR_OK;
abandon: /* a step around it has failed with it, and is the program's to end */
    (void)tell_left(tape, true);
    leave_evaluation(tape);
    tsri_arena_step_abort(arena);
    tsri_step_fail(tape);
    return status;
}
