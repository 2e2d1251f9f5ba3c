/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file product.c
 * Matrix products in f32: blocked, packed, of any types and strides.
 *
 *   for columns of c, N_BLOCK at a time     b's slice [K_BLOCK, N_BLOCK] is packed by the team
 *     for k, K_BLOCK at a time              together and stays in each core's L2
 *       for GROUP * ROWS rows of c          a's panels [ROWS, K_BLOCK] are packed
 *         for COLS columns                  b's panel [K_BLOCK, COLS] comes to L1
 *           for ROWS rows                   a tile of c in registers: sums over K_BLOCK
 *
 * With wide vectors a's panel stays in L1 instead, as a group of one. Packing reads any strides and
 * converts bf16 and f16 on the way, so the inner loop sees f32 alone. While tiles are computed, the
 * source of the next group of a is prefetched. A narrow slice holds several blocks of k, so that
 * the team meets less often; it packs the next slice as it runs out of rows.
 *
 * An element's bits follow from its row of a, its column of b and k: partial sums over blocks of k,
 * each in order, added in order. Neither the threads nor the other rows and columns matter. tile.c
 * computes tiles, pack.c packs.
 */
#include "kernels/cpu/tile.h"

/* Steps of k that a thread packs at a time of a b that lies by rows. */
#define PACK_STEPS 64

/* Pieces of equal size, as few as limit allows, in whole units. */
static int64_t piece(int64_t size, int64_t limit, int64_t unit)
{
    int64_t pieces = size > limit ? (size + limit - 1) / limit : 1;
    int64_t even = (size + pieces - 1) / pieces;
    return (even + unit - 1) / unit * unit;
}

typedef struct blocks {
    const tsrk_matmul *args;
    int64_t cols, steps; /* of a slice of b */
    int64_t depth;       /* steps along k that are summed in registers; a slice has some of these */
    int64_t part;        /* rows of c whose sums the workspace holds; all where it is not needed */
    float *b, *sums;     /* b: two slices of b where a team packs one while it uses the other */
} blocks;

/* What is computed now: rows row .. row + rows of the product's columns col .. and k p .. */
typedef struct slice {
    int64_t row, rows, col, cols, p, depth;
    float *b; /* packed */
} slice;

static bool needs_sums(const tsrk_matmul *args)
{
    return tsrk_cpu_is_half(args->c_type);
}

static int64_t part_rows(const tsrk_matmul *args)
{
    return args->m < TSRK_CPU_SUM_ROWS || !needs_sums(args) ? args->m : TSRK_CPU_SUM_ROWS;
}

static blocks make_blocks(const tsrk_matmul *args)
{
    blocks out = {.args = args,
                  .cols = piece(args->n, TSRK_CPU_N_BLOCK, 32),
                  .depth = piece(args->k > 0 ? args->k : 1, TSRK_CPU_K_BLOCK, 16),
                  .part = part_rows(args)};
    /* A narrow slice is deep in return: threads meet once a slice. */
    int64_t most = out.cols > 0 ? TSRK_CPU_N_BLOCK / out.cols : 1;
    int64_t all = args->k > 0 ? (args->k + out.depth - 1) / out.depth : 1;
    out.steps = out.depth * (most < all ? most : all);
    return out;
}

static int64_t sums_floats(const blocks *b)
{
    return needs_sums(b->args) ? b->part * b->cols : 0;
}

static int slice_count(int team)
{
    return team > 1 ? 2 : 1;
}

size_t tsrk_cpu_product_bytes(const tsrk_matmul *args, int threads)
{
    blocks b = make_blocks(args);
    int64_t slices = slice_count(threads) * b.steps * b.cols;
    return (size_t)(slices + sums_floats(&b) + (threads * MEMBER_FLOATS)) * sizeof(float);
}

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

/* Block after block, and in a block panel after panel: where step p, which begins a block, is. */
static float *packed_block(const slice *s, int64_t p)
{
    return s->b + (p * ceil_div(s->cols, COLS) * COLS);
}

/* Packing a slice, cut into pieces for the team: a panel's columns, or short runs of rows. */
typedef struct pieces {
    int64_t cols, steps; /* of one */
    int64_t wide, tall;  /* so many in a block */
} pieces;

