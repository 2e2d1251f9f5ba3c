/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 */
/**
 * @file test_tape_types.c
 * Values in bf16 and f16: operations follow the type of x and keep close to f32.
 */
#include "base/base.h"

#include <math.h>
#include <string.h>

#include "support/custom_ops.h"
#include "support/tape_rig.h"

enum {
    ROWS = 8,
    COLS = 32,
    COUNT = ROWS * COLS
};

static const int64_t shape[] = {ROWS, COLS};
static const int64_t square[] = {COLS, COLS};

typedef struct bench {
    rig r;
    float numbers[COLS * COLS];
    double read[COLS * COLS];
} bench;

static void open_bench(bench *b)
{
    const tsr_mesh_axis axes[] = {{"data", 1}};

    for (int i = 0; i < COLS * COLS; i++) {
        b->numbers[i] = (float)((i * 37) % 101) / 101.0F - 0.5F;
    }
    REQUIRE_OK(rig_open(&b->r, "cpu", axes, 1, 0));
}

static tsr_dtensor *constant(bench *b, const int64_t *dims, int ndim)
{
    tsr_layout layout;
    tsr_dtensor *out = NULL;

    CHECK_OK(tsr_layout_init(b->r.mesh, dims, ndim, &layout));
    CHECK_OK(rig_floats(&b->r, &layout, b->numbers, &out));
    return out;
}

/* Values of dtype through norm, linear, gelu: outputs are of it. */
static tsr_status run_typed(bench *b, tsr_dtype dtype, double *out)
{
    tsr_layout x_layout;
    tsr_layout w_layout;
    tsr_layout gain_layout;
    tsr_dtensor *in[3] = {NULL};
    tsr_dtensor *y = NULL;
    tsr_dtensor *wide = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_layout_init(b->r.mesh, shape, 2, &x_layout));
    TSR_TRY(tsr_layout_init(b->r.mesh, square, 2, &w_layout));
    TSR_TRY(tsr_layout_init(b->r.mesh, square, 1, &gain_layout));
    TSR_TRY(tsr_dtensor_create(b->r.comm, &x_layout, dtype, "x", &in[0]));
    TSR_TRY(tsr_dtensor_create(b->r.comm, &gain_layout, dtype, "gain", &in[1]));
    TSR_TRY(tsr_dtensor_create(b->r.comm, &w_layout, dtype, "w", &in[2]));
    for (int i = 0; i < 3; i++) {
        tsr_dtensor *from = constant(b, i == 0 ? shape : square, i == 1 ? 1 : 2);
        tsri_call call = {.stream = tsri_comm_stream(b->r.comm, TSRI_STREAM_COMPUTE)};
        const tsrk_scale cast = {.x = tsri_in(&call, from),
                                 .y = tsri_out(&call, in[i]),
                                 .n = from->local_count,
                                 .factor = 1.0F,
                                 .x_type = TSR_F32,
                                 .y_type = dtype};

        TSR_TRY(TSRI_LAUNCH(&call, SCALE, &cast));
        tsr_dtensor_release(&from);
    }
    TSR_TRY(rig_begin(&b->r, 0));
    TSR_TRY_GOTO(status, tsr_op_rmsnorm(b->r.tape, in[0], in[1], 1e-5, &y), end);
    TSR_TRY_GOTO(status, tsr_op_linear(b->r.tape, y, in[2], NULL, &y), end);
    TSR_TRY_GOTO(status, tsr_op_gelu(b->r.tape, y, &y), end);
    CHECK_EQ(y->dtype, dtype);
    TSR_TRY_GOTO(status, tsr_dtensor_create(b->r.comm, &x_layout, TSR_F32, "y", &wide), end);
    {
        tsri_call call = {.stream = tsri_comm_stream(b->r.comm, TSRI_STREAM_COMPUTE)};
        const tsrk_scale cast = {.x = tsri_in(&call, y),
                                 .y = tsri_out(&call, wide),
                                 .n = y->local_count,
                                 .factor = 1.0F,
                                 .x_type = dtype,
                                 .y_type = TSR_F32};

        TSR_TRY_GOTO(status, TSRI_LAUNCH(&call, SCALE, &cast), end);
    }
    TSR_TRY_GOTO(status, rig_read(wide, out), end);
end:
    tsr_dtensor_release(&wide);
    for (int i = 0; i < 3; i++) {
        tsr_dtensor_release(&in[i]);
    }
    return status != TSR_OK ? status : tsr_step_end(b->r.tape);
}

