/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file matmul.c
 * matmul and the column sum that is its bias gradient.
 *
 * c [m, n] (+)= op(a) [m, k] * op(b) [k, n] + bias [n]; 2 m n k flops, accumulated in f32 along the
 * whole of k.
 *
 * c is cut into tiles; a thread computes a tile with a one-thread gemm over the whole of k, in
 * blocks that follow from k alone, so the bits do not depend on the team. Borders follow from m and
 * n, but all-f32 tiles may be larger where the team is busy all the same: f32 gemm gives an element
 * the same bits in a tile of either size. All-f32 tiles are written in place. bf16 times bf16 uses
 * the processor's bf16 product when it has one. Any other mix converts blocks of a and b to f32 in
 * the thread's workspace, and a c that is bf16 or f16 or needs more than a plain store is built
 * there too.
 */
#include "kernels/cpu/cpu_priv.h"

#define TILE       256
#define TILE_LARGE 512
#define K_BLOCK    512
/* From so many elements of c on, larger tiles, which pack less, still feed any team. */
#define LARGE_AREA ((int64_t)4096 * 4096)
/* So many tiles for each thread, and one more for some makes little difference. */
#define EVEN_TILES 8
/* Multiplications below which making a bf16 primitive (30 us) costs more than it saves. */
#define BF16_WORTH (4 * 1024 * 1024)
/* Multiplications below which a second thread costs more than it brings (10 us of gemm). */
#define TEAM_WORTH (512 * 1024)

typedef struct tiling {
    int64_t rows, cols;               /* of a tile */
    int64_t row_tiles, col_tiles;     /* of c */
    size_t a_bytes, b_bytes, c_bytes; /* f32 blocks in a thread's workspace */
} tiling;

static bool is_plain(const tsrk_matmul *args)
{
    return args->a_type == TSR_F32 && args->b_type == TSR_F32 && args->c_type == TSR_F32;
}

/* True if tiles of side limit give every thread as much, or many to each. */
static bool spreads(const tsrk_matmul *args, int64_t limit, int team)
{
    int64_t tiles = ((args->m + limit - 1) / limit) * ((args->n + limit - 1) / limit);
    return tiles % team == 0 || tiles >= (int64_t)EVEN_TILES * team;
}

/* Largest side of a tile. */
static int64_t tile_limit(const tsrk_matmul *args, int team)
{
    bool large = args->n > 0 && args->m >= LARGE_AREA / args->n; /* no overflow */
    return large || (is_plain(args) && spreads(args, TILE_LARGE, team)) ? TILE_LARGE : TILE;
}

/* Pieces of equal size, as few as limit allows, in whole SIMD vectors. */
static int64_t piece(int64_t size, int64_t limit)
{
    int64_t pieces = (size + limit - 1) / limit;
    int64_t even = pieces > 0 ? (size + pieces - 1) / pieces : 0;
    return (even + 15) / 16 * 16;
}

static tiling make_tiling(const tsrk_matmul *args, int team)
{
    int64_t limit = tile_limit(args, team);
    tiling out = {.rows = piece(args->m, limit), .cols = piece(args->n, limit)};
    out.row_tiles = out.rows > 0 ? (args->m + out.rows - 1) / out.rows : 0;
    out.col_tiles = out.cols > 0 ? (args->n + out.cols - 1) / out.cols : 0;
    int64_t depth = args->k < K_BLOCK ? args->k : K_BLOCK;
    if (tsrk_cpu_is_half(args->a_type)) {
        out.a_bytes = (size_t)(out.rows * depth) * sizeof(float);
    }
    if (tsrk_cpu_is_half(args->b_type)) {
        out.b_bytes = (size_t)(depth * out.cols) * sizeof(float);
    }
    bool bf16_product = args->a_type == TSR_BF16 && args->b_type == TSR_BF16;
    if (tsrk_cpu_is_half(args->c_type) || (bf16_product && args->accumulate)) {
        out.c_bytes = (size_t)(out.rows * out.cols) * sizeof(float);
    }
    return out;
}

static size_t thread_bytes(const tiling *t)
{
    size_t bytes = t->a_bytes + t->b_bytes + t->c_bytes;
    return (bytes + 63) / 64 * 64;
}

size_t tsrk_cpu_ws_matmul(const tsrk_matmul *args, int threads)
{
    tiling t = make_tiling(args, 1); /* where the team counts, nothing is needed */
    return thread_bytes(&t) * (size_t)threads;
}

/* One tile of c: its place, and the operands' first elements. */
typedef struct c_tile {
    int64_t row, col, rows, cols;
    const void *a, *b;
    void *c;
} c_tile;