static pieces cut_packing(const blocks *b, const slice *s)
{
    pieces out = {.cols = PACK_COLS, .steps = PACK_STEPS};
    if (b->args->trans_b) {
        out = (pieces){.cols = COLS, .steps = b->depth};
    }
    out.wide = ceil_div(s->cols, out.cols);
    out.tall = ceil_div(b->depth, out.steps);
    return out;
}

static void pack_piece(const blocks *b, const slice *s, const pieces *cut, int64_t index)
{
    int64_t begin = index / (cut->wide * cut->tall) * b->depth;
    int64_t p = index / cut->wide % cut->tall * cut->steps;
    int64_t col = index % cut->wide * cut->cols;
    int64_t depth = least(b->depth, s->depth - begin);
    int64_t cols = least(cut->cols, s->cols - col);
    float *out = packed_block(s, begin) + (col * depth) + (p * COLS);
    if (b->args->trans_b) {
        tsrk_cpu_pack_b_columns(out, b->args, s->col + col, cols, s->p + begin, depth);
    } else if (p < depth) {
        tsrk_cpu_pack_b_rows(out, b->args, s->col + col, cols, s->p + begin + p,
                             least(cut->steps, depth - p), depth);
    }
}

/* The source of the group of rows row .. row + rows, spread over the tiles of a group: rows of a,
 * or of each step the lines whose first element is not yet of the group before. */
static prefetch look_ahead(const tsrk_matmul *args, const slice *s)
{
    int64_t size = (int64_t)tsrk_cpu_size(args->a_type);
    int64_t runs = args->trans_a ? s->depth : s->rows;
    int64_t bytes = (args->trans_a ? s->rows : s->depth) * size;
    int64_t at = args->trans_a ? (s->p * args->lda) + s->row : (s->row * args->lda) + s->p;
    int64_t stretches =
        ceil_div(s->depth, STRETCH) * ceil_div(s->cols, COLS) * ceil_div(s->rows, ROWS);
    if (runs == 0 || bytes == 0) {
        return (prefetch){.at = args->a};
    }
    prefetch out = {.at = tsrk_cpu_at(args->a, args->a_type, at), .run = ceil_div(bytes, LINE)};
    out.at += args->trans_a ? LINE - 1 - (((intptr_t)out.at + LINE - 1) % LINE) : 0;
    out.skip = (args->lda * size) - (out.run * LINE);
    out.left = runs * out.run;
    out.each = ceil_div(out.left, stretches);
    return out;
}

