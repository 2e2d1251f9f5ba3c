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
 * Values that operations return belong to the tape: borrowed by the caller, valid until the module
 * call that made them returns (its result: until the enclosing call returns), at the latest until
 * backward. Retain a value to keep it longer, and release it before tsr_step_end.
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

/** Local. Create a tape. The caller owns it; one per comm at a time. */
TSR_CHECKED tsr_status tsr_tape_create(tsr_comm *comm, tsr_tape **out);

/** Local. Destroy the tape and set *tape to NULL; it may be NULL. */
TSR_API void tsr_tape_destroy(tsr_tape **tape);

/**
 * Begin an optimizer step.
 *
 * Collective over the data axes (one small all-reduce). Counts the labels that are not
 * TSR_IGNORE_INDEX over all micro-batches and data ranks; the loss is normalised by that number.
 *
 * @param step    Number of the step, from 0; part of every dropout mask.
 * @param labels  micro_batch_count dtensors, I32 [batch, seq], Shard(0) over the data axes.
 * Borrowed.
 */
TSR_CHECKED tsr_status tsr_step_begin(tsr_tape *tape, int64_t step, tsr_dtensor *const *labels,
                                      int micro_batch_count);

/** Local. Begin recording micro-batch @p micro_batch of the step, in order from 0. */
TSR_CHECKED tsr_status tsr_tape_begin(tsr_tape *tape, int micro_batch);

/**
 * Play the gradients of @p loss backward into the parameters' gradients.
 *
 * Collective over the mesh.
 *
 * @param loss  A scalar dtensor that the tape made since tsr_tape_begin.
 */
TSR_CHECKED tsr_status tsr_backward(tsr_tape *tape, tsr_dtensor *loss);

/** Collective over the axes on which the losses are Partial. Blocks. Sum of the losses given to
 *  tsr_backward in this step so far. Changes nothing: it may be read at any time. */
TSR_CHECKED tsr_status tsr_step_loss(tsr_tape *tape, double *out);

/** Local. Blocks. Tokens that count in this step, over the whole job. */
TSR_CHECKED tsr_status tsr_step_tokens(tsr_tape *tape, double *out);

/** Local. End the step: the step's memory, gradients included, is given back, and planned if it was
 *  not. */
TSR_CHECKED tsr_status tsr_step_end(tsr_tape *tape);

TSR_END_DECLS
