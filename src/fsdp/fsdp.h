/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fsdp.h
 * Inside of fsdp, for the folders above: in what ranks differ.
 */
#pragma once

#include "tessera/fsdp.h"

#include <stdint.h>

/**
 * A hash of all in which the units' work on @p rank may differ from that of other ranks of the
 * mesh: extents of every parameter's piece (computed with, at rest, updated, gradient kept), and
 * for which parameters the rank speaks in sums. Where pieces begin is not in it: no operation's
 * size depends on that. Local; model is materialised, as whichever rank.
 */
tsr_status tsri_fsdp_rank_hash(tsr_module *model, int rank, uint64_t *out);
