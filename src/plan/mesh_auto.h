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

#include "config/mesh_text.h"

typedef struct tsri_mesh_facts {
    int ranks;
    int hosts; /* with equal ranks each, numbered host by host; 0: they are not so */
    int tp;    /* size of the axis tp, for memory's sake; 0: 1 */
} tsri_mesh_facts;

/** Hosts of a job whose rank r is on node node_of[r]; NULL: one. 0: the hosts have different
 * numbers of ranks, or ranks are not numbered host by host. */
int tsri_mesh_hosts(const int *node_of, int ranks);

/** Choose axes and say why. TSR_ERR_INVALID: tp does not divide the ranks of a host; or hosts are
 *  unequal. */
tsr_status tsri_mesh_auto(const tsri_mesh_facts *facts, tsri_mesh_text *out, char *reason,
                          size_t size);
