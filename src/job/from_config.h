/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file from_config.h
 * The job and the learning rates that a configuration means.
 *
 * Threads: pure functions.
 */
#pragma once

#include "config/config.h"
#include "job/job.h"

/** The job of a configuration whose mesh has its sizes; bf16: the device computes in it. Strings
 *  are config's. */
void tsri_job_from_config(const tsri_config *config, bool bf16, tsri_job_options *out);
/** Its learning rates. */
tsr_schedule tsri_schedule_from_config(const tsri_config *config);
