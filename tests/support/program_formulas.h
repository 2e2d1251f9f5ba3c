/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_formulas.h
 * The operations of a program by their formulas, on nodes of whole tensors; for program_truth.c.
 */
#pragma once

#include "support/program.h"

typedef enum truth_leaf {
    TRUTH_MADE = 0,
    TRUTH_DATA,
    TRUTH_PARAM,
    TRUTH_SELECT /* in[0] where rows pass over, else in[1] */
} truth_leaf;

typedef struct truth_node {
    truth_leaf leaf;
    program_op op; /* of what is made */
    int in[PROGRAM_MAX_IN];
    int in_count, param, ndim;
    int64_t shape[TSR_MAX_DIMS], count;
    uint64_t key; /* dropout's */
    int64_t first_row;
    const bool *rows; /* select: one per row of the batch; owned */
    double tokens;    /* cross entropy's divisor */
    double *value, *grad;
} truth_node;

typedef struct truth_tape {
    truth_node *nodes;
    int count, capacity;
    double rounding;
} truth_tape;

/** What a formula works on. */
typedef struct truth_operands {
    truth_node *y;
    truth_node *in[PROGRAM_MAX_IN];
    int64_t rows, cols; /* of y: cols is its last dim */
    double rounding;    /* of what is kept in f32: 2^-24, or 0 */
} truth_operands;

/** A node without value; its index in *out. */
tsr_status truth_node_add(truth_tape *tape, const int64_t *shape, int ndim, int *out);
void truth_tape_clear(truth_tape *tape);
/** value * (1 + e) with |e| <= unit, to the nearest; unit 0: as it is. */
double truth_round(double value, double unit);

/** Shape of the result, and its value. The node's op and in are set. */
tsr_status truth_forward(truth_tape *tape, const program_op *op, const int *in, int *out);
void truth_compute(truth_tape *tape, int node);
/** Adds to the gradients of the node's inputs. */
void truth_backward(truth_tape *tape, int node);
