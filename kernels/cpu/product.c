/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file product.c
 * Matrix products in f32: blocked, packed, of any types and strides.
 *
 *   for columns of c, N_BLOCK at a time              b's slice [K_BLOCK, N_BLOCK] is packed by the
 *     for k, K_BLOCK at a time                       team together and stays in each core's L2
 *       for ROWS rows of c (threads take runs)       a's panel [ROWS, K_BLOCK] is packed, stays in
 * L1 for COLS columns                           a tile of c in registers: sums over K_BLOCK
 *
 * Packing reads any strides and converts bf16 and f16 on the way, so the inner loop sees f32 alone.
 * While tiles are computed, the source of the next panel of a is prefetched.
 *
 * An element's bits follow from its row of a, its column of b and k: partial sums over blocks of k,
 * each in order, added in order. Neither the threads nor the other rows and columns matter. Tiles
 * are GCC vectors, of the width of the level that this file is compiled for.
 */
#include "kernels/cpu/cpu_priv.h"

/* Sums in registers, 2 vectors wide; two more hold b's and one a's element. */
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
/* Columns of b that are packed at a time, to read along its rows. */
#define PACK_COLS 256

/* Row stride of a packed panel of a, when its rows lie along k: no two in one set of the cache. */
#define A_STRIDE (TSRK_CPU_K_BLOCK + 16)
/* A thread's share of the workspace: an edge and a panel, with a spare vector, of the widest level.
 */
#define EDGE_FLOATS   ((int64_t)14 * 32)
#define MEMBER_FLOATS (EDGE_FLOATS + ((int64_t)14 * A_STRIDE) + 16)

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

/* ---- a tile ---- */

/* Steps along k from one look at what to prefetch to the next. */
#define STRETCH 16

/* Lines to prefetch: each of them for every stretch, a stride apart. */
typedef struct prefetch {
    const char *at;
    int64_t each, stride;
    int64_t along, skip; /* bytes to the next stretch; from a tile to the next */
    int64_t tiles;       /* that have lines left */
} prefetch;

typedef struct tile {
    float *c, *edge; /* edge [ROWS, COLS]: where a tile that is not whole is formed */
    int64_t ldc, cols, depth;
    bool add;
} tile;

static inline __attribute__((always_inline)) void fetch(prefetch *f)
{
    for (int64_t i = 0; i < f->each; i++) {
        __builtin_prefetch(f->at + (i * f->stride), 0, 2);
    }
    f->at += f->along;
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

/* sum [rows, COLS] += a [rows] * b [COLS], for one step along k. */
static inline __attribute__((always_inline)) void step(int rows, bool wide, const float *a,
                                                       int64_t a_row, const float *b,
                                                       vec sum[ROWS][2])
{
    vec b0 = load(b);
    vec b1 = load(b + LANES);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float x = a[i * a_row];
        sum[i][0] += x * b0;
        if (wide) {
            sum[i][1] += x * b1;
        }
    }
}

/* c [rows, cols] (+)= a [rows, depth] * b [depth, COLS]; element (i, p) of a at i * a_row + p *
 * a_step. All but a, b and t are constants where this is inlined. Two steps at a time, since more
 * make the compiler spill sums, and c's lines are asked for one row after another, since all at
 * once they hold up b's. */
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
    int64_t stretches = t->depth / STRETCH;
#pragma GCC unroll 1
    for (int64_t i = 0; i < stretches; i++) {
        fetch(&next);
        if (i < rows) {
            __builtin_prefetch(t->c + (i * t->ldc), 1);
            __builtin_prefetch(t->c + (i * t->ldc) + t->cols - 1, 1);
        }
#pragma GCC unroll 1
        for (int p = 0; p < STRETCH; p += 2) {
            step(rows, wide, a, a_row, b, sum);
            step(rows, wide, a + a_step, a_row, b + COLS, sum);
            a += 2 * a_step;
            b += 2 * COLS;
        }
    }
#pragma GCC unroll 1
    for (int64_t p = stretches * STRETCH; p < t->depth; p++) {
        step(rows, wide, a, a_row, b, sum);
        a += a_step;
        b += COLS;
    }
    ahead->at = next.at + next.skip;
    ahead->tiles--;
    ahead->each = ahead->tiles > 0 ? ahead->each : 0;
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

static void tile_along_k(int64_t rows, const float *a, const float *b, const tile *t,
                         prefetch *ahead)
{
    tile_of_rows(rows, true, a, b, t, ahead);
}

