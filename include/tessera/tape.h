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
 * - A micro-batch may do without backward: it adds nothing and takes nothing away.
 * - The first clip or update takes the step's gradients as final, and makes the reductions that no
 *   backward has made by then. All micro-batches must have begun, since the labels of all are
 *   counted, unless the program has marked the last backward itself (unit.h); and no unit may have
 *   been told to leave its reduction out. After it no micro-batch begins and no backward is played.
 * - Each parameter is updated at most once. A step may end without an update, or at any other
 *   moment: its gradients are gone then, unless units were told that they stay (unit.h).
 * - After a failure in the middle of a pass nothing but tsr_step_end (or the next tsr_step_begin)
 *   is left; the step counts for nothing.
 *
 * An evaluation is a forward alone: validation, generation. It stands between steps, also before
 * the first, or inside one, wherever no backward and no module's forward is under way:
 *
 *     tsr_eval_begin(tape)
 *       ... forward; read outputs, or tsr_op_cross_entropy and tsr_eval_loss ...
 *     tsr_eval_end(tape)
 *
 * Nothing is recorded in it, dropout passes all through, checkpointed modules run once, units let
 * go of their parameters as they end. It changes no gradient, counts as no step and takes no random
 * number: a training takes the same course with and without evaluations, bit by bit. Until it ends
 * only operations and modules may be called. One that fails in the middle is left by tsr_eval_end;
 * it fails the step around it, if there is one.
 *
 * Values that operations return belong to the tape: borrowed by the caller, valid until the module
 * call that made them returns (its result: until the enclosing call returns), at the latest until
 * backward; a loss given to tsr_backward until tsr_step_end; those of an evaluation until
 * tsr_eval_end. Retain a value to keep it longer, and release it before tsr_step_end or
 * tsr_eval_end. Using one that is gone is TSR_ERR_STATE.
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

/** Most micro-batches in flight. */
#define TSR_MAX_IN_FLIGHT 16

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
 * The same with a normaliser of the program's own in place of labels, for losses that are no means
 * over tokens: tsr_op_cross_entropy divides by it, and tsr_step_tokens returns it.
 *
 * Collective over the mesh (two small all-reduces).
 *
 * @param normaliser  Finite and above 0; the same on all ranks. 1: losses are sums, as they come.
 * @retval TSR_ERR_STATE     as tsr_step_begin.
 * @retval TSR_ERR_INVALID   normaliser or micro_batch_count.
 * @retval TSR_ERR_DISAGREE  ranks passed different normalisers or micro_batch_counts, or labels;
 *                           no step has begun.
 */
TSR_CHECKED tsr_status tsr_step_begin_with(tsr_tape *tape, int64_t step, double normaliser,
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

/**
 * Local; logically collective. How many micro-batches may be in flight, begun and not yet played
 * backward, from the next step on: 1 by default. With more, forwards may run ahead of backwards, as
 * in a pipeline, and each tsr_backward plays the micro-batch that its loss belongs to. Gradients
 * add up in the order of backwards; a unit is gathered again for each.
 *
 * @param most  1 to TSR_MAX_IN_FLIGHT. One that begins beyond it takes the place of the oldest,
 *              which can not be played any more.
 * @retval TSR_ERR_STATE    a step or an evaluation is under way.
 * @retval TSR_ERR_INVALID  another number.
 */
TSR_CHECKED tsr_status tsr_tape_set_in_flight(tsr_tape *tape, int most);

/** Local. Begin recording micro-batch @p micro_batch of the step, in order from 0. TSR_ERR_STATE
 * out of order, outside of a step, and once gradients are final. */
TSR_CHECKED tsr_status tsr_tape_begin(tsr_tape *tape, int micro_batch);

/**
 * Play the gradients of @p loss backward into the parameters' gradients.
 *
 * Collective over the mesh. The step's last one compares what ranks must agree on (one small
 * all-reduce).
 *
 * @param loss  A scalar dtensor that the tape made in a micro-batch in flight.
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

/** Local. Blocks. Tokens that count in this step, over the whole job, or its normaliser; at the
 *  moments of tsr_step_loss. */
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

/* ---- evaluations ---- */

/**
 * Begin an evaluation. Local; logically collective.
 *
 * Memory is that of a step, taken and given back as in one: evaluate one batch at a time.
 *
 * @retval TSR_ERR_STATE  during backward, within a module's forward or another evaluation, in a
 *                        step that failed, or while a step of another tape of the comm is under
 *                        way.
 */
TSR_CHECKED tsr_status tsr_eval_begin(tsr_tape *tape);

/**
 * The value of a loss that this evaluation has made. Collective over the axes on which @p loss is
 * Partial. Blocks.
 *
 * A loss of tsr_op_cross_entropy is here the mean over the labels of its call that count, over the
 * whole job: no others are known. So the mean over several batches is the sum of mean times tokens
 * divided by the sum of tokens.
 *
 * @param loss        f32 scalar.
 * @param tokens_out  Labels that count in the newest tsr_op_cross_entropy of the evaluation, over
 *                    the whole job. May be NULL.
 * @retval TSR_ERR_STATE    no evaluation is under way, or it failed.
 * @retval TSR_ERR_INVALID  no f32 scalar of this comm.
 */
TSR_CHECKED tsr_status tsr_eval_loss(tsr_tape *tape, tsr_dtensor *loss, double *mean_out,
                                     double *tokens_out);

/**
 * End the evaluation: its values go. Collective over the mesh (one small all-reduce, which compares
 * labels and ids that were used).
 *
 * @retval TSR_ERR_STATE    none is under way; a module's forward is; or, between steps, the program
 *                          still holds a value of it.
 * @retval TSR_ERR_INVALID  a label or an id was out of range: see tsr_tape_ignore_outside.
 */
TSR_CHECKED tsr_status tsr_eval_end(tsr_tape *tape);

/** Local. Whether an evaluation is under way, for a forward that does something else then. */
TSR_API bool tsr_tape_in_eval(const tsr_tape *tape);

TSR_END_DECLS
