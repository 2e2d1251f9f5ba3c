/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tape.h
 * The tape records the operations of a forward pass and plays their gradients backward.
 *
 * A step has one or more micro-batches:
 *
 *     tsr_step_begin(tape, step, labels, micro_batches)    tokens counted over the whole step
 *       tsr_tape_begin(tape, micro_batch)                  for each micro-batch
 *       ... forward, tsr_op_cross_entropy ...
 *       tsr_backward(tape, loss)
 *     tsr_clip_grad_norm, tsr_optimizer_step
 *     tsr_step_loss, tsr_step_end
 *
 * A call out of this order is TSR_ERR_STATE on all ranks alike, and says what is missing. What is
 * in order:
 * - A micro-batch may do without backward: it is an evaluation, adds nothing and loses nothing.
 * - The first clip or update takes the step's gradients as final, and makes the reductions that no
 *   backward has made by then. All micro-batches must have begun, since the labels of all are
 *   counted, unless the program has marked the last backward itself (unit.h); and no unit may have
 *   been told to leave its reduction out. After it no micro-batch begins and no backward is played.
 * - Each parameter is updated at most once. A step may end without an update, or at any other
 *   moment: its gradients are gone then, unless units were told that they stay (unit.h).
 * - After a failure in the middle of a pass nothing but tsr_step_end (or the next tsr_step_begin)
 *   is left; the step counts for nothing.
 *
 * Values that operations return belong to the tape: borrowed by the caller, valid until the module
 * call that made them returns (its result: until the enclosing call returns), at the latest until
 * backward; a loss given to tsr_backward until tsr_step_end. Retain a value to keep it longer, and
 * release it before tsr_step_end. Using one that is gone is TSR_ERR_STATE.
 *
 * Reduced gradients are there from backward to tsr_step_end, which gives their memory back: clip
 * and update before it.
 *
 * Gradients have the dual placement: of a Shard Shard, of a Replicate Partial. They accumulate in
 * the placement in which they arrive and are reduced once, by the first consumer that cannot take
 * Partial. A parameter's gradient may arrive either way, from data or from other parameters, and
 * counts once: what is whole on an axis is taken once there, what is Partial is summed.
 *
 * Threads: one thread at a time per tape.
 */
#pragma once

#include "tessera/dtensor.h"

TSR_BEGIN_DECLS

typedef struct tsr_tape tsr_tape;

/** The label that does not count. */
#define TSR_IGNORE_INDEX (-100)

/** Local. Create a tape. The caller owns it. Tapes of one comm take turns: a step begins when none
 *  of another tape is under way. */
TSR_CHECKED tsr_status tsr_tape_create(tsr_comm *comm, tsr_tape **out);

/** Local. Destroy the tape and set *tape to NULL; it may be NULL. */
TSR_API void tsr_tape_destroy(tsr_tape **tape);

/**
 * Begin an optimizer step; one that failed is ended by it.
 *
 * Collective over the mesh (one small all-reduce). Counts the labels that are not TSR_IGNORE_INDEX
 * over all micro-batches and data ranks; the loss is normalised by that number.
 *
 * @param step    Number of the step, from 0; part of every dropout mask.
 * @param labels  micro_batch_count dtensors, I32 [batch, seq], each placed as its micro-batch is:
 *                Shard(0) over the data axes, say, or whole where every rank has all of it.
 *                Borrowed.
 * @retval TSR_ERR_STATE     the step before has not ended, or that of another tape of the comm.
 * @retval TSR_ERR_DISAGREE  ranks passed different micro_batch_counts; no step has begun.
 */
TSR_CHECKED tsr_status tsr_step_begin(tsr_tape *tape, int64_t step, tsr_dtensor *const *labels,
                                      int micro_batch_count);

/**
 * Local; logically collective. What becomes of labels outside [0, vocab) that are not
 * TSR_IGNORE_INDEX, and of ids outside the table, from the next step on.
 *
 * By default the step's last tsr_backward (or tsr_step_end, if there was none) fails on every rank,
 * naming value, position and vocabulary, before anything is updated.
 *
 * @param vocab  That of the logits: such labels do not count, such ids embed as zeros. 0: default.
 * @retval TSR_ERR_STATE  a step is under way.
 */
TSR_CHECKED tsr_status tsr_tape_ignore_outside(tsr_tape *tape, int64_t vocab);

/** Local. Begin recording micro-batch @p micro_batch of the step, in order from 0. TSR_ERR_STATE
 * out of order, outside of a step, and once gradients are final. */
TSR_CHECKED tsr_status tsr_tape_begin(tsr_tape *tape, int micro_batch);

/**
 * Play the gradients of @p loss backward into the parameters' gradients.
 *
 * Collective over the mesh. The step's last one compares what ranks must agree on (one small
 * all-reduce).
 *
 * @param loss  A scalar dtensor that the tape made since tsr_tape_begin.
 * @retval TSR_ERR_STATE  no micro-batch is recorded, its backward has been played, or gradients are
 *                        final.
 * @retval TSR_ERR_INVALID   a label or an id was out of range: see tsr_tape_ignore_outside.
 * @retval TSR_ERR_DISAGREE  ranks have begun steps of different numbers.
 */
TSR_CHECKED tsr_status tsr_backward(tsr_tape *tape, tsr_dtensor *loss);

/** Collective over the axes on which the losses are Partial. Blocks. Sum of the losses given to
 *  tsr_backward in this step so far, or in the one that has ended last. Changes nothing: it may be
 *  read at any time. TSR_ERR_STATE before the first step, and in one that failed. */
TSR_CHECKED tsr_status tsr_step_loss(tsr_tape *tape, double *out);

/** Local. Blocks. Tokens that count in this step, over the whole job; at the moments of
 *  tsr_step_loss. */
TSR_CHECKED tsr_status tsr_step_tokens(tsr_tape *tape, double *out);

/**
 * End the step: the step's memory, gradients included, is given back, and planned if it was not.
 *
 * Local; collective where gradients stay for the next step and wait unreduced (unit.h), and over
 * the mesh after a forward without backward, whose labels and ids are told of here.
 *
 * @retval TSR_ERR_STATE  no step has begun; the program still holds a value of the step; or
 *                        gradients are to stay and a micro-batch has not begun. But for the first
 *                        the step is given up, and counts for nothing.
 */
TSR_CHECKED tsr_status tsr_step_end(tsr_tape *tape);

TSR_END_DECLS
