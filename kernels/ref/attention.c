/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file attention.c
 * Attention with grouped queries, by definition.
 *
 * s_ij = scale q_i . k_j for the keys j that i sees; lse_i = log sum_j exp(s_ij); p_ij = exp(s_ij -
 * lse_i); out_i = sum_j p_ij v_j. Backward, from out and lse alone (Dao et al. 2022): D_i = dout_i
 * . out_i; ds_ij = p_ij (dout_i . v_j - D_i); dv_j = sum p_ij dout_i; dq_i = scale sum_j ds_ij k_j;
 * dk_j = scale sum ds_ij q_i, sums of dk and dv over i and over the query heads that share the kv
 * head. Sums in double. Nothing may be allocated, so scores are computed anew for every LANES
 * elements of a row.
 */
#include "kernels/ref/ref_priv.h"

#include <math.h>

#include "kernels/kernels.h"

#define LANES 64

/* Dot product of rows ia of a and ib of b (element offsets), dim long. */
static double dot(const void *a, int64_t ia, const void *b, int64_t ib, int64_t dim, tsr_dtype type)
{
    double sum = 0.0;
    for (int64_t d = 0; d < dim; d++) {
        sum += tsrk_ref_load(a, type, ia + d) * tsrk_ref_load(b, type, ib + d);
    }
    return sum;
}

/* sum [LANES] += factor * x[i .. i + n). */
static void axpy(double *sum, double factor, const void *x, tsr_dtype type, int64_t i, int64_t n)
{
    for (int64_t d = 0; d < n; d++) {
        sum[d] += factor * tsrk_ref_load(x, type, i + d);
    }
}

static void write_row(void *out, tsr_dtype type, int64_t i, const double *sum, int64_t n,
                      double factor)
{
    for (int64_t d = 0; d < n; d++) {
        tsrk_ref_store(out, type, i + d, factor * sum[d]);
    }
}

/* Element offset of row (b, t, h) in [batch, seq, heads, dim]. */
static int64_t row_of(int64_t b, int64_t t, int64_t h, int64_t seq, int64_t heads, int64_t dim)
{
    return ((((b * seq) + t) * heads) + h) * dim;
}

static int64_t lanes_left(int64_t dim, int64_t d)
{
    return dim - d < LANES ? dim - d : LANES;
}

/* Query row t of head h in batch entry b. */
static void forward_row(const tsrk_attention *args, int64_t b, int64_t h, int64_t t)
{
    int64_t kv_head = h / (args->heads / args->kv_heads);
    int64_t iq = row_of(b, t, h, args->seq, args->heads, args->dim);
    int64_t keys = tsrk_visible_keys(args->seq, args->kv_seq, args->full, t);
    double scale = (double)args->scale;
    double max = -(double)INFINITY;
    double sum = 0.0;
    for (int64_t j = 0; j < keys; j++) {
        int64_t ik = row_of(b, j, kv_head, args->kv_seq, args->kv_heads, args->dim);
        double s = scale * dot(args->q, iq, args->k, ik, args->dim, args->type);
        if (s > max) {
            sum = sum * exp(max - s);
            max = s;
        }
        sum += exp(s - max);
    }
    double lse = max + log(sum);
    args->lse[(((b * args->heads) + h) * args->seq) + t] = (float)lse;
    for (int64_t d = 0; d < args->dim; d += LANES) {
        double acc[LANES] = {0.0};
        int64_t n = lanes_left(args->dim, d);
        for (int64_t j = 0; j < keys; j++) {
            int64_t ik = row_of(b, j, kv_head, args->kv_seq, args->kv_heads, args->dim);
            double s = scale * dot(args->q, iq, args->k, ik, args->dim, args->type);
            axpy(acc, exp(s - lse), args->v, args->type, ik + d, n);
        }
        write_row(args->out, args->type, iq + d, acc, n, 1.0);
    }
}

