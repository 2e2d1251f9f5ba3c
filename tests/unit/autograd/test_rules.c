/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_rules.c
 * What the placement rules decide, on simulated ranks of a 2 x 2 x 2 mesh: layouts and traffic.
 */
#include "base/base.h"

#include <string.h>

#include "support/tape_rig.h"

enum {
    BATCH = 4,
    SEQ = 8,
    DIM = 16,
    AXES = 3,
    TP = 2, /* axis */
    TP_MASK = 1 << TP
};

static float zeros[BATCH * SEQ * DIM * 4];

typedef struct bench {
    rig r;
    int rank;
} bench;

static void open_bench(bench *b, int rank)
{
    const tsr_mesh_axis axes[AXES] = {{"replicate", 2}, {"shard", 2}, {"tp", 2}};

    b->rank = rank;
    REQUIRE_OK(rig_open(&b->r, "sim", axes, AXES, rank));
    REQUIRE_OK(tsri_comm_claim_axis(b->r.comm, "tp", "a test"));
}

/* A leaf laid out by words[axis]. */
static tsr_dtensor *leaf(bench *b, const char *name, const int64_t *shape, int ndim,
                         const char *const *words)
{
    tsr_layout layout;
    rig_leaf *out = NULL;

    CHECK_OK(rig_layout(&b->r, shape, ndim, words, &layout));
    CHECK_OK(rig_leaf_add(&b->r, name, &layout, zeros, &out));
    return out != NULL ? out->param.value : NULL;
}

static tsr_dtensor *value(bench *b, const int64_t *shape, int ndim, const char *const *words)
{
    tsr_dtensor *out = NULL;

    CHECK_OK(tsr_op_scale(b->r.tape, leaf(b, "x", shape, ndim, words), 1.0, &out));
    return out;
}

static void check_layout(const tsr_dtensor *tensor, const char *expected)
{
    char text[160];
    const char *places = NULL;

    REQUIRE(tensor != NULL);
    places = strchr(tsr_layout_format(&tensor->layout, text, sizeof(text)), ']');
    REQUIRE(places != NULL);
    CHECK_STR(places + 2, expected);
}

/* Collectives of the ledger over exactly the axes of mask. */
static int collectives(const bench *b, unsigned mask, int kind)
{
    int count = 0;
    int found = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(b->r.comm), &count);

    for (int i = 0; i < count; i++) {
        if (entries[i].kind == TSRI_ENTRY_COLLECTIVE && entries[i].axis_mask == mask &&
            (kind < 0 || entries[i].op == kind)) {
            found++;
        }
    }
    return found;
}

static void forget(const bench *b)
{
    tsri_recorder_clear(tsri_comm_device(b->r.comm));
}

static const char *const batch_split[AXES] = {"S0", "S0", "R"};
static const char *const seq_split[AXES] = {"S0", "S0", "S1"};
static const char *const column[AXES] = {"R", "R", "S0"};
static const char *const row[AXES] = {"R", "R", "S1"};
static const char *const whole[AXES] = {"R", "R", "R"};
static const int64_t x_shape[] = {BATCH, SEQ, DIM};
static const int64_t square[] = {DIM, DIM};
static const int64_t vector[] = {DIM};

static void end_with_dot(bench *b, tsr_dtensor *y, tsr_dtensor **weight)
{
    tsr_layout layout;
    tsr_dtensor *loss = NULL;

    REQUIRE_OK(tsr_layout_init(b->r.mesh, y->layout.shape, y->layout.ndim, &layout));
    REQUIRE_OK(rig_floats(&b->r, &layout, zeros, weight));
    REQUIRE_OK(rig_dot(b->r.tape, y, *weight, &loss));
    forget(b);
    REQUIRE_OK(tsr_backward(b->r.tape, loss));
}

/* ---- layouts ---- */

