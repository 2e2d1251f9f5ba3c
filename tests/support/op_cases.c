/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file op_cases.c
 * The operations' test cases.
 */
#include "op_cases.h"

#include "base/base.h"
#include "base/rng.h"

#include <string.h>

#include "support/custom_ops.h"
#include "support/tape_rig.h"

enum {
    IDS_BELOW = 7 /* vocabulary of the cases */
};

static tsr_status build_linear(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_linear(tape, in[0], in[1], NULL, out);
}

static tsr_status build_linear_bias(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_linear(tape, in[0], in[1], in[2], out);
}

static tsr_status build_embedding(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_embedding(tape, in[0], in[1], out);
}

static tsr_status build_position(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_add_position(tape, in[0], in[1], out);
}

static tsr_status build_layernorm(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_layernorm(tape, in[0], in[1], in[2], 1e-2, out);
}

static tsr_status build_rmsnorm(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_rmsnorm(tape, in[0], in[1], 1e-2, out);
}

static tsr_status build_gelu(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_gelu(tape, in[0], out);
}

static tsr_status build_softmax(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_softmax(tape, in[0], out);
}

/* Softmax reads its output in backward, which its own product reads too. */
static tsr_status build_softmax_product(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *y = NULL;

    TSR_TRY(tsr_op_softmax(tape, in[0], &y));
    TSR_TRY(tsr_op_multiply(tape, y, in[0], &y));
    TSR_TRY(tsr_op_softmax(tape, y, out));
    return TSR_OK;
}

static tsr_status build_relu(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_relu(tape, in[0], out);
}

static tsr_status build_tanh(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_tanh(tape, in[0], out);
}

static tsr_status build_sigmoid(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_sigmoid(tape, in[0], out);
}

static tsr_status build_multiply(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_multiply(tape, in[0], in[1], out);
}

/* A value times itself, and times its own sum over rows. */
static tsr_status build_multiply_self(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *sum = NULL;
    tsr_dtensor *square = NULL;

    TSR_TRY(tsr_op_sum(tape, in[0], 0, false, &sum));
    TSR_TRY(tsr_op_multiply(tape, in[0], in[0], &square));
    TSR_TRY(tsr_op_multiply(tape, square, sum, out));
    return TSR_OK;
}

static tsr_status build_sum_first(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_sum(tape, in[0], 0, false, out);
}

static tsr_status build_mean_middle(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_mean(tape, in[0], 1, false, out);
}

/* A value times its mean over the middle, which is kept for it. */
static tsr_status build_mean_kept(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *mean = NULL;

    TSR_TRY(tsr_op_mean(tape, in[0], 1, true, &mean));
    TSR_TRY(tsr_op_multiply(tape, in[0], mean, out));
    return TSR_OK;
}

static tsr_status build_sum_last(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_sum(tape, in[0], 2, false, out);
}

/* A loss of the program's own: the mean of x times its tanh. */
static tsr_status build_means(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *y = NULL;

    TSR_TRY(tsr_op_tanh(tape, in[0], &y));
    TSR_TRY(tsr_op_multiply(tape, in[0], y, &y));
    TSR_TRY(tsr_op_mean(tape, y, 1, false, &y));
    TSR_TRY(tsr_op_mean(tape, y, 1, false, &y));
    TSR_TRY(tsr_op_sum(tape, y, 0, false, out));
    return TSR_OK;
}

static tsr_status build_silu_mul(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_silu_mul(tape, in[0], in[1], out);
}

/* One value as both inputs: its two gradients meet, and one that came before. */
static tsr_status build_silu_square(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *square = NULL;
    tsr_dtensor *other = NULL;

    TSR_TRY(tsr_op_silu_mul(tape, in[0], in[0], &square));
    TSR_TRY(tsr_op_gelu(tape, in[0], &other));
    TSR_TRY(tsr_op_add(tape, square, other, out));
    return TSR_OK;
}

static tsr_status build_heads(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *heads = NULL;
    tsr_dtensor *turned = NULL;

    TSR_TRY(tsr_op_split_heads(tape, in[0], 12, &heads));
    TSR_TRY(tsr_op_rope(tape, heads, 100.0, &turned));
    TSR_TRY(tsr_op_merge_heads(tape, turned, out));
    return TSR_OK;
}

