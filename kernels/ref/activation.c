/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file activation.c
 * Functions of one number and silu(gate) * up, elementwise over n, and their gradients.
 *
 * gelu(x) = 0.5 x (1 + tanh(u)), u = k (x + 0.044715 x^3), k = sqrt(2 / pi);
 * gelu'(x) = 0.5 (1 + t) + 0.5 x (1 - t^2) k (1 + 3 * 0.044715 x^2), t = tanh(u).
 * tanh' = 1 - y^2; sigmoid' = y (1 - y); relu' = 1 where y > 0, else 0.
 * silu(z) = z s, s = 1 / (1 + exp(-z)); silu'(z) = s (1 + z (1 - s)).
 * Nothing is saved but inputs or outputs.
 */
#include "ref_priv.h"

#include <math.h>

#include "kernels/kernels.h"

#define SQRT_2_OVER_PI 0.79788456080286535588
#define GELU_CUBIC     0.044715

static double gelu_slope(double x)
{
    double t = tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
    double du = SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
}

static double value_of(tsrk_function function, double x)
{
    switch ((int)function) {
    case TSRK_GELU:
        return 0.5 * x * (1.0 + tanh(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
    case TSRK_RELU:
        return x <= 0.0 ? 0.0 : x;
    case TSRK_TANH:
        return tanh(x);
    default:
        return 1.0 / (1.0 + exp(-x));
    }
}

/* from: x of gelu, else y. */
static double slope_of(tsrk_function function, double from)
{
    switch ((int)function) {
    case TSRK_GELU:
        return gelu_slope(from);
    case TSRK_RELU:
        return from <= 0.0 ? 0.0 : 1.0;
    case TSRK_TANH:
        return 1.0 - from * from;
    default:
        return from * (1.0 - from);
    }
}

tsr_status tsrk_ref_pointwise(const tsrk_pointwise *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        double x = tsrk_ref_load(args->x, args->type, i);
        tsrk_ref_store(args->y, args->type, i, value_of(args->function, x));
    }
    return TSR_OK;
}

tsr_status tsrk_ref_pointwise_bwd(const tsrk_pointwise_bwd *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        double dy = tsrk_ref_load(args->dy, args->type, i);
        double slope = slope_of(args->function, tsrk_ref_load(args->from, args->type, i));
        tsrk_ref_put(args->dx, args->type, i, dy * slope, args->accumulate);
    }
    return TSR_OK;
}

tsr_status tsrk_ref_silu_mul(const tsrk_silu_mul *args)
{
    for (int64_t i = 0; i < args->n; i++) {
        double z = tsrk_ref_load(args->gate, args->type, i);
        double up = tsrk_ref_load(args->up, args->type, i);
        tsrk_ref_store(args->y, args->type, i, z / (1.0 + exp(-z)) * up);
    }
    return TSR_OK;
}

tsr_status tsrk_ref_silu_mul_bwd(const tsrk_silu_mul_bwd *args)
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
    return TSR_OK;
}
