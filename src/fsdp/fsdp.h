/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fsdp.h
 * Inside of fsdp, for the folders above: the presets, and in what ranks differ.
 */
#pragma once

#include "tessera/fsdp.h"

#include <stdint.h>

/* The presets, from what shares nothing to what shares all: name, level of the inner data axis, of
 * the others. Whoever lists presets lists these. */
#define TSRI_PRESETS(first, next) \
    first("ddp", REPLICATE, REPLICATE) next("zero1", OPTIM, OPTIM) next("zero2", GRADS, GRADS) \
        next("fsdp", PARAMS, PARAMS) next("hsdp", PARAMS, REPLICATE) next("hfsdp", PARAMS, OPTIM)
#define TSRI_PRESET_FIRST_NAME(name, inner, outer) name
#define TSRI_PRESET_NEXT_NAME(name, inner, outer)  ", " name
/** "ddp, zero1, ..." */
#define TSRI_PRESET_NAMES   TSRI_PRESETS(TSRI_PRESET_FIRST_NAME, TSRI_PRESET_NEXT_NAME)
#define TSRI_PRESET_DEFAULT "hsdp"

enum {
    TSRI_PRESET_COUNT = 6
};

/** Name of preset index, in that order; NULL: there are no more. */
const char *tsri_preset_at(int index);
/** Its index. TSR_ERR_INVALID names the nearest. */
tsr_status tsri_preset_find(const char *name, int *out);

/**
 * A hash of all in which the units' work on @p rank may differ from that of other ranks of the
 * mesh: extents of every parameter's piece (computed with, at rest, updated, gradient kept), and
 * for which parameters the rank speaks in sums. Where pieces begin is not in it: no operation's
 * size depends on that. Local; model is materialised, as whichever rank.
 */
tsr_status tsri_fsdp_rank_hash(tsr_module *model, int rank, uint64_t *out);
