/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cpu.h
 * The cpu backend's table for the machine at hand, and its threads.
 *
 * Threads: pure functions.
 */
#pragma once

#include "backend/backend.h"

/** tsri_backend_cpu, with TSR_CAP_BF16 where this processor multiplies bf16 in hardware. */
const tsr_backend *tsri_cpu_backend(void);

/** Threads of a rank that shares this machine with local_ranks ranks, itself included, where the
 *  device's options name no number. */
int tsri_cpu_default_threads(int local_ranks);