static void tile_by_step(int64_t rows, const float *a, const float *b, const tile *t,
                         prefetch *ahead)
{
    tile_of_rows(rows, false, a, b, t, ahead);
}

/* ---- packing ---- */

/* Elements i .. i + n as f32: in place, or converted to buffer. */
static inline const float *as_f32(const void *array, tsr_dtype type, int64_t i, int64_t n,
                                  float *buffer)
{
    return tsrk_cpu_view(array, type, i, n, buffer);
}

/* A panel of rows row .. row + rows and k p .. p + depth of op(a). */
static void pack_a(float *out, const tsrk_matmul *args, int64_t row, int64_t rows, int64_t p,
                   int64_t depth)
{
    if (!args->trans_a) {
        for (int64_t i = 0; i < rows; i++) {
            tsrk_cpu_load(out + (i * A_STRIDE), args->a, args->a_type, ((row + i) * args->lda) + p,
                          depth);
        }
        return;
    }
    float buffer[16];
    /* Whole vectors where what they read too much lies in the array; the next step overwrites it.
     */
    bool whole =
        LANES >= ROWS && args->a_type == TSR_F32 && (row + LANES <= args->m || p + depth < args->k);
    for (int64_t q = 0; q < depth; q++) {
        int64_t at = ((p + q) * args->lda) + row;
        if (whole) {
            store(out + (q * ROWS), load((const float *)args->a + at));
        } else {
            const float *from = as_f32(args->a, args->a_type, at, rows, buffer);
            memcpy(out + (q * ROWS), from, (size_t)rows * sizeof *out);
        }
    }
}

/* Panels of COLS columns of op(b), columns col .. col + cols (few panels) and k p .. p + depth,
 * stored by rows [k, n]. */
static void pack_b_rows(float *out, const tsrk_matmul *args, int64_t col, int64_t cols, int64_t p,
                        int64_t depth)
{
    float buffer[PACK_COLS];
    int64_t full = cols / COLS * COLS;
    for (int64_t q = 0; q < depth; q++) {
        const float *from =
            as_f32(args->b, args->b_type, ((p + q) * args->ldb) + col, cols, buffer);
        float *to = out + (q * COLS);
        for (int64_t j = 0; j < full; j += COLS) {
            store(to + (j * depth), load(from + j));
            store(to + (j * depth) + LANES, load(from + j + LANES));
        }
        for (int64_t j = full; full < cols && j < full + COLS; j++) {
            to[(full * depth) + j - full] = j < cols ? from[j] : 0.0F;
        }
    }
}

/* out [8 steps, COLS] = 8 rows of 8, turned. */
static inline void turn(float *out, const float *const row[8])
{
#if LANES >= 8
    typedef float vec8 __attribute__((vector_size(32)));
    typedef float loose8 __attribute__((vector_size(32), aligned(4), may_alias));
    vec8 r[8];
    vec8 s[8];
#    pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        r[i] = *(const loose8 *)row[i];
    }
#    pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        s[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#    pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        r[i] = __builtin_shufflevector(s[i], s[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 1] = __builtin_shufflevector(s[i], s[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        r[i + 2] = __builtin_shufflevector(s[i + 1], s[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        r[i + 3] = __builtin_shufflevector(s[i + 1], s[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#    pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        *(loose8 *)(out + (i * COLS)) =
            __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        *(loose8 *)(out + ((i + 4) * COLS)) =
            __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
#else
    for (int i = 0; i < 8; i++) {
        for (int q = 0; q < 8; q++) {
            out[(q * COLS) + i] = row[i][q];
        }
    }
#endif
}

/* One panel of op(b), stored by columns [n, k]. A line of each column is read once: 16 steps. */
static void pack_b_columns(float *out, const tsrk_matmul *args, int64_t col, int64_t cols,
                           int64_t p, int64_t depth)
{
    float buffer[8][16];
    for (int64_t q = 0; q < depth; q += 16) {
        int64_t steps = depth - q < 16 ? depth - q : 16;
        for (int64_t j = 0; j < COLS; j += 8) {
            const float *row[8];
            for (int i = 0; i < 8; i++) {
                row[i] = buffer[i];
                int64_t at = ((col + j + i) * args->ldb) + p + q;
                if (j + i >= cols) {
                    memset(buffer[i], 0, sizeof buffer[i]);
                } else if (steps == 16 && args->b_type == TSR_F32) {
                    row[i] = (const float *)args->b + at;
                    __builtin_prefetch(row[i] + 64);
                } else {
                    tsrk_cpu_load(buffer[i], args->b, args->b_type, at, steps);
                }
            }
            float turned[16 * COLS];
            float *to = steps == 16 ? out + (q * COLS) + j : turned;
            turn(to, row);
            for (int i = 0; i < 8; i++) {
                row[i] += 8;
            }
            turn(to + (8 * COLS), row);
            for (int64_t s = 0; s < steps && steps < 16; s++) {
                memcpy(out + ((q + s) * COLS) + j, turned + (s * COLS), 8 * sizeof *out);
            }
        }
    }
}

