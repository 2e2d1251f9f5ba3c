/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_formulas_more.h
 * Half of the formulas; for program_formulas.c.
 */
#pragma once

#include "support/program_formulas.h"

/** Log of the sum of exp of x [n]. */
double truth_log_sum(const double *x, int64_t n);
/** Softmax, multiply, mean, slice, concat, matmul, cross_entropy and square_sum. */
void truth_more(const truth_operands *o, bool back);
