/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file boot.h
 * Process start: join the job, exchange small byte strings, leave or abort. By MPI.
 *
 * Ranks exchange in teams: the job, or some ranks of it that opened a team of their own. Every
 * exchange has a name, the same on all ranks of the team, a time limit, and a place for each rank's
 * own failure: whatever the ranks came to exchange, if one comes with a failure instead, all return
 * it. Ranks that do not come within the limit are named. So a rank that fails alone goes to any
 * exchange (tsr_world_agree, leaving the job), and no rank waits for another without end.
 *
 * One thread at a time; every function is Collective over the team unless said otherwise and
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
    int launcher_rank;          /* this rank's number in MPI_COMM_WORLD */
    bool renumbered;            /* some rank's number is not the launcher's */
    char host[TSRI_HOST_BYTES];
} tsri_boot_info;

/** Ranks that exchange with each other, numbered from 0. */
typedef struct tsri_team tsri_team;

/** Zero-initialise for defaults. */
typedef struct tsri_boot_options {
    const void *mpi_comm; /* an MPI_Comm of the program's, whose ranks are the job, in its order */
    bool launcher_order;  /* ranks are numbered as the launcher did, not host by host */
    double limit_s;       /* how long exchanges wait for other ranks; 0: TSRI_TIMEOUT_S */
} tsri_boot_options;

/**
 * Initialise MPI with MPI_THREAD_MULTIPLE if nobody has yet, and join the job: all ranks that the
 * launcher started, numbered host by host in the order of its first ranks, and in a host by NUMA
 * node and processor where the launcher has bound them, else in its order. A later init finds the
 * job as it is, but for the limit. Counted: each success wants its finalize, and the last one ends
 * MPI if it was started here. options: NULL for defaults.
 */
tsr_status tsri_boot_init(int *argc, char ***argv, const tsri_boot_options *options,
                          tsri_boot_info *out);
/** Local. All ranks of the job. */
tsri_team *tsri_boot_job(void);

/** Some ranks of a team, which are numbers in it, each once, this one among them (not checked
 *  here), and the same on all of them: rank i of the new team is ranks[i]. Collective over these
 * alone; init must have succeeded. */
tsr_status tsri_team_open(tsri_team *of, const int *ranks, int count, tsri_team **out);
/** The ranks of a communicator of the program's: mpi_comm points to an MPI_Comm, which stays the
 *  program's. Collective over these; init must have succeeded. */
tsr_status tsri_team_adopt(const void *mpi_comm, tsri_team **out);
/** Local. *team may be NULL, and is not the job. */
void tsri_team_close(tsri_team **team);
/** Local. */
int tsri_team_rank(const tsri_team *team);
int tsri_team_size(const tsri_team *team);
/** Local. Name and number (from 0, by first ranks) of a rank's host; "?" and -1: no such rank. */
const char *tsri_team_host(const tsri_team *team, int rank);
int tsri_team_node(const tsri_team *team, int rank);
/** Local. Number in the job of the team's rank, by which messages name it and errors know it
 *  (tsri_error_teller). */
int tsri_team_id(const tsri_team *team, int rank);
/** Local. The MPI_Comm that carries the team's exchanges; borrowed. */
const void *tsri_team_mpi(const tsri_team *team);
/** Local. Facts of the job; init must have succeeded. */
const tsri_boot_info *tsri_boot_get_info(void);

/**
 * The exchanges. what: "measuring links". mine: this rank's failure so far, which is then every
 * rank's; this rank's trail is kept, the others' says TSR_ERR_REMOTE with host, rank and message. A
 * failure that all ranks know already (tsri_error_teller) is returned without meeting again.
 *
 * TSR_ERR_COMM: ranks, which are named, did not come in time; later exchanges fail alike.
 * TSR_ERR_DISAGREE: ranks came to different exchanges.
 */
/** out [bytes * size of the team]: every rank's in [bytes], by rank. */
tsr_status tsri_team_all_gather(tsri_team *team, const char *what, tsr_status mine, const void *in,
                                size_t bytes, void *out);
/** in place, from root. */
tsr_status tsri_team_broadcast(tsri_team *team, const char *what, tsr_status mine, void *data,
                               size_t bytes, int root);
tsr_status tsri_team_barrier(tsri_team *team, const char *what);
/** Nothing but the verdict. */
tsr_status tsri_team_agree(tsri_team *team, const char *what, tsr_status mine);
/** As agree, waiting limit_s at most. */
tsr_status tsri_team_agree_within(tsri_team *team, const char *what, tsr_status mine,
                                  double limit_s);
/** *other_out: the first rank whose hash or bytes are not rank 0's; 0: all are equal. */
tsr_status tsri_team_compare(tsri_team *team, const char *what, uint64_t hash, size_t bytes,
                             int *other_out);
/** Local. What /proc shows of the job's processes on this host that do not run: "rank 3 (process
 *  77) is stopped" or "". Before and after MPI is up. */
const char *tsri_boot_look_around(char *text, size_t size);

/** Local. From now until done this rank waits in calls of MPI that have no limit of their own: if
 *  it takes longer than the limit, the job is ended. what is static or long-lived. Not nested. */
void tsri_boot_guard(const char *what);
void tsri_boot_guard_done(void);

/** Local. look(context) about once a second on the watchdog's thread, which a launched job has,
 * until removed; neither arms a guard nor blocks for long. Removing waits for a look under way. */
tsr_status tsri_boot_look_add(void (*look)(void *context), void *context);
void tsri_boot_look_remove(void (*look)(void *context), void *context);

/** Local. Take the whole job down with exit status code; does not return. Safe from any thread. */
void tsri_boot_abort(int code) __attribute__((noreturn));
/** Leave the job. */
void tsri_boot_finalize(void);
/** Local. Was a launcher found (are we one rank of a job)? Reads the environment only. */
bool tsri_boot_launched(void);
/** Local. This rank and the number of ranks as the launcher told them, before MPI is up; 0 and 1
 *  where it told none. */
void tsri_boot_told(int *rank_out, int *size_out);
