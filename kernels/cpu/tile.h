/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tile.h
 * A tile of a product in registers, and operands packed for it; product.c's, tile.c's and pack.c's.
 */
#pragma once

#include "kernels/cpu/cpu_priv.h"

/** Sums in registers, 2 vectors wide; two more hold b's and one a's element. */
#if defined(__AVX512F__)
#    define LANES 16
#    define ROWS  14
#elif defined(__AVX2__)
#    define LANES 8
#    define ROWS  6
#else
#    define LANES 4
#    define ROWS  6
#endif
#define COLS ((int64_t)2 * LANES)

/** Columns of b that pack_b_rows takes at most. */
#define PACK_COLS 256
/** Row stride of a packed panel of a, when its rows lie along k: no two in one set of the cache. */
#define A_STRIDE (TSRK_CPU_K_BLOCK + 16)

/** Panels of a that a panel of b is multiplied by while it is in L1. */
#define GROUP (LANES == 16 ? 1 : 8)

/** A thread's share of a workspace: an edge and a group of panels, with a spare vector, of the
 * level that has most. */
#define EDGE_FLOATS   ((int64_t)14 * 32)
#define MEMBER_FLOATS (EDGE_FLOATS + ((int64_t)48 * A_STRIDE) + 16)

typedef float vec __attribute__((vector_size(LANES * sizeof(float))));
typedef float loose_vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

static inline vec load(const float *p)
{
    return *(const loose_vec *)p;
}

static inline void store(float *p, vec v)
{
    *(loose_vec *)p = v;
}

#define LINE ((int64_t)64) /* bytes of a line of the cache */

/** Steps along k from one look at what to prefetch to the next. */
#define STRETCH 16

/** Lines to prefetch: left of them, some for every stretch; a run of them, then the next run. */
typedef struct prefetch {
    const char *at;
    int64_t left, each;
    int64_t run, into; /* lines of a run; of this run so far */
    int64_t skip;      /* bytes from a run's end to the next */
} prefetch;

typedef struct tile {
    float *c, *edge; /* edge [ROWS, COLS]: where a tile that is not whole is formed */
    int64_t ldc, cols, depth;
    bool add;
} tile;

/** c [rows, cols] (+)= panel a [rows, depth] * panel b [depth, COLS], rows <= ROWS. Rows of a lie
 * along k, A_STRIDE apart. */
void tsrk_cpu_tile_along_k(int64_t rows, const float *a, const float *b, const tile *t,
                           prefetch *ahead);
/** The same of a panel that has ROWS elements for each step. */
void tsrk_cpu_tile_by_step(int64_t rows, const float *a, const float *b, const tile *t,
                           prefetch *ahead);

/** out = the panel of rows row .. row + rows and k p .. p + depth of op(a): along k, or by step
 * where a is transposed. It may write a vector too much. */
void tsrk_cpu_pack_a(float *out, const tsrk_matmul *args, int64_t row, int64_t rows, int64_t p,
                     int64_t depth);
/** Panels of COLS columns of op(b), columns col .. col + cols (PACK_COLS at most) and k p .. p +
 * steps, stored by rows [k, n]; out's panels are depth steps apart. */
void tsrk_cpu_pack_b_rows(float *out, const tsrk_matmul *args, int64_t col, int64_t cols, int64_t p,
                          int64_t steps, int64_t depth);
/** One panel of op(b), stored by columns [n, k]. */
void tsrk_cpu_pack_b_columns(float *out, const tsrk_matmul *args, int64_t col, int64_t cols,
                             int64_t p, int64_t depth);