static c_tile find_tile(const tsrk_matmul *args, const tiling *t, int64_t index)
{
    int64_t row = index / t->col_tiles * t->rows;
    int64_t col = index % t->col_tiles * t->cols;
    c_tile out = {.row = row, .col = col};
    out.rows = args->m - row < t->rows ? args->m - row : t->rows;
    out.cols = args->n - col < t->cols ? args->n - col : t->cols;
    out.a = tsrk_cpu_at(args->a, args->a_type, args->trans_a ? row : row * args->lda);
    out.b = tsrk_cpu_at(args->b, args->b_type, args->trans_b ? col * args->ldb : col);
    out.c = tsrk_cpu_at_mut(args->c, args->c_type, (row * args->ldc) + col);
    return out;
}

/* The f32 form of a block [rows, cols] with row stride ld at array: itself, or converted to buffer;
 * *ld_out is its row stride. */
static const float *block_f32(const void *array, tsr_dtype type, int64_t rows, int64_t cols,
                              int64_t ld, float *buffer, int64_t *ld_out)
{
    *ld_out = ld;
    if (!tsrk_cpu_is_half(type)) {
        return array;
    }
    for (int64_t i = 0; i < rows; i++) {
        tsrk_cpu_load(buffer + (i * cols), array, type, i * ld, cols);
    }
    *ld_out = cols;
    return buffer;
}

/* out [rows, cols] = op(a) * op(b) + beta * out by f32 gemm, in blocks of k where one converts. */
static void tile_f32(const tsrk_matmul *args, const c_tile *at, float *a_block, float *b_block,
                     float beta, float *out, int64_t ld_out)
{
    bool converts = tsrk_cpu_is_half(args->a_type) || tsrk_cpu_is_half(args->b_type);
    int64_t step = converts && args->k > K_BLOCK ? K_BLOCK : args->k;
    int64_t p = 0;
    do {
        int64_t depth = args->k - p < step ? args->k - p : step;
        int64_t lda;
        int64_t ldb;
        const float *a =
            block_f32(tsrk_cpu_at(at->a, args->a_type, args->trans_a ? p * args->lda : p),
                      args->a_type, args->trans_a ? depth : at->rows,
                      args->trans_a ? at->rows : depth, args->lda, a_block, &lda);
        const float *b =
            block_f32(tsrk_cpu_at(at->b, args->b_type, args->trans_b ? p : p * args->ldb),
                      args->b_type, args->trans_b ? at->cols : depth,
                      args->trans_b ? depth : at->cols, args->ldb, b_block, &ldb);
        tsrk_cpu_gemm gemm = {.a = a,
                              .b = b,
                              .m = at->rows,
                              .n = at->cols,
                              .k = depth,
                              .lda = lda,
                              .ldb = ldb,
                              .ldc = ld_out,
                              .alpha = 1.0F,
                              .beta = p == 0 ? beta : 1.0F,
                              .trans_a = args->trans_a,
                              .trans_b = args->trans_b};
        gemm.c = out;
        tsrk_cpu_gemm_f32(&gemm);
        p += depth;
    } while (p < args->k);
}

/* Add the bias to block [rows, cols], and move it to c unless it is there already. */
static void finish_tile(const tsrk_matmul *args, const c_tile *at, float *block, int64_t ld)
{
    float buffer[TILE_LARGE];
    const float *bias = args->bias;
    if (bias != NULL) {
        bias = tsrk_cpu_view(args->bias, args->bias_type, at->col, at->cols, buffer);
    }
    for (int64_t i = 0; i < at->rows && (bias != NULL || (void *)block != at->c); i++) {
        float *row = block + (i * ld);
        if (bias != NULL) {
            tsrk_cpu_store_add(row, TSR_F32, 0, bias, at->cols);
        }
        if ((void *)block != at->c && args->accumulate) {
            tsrk_cpu_store_add(at->c, args->c_type, i * args->ldc, row, at->cols);
        } else if ((void *)block != at->c) {
            tsrk_cpu_store(at->c, args->c_type, i * args->ldc, row, at->cols);
        }
    }
}

/* Try the bf16 product; false when it is not for this matmul or this processor. */
static bool tile_bf16(const tsrk_matmul *args, const c_tile *at, tsrk_cpu_bf16_gemm *gemm,
                      float *c_block)
{
    bool f32_out = args->c_type == TSR_F32;
    bool direct =
        !args->accumulate && (f32_out || (args->c_type == TSR_BF16 && args->bias == NULL));
    tsrk_cpu_bf16_tile tile = {.a = at->a,
                               .b = at->b,
                               .m = at->rows,
                               .n = at->cols,
                               .ldc = direct ? args->ldc : at->cols,
                               .c_type = direct ? args->c_type : TSR_F32};
    tile.c = c_block;
    if (direct) {
        tile.c = at->c;
    }
    if (!tsrk_cpu_bf16_gemm_run(gemm, args, &tile)) {
        return false;
    }
    if (f32_out || !direct) {
        finish_tile(args, at, tile.c, tile.ldc);
    }
    return true;
}

