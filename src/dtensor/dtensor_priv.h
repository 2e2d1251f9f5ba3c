/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dtensor_priv.h
 * What layout.c, dtensor.c and the two halves of redistribute share.
 *
 * Chain of a dim: the axes of size > 1 that split it, outermost first. An axis of size 1 splits
 * nothing and belongs to no chain, whatever its placement says.
 */
#pragma once

#include "dtensor/dtensor.h"

/** TSR_ERR_SHAPE, TSR_ERR_PLACEMENT or TSR_ERR_INVALID unless shape, placements and order are
 * sound. */
tsr_status tsri_layout_check(const tsr_layout *layout);
/** Write the chain of dim to axes; returns its length. */
int tsri_layout_chain(const tsr_layout *layout, int dim, int axes[TSR_MESH_MAX_AXES]);
/** Elements of the whole tensor. */
int64_t tsri_layout_count(const tsr_layout *layout);
/** As tsr_layout_equal, but the placements of axes of size 1 have to agree too. */
bool tsri_layout_identical(const tsr_layout *a, const tsr_layout *b);

/** Range of the step arena, or a zeroed buffer of its own if persistent. label long-lived. */
tsr_status tsri_storage_create(tsr_comm *comm, size_t bytes, tsri_mem_kind kind, bool persistent,
                               const char *label, tsri_storage **out);
/** Drop one owner and set *storage to NULL; it may be NULL. */
void tsri_storage_release(tsri_storage **storage);

/** Most steps of one plan: each axis leaves its place once and takes its new one once. */
#define TSRI_PLAN_MAX_STEPS (2 * TSR_MESH_MAX_AXES)

typedef enum tsri_step_kind {
    TSRI_STEP_SLICE = 0,      /* R to S(to_dim): no traffic */
    TSRI_STEP_REDUCE_SCATTER, /* P to S(to_dim) */
    TSRI_STEP_ALL_TO_ALL,     /* S(from_dim) to S(to_dim) */
    TSRI_STEP_ALL_REDUCE,     /* P to R */
    TSRI_STEP_GATHER          /* S(from_dim) to R */
} tsri_step_kind;

/** One move of the axes of mask, which act as one axis; each ends or starts at its chain's end. */
typedef struct tsri_step {
    tsri_step_kind kind;
    unsigned mask;
    int from_dim, to_dim; /* -1: none */
    tsr_layout after;
} tsri_step;

typedef struct tsri_plan {
    int step_count;
    int collective_count;
    tsri_step step[TSRI_PLAN_MAX_STEPS];
} tsri_plan;

/** The steps from one layout to another. Pure, the same on every rank. */
tsr_status tsri_plan_make(const tsr_layout *from, const tsr_layout *to, tsri_plan *out);

/**
 * A tensor [outer, extent, inner] that W ranks split in the middle, as it travels: W blocks of
 * block_bytes, each holding its piece [outer, rows, inner] tightly at its start. chunk rows belong
 * to each rank, so blocks are full, then at most one is part full, and the rest is slack: the slack
 * of a buffer of blocks is one range at its end when full blocks have none.
 */
typedef struct tsri_blocks {
    int64_t outer, extent, chunk;
    int ranks;
    size_t inner_bytes;
    size_t block_bytes;
} tsri_blocks;

/** Geometry of dim of a piece of this shape, whose dim has the extent before the split. */
tsri_blocks tsri_blocks_make(const int64_t *shape, int ndim, int dim, int ranks, size_t elem_bytes);
/** Rows of rank's piece. */
int64_t tsri_blocks_rows(const tsri_blocks *blocks, int rank);
/** True if whole and blocks are the same bytes, but for slack at the end. */
bool tsri_blocks_trivial(const tsri_blocks *blocks);
