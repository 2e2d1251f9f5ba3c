/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file boot_priv.h
 * The job as the files of this folder see it.
 */
#pragma once

#include "backend/boot/boot.h"

#include <mpi.h>

/** Ends the job when this rank waits too long in a call of MPI, or its launcher is gone. */
typedef struct tsri_boot_watch tsri_boot_watch;

tsr_status tsri_boot_watch_start(double limit_s, tsri_boot_watch **out);
void tsri_boot_watch_stop(tsri_boot_watch **watch);
void tsri_boot_watch_limit(tsri_boot_watch *watch, double limit_s);
/** From now until disarm the caller waits in what, for limit_s and extra_s at most. */
void tsri_boot_watch_arm(tsri_boot_watch *watch, const char *what, double extra_s);
void tsri_boot_watch_disarm(tsri_boot_watch *watch);
tsr_status tsri_boot_watch_add(tsri_boot_watch *watch, void (*look)(void *), void *context);
void tsri_boot_watch_remove(tsri_boot_watch *watch, void (*look)(void *), void *context);

/** What a rank brings to an exchange. */
typedef struct tsri_boot_letter {
    int32_t kind, status, root;
    uint64_t number, hash, bytes;
    char what[80];
    char text[448];
} tsri_boot_letter;

/** What became of an exchange, from the team's rank 0 to every rank that came. */
typedef struct tsri_boot_verdict {
    int32_t status; /* TSR_OK, REMOTE, DISAGREE or COMM */
    int32_t first;  /* the rank that tells: that failed, or 0 of what no rank did alone; -1 */
    int32_t other;  /* of compare */
    int32_t ends;   /* can no exchange follow? */
    uint64_t number;
    char text[512];
} tsri_boot_verdict;

/** To rank 0: the time of a rank that waits is over. */
typedef struct tsri_boot_note {
    uint64_t number;
    double limit_s;
} tsri_boot_note;

typedef struct tsri_boot_place {
    char host[TSRI_HOST_BYTES];
    int node;
} tsri_boot_place;

struct tsri_team {
    MPI_Comm comm;
    int rank, size;
    int local_rank, local_size; /* among its ranks on this host */
    int node_count;
    int *id; /* [size] */
    tsri_boot_place *places;

    uint64_t number; /* exchanges begun */
    bool over;       /* no exchange can succeed any more: gone says why */
    bool lost;       /* ranks do not answer */
    char gone[512];
    int teller;                /* of gone: an id */
    tsri_boot_letter *letters; /* [size] on rank 0, 1 elsewhere: exchanging allocates nothing */
    tsri_boot_verdict verdict;
    tsri_boot_note note;
    bool *came;            /* [size] */
    MPI_Request *requests; /* [2 * size + 1] */
};

/** This process's part in the job. */
typedef struct tsri_boot {
    tsri_boot_info info;
    tsri_team *job;
    int users;
    bool started_here;
    bool lost; /* in some team ranks do not answer, so MPI's end would not come either */
    double limit_s;
    tsri_boot_watch *watch; /* NULL: a job of one */
} tsri_boot;

tsri_boot *tsri_boot_self(void);
tsr_status tsri_boot_check(int code, const char *what);
/** numbers.c: comm's ranks in another order, host by host, which replaces *comm where it differs.
 *  Collective over these. */
tsr_status tsri_boot_number(MPI_Comm *comm, bool *changed_out);
/** A team of comm's ranks, which takes comm over, also on failure. Collective over these. */
tsr_status tsri_team_create(MPI_Comm comm, tsri_team **out);
/** Leave together. Ranks that wait in something else learn that this one left, and of its failure
 *  mine. */
void tsri_boot_take_leave(tsr_status mine);
