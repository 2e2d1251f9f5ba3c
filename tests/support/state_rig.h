/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file state_rig.h
 * Jobs on many layouts, whose state tests save, restore and look at.
 */
#pragma once

#include "job/job.h"
#include "support/parity.h"

typedef enum state_extras {
    PLAIN = 0,
    OFFLOADED = 1, /* parameters, gradients and moments rest in host memory */
    HALF = 2,      /* computed with in bf16: lean where levels split the moments */
    SCALED = 4,    /* with loss scaling */
    SPLIT_COLS = 8
} state_extras;

typedef struct state_layout {
    parity_case mesh;
    unsigned extras;
} state_layout;

/** Of one to eight ranks; those of one are run by every rank for itself. */
extern const state_layout state_layouts[];
extern const int state_layout_count;

int state_rank_count(const state_layout *l);
/** Whether a test of this many ranks can run l on all of them. */
bool state_fits(const state_layout *l);
/** NULL after a failed check. */
tsri_job *state_open_job(tsr_world *world, const state_layout *l, uint64_t seed);
tsr_status state_run(tsri_job *job, int from, int to, tsri_step_result *out);
/** Rate of those steps. */
extern const double state_lr;
