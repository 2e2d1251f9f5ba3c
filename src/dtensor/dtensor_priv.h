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

/** Most steps of one route: each axis leaves its place once and takes its new one once. */
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

typedef struct tsri_route {
    int step_count;
    int collective_count;
    tsri_step step[TSRI_PLAN_MAX_STEPS];
} tsri_route;

/** The steps from one layout to another. Pure, the same on every rank. */
tsr_status tsri_route_find(const tsr_layout *from, const tsr_layout *to, tsri_route *out);

/**
 * A piece [outer, extent, inner] cut along its middle for ranks, as it travels: one block per rank,
 * block_bytes apart, with the part [outer, rows, inner] of that rank tightly at its start. The
 * first blocks have chunk rows, at most one has the rest, the others have none. Blocks are as long
 * as the longest part in the group; what a part does not fill is slack.
 */
typedef struct tsri_blocks {
    int64_t outer, extent, chunk;
    int ranks;
    size_t inner_bytes, block_bytes;
} tsri_blocks;

/** Where bytes begin. */
typedef struct tsri_place {
    tsr_buffer *buffer;
    size_t offset;
} tsri_place;

/** Cut dim of a piece of shape[ndim] for ranks. block_bytes is that of a part of chunk rows. */
tsri_blocks tsri_blocks_make(const int64_t *shape, int ndim, int dim, int ranks, size_t elem_bytes);
/** True if blocks and piece are the same bytes, with all slack behind them. */
bool tsri_blocks_in_line(const tsri_blocks *blocks);
/** Bytes of all blocks. */
size_t tsri_blocks_bytes(const tsri_blocks *blocks);
/** Copy the piece to blocks, on the compute stream. */
tsr_status tsri_blocks_pack(tsr_comm *comm, const tsri_blocks *blocks, tsri_place piece,
                            tsri_place packed);
/** Copy blocks to the piece, on the compute stream. */
tsr_status tsri_blocks_unpack(tsr_comm *comm, const tsri_blocks *blocks, tsri_place packed,
                              tsri_place piece);
/** Zero the slack behind the last row of blocks whose slack is all behind it. */
tsr_status tsri_blocks_zero_slack(tsr_comm *comm, const tsri_blocks *blocks, tsri_place packed);
/** Copy a piece's rows first .. first + rows of the cut dim, contiguous in part. */
tsr_status tsri_blocks_cut(tsr_comm *comm, const tsri_blocks *blocks, tsri_place piece,
                           int64_t first, int64_t rows, tsri_place part);
/** Copy bytes, on the compute stream. */
tsr_status tsri_copy_bytes(tsr_comm *comm, tsri_place from, tsri_place to, size_t bytes);
