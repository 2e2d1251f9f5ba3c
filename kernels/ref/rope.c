/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file rope.c
 * Rotary embedding, half-split, and its table of cosines and sines.
 *
 * x, y [batch, seq, heads, dim]; angle = (first + t) * theta^(-2i/dim) for i < dim/2.
 * The gradient is the inverse turn. Angles, cosines and sines in double; a table rounds them to
 * f32.
 */
#include "ref_priv.h"

#include <math.h>

#include "kernels/kernels.h"

static double rope_angle(int64_t position, int64_t i, int64_t dim, double theta)
{
    return (double)position * pow(theta, -2.0 * (double)i / (double)dim);
}

tsr_status tsrk_ref_rope_table(const tsrk_rope_table *args)
{
    int64_t half = args->dim / 2;
    for (int64_t t = 0; t < args->seq; t++) {
        for (int64_t i = 0; i < half; i++) {
            double angle = rope_angle(args->first + t, i, args->dim, args->theta);
            args->table[2 * (t * half + i)] = (float)cos(angle);
            args->table[2 * (t * half + i) + 1] = (float)sin(angle);
        }
    }
    return TSR_OK;
}

static void rope_turn(const tsrk_rope *a, int64_t b, int64_t t, int64_t i)
{
    int64_t half = a->dim / 2;
    double cosine;
    double sine;
    if (a->table) {
        cosine = (double)a->table[2 * (t * half + i)];
        sine = (double)a->table[2 * (t * half + i) + 1];
    } else {
        double angle = rope_angle(a->first + t, i, a->dim, a->theta);
        cosine = cos(angle);
        sine = sin(angle);
    }
    if (a->inverse) {
        sine = -sine;
    }
    for (int64_t h = 0; h < a->heads; h++) {
        int64_t low = ((b * a->seq + t) * a->heads + h) * a->dim + i;
        int64_t high = low + half;
        double x0 = tsrk_ref_load(a->x, a->type, low);
        double x1 = tsrk_ref_load(a->x, a->type, high);
        tsrk_ref_put(a->y, a->type, low, x0 * cosine - x1 * sine, a->accumulate);
        tsrk_ref_put(a->y, a->type, high, x1 * cosine + x0 * sine, a->accumulate);
    }
}

tsr_status tsrk_ref_rope(const tsrk_rope *args)
{
    for (int64_t b = 0; b < args->batch; b++) {
        for (int64_t t = 0; t < args->seq; t++) {
            for (int64_t i = 0; i < args->dim / 2; i++) {
                rope_turn(args, b, t, i);
            }
        }
    }
    return TSR_OK;
}
