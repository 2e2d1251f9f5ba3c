/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hideable.h
 * How much of a step's communication compute could hide, by the order of its calls.
 *
 * A collective on a stream of its own can be hidden by the kernels that the compute stream gets
 * between the collective's call and the first wait of compute for it. A second of compute hides a
 * second of one collective. What begins when nothing is left to compute, or is waited for at once,
 * cannot be hidden by any overlap.
 */
#pragma once

#include "backend/recorder.h"

/** Local. Most seconds of the collectives among entries[count], a step's with their times, that its
 *  kernels on the compute stream can hide. */
tsr_status tsri_hideable_s(const tsri_entry *entries, int count, double *out);
