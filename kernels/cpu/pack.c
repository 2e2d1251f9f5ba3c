/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file pack.c
 * Operands of a product, copied into the order in which its tiles read them.
 *
 * Packing reads any strides and converts bf16 and f16 on the way, so the inner loop sees f32 alone.
 */
#include "kernels/cpu/tile.h"

/* A vector of each step of an f32 or bf16 array from element at on: of what it has too much, the
 * next step overwrites. */
static void pack_vectors(float *out, const tsrk_matmul *args, int64_t at, int64_t depth)
{
    if (args->a_type == TSR_F32) {
        const float *from = (const float *)args->a + at;
        for (int64_t q = 0; q < depth; q++) {
            store(out + (q * ROWS), load(from + (q * args->lda)));
        }
        return;
    }
    const uint16_t *from = (const uint16_t *)args->a + at;
    for (int64_t q = 0; q < depth; q++) {
        float wide[LANES];
        for (int i = 0; i < LANES; i++) {
            wide[i] = tsrk_cpu_from_bf16(from[(q * args->lda) + i]);
        }
        memcpy(out + (q * ROWS), wide, sizeof wide);
    }
}

void tsrk_cpu_pack_a(float *out, const tsrk_matmul *args, int64_t row, int64_t rows, int64_t p,
                     int64_t depth)
{
    if (!args->trans_a) {
        for (int64_t i = 0; i < rows; i++) {
            tsrk_cpu_load(out + (i * A_STRIDE), args->a, args->a_type, ((row + i) * args->lda) + p,
                          depth);
        }
        return;
    }
    bool inside = row + LANES <= args->m || p + depth < args->k; /* all that vectors read */
    if (LANES >= ROWS && args->a_type != TSR_F16 && inside) {
        pack_vectors(out, args, (p * args->lda) + row, depth);
        return;
    }
    float buffer[16];
    for (int64_t q = 0; q < depth; q++) {
        int64_t at = ((p + q) * args->lda) + row;
        const float *from = tsrk_cpu_view(args->a, args->a_type, at, rows, buffer);
        memcpy(out + (q * ROWS), from, (size_t)rows * sizeof *out);
    }
}

void tsrk_cpu_pack_b_rows(float *out, const tsrk_matmul *args, int64_t col, int64_t cols, int64_t p,
                          int64_t steps, int64_t depth)
{
    float buffer[PACK_COLS];
    int64_t full = cols / COLS * COLS;
    for (int64_t q = 0; q < steps; q++) {
        const float *from =
            tsrk_cpu_view(args->b, args->b_type, ((p + q) * args->ldb) + col, cols, buffer);
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

/* A line of each column is read once: 16 steps. */
void tsrk_cpu_pack_b_columns(float *out, const tsrk_matmul *args, int64_t col, int64_t cols,
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