static void check_near_f32(tsr_dtype dtype, int bits)
{
    bench b;
    double wide[COUNT] = {0};

    open_bench(&b);
    REQUIRE_OK(run_typed(&b, TSR_F32, wide));
    REQUIRE_OK(run_typed(&b, dtype, b.read));
    for (int i = 0; i < COUNT; i++) {
        /* Inputs, norm and result are rounded to so many bits; the sum is over COLS products of at
         * most 1, whose roundings add up as sqrt(COLS) steps of 3 half units, within 4 deviations.
         */
        CHECK_NEAR(b.read[i], wide[i], 4.0 * 3.0 * ldexp(1.0, -bits - 1) * sqrt((double)COLS));
    }
    rig_close(&b.r);
}

static void test_bf16(void)
{
    check_near_f32(TSR_BF16, 8);
}

static void test_f16(void)
{
    check_near_f32(TSR_F16, 11);
}

/* ---- types that an operation does not take ---- */

enum {
    MAX_IN = 3,
    MATRIX = 0, /* [ROWS, COLS] */
    VECTOR,     /* [COLS] */
    SQUARE,     /* [COLS, COLS] */
    HEADS,      /* [1, 2, 2, 4] */
    CUBE,       /* [1, ROWS, COLS] */
    ROW_IDS,    /* [ROWS], i32 */
    KINDS
};

static const struct {
    int64_t dims[4];
    int ndim;
    tsr_dtype dtype;
} kinds[KINDS] = {{{ROWS, COLS}, 2, TSR_F32},    {{COLS}, 1, TSR_F32},
                  {{COLS, COLS}, 2, TSR_F32},    {{1, 2, 2, 4}, 4, TSR_F32},
                  {{1, ROWS, COLS}, 3, TSR_F32}, {{ROWS}, 1, TSR_I32}};

typedef tsr_status (*op_fn)(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out);

static tsr_status linear(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_linear(tape, in[0], in[1], in[2], out);
}

static tsr_status embedding(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_embedding(tape, in[0], in[1], out);
}

static tsr_status add_position(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_add_position(tape, in[0], in[1], out);
}

static tsr_status layernorm(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_layernorm(tape, in[0], in[1], in[2], 1e-5, out);
}

static tsr_status rmsnorm(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_rmsnorm(tape, in[0], in[1], 1e-5, out);
}

static tsr_status gelu(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_gelu(tape, in[0], out);
}

static tsr_status tanh_of(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_tanh(tape, in[0], out);
}

static tsr_status softmax(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_softmax(tape, in[0], out);
}

static tsr_status multiply(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_multiply(tape, in[0], in[1], out);
}

static tsr_status mean(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_mean(tape, in[0], 0, false, out);
}

static tsr_status silu_mul(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_silu_mul(tape, in[0], in[1], out);
}

static tsr_status slice(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_slice(tape, in[0], 0, 1, 1, out);
}

static tsr_status concat(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_concat(tape, in, 2, 0, out);
}

static tsr_status split_heads(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_split_heads(tape, in[0], 2, out);
}

static tsr_status merge_heads(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_merge_heads(tape, in[0], out);
}

static tsr_status rope(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_rope(tape, in[0], 1e4, out);
}

static tsr_status attention(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_attention(tape, in[0], in[1], in[2], 0.0, out);
}

static tsr_status matmul(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_matmul(tape, in[0], in[1], NULL, out);
}

static tsr_status add(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_add(tape, in[0], in[1], out);
}

static tsr_status scale(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_scale(tape, in[0], 2.0, out);
}

static tsr_status cast(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_cast(tape, in[0], TSR_BF16, out);
}

static tsr_status dropout(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_dropout(tape, in[0], 0.5, out);
}

static tsr_status cross_entropy(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return tsr_op_cross_entropy(tape, in[0], in[1], out);
}

static tsr_status own_softcap(tsr_tape *tape, tsr_dtensor **in, tsr_dtensor **out)
{
    return softcap(tape, in[0], 2.0F, out);
}

