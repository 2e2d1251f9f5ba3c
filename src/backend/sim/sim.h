/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file sim.h
 * Settings of the sim backend: sizes without bytes, any rank of any world in one process.
 */
#pragma once

#include "backend/dispatch.h"

/** Value that the next reads of device memory return, cyclically over value[bytes]. */
tsr_status tsri_sim_set_read(tsr_device *device, const void *value, size_t bytes);
