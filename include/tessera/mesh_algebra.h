/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file mesh_algebra.h
 * Meshes made of meshes: slice, flatten, split and join axes.
 *
 * Each result is a mesh of its own that shares the ranks of the mesh that tsr_mesh_create made, its
 * root; nothing is sent and no communicator is opened. With root a=2 b=3 c=4 over 24 ranks:
 *
 *     slice   {c, a} at rank 5    c=4 a=2            the ranks that share rank 5's coordinate on b
 *     flatten {b, c} as bc        a=2 bc=12          index bc = b * 4 + c
 *     split   c as c0=2 c1=2      a=2 b=3 c0=2 c1=2  index c = c0 * 2 + c1
 *     join    [b=3] [a=2]         b=3 a=2            of two slices that have a rank in common
 *
 * tsr_comm_open takes any of them that covers the job.
 *
 * Threads: a mesh never changes once created; any number of threads may read it.
 */
#pragma once

#include "tessera/mesh.h"

TSR_BEGIN_DECLS

/**
 * The mesh of the axes called names[count], in this order, that contains @p rank. Local.
 *
 * @param out  Receives a mesh with one owner, the caller. Untouched on failure.
 * @retval TSR_ERR_INVALID  no name; a name that the mesh lacks (the message lists its axes) or that
 *                          comes twice; a rank outside the mesh.
 */
TSR_CHECKED tsr_status tsr_mesh_slice(const tsr_mesh *mesh, const char *const *names, int count,
                                      int rank, tsr_mesh **out);

/**
 * The mesh with the axes called names[count] made one, row-major in the order of the names, where
 * the first of them in the mesh was; the other axes stay. Local.
 *
 * @param name  Of the new axis; may be that of an axis that goes into it.
 * @param out   Receives a mesh with one owner, the caller. Untouched on failure.
 * @retval TSR_ERR_INVALID  as for tsr_mesh_slice; a bad name, or that of an axis that stays.
 */
TSR_CHECKED tsr_status tsr_mesh_flatten(const tsr_mesh *mesh, const char *const *names, int count,
                                        const char *name, tsr_mesh **out);

/**
 * The mesh with the axis called @p name as parts[count] axes in its place, row-major. Local.
 *
 * @param out  Receives a mesh with one owner, the caller. Untouched on failure.
 * @retval TSR_ERR_INVALID  no such axis; a bad size or name, or that of an axis that stays; sizes
 *                          whose product is not that of the axis; more than TSR_MESH_MAX_AXES axes;
 *                          a flattened axis of distant ranks that is cut elsewhere than between its
 *                          parts.
 */
TSR_CHECKED tsr_status tsr_mesh_split(const tsr_mesh *mesh, const char *name,
                                      const tsr_mesh_axis *parts, int count, tsr_mesh **out);

/**
 * The mesh of all axes of meshes[count], in this order: each of them is a slice of it. Local.
 *
 * @param out  Receives a mesh with one owner, the caller. Untouched on failure.
 * @retval TSR_ERR_INVALID  no mesh; meshes of different roots; a mesh without a rank in common with
 *                          those before it; axes that overlap or share a name; more than
 *                          TSR_MESH_MAX_AXES axes.
 */
TSR_CHECKED tsr_status tsr_mesh_join(const tsr_mesh *const *meshes, int count, tsr_mesh **out);

TSR_END_DECLS
