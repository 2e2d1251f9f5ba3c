/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_truth.h
 * What a program has to compute: whole tensors in double, with a reverse mode of its own.
 *
 * Nothing of the library takes part but the random numbers (initial values and dropout masks are
 * defined by them) and the arithmetic of layouts, which says whose rows a rank passes over.
 *
 * A second run rounds every value and every gradient to the program's types. What that changes is
 * the measure of what rounding may do here, step by step, conditioning included.
 */
#pragma once

#include "support/program.h"

typedef struct program_truth {
    double loss[PROGRAM_MAX_STEPS], norm[PROGRAM_MAX_STEPS][2];
    double tokens[PROGRAM_MAX_STEPS];
    /* After backward of a step, and after its update: whole tensors; NULL where there is none. */
    double *grad[PROGRAM_MAX_STEPS][PROGRAM_MAX_PARAMS];
    double *value[PROGRAM_MAX_STEPS][PROGRAM_MAX_PARAMS];
    bool finite;
} program_truth;

/** rounding: 0 for none, or the relative error of one rounding of values (2^-24, 2^-8) and of
 *  sums that travel. */
tsr_status program_truth_run(const program *p, double rounding, double sum_rounding,
                             program_truth *out);
void program_truth_free(program_truth *truth);