/* Rows row .. row + rows of the finished columns: bias, and where sums are not c itself, c. */
static void finish(const blocks *b, const slice *s, int64_t row, int64_t rows)
{
    const tsrk_matmul *args = b->args;
    float buffer[TSRK_CPU_N_BLOCK];
    const float *bias = args->bias;
    if (bias != NULL) {
        bias = tsrk_cpu_view(args->bias, args->bias_type, s->col, s->cols, buffer);
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

/* The team takes groups of equal height, as many for each thread. */
static int64_t group_count(int64_t rows)
{
    int64_t team = omp_get_num_threads();
    return ceil_div(ceil_div(rows, (int64_t)ROWS * GROUP), team) * team;
}

static int64_t group_row(const slice *s, int64_t group)
{
    return s->row + (s->rows * group / group_count(s->rows));
}

/* One block of k of a group of rows: each panel of b meets all panels of a. */
static void run_block(const blocks *b, const slice *s, prefetch *ahead, float *member)
{
    const tsrk_matmul *args = b->args;
    bool sums = needs_sums(args);
    int64_t panels = ceil_div(s->rows, ROWS);
    tile t = {.edge = member,
              .ldc = sums ? b->cols : args->ldc,
              .depth = s->depth,
              .add = s->p > 0 || (args->accumulate && !sums)};
    float *c = sums ? b->sums + ((s->row % b->part) * b->cols)
                    : (float *)args->c + (s->row * args->ldc) + s->col;
    for (int64_t i = 0; i < panels; i++) {
        int64_t row = s->rows * i / panels;
        int64_t rows = (s->rows * (i + 1) / panels) - row;
        tsrk_cpu_pack_a(member + EDGE_FLOATS + (i * ROWS * A_STRIDE), args, s->row + row, rows,
                        s->p, s->depth);
    }
    for (int64_t j = 0; j < s->cols; j += COLS) {
        t.cols = least(COLS, s->cols - j);
        for (int64_t i = 0; i < panels; i++) {
            int64_t row = s->rows * i / panels;
            int64_t rows = (s->rows * (i + 1) / panels) - row;
            const float *panel = member + EDGE_FLOATS + (i * ROWS * A_STRIDE);
            t.c = c + (row * t.ldc) + j;
            if (args->trans_a) {
                tsrk_cpu_tile_by_step(rows, panel, s->b + (j * s->depth), &t, ahead);
            } else {
                tsrk_cpu_tile_along_k(rows, panel, s->b + (j * s->depth), &t, ahead);
            }
        }
    }
}

/* A group of rows, over the slice's blocks. */
static void run_group(const blocks *b, const slice *s, int64_t index, float *member)
{
    slice now = *s;
    slice next = *s;
    now.row = group_row(s, index);
    next.row = group_row(s, index + 1);
    now.rows = next.row - now.row;
    next.rows = next.row < s->row + s->rows ? group_row(s, index + 2) - next.row : 0;
    next.depth = least(b->depth, s->depth);
    int64_t p = 0;
    do {
        now.p = s->p + p;
        now.depth = least(b->depth, s->depth - p);
        now.b = packed_block(s, p);
        p += now.depth;
        slice same = now;
        same.p += now.depth;
        same.depth = least(b->depth, s->depth - p);
        prefetch ahead = look_ahead(b->args, p < s->depth ? &same : &next);
        run_block(b, &now, &ahead, member);
    } while (p < s->depth);
    if (s->p + s->depth == b->args->k) {
        finish(b, s, now.row, now.rows);
    }
}

/* The first slice, or the one after s: blocks of k, then columns, then rows. False after the last.
 */
static bool next_slice(const blocks *b, slice *s)
{
    const tsrk_matmul *args = b->args;
    s->p += s->depth;
    if (s->p == args->k) {
        s->p = 0;
        s->col += s->cols;
    }
    if (s->col == args->n) {
        s->col = 0;
        s->row += s->rows;
    }
    s->rows = least(b->part, args->m - s->row);
    s->cols = least(b->cols, args->n - s->col);
    s->depth = least(b->steps, args->k - s->p);
    return s->row < args->m;
}

static void pack_slice(const blocks *b, const slice *s)
{
    pieces cut = cut_packing(b, s);
    int64_t count = ceil_div(s->depth, b->depth) * cut.wide * cut.tall;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < count; i++) {
        pack_piece(b, s, &cut, i);
    }
}

/* Long runs of groups first; whoever is held up, by other work on its core, takes fewer. */
static void run_slice(const blocks *b, const slice *s, float *member)
{
    int64_t groups = group_count(s->rows);
#pragma omp for schedule(guided) nowait
    for (int64_t i = 0; i < groups; i++) {
        run_group(b, s, i, member);
    }
}

/* The team meets once for each slice: whoever has no rows left packs the next one. */
static void run_member(const blocks *b, float *member)
{
    slice next = {.rows = 0};
    bool more = next_slice(b, &next);
    next.b = b->b;
    pack_slice(b, &next);
    for (int64_t turn = 1; more; turn++) {
        slice now = next;
#pragma omp barrier
        run_slice(b, &now, member);
        more = next_slice(b, &next);
        if (more) {
            next.b = b->b + (turn % slice_count(omp_get_num_threads()) * b->steps * b->cols);
            pack_slice(b, &next);
        }
    }
}

void tsrk_cpu_product(const tsrk_matmul *args, int team, void *workspace)
{
    blocks b = make_blocks(args);
    if (args->m == 0 || args->n == 0) {
        return;
    }
    b.b = workspace;
    b.sums = b.b + (slice_count(team) * b.steps * b.cols);
    float *members = b.sums + sums_floats(&b);
#pragma omp parallel num_threads(team)
    run_member(&b, members + ((int64_t)omp_get_thread_num() * MEMBER_FLOATS));
}
