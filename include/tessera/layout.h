/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file layout.h
 * Layout: how a tensor of a global shape lies on a mesh, one placement per axis.
 *
 * Extents are exact, without padding: n rows over w ranks give each ceil(n / w) rows and the last
 * ones what is left, perhaps nothing (5 over 4 is 2, 2, 1, 0). When several axes shard one dim,
 * each splits what those before it left, in the layout's order. An empty piece has size 0 and its
 * offset in that dim is the global size of the dim.
 *
 * A layout is a plain value. It borrows its mesh.
 *
 * Threads: pure functions.
 */
#pragma once

#include "tessera/comm.h"
#include "tessera/mesh.h"

#include <stdint.h>

TSR_BEGIN_DECLS

/** Most dims of a tensor. */
#define TSR_MAX_DIMS 5

typedef enum tsr_placement_kind {
    TSR_REPLICATE = 0, /**< Every rank of the axis holds the same. */
    TSR_SHARD = 1,     /**< The axis splits dim. */
    TSR_PARTIAL = 2    /**< Each rank holds a term of the sum. */
} tsr_placement_kind;

typedef struct tsr_placement {
    tsr_placement_kind kind;
    int dim; /**< Shard: the dim that is split; else 0. */
} tsr_placement;

typedef struct tsr_layout {
    const tsr_mesh *mesh;
    int ndim;
    int64_t shape[TSR_MAX_DIMS];            /**< Global. */
    tsr_placement place[TSR_MESH_MAX_AXES]; /**< One per mesh axis. */
    signed char order[TSR_MESH_MAX_AXES];   /**< Axes in the order in which they split. */
} tsr_layout;

/**
 * Local. A layout of shape[ndim] on @p mesh, replicated on every axis, splitting in axis order.
 *
 * @retval TSR_ERR_SHAPE  ndim outside 0..TSR_MAX_DIMS or a negative extent.
 */
TSR_CHECKED tsr_status tsr_layout_init(const tsr_mesh *mesh, const int64_t *shape, int ndim,
                                       tsr_layout *out);

/**
 * Local. Set the placement on the axis called @p axis.
 *
 * @retval TSR_ERR_INVALID    no such axis (the message lists the axes).
 * @retval TSR_ERR_PLACEMENT  Shard of a dim that the tensor lacks.
 */
TSR_CHECKED tsr_status tsr_layout_place(tsr_layout *layout, const char *axis,
                                        tsr_placement placement);

/** Local. The layout of a batch: Shard(0) over @p comm's data axes, replicated on the others. Which
 *  axes carry data is known when tp plans have been applied: one made before splits over "tp". */
TSR_CHECKED tsr_status tsr_layout_data(const tsr_comm *comm, const int64_t *shape, int ndim,
                                       tsr_layout *out);

/** Local. Write @p rank's piece: its shape and its offset in the global tensor, [ndim] each. */
TSR_CHECKED tsr_status tsr_layout_local(const tsr_layout *layout, int rank, int64_t *shape_out,
                                        int64_t *offset_out);

/** Local. True if both describe the same pieces: shape, placements, and order where it matters. */
TSR_API bool tsr_layout_equal(const tsr_layout *a, const tsr_layout *b);

/** Local. The layout of the gradient: Shard stays, Replicate and Partial change places. */
TSR_API tsr_layout tsr_layout_dual(const tsr_layout *layout);

/** Local. "[4096, 11008] replicate:R shard:S(0) tp:S(1)" into buffer; returns buffer. */
TSR_API const char *tsr_layout_format(const tsr_layout *layout, char *buffer, size_t size);

TSR_END_DECLS
