/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file matmul.c
 * matmul.
 *
 * c [m, n] (+)= op(a) [m, k] * op(b) [k, n] + bias [n]; 2 m n k flops, accumulated in f32 along the
 * whole of k.
 *
 * bf16 times bf16 uses the processor's product where the level has one: c is cut into tiles whose
 * borders follow from m and n alone, and a thread computes a tile over the whole of k, so the bits
 * do not depend on the team. Everything else is product.c's.
 */
#include "kernels/cpu/cpu_priv.h"

#define TILE       256
#define TILE_LARGE 512
/* From so many elements of c on, larger tiles, which pack less, still feed any team. */
#define LARGE_AREA ((int64_t)4096 * 4096)
/* Multiplications below which making a bf16 primitive (30 us) costs more than it saves. */
#define BF16_WORTH (4 * 1024 * 1024)
/* Multiplications below which a second thread costs more than it brings (10 us of gemm). */
#define TEAM_WORTH (512 * 1024)

typedef struct tiling {
    int64_t rows, cols;           /* of a tile */
    int64_t row_tiles, col_tiles; /* of c */
    size_t bytes;                 /* of a thread's workspace */
} tiling;

/* Pieces of equal size, as few as limit allows, in whole SIMD vectors. */
static int64_t piece(int64_t size, int64_t limit)
{
    int64_t pieces = (size + limit - 1) / limit;
    int64_t even = pieces > 0 ? (size + pieces - 1) / pieces : 0;
    return (even + 15) / 16 * 16;
}

static bool is_bf16(const tsrk_matmul *args)
{
    double work = (double)args->m * (double)args->n * (double)args->k;
    return args->a_type == TSR_BF16 && args->b_type == TSR_BF16 && work >= BF16_WORTH;
}

static tiling make_tiling(const tsrk_matmul *args)
{
    bool large = args->n > 0 && args->m >= LARGE_AREA / args->n; /* no overflow */
    int64_t limit = large ? TILE_LARGE : TILE;
    tiling out = {.rows = piece(args->m, limit), .cols = piece(args->n, limit)};
    out.row_tiles = out.rows > 0 ? (args->m + out.rows - 1) / out.rows : 0;
    out.col_tiles = out.cols > 0 ? (args->n + out.cols - 1) / out.cols : 0;
    tsrk_matmul tile = *args;
    tile.m = out.rows;
    tile.n = out.cols;
    out.bytes = tsrk_cpu_product_bytes(&tile, 1);
    size_t block = (size_t)(out.rows * out.cols) * sizeof(float);
    if (out.bytes < block) {
        out.bytes = block;
    }
    out.bytes = (out.bytes + 63) / 64 * 64;
    return out;
}

/* Of one of a batch's products, on one thread. */
static size_t item_bytes(const tsrk_matmul *args)
{
    return (tsrk_cpu_product_bytes(args, 1) + 63) / 64 * 64;
}

size_t tsrk_cpu_ws_matmul(const tsrk_matmul *args, int threads)
{
    size_t bytes = tsrk_cpu_product_bytes(args, threads);
    if (args->batch > 1) {
        size_t items = item_bytes(args) * (size_t)threads;
        bytes = items > bytes ? items : bytes;
    }
    if (is_bf16(args)) {
        tiling t = make_tiling(args);
        size_t tiles = t.bytes * (size_t)threads;
        bytes = tiles > bytes ? tiles : bytes;
    }
    return bytes;
}

/* The product that is one tile of c. */
static tsrk_matmul find_tile(const tsrk_matmul *args, const tiling *t, int64_t index)
{
    int64_t row = index / t->col_tiles * t->rows;
    int64_t col = index % t->col_tiles * t->cols;
    tsrk_matmul out = *args;
    out.m = args->m - row < t->rows ? args->m - row : t->rows;
    out.n = args->n - col < t->cols ? args->n - col : t->cols;
    out.a = tsrk_cpu_at(args->a, args->a_type, args->trans_a ? row : row * args->lda);
    out.b = tsrk_cpu_at(args->b, args->b_type, args->trans_b ? col * args->ldb : col);
    out.c = tsrk_cpu_at_mut(args->c, args->c_type, (row * args->ldc) + col);
    if (args->bias != NULL) {
        out.bias = tsrk_cpu_at(args->bias, args->bias_type, col);
    }
    return out;
}