static void run_tile(const tsrk_matmul *args, const tiling *t, int64_t index, char *workspace,
                     tsrk_cpu_bf16_gemm *gemm)
{
    c_tile at = find_tile(args, t, index);
    float *a_block = (float *)(void *)workspace;
    float *b_block = workspace == NULL ? NULL : a_block + (t->a_bytes / sizeof(float));
    float *c_block = workspace == NULL ? NULL : b_block + (t->b_bytes / sizeof(float));
    if (gemm != NULL && tile_bf16(args, &at, gemm, c_block)) {
        return;
    }
    if (tsrk_cpu_is_half(args->c_type)) {
        tile_f32(args, &at, a_block, b_block, 0.0F, c_block, at.cols);
        finish_tile(args, &at, c_block, at.cols);
    } else {
        tile_f32(args, &at, a_block, b_block, args->accumulate ? 1.0F : 0.0F, at.c, args->ldc);
        finish_tile(args, &at, at.c, args->ldc);
    }
}

void tsrk_cpu_matmul(const tsrk_matmul *args)
{
    double work = (double)args->m * (double)args->n * (double)args->k;
    bool bf16 = args->a_type == TSR_BF16 && args->b_type == TSR_BF16 && work >= BF16_WORTH;
    int team = work < TEAM_WORTH ? 1 : omp_get_max_threads();
    tiling t = make_tiling(args, team);
    int64_t tiles = t.row_tiles * t.col_tiles;
    team = tiles < team ? (int)tiles : team;
    if (team < 1) {
        return;
    }
#pragma omp parallel num_threads(team)
    {
        tsrk_cpu_bf16_gemm gemm = {0};
        size_t slot = (size_t)omp_get_thread_num() * thread_bytes(&t);
        char *workspace = args->workspace == NULL ? NULL : (char *)args->workspace + slot;
        /* Whoever is held up, by other work on its core, takes fewer. */
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tiles; i++) {
            run_tile(args, &t, i, workspace, bf16 ? &gemm : NULL);
        }
        tsrk_cpu_bf16_gemm_close(&gemm);
    }
}

/* Columns that one thread sums at a time, and rows that it adds in f32 before it goes to double. */
#define SUM_COLS 128
#define SUM_ROWS 32

TSRK_CLONES static void add_rows(float *restrict sum, const void *x, tsr_dtype type, int64_t rows,
                                 int64_t cols, int64_t ld)
{
    float buffer[SUM_COLS];
    for (int64_t i = 0; i < rows; i++) {
        const float *row = tsrk_cpu_view(x, type, i * ld, cols, buffer);
#pragma omp simd
        for (int64_t j = 0; j < cols; j++) {
            sum[j] += row[j];
        }
    }
}

/* Columns col .. col + cols of out. */
static void sum_columns(const tsrk_col_sum *args, int64_t col, int64_t cols)
{
    double total[SUM_COLS] = {0.0};
    float out[SUM_COLS];
    for (int64_t i = 0; i < args->rows; i += SUM_ROWS) {
        float part[SUM_COLS] = {0.0F};
        int64_t rows = args->rows - i < SUM_ROWS ? args->rows - i : SUM_ROWS;
        add_rows(part, tsrk_cpu_at(args->x, args->x_type, (i * args->cols) + col), args->x_type,
                 rows, cols, args->cols);
        for (int64_t j = 0; j < cols; j++) {
            total[j] += (double)part[j];
        }
    }
    for (int64_t j = 0; j < cols; j++) {
        out[j] = (float)total[j];
    }
    if (args->accumulate) {
        tsrk_cpu_store_add(args->out, args->out_type, col, out, cols);
    } else {
        tsrk_cpu_store(args->out, args->out_type, col, out, cols);
    }
}

void tsrk_cpu_col_sum(const tsrk_col_sum *args)
{
    int64_t blocks = (args->cols + SUM_COLS - 1) / SUM_COLS;
#pragma omp parallel for num_threads(tsrk_cpu_team(args->rows * args->cols)) schedule(static)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t left = args->cols - (i * SUM_COLS);
        sum_columns(args, i * SUM_COLS, left < SUM_COLS ? left : SUM_COLS);
    }
}
