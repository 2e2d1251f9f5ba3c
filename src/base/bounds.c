/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bounds.c
 * The table. Sizes end where products of two would leave 63 bits, layers where a dry run would
 * take minutes; an epsilon begins where a float still has all its digits.
 */
#include "base/bounds.h"

#include <math.h>

static const struct {
    double least, most;
} bounds[] = {
    [TSRI_BOUND_NONE] = {-HUGE_VAL, HUGE_VAL},
    [TSRI_BOUND_LAYERS] = {1, 1024},
    [TSRI_BOUND_DIM] = {1, 1 << 24},
    [TSRI_BOUND_HEADS] = {1, 1 << 20},
    [TSRI_BOUND_FFN] = {1, 1 << 24},
    [TSRI_BOUND_VOCAB] = {1, 1 << 30},
    [TSRI_BOUND_POSITIONS] = {1, 1 << 30},
    [TSRI_BOUND_HEAD_DIM] = {1, 1 << 20},
    [TSRI_BOUND_ROPE_THETA] = {1, 1e12},
    [TSRI_BOUND_NORM_EPS] = {1e-30, 1},
    [TSRI_BOUND_INIT_STD] = {0, 1000},
    [TSRI_BOUND_DROPOUT] = {0, 0.999},
    [TSRI_BOUND_LR] = {0, 1e6},
    [TSRI_BOUND_ADAM_EPS] = {1e-30, 1},
    [TSRI_BOUND_WEIGHT_DECAY] = {0, 1e6},
};

void tsri_bound_get(tsri_bound bound, double *least_out, double *most_out)
{
    *least_out = bounds[bound].least;
    *most_out = bounds[bound].most;
}

bool tsri_bound_allows(tsri_bound bound, double value)
{
    return value >= bounds[bound].least && value <= bounds[bound].most;
}
