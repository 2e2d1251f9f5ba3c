/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_cases.h
 * One case per operation: inputs, how to call it, and running it through the whole tape.
 *
 * Extents divide by nothing in particular, except heads. Used on one rank against central
 * differences, and on ranks against the same case with everything replicated.
 */
#pragma once

#include "support/tape_rig.h"

#define OP_CASE_MAX_IN       3
#define OP_CASE_MAX_ELEMENTS 512

typedef enum op_input_kind {
    OP_INPUT_VALUE = 0, /* a value of the tape: a leaf times 1 */
    OP_INPUT_PARAM,     /* a parameter itself */
    OP_INPUT_IDS        /* I32 */
} op_input_kind;

typedef struct op_input {
    op_input_kind kind;
    int ndim;
    int64_t shape[4];
} op_input;

typedef struct op_case {
    const char *name;
    tsr_status (*build)(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out);
    op_input in[OP_CASE_MAX_IN];
    int in_count;
    bool is_loss; /* the result is the loss itself */
} op_case;

extern const op_case op_cases[];
extern const int op_case_count;

/** What one run gave; arrays of OP_CASE_MAX_ELEMENTS. */
typedef struct op_result {
    double loss;
    double y[OP_CASE_MAX_ELEMENTS];
    int64_t y_count;
    double grad[OP_CASE_MAX_IN][OP_CASE_MAX_ELEMENTS];
} op_result;

int64_t op_input_count(const op_input *in);
/** The values of input i of a case: numbers in (-1, 1), or ids. */
void op_case_values(const op_case *c, int i, float *values, int32_t *ids);
/**
 * Run case c in one step, inputs laid out by layouts[in_count], values[i] (floats) or ids as given
 * by op_case_values. A rule's refusal comes back as its status, with the step ended.
 *
 * @param gradients  Play backward too, and read the gradients.
 */
tsr_status op_case_run(rig *r, const op_case *c, const tsr_layout *layouts, float *const *values,
                       bool gradients, op_result *out);
