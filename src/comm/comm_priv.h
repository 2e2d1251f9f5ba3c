/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file comm_priv.h
 * World and comm as their own files see them.
 */
#pragma once

#include "backend/boot/boot.h"
#include "base/base.h"

#include <stdatomic.h>

#include "comm/comm.h"

/** Ends the job when a wait for other ranks takes too long. NULL: no limit is kept. */
typedef struct tsri_watchdog tsri_watchdog;

tsr_status tsri_watchdog_start(double limit_s, tsri_watchdog **out);
void tsri_watchdog_stop(tsri_watchdog **dog);
/** From now until disarm the caller waits for other ranks in what (static or long-lived). */
void tsri_watchdog_arm(tsri_watchdog *dog, const char *what);
void tsri_watchdog_disarm(tsri_watchdog *dog);

/** What a rank brings to an exchange of the world (world_check.c). */
typedef struct tsri_claim {
    int purpose;
    int status;
    uint64_t hash, bytes;
} tsri_claim;

struct tsr_world {
    const tsr_backend *backend;
    bool simulated;
    bool alone; /* one rank of a job that is another world's */
    int owners; /* the handle and every open comm: the last of them leaves the job */
    int rank, size;
    int threads;
    double timeout_s;
    int first_failed;
    tsr_comm *comms; /* open ones, newest first */
    tsri_watchdog *watchdog;
    tsri_comm_ledgers *kept; /* not NULL: every comm's ledger is kept there */
    tsri_claim *claims;      /* [size] exchange room, so that agreeing allocates nothing */
    char (*hosts)[sizeof(((tsri_boot_info *)0)->host)];
    int *nodes; /* [size]; NULL: simulated */
};

/** Enter comm in the world's list, or take it out; taking out the last leaves a closed world. */
void tsri_world_attach(tsr_world *world, tsr_comm *comm);
void tsri_world_detach(tsr_world *world, tsr_comm *comm);

typedef struct comm_group {
    unsigned axis_mask; /* axes of size > 1 */
    tsri_stream_kind kind;
    tsr_group *group;
} comm_group;

struct tsr_comm {
    atomic_int owners;
    tsr_comm *next; /* in world->comms */
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_device *device;
    tsr_stream *stream[TSRI_STREAM_COUNT];
    tsri_arena *arena;
    comm_group *groups;
    int group_count, group_capacity;
    int coord[TSR_MESH_MAX_AXES];
    unsigned data_mask;
    bool data_named; /* data_mask was said, not the default */
    bool records;    /* a ledger is kept */
    int kept_at;     /* in world->kept */
    char *claimant[TSR_MESH_MAX_AXES];
};

void tsri_comm_groups_close(tsr_comm *comm);

/** comm opens, closes, on a world that keeps ledgers. */
void tsri_keep_open(tsri_comm_ledgers *kept, tsr_comm *comm);
void tsri_keep_ledger(tsri_comm_ledgers *kept, const tsr_comm *comm);
