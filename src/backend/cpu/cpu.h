/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cpu.h
 * The cpu backend's table for the machine at hand.
 *
 * Threads: pure function.
 */
#pragma once

#include "backend/backend.h"

/** tsri_backend_cpu, with TSR_CAP_BF16 where this processor multiplies bf16 in hardware. */
const tsr_backend *tsri_cpu_backend(void);
