/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file pieces.h
 * Dtensors of a known global tensor, on real ranks.
 *
 * Element g (row-major global index) of the tensor is a hash of g: any bits of the type, or, for
 * sums, an integer small enough that the sum over all ranks is exact in the type, whatever the
 * order. On a Partial axis the ranks hold different terms, so a term left out or taken twice shows.
 */
#pragma once

#include "dtensor/dtensor.h"

typedef struct tsr_pieces_job {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm; /* backend cpu, ledger and race check on */
} tsr_pieces_job;

/** Axes a, b, c of sizes[axis_count] over all ranks; comm is NULL after a failure. */
tsr_pieces_job tsr_pieces_open(const int *sizes, int axis_count);
void tsr_pieces_close(tsr_pieces_job *job);

/** A dtensor in layout, its piece written; NULL after a failure. */
tsr_dtensor *tsr_pieces_make(const tsr_pieces_job *job, const tsr_layout *layout, tsr_dtype dtype);
/** Elements of tensor's piece that are not what a redistribution from `from` has to give, bit by
 *  bit; -1 after a failure. */
int64_t tsr_pieces_wrong(tsr_dtensor *tensor, const tsr_layout *from);
/** Number of collectives since the ledger was cleared, in all and of one kind. */
int tsr_pieces_collectives(const tsr_pieces_job *job, int kind);
