/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file trace.h
 * A device's ledger as a Chrome trace (chrome://tracing, Perfetto): a row per stream.
 */
#pragma once

#include "backend/recorder.h"
#include "base/growing_text.h"

/** Begin the trace of rank in text. */
void tsri_trace_begin(tsri_text *text, int rank);
/** Add the operations among entries[count] that ran at begin_s or later; times count from it. */
void tsri_trace_add(tsri_text *text, const tsri_entry *entries, int count, int rank,
                    double begin_s);
void tsri_trace_end(tsri_text *text);
