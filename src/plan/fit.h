/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fit.h
 * A configuration made to fit the ranks there are: its mesh gets its sizes.
 *
 * Threads: one thread at a time per configuration.
 */
#pragma once

#include "config/config.h"

/** What a rank has, where the mesh is to be chosen by memory too. */
typedef struct tsri_config_memory {
    size_t device_bytes; /* of a rank; 0: unknown, memory chooses nothing */
    int island;          /* legal sizes of tp divide it; 0: the ranks of a host */
    bool bf16;           /* the device computes in it */
} tsri_config_memory;

/**
 * Give the mesh its sizes for ranks on hosts (0: of unequal numbers of ranks). Where the
 * configuration leaves it open: replicate over hosts, shard inside them; and if a dry run of that
 * needs more than memory (NULL: not known) has, the smallest legal tp with which it does not.
 *
 * TSR_ERR_INVALID: the sizes do not multiply to ranks.
 */
tsr_status tsri_config_fit(tsri_config *config, int ranks, int hosts,
                           const tsri_config_memory *memory);
