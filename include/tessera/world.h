/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file world.h
 * The job: its ranks, the backend they compute on, and how it ends.
 *
 * A world joins the job that a launcher (mpirun, srun) started, or is a job of one. A simulated
 * world (backend "sim") is any one rank of any number, in this process, without communication.
 *
 * Threads: one thread at a time.
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>

TSR_BEGIN_DECLS

typedef struct tsr_world tsr_world;

/** How ranks are numbered. Meshes are row-major over numbers, so it says who is near to whom. */
typedef enum tsr_rank_order {
    /** Default: host by host, in the order of the hosts' first ranks; in a host by NUMA node and
     *  processor where the launcher has bound ranks, else in the launcher's order. So the last axes
     *  of a mesh are nearest however the launcher dealt ranks out. */
    TSR_RANKS_BY_HOST = 0,
    TSR_RANKS_AS_LAUNCHED /**< As the launcher numbered them. */
} tsr_rank_order;

/** Zero-initialise for defaults. */
typedef struct tsr_world_options {
    const char *backend;       /**< "auto" (default), "cpu" or "sim". */
    int threads;               /**< Threads per rank; 0: cores / local ranks, at least 1. */
    double timeout_s;          /**< Longest wait for another rank, at least 0; 0: 600. */
    int sim_rank;              /**< sim: the rank to be. */
    int sim_size;              /**< sim: the number of ranks; 0: 1. */
    tsr_rank_order rank_order; /**< The first world of a process settles it. */
    /** Points to an MPI communicator of the program's (to its handle), whose ranks the world has
     * instead of all that the launcher started, in its order; it stays the program's, which may
     * free it after the call. NULL: all. */
    const void *mpi_comm;
} tsr_world_options;

/**
 * Join the job. Collective over the job's ranks. Blocks. Build ids are compared.
 *
 * Worlds may be open at the same time, opened and closed by all ranks in the same order: the job is
 * left when the last one closes. Where the library started MPI, it ends MPI then, and none can be
 * opened in this process any more (TSR_ERR_STATE). While ranks wait for each other outside of a
 * device, in what is called collective over the world and in a model's first step, the timeout of
 * the newest world holds: the ranks that did not come are named, and every rank that did has
 * TSR_ERR_COMM.
 *
 * @param argc, argv  As main received them; may be NULL.
 * @param options     NULL for defaults.
 * @retval TSR_ERR_DISAGREE  ranks run different builds of Tessera.
 * @retval TSR_ERR_INVALID   an option is out of its range.
 * @retval TSR_ERR_STATE     MPI has ended in this process.
 * @retval TSR_ERR_REMOTE    another rank failed; the message is its own.
 */
TSR_CHECKED tsr_status tsr_world_open(int *argc, char ***argv, const tsr_world_options *options,
                                      tsr_world **out);

/**
 * A world of some ranks of @p world, for comms that do not span it: meshes over disjoint or nested
 * sets of ranks may be open at the same time. Collective over these ranks alone. Blocks.
 *
 * Backend, threads and time limit are those of @p world, which may be closed before. Messages name
 * ranks by their numbers in the job.
 *
 * @param ranks  [count] numbers in @p world, each once, the same list on all of them; rank i of the
 *               new world is ranks[i]. Where lists differ in who is on them the job ends after the
 *               time limit.
 * @retval TSR_ERR_INVALID   a rank that is not in @p world, named twice, or this one not named.
 * @retval TSR_ERR_DISAGREE  lists differ in their order.
 */
TSR_CHECKED tsr_status tsr_world_split(tsr_world *world, const int *ranks, int count,
                                       tsr_world **out);

/**
 * Leave the job and set *world to NULL; *world may be NULL. Collective over the world. Blocks.
 *
 * Objects opened on the world must be released before; debug builds report those that are not. A
 * rank that leaves after a failure need not wait for the others to notice: whatever they wait in
 * fails with its message. If they do not leave too within the timeout, the job is ended.
 */
TSR_API void tsr_world_close(tsr_world **world);

/** Local. End the whole job now with exit status @p code, after a failure. Does not return. */
TSR_API void tsr_world_abort(tsr_world *world, int code) __attribute__((noreturn));

/** Local. This rank; 0 <= rank < size. */
TSR_API int tsr_world_rank(const tsr_world *world);

/** Local. Number of ranks in the job. */
TSR_API int tsr_world_size(const tsr_world *world);

/** Local. Name of the host of @p rank; borrowed. */
TSR_API const char *tsr_world_host(const tsr_world *world, int rank);

/** Local. True if this rank should print for the job: rank 0 of a real world. */
TSR_API bool tsr_world_is_speaker(const tsr_world *world);

/**
 * Give every rank the same verdict. Collective over the world. Blocks. The others may be in another
 * call that waits for all ranks; that call then fails. A failure that came from such a call is
 * known to all ranks, and is returned at once.
 *
 * @param mine  TSR_OK, or the failure that this rank met (its trail is kept).
 * @return TSR_OK if every rank passed TSR_OK. Otherwise a failure on every rank: ranks that failed
 *         themselves return @p mine, the others TSR_ERR_REMOTE naming the first rank that failed
 * and its message.
 */
TSR_CHECKED tsr_status tsr_world_agree(tsr_world *world, tsr_status mine);

/**
 * Check that all ranks pass the same bytes. Collective over the world. Blocks.
 *
 * @param what  Names the thing in the message, such as "the command line".
 * @retval TSR_ERR_DISAGREE  naming the first rank that differs from rank 0.
 */
TSR_CHECKED tsr_status tsr_world_check_same(tsr_world *world, const char *what, const void *data,
                                            size_t bytes);

TSR_END_DECLS
