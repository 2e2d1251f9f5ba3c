/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_embedding.c
 * Embedding and learned positions: cpu against the definition, pieces of a vocabulary against the
 * whole, gradients as adjoints of the forward, and the same bits for any number of threads.
 */
#include <math.h>
#include <omp.h>

#include "kernels/kernels.h"
#include "support/array.h"
#include "support/tsr_test.h"

static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F16};

/* Rows, cols, rows of the table, first id of the piece. Few ids make many repeats. */
static const int64_t sizes[][4] = {{0, 4, 5, 0},    {3, 0, 5, 0},     {4, 3, 0, 2},
                                   {1, 1, 1, 0},    {50, 7, 9, 3},    {64, 127, 20, 0},
                                   {65, 128, 5, 1}, {33, 129, 40, 9}, {300, 260, 7, 0}};
#define SIZE_COUNT ((int)(sizeof sizes / sizeof sizes[0]))

/* Ids from 0 to 5 beyond the piece, so that some lie before it and some after. */
static int32_t *make_ids(int64_t rows, int64_t begin, int64_t table_rows)
{
    int32_t *ids = tsr_array_new(rows, TSR_I32);
    double *draw = tsr_array_random(rows, TSR_F64, 1.0, 11);
    for (int64_t i = 0; i < rows; i++) {
        ids[i] = (int32_t)(fabs(draw[i]) * (double)(begin + table_rows + 5));
    }
    tsr_array_free(draw);
    return ids;
}

static void forward_copies_rows(void)
{
    for (int i = 0; i < 3 * SIZE_COUNT; i++) {
        const int64_t *s = sizes[i / 3];
        tsr_dtype type = types[i % 3];
        void *table = tsr_array_random(s[2] * s[1], type, 1.0, 1);
        int32_t *ids = make_ids(s[0], s[3], s[2]);
        tsrk_embedding want = {.ids = ids,
                               .table = table,
                               .rows = s[0],
                               .cols = s[1],
                               .begin = s[3],
                               .table_rows = s[2],
                               .type = type};
        tsrk_embedding got = want;
        want.y = tsr_array_random(s[0] * s[1], type, 1.0, 2);
        got.y = tsr_array_random(s[0] * s[1], type, 1.0, 3);
        tsrk_ref_embedding(&want);
        tsrk_cpu_embedding(&got);
        CHECK(tsr_array_same(got.y, want.y, s[0] * s[1], type));
        tsr_array_free(table);
        tsr_array_free(ids);
        tsr_array_free(want.y);
        tsr_array_free(got.y);
    }
}

/* Rows outside a piece are 0, so the pieces' outputs add up to the whole table's. */
static void pieces_add_up(void)
{
    const int64_t rows = 40;
    const int64_t cols = 9;
    const int64_t vocab = 23;
    const int64_t split = 10;
    float *table = tsr_array_random(vocab * cols, TSR_F32, 1.0, 4);
    float *y = tsr_array_new(3 * rows * cols, TSR_F32);
    int32_t *ids = make_ids(rows, 0, vocab - 5);
    tsrk_embedding whole = {.ids = ids, .rows = rows, .cols = cols, .type = TSR_F32};
    int64_t begin[] = {0, 0, split};
    int64_t end[] = {vocab, split, vocab};
    for (int i = 0; i < 3; i++) {
        tsrk_embedding piece = whole;
        piece.begin = begin[i];
        piece.table_rows = end[i] - begin[i];
        piece.table = table + (begin[i] * cols);
        piece.y = y + (i * rows * cols);
        tsrk_cpu_embedding(&piece);
    }
    int wrong = 0;
    for (int i = 0; i < rows * cols; i++) {
        wrong += y[i] != y[(rows * cols) + i] + y[(2 * rows * cols) + i];
    }
    CHECK_EQ(wrong, 0);
    tsr_array_free(table);
    tsr_array_free(y);
    tsr_array_free(ids);
}

typedef struct backward {
    tsrk_embedding_bwd args;
    int32_t *ids;
    void *dy;
    int64_t count; /* of the table */
} backward;

static backward backward_make(int i)
{
    const int64_t *s = sizes[i / 18];
    tsrk_embedding_bwd args = {.rows = s[0],
                               .cols = s[1],
                               .begin = s[3],
                               .table_rows = s[2],
                               .type = types[i % 3],
                               .grad_type = types[i / 3 % 3],
                               .accumulate = i / 9 % 2 != 0};
    backward out = {.args = args, .count = s[2] * s[1]};
    out.args.ids = out.ids = make_ids(s[0], s[3], s[2]);
    out.args.dy = out.dy = tsr_array_random(s[0] * s[1], args.type, 1.0, 5);
    out.args.dtable = tsr_array_random(out.count, args.grad_type, 1.0, 6);
    return out;
}

static void backward_drop(backward *b)
{
    tsr_array_free(b->ids);
    tsr_array_free(b->dy);
    tsr_array_free(b->args.dtable);
}

/* Numbers below 1 are added up in f32: as many roundings, of sums below their number. */
static void backward_adds_rows(void)
{
    for (int i = 0; i < 18 * SIZE_COUNT; i++) {
        backward want = backward_make(i);
        backward got = backward_make(i);
        tsrk_ref_embedding_bwd(&want.args);
        tsrk_cpu_embedding_bwd(&got.args);
        /* An id gets some rows / ids of them. */
        double terms = 1.0 + ((double)want.args.rows / (double)(want.args.table_rows + 5));
        CHECK(tsr_array_near(got.args.dtable, want.args.dtable, want.count, want.args.grad_type,
                             4.0 * terms, 4.0 * terms));
        backward_drop(&want);
        backward_drop(&got);
    }
}

