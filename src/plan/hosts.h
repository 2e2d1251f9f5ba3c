/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hosts.h
 * Bytes of a step that leave a host, counted from the collectives that one rank recorded.
 *
 * Collectives go round a ring in the order of a group's members (src/backend/cpu/ring.c, and NCCL's
 * rings): a member sends all that it sends to the next one, so that of the members on a host only
 * those whose next one is on another host send out of it. An all-to-all sends to every member
 * alike. What is small and goes otherwise (scalars, agreement) is counted by the same rule; partial
 * sums of halves, which are wider than the ledger's elements between hosts, are not counted wider.
 */
#pragma once

#include "backend/recorder.h"

#include "tessera/mesh.h"

typedef struct tsri_host_bytes {
    double rank; /* that this rank sends to other hosts */
    double host; /* that all ranks of its host do */
} tsri_host_bytes;

/**
 * Local. What the collectives among entries[count], recorded by rank, send between hosts. Ranks of
 * the host are taken to call alike, and with pieces of the same size, as they do but for what a
 * dim's division leaves over.
 *
 * @param node_of  [cells of mesh] node by world rank; in a simulated world rank / ranks per node.
 *                 NULL: one node holds all.
 */
tsr_status tsri_host_bytes_count(const tsri_entry *entries, int count, const tsr_mesh *mesh,
                                 const int *node_of, int rank, tsri_host_bytes *out);
