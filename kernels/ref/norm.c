/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file norm.c
 * Layernorm and rmsnorm over the last dim, and their gradients.
 *
 * layernorm: xhat = (x - mean) * rstd, y = xhat * gain + bias; with g = dy * gain,
 *   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), dgain = sum dy * xhat, dbias = sum dy.
 * rmsnorm: xhat = x * rstd, y = xhat * gain; dx = rstd * (g - xhat * mean(g * xhat)),
 *   dgain = sum dy * xhat.
 * x, y, dy, dx [rows, cols]; gain, bias, their gradients [cols]; sums over cols or rows in double.
 * Saved for backward: mean and rstd [rows] f32.
 */
#include "ref_priv.h"

#include <math.h>

#include "kernels/kernels.h"

tsr_status tsrk_ref_layernorm(const tsrk_layernorm *args)
{
    const tsrk_layernorm *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t base = r * a->cols;
        double sum = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            sum += tsrk_ref_load(a->x, a->type, base + c);
        }
        double mean = a->cols > 0 ? sum / (double)a->cols : 0.0;
        double squares = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            double d = tsrk_ref_load(a->x, a->type, base + c) - mean;
            squares += d * d;
        }
        double var = a->cols > 0 ? squares / (double)a->cols : 0.0;
        double rstd = 1.0 / sqrt(var + (double)a->eps);
        for (int64_t c = 0; c < a->cols; c++) {
            double xhat = (tsrk_ref_load(a->x, a->type, base + c) - mean) * rstd;
            double y =
                xhat * tsrk_ref_load(a->gain, a->type, c) + tsrk_ref_load(a->bias, a->type, c);
            tsrk_ref_store(a->y, a->type, base + c, y);
        }
        a->mean[r] = (float)mean;
        a->rstd[r] = (float)rstd;
    }
    return TSR_OK;
}

static void layernorm_dx(const tsrk_layernorm_bwd *a)
{
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t base = r * a->cols;
        double mean = (double)a->mean[r];
        double rstd = (double)a->rstd[r];
        double sum_g = 0.0;
        double sum_gx = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            double g = tsrk_ref_load(a->dy, a->type, base + c) * tsrk_ref_load(a->gain, a->type, c);
            sum_g += g;
            sum_gx += g * (tsrk_ref_load(a->x, a->type, base + c) - mean) * rstd;
        }
        for (int64_t c = 0; c < a->cols; c++) {
            double g = tsrk_ref_load(a->dy, a->type, base + c) * tsrk_ref_load(a->gain, a->type, c);
            double xhat = (tsrk_ref_load(a->x, a->type, base + c) - mean) * rstd;
            double dx = rstd * (g - (sum_g + xhat * sum_gx) / (double)a->cols);
            tsrk_ref_put(a->dx, a->type, base + c, dx, a->accumulate_dx);
        }
    }
}

tsr_status tsrk_ref_layernorm_bwd(const tsrk_layernorm_bwd *args)
{
    const tsrk_layernorm_bwd *a = args;
    for (int64_t c = 0; c < a->cols; c++) {
        double dgain = 0.0;
        double dbias = 0.0;
        for (int64_t r = 0; r < a->rows; r++) {
            double dy = tsrk_ref_load(a->dy, a->type, r * a->cols + c);
            double x = tsrk_ref_load(a->x, a->type, r * a->cols + c);
            dgain += dy * (x - (double)a->mean[r]) * (double)a->rstd[r];
            dbias += dy;
        }
        if (a->dgain) {
            tsrk_ref_put(a->dgain, a->grad_type, c, dgain, a->accumulate_dgain);
        }
        if (a->dbias) {
            tsrk_ref_put(a->dbias, a->grad_type, c, dbias, a->accumulate_dbias);
        }
    }
    layernorm_dx(a);
    return TSR_OK;
}

tsr_status tsrk_ref_rmsnorm(const tsrk_rmsnorm *args)
{
    const tsrk_rmsnorm *a = args;
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t base = r * a->cols;
        double squares = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            double x = tsrk_ref_load(a->x, a->type, base + c);
            squares += x * x;
        }
        double mean = a->cols > 0 ? squares / (double)a->cols : 0.0;
        double rstd = 1.0 / sqrt(mean + (double)a->eps);
        for (int64_t c = 0; c < a->cols; c++) {
            double y =
                tsrk_ref_load(a->x, a->type, base + c) * rstd * tsrk_ref_load(a->gain, a->type, c);
            tsrk_ref_store(a->y, a->type, base + c, y);
        }
        a->rstd[r] = (float)rstd;
    }
    return TSR_OK;
}

static void rmsnorm_dx(const tsrk_rmsnorm_bwd *a)
{
    for (int64_t r = 0; r < a->rows; r++) {
        int64_t base = r * a->cols;
        double rstd = (double)a->rstd[r];
        double sum_gx = 0.0;
        for (int64_t c = 0; c < a->cols; c++) {
            double g = tsrk_ref_load(a->dy, a->type, base + c) * tsrk_ref_load(a->gain, a->type, c);
            sum_gx += g * tsrk_ref_load(a->x, a->type, base + c) * rstd;
        }
        for (int64_t c = 0; c < a->cols; c++) {
            double g = tsrk_ref_load(a->dy, a->type, base + c) * tsrk_ref_load(a->gain, a->type, c);
            double xhat = tsrk_ref_load(a->x, a->type, base + c) * rstd;
            double dx = rstd * (g - xhat * sum_gx / (double)a->cols);
            tsrk_ref_put(a->dx, a->type, base + c, dx, a->accumulate_dx);
        }
    }
}

tsr_status tsrk_ref_rmsnorm_bwd(const tsrk_rmsnorm_bwd *args)
{
    const tsrk_rmsnorm_bwd *a = args;
    for (int64_t c = 0; a->dgain && c < a->cols; c++) {
        double dgain = 0.0;
        for (int64_t r = 0; r < a->rows; r++) {
            double dy = tsrk_ref_load(a->dy, a->type, r * a->cols + c);
            dgain += dy * tsrk_ref_load(a->x, a->type, r * a->cols + c) * (double)a->rstd[r];
        }
        tsrk_ref_put(a->dgain, a->grad_type, c, dgain, a->accumulate_dgain);
    }
    rmsnorm_dx(a);
    return TSR_OK;
}
