/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tile.c
 * A tile of a product: sums in registers over a block of k.
 *
 * Vectors are GCC's, of the width of the level that this file is compiled for. While a tile is
 * computed, some of what follows is prefetched: c's rows, and lines that the caller names.
 */
#include "kernels/cpu/tile.h"

/* Steps without a branch: with 28 sums in 32 registers more make the compiler spill some. */
#define TURN (LANES == 16 ? 2 : 4)

static inline __attribute__((always_inline)) void fetch(prefetch *f)
{
    for (int64_t i = 0; i < f->each && f->left > 0; i++) {
        __builtin_prefetch(f->at, 0, 2);
        f->at += LINE;
        f->left--;
        if (++f->into == f->run) {
            f->into = 0;
            f->at += f->skip;
        }
    }
}

/* c [rows, cols] (+)= sum. */
static inline __attribute__((always_inline)) void put(int rows, bool wide, vec sum[ROWS][2],
                                                      const tile *t)
{
    bool whole = t->cols == (wide ? COLS : LANES);
    float *c = whole ? t->c : t->edge;
    int64_t ldc = whole ? t->ldc : COLS;
    if (whole && t->add) {
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            sum[i][0] += load(c + (i * ldc));
            if (wide) {
                sum[i][1] += load(c + (i * ldc) + LANES);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        store(c + (i * ldc), sum[i][0]);
        if (wide) {
            store(c + (i * ldc) + LANES, sum[i][1]);
        }
    }
    for (int i = 0; i < rows && !whole; i++) {
        for (int64_t j = 0; j < t->cols; j++) {
            float *to = t->c + (i * t->ldc) + j;
            *to = t->edge[(i * COLS) + j] + (t->add ? *to : 0.0F);
        }
    }
}

/* Keep values in registers here: with 12 sums in 16 registers the compiler, which would begin later
 * steps early, spills some (on Zen 3 93 % of a tile's rate). */
#if LANES == 8
#    define HOLD(x, y) __asm__("" : "+x"(x), "+x"(y))
#else
#    define HOLD(x, y) ((void)0)
#endif

/* sum [rows, COLS] += a [rows] * b [COLS], for one step along k. */
static inline __attribute__((always_inline)) void step(int rows, bool wide, const float *a,
                                                       int64_t a_row, const float *b,
                                                       vec sum[ROWS][2])
{
    vec b0 = load(b);
    vec b1 = load(b + LANES);
    HOLD(b0, b1);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float x = a[i * a_row];
        sum[i][0] += x * b0;
        if (wide) {
            sum[i][1] += x * b1;
        }
        HOLD(sum[i][0], sum[i][1]);
    }
}

/* c [rows, cols] (+)= a [rows, depth] * b [depth, COLS]; element (i, p) of a at i * a_row + p *
 * a_step. All but a, b and t are constants where this is inlined. c's lines are asked for one row
 * after another: all at once they hold up b's. */
static inline __attribute__((always_inline)) void multiply(int rows, bool wide, const float *a,
                                                           int64_t a_row, int64_t a_step,
                                                           const float *b, const tile *t,
                                                           prefetch *ahead)
{
    vec sum[ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        sum[i][0] = (vec){0};
        sum[i][1] = (vec){0};
    }
    prefetch next = *ahead;
    const float *c = t->c;
    int64_t stretches = t->depth / STRETCH;
#pragma GCC unroll 1
    for (int64_t i = 0; i < stretches; i++) {
        fetch(&next);
        __builtin_prefetch(c, 1);
        __builtin_prefetch(c + t->cols - 1, 1);
        c += i + 1 < rows ? t->ldc : 0;
#pragma GCC unroll 1
        for (int p = 0; p < STRETCH; p += TURN) {
#pragma GCC unroll 4
            for (int q = 0; q < TURN; q++) {
                step(rows, wide, a + (q * a_step), a_row, b + (q * COLS), sum);
            }
            a += TURN * a_step;
            b += TURN * COLS;
        }
    }
#pragma GCC unroll 1
    for (int64_t p = stretches * STRETCH; p < t->depth; p++) {
        step(rows, wide, a, a_row, b, sum);
        a += a_step;
        b += COLS;
    }
    *ahead = next;
    put(rows, wide, sum, t);
}

/* Both layouts of a panel: rows along k, as they are stored, or ROWS elements of each step. */
static inline __attribute__((always_inline)) void tile_of(int rows, bool along_k, const float *a,
                                                          const float *b, const tile *t,
                                                          prefetch *ahead)
{
    int64_t a_row = along_k ? A_STRIDE : 1;
    int64_t a_step = along_k ? 1 : ROWS;
    if (t->cols > LANES) {
        multiply(rows, true, a, a_row, a_step, b, t, ahead);
    } else {
        multiply(rows, false, a, a_row, a_step, b, t, ahead);
    }
}

static inline __attribute__((always_inline)) void tile_of_rows(int64_t rows, bool along_k,
                                                               const float *a, const float *b,
                                                               const tile *t, prefetch *ahead)
{
    switch (rows) {
    case 1:
        tile_of(1, along_k, a, b, t, ahead);
        break;
    case 2:
        tile_of(2, along_k, a, b, t, ahead);
        break;
    case 3:
        tile_of(3, along_k, a, b, t, ahead);
        break;
    case 4:
        tile_of(4, along_k, a, b, t, ahead);
        break;
    case 5:
        tile_of(5, along_k, a, b, t, ahead);
        break;
    case 6:
        tile_of(6, along_k, a, b, t, ahead);
        break;
#if ROWS > 6
    case 7:
        tile_of(7, along_k, a, b, t, ahead);
        break;
    case 8:
        tile_of(8, along_k, a, b, t, ahead);
        break;
    case 9:
        tile_of(9, along_k, a, b, t, ahead);
        break;
    case 10:
        tile_of(10, along_k, a, b, t, ahead);
        break;
    case 11:
        tile_of(11, along_k, a, b, t, ahead);
        break;
    case 12:
        tile_of(12, along_k, a, b, t, ahead);
        break;
    case 13:
        tile_of(13, along_k, a, b, t, ahead);
        break;
    case 14:
        tile_of(14, along_k, a, b, t, ahead);
        break;
#endif
    default:
        break;
    }
}

void tsrk_cpu_tile_along_k(int64_t rows, const float *a, const float *b, const tile *t,
                           prefetch *ahead)
{
    tile_of_rows(rows, true, a, b, t, ahead);
}

void tsrk_cpu_tile_by_step(int64_t rows, const float *a, const float *b, const tile *t,
                           prefetch *ahead)
{
    tile_of_rows(rows, false, a, b, t, ahead);
}
