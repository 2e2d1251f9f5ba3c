/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file trace.h
 * A device's ledger as a Chrome trace (chrome://tracing, Perfetto): a row per stream.
 */
#pragma once

#include "backend/recorder.h"

#include "train/text.h"

/** Begin the trace of rank in text. */
void tsri_trace_begin(tsri_text *text, int rank);
/** Add what device recorded and ran so far; times count from begin_s. */
void tsri_trace_add(tsri_text *text, const tsr_device *device, int rank, double begin_s);
void tsri_trace_end(tsri_text *text);
