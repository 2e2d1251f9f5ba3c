/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 */
/**
 * @file test_checkpointing.c
 * A stack of blocks with and without activation checkpointing: the same bits, less memory.
 */
#include "base/base.h"

#include <math.h>

#include "support/tape_rig.h"

enum {
    BATCH = 4,
    SEQ = 6,
    DIM = 8,
    WIDE = 4 * DIM,
    BLOCKS = 8,
    COUNT = WIDE * DIM,
    TIMES = 2 /* markers of a block */
};

typedef enum way {
    PLAIN,
    PARTS, /* each block is a part */
    NESTED /* and the whole stack too */
} way;

typedef struct bench {
    rig r;
    rig_leaf *gain, *up, *down, *x;
    way how;
    int marks;
    size_t peak;
    double loss;
    double grad[4][COUNT];
} bench;

static const char *const column[] = {"S0"};
static const char *const row[] = {"S1"};
static const char *const whole[] = {"R"};

static tsr_status mark(void *context, tsr_tape *tape)
{
    bench *b = context;

    CHECK(tsri_tape_in_backward(tape));
    b->marks++;
    return TSR_OK;
}

/* x + down(dropout(gelu(up(norm(x))))). */
static tsr_status block(void *context, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                        tsr_dtensor **out)
{
    bench *b = context;
    tsr_dtensor *h = NULL;

    (void)in_count;
    TSR_TRY(tsri_tape_marker(tape, mark, b));
    TSR_TRY(tsr_op_rmsnorm(tape, in[0], b->gain->param.value, 1e-5, &h));
    TSR_TRY(tsr_op_linear(tape, h, b->up->param.value, NULL, &h));
    TSR_TRY(tsr_op_gelu(tape, h, &h));
    TSR_TRY(tsr_op_dropout(tape, h, 0.3, &h));
    TSR_TRY(tsr_op_linear(tape, h, b->down->param.value, NULL, &h));
    TSR_TRY(tsr_op_add(tape, in[0], h, out));
    TSR_TRY(tsri_tape_marker(tape, mark, b));
    return TSR_OK;
}

static tsr_status stack(void *context, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                        tsr_dtensor **out)
{
    bench *b = context;
    tsr_dtensor *h = in[0];

    (void)in_count;
    for (int i = 0; i < BLOCKS; i++) {
        tsr_dtensor *next = NULL;

        TSR_TRY(tsri_tape_enter(tape, "block"));
        if (b->how == PLAIN) {
            TSR_TRY(block(b, tape, &h, 1, &next));
        } else {
            TSR_TRY(tsri_tape_checkpoint(tape, block, b, &h, 1, &next));
        }
        tsri_tape_leave(tape, next);
        h = next;
    }
    *out = h;
    return TSR_OK;
}

static tsr_status make_leaf(bench *b, const char *name, const int64_t *shape, int ndim,
                            const char *const *words, rig_leaf **out)
{
    float numbers[COUNT];
    tsr_layout layout;

    for (int i = 0; i < COUNT; i++) {
        numbers[i] = (float)((i * 29) % 83) / 83.0F - 0.5F;
    }
    TSR_TRY(rig_layout(&b->r, shape, ndim, words, &layout));
    TSR_TRY(rig_leaf_add(&b->r, name, &layout, numbers, out));
    return TSR_OK;
}

static tsr_status play(bench *b)
{
    tsr_dtensor *x = NULL;
    tsr_dtensor *y = NULL;
    tsr_dtensor *loss = NULL;

    TSR_TRY(tsr_op_scale(b->r.tape, b->x->param.value, 1.0, &x));
    if (b->how == NESTED) {
        TSR_TRY(tsri_tape_checkpoint(b->r.tape, stack, b, &x, 1, &y));
    } else {
        TSR_TRY(stack(b, b->r.tape, &x, 1, &y));
    }
    CHECK_EQ(b->marks, 0);
    TSR_TRY(rig_dot(b->r.tape, y, y, &loss));
    TSR_TRY(tsr_backward(b->r.tape, loss));
    CHECK(!tsri_tape_in_recompute(b->r.tape));
    TSR_TRY(tsr_step_loss(b->r.tape, &b->loss));
    return TSR_OK;
}

static void run(bench *b, way how)
{
    const tsr_mesh_axis axes[] = {{"tp", tsr_test_size()}};
    static const int64_t x_shape[] = {BATCH, SEQ, DIM};
    static const int64_t up_shape[] = {WIDE, DIM};
    static const int64_t down_shape[] = {DIM, WIDE};
    tsri_arena_stats stats = {0};

    REQUIRE_OK(rig_open(&b->r, "cpu", axes, 1, 0));
    b->how = how;
    b->marks = 0;
    REQUIRE_OK(make_leaf(b, "gain", x_shape + 2, 1, whole, &b->gain));
    REQUIRE_OK(make_leaf(b, "up", up_shape, 2, column, &b->up));
    REQUIRE_OK(make_leaf(b, "down", down_shape, 2, row, &b->down));
    REQUIRE_OK(make_leaf(b, "x", x_shape, 3, whole, &b->x));
    REQUIRE_OK(rig_begin(&b->r, 0));
    REQUIRE_OK(play(b));
    CHECK_EQ(b->marks, TIMES * BLOCKS);
    REQUIRE_OK(tsr_step_end(b->r.tape));
    REQUIRE_OK(rig_grad(b->gain, DIM, b->grad[0]));
    REQUIRE_OK(rig_grad(b->up, COUNT, b->grad[1]));
    REQUIRE_OK(rig_grad(b->down, COUNT, b->grad[2]));
    REQUIRE_OK(rig_grad(b->x, (int64_t)BATCH * SEQ * DIM, b->grad[3]));
    tsri_arena_get_stats(tsri_comm_arena(b->r.comm), &stats);
    b->peak = stats.kind_at_peak[TSRI_MEM_ACTIVATION];
    rig_close(&b->r);
}

static void check_way(way how)
{
    bench *plain = NULL;
    bench *parts = NULL;
    double size = 0.0;

    REQUIRE_OK(tsri_alloc(1, sizeof(*plain), &plain));
    REQUIRE_OK(tsri_alloc(1, sizeof(*parts), &parts));
    run(plain, PLAIN);
    run(parts, how);
    CHECK_NEAR(parts->loss, plain->loss, 0.0);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < COUNT; i++) {
            /* The same kernels on the same numbers in the same order. */
            CHECK_NEAR(parts->grad[k][i], plain->grad[k][i], 0.0);
            size += fabs(plain->grad[k][i]);
        }
    }
    CHECK(size > 1.0);
    CHECK(2 * parts->peak < plain->peak);
    tsri_free(&plain);
    tsri_free(&parts);
}

static void test_parts(void)
{
    check_way(PARTS);
}

static void test_nested(void)
{
    check_way(NESTED);
}

const tsr_test_case tsr_test_cases[] = {
    {"parts", test_parts}, {"nested parts", test_nested}, {NULL, NULL}};
