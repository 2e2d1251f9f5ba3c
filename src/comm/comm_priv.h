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

struct tsr_world {
    const tsr_backend *backend;
    bool simulated;
    bool alone;      /* one rank of a job that is another world's */
    tsri_team *team; /* its ranks; NULL: simulated or alone */
    bool owns_team;  /* it is not the job's */
    int owners;      /* the handle and every open comm: the last of them leaves the job */
    int rank, size;
    int threads;
    double timeout_s;
    tsr_comm *comms;            /* open ones, newest first */
    tsri_comm_ledgers *kept;    /* not NULL: every comm's ledger is kept there */
    char host[TSRI_HOST_BYTES]; /* of a simulated world, or one alone */
    int *nodes;                 /* [size]; NULL: simulated */
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
    unsigned batch_axes, sum_axes;
    bool data_named; /* they were said, not the default */
    bool records;    /* a ledger is kept */
    int kept_at;     /* in world->kept */
    uint64_t epoch;  /* the newest of any tape */
    char *claimant[TSR_MESH_MAX_AXES];
};

/** Say which axes carry data: what they are for follows. */
void tsri_comm_carry_data(tsr_comm *comm, unsigned mask);

void tsri_comm_groups_close(tsr_comm *comm);

/** comm opens, closes, on a world that keeps ledgers. */
void tsri_keep_open(tsri_comm_ledgers *kept, tsr_comm *comm);
void tsri_keep_ledger(tsri_comm_ledgers *kept, const tsr_comm *comm);
