/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file mesh.h
 * Device mesh: a job's ranks arranged as a named n-dimensional grid.
 *
 * A mesh is arithmetic. It sends nothing and opens no communicator; comm.h opens one per axis.
 * Cells are row-major: the last axis varies fastest, so put the axis with the most traffic
 * (usually tensor parallel) last, where ranks are nearest to each other.
 *
 * Terms. World rank: rank in the job, 0 <= rank < world_size. Coordinate: one index per axis.
 * Axis group: the ranks whose coordinates differ along that axis alone.
 *
 * Threads: a mesh never changes once created; any number of threads may read it.
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>

TSR_BEGIN_DECLS

/** Most axes that one mesh can have. */
#define TSR_MESH_MAX_AXES 8
/** Bytes of an axis name with its terminator. */
#define TSR_MESH_NAME_BYTES 16

typedef struct tsr_mesh tsr_mesh;

typedef struct tsr_mesh_axis {
    const char *name; /**< Copied; unique within the mesh; 1..15 of [a-z0-9_]. */
    int size;         /**< Ranks along this axis, >= 1. */
} tsr_mesh_axis;

/** Zero-initialise for defaults. */
typedef struct tsr_mesh_options {
    const int *rank_order; /**< World rank of each cell, row-major; NULL: 0, 1, 2, ... */
    bool allow_remainder;  /**< Accept a grid smaller than the world; default: reject it. */
} tsr_mesh_options;

/**
 * Create a mesh of @p axis_count axes over a world of @p world_size ranks.
 *
 * Local. Every rank must pass equal arguments; tsr_comm_open() is where that is checked.
 *
 * @param axes     axis_count entries, slowest-varying axis first.
 * @param options  NULL for defaults.
 * @param out      Receives a mesh with one owner, the caller. Untouched on failure.
 * @retval TSR_ERR_INVALID  bad count, size or name, or the grid does not fit the world.
 */
TSR_CHECKED tsr_status tsr_mesh_create(int world_size, const tsr_mesh_axis *axes, int axis_count,
                                       const tsr_mesh_options *options, tsr_mesh **out);

/** Local. Add an owner; returns @p mesh. */
TSR_API tsr_mesh *tsr_mesh_retain(tsr_mesh *mesh);

/** Local. Drop one owner and set *mesh to NULL; the last one frees it. *mesh may be NULL. */
TSR_API void tsr_mesh_release(tsr_mesh **mesh);

/** Local. Number of axes. */
TSR_API int tsr_mesh_axis_count(const tsr_mesh *mesh);

/** Local. Ranks along @p axis; 1 for an axis that does not exist. */
TSR_API int tsr_mesh_axis_size(const tsr_mesh *mesh, int axis);

/** Local. Name of @p axis; borrowed from the mesh. */
TSR_API const char *tsr_mesh_axis_name(const tsr_mesh *mesh, int axis);

/** Local. Number of cells: the product of the axis sizes. */
TSR_API int tsr_mesh_cell_count(const tsr_mesh *mesh);

/** Local. Index of the axis called @p name, or -1. */
TSR_API int tsr_mesh_axis_find(const tsr_mesh *mesh, const char *name);

/** Local. Write @p rank's coordinate to coord[axis_count]; TSR_ERR_INVALID if it is outside. */
TSR_CHECKED tsr_status tsr_mesh_coord(const tsr_mesh *mesh, int rank, int *coord);

/** Local. World rank at coord[axis_count]; TSR_ERR_INVALID if it is outside. */
TSR_CHECKED tsr_status tsr_mesh_rank(const tsr_mesh *mesh, const int *coord, int *out);

/** Local. Write the world ranks of @p rank's group along @p axis to ranks[axis size], in order. */
TSR_CHECKED tsr_status tsr_mesh_axis_ranks(const tsr_mesh *mesh, int axis, int rank, int *ranks);

/**
 * Local. The ranks whose coordinates differ from @p rank's on the axes of @p axis_mask alone
 * (bit i = axis i), as one flattened group.
 *
 * @param ranks      Room for the product of those axes' sizes; row-major over the masked axes.
 * @param index_out  Position of @p rank within them.
 */
TSR_CHECKED tsr_status tsr_mesh_flat_ranks(const tsr_mesh *mesh, unsigned axis_mask, int rank,
                                           int *ranks, int *count_out, int *index_out);

/** Local. "replicate=2 shard=2 tp=2" into buffer; returns buffer. */
TSR_API const char *tsr_mesh_format(const tsr_mesh *mesh, char *buffer, size_t size);

TSR_END_DECLS
