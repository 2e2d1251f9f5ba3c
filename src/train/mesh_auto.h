/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file mesh_auto.h
 * The mesh of a job that names none: shard inside a host, replicate between hosts, tp where memory
 * asks for it.
 *
 * Threads: pure functions.
 */
#pragma once

#include <stddef.h>

#include "train/mesh_text.h"

typedef struct tsri_mesh_facts {
    int ranks;
    int hosts;      /* with equal ranks each, numbered host by host; 0: they are not so */
    int tp_divisor; /* legal sizes of tp divide it; 0: the ranks of a host */
    size_t needed_bytes, device_bytes; /* of a rank without tp, and what it has; 0: not known */
} tsri_mesh_facts;

/** Hosts of a job whose rank r is on node node_of[r]; NULL: one. 0: the hosts have different
 * numbers of ranks, or ranks are not numbered host by host. */
int tsri_mesh_hosts(const int *node_of, int ranks);

/** The smallest legal tp by which a rank fits its device, taking its memory to shrink in
 *  proportion; 1 where either size is 0; divisor where none is enough. */
int tsri_mesh_tp_for_memory(size_t needed_bytes, size_t device_bytes, int divisor);

/** Choose axes and say why. TSR_ERR_INVALID: tp_divisor does not divide the ranks of a host. */
tsr_status tsri_mesh_auto(const tsri_mesh_facts *facts, tsri_mesh_text *out, char *reason,
                          size_t size);
