/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file optim.h
 * AdamW and SGD on this rank's pieces, clipping by global norm, learning-rate schedules.
 *
 * Every rank updates exactly the elements it owns. The clip factor and the skip flag stay on the
 * device and are consumed there; the host reads them for logs only. Both are of one step: its end
 * forgets them. What counts steps counts updates that were made, per optimizer.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/param.h"
#include "tessera/tape.h"

TSR_BEGIN_DECLS

typedef struct tsr_optimizer tsr_optimizer;

typedef enum tsr_optimizer_kind {
    TSR_OPTIMIZER_DEFAULT = 0, /**< AdamW. */
    TSR_ADAMW = 1,
    TSR_SGD = 2
} tsr_optimizer_kind;

/** Settings of the parameters that match a pattern; the first match counts. */
typedef struct tsr_optimizer_group {
    const char *match;   /**< Pattern over full names; borrowed until create returns. */
    double lr_scale;     /**< 0: 1. */
    double weight_decay; /**< Used where set_weight_decay. */
    bool set_weight_decay;
} tsr_optimizer_group;

/** Zero-initialise for defaults. */
typedef struct tsr_optimizer_options {
    tsr_optimizer_kind kind;
    double beta1, beta2; /**< AdamW; 0: 0.9 and 0.95. */
    double eps;          /**< AdamW; 0: 1e-8. */
    double weight_decay; /**< Tensors of two dims; those of one do not decay. 0: none. */
    double momentum;     /**< SGD. */
    bool nesterov;       /**< SGD. */
    bool offload; /**< Keep the state in host memory; the update reads and writes it there. */
    const tsr_optimizer_group *groups;
    int group_count;
} tsr_optimizer_options;

/**
 * Create an optimizer of params[count], which must be materialised. Collective over the world: the
 * parameters are compared. Blocks.
 *
 * @retval TSR_ERR_STATE    a parameter has no memory yet: tsr_module_materialize first.
 * @retval TSR_ERR_INVALID  a group that matches no parameter; a parameter given twice, or of
 * another comm; an unknown kind; a number that is negative or not finite, betas of 1 and more.
 * @retval TSR_ERR_DISAGREE  ranks passed other parameters, or another order.
 */
TSR_CHECKED tsr_status tsr_optimizer_create(tsr_comm *comm, tsr_param *const *params, int count,
                                            const tsr_optimizer_options *options,
                                            tsr_optimizer **out);

/** Local. Destroy and set *optimizer to NULL; it may be NULL. */
TSR_API void tsr_optimizer_destroy(tsr_optimizer **optimizer);

/**
 * Compute the global L2 norm of all gradients, each element once, in double, and the factor
 * min(1, max_norm / (norm + 1e-6)) that the step's tsr_optimizer_step applies.
 *
 * Collective over the mesh; one small all-reduce, and reductions of gradients that are still to
 * come (tape.h). A norm that is not finite skips the update. The gradients stay as they are:
 * measuring again gives the same norm. Of several clips in a step the least factor holds.
 *
 * @param max_norm  0: measure only.
 * @retval TSR_ERR_STATE    there are no gradients: before backward, or after tsr_step_end; they are
 *                          not final: says which micro-batch or unit; or they are to be clipped
 *                          after the update.
 * @retval TSR_ERR_INVALID  another tape than that of the gradients, or of another comm.
 */
TSR_CHECKED tsr_status tsr_clip_grad_norm(tsr_optimizer *optimizer, tsr_tape *tape,
                                          double max_norm);

/** What becomes of a step whose gradient norm is not finite. */
typedef enum tsr_nonfinite {
    TSR_NONFINITE_DEFAULT = 0, /**< skip */
    TSR_NONFINITE_SKIP = 1,    /**< The update does nothing, on every rank alike. */
    TSR_NONFINITE_ERROR = 2    /**< TSR_ERR_INVALID on every rank; the update would do nothing. */
} tsr_nonfinite;

/** Zero-initialise for defaults. */
typedef struct tsr_clip_options {
    double max_norm; /**< 0: measure only. */
    double p;        /**< 1, 2 or INFINITY: which norm; 0: 2. */
    tsr_nonfinite nonfinite;
} tsr_clip_options;

/**
 * As tsr_clip_grad_norm, with another norm or an error where it is not finite.
 *
 * Collective over the mesh; one small all-reduce. Blocks with TSR_NONFINITE_ERROR.
 *
 * @retval TSR_ERR_INVALID  another p, a negative max_norm; a norm that is not finite.
 */
TSR_CHECKED tsr_status tsr_clip_grad_norm_with(tsr_optimizer *optimizer, tsr_tape *tape,
                                               const tsr_clip_options *options);

