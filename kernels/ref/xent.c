/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file xent.c
 * Vocabulary-parallel cross entropy, by definition.
 *
 * Per row: max of the logits; sum of exp(logit - max) and the label's logit - max; then
 * loss = sum of (log(sum) - target) / count over rows whose label counts, and lse = max + log(sum),
 * which is all that backward needs: dlogit = (exp(logit - lse) - [label]) * dloss / count. Logits
 * f32, bf16 or f16 [rows, cols], statistics f32 [rows], sums in double.
 */
#include "kernels/ref/ref_priv.h"

#include <math.h>

#include "kernels/kernels.h"

tsr_status tsrk_ref_check_ids(const tsrk_check_ids *args)
{
    for (int64_t i = 0; *args->found == 0.0 && i < args->n; i++) {
        const int32_t id = args->ids[i];

        if ((id < 0 || id >= args->limit) && !(args->ignores && id == args->ignore_index)) {
            args->where[0] = i;
            args->where[1] = id;
            args->where[2] = args->limit;
            args->where[3] = args->call;
            *args->found = 1.0;
        }
    }
    return TSR_OK;
}

tsr_status tsrk_ref_count_labels(const tsrk_count_labels *args)
{
    double count = args->accumulate ? *args->out : 0.0;
    for (int64_t i = 0; i < args->n; i++) {
        count += tsrk_label_counts(args->labels[i], args->ignore_index, args->limit) ? 1.0 : 0.0;
    }
    *args->out = count;
    return TSR_OK;
}

tsr_status tsrk_ref_xent_max(const tsrk_xent_max *args)
{
    for (int64_t r = 0; r < args->rows; r++) {
        double max = -(double)INFINITY;
        for (int64_t j = 0; j < args->cols; j++) {
            double x = tsrk_ref_load(args->logits, args->type, (r * args->cols) + j);
            max = x > max ? x : max;
        }
        args->row_max[r] = (float)max;
    }
    return TSR_OK;
}

tsr_status tsrk_ref_xent_sum(const tsrk_xent_sum *args)
{
    for (int64_t r = 0; r < args->rows; r++) {
        int64_t label = (int64_t)args->labels[r] - args->begin;
        double max = (double)args->row_max[r];
        double sum = 0.0;
        double target = 0.0;
        for (int64_t j = 0; j < args->cols; j++) {
            double x = tsrk_ref_load(args->logits, args->type, (r * args->cols) + j) - max;
            sum += exp(x);
            target = j == label ? x : target;
        }
        args->row_sum[r] = (float)sum;
        args->row_target[r] = (float)target;
    }
    return TSR_OK;
}

tsr_status tsrk_ref_xent_loss(const tsrk_xent_loss *args)
{
    double sum = 0.0;
    for (int64_t r = 0; r < args->rows; r++) {
        double log_sum = log((double)args->row_sum[r]);
        args->lse[r] = (float)((double)args->row_max[r] + log_sum);
        if (tsrk_label_counts(args->labels[r], args->ignore_index, args->limit)) {
            sum += log_sum - (double)args->row_target[r];
        }
    }
    *args->loss = *args->count > 0.0 ? (float)(sum / *args->count) : 0.0F;
    return TSR_OK;
}

tsr_status tsrk_ref_xent_bwd(const tsrk_xent_bwd *args)
{
    double factor = *args->count > 0.0 ? (double)*args->dloss / *args->count : 0.0;
    for (int64_t r = 0; r < args->rows; r++) {
        bool counts = tsrk_label_counts(args->labels[r], args->ignore_index, args->limit) &&
                      *args->count > 0.0;
        int64_t label = (int64_t)args->labels[r] - args->begin;
        for (int64_t j = 0; j < args->cols; j++) {
            int64_t i = (r * args->cols) + j;
            double p = exp(tsrk_ref_load(args->logits, args->type, i) - (double)args->lse[r]);
            double gradient = (p - (j == label ? 1.0 : 0.0)) * factor;
            tsrk_ref_store(args->dlogits, args->type, i, counts ? gradient : 0.0);
        }
    }
    return TSR_OK;
}

/* ---- softmax ---- */

tsr_status tsrk_ref_softmax(const tsrk_softmax *args)
{
    for (int64_t r = 0; r < args->rows; r++) {
        double max = -(double)INFINITY;
        double sum = 0.0;
        for (int64_t c = 0; c < args->cols; c++) {
            max = fmax(max, tsrk_ref_load(args->x, args->type, (r * args->cols) + c));
        }
        for (int64_t c = 0; c < args->cols; c++) {
            sum += exp(tsrk_ref_load(args->x, args->type, (r * args->cols) + c) - max);
        }
        for (int64_t c = 0; c < args->cols; c++) {
            int64_t at = (r * args->cols) + c;
            double x = tsrk_ref_load(args->x, args->type, at);
            tsrk_ref_store(args->y, args->type, at, exp(x - max) / sum);
        }
    }
    return TSR_OK;
}

tsr_status tsrk_ref_softmax_bwd(const tsrk_softmax_bwd *args)
{
    for (int64_t r = 0; r < args->rows; r++) {
        double mean = 0.0;
        for (int64_t c = 0; c < args->cols; c++) {
            int64_t at = (r * args->cols) + c;
            mean +=
                tsrk_ref_load(args->dy, args->type, at) * tsrk_ref_load(args->y, args->type, at);
        }
        for (int64_t c = 0; c < args->cols; c++) {
            int64_t at = (r * args->cols) + c;
            double dy = tsrk_ref_load(args->dy, args->type, at);
            double y = tsrk_ref_load(args->y, args->type, at);
            tsrk_ref_put(args->dx, args->type, at, y * (dy - mean), args->accumulate);
        }
    }
    return TSR_OK;
}