/* ---- blocks ---- */

/* Pieces of equal size, as few as limit allows, in whole units. */
static int64_t piece(int64_t size, int64_t limit, int64_t unit)
{
    int64_t pieces = size > limit ? (size + limit - 1) / limit : 1;
    int64_t even = (size + pieces - 1) / pieces;
    return (even + unit - 1) / unit * unit;
}

typedef struct blocks {
    const tsrk_matmul *args;
    int64_t depth, cols; /* of a slice of b */
    int64_t part;        /* rows of c whose sums the workspace holds; all where it is not needed */
    float *b, *sums;
} blocks;

/* What is computed now: rows row .. row + rows of the product's columns col .. and k p .. */
typedef struct slice {
    int64_t row, rows, col, cols, p, depth;
} slice;

static bool needs_sums(const tsrk_matmul *args)
{
    return tsrk_cpu_is_half(args->c_type);
}

static int64_t part_rows(const tsrk_matmul *args)
{
    return args->m < TSRK_CPU_SUM_ROWS || !needs_sums(args) ? args->m : TSRK_CPU_SUM_ROWS;
}

static int64_t slice_floats(const tsrk_matmul *args)
{
    return piece(args->k, TSRK_CPU_K_BLOCK, 16) * piece(args->n, TSRK_CPU_N_BLOCK, 32);
}

static int64_t sums_floats(const tsrk_matmul *args)
{
    return needs_sums(args) ? part_rows(args) * piece(args->n, TSRK_CPU_N_BLOCK, 32) : 0;
}

size_t tsrk_cpu_product_bytes(const tsrk_matmul *args, int threads)
{
    return (size_t)(slice_floats(args) + sums_floats(args) + (threads * MEMBER_FLOATS)) *
           sizeof(float);
}

static void pack_b(const blocks *b, const slice *s, int64_t at, int64_t cols)
{
    if (!b->args->trans_b) {
        pack_b_rows(b->b + (at * s->depth), b->args, s->col + at, cols, s->p, s->depth);
        return;
    }
    for (int64_t j = 0; j < cols; j += COLS) {
        pack_b_columns(b->b + ((at + j) * s->depth), b->args, s->col + at + j,
                       cols - j < COLS ? cols - j : COLS, s->p, s->depth);
    }
}

/* The source of the panel of rows row .. row + rows, spread over the tiles of a panel: rows of a,
 * line by line, or the last line of each step, whose first one is this panel's too. */
static prefetch look_ahead(const tsrk_matmul *args, const slice *s, int64_t row, int64_t rows)
{
    int64_t size = (int64_t)tsrk_cpu_size(args->a_type);
    int64_t stride = args->lda * size;
    int64_t tiles = (s->cols + COLS - 1) / COLS;
    int64_t stretches = s->depth / STRETCH;
    if (rows == 0 || stretches == 0) {
        return (prefetch){.at = args->a};
    }
    prefetch out = {.stride = stride};
    if (args->trans_a) {
        int64_t at = (s->p * args->lda) + row + rows - 1;
        out.at = tsrk_cpu_at(args->a, args->a_type, at);
        out.each = (s->depth + (tiles * stretches) - 1) / (tiles * stretches);
        out.along = out.each * stride;
        out.tiles = (s->depth + (out.each * stretches) - 1) / (out.each * stretches);
    } else {
        out.at = tsrk_cpu_at(args->a, args->a_type, (row * args->lda) + s->p);
        out.each = (rows + tiles - 1) / tiles;
        out.along = STRETCH * size;
        out.tiles = (rows + out.each - 1) / out.each;
        out.skip = (out.each * stride) - (stretches * out.along);
    }
    return out;
}