/* Positions from an offset on: in a table of its own, then within it. */
static tsr_status build_rope_at(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *once = NULL;

    TSR_TRY(tsr_op_rope_at(tape, in[0], 100.0, 254, &once));
    TSR_TRY(tsr_op_rope_at(tape, once, 100.0, 300, out));
    return TSR_OK;
}

static tsr_status build_slice_first(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_slice(tape, in[0], 0, 1, 2, out);
}

/* Two slices that share an entry. */
static tsr_status build_slices(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *low = NULL;
    tsr_dtensor *high = NULL;

    TSR_TRY(tsr_op_slice(tape, in[0], 1, 0, 4, &low));
    TSR_TRY(tsr_op_slice(tape, in[0], 1, 3, 4, &high));
    TSR_TRY(tsr_op_multiply(tape, low, high, out));
    return TSR_OK;
}

static tsr_status build_concat(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_concat(tape, in, 3, 1, out);
}

/* A value twice, around another, along the first dim. */
static tsr_status build_concat_twice(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *parts[] = {in[0], in[1], in[0]};

    TSR_TRY(tsr_op_concat(tape, parts, 3, 0, out));
    return TSR_OK;
}

static tsr_status build_attention(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_attention(tape, in[0], in[1], in[2], 0.0, out);
}

static tsr_status build_attention_full(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    const tsr_attention_options options = {.scale = 0.75, .full = true};

    TSR_TRY(tsr_op_attention_with(tape, in[0], in[1], in[2], &options, out));
    return TSR_OK;
}

static tsr_status build_matmul(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_matmul(tape, in[0], in[1], NULL, out);
}

static tsr_status build_matmul_ta(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_matmul(tape, in[0], in[1], &(tsr_matmul_options){.trans_a = true}, out);
}

static tsr_status build_matmul_tb(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_matmul(tape, in[0], in[1], &(tsr_matmul_options){.trans_b = true}, out);
}

static tsr_status build_matmul_both(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    const tsr_matmul_options options = {.trans_a = true, .trans_b = true};

    TSR_TRY(tsr_op_matmul(tape, in[0], in[1], &options, out));
    return TSR_OK;
}

/* One value against itself: products of its rows. */
static tsr_status build_gram(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_matmul(tape, in[0], in[0], &(tsr_matmul_options){.trans_b = true}, out);
}

static tsr_status build_add(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_add(tape, in[0], in[1], out);
}

/* x used by an addition twice and by something else: contributions of several kinds to one value.
 */
static tsr_status build_residual(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *h = NULL;
    tsr_dtensor *sum = NULL;

    TSR_TRY(tsr_op_linear(tape, in[0], in[1], NULL, &h));
    TSR_TRY(tsr_op_add(tape, in[0], h, &sum));
    TSR_TRY(tsr_op_linear(tape, sum, in[1], NULL, &h));
    TSR_TRY(tsr_op_gelu(tape, h, &h));
    TSR_TRY(tsr_op_add(tape, sum, h, &sum));
    TSR_TRY(tsr_op_add(tape, sum, in[0], out));
    return TSR_OK;
}

static tsr_status build_scale(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_scale(tape, in[0], -1.75, out);
}

static tsr_status build_dropout(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *once = NULL;

    TSR_TRY(tsr_op_dropout(tape, in[0], 0.25, &once));
    TSR_TRY(tsr_op_dropout(tape, once, 0.25, out));
    return TSR_OK;
}

static tsr_status build_cross_entropy(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return tsr_op_cross_entropy(tape, in[0], in[1], out);
}

static tsr_status build_softcap(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return softcap(tape, in[0], 1.5F, out);
}

/* Three gradients of one value: written, added, and written by one that cannot add. */
static tsr_status build_customs(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *rows = NULL;
    tsr_dtensor *wide = NULL;
    tsr_dtensor *narrow = NULL;

    TSR_TRY(unit_rows(tape, in[0], in[1], &rows));
    TSR_TRY(softcap(tape, in[0], 1.5F, &wide));
    TSR_TRY(softcap(tape, in[0], 0.75F, &narrow));
    TSR_TRY(tsr_op_add(tape, wide, narrow, &wide));
    TSR_TRY(tsr_op_add(tape, rows, wide, out));
    return TSR_OK;
}

