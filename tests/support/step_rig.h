/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file step_rig.h
 * A small model on the job's ranks for tests of what a step may do in which order: an embedding,
 * also the head, around one unit "block", by public calls.
 */
#pragma once

#include "tessera/fsdp.h"
#include "tessera/op.h"
#include "tessera/optim.h"
#include "tessera/world.h"

enum {
    STEP_VOCAB = 12,
    STEP_DIM = 6,
    STEP_MICRO = 3,
    STEP_ELEMENTS = STEP_VOCAB * STEP_DIM + STEP_DIM * STEP_DIM
};

typedef struct step_rig {
    tsr_world *world;
    tsr_mesh *mesh; /* "shard" 1 or 2; four ranks: "replicate" 2 x "shard" 2 */
    tsr_comm *comm;
    tsr_module *model, *block;
    tsr_optimizer *optimizer[2]; /* of the embedding and the block; else [0] of both */
    tsr_tape *tape;
    tsr_dtensor *ids[STEP_MICRO], *labels[STEP_MICRO];
    tsr_dtensor *hidden; /* what the block alone may be called on */
    int splits;          /* axis over which the block's input is split along the sequence; -1 */
} step_rig;

/** Zero-initialise for defaults. */
typedef struct step_rig_options {
    tsr_fsdp_options unit; /* of both units */
    tsr_optimizer_options optimizer;
    bool two_optimizers;
    bool single; /* every rank is a world of its own, and has the whole batch */
    bool tp;     /* of four ranks: "shard" 2 x "tp" 2; the block's gradient is Partial over tp */
} step_rig_options;

/** rig is closed by step_rig_close also after a failure. */
tsr_status step_rig_open(const step_rig_options *options, step_rig *rig);
void step_rig_close(step_rig *rig);
tsr_status step_rig_begin(step_rig *rig, int64_t step, int micro_batches);
/** Begin micro-batch micro, run forward; loss is factor squared times the cross entropy. */
tsr_status step_rig_forward(step_rig *rig, int micro, double factor, tsr_dtensor **loss);
/** And backward. */
tsr_status step_rig_micro(step_rig *rig, int micro, double factor);
/** A step without its end: begin, and micro_batches times forward and backward. */
tsr_status step_rig_run(step_rig *rig, int64_t step, int micro_batches, double factor);
/** Begin micro-batch micro, and forward and backward of the block without its root. */
tsr_status step_rig_block(step_rig *rig, int micro);
/** What this rank owns of both parameters, into out[STEP_ELEMENTS]; the rest of it is 0. */
tsr_status step_rig_read(const step_rig *rig, float *out);
/** What this rank owns is within tolerance of the same elements of whole[STEP_ELEMENTS], which a
 *  single rig has read. */
bool step_rig_near(const step_rig *rig, const float *whole, double tolerance);
