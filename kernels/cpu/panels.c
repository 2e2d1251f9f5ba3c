/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file panels.c
 * Products on one thread whose second operand is packed once and used several times.
 *
 * Attention multiplies block after block of queries by the same keys and values. Sums are ordered
 * as product.c's: blocks of k, each in order, added in order.
 */
#include "kernels/cpu/tile.h"

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t padded(int64_t n)
{
    return (n + COLS - 1) / COLS * COLS;
}

int64_t tsrk_cpu_panels_floats(int64_t k, int64_t n)
{
    return k * ((n + 31) / 32 * 32); /* panels of the widest level */
}

int64_t tsrk_cpu_panels_scratch(void)
{
    return MEMBER_FLOATS;
}

tsrk_cpu_panels tsrk_cpu_panels_pack(float *out, const float *b, int64_t ldb, bool trans_b,
                                     int64_t k, int64_t n)
{
    tsrk_matmul args = {.b = b, .ldb = ldb, .b_type = TSR_F32, .trans_b = trans_b, .k = k, .n = n};
    for (int64_t p = 0; p < k; p += TSRK_CPU_K_BLOCK) {
        int64_t depth = least(TSRK_CPU_K_BLOCK, k - p);
        for (int64_t j = 0; j < n; j += COLS) {
            float *to = out + (p * padded(n)) + (j * depth);
            if (trans_b) {
                tsrk_cpu_pack_b_columns(to, &args, j, least(COLS, n - j), p, depth);
            } else {
                tsrk_cpu_pack_b_rows(to, &args, j, least(COLS, n - j), p, depth, depth);
            }
        }
    }
    return (tsrk_cpu_panels){.at = out, .k = k, .n = n};
}

/* Rows row .. row + rows of c, over steps p .. of k. */
static void run_panel(const tsrk_cpu_times *args, const tsrk_matmul *a, int64_t row, int64_t rows,
                      int64_t p)
{
    const tsrk_cpu_panels *b = &args->b;
    float *panel = args->scratch + EDGE_FLOATS;
    int64_t n = args->n + (args->n_grows ? row + rows - 1 : 0);
    int64_t packed = least(TSRK_CPU_K_BLOCK, b->k - p);
    prefetch none = {.at = (const char *)args->a};
    tile t = {.c = args->c + (row * args->ldc),
              .edge = args->scratch,
              .ldc = args->ldc,
              .depth = least(TSRK_CPU_K_BLOCK, a->k - p),
              .add = args->add || p > 0};
    tsrk_cpu_pack_a(panel, a, row, rows, p, t.depth);
    for (int64_t j = 0; j < n; j += COLS) {
        const float *from = b->at + (p * padded(b->n)) + (j * packed);
        t.cols = least(COLS, n - j);
        if (args->trans_a) {
            tsrk_cpu_tile_by_step(rows, panel, from, &t, &none);
        } else {
            tsrk_cpu_tile_along_k(rows, panel, from, &t, &none);
        }
        t.c += COLS;
    }
}

void tsrk_cpu_panels_times(const tsrk_cpu_times *args)
{
    tsrk_matmul a = {
        .a = args->a, .lda = args->lda, .a_type = TSR_F32, .trans_a = args->trans_a, .m = args->m};
    int64_t count = (args->m + ROWS - 1) / ROWS;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = args->m * i / count; /* of equal height */
        int64_t rows = (args->m * (i + 1) / count) - row;
        a.k = args->k + (args->k_grows ? row + rows - 1 : 0);
        for (int64_t p = 0; p < a.k; p += TSRK_CPU_K_BLOCK) {
            run_panel(args, &a, row, rows, p);
        }
    }
}
