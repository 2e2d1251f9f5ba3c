/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file custom_ops.h
 * Operations written as a user would: one for each kind of rule, and one by products.
 */
#pragma once

#include "tessera/custom_op.h"

/** Element by element, with a setting, from the output alone: cap * tanh(x / cap). */
tsr_status softcap(tsr_tape *tape, tsr_dtensor *x, float cap, tsr_dtensor **out);

/** On rows, with a saved value and a gain [dim]: x * gain / (1 + sum of x^2 over the last dim). */
tsr_status unit_rows(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *gain, tsr_dtensor **out);

/** A sum over the last dim, whose axes give Partial: sum of x * weight[dim]. */
tsr_status dot_rows(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *weight, tsr_dtensor **out);

/** By tsr_product_compute(): x [..., k] weight[n, k]^T, of whole weights. */
tsr_status own_linear(tsr_tape *tape, tsr_dtensor *x, tsr_dtensor *weight, tsr_dtensor **out);

/** How often a forward or backward of these ran in this process. */
int custom_ops_runs(void);
