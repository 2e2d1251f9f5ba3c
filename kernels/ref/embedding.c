/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file embedding.c
 * Token embedding (vocabulary-parallel) and learned positions, by definition.
 *
 * y[r] = table[id - begin] where this piece has the id, else 0; the gradient adds dy[r] to that
 * row. Position t of every sequence adds row first + t. f32, bf16 or f16, sums in double; nothing
 * is saved for backward but the ids.
 */
#include "kernels/ref/ref_priv.h"

#include "kernels/kernels.h"

/* Row of the piece that id selects, or -1. */
static int64_t local_row(int32_t id, int64_t begin, int64_t table_rows)
{
    int64_t row = (int64_t)id - begin;
    return row >= 0 && row < table_rows ? row : -1;
}

tsr_status tsrk_ref_embedding(const tsrk_embedding *args)
{
    for (int64_t r = 0; r < args->rows; r++) {
        int64_t row = local_row(args->ids[r], args->begin, args->table_rows);
        for (int64_t j = 0; j < args->cols; j++) {
            double value =
                row < 0 ? 0.0 : tsrk_ref_load(args->table, args->type, (row * args->cols) + j);
            tsrk_ref_store(args->y, args->type, (r * args->cols) + j, value);
        }
    }
    return TSR_OK;
}

/* Sum of column j of dy over the rows whose id selects row of the piece. */
static double sum_of_row(const tsrk_embedding_bwd *args, int64_t row, int64_t j)
{
    double sum = 0.0;
    for (int64_t r = 0; r < args->rows; r++) {
        if (local_row(args->ids[r], args->begin, args->table_rows) == row) {
            sum += tsrk_ref_load(args->dy, args->type, (r * args->cols) + j);
        }
    }
    return sum;
}

tsr_status tsrk_ref_embedding_bwd(const tsrk_embedding_bwd *args)
{
    for (int64_t row = 0; row < args->table_rows; row++) {
        for (int64_t j = 0; j < args->cols; j++) {
            tsrk_ref_put(args->dtable, args->grad_type, (row * args->cols) + j,
                         sum_of_row(args, row, j), args->accumulate);
        }
    }
    return TSR_OK;
}

tsr_status tsrk_ref_add_position(const tsrk_add_position *args)
{
    for (int64_t b = 0; b < args->batch; b++) {
        for (int64_t t = 0; t < args->seq; t++) {
            for (int64_t j = 0; j < args->cols; j++) {
                int64_t i = (((b * args->seq) + t) * args->cols) + j;
                int64_t p = ((args->first + t) * args->cols) + j;
                tsrk_ref_store(args->y, args->type, i,
                               tsrk_ref_load(args->x, args->type, i) +
                                   tsrk_ref_load(args->table, args->type, p));
            }
        }
    }
    return TSR_OK;
}

tsr_status tsrk_ref_add_position_bwd(const tsrk_add_position_bwd *args)
{
    for (int64_t row = 0; row < args->table_rows; row++) {
        int64_t t = row - args->first;
        for (int64_t j = 0; j < args->cols; j++) {
            double sum = 0.0;
            for (int64_t b = 0; b < args->batch && t >= 0 && t < args->seq; b++) {
                sum +=
                    tsrk_ref_load(args->dy, args->type, (((b * args->seq) + t) * args->cols) + j);
            }
            tsrk_ref_put(args->dtable, args->grad_type, (row * args->cols) + j, sum,
                         args->accumulate);
        }
    }
    return TSR_OK;
}