/* Rows row .. row + rows of the finished columns: bias, and where sums are not c itself, c. */
static void finish(const blocks *b, const slice *s, int64_t row, int64_t rows)
{
    const tsrk_matmul *args = b->args;
    float buffer[TSRK_CPU_N_BLOCK];
    const float *bias = args->bias;
    if (bias != NULL) {
        bias = as_f32(args->bias, args->bias_type, s->col, s->cols, buffer);
    }
    for (int64_t i = row; i < row + rows && (bias != NULL || needs_sums(args)); i++) {
        int64_t at = (i * args->ldc) + s->col;
        float *sums =
            needs_sums(args) ? b->sums + ((i % b->part) * b->cols) : (float *)args->c + at;
        if (bias != NULL) {
            tsrk_cpu_store_add(sums, TSR_F32, 0, bias, s->cols);
        }
        if (needs_sums(args) && args->accumulate) {
            tsrk_cpu_store_add(args->c, args->c_type, at, sums, s->cols);
        } else if (needs_sums(args)) {
            tsrk_cpu_store(args->c, args->c_type, at, sums, s->cols);
        }
    }
}

/* The team takes panels of equal height, as many for each thread. */
static int64_t panel_count(int64_t rows)
{
    int64_t team = omp_get_num_threads();
    return ((rows + ROWS - 1) / ROWS + team - 1) / team * team;
}

static int64_t panel_row(const slice *s, int64_t panel)
{
    return s->row + (s->rows * panel / panel_count(s->rows));
}

static void run_panel(const blocks *b, const slice *s, int64_t index, float *member)
{
    float *panel = member + EDGE_FLOATS;
    const tsrk_matmul *args = b->args;
    bool sums = needs_sums(args);
    int64_t row = panel_row(s, index);
    int64_t next = panel_row(s, index + 1);
    int64_t rows = next - row;
    bool last = next == s->row + s->rows;
    prefetch ahead = look_ahead(args, s, next, last ? 0 : panel_row(s, index + 2) - next);
    tile t = {.edge = member,
              .ldc = sums ? b->cols : args->ldc,
              .depth = s->depth,
              .add = s->p > 0 || (args->accumulate && !sums)};
    t.c = sums ? b->sums + ((row % b->part) * b->cols)
               : (float *)args->c + (row * args->ldc) + s->col;
    pack_a(panel, args, row, rows, s->p, s->depth);
    for (int64_t j = 0; j < s->cols; j += COLS) {
        t.cols = s->cols - j < COLS ? s->cols - j : COLS;
        if (args->trans_a) {
            tile_by_step(rows, panel, b->b + (j * s->depth), &t, &ahead);
        } else {
            tile_along_k(rows, panel, b->b + (j * s->depth), &t, &ahead);
        }
        t.c += COLS;
    }
    if (s->p + s->depth == args->k) {
        finish(b, s, row, rows);
    }
}

/* One slice of b, by every thread of the team: rows part .. of c. */
static void run_slice(const blocks *b, slice s, float *member)
{
#pragma omp for schedule(static)
    for (int64_t j = 0; j < s.cols; j += PACK_COLS) {
        pack_b(b, &s, j, s.cols - j < PACK_COLS ? s.cols - j : PACK_COLS);
    }
    int64_t panels = panel_count(s.rows);
    /* Long runs first; whoever is held up, by other work on its core, takes fewer. */
#pragma omp for schedule(guided)
    for (int64_t i = 0; i < panels; i++) {
        run_panel(b, &s, i, member);
    }
}

static void run_member(const blocks *b, float *member)
{
    const tsrk_matmul *args = b->args;
    for (int64_t row = 0; row < args->m; row += b->part) {
        slice s = {.row = row, .rows = args->m - row < b->part ? args->m - row : b->part};
        for (s.col = 0; s.col < args->n; s.col += b->cols) {
            s.cols = args->n - s.col < b->cols ? args->n - s.col : b->cols;
            s.p = 0;
            do {
                s.depth = args->k - s.p < b->depth ? args->k - s.p : b->depth;
                run_slice(b, s, member);
                s.p += s.depth;
            } while (s.p < args->k);
        }
    }
}

void tsrk_cpu_product(const tsrk_matmul *args, int team, void *workspace)
{
    blocks b = {.args = args,
                .depth = piece(args->k, TSRK_CPU_K_BLOCK, 16),
                .cols = piece(args->n, TSRK_CPU_N_BLOCK, 32),
                .part = part_rows(args),
                .b = workspace};
    if (args->m == 0 || args->n == 0) {
        return;
    }
    b.sums = b.b + slice_floats(args);
    float *members = b.sums + sums_floats(args);
#pragma omp parallel num_threads(team)
    run_member(&b, members + ((int64_t)omp_get_thread_num() * MEMBER_FLOATS));
}
