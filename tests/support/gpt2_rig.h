/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file gpt2_rig.h
 * A small GPT-2 on the job's ranks, by public calls, in many kinds: presets, tp, types, offload,
 * checkpointing.
 */
#pragma once

#include "tessera/tessera.h"

enum {
    GPT2_LAYERS = 2,
    GPT2_VOCAB = 32,
    GPT2_BATCH = 8,
    GPT2_SEQ = 4,
    GPT2_MICRO = 4 /* batches */
};

typedef struct gpt2_kind {
    const char *name, *preset;
    tsr_fsdp_options unit;
    double dropout;
    bool tp;    /* two of the ranks, where there are, share tensors */
    bool again; /* blocks are checkpointed */
    bool away;  /* and what they keep waits in host memory */
    bool apart; /* the embedding is a unit, so the tied head uses what another unit holds */
} gpt2_kind;

/** Of all sorts; the last has no name. */
extern const gpt2_kind gpt2_kinds[];

typedef struct gpt2_rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *model;
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    tsr_dtensor *ids[GPT2_MICRO], *labels[GPT2_MICRO];
} gpt2_rig;

/** rig is closed by gpt2_rig_close also after a failure. */
tsr_status gpt2_rig_open(const gpt2_kind *kind, gpt2_rig *rig);
void gpt2_rig_close(gpt2_rig *rig);
/** Begin micro-batch micro, of batch micro, and run forward. */
tsr_status gpt2_rig_forward(gpt2_rig *rig, int micro, tsr_dtensor **loss);
