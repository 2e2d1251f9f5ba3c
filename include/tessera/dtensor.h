/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dtensor.h
 * Distributed tensor: a layout, an element type, and this rank's piece.
 *
 * Threads: one thread at a time per dtensor.
 */
#pragma once

#include "tessera/comm.h"
#include "tessera/dtype.h"
#include "tessera/layout.h"

TSR_BEGIN_DECLS

typedef struct tsr_dtensor tsr_dtensor;

/**
 * Create a dtensor with memory of its own, zeroed. Local.
 *
 * @param layout  On @p comm's mesh; copied.
 * @param label   Name for messages; copied. May be NULL.
 */
TSR_CHECKED tsr_status tsr_dtensor_create(tsr_comm *comm, const tsr_layout *layout, tsr_dtype dtype,
                                          const char *label, tsr_dtensor **out);

/** Local. Add an owner; returns @p tensor. */
TSR_API tsr_dtensor *tsr_dtensor_retain(tsr_dtensor *tensor);

/** Local. Drop one owner and set *tensor to NULL; it may be NULL. */
TSR_API void tsr_dtensor_release(tsr_dtensor **tensor);

/** Local. The layout; borrowed. */
TSR_API const tsr_layout *tsr_dtensor_layout(const tsr_dtensor *tensor);

/** Local. Element type. */
TSR_API tsr_dtype tsr_dtensor_dtype(const tsr_dtensor *tensor);

/** Local. Extents of this rank's piece, [ndim]; borrowed. */
TSR_API const int64_t *tsr_dtensor_local_shape(const tsr_dtensor *tensor);

/** Local. Elements of this rank's piece. */
TSR_API int64_t tsr_dtensor_local_count(const tsr_dtensor *tensor);

/**
 * Local. Copy host memory of local_count elements into this rank's piece.
 *
 * To the value of a parameter (tsr_param_value) it is logically collective, between steps, gathered
 * or not: each rank passes all elements of its layout, and what is at rest becomes them.
 *
 * @retval TSR_ERR_STATE  no memory; a value of a step that is over; a parameter before it is
 *                        materialised, or within a step.
 */
TSR_CHECKED tsr_status tsr_dtensor_write(tsr_dtensor *tensor, const void *host);

/**
 * Local. Blocks. Copy this rank's piece to host memory of local_count elements.
 *
 * @retval TSR_ERR_STATE  no memory (a parameter that is not gathered: tsr_unit_unshard); a value
 *                        that was released, or of a step that is over.
 */
TSR_CHECKED tsr_status tsr_dtensor_read(tsr_dtensor *tensor, void *host);

/**
 * Move @p tensor to another layout of the same shape, with the fewest collectives: S→R all-gather,
 * P→R all-reduce, P→S reduce-scatter, S(a)→S(b) all-to-all, R→S none.
 *
 * Collective over the groups of the axes that change; @p to is logically collective.
 *
 * @param out  A new dtensor (or @p tensor with one more owner if nothing changes).
 * @retval TSR_ERR_PLACEMENT  to Partial from anything but Partial on that axis, whatever its size.
 */
TSR_CHECKED tsr_status tsr_dtensor_redistribute(tsr_dtensor *tensor, const tsr_layout *to,
                                                tsr_dtensor **out);

TSR_END_DECLS
