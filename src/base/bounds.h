/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bounds.h
 * Which values a setting may have, whoever gives it: a configuration, a word of the command line,
 * or a file of somebody else's.
 */
#pragma once

#include <stdbool.h>

typedef enum tsri_bound {
    TSRI_BOUND_NONE = 0,
    TSRI_BOUND_LAYERS,
    TSRI_BOUND_DIM,
    TSRI_BOUND_HEADS,
    TSRI_BOUND_FFN,
    TSRI_BOUND_VOCAB,
    TSRI_BOUND_POSITIONS,
    TSRI_BOUND_HEAD_DIM,
    TSRI_BOUND_ROPE_THETA,
    TSRI_BOUND_NORM_EPS,
    TSRI_BOUND_INIT_STD,
    TSRI_BOUND_DROPOUT,
    TSRI_BOUND_LR,
    TSRI_BOUND_ADAM_EPS,
    TSRI_BOUND_WEIGHT_DECAY
} tsri_bound;

/** The least and the most that bound allows, both of which it allows. */
void tsri_bound_get(tsri_bound bound, double *least_out, double *most_out);
/** Does bound allow value? What is no number it never does. */
bool tsri_bound_allows(tsri_bound bound, double value);