/* Add the bias to block [rows, cols], and move it to c unless it is there already. */
static void finish_tile(const tsrk_matmul *tile, float *block, int64_t ld)
{
    float buffer[TILE_LARGE];
    const float *bias = tile->bias;
    if (bias != NULL) {
        bias = tsrk_cpu_view(tile->bias, tile->bias_type, 0, tile->n, buffer);
    }
    for (int64_t i = 0; i < tile->m && (bias != NULL || (void *)block != tile->c); i++) {
        float *row = block + (i * ld);
        if (bias != NULL) {
            tsrk_cpu_store_add(row, TSR_F32, 0, bias, tile->n);
        }
        if ((void *)block != tile->c && tile->accumulate) {
            tsrk_cpu_store_add(tile->c, tile->c_type, i * tile->ldc, row, tile->n);
        } else if ((void *)block != tile->c) {
            tsrk_cpu_store(tile->c, tile->c_type, i * tile->ldc, row, tile->n);
        }
    }
}

/* By the processor's bf16 product, or where it has none for this form, in f32. */
static void run_tile(const tsrk_matmul *tile, tsrk_cpu_bf16_gemm *gemm, void *workspace)
{
    bool f32_out = tile->c_type == TSR_F32;
    bool direct =
        !tile->accumulate && (f32_out || (tile->c_type == TSR_BF16 && tile->bias == NULL));
    tsrk_cpu_bf16_tile to = {.a = tile->a,
                             .b = tile->b,
                             .c = direct ? tile->c : workspace,
                             .m = tile->m,
                             .n = tile->n,
                             .ldc = direct ? tile->ldc : tile->n,
                             .c_type = direct ? tile->c_type : TSR_F32};
    if (!tsrk_cpu_bf16_gemm_run(gemm, tile, &to)) {
        tsrk_cpu_product(tile, 1, workspace);
    } else if (f32_out || !direct) {
        finish_tile(tile, to.c, to.ldc);
    }
}

static int team_of(const tsrk_context *context, int64_t tiles)
{
    return tiles < context->threads ? (int)tiles : context->threads;
}

static void run_tiles(const tsrk_matmul *args, const tsrk_context *context)
{
    tiling t = make_tiling(args);
    int64_t tiles = t.row_tiles * t.col_tiles;
#pragma omp parallel num_threads(team_of(context, tiles))
    {
        tsrk_cpu_bf16_gemm gemm = {0};
        void *workspace = (char *)args->workspace + ((size_t)omp_get_thread_num() * t.bytes);
        /* Whoever is held up, by other work on its core, takes fewer. */
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tiles; i++) {
            tsrk_matmul tile = find_tile(args, &t, i);
            run_tile(&tile, &gemm, workspace);
        }
        tsrk_cpu_bf16_gemm_close(&gemm);
    }
}

static void run_one(const tsrk_matmul *args, const tsrk_context *context)
{
    double work = (double)args->m * (double)args->n * (double)args->k;
    if (is_bf16(args) && tsrk_cpu_has_bf16()) {
        run_tiles(args, context);
    } else {
        tsrk_cpu_product(args, work < TEAM_WORTH ? 1 : context->threads, args->workspace);
    }
}

static tsrk_matmul item_of(const tsrk_matmul *args, int64_t i)
{
    tsrk_matmul item = *args;
    item.a = tsrk_cpu_at(args->a, args->a_type, i * args->stride_a);
    item.b = tsrk_cpu_at(args->b, args->b_type, i * args->stride_b);
    item.c = tsrk_cpu_at_mut(args->c, args->c_type, i * args->stride_c);
    item.batch = 0;
    return item;
}

/* A product per thread where there are enough of them, else all threads at each. */
tsr_status tsrk_cpu_matmul(const tsrk_matmul *args, const tsrk_context *context)
{
    int64_t count = args->batch > 0 ? args->batch : 1;
    double work = (double)args->m * (double)args->n * (double)args->k * (double)count;
    int team = work < TEAM_WORTH ? 1 : context->threads;
    if (count < team || count == 1 || (is_bf16(args) && tsrk_cpu_has_bf16())) {
        for (int64_t i = 0; i < count; i++) {
            tsrk_matmul item = item_of(args, i);
            run_one(&item, context);
        }
        return TSR_OK;
    }
    size_t bytes = item_bytes(args);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        tsrk_matmul item = item_of(args, i);
        tsrk_cpu_product(&item, 1,
                         (char *)args->workspace + ((size_t)omp_get_thread_num() * bytes));
    }
    return TSR_OK;
}
