/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file embedding.c
 * Token embedding (vocabulary-parallel) and learned positions.
 *
 * Forward copies rows. The gradient of the table is a scatter-add in which ids repeat. A f32 table
 * is added to in place: threads share out columns, not rows, so every element sees its rows in
 * order. A bf16 or f16 table would round at each repeat, so there the first row with an id gathers
 * all of them in f32 and writes once; a thread takes rows, and an id belongs to whoever has its
 * first row. Moves 2 rows * cols elements, plus the table once when not accumulating.
 */
#include "kernels/cpu/cpu_priv.h"

/* Columns that a thread takes: long enough for SIMD, short enough to share out small models. */
#define COLS 128

/* Row of the piece that id selects, or -1. */
static int64_t local_row(int32_t id, int64_t begin, int64_t table_rows)
{
    int64_t row = (int64_t)id - begin;
    return row >= 0 && row < table_rows ? row : -1;
}

static size_t bytes_of(tsr_dtype type, int64_t count)
{
    return (size_t)count * tsrk_cpu_size(type);
}

static int64_t cols_left(int64_t cols, int64_t col)
{
    return cols - col < COLS ? cols - col : COLS;
}

/* Contiguous rows [rows, cols] = 0. */
static void zero_rows(const tsrk_context *context, void *array, tsr_dtype type, int64_t rows,
                      int64_t cols)
{
#pragma omp parallel for num_threads(tsrk_cpu_team(context, rows *cols)) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        memset(tsrk_cpu_at_mut(array, type, i * cols), 0, bytes_of(type, cols));
    }
}

tsr_status tsrk_cpu_embedding(const tsrk_embedding *args, const tsrk_context *context)
{
    size_t bytes = bytes_of(args->type, args->cols);
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->rows * args->cols)) \
    schedule(static)
    for (int64_t r = 0; r < args->rows; r++) {
        int64_t row = local_row(args->ids[r], args->begin, args->table_rows);
        void *out = tsrk_cpu_at_mut(args->y, args->type, r * args->cols);
        if (row < 0) {
            memset(out, 0, bytes);
        } else {
            memcpy(out, tsrk_cpu_at(args->table, args->type, row * args->cols), bytes);
        }
    }
    return TSR_OK;
}

/* Add columns col .. col + cols of every row to a f32 table. */
static void scatter_columns(const tsrk_embedding_bwd *args, int64_t col, int64_t cols)
{
    float buffer[COLS];
    for (int64_t r = 0; r < args->rows; r++) {
        int64_t row = local_row(args->ids[r], args->begin, args->table_rows);
        if (row >= 0) {
            const float *dy =
                tsrk_cpu_view(args->dy, args->type, (r * args->cols) + col, cols, buffer);
            tsrk_cpu_store_add(args->dtable, TSR_F32, (row * args->cols) + col, dy, cols);
        }
    }
}

/* Whether ids [begin, end) hold id. */
static bool holds(const int32_t *ids, int64_t begin, int64_t end, int32_t id)
{
    int64_t found = 0;
#pragma omp simd reduction(+ : found)
    for (int64_t i = begin; i < end; i++) {
        found += ids[i] == id ? 1 : 0;
    }
    return found != 0;
}

/* If row first is the first with its id, add the sum of all rows with that id to the table. */
static void gather_rows(const tsrk_embedding_bwd *args, int64_t first)
{
    int32_t id = args->ids[first];
    int64_t row = local_row(id, args->begin, args->table_rows);
    if (row < 0 || holds(args->ids, 0, first, id)) {
        return;
    }
    for (int64_t col = 0; col < args->cols; col += COLS) {
        float sum[COLS] = {0.0F};
        float buffer[COLS];
        int64_t cols = cols_left(args->cols, col);
        for (int64_t r = first; r < args->rows; r++) {
            if (args->ids[r] == id) {
                const float *dy =
                    tsrk_cpu_view(args->dy, args->type, (r * args->cols) + col, cols, buffer);
                tsrk_cpu_store_add(sum, TSR_F32, 0, dy, cols);
            }
        }
        tsrk_cpu_store_add(args->dtable, args->grad_type, (row * args->cols) + col, sum, cols);
    }
}

tsr_status tsrk_cpu_embedding_bwd(const tsrk_embedding_bwd *args, const tsrk_context *context)
{
    if (!args->accumulate) {
        zero_rows(context, args->dtable, args->grad_type, args->table_rows, args->cols);
    }
    if (tsrk_cpu_is_half(args->grad_type)) {
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->rows * args->cols)) \
    schedule(dynamic, 16)
        for (int64_t r = 0; r < args->rows; r++) {
            gather_rows(args, r);
        }
        return TSR_OK;
    }
    int64_t blocks = (args->cols + COLS - 1) / COLS;
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->rows * args->cols)) \
    schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        scatter_columns(args, i * COLS, cols_left(args->cols, i * COLS));
    }
    return TSR_OK;
}

/* y [cols] = x + p. */
static void add_row(const tsrk_add_position *args, int64_t i, int64_t p)
{
    for (int64_t col = 0; col < args->cols; col += COLS) {
        float sum[COLS];
        float buffer[COLS];
        int64_t cols = cols_left(args->cols, col);
        tsrk_cpu_load(sum, args->x, args->type, i + col, cols);
        tsrk_cpu_store_add(sum, TSR_F32, 0,
                           tsrk_cpu_view(args->table, args->type, p + col, cols, buffer), cols);
        tsrk_cpu_store(args->y, args->type, i + col, sum, cols);
    }
}

tsr_status tsrk_cpu_add_position(const tsrk_add_position *args, const tsrk_context *context)
{
    int64_t rows = args->batch * args->seq;
#pragma omp parallel for num_threads(tsrk_cpu_team(context, rows * args->cols)) schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        add_row(args, i * args->cols, (args->first + (i % args->seq)) * args->cols);
    }
    return TSR_OK;
}

/* Row first + t of dtable (+)= sum over the batch, in its order. */
static void sum_position(const tsrk_add_position_bwd *args, int64_t t)
{
    for (int64_t col = 0; col < args->cols; col += COLS) {
        float sum[COLS] = {0.0F};
        float buffer[COLS];
        int64_t cols = cols_left(args->cols, col);
        for (int64_t b = 0; b < args->batch; b++) {
            int64_t i = (((b * args->seq) + t) * args->cols) + col;
            tsrk_cpu_store_add(sum, TSR_F32, 0,
                               tsrk_cpu_view(args->dy, args->type, i, cols, buffer), cols);
        }
        int64_t out = ((args->first + t) * args->cols) + col;
        tsrk_cpu_store_add(args->dtable, args->grad_type, out, sum, cols);
    }
}

tsr_status tsrk_cpu_add_position_bwd(const tsrk_add_position_bwd *args, const tsrk_context *context)
{
    if (!args->accumulate) {
        zero_rows(context, args->dtable, args->grad_type, args->table_rows, args->cols);
    }
#pragma omp parallel for num_threads(tsrk_cpu_team(context, args->batch * args->seq * args->cols))
    for (int64_t t = 0; t < args->seq; t++) {
        sum_position(args, t);
    }
    return TSR_OK;
}
