/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file mesh.h
 * A mesh over equal machines: what each axis's groups are made of, and what lies between them.
 *
 * Rank r of the job is local rank r % ranks on host r / ranks.
 *
 * Threads: pure functions.
 */
#pragma once

#include "tessera/mesh.h"

#include "topo/mapping.h"

enum {
    TSRI_TOPO_MAX_RANKS = 1 << 16 /* of a mesh that is looked at */
};

/** The shard group: k nodes, or one of 1/part of a node. Zero-initialise for one node. */
typedef struct tsri_topo_shard {
    int nodes, part;
} tsri_topo_shard;

typedef struct tsri_topo_axis {
    char name[TSR_MESH_NAME_BYTES];
    int size, group_count;
    int *ranks;     /* [size] of rank 0's group */
    int hosts;      /* the most hosts that a group spans */
    double gb_s;    /* of the ring that a group's order makes, at most; 0: unknown */
    char over[128]; /* "NVLink through switches", "the same NUMA node", "network: mlx5_0" */
    char reason[192];
} tsri_topo_axis;

typedef struct tsri_topo_mesh {
    int nodes, local; /* hosts, ranks of each */
    int axis_count;
    tsri_topo_axis axes[TSR_MESH_MAX_AXES];
} tsri_topo_mesh;

/**
 * Local. What axes (slowest first) get on nodes machines with this mapping.
 *
 * TSR_ERR_INVALID: the sizes do not multiply to the ranks; or a group of the axis tp does not lie
 * in one island, then with the sizes that do. Free with tsri_topo_mesh_free.
 */
tsr_status tsri_topo_mesh_create(const tsri_topo *topo, const tsri_topo_mapping *mapping, int nodes,
                                 const tsr_mesh_axis *axes, int axis_count, tsri_topo_mesh **out);
void tsri_topo_mesh_free(tsri_topo_mesh **pointer);

/** "node", "2" (nodes) or "1/2" (of a node). TSR_ERR_INVALID. */
tsr_status tsri_topo_shard_parse(const char *text, tsri_topo_shard *out);

/**
 * Local. Choose the axes replicate, shard and tp; those of size 1 are left out but for shard. Names
 * are static. Reasons are added to notes.
 *
 * TSR_ERR_INVALID: tp or shard does not divide; says the legal sizes.
 */
tsr_status tsri_topo_propose(const tsri_topo_mapping *mapping, int nodes, int tp,
                             tsri_topo_shard shard, tsr_mesh_axis axes[3], int *count_out,
                             tsri_topo_notes *notes);
