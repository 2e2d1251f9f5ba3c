/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_compare.h
 * How far a run may be from the truth.
 *
 * Every tolerance is u * 64 * sqrt(terms), u one rounding of the program's types and terms the
 * length of its longest sum, plus 16 times what rounding every value did to the truth in the same
 * step. Gradients are measured by the largest entry of their parameter, at least a 64th of the
 * model's. An update turns an error of gradients into lr times it (SGD), over eps (AdamW).
 */
#pragma once

#include "support/program_run.h"

/** Compare a number of step: what is its name. */
void program_compare_number(const program *p, const program_run_options *o, int step,
                            const char *what, double have, double want, double rounded,
                            program_report *report);
/** Compare this rank's part of a parameter's gradient, or of its value after the update. */
void program_compare_piece(const program *p, const program_run_options *o, int step, int param,
                           bool is_grad, const tsr_param *piece, const float *have,
                           program_report *report);
