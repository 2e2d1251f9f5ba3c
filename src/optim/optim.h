/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file optim.h
 * Inside of an optimizer, for checkpoints and comparisons: where the state of a parameter lies.
 */
#pragma once

#include "tessera/optim.h"

#include "autograd/autograd.h"

/** What is kept of parameter index of the list given at creation, of what this rank owns, f32. */
typedef struct tsri_optimizer_state {
    tsri_rest m; /* exp_avg, or SGD's momentum; buffer NULL: none (frozen, or no momentum) */
    tsri_rest v; /* exp_avg_sq; buffer NULL: none (SGD) */
} tsri_optimizer_state;
const tsri_optimizer_state *tsri_optimizer_get_state(const tsr_optimizer *optimizer, int index);
int tsri_optimizer_count(const tsr_optimizer *optimizer);
/** Borrowed. */
tsr_param *tsri_optimizer_param(const tsr_optimizer *optimizer, int index);
tsr_comm *tsri_optimizer_comm(const tsr_optimizer *optimizer);
/** Where the number of updates made so far lies, or of those skipped: an int64_t. */
void tsri_optimizer_get_counter(const tsr_optimizer *optimizer, bool skipped,
                                tsr_buffer **buffer_out, size_t *offset_out);
/** Steps taken so far, without skipped ones: AdamW's t. Blocks. */
tsr_status tsri_optimizer_get_steps(const tsr_optimizer *optimizer, int64_t *out);
tsr_status tsri_optimizer_set_steps(tsr_optimizer *optimizer, int64_t steps);
/** Write lr to where update kernels read it, unless it is there. A step that calls this when it
 * begins, and tsr_optimizer_step with the same, carries no number of its own. */
tsr_status tsri_optimizer_set_lr(tsr_optimizer *optimizer, double lr);
