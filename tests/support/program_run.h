/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_run.h
 * Running a program with Tessera on the ranks of a world, and comparing it with the truth.
 */
#pragma once

#include "support/program_truth.h"

/** What one rank saw. */
typedef struct program_report {
    tsr_status status; /* of the library; the text then is its message */
    bool failed, struck;
    char text[640];
    double worst; /* largest error in units of its tolerance */
} program_report;

/** What is done to a reduction, so that the comparison can be seen to notice. */
typedef enum program_sabotage {
    PROGRAM_HONEST = 0,
    PROGRAM_DROP,
    PROGRAM_DOUBLE
} program_sabotage;

typedef struct program_run_options {
    const program_truth *exact, *rounded;
    program_sabotage sabotage;
    int nth; /* which reduction, from 1 */
} program_run_options;

/** Collective over the world. The report is this rank's. */
void program_run(tsr_world *world, const program *p, const program_run_options *options,
                 program_report *out);