static tsr_status build_unit_rows(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return unit_rows(tape, in[0], in[1], out);
}

static tsr_status build_dot_rows(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    return dot_rows(tape, in[0], in[1], out);
}

static tsr_status build_own_linear(tsr_tape *tape, tsr_dtensor *const *in, tsr_dtensor **out)
{
    tsr_dtensor *h = NULL;

    TSR_TRY(own_linear(tape, in[0], in[1], &h));
    TSR_TRY(own_linear(tape, h, in[1], &h));
    TSR_TRY(tsr_op_add(tape, h, in[0], out));
    return TSR_OK;
}

/* clang-format off */
const op_case op_cases[] = {
    {"linear", build_linear,
     {{OP_INPUT_VALUE, 3, {2, 3, 5}},
      {OP_INPUT_PARAM, 2, {7, 5}}}, 2, false},
    {"linear with bias", build_linear_bias,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_PARAM, 2, {7, 5}},
      {OP_INPUT_PARAM, 1, {7}}}, 3, false},
    {"linear of values", build_linear_bias,
     {{OP_INPUT_VALUE, 2, {4, 6}},
      {OP_INPUT_VALUE, 2, {5, 6}},
      {OP_INPUT_VALUE, 1, {5}}}, 3, false},
    {"embedding", build_embedding,
     {{OP_INPUT_IDS, 2, {3, 5}},
      {OP_INPUT_PARAM, 2, {IDS_BELOW, 4}}}, 2, false},
    {"add_position", build_position,
     {{OP_INPUT_VALUE, 3, {3, 5, 4}},
      {OP_INPUT_PARAM, 2, {6, 4}}}, 2, false},
    {"layernorm", build_layernorm,
     {{OP_INPUT_VALUE, 3, {3, 3, 6}},
      {OP_INPUT_PARAM, 1, {6}},
      {OP_INPUT_PARAM, 1, {6}}}, 3, false},
    {"rmsnorm", build_rmsnorm,
     {{OP_INPUT_VALUE, 3, {3, 3, 6}},
      {OP_INPUT_PARAM, 1, {6}}}, 2, false},
    {"gelu", build_gelu,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}}}, 1, false},
    {"softmax", build_softmax,
     {{OP_INPUT_VALUE, 3, {3, 4, 5}}}, 1, false},
    {"softmax of a product of one", build_softmax_product,
     {{OP_INPUT_VALUE, 2, {5, 3}}}, 1, false},
    {"relu", build_relu,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}}}, 1, false},
    {"tanh", build_tanh,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}}}, 1, false},
    {"sigmoid", build_sigmoid,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}}}, 1, false},
    {"multiply", build_multiply,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_VALUE, 3, {3, 2, 5}}}, 2, false},
    {"multiply by a vector", build_multiply,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_PARAM, 1, {5}}}, 2, false},
    {"multiply by rows", build_multiply,
     {{OP_INPUT_VALUE, 3, {3, 4, 5}},
      {OP_INPUT_VALUE, 3, {3, 4, 1}}}, 2, false},
    {"multiply along the middle", build_multiply,
     {{OP_INPUT_VALUE, 4, {2, 3, 2, 5}},
      {OP_INPUT_VALUE, 4, {2, 1, 1, 5}}}, 2, false},
    {"multiply by a number", build_multiply,
     {{OP_INPUT_VALUE, 2, {3, 5}},
      {OP_INPUT_PARAM, 1, {1}}}, 2, false},
    {"multiply past a dim of one", build_multiply,
     {{OP_INPUT_VALUE, 3, {4, 1, 3}},
      {OP_INPUT_VALUE, 3, {1, 1, 1}}}, 2, false},
    {"multiply of dims of one", build_multiply,
     {{OP_INPUT_VALUE, 4, {1, 3, 1, 2}},
      {OP_INPUT_PARAM, 4, {1, 3, 1, 1}}}, 2, false},
    {"multiply by itself", build_multiply_self,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}}}, 1, false},
    {"sum over the first", build_sum_first,
     {{OP_INPUT_VALUE, 3, {5, 2, 3}}}, 1, false},
    {"mean over the middle", build_mean_middle,
     {{OP_INPUT_VALUE, 3, {3, 5, 4}}}, 1, false},
    {"times the mean over the middle", build_mean_kept,
     {{OP_INPUT_VALUE, 3, {3, 5, 4}}}, 1, false},
    {"sum over the last", build_sum_last,
     {{OP_INPUT_VALUE, 3, {3, 2, 7}}}, 1, false},
    {"mean of all", build_means,
     {{OP_INPUT_VALUE, 3, {3, 5, 7}}}, 1, true},
    {"silu_mul", build_silu_mul,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_VALUE, 3, {3, 2, 5}}}, 2, false},
    {"silu_mul of one value", build_silu_square,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}}}, 1, false},
    {"heads and rope", build_heads,
     {{OP_INPUT_VALUE, 3, {3, 5, 24}}}, 1, false},
    {"rope at an offset", build_rope_at,
     {{OP_INPUT_VALUE, 4, {2, 5, 3, 4}}}, 1, false},
    {"slice of the first", build_slice_first,
     {{OP_INPUT_VALUE, 3, {4, 2, 5}}}, 1, false},
    {"slices of the middle", build_slices,
     {{OP_INPUT_VALUE, 3, {3, 7, 4}}}, 1, false},
    {"concat along the middle", build_concat,
     {{OP_INPUT_VALUE, 3, {3, 2, 4}},
      {OP_INPUT_PARAM, 3, {3, 1, 4}},
      {OP_INPUT_VALUE, 3, {3, 4, 4}}}, 3, false},
    {"concat of one twice", build_concat_twice,
     {{OP_INPUT_VALUE, 2, {3, 5}},
      {OP_INPUT_VALUE, 2, {2, 5}}}, 2, false},
    {"attention", build_attention,
     {{OP_INPUT_VALUE, 4, {2, 3, 12, 2}},
      {OP_INPUT_VALUE, 4, {2, 3, 12, 2}},
      {OP_INPUT_VALUE, 4, {2, 3, 12, 2}}}, 3, false},
    {"attention of 6 kv heads", build_attention,
     {{OP_INPUT_VALUE, 4, {2, 3, 12, 2}},
      {OP_INPUT_VALUE, 4, {2, 3, 6, 2}},
      {OP_INPUT_VALUE, 4, {2, 3, 6, 2}}}, 3, false},
    {"attention of 1 kv head", build_attention,
     {{OP_INPUT_VALUE, 4, {3, 3, 12, 2}},
      {OP_INPUT_VALUE, 4, {3, 3, 1, 2}},
      {OP_INPUT_VALUE, 4, {3, 3, 1, 2}}}, 3, false},
    {"attention, full", build_attention_full,
     {{OP_INPUT_VALUE, 4, {2, 3, 12, 2}},
      {OP_INPUT_VALUE, 4, {2, 3, 12, 2}},
      {OP_INPUT_VALUE, 4, {2, 3, 12, 2}}}, 3, false},
    {"attention across, 6 kv heads", build_attention_full,
     {{OP_INPUT_VALUE, 4, {2, 3, 12, 2}},
      {OP_INPUT_VALUE, 4, {2, 5, 6, 2}},
      {OP_INPUT_VALUE, 4, {2, 5, 6, 2}}}, 3, false},
    {"attention across, 1 kv head", build_attention_full,
     {{OP_INPUT_VALUE, 4, {3, 5, 12, 2}},
      {OP_INPUT_VALUE, 4, {3, 2, 1, 2}},
      {OP_INPUT_VALUE, 4, {3, 2, 1, 2}}}, 3, false},
    {"attention of the last queries", build_attention,
     {{OP_INPUT_VALUE, 4, {2, 2, 12, 2}},
      {OP_INPUT_VALUE, 4, {2, 5, 6, 2}},
      {OP_INPUT_VALUE, 4, {2, 5, 6, 2}}}, 3, false},
    {"matmul", build_matmul,
     {{OP_INPUT_VALUE, 4, {2, 3, 5, 4}},
      {OP_INPUT_VALUE, 4, {2, 3, 4, 3}}}, 2, false},
    {"matmul of a transposed", build_matmul_ta,
     {{OP_INPUT_VALUE, 3, {3, 4, 5}},
      {OP_INPUT_PARAM, 3, {3, 4, 3}}}, 2, false},
    {"matmul of b transposed", build_matmul_tb,
     {{OP_INPUT_VALUE, 3, {3, 5, 7}},
      {OP_INPUT_VALUE, 3, {3, 4, 7}}}, 2, false},
    {"matmul of both transposed", build_matmul_both,
     {{OP_INPUT_VALUE, 2, {4, 5}},
      {OP_INPUT_VALUE, 2, {3, 4}}}, 2, false},
    {"matmul with itself", build_gram,
     {{OP_INPUT_VALUE, 3, {3, 4, 5}}}, 1, false},
    {"add", build_add,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_VALUE, 3, {3, 2, 5}}}, 2, false},
    {"residual", build_residual,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_PARAM, 2, {5, 5}}}, 2, false},
    {"scale", build_scale,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}}}, 1, false},
    {"dropout", build_dropout,
     {{OP_INPUT_VALUE, 4, {3, 3, 4, 5}}}, 1, false},
    {"dropout of rows", build_dropout,
     {{OP_INPUT_VALUE, 2, {7, 5}}}, 1, false},
    {"cross_entropy", build_cross_entropy,
     {{OP_INPUT_VALUE, 3, {3, 5, IDS_BELOW}},
      {OP_INPUT_IDS, 2, {3, 5}}}, 2, true},
    {"custom: softcap", build_softcap,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}}}, 1, false},
    {"custom: three of one value", build_customs,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_PARAM, 1, {5}}}, 2, false},
    {"custom: unit_rows", build_unit_rows,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_PARAM, 1, {5}}}, 2, false},
    {"custom: own_linear", build_own_linear,
     {{OP_INPUT_VALUE, 3, {3, 2, 5}},
      {OP_INPUT_PARAM, 2, {5, 5}}}, 2, false},
    {"custom: dot_rows", build_dot_rows,
     {{OP_INPUT_VALUE, 3, {3, 2, 7}},
      {OP_INPUT_PARAM, 1, {7}}}, 2, false},
};
/* clang-format on */
const int op_case_count = (int)(sizeof(op_cases) / sizeof(op_cases[0]));