static void threads_do_not_change_bits(void)
{
    int before = omp_get_max_threads();
    for (int i = 18 * (SIZE_COUNT - 1); i < 18 * SIZE_COUNT; i++) {
        backward one = backward_make(i);
        backward more = backward_make(i);
        omp_set_num_threads(1);
        tsrk_cpu_embedding_bwd(&one.args);
        omp_set_num_threads(3);
        tsrk_cpu_embedding_bwd(&more.args);
        CHECK(tsr_array_same(more.args.dtable, one.args.dtable, one.count, one.args.grad_type));
        backward_drop(&one);
        backward_drop(&more);
    }
    omp_set_num_threads(before);
}

/* batch, seq, cols, first, rows of the table beyond first + seq. */
static const int64_t position_sizes[][5] = {{0, 3, 4, 0, 1}, {2, 0, 4, 1, 0},   {3, 5, 0, 0, 0},
                                            {1, 1, 1, 0, 0}, {3, 7, 129, 2, 3}, {5, 64, 128, 0, 1}};

static void positions_are_added(void)
{
    for (int i = 0; i < 18; i++) {
        const int64_t *s = position_sizes[i / 3];
        tsr_dtype type = types[i % 3];
        int64_t n = s[0] * s[1] * s[2];
        tsrk_add_position want = {
            .batch = s[0], .seq = s[1], .cols = s[2], .first = s[3], .type = type};
        void *x = tsr_array_random(n, type, 1.0, 7);
        void *table = tsr_array_random((s[3] + s[1]) * s[2], type, 1.0, 8);
        want.x = x;
        want.table = table;
        tsrk_add_position got = want;
        want.y = tsr_array_new(n, type);
        got.y = tsr_array_new(n, type);
        tsrk_ref_add_position(&want);
        tsrk_cpu_add_position(&got);
        /* One addition, rounded to f32 and then to the type. */
        CHECK(tsr_array_near(got.y, want.y, n, type, 1.0, 0.0));
        tsr_array_free(x);
        tsr_array_free(table);
        tsr_array_free(want.y);
        tsr_array_free(got.y);
    }
}

static void position_gradients(void)
{
    for (int i = 0; i < 18 * 6; i++) {
        const int64_t *s = position_sizes[i / 18];
        int64_t count = (s[3] + s[1] + s[4]) * s[2];
        tsrk_add_position_bwd want = {.batch = s[0],
                                      .seq = s[1],
                                      .cols = s[2],
                                      .first = s[3],
                                      .table_rows = s[3] + s[1] + s[4],
                                      .type = types[i % 3],
                                      .grad_type = types[i / 3 % 3],
                                      .accumulate = i / 9 % 2 != 0};
        void *dy = tsr_array_random(s[0] * s[1] * s[2], want.type, 1.0, 9);
        want.dy = dy;
        tsrk_add_position_bwd got = want;
        want.dtable = tsr_array_random(count, want.grad_type, 1.0, 10);
        got.dtable = tsr_array_copy(want.dtable, count, want.grad_type);
        tsrk_ref_add_position_bwd(&want);
        tsrk_cpu_add_position_bwd(&got);
        /* batch + 1 numbers below 1 are added up. */
        double terms = (double)s[0] + 1.0;
        CHECK(tsr_array_near(got.dtable, want.dtable, count, want.grad_type, terms, terms));
        tsr_array_free(dy);
        tsr_array_free(want.dtable);
        tsr_array_free(got.dtable);
    }
}

/* Forward is linear, so its gradient is the adjoint: <y, dy> = <table, dtable>. In f64, where some
 * rows * cols products below 1 round at 2^-53 each. */
static void backward_is_the_adjoint(void)
{
    const int64_t rows = 30;
    const int64_t cols = 5;
    const int64_t vocab = 8;
    double *table = tsr_array_random(vocab * cols, TSR_F64, 1.0, 12);
    double *dy = tsr_array_random(rows * cols, TSR_F64, 1.0, 13);
    double *y = tsr_array_new(rows * cols, TSR_F64);
    double *dtable = tsr_array_new(vocab * cols, TSR_F64);
    int32_t *ids = make_ids(rows, 0, vocab);
    tsrk_embedding f = {.ids = ids,
                        .table = table,
                        .y = y,
                        .rows = rows,
                        .cols = cols,
                        .table_rows = vocab,
                        .type = TSR_F64};
    tsrk_embedding_bwd b = {.ids = ids,
                            .dy = dy,
                            .dtable = dtable,
                            .rows = rows,
                            .cols = cols,
                            .table_rows = vocab,
                            .type = TSR_F64,
                            .grad_type = TSR_F64};
    tsrk_ref_embedding(&f);
    tsrk_ref_embedding_bwd(&b);
    double out = 0.0;
    double in = 0.0;
    for (int i = 0; i < rows * cols; i++) {
        out += y[i] * dy[i];
    }
    for (int i = 0; i < vocab * cols; i++) {
        in += table[i] * dtable[i];
    }
    CHECK(fabs(out) > 0.01);
    CHECK_NEAR(in, out, 0x1p-53 * 2.0 * (double)(rows * cols * rows));
    tsr_array_free(table);
    tsr_array_free(dy);
    tsr_array_free(y);
    tsr_array_free(dtable);
    tsr_array_free(ids);
}

const tsr_test_case tsr_test_cases[] = {
    {"forward_copies_rows", forward_copies_rows},
    {"pieces_add_up", pieces_add_up},
    {"backward_adds_rows", backward_adds_rows},
    {"threads_do_not_change_bits", threads_do_not_change_bits},
    {"positions_are_added", positions_are_added},
    {"position_gradients", position_gradients},
    {"backward_is_the_adjoint", backward_is_the_adjoint},
    {NULL, NULL},
};
