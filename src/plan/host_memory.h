/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file host_memory.h
 * Does a job fit this machine's memory?
 */
#pragma once

#include "tessera/status.h"

#include <stddef.h>

/** Local. Bytes that new processes can have here: what the system has available, or what is left
 *  below the limit of a control group. 0: unknown. */
size_t tsri_host_memory_available(void);

/** Local. What is left below the limits of this process's control groups, of either version; 0: no
 *  limit. prefix: "", or a folder that stands for the root (tests). */
size_t tsri_host_memory_of_groups(const char *prefix);

/** Local. TSR_ERR_NOMEM if ranks times bytes are more than is available. */
tsr_status tsri_host_memory_check(size_t bytes, int ranks);
