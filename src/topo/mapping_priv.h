/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file plan_priv.h
 * The steps of making a mapping; each adds its notes.
 */
#pragma once

#include "topo/mapping.h"

/** What is to be said of GPUs without a rank, and of the numbers by which they are opened. */
tsr_status tsri_topo_note_gpus(const tsri_topo *topo, tsri_topo_mapping *mapping);
/** Island of each GPU into island[gpu_count] (-1: not visible), numbered in PCI order. */
tsr_status tsri_topo_find_islands(const tsri_topo *topo, tsri_topo_rule asked, int *island,
                                  tsri_topo_mapping *mapping);
/** Choose mapping->place_count GPUs and put them in rank order. */
tsr_status tsri_topo_order_gpus(const tsri_topo *topo, const int *island,
                                tsri_topo_mapping *mapping);
/** NICs for every place with a GPU. */
tsr_status tsri_topo_match_nics(const tsri_topo *topo, tsri_topo_mapping *mapping);
/** Divide the cores. */
tsr_status tsri_topo_share_cores(const tsri_topo *topo, tsri_topo_mapping *mapping);
