/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file frame.c
 * Frames: each one micro-batch in flight, or an evaluation.
 *
 * A frame holds what belongs to one pass alone: its mode, the nodes with what they save, scopes and
 * the values that they hold, numbers of dropout calls. What belongs to the step (labels, loss,
 * facts, what it keeps alive) is the tape's. Operations see the frame under way and no other.
 *
 * Several micro-batches may be in flight, as many as the program has asked for: each backward plays
 * the frame that its loss belongs to, and one that begins beyond that number takes the place of the
 * oldest, which is dropped. An evaluation has a frame of its own, and the one before waits
 * untouched until it is over: so it may come at any moment at which no operation is under way.
 */
#include "autograd_priv.h"

static tsr_status get(tsr_tape *tape, int index, tsri_frame **out)
{
    if (tape->frames[index] == NULL) {
        TSR_TRY(tsri_alloc(1, sizeof(tsri_frame), &tape->frames[index]));
        tape->frames[index]->index = index;
        tape->frames[index]->micro_batch = -1;
        tape->frames[index]->epoch = tsri_comm_next_epoch(tape->comm);
    }
    *out = tape->frames[index];
    return TSR_OK;
}

tsr_status tsri_frames_open(tsr_tape *tape)
{
    tape->in_flight = 1;
    TSR_TRY(get(tape, 0, &tape->frame));
    return TSR_OK;
}

void tsri_frames_close(tsr_tape *tape)
{
    for (int i = 0; i <= TSRI_FRAMES_MAX; i++) {
        tsri_frame *frame = tape->frames[i];

        if (frame != NULL) {
            tsri_frame_drop(tape, frame);
            tsri_free(&frame->counters);
            tsri_free(&frame->inserted);
            tsri_free(&frame->holds);
            tsri_free(&frame->scopes);
            tsri_free(&frame->nodes);
            tsri_free(&tape->frames[i]);
        }
    }
    tape->frame = NULL;
}

void tsri_frame_drop(tsr_tape *tape, tsri_frame *frame)
{
    tsri_frame *under_way = tape->frame;

    while (frame->node_count > 0) {
        tsri_node *node = frame->nodes[--frame->node_count];

        tsri_node_clear(node);
        tsri_free(&node);
    }
    frame->keeping = NULL;
    frame->replaying = NULL;
    frame->leaving = NULL;
    tape->frame = frame;
    tsri_tape_drop_holds(tape);
    tape->frame = under_way;
    frame->epoch = tsri_comm_next_epoch(tape->comm);
    frame->recomputing = false;
    frame->open = false;
}

void tsri_frames_drop(tsr_tape *tape)
{
    for (int i = 0; i <= TSRI_FRAMES_MAX; i++) {
        if (tape->frames[i] != NULL) {
            tsri_frame_drop(tape, tape->frames[i]);
        }
    }
    if (tape->outer != NULL) {
        tape->frame = tape->outer;
        tape->outer = NULL;
    }
}

static void begin(tsri_frame *frame, tsri_frame_mode mode, int micro_batch)
{
    frame->mode = mode;
    frame->micro_batch = micro_batch;
    frame->open = true;
    frame->failed = false;
    frame->no_grad = mode == TSRI_FRAME_EVAL;
    frame->passed_over = false;
    frame->inserted_count = 0;
    frame->counter_count = 0;
}

/* Of the micro-batches in flight the one that began first or last; NULL: there is none. */
static tsri_frame *in_flight(const tsr_tape *tape, bool last, int *count_out)
{
    tsri_frame *found = NULL;

    *count_out = 0;
    for (int i = 0; i < TSRI_FRAMES_MAX; i++) {
        tsri_frame *frame = tape->frames[i];

        if (frame == NULL || !frame->open) {
            continue;
        }
        ++*count_out;
        if (found == NULL || (frame->micro_batch > found->micro_batch) == last) {
            found = frame;
        }
    }
    return found;
}

static tsr_status get_free(tsr_tape *tape, tsri_frame **out)
{
    int index = 0;

    while (tape->frames[index] != NULL && tape->frames[index]->open) {
        index++;
    }
    TSR_TRY(get(tape, index, out));
    return TSR_OK;
}

tsr_status tsri_frame_begin(tsr_tape *tape, int micro_batch)
{
    int count = 0;
    tsri_frame *oldest = in_flight(tape, false, &count);

    if (count >= tape->in_flight) {
        tsri_frame_drop(tape, oldest);
    }
    TSR_TRY(get_free(tape, &tape->frame));
    tape->frame->epoch = tsri_comm_next_epoch(tape->comm);
    begin(tape->frame, TSRI_FRAME_TRAIN, micro_batch);
    return TSR_OK;
}

/* Does frame, in flight, keep value? */
static bool holds(const tsri_frame *frame, const tsr_dtensor *value)
{
    bool is_held = value->node >= 0 && value->tape_epoch == frame->epoch;

    for (int i = 0; !is_held && i < frame->hold_count; i++) {
        is_held = frame->holds[i].value == value;
    }
    return is_held;
}

bool tsri_frame_of(tsr_tape *tape, const tsr_dtensor *loss)
{
    for (int i = 0; i < TSRI_FRAMES_MAX; i++) {
        tsri_frame *frame = tape->frames[i];

        if (frame != NULL && frame->open && holds(frame, loss)) {
            tape->frame = frame;
            return true;
        }
    }
    return false;
}

bool tsri_frame_played(tsr_tape *tape)
{
    int count = 0;
    tsri_frame *newest = NULL;

    tsri_frame_drop(tape, tape->frame);
    newest = in_flight(tape, true, &count);
    tape->frame = newest != NULL ? newest : tape->frame;
    return newest != NULL;
}

tsr_status tsri_frame_begin_eval(tsr_tape *tape)
{
    tsri_frame *frame = NULL;

    TSR_TRY(get(tape, TSRI_FRAMES_MAX, &frame));
    begin(frame, TSRI_FRAME_EVAL, -1);
    tape->outer = tape->frame;
    tape->frame = frame;
    return TSR_OK;
}

void tsri_frame_end_eval(tsr_tape *tape)
{
    tsri_frame_drop(tape, tape->frame);
    tape->frame = tape->outer;
    tape->outer = NULL;
}

bool tsr_tape_in_eval(const tsr_tape *tape)
{
    TSRI_WANT_OR(tape, false);
    return tape->outer != NULL;
}

bool tsri_tape_is_last(const tsr_tape *tape)
{
    int count = 0;

    (void)in_flight(tape, true, &count);
    return tape->begun == tape->micro_batch_count && count <= 1;
}

tsr_status tsr_tape_set_in_flight(tsr_tape *tape, int most)
{
    TSRI_WANT(tape);
    TSR_TRY(tsri_step_check_outside(tape, "tsr_tape_set_in_flight"));
    if (most < 1 || most > TSR_MAX_IN_FLIGHT) {
        return TSR_RAISE(TSR_ERR_INVALID, "%d micro-batches in flight, wants 1 to %d", most,
                         TSR_MAX_IN_FLIGHT);
    }
    tape->in_flight = most;
    return TSR_OK;
}

int tsri_tape_frame(const tsr_tape *tape)
{
    return tape->frame->index;
}
