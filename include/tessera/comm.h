/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file comm.h
 * A mesh brought to life: device, streams, communicators per set of axes and stream, step memory.
 *
 * Groups over every set of axes are opened with the comm, and those that the units of a model need
 * when it is materialised; none communicates for an axis of size 1. With
 * TSR_LOG=info in the environment each rank says how long each group took.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/mesh.h"
#include "tessera/world.h"

#include <stdint.h>

TSR_BEGIN_DECLS

typedef struct tsr_comm tsr_comm;

/** Zero-initialise for defaults. */
typedef struct tsr_comm_options {
    bool record; /**< Keep a ledger of every allocation, kernel and collective. */
    bool
        race_check; /**< Fail calls whose accesses no event orders; TSR_RACE_CHECK=1 does it too. */
} tsr_comm_options;

/**
 * Open @p mesh on @p world.
 *
 * Collective over the world; the mesh is logically collective and compared. Blocks.
 *
 * @param options  NULL for defaults.
 * @retval TSR_ERR_DISAGREE  ranks passed different meshes.
 */
TSR_CHECKED tsr_status tsr_comm_open(tsr_world *world, tsr_mesh *mesh,
                                     const tsr_comm_options *options, tsr_comm **out);

/** Local. Add an owner; returns @p comm. */
TSR_API tsr_comm *tsr_comm_retain(tsr_comm *comm);

/** Collective over the world when the last owner goes. Sets *comm to NULL; it may be NULL. */
TSR_API void tsr_comm_release(tsr_comm **comm);

/** Local. The mesh; borrowed. */
TSR_API tsr_mesh *tsr_comm_mesh(const tsr_comm *comm);

/** Local. The world; borrowed. */
TSR_API tsr_world *tsr_comm_world(const tsr_comm *comm);

/** Local. This rank in the world. */
TSR_API int tsr_comm_rank(const tsr_comm *comm);

/** Local. This rank's coordinate along @p axis. */
TSR_API int tsr_comm_coord(const tsr_comm *comm, int axis);

/** Local. Device bytes allocated now, and the most so far. */
TSR_API void tsr_comm_memory(const tsr_comm *comm, size_t *now_out, size_t *peak_out);

/**
 * Bytes that this rank has sent in collectives over exactly these axes since the comm was opened,
 * at least what their results need. Local.
 *
 * @param axes  "shard", or "replicate+shard" for the axes as one, in the order of the mesh.
 * @retval TSR_ERR_STATE    the comm was opened without record.
 * @retval TSR_ERR_INVALID  no such axes.
 */
TSR_CHECKED tsr_status tsr_comm_sent_bytes(const tsr_comm *comm, const char *axes,
                                           size_t *bytes_out);

TSR_END_DECLS
