/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file state.h
 * All that a training run is made of, by name and global position: what a program saves in order to
 * go on later, on this mesh or on another.
 *
 * An entry is a tensor of global shape whose elements lie on the ranks in pieces. Positions count
 * its elements row-major over the global shape, so they mean the same on every mesh, whatever the
 * levels, tensor parallelism and offload. Each rank holds some contiguous ranges of them.
 *
 *   NAME               f32  a parameter; also where it is computed with in half precision: this is
 *                           what an update changes
 *   NAME.grad          f32  its gradient, from backward to the end of the step; it carries the
 *                           tape's loss scale
 *   NAME.exp_avg       f32  AdamW's moments
 *   NAME.exp_avg_sq    f32
 *   NAME.momentum      f32  that of SGD with momentum
 *   optimizer.updates  i64  updates made: AdamW's t. The last four have no dims and one element
 *   optimizer.skipped  i64  updates that were to be skipped
 *   loss_scale         f32  of the next step; where tsr_loss_scale_begin was called before
 *   loss_scale.good    i32  steps in a row without overflow
 *
 * What a run is besides is the program's: configuration, step number, place in the data.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/module.h"
#include "tessera/optim.h"
#include "tessera/tape.h"

TSR_BEGIN_DECLS

typedef struct tsr_state tsr_state;

/** What an entry is. */
typedef enum tsr_state_kind {
    TSR_STATE_PARAM = 1,
    TSR_STATE_GRAD = 2,
    TSR_STATE_MOMENT = 3,
    TSR_STATE_SCALAR = 4
} tsr_state_kind;

typedef struct tsr_state_entry {
    const char *name; /**< Borrowed from the state. */
    tsr_state_kind kind;
    tsr_dtype dtype; /**< Of host memory that is read into and written from. */
    int ndim;
    int64_t shape[TSR_MAX_DIMS]; /**< Global. */
    int64_t count;               /**< Elements, of all ranks together. */
    int64_t range_count;         /**< Contiguous ranges that this rank holds. */
    bool speaks; /**< Of the ranks that hold these same ranges, this is the first: were each rank
                      that speaks to save its ranges, each element would be saved once. */
} tsr_state_entry;

/**
 * List the state of @p model, which must be materialised: all its parameters. Local.
 *
 * @param optimizer  Its moments and counters too, of all its parameters; NULL: none. Where a model
 *                   has several optimizers, open a state for each.
 * @param tape       Its loss scale too; NULL: none. All three are borrowed: close the state first.
 * @retval TSR_ERR_STATE    the model is not materialised.
 * @retval TSR_ERR_INVALID  model, optimizer and tape are not of one comm.
 */
TSR_CHECKED tsr_status tsr_state_open(tsr_module *model, tsr_optimizer *optimizer, tsr_tape *tape,
                                      tsr_state **out);

/** Local. Close and set *state to NULL; it may be NULL. */
TSR_API void tsr_state_close(tsr_state **state);

/** Local. Number of entries, the same on all ranks and in the same order. */
TSR_API int tsr_state_count(const tsr_state *state);

/** Local. TSR_ERR_INVALID: there is no entry @p index. */
TSR_CHECKED tsr_status tsr_state_get(const tsr_state *state, int index, tsr_state_entry *out);

/** Local. Index of the entry called @p name, or -1. */
TSR_API int tsr_state_find(const tsr_state *state, const char *name);

/**
 * Local. Range number @p range of entry @p index on this rank, in rising order: elements
 * [first, first + count).
 *
 * @retval TSR_ERR_INVALID  no such entry or range.
 */
TSR_CHECKED tsr_status tsr_state_range(const tsr_state *state, int index, int64_t range,
                                       int64_t *first_out, int64_t *count_out);

/**
 * Of elements [first, first + count) of the entry called @p name, copy those that this rank holds:
 * element i to place i - first of @p host. Others are left as they are. Blocks.
 *
 * Local. Of a gradient collective over the mesh: it is made final, as by tsr_clip_grad_norm; every
 * rank reads it then, if only 0 elements.
 *
 * @param host  [count] of the entry's dtype.
 * @retval TSR_ERR_INVALID      no entry of that name (the message has the nearest), or a range that
 *                              leaves it.
 * @retval TSR_ERR_STATE        a gradient that there is not, or that cannot be final.
 * @retval TSR_ERR_UNSUPPORTED  a backend that holds no bytes (sim).
 */
TSR_CHECKED tsr_status tsr_state_read(tsr_state *state, const char *name, int64_t first,
                                      int64_t count, void *host);

/**
 * As tsr_state_read, with all elements of the range on every rank. Collective over the mesh; all
 * ranks ask for the same range. For saving by hand: it goes through the hosts, a part at a time.
 */
TSR_CHECKED tsr_status tsr_state_gather(tsr_state *state, const char *name, int64_t first,
                                        int64_t count, void *host);

/**
 * Of elements [first, first + count) of the entry called @p name, those that this rank holds become
 * @p host's, which is copied. Ranks that hold the same elements must write the same.
 *
 * Local. The model does not run before tsr_state_commit has followed. Of a gradient collective over
 * the mesh, as reading, and nothing has to follow.
 *
 * @param host  [count] of the entry's dtype; only what this rank holds is read.
 * @retval TSR_ERR_INVALID      as tsr_state_read; a scalar that cannot be: negative counts, a loss
 *                              scale that is not a positive number.
 * @retval TSR_ERR_STATE        within a step, but of a gradient; a gradient that there is not.
 * @retval TSR_ERR_UNSUPPORTED  a backend that holds no bytes (sim).
 */
TSR_CHECKED tsr_status tsr_state_write(tsr_state *state, const char *name, int64_t first,
                                       int64_t count, const void *host);

/**
 * What was written since the last time, by any rank and in any state of the model, counts from now
 * on: what other ranks compute with comes to them at the next gather; a unit that holds some of it
 * and was gathered by hand (tsr_unit_unshard) is so no more. Collective over the mesh, which a
 * failure of one rank reaches: pass it as @p mine. Blocks.
 *
 * @param mine  What the writing came to on this rank.
 * @retval TSR_ERR_REMOTE  another rank failed; the model does not run until a commit succeeds.
 */
TSR_CHECKED tsr_status tsr_state_commit(tsr_state *state, tsr_status mine);

/**
 * Collective over the mesh. Blocks. A number that depends on every bit of every entry but
 * gradients, on names and positions, and on nothing else: equal states have equal digests on any
 * mesh.
 *
 * @retval TSR_ERR_DISAGREE     ranks that should hold the same elements do not; says which.
 * @retval TSR_ERR_UNSUPPORTED  a backend that holds no bytes (sim).
 */
TSR_CHECKED tsr_status tsr_state_digest(tsr_state *state, uint64_t *digest_out);

TSR_END_DECLS
