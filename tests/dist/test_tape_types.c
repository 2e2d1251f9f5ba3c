/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 */
/**
 * @file test_tape_types.c
 * Values in bf16 and f16: operations follow the type of x and keep close to f32.
 */
#include "base/base.h"

#include <math.h>

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

const tsr_test_case tsr_test_cases[] = {{"bf16", test_bf16}, {"f16", test_f16}, {NULL, NULL}};