int64_t op_input_count(const op_input *in)
{
    int64_t count = 1;

    for (int d = 0; d < in->ndim; d++) {
        count *= in->shape[d];
    }
    return count;
}

void op_case_values(const op_case *c, int i, float *values, int32_t *ids)
{
    const int64_t count = op_input_count(&c->in[i]);
    const uint64_t key = tsri_rng_key(1, tsri_hash_text(c->name), (uint64_t)i, 0);

    for (int64_t e = 0; e < count; e++) {
        values[e] = 2.0F * tsri_rng_uniform(key, (uint64_t)e) - 1.0F;
        if (strcmp(c->name, "relu") == 0) { /* differences are taken away from where it bends */
            values[e] += values[e] < 0.0F ? -0.25F : 0.25F;
        }
        ids[e] = (int32_t)(tsri_rng_word(key, (uint64_t)e) % IDS_BELOW);
    }
    /* A row that does not count; as a token id it would be out of range. */
    if (strcmp(c->name, "embedding") != 0) {
        ids[count / 2] = TSR_IGNORE_INDEX;
    }
}

/* The leaves and constants of a case. */
static tsr_status make_inputs(rig *r, const op_case *c, const tsr_layout *layouts,
                              float *const *values, rig_leaf **leaves, tsr_dtensor **ids)
{
    for (int i = 0; i < c->in_count; i++) {
        if (c->in[i].kind == OP_INPUT_IDS) {
            float unused[OP_CASE_MAX_ELEMENTS];
            int32_t numbers[OP_CASE_MAX_ELEMENTS];

            op_case_values(c, i, unused, numbers);
            TSR_TRY(rig_ints(r, &layouts[i], numbers, &ids[i]));
        } else {
            TSR_TRY(rig_leaf_add(r, c->name, &layouts[i], values[i], &leaves[i]));
        }
    }
    return TSR_OK;
}

