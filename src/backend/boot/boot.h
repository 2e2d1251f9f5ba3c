/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file boot.h
 * Process start: join the job, exchange small byte strings, leave or abort. By MPI.
 *
 * Every exchange has a name, the same on all ranks, a time limit, and a place for each rank's own
 * failure: whatever the ranks came to exchange, if one comes with a failure instead, all return it.
 * Ranks that do not come within the limit are named. So a rank that fails alone goes to any
 * exchange (tsr_world_agree, leaving the job), and no rank waits for another without end.
 *
 * One thread at a time; every function is Collective over the world unless said otherwise and
 * Blocks. Used by world (comm) and by backends; never on the step's path.
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TSRI_HOST_BYTES = 64,
    TSRI_TIMEOUT_S = 600 /* where nobody says how long to wait for another rank */
};

typedef struct tsri_boot_info {
    int rank, size;
    int local_rank, local_size; /* among the ranks on this host (shared memory) */
    int node, node_count;       /* index of this host in order of first rank */
    int cpus;                   /* processors that this rank could use when it joined */
    char host[TSRI_HOST_BYTES];
} tsri_boot_info;

/**
 * Initialise MPI with MPI_THREAD_MULTIPLE if nobody has yet. Counted: each success wants its
 * finalize, and the last one ends MPI if it was started here. From now on exchanges wait limit_s
 * (0: TSRI_TIMEOUT_S) for the other ranks.
 */
tsr_status tsri_boot_init(int *argc, char ***argv, double limit_s, tsri_boot_info *out);
/** Local. Facts of the job; init must have succeeded. */
const tsri_boot_info *tsri_boot_get_info(void);
/** Local. Name and number of rank's host; "?" and -1 if there is no such rank. */
const char *tsri_boot_host(int rank);
int tsri_boot_node(int rank);

/**
 * The exchanges. what: "measuring links". mine: this rank's failure so far, which is then every
 * rank's; this rank's trail is kept, the others' says TSR_ERR_REMOTE with host, rank and message. A
 * failure that all ranks know already (tsri_error_teller) is returned without meeting again.
 *
 * TSR_ERR_COMM: ranks, which are named, did not come in time; later exchanges fail alike.
 * TSR_ERR_DISAGREE: ranks came to different exchanges.
 */
/** out [bytes * size]: every rank's in [bytes], by rank. */
tsr_status tsri_boot_all_gather(const char *what, tsr_status mine, const void *in, size_t bytes,
                                void *out);
/** in place, from root. */
tsr_status tsri_boot_broadcast(const char *what, tsr_status mine, void *data, size_t bytes,
                               int root);
tsr_status tsri_boot_barrier(const char *what);
/** Nothing but the verdict. */
tsr_status tsri_boot_agree(const char *what, tsr_status mine);
/** As agree, waiting limit_s at most. */
tsr_status tsri_boot_agree_within(const char *what, tsr_status mine, double limit_s);
/** *other_out: the first rank whose hash or bytes are not rank 0's; 0: all are equal. */
tsr_status tsri_boot_compare(const char *what, uint64_t hash, size_t bytes, int *other_out);
/** Local. What /proc shows of the job's processes on this host that do not run: "rank 3 (process
 *  77) is stopped" or "". Before and after MPI is up. */
const char *tsri_boot_look_around(char *text, size_t size);

/** Local. From now until done this rank waits in calls of MPI that have no limit of their own: if
 *  it takes longer than the limit, the job is ended. what is static or long-lived. Not nested. */
void tsri_boot_guard(const char *what);
void tsri_boot_guard_done(void);

/** Local. Take the whole job down with exit status code; does not return. Safe from any thread. */
void tsri_boot_abort(int code) __attribute__((noreturn));
/** Leave the job. */
void tsri_boot_finalize(void);
/** Local. Was a launcher found (are we one rank of a job)? Reads the environment only. */
bool tsri_boot_launched(void);
/** Local. This rank and the number of ranks as the launcher told them, before MPI is up; 0 and 1
 *  where it told none. */
void tsri_boot_told(int *rank_out, int *size_out);
