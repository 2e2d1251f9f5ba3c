/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file boot.h
 * Process start: join the job, exchange small byte strings, leave or abort. By MPI.
 *
 * Call once per process; every function is Collective over the world unless said otherwise and
 * Blocks. Used by world (comm) and by backends; never on the step's path.
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tsri_boot_info {
    int rank, size;
    int local_rank, local_size; /* among the ranks on this host (shared memory) */
    int node, node_count;       /* index of this host in order of first rank */
    int cpus;                   /* processors that this rank could use when it joined */
    char host[64];
} tsri_boot_info;

/** Initialise MPI with MPI_THREAD_MULTIPLE if nobody has yet (then finalize undoes it). */
tsr_status tsri_boot_init(int *argc, char ***argv, tsri_boot_info *out);
/** Local. Facts of the job; init must have succeeded. */
const tsri_boot_info *tsri_boot_get_info(void);
/** out [bytes * size]: every rank's in [bytes], by rank. */
tsr_status tsri_boot_all_gather(const void *in, size_t bytes, void *out);
/** in place, from root. */
tsr_status tsri_boot_broadcast(void *data, size_t bytes, int root);
tsr_status tsri_boot_barrier(void);
/** Local. Take the whole job down with exit status code; does not return. Safe from any thread. */
void tsri_boot_abort(int code) __attribute__((noreturn));
/** Leave the job. */
void tsri_boot_finalize(void);
/** Local. Was a launcher found (are we one rank of a job)? Reads the environment only. */
bool tsri_boot_launched(void);
