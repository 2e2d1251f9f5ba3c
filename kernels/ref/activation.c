/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file activation.c
 * gelu (tanh form) and silu(gate) * up, elementwise over n, and their gradients.
 *
 * gelu(x) = 0.5 x (1 + tanh(u)), u = k (x + 0.044715 x^3), k = sqrt(2 / pi);
 * gelu'(x) = 0.5 (1 + t) + 0.5 x (1 - t^2) k (1 + 3 * 0.044715 x^2), t = tanh(u).
 * silu(z) = z s, s = 1 / (1 + exp(-z)); silu'(z) = s (1 + z (1 - s)).
 * Nothing is saved but the inputs.
 */
#include "ref_priv.h"

#include <math.h>

#include "kernels/kernels.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define GELU_CUBIC     0.044715

void tsrk_ref_gelu(const tsrk_gelu *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        double x = tsrk_ref_load(args->x, args->type, i);
        double u = SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x);
        tsrk_ref_store(args->y, args->type, i, 0.5 * x * (1.0 + tanh(u)));
    }
}

void tsrk_ref_gelu_bwd(const tsrk_gelu_bwd *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        double x = tsrk_ref_load(args->x, args->type, i);
        double t = tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
        double du = SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x);
        double slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
        double dy = tsrk_ref_load(args->dy, args->type, i);
        tsrk_ref_put(args->dx, args->type, i, dy * slope, args->accumulate);
    }
}

void tsrk_ref_silu_mul(const tsrk_silu_mul *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        double z = tsrk_ref_load(args->gate, args->type, i);
        double up = tsrk_ref_load(args->up, args->type, i);
        tsrk_ref_store(args->y, args->type, i, z / (1.0 + exp(-z)) * up);
    }
}

void tsrk_ref_silu_mul_bwd(const tsrk_silu_mul_bwd *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        double z = tsrk_ref_load(args->gate, args->type, i);
        double up = tsrk_ref_load(args->up, args->type, i);
        double dy = tsrk_ref_load(args->dy, args->type, i);
        double s = 1.0 / (1.0 + exp(-z));
        double slope = s * (1.0 + z * (1.0 - s));
        tsrk_ref_put(args->dgate, args->type, i, dy * up * slope, args->accumulate_dgate);
        tsrk_ref_put(args->dup, args->type, i, dy * z * s, args->accumulate_dup);
    }
}
