/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file digest.h
 * A number that stands for tensors at rest, whatever mesh they lie on.
 */
#pragma once

#include "dtensor/rest.h"

typedef struct tsri_digest_item {
    const char *name; /* borrowed */
    tsri_rest rest;
} tsri_digest_item;

/**
 * Collective over the world. The sum over all elements of a hash of (name, position, bits).
 *
 * out: may be NULL. TSR_ERR_DISAGREE: ranks that should hold the same elements do not.
 * TSR_ERR_UNSUPPORTED: the backend holds no bytes.
 */
tsr_status tsri_digest(tsr_comm *comm, const tsri_digest_item *items, int count, uint64_t *out);