static void test_linear_layouts(void)
{
    bench b;
    tsr_dtensor *y = NULL;
    tsr_dtensor *z = NULL;

    open_bench(&b, 5);
    REQUIRE_OK(rig_begin(&b.r, 0));
    REQUIRE_OK(tsr_op_linear(b.r.tape, value(&b, x_shape, 3, batch_split),
                             leaf(&b, "w", square, 2, column), NULL, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(2)");
    REQUIRE_OK(tsr_op_linear(b.r.tape, y, leaf(&b, "w", square, 2, row), NULL, &z));
    check_layout(z, "replicate:S(0) shard:S(0) tp:P");
    REQUIRE_OK(tsr_op_linear(b.r.tape, value(&b, x_shape, 3, seq_split),
                             leaf(&b, "w", square, 2, whole), NULL, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(1)");
    CHECK_EQ(collectives(&b, TP_MASK, -1), 0);
    /* Partial x, and a last dim that is split where the weight is not: both are made whole. */
    REQUIRE_OK(tsr_op_linear(b.r.tape, z, leaf(&b, "w", square, 2, whole), NULL, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:R");
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_REDUCE), 1);
    REQUIRE_OK(tsr_step_end(b.r.tape));
    rig_close(&b.r);
}

static void test_add_layouts(void)
{
    static const char *const partial[AXES] = {"S0", "S0", "P"};
    bench b;
    tsr_dtensor *p = NULL;
    tsr_dtensor *y = NULL;

    open_bench(&b, 3);
    REQUIRE_OK(rig_begin(&b.r, 0));
    p = value(&b, x_shape, 3, partial);
    REQUIRE_OK(tsr_op_add(b.r.tape, p, p, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:P");
    CHECK_EQ(collectives(&b, TP_MASK, -1), 0);
    REQUIRE_OK(tsr_op_add(b.r.tape, value(&b, x_shape, 3, seq_split), p, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(1)");
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_REDUCE_SCATTER), 1);
    REQUIRE_OK(tsr_op_add(b.r.tape, p, value(&b, x_shape, 3, batch_split), &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:R");
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_REDUCE), 1);
    REQUIRE_OK(tsr_step_end(b.r.tape));
    rig_close(&b.r);
}

/* A sum over a split dim is Partial; what is repeated is whole, and its gradient Partial. */
static void test_sum_and_multiply_layouts(void)
{
    static const char *const partial[AXES] = {"S0", "S0", "P"};
    static const char *const last[AXES] = {"S0", "S0", "S2"};
    bench b;
    tsr_dtensor *gain = NULL;
    tsr_dtensor *y = NULL;
    tsr_dtensor *z = NULL;
    tsr_dtensor *weight = NULL;

    open_bench(&b, 2);
    REQUIRE_OK(rig_begin(&b.r, 0));
    forget(&b);
    REQUIRE_OK(tsr_op_mean(b.r.tape, value(&b, x_shape, 3, seq_split), 1, false, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:P");
    REQUIRE_OK(tsr_op_sum(b.r.tape, value(&b, x_shape, 3, seq_split), 0, false, &y));
    check_layout(y, "replicate:P shard:P tp:S(0)");
    REQUIRE_OK(tsr_op_sum(b.r.tape, value(&b, x_shape, 3, partial), 2, false, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:P");
    CHECK_EQ(collectives(&b, 7, -1) + collectives(&b, TP_MASK, -1), 0);
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_op_sum(b.r.tape, y, 2, false, &z));
    gain = leaf(&b, "gain", vector, 1, whole);
    REQUIRE_OK(tsr_op_multiply(b.r.tape, value(&b, x_shape, 3, last), gain, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(2)");
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_op_multiply(b.r.tape, gain, y, &z));
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_op_multiply(b.r.tape, y, leaf(&b, "w", square, 2, whole), &z));
    end_with_dot(&b, y, &weight);
    REQUIRE_EQ(b.r.leaves[3]->grad_count, 1);
    check_layout(b.r.leaves[3]->grad[0], "replicate:P shard:P tp:R");
    REQUIRE_OK(tsr_step_end(b.r.tape));
    tsr_dtensor_release(&weight);
    rig_close(&b.r);
}

static void test_heads_layouts(void)
{
    static const char *const last[AXES] = {"S0", "S0", "S2"};
    static const int64_t odd[] = {BATCH, SEQ, 9};
    bench b;
    tsr_dtensor *heads = NULL;
    tsr_dtensor *kv = NULL;
    tsr_dtensor *y = NULL;

    open_bench(&b, 6);
    REQUIRE_OK(rig_begin(&b.r, 0));
    REQUIRE_OK(tsr_op_split_heads(b.r.tape, value(&b, x_shape, 3, last), 4, &heads));
    check_layout(heads, "replicate:S(0) shard:S(0) tp:S(2)");
    REQUIRE_OK(tsr_op_split_heads(b.r.tape, value(&b, x_shape, 3, batch_split), 4, &kv));
    REQUIRE_OK(tsr_op_attention(b.r.tape, heads, kv, kv, 0.0, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(2)");
    REQUIRE_OK(tsr_op_merge_heads(b.r.tape, y, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(2)");
    CHECK_EQ(collectives(&b, TP_MASK, -1), 0);
    CHECK_STATUS(TSR_ERR_PLACEMENT, tsr_op_split_heads(b.r.tape, value(&b, odd, 3, last), 3, &y));
    REQUIRE_OK(tsr_step_end(b.r.tape));
    rig_close(&b.r);
}

/* What an axis splits decides the product's layout; the dim of a slice or of parts is gathered. */
static void test_matmul_and_copy_layouts(void)
{
    static const char *const last[AXES] = {"S0", "S0", "S2"};
    static const char *const partial[AXES] = {"S0", "S0", "P"};
    const tsr_matmul_options trans = {.trans_b = true};
    bench b;
    tsr_dtensor *rows = NULL;
    tsr_dtensor *columns = NULL;
    tsr_dtensor *whole_x = NULL;
    tsr_dtensor *y = NULL;

    open_bench(&b, 1);
    REQUIRE_OK(rig_begin(&b.r, 0));
    rows = value(&b, x_shape, 3, seq_split);
    columns = value(&b, x_shape, 3, last);
    whole_x = value(&b, x_shape, 3, batch_split);
    REQUIRE_OK(tsr_op_matmul(b.r.tape, rows, whole_x, &trans, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(1)");
    REQUIRE_OK(tsr_op_matmul(b.r.tape, whole_x, rows, &trans, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(2)");
    REQUIRE_OK(tsr_op_matmul(b.r.tape, columns, columns, &trans, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:P");
    REQUIRE_OK(tsr_op_slice(b.r.tape, columns, 1, 2, 3, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(2)");
    REQUIRE_OK(tsr_op_slice(b.r.tape, value(&b, x_shape, 3, partial), 1, 2, 3, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:P");
    CHECK_EQ(collectives(&b, TP_MASK, -1), 0);
    REQUIRE_OK(tsr_op_matmul(b.r.tape, rows, rows, &trans, &y)); /* m and n: b is gathered */
    check_layout(y, "replicate:S(0) shard:S(0) tp:S(1)");
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_GATHER), 1);
    REQUIRE_OK(
        tsr_op_concat(b.r.tape, (tsr_dtensor *[]){columns, value(&b, x_shape, 3, last)}, 2, 2, &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:R");
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_GATHER), 3);
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_op_matmul(b.r.tape, rows, rows, NULL, &y));
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_op_slice(b.r.tape, rows, 1, 6, 3, &y));
    REQUIRE_OK(tsr_step_end(b.r.tape));
    rig_close(&b.r);
}

static void test_embedding_and_loss_layouts(void)
{
    static const int64_t vocab[] = {DIM, DIM};
    static const int64_t ids_shape[] = {BATCH, SEQ};
    static const int32_t ids[BATCH * SEQ] = {0};
    bench b;
    tsr_layout layout;
    tsr_dtensor *tokens = NULL;
    tsr_dtensor *y = NULL;
    tsr_dtensor *loss = NULL;

    open_bench(&b, 1);
    REQUIRE_OK(rig_layout(&b.r, ids_shape, 2, batch_split, &layout));
    REQUIRE_OK(rig_ints(&b.r, &layout, ids, &tokens));
    forget(&b);
    REQUIRE_OK(tsr_step_begin(b.r.tape, 0, &tokens, 1));
    CHECK_EQ(collectives(&b, 7, TSRI_ALL_REDUCE), 1); /* the token count, where all ranks meet */
    REQUIRE_OK(tsr_tape_begin(b.r.tape, 0));
    REQUIRE_OK(tsr_op_embedding(b.r.tape, tokens, leaf(&b, "e", vocab, 2, column), &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:P");
    REQUIRE_OK(tsr_op_embedding(b.r.tape, tokens, leaf(&b, "e", vocab, 2, whole), &y));
    check_layout(y, "replicate:S(0) shard:S(0) tp:R");
    REQUIRE_OK(tsr_op_linear(b.r.tape, y, leaf(&b, "head", vocab, 2, column), NULL, &y));
    forget(&b);
    REQUIRE_OK(tsr_op_cross_entropy(b.r.tape, y, tokens, &loss));
    check_layout(loss, "replicate:P shard:P tp:R");
    /* One max, and the two sums in one call. */
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_REDUCE), 2);
    forget(&b);
    REQUIRE_OK(tsr_backward(b.r.tape, loss));
    /* The head's x is the embedding's whole output: one reduction, and no gather of logits. */
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_REDUCE), 1);
    CHECK_EQ(collectives(&b, TP_MASK, -1), 1);
    CHECK_EQ(collectives(&b, 3, -1), 0);
    REQUIRE_OK(tsr_step_end(b.r.tape));
    tsr_dtensor_release(&tokens);
    rig_close(&b.r);
}

/* ---- traffic ---- */

static tsr_dtensor *norm(bench *b, tsr_dtensor *x)
{
    tsr_dtensor *y = NULL;

    CHECK_OK(tsr_op_rmsnorm(b->r.tape, x, leaf(b, "gain", vector, 1, whole), 1e-5, &y));
    return y;
}

/* norm, then x W1 column, gelu, W2 row, residual: one all-reduce each way (Shoeybi et al. 2019). */
static void test_megatron_mlp(void)
{
    static const int64_t up_shape[] = {4 * DIM, DIM};
    static const int64_t down_shape[] = {DIM, 4 * DIM};
    bench b;
    tsr_dtensor *x = NULL;
    tsr_dtensor *h = NULL;
    tsr_dtensor *weight = NULL;

    open_bench(&b, 7);
    REQUIRE_OK(rig_begin(&b.r, 0));
    x = value(&b, x_shape, 3, batch_split);
    h = norm(&b, x);
    forget(&b);
    REQUIRE_OK(tsr_op_linear(b.r.tape, h, leaf(&b, "up", up_shape, 2, column), NULL, &h));
    REQUIRE_OK(tsr_op_gelu(b.r.tape, h, &h));
    REQUIRE_OK(tsr_op_linear(b.r.tape, h, leaf(&b, "down", down_shape, 2, row), NULL, &h));
    REQUIRE_OK(tsr_op_add(b.r.tape, x, h, &x));
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_REDUCE), 1);
    CHECK_EQ(collectives(&b, TP_MASK, -1), 1);
    end_with_dot(&b, x, &weight);
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_REDUCE), 1);
    CHECK_EQ(collectives(&b, TP_MASK, -1), 1);
    CHECK_EQ(collectives(&b, 3, -1), 0);
    REQUIRE_OK(tsr_step_end(b.r.tape));
    tsr_dtensor_release(&weight);
    rig_close(&b.r);
}

/* q, k, v of one x: one gather forward and one reduction backward under sequence parallelism; none
 * and one without. */
static void check_qkv(const char *const *words, int gathers, int reduction)
{
    bench b;
    tsr_dtensor *h = NULL;
    tsr_dtensor *q[3] = {NULL};
    tsr_dtensor *weight = NULL;
    int inserted = 0;

    open_bench(&b, 2);
    REQUIRE_OK(rig_begin(&b.r, 0));
    h = norm(&b, value(&b, x_shape, 3, words));
    forget(&b);
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(tsri_tape_enter(b.r.tape, i == 0 ? "q" : i == 1 ? "k" : "v"));
        REQUIRE_OK(tsr_op_linear(b.r.tape, h, leaf(&b, "w", square, 2, column),
                                 leaf(&b, "b", vector, 1, column), &q[i]));
        tsri_tape_leave(b.r.tape, q[i]);
    }
    CHECK_EQ(collectives(&b, TP_MASK, TSRI_ALL_GATHER), gathers);
    CHECK_EQ(collectives(&b, TP_MASK, -1), gathers);
    REQUIRE_OK(tsr_op_add(b.r.tape, q[0], q[1], &h));
    REQUIRE_OK(tsr_op_add(b.r.tape, h, q[2], &h));
    end_with_dot(&b, h, &weight);
    CHECK_EQ(collectives(&b, TP_MASK, reduction), 1);
    CHECK_EQ(collectives(&b, TP_MASK, -1), 1);
    /* Each is listed, with who asked. */
    {
        const tsri_inserted *list = tsri_tape_inserted(b.r.tape, &inserted);
        int backward = 0;

        for (int i = 0; i < inserted; i++) {
            if (tsri_redistribute_cost(&list[i].from, &list[i].to) > 0) {
                backward += list[i].backward ? 1 : 0;
                CHECK_STR(list[i].op, !list[i].backward || gathers > 0 ? "linear" : "rmsnorm");
                CHECK(list[i].bytes > 0);
            }
        }
        CHECK_EQ(backward, 1);
    }
    REQUIRE_OK(tsr_step_end(b.r.tape));
    tsr_dtensor_release(&weight);
    rig_close(&b.r);
}

static void test_qkv(void)
{
    check_qkv(batch_split, 0, TSRI_ALL_REDUCE);
}

static void test_qkv_sequence_parallel(void)
{
    check_qkv(seq_split, 1, TSRI_REDUCE_SCATTER);
}

/* x goes to a residual addition and, without a norm between, into three column linears: what comes
 * back Partial is reduced once although a whole gradient arrived first. */
static void test_mixed_gradients(void)
{
    bench b;
    tsr_dtensor *x = NULL;
    tsr_dtensor *y = NULL;
    tsr_dtensor *h = NULL;
    tsr_dtensor *weight = NULL;

    open_bench(&b, 4);
    REQUIRE_OK(rig_begin(&b.r, 0));
    x = norm(&b, value(&b, x_shape, 3, batch_split));
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(tsr_op_linear(b.r.tape, x, leaf(&b, "w", square, 2, column), NULL, &h));
        if (i == 0) {
            y = h;
        } else {
            REQUIRE_OK(tsr_op_add(b.r.tape, y, h, &y));
        }
    }
    REQUIRE_OK(tsr_op_linear(b.r.tape, y, leaf(&b, "w", square, 2, row), NULL, &y));
    REQUIRE_OK(tsr_op_add(b.r.tape, x, y, &y));
    end_with_dot(&b, y, &weight);
    CHECK_EQ(collectives(&b, TP_MASK, -1), 1);
    REQUIRE_OK(tsr_step_end(b.r.tape));
    tsr_dtensor_release(&weight);
    rig_close(&b.r);
}

/* Gradients of parameters, by the layout in which the sink gets them. */
static void test_gradient_layouts(void)
{
    bench b;
    tsr_dtensor *w1 = NULL;
    tsr_dtensor *b1 = NULL;
    tsr_dtensor *w2 = NULL;
    tsr_dtensor *b2 = NULL;
    tsr_dtensor *x = NULL;
    tsr_dtensor *h = NULL;
    tsr_dtensor *weight = NULL;
    /* w1, b1, w2, b2, x, gain of the norm */
    static const char *const expected[] = {
        "replicate:P shard:P tp:S(0)",       "replicate:P shard:P tp:S(0)",
        "replicate:P shard:P tp:S(1)",       "replicate:P shard:P tp:R",
        "replicate:S(0) shard:S(0) tp:S(1)", "replicate:P shard:P tp:P"};

    open_bench(&b, 0);
    REQUIRE_OK(rig_begin(&b.r, 0));
    w1 = leaf(&b, "w1", square, 2, column);
    b1 = leaf(&b, "b1", vector, 1, column);
    w2 = leaf(&b, "w2", square, 2, row);
    b2 = leaf(&b, "b2", vector, 1, whole);
    x = value(&b, x_shape, 3, seq_split);
    h = norm(&b, x);
    REQUIRE_OK(tsr_op_linear(b.r.tape, h, w1, b1, &h));
    REQUIRE_OK(tsr_op_linear(b.r.tape, h, w2, b2, &h));
    end_with_dot(&b, h, &weight);
    REQUIRE_EQ(b.r.leaf_count, 6);
    for (int i = 0; i < b.r.leaf_count; i++) {
        REQUIRE_EQ(b.r.leaves[i]->grad_count, 1);
        check_layout(b.r.leaves[i]->grad[0], expected[i]);
    }
    REQUIRE_OK(tsr_step_end(b.r.tape));
    tsr_dtensor_release(&weight);
    rig_close(&b.r);
}

const tsr_test_case tsr_test_cases[] = {
    {"linear layouts", test_linear_layouts},
    {"add layouts", test_add_layouts},
    {"sum and multiply layouts", test_sum_and_multiply_layouts},
    {"heads layouts", test_heads_layouts},
    {"matmul and copy layouts", test_matmul_and_copy_layouts},
    {"embedding and loss layouts", test_embedding_and_loss_layouts},
    {"megatron mlp", test_megatron_mlp},
    {"qkv", test_qkv},
    {"qkv, sequence parallel", test_qkv_sequence_parallel},
    {"mixed gradients", test_mixed_gradients},
    {"gradient layouts", test_gradient_layouts},
    {NULL, NULL}};
