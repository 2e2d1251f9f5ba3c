/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bind.h
 * Binding this process to its share of the machine, as topo/mapping.h divides it.
 *
 * Threads: call once per process, before threads that compute are started.
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>

typedef struct tsri_topo_binding {
    bool bound;
    int core_count;
    char text[192]; /* what was done or why nothing was: "each rank has 4 whole cores of its own" */
} tsri_topo_binding;

/**
 * Local. Bind this process, with all its threads, to local_rank's whole cores, and its memory to
 * their NUMA node while that has any.
 *
 * Does nothing, and says why, where a rank would not get a whole core, where one rank has the
 * machine for itself, where the launcher has bound this process already, or where the system does
 * not allow it.
 *
 * @param cores_only  Ranks compute on cores: GPUs are not looked at.
 */
tsr_status tsri_topo_bind(int local_rank, int local_size, bool cores_only, tsri_topo_binding *out);
