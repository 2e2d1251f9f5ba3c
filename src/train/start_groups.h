/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file start_groups.h
 * Where the groups of a mesh's axes lie, for the line at the start of a run.
 */
#pragma once

#include "tessera/mesh.h"

#include <stddef.h>

/**
 * Local. "replicate alpha:0 beta:0 | alpha:1 beta:1; shard alpha:0-1 | beta:0-1": of each axis with
 * more than one rank its groups, a rank as its host and its place on the host, which is its
 * device's number; of many groups the first ones. Cut where text ends. TSR_ERR_NOMEM.
 *
 * @param node_of  [ranks of mesh] number of each rank's host.
 * @param host_of  [ranks of mesh] its name.
 */
tsr_status tsri_start_groups_text(const tsr_mesh *mesh, const int *node_of,
                                  const char *const *host_of, char *text, size_t size);