static tsr_status read_result(tsr_dtensor *y, op_result *out)
{
    out->y_count = 1;
    for (int d = 0; d < y->layout.ndim; d++) {
        out->y_count *= y->layout.shape[d];
    }
    TSR_TRY(rig_read(y, out->y));
    return TSR_OK;
}

static tsr_status make_weight(rig *r, const tsr_dtensor *y, tsr_dtensor **out)
{
    float weight[OP_CASE_MAX_ELEMENTS];
    tsr_layout layout;
    int64_t count = 1;

    for (int d = 0; d < y->layout.ndim; d++) {
        count *= y->layout.shape[d];
    }
    for (int64_t e = 0; e < count; e++) {
        weight[e] = 2.0F * tsri_rng_uniform(99, (uint64_t)e) - 1.0F;
    }
    TSR_TRY(tsr_layout_init(r->mesh, y->layout.shape, y->layout.ndim, &layout));
    TSR_TRY(rig_floats(r, &layout, weight, out));
    return TSR_OK;
}

static tsr_status run_forward(rig *r, const op_case *c, rig_leaf *const *leaves,
                              tsr_dtensor *const *ids, tsr_dtensor **weight, op_result *out,
                              tsr_dtensor **loss)
{
    tsr_dtensor *in[OP_CASE_MAX_IN] = {NULL};
    tsr_dtensor *y = NULL;

    for (int i = 0; i < c->in_count; i++) {
        in[i] = leaves[i] != NULL ? leaves[i]->param.value : ids[i];
        if (c->in[i].kind == OP_INPUT_VALUE) {
            TSR_TRY(tsr_op_scale(r->tape, in[i], 1.0, &in[i]));
        }
    }
    TSR_TRY(c->build(r->tape, in, &y));
    TSR_TRY(read_result(y, out));
    *loss = y;
    if (!c->is_loss) {
        TSR_TRY(make_weight(r, y, weight));
        TSR_TRY(rig_dot(r->tape, y, *weight, loss));
    }
    return TSR_OK;
}