tsr_status tsrk_ref_attention(const tsrk_attention *args)
{
    for (int64_t b = 0; b < args->batch; b++) {
        for (int64_t h = 0; h < args->heads; h++) {
            for (int64_t t = 0; t < args->seq; t++) {
                forward_row(args, b, h, t);
            }
        }
    }
    return TSR_OK;
}

/* p_ij and ds_ij of the query at row iq, which sees keys, and the key at row ik. Where it sees one
 * ds is 0 exactly, where the rounding of out would be left. */
static void probability(const tsrk_attention_bwd *args, int64_t keys, double lse, int64_t iq,
                        int64_t ik, double *p_out, double *ds_out)
{
    double s = (double)args->scale * dot(args->q, iq, args->k, ik, args->dim, args->type);
    double dp = dot(args->dout, iq, args->v, ik, args->dim, args->type);
    double delta = dot(args->dout, iq, args->out, iq, args->dim, args->type);
    *p_out = exp(s - lse);
    *ds_out = keys == 1 ? 0.0 : *p_out * (dp - delta);
}

static void backward_query(const tsrk_attention_bwd *args, int64_t b, int64_t h, int64_t t)
{
    int64_t kv_head = h / (args->heads / args->kv_heads);
    int64_t iq = row_of(b, t, h, args->seq, args->heads, args->dim);
    int64_t keys = tsrk_visible_keys(args->seq, args->kv_seq, args->full, t);
    double lse = (double)args->lse[(((b * args->heads) + h) * args->seq) + t];
    for (int64_t d = 0; d < args->dim; d += LANES) {
        double acc[LANES] = {0.0};
        int64_t n = lanes_left(args->dim, d);
        for (int64_t j = 0; j < keys; j++) {
            int64_t ik = row_of(b, j, kv_head, args->kv_seq, args->kv_heads, args->dim);
            double p;
            double ds;
            probability(args, keys, lse, iq, ik, &p, &ds);
            axpy(acc, ds, args->k, args->type, ik + d, n);
        }
        write_row(args->dq, args->type, iq + d, acc, n, (double)args->scale);
    }
}

/* Lanes d .. d + n of dk and dv of row j of kv head g, summed over the queries that see it. */
static void backward_key_lanes(const tsrk_attention_bwd *args, int64_t b, int64_t g, int64_t j,
                               int64_t d, int64_t n)
{
    double dk[LANES] = {0.0};
    double dv[LANES] = {0.0};
    int64_t group = args->heads / args->kv_heads;
    int64_t ik = row_of(b, j, g, args->kv_seq, args->kv_heads, args->dim);
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        for (int64_t t = 0; t < args->seq; t++) {
            int64_t keys = tsrk_visible_keys(args->seq, args->kv_seq, args->full, t);
            if (j >= keys) {
                continue;
            }
            int64_t iq = row_of(b, t, h, args->seq, args->heads, args->dim);
            double lse = (double)args->lse[(((b * args->heads) + h) * args->seq) + t];
            double p;
            double ds;
            probability(args, keys, lse, iq, ik, &p, &ds);
            axpy(dk, ds, args->q, args->type, iq + d, n);
            axpy(dv, p, args->dout, args->type, iq + d, n);
        }
    }
    write_row(args->dk, args->type, ik + d, dk, n, (double)args->scale);
    write_row(args->dv, args->type, ik + d, dv, n, 1.0);
}

static void backward_key(const tsrk_attention_bwd *args, int64_t b, int64_t g, int64_t j)
{
    for (int64_t d = 0; d < args->dim; d += LANES) {
        backward_key_lanes(args, b, g, j, d, lanes_left(args->dim, d));
    }
}

tsr_status tsrk_ref_attention_bwd(const tsrk_attention_bwd *args)
{
    for (int64_t b = 0; b < args->batch; b++) {
        for (int64_t t = 0; t < args->seq; t++) {
            for (int64_t h = 0; h < args->heads; h++) {
                backward_query(args, b, h, t);
            }
        }
        for (int64_t j = 0; j < args->kv_seq; j++) {
            for (int64_t g = 0; g < args->kv_heads; g++) {
                backward_key(args, b, g, j);
            }
        }
    }
    return TSR_OK;
}
