/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file optim.h
 * Inside of an optimizer, for checkpoints and comparisons: where the state of a parameter lies.
 */
#pragma once

#include "tessera/optim.h"

#include "autograd/autograd.h"

/** State of parameter index of the list given at creation: f32 [own_end - own_begin] each. */
typedef struct tsri_optimizer_state {
    tsr_buffer *buffer; /* NULL: none (frozen, or SGD without momentum) */
    size_t m_offset;    /* exp_avg, or the momentum buffer */
    size_t v_offset;    /* exp_avg_sq; AdamW only */
    bool has_v;
    int64_t count;
} tsri_optimizer_state;
void tsri_optimizer_get_state(const tsr_optimizer *optimizer, int index, tsri_optimizer_state *out);
/** True on the one rank that speaks for the owned elements of parameter index in sums over the
 * mesh, where they are replicated. */
bool tsri_optimizer_counts_here(const tsr_optimizer *optimizer, int index);
/** Steps taken so far, without skipped ones: AdamW's t. Blocks. */
tsr_status tsri_optimizer_get_steps(const tsr_optimizer *optimizer, int64_t *out);
tsr_status tsri_optimizer_set_steps(tsr_optimizer *optimizer, int64_t steps);