static tsr_status run_step(rig *r, const op_case *c, rig_leaf *const *leaves,
                           tsr_dtensor *const *ids, bool gradients, op_result *out)
{
    tsr_dtensor *labels = ids[1] != NULL ? ids[1] : r->labels;
    tsr_dtensor *weight = NULL;
    tsr_dtensor *loss = NULL;
    tsr_status status = TSR_OK;
    tsr_status ended = TSR_OK;

    TSR_TRY(tsr_step_begin(r->tape, 3, &labels, 1));
    TSR_TRY_GOTO(status, tsr_tape_begin(r->tape, 0), end_step);
    TSR_TRY_GOTO(status, run_forward(r, c, leaves, ids, &weight, out, &loss), end_step);
    TSR_TRY_GOTO(status, rig_read(loss, &out->loss), end_step);
    if (gradients) {
        TSR_TRY_GOTO(status, tsr_backward(r->tape, loss), end_step);
        TSR_TRY_GOTO(status, tsr_step_loss(r->tape, &out->loss), end_step);
    }
end_step:
    ended = tsr_step_end(r->tape);
    tsr_dtensor_release(&weight);
    return status != TSR_OK ? status : ended;
}

tsr_status op_case_run(rig *r, const op_case *c, const tsr_layout *layouts, float *const *values,
                       bool gradients, op_result *out)
{
    rig_leaf *leaves[OP_CASE_MAX_IN] = {NULL};
    tsr_dtensor *ids[OP_CASE_MAX_IN] = {NULL};
    tsr_status status = TSR_OK;

    memset(out, 0, sizeof(*out));
    TSR_TRY_GOTO(status, make_inputs(r, c, layouts, values, leaves, ids), release_inputs);
    TSR_TRY_GOTO(status, run_step(r, c, leaves, ids, gradients, out), release_inputs);
    for (int i = 0; gradients && i < c->in_count; i++) {
        if (leaves[i] != NULL) {
            TSR_TRY_GOTO(status, rig_grad(leaves[i], op_input_count(&c->in[i]), out->grad[i]),
                         release_inputs);
        }
    }
release_inputs:
    rig_clear(r);
    for (int i = 0; i < c->in_count; i++) {
        tsr_dtensor_release(&ids[i]);
    }
    return status;
}
