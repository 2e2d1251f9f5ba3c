/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file json.h
 * Machines and mappings as JSON trees, for programs and for other hosts. Release with json_decref.
 *
 * Threads: pure functions.
 */
#pragma once

#include "base/json.h"

#include "topo/mapping.h"
#include "topo/mesh.h"

tsr_status tsri_topo_to_json(const tsri_topo *topo, json_t **out);
/** name stands for the sender in messages. TSR_ERR_FORMAT: a key is missing or out of range. */
tsr_status tsri_topo_from_json(const json_t *tree, const char *name, tsri_topo **out);
tsr_status tsri_topo_mapping_to_json(const tsri_topo *topo, const tsri_topo_mapping *mapping,
                                     json_t **out);
tsr_status tsri_topo_mesh_to_json(const tsri_topo_mesh *mesh, json_t **out);