/* mixes: bit i: in[i] may be bf16 where the others are f32. */
static const struct {
    const char *name;
    op_fn run;
    int in_count, in[MAX_IN];
    unsigned mixes;
} ops[] = {{"linear", linear, 3, {MATRIX, SQUARE, VECTOR}, 7},
           {"embedding", embedding, 2, {ROW_IDS, SQUARE}, 2},
           {"add_position", add_position, 2, {CUBE, SQUARE}, 0},
           {"layernorm", layernorm, 3, {MATRIX, VECTOR, VECTOR}, 0},
           {"rmsnorm", rmsnorm, 2, {MATRIX, VECTOR}, 0},
           {"gelu", gelu, 1, {MATRIX}, 1},
           {"tanh", tanh_of, 1, {MATRIX}, 1},
           {"softmax", softmax, 1, {MATRIX}, 1},
           {"multiply", multiply, 2, {MATRIX, VECTOR}, 3},
           {"mean", mean, 1, {MATRIX}, 1},
           {"silu_mul", silu_mul, 2, {MATRIX, MATRIX}, 0},
           {"slice", slice, 1, {MATRIX}, 1},
           {"concat", concat, 2, {MATRIX, MATRIX}, 0},
           {"split_heads", split_heads, 1, {MATRIX}, 1},
           {"merge_heads", merge_heads, 1, {HEADS}, 1},
           {"rope", rope, 1, {HEADS}, 1},
           {"attention", attention, 3, {HEADS, HEADS, HEADS}, 0},
           {"matmul", matmul, 2, {MATRIX, SQUARE}, 3},
           {"add", add, 2, {MATRIX, MATRIX}, 3},
           {"scale", scale, 1, {MATRIX}, 1},
           {"cast", cast, 1, {MATRIX}, 1},
           {"dropout", dropout, 1, {MATRIX}, 1},
           {"cross_entropy", cross_entropy, 2, {MATRIX, ROW_IDS}, 1},
           {"softcap", own_softcap, 1, {MATRIX}, 0}};

static tsr_dtensor *of_kind(const bench *b, int kind, tsr_dtype dtype)
{
    tsr_layout layout;
    tsr_dtensor *out = NULL;

    CHECK_OK(tsr_layout_init(b->r.mesh, kinds[kind].dims, kinds[kind].ndim, &layout));
    CHECK_OK(tsr_dtensor_create(b->r.comm, &layout, dtype, NULL, &out));
    return out;
}

/* Operation op with input wrong of dtype, the others right. */
static tsr_status run_wrong(const bench *b, int op, int wrong, tsr_dtype dtype)
{
    tsr_dtensor *in[MAX_IN] = {NULL};
    tsr_dtensor *out = NULL;
    tsr_status status = TSR_OK;

    for (int i = 0; i < ops[op].in_count; i++) {
        in[i] = of_kind(b, ops[op].in[i], i == wrong ? dtype : kinds[ops[op].in[i]].dtype);
    }
    tsr_error_clear();
    status = ops[op].run(b->r.tape, in, &out);
    for (int i = 0; i < MAX_IN; i++) {
        tsr_dtensor_release(&in[i]);
    }
    return status;
}

static void check_wrong(const bench *b, int op, int wrong)
{
    const bool floats = kinds[ops[op].in[wrong]].dtype == TSR_F32;
    const bool mixes = (ops[op].mixes & (1U << wrong)) != 0;

    for (tsr_dtype dtype = TSR_F32; dtype <= TSR_U8; dtype++) {
        const bool half = dtype == TSR_BF16 || dtype == TSR_F16;
        const bool right = dtype == kinds[ops[op].in[wrong]].dtype || (floats && half && mixes);

        CHECK_EQ(run_wrong(b, op, wrong, dtype), right ? TSR_OK : TSR_ERR_INVALID);
        if (!right) {
            CHECK(strstr(tsr_error_message(), ops[op].name) != NULL);
            CHECK(strstr(tsr_error_message(), tsr_dtype_name(dtype)) != NULL);
        }
    }
}

/* And the step goes on: nothing was computed. */
static void test_types_are_declared(void)
{
    bench b;
    tsr_dtensor *x = NULL;
    tsr_dtensor *y = NULL;

    open_bench(&b);
    REQUIRE_OK(rig_begin(&b.r, 0));
    for (int op = 0; op < (int)(sizeof(ops) / sizeof(ops[0])); op++) {
        for (int i = 0; i < ops[op].in_count; i++) {
            check_wrong(&b, op, i);
        }
    }
    x = of_kind(&b, MATRIX, TSR_I32);
    y = of_kind(&b, MATRIX, TSR_F32);
    CHECK_EQ(tsr_op_add(b.r.tape, y, x, &y), TSR_ERR_INVALID);
    CHECK_STR(tsr_error_message(), "add: b is i32, wants f32, bf16 or f16");
    tsr_error_clear();
    CHECK_OK(tsr_step_end(b.r.tape));
    tsr_dtensor_release(&x);
    tsr_dtensor_release(&y);
    rig_close(&b.r);
}

const tsr_test_case tsr_test_cases[] = {{"bf16", test_bf16},
                                        {"f16", test_f16},
                                        {"types_are_declared", test_types_are_declared},
                                        {NULL, NULL}};
