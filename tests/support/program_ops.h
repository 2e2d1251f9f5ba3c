/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_ops.h
 * One operation of a program as a call of the library.
 */
#pragma once

#include "support/program.h"

/** in[op->in_count]. Collective as the operation is. */
tsr_status program_op_run(tsr_tape *tape, const program_op *op, tsr_dtensor *const *in,
                          tsr_dtensor **out);