/**
 * Update this rank's elements with learning rate @p lr, once a step.
 *
 * Local, after tsr_clip_grad_norm; without it collective over the mesh, as far as reductions of
 * gradients are still to come (tape.h).
 *
 * @retval TSR_ERR_INVALID  a learning rate that is negative or not finite.
 * @retval TSR_ERR_STATE    there are no gradients: before backward, or after tsr_step_end; they are
 *                          not final: says which micro-batch or unit; they carry a loss scale that
 *                          no clip of this optimizer has taken off; or a parameter was updated in
 *                          this step already, by this optimizer or another.
 */
TSR_CHECKED tsr_status tsr_optimizer_step(tsr_optimizer *optimizer, double lr);

/** Local. Blocks. The norm that tsr_clip_grad_norm measured last; and whether that step is skipped
 *  (skipped_out may be NULL). TSR_ERR_STATE before the first. */
TSR_CHECKED tsr_status tsr_grad_norm_read(tsr_optimizer *optimizer, double *norm_out,
                                          bool *skipped_out);

/** Dynamic loss scaling, for gradients that pass through f16. Zero-initialise for defaults. */
typedef struct tsr_loss_scale_options {
    double init;    /**< First scale; 0: 2^16. */
    double growth;  /**< Factor after interval good steps; 0: 2. */
    double backoff; /**< Factor after a step that overflowed; 0: 0.5. */
    double min;     /**< Least scale; 0: 1. */
    double max;     /**< Greatest; 0: 2^24. */
    int interval;   /**< Good steps in a row until it grows; 0: 2000. */
} tsr_loss_scale_options;

/**
 * From now on backward on @p tape multiplies the gradient of the loss by a scale, and
 * tsr_clip_grad_norm, which every step must then call (0 clips nothing), divides by it: the norm
 * that it measures and the update are unscaled. A norm that is not finite skips the update on every
 * rank alike, since every rank has the same norm, and lowers the scale. The scale lives on the
 * device; no step waits for it. Local; logically collective.
 *
 * The scale is the tape's: it is in the gradients of every optimizer that updates from this tape,
 * whichever of them began it, and each divides by it. A step lowers or raises it once, by all norms
 * that were measured in it; an optimizer's update is skipped by its own norm alone.
 *
 * Micikevicius et al., "Mixed precision training", 2018.
 *
 * @param options  NULL: defaults, or what goes on already. Else scaling begins anew with them.
 * @retval TSR_ERR_STATE    within a step.
 * @retval TSR_ERR_INVALID  growth below 1, backoff not in (0, 1), min above init or init above max;
 *                          a tape of another comm.
 */
TSR_CHECKED tsr_status tsr_loss_scale_begin(tsr_optimizer *optimizer, tsr_tape *tape,
                                            const tsr_loss_scale_options *options);

/** Local. Blocks. The scale that the next backward uses (1 without loss scaling); after a clip, as
 *  the step's norms so far have left it for the next step. And how many steps @p optimizer was to
 *  skip so far, each counted once, whether or not it was called (skipped_out may be NULL). */
TSR_CHECKED tsr_status tsr_loss_scale_read(tsr_optimizer *optimizer, tsr_tape *tape,
                                           double *scale_out, int64_t *skipped_out);

/** Shapes of the learning rate over steps. */
typedef enum tsr_schedule_kind {
    TSR_SCHEDULE_DEFAULT = 0, /**< cosine */
    TSR_SCHEDULE_COSINE = 1,
    TSR_SCHEDULE_LINEAR = 2,
    TSR_SCHEDULE_CONSTANT = 3,
    TSR_SCHEDULE_WSD = 4 /**< warmup, stable, linear decay over the last fifth */
} tsr_schedule_kind;

typedef struct tsr_schedule {
    tsr_schedule_kind kind;
    double lr;             /**< Peak. */
    double min_lr;         /**< At the end. */
    int64_t warmup, steps; /**< Step i < warmup has lr * (i + 1) / warmup. */
} tsr_schedule;

/** Local. TSR_ERR_INVALID, naming the value, for rates that are negative or not finite, counts that
 *  are negative, and a kind that is none. */
TSR_CHECKED tsr_status tsr_schedule_check(const tsr_schedule *schedule);

/** Local. Learning rate of step @p step, from 0. NaN, which tsr_optimizer_step refuses, where
 *  tsr_schedule_check would fail or @p step is negative. */
TSR_API double tsr_schedule_lr(const tsr_schedule *schedule, int64_t step);

TSR_END_DECLS
