/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file state_priv.h
 * The list of what a run is made of (state.c), as reading and writing see it (state_access.c).
 */
#pragma once

#include "tessera/state.h"

#include "dtensor/rest.h"

/* What an entry names. */
typedef enum state_source {
    SOURCE_MASTER,
    SOURCE_GRAD,
    SOURCE_M,
    SOURCE_V,
    SOURCE_UPDATES,
    SOURCE_SKIPPED,
    SOURCE_SCALE,
    SOURCE_GOOD
} state_source;

typedef struct state_entry {
    char *name;
    state_source from;
    int index;        /* of the optimizer's parameters: SOURCE_M, SOURCE_V */
    tsr_param *param; /* borrowed; NULL: a scalar */
} state_entry;

struct tsr_state {
    tsr_comm *comm; /* retained */
    tsr_optimizer *optimizer;
    tsr_tape *tape;
    state_entry *entries;
    int count, capacity;
};

/** Where e lies now. */
tsr_status tsri_state_locate(const tsr_state *s, const state_entry *e, tsri_rest *out);
/** Elements of a tensor. */
int64_t tsri_state_count_of(const tsr_layout *layout);
