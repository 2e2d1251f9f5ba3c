/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file comm.h
 * Inside of a comm, for the folders above: device, streams, groups, arena.
 */
#pragma once

#include "backend/arena.h"
#include "backend/dispatch.h"
#include "backend/recorder.h"

#include "tessera/comm.h"

tsr_device *tsri_comm_device(const tsr_comm *comm);
tsr_stream *tsri_comm_stream(const tsr_comm *comm, tsri_stream_kind kind);
tsri_arena *tsri_comm_arena(const tsr_comm *comm);

/**
 * Local. The group over the axes of axis_mask (flattened row-major) whose calls go to stream kind;
 * borrowed from the comm. A mask without axes of size > 1 gives a group of one. TSR_ERR_STATE: it
 * is not open. All sets of axes are open on the compute stream (see comm_group.c for many axes).
 */
tsr_status tsri_comm_group(tsr_comm *comm, unsigned axis_mask, tsri_stream_kind kind,
                           tsr_group **out);

/** The same, opened if it is not open. Collective over the comm: all ranks ask for the same masks
 *  in the same order. Not in a step. */
tsr_status tsri_comm_open_group(tsr_comm *comm, unsigned axis_mask, tsri_stream_kind kind,
                                tsr_group **out);

/** Open the groups over all sets of the axes of mask. Collective over the comm. */
tsr_status tsri_comm_open_sets(tsr_comm *comm, unsigned axis_mask, tsri_stream_kind kind);

/** In place sum (or max) over the axes of axis_mask of n elements at (buffer, offset), on the
 *  compute stream. */
tsr_status tsri_comm_all_reduce(tsr_comm *comm, unsigned axis_mask, tsr_buffer *buffer,
                                size_t offset, int64_t n, tsr_dtype dtype, tsri_reduce_op op,
                                const char *label);

/** Local. A number that no tape of the comm has had: values and passes are told apart by it. Never
 * 0, which is that of what no tape made. */
uint64_t tsri_comm_next_epoch(tsr_comm *comm);

/**
 * Every rank's in [bytes] into all [bytes * ranks of the world], zeroed before, by world rank; in a
 * simulated world this rank's alone. Not for the step's path. Collective over the world. Blocks.
 *
 * purpose: "the order of units", for messages; static.
 */
tsr_status tsri_comm_exchange(tsr_comm *comm, const char *purpose, const void *in, size_t bytes,
                              void *all);

/** A small zeroed persistent device buffer (scalars), owned by the caller. */
tsr_status tsri_comm_buffer(tsr_comm *comm, size_t bytes, tsri_mem_kind kind, const char *label,
                            tsr_buffer **out);

/** As tsri_comm_buffer, in the host pool. */
tsr_status tsri_comm_host_buffer(tsr_comm *comm, size_t bytes, tsri_mem_kind kind,
                                 const char *label, tsr_buffer **out);

/** "replicate+shard" of axis_mask into text. */
const char *tsri_comm_mask_name(const tsr_comm *comm, unsigned axis_mask, char *text, size_t size);

/* ---- what axes are for ---- */

/** Bit per axis that splits the batch: its ranks see other rows, and may run other modules. */
unsigned tsri_comm_batch_axes(const tsr_comm *comm);

/** Bit per axis over which gradients of parameters are summed: the sum of a parameter that is
 *  replicated there is Partial, and its state may be sharded by levels. */
unsigned tsri_comm_sum_axes(const tsr_comm *comm);

/** Whether more than one rank shares the data: else all of them do the same. */
bool tsri_comm_splits_data(const tsr_comm *comm);

/**
 * Local; logically collective. Take axis away from the data axes for claimant ("tp"), which is
 * named in messages. The same claimant may claim again.
 *
 * TSR_ERR_INVALID: no such axis, claimed by another, or named as a data axis.
 */
tsr_status tsri_comm_claim_axis(tsr_comm *comm, const char *axis, const char *claimant);

/** Local; logically collective. Say which axes carry data; replaces what was said before.
 *  TSR_ERR_INVALID: no such axis, named twice, or claimed. */
tsr_status tsri_comm_set_data_axes(tsr_comm *comm, const char *const *names, int count);

/** Local. Every axis of size > 1 is a data axis or claimed; else TSR_ERR_INVALID naming the rest.
 */
tsr_status tsri_comm_check_axes(const tsr_comm *comm);

/* ---- ledgers of simulated ranks ---- */

/** What stays of a comm. */
typedef struct tsri_comm_ledger {
    tsri_ledger *ledger; /* owned; NULL while it is open */
    char mesh[TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 12)];
} tsri_comm_ledger;

/** What stays of the comms of a world; zero-initialise. */
typedef struct tsri_comm_ledgers {
    tsri_comm_ledger *comms; /* in order of opening */
    int count, capacity;
    tsr_status status; /* the first failure to keep something */
} tsri_comm_ledgers;

/** Local. From now on comms of world record, and leave their ledgers in kept when they close. NULL:
 *  no longer, also for those that are open. */
void tsri_world_keep(tsr_world *world, tsri_comm_ledgers *kept);
void tsri_comm_ledgers_clear(tsri_comm_ledgers *kept);
/** Local. Mesh of the newest comm of world that is open; NULL: none is. */
const tsr_mesh *tsri_world_open_mesh(const tsr_world *world);

/* ---- world ---- */

/** Local. The backend that comms open devices of. */
const tsr_backend *tsri_world_backend(const tsr_world *world);

/** Local. [size] number of each rank's host, counted by first ranks; NULL in a simulated world.
 *  Borrowed. */
const int *tsri_world_nodes(const tsr_world *world);

/** Local. Name of rank's host, "?" in a simulated world. Borrowed. */
const char *tsri_world_host(const tsr_world *world, int rank);

/** Local. True if the world's other ranks do not exist. */
bool tsri_world_is_simulated(const tsr_world *world);

/**
 * Local. A world of this rank alone inside the job of @p of, on its backend, with threads >= 1:
 * what is opened on it communicates with nobody. Close it before @p of.
 */
tsr_status tsri_world_open_alone(const tsr_world *of, int threads, tsr_world **out);

/** As tsr_world_agree; what names the occasion in messages, the same on all ranks. */
tsr_status tsri_world_agree(tsr_world *world, const char *what, tsr_status mine);

/**
 * For programs, where work on the world ends and before anything of it is released: bring every
 * rank here, or end the job. Collective over the world.
 *
 * Returns TSR_OK on all ranks if every rank passed TSR_OK; a world of one rank returns @p mine.
 * Otherwise does not return: the failure's trail is printed by one rank (the first that failed, or
 * this one if the others are held up elsewhere) and the job ends with status 1 in seconds.
 */
tsr_status tsri_world_settle(tsr_world *world, tsr_status mine);
