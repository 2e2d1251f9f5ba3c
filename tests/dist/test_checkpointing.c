/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/* hostile: 4 */
/**
 * @file test_checkpointing.c
 * A stack of blocks with and without activation checkpointing: the same bits, less memory.
 */
#include "base/base.h"

#include <math.h>
#include <string.h>

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
    tsri_part_options options;
    int marks;
    size_t peak, host;
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
            TSR_TRY(tsri_tape_checkpoint(tape, block, b, &h, 1, &b->options, &next));
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
        TSR_TRY(tsri_tape_checkpoint(b->r.tape, stack, b, &x, 1, &b->options, &y));
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

static void open_bench(bench *b)
{
    const tsr_mesh_axis axes[] = {{"tp", tsr_test_size()}};
    static const int64_t x_shape[] = {BATCH, SEQ, DIM};
    static const int64_t up_shape[] = {WIDE, DIM};
    static const int64_t down_shape[] = {DIM, WIDE};

    REQUIRE_OK(rig_open(&b->r, "cpu", axes, 1, 0));
    REQUIRE_OK(make_leaf(b, "gain", x_shape + 2, 1, whole, &b->gain));
    REQUIRE_OK(make_leaf(b, "up", up_shape, 2, column, &b->up));
    REQUIRE_OK(make_leaf(b, "down", down_shape, 2, row, &b->down));
    REQUIRE_OK(make_leaf(b, "x", x_shape, 3, whole, &b->x));
}

static void run(bench *b, way how, const tsri_part_options *options)
{
    tsri_arena_stats stats = {0};

    open_bench(b);
    b->how = how;
    b->options = *options;
    b->marks = 0;
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
    b->host = tsri_comm_device(b->r.comm)->host_kind[TSRI_MEM_ACTIVATION];
    rig_close(&b->r);
}

static void check_way(way how, const tsri_part_options *options)
{
    bench *plain = NULL;
    bench *parts = NULL;
    double size = 0.0;

    REQUIRE_OK(tsri_alloc(1, sizeof(*plain), &plain));
    REQUIRE_OK(tsri_alloc(1, sizeof(*parts), &parts));
    run(plain, PLAIN, options);
    run(parts, how, options);
    CHECK_NEAR(parts->loss, plain->loss, 0.0);
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < COUNT; i++) {
            /* The same kernels on the same numbers in the same order. */
            CHECK_NEAR(parts->grad[k][i], plain->grad[k][i], 0.0);
            size += fabs(plain->grad[k][i]);
        }
    }
    CHECK(size > 1.0);
    CHECK(options->keep_count > 0 ? parts->peak < plain->peak : 2 * parts->peak < plain->peak);
    CHECK_EQ(plain->host, 0);
    CHECK((parts->host > 0) == options->offload);
    tsri_free(&plain);
    tsri_free(&parts);
}

static const tsri_part_options no_options;

static void test_parts(void)
{
    check_way(PARTS, &no_options);
}

static void test_nested(void)
{
    check_way(NESTED, &no_options);
}

static void test_offloaded(void)
{
    static const tsri_part_options offload = {.offload = true};

    check_way(PARTS, &offload);
    check_way(NESTED, &offload);
}

/* Kept in the inner parts, in the outer one, in both; the last operation of a part too. */
static void test_kept(void)
{
    static const char *const names[] = {"linear", "dropout", "add"};

    for (int count = 1; count <= 3; count++) {
        const tsri_part_options options = {.keep = names, .keep_count = count};

        check_way(PARTS, &options);
        check_way(NESTED, &options);
    }
    check_way(PARTS, &(tsri_part_options){.keep = names, .keep_count = 1, .offload = true});
    check_way(NESTED, &(tsri_part_options){.keep = names, .keep_count = 2, .offload = true});
}

static void test_nothing_to_keep(void)
{
    static const char *const name[] = {"linaer"};
    bench *b = NULL;

    REQUIRE_OK(tsri_alloc(1, sizeof(*b), &b));
    open_bench(b);
    b->how = PARTS;
    b->options = (tsri_part_options){.keep = name, .keep_count = 1};
    REQUIRE_OK(rig_begin(&b->r, 0));
    CHECK_EQ(play(b), TSR_ERR_INVALID);
    CHECK(strstr(tsr_error_message(), "runs no operation of that name") != NULL);
    tsr_error_clear();
    REQUIRE_OK(tsr_step_end(b->r.tape));
    rig_close(&b->r);
    tsri_free(&b);
}

/* A value that two parts and an operation between them read comes back for each; one that an
 * operation keeps does not leave. */
static tsr_status read_again(bench *b, bool offload, tsr_dtensor **out)
{
    const tsri_part_options options = {.offload = offload};
    tsr_tape *tape = b->r.tape;
    tsr_dtensor *x = NULL;
    tsr_dtensor *kept = NULL;
    tsr_dtensor *h = NULL;
    tsr_dtensor *y = NULL;

    TSR_TRY(tsr_op_scale(tape, b->x->param.value, 1.0, &x));
    TSR_TRY(tsr_op_gelu(tape, x, &kept));
    TSR_TRY(tsr_op_gelu(tape, kept, &h)); /* keeps its input */
    TSR_TRY(tsri_tape_checkpoint(tape, block, b, &h, 1, &options, &y));
    CHECK_EQ(tsri_dtensor_buffer(h) == NULL, offload);
    TSR_TRY(tsr_op_add(tape, h, y, &y)); /* not yet gone */
    CHECK(tsri_dtensor_buffer(h) != NULL);
    TSR_TRY(tsri_tape_checkpoint(tape, block, b, &kept, 1, &options, &kept));
    TSR_TRY(tsr_op_add(tape, kept, y, &y));
    TSR_TRY(tsri_tape_checkpoint(tape, block, b, &y, 1, &options, &h));
    TSR_TRY(tsri_tape_checkpoint(tape, block, b, &h, 1, &options, &kept));
    CHECK_EQ(tsri_dtensor_buffer(y) == NULL, offload);
    TSR_TRY(tsr_op_add(tape, kept, y, &kept)); /* gone */
    TSR_TRY(tsri_tape_checkpoint(tape, block, b, &y, 1, &options, &y));
    TSR_TRY(tsr_op_add(tape, kept, y, out));
    return TSR_OK;
}

static void run_again(bench *b, bool offload)
{
    tsr_dtensor *y = NULL;
    tsr_dtensor *loss = NULL;
    size_t host = 0;

    open_bench(b);
    for (int step = 0; step < 3; step++) {
        REQUIRE_OK(rig_begin(&b->r, step));
        REQUIRE_OK(read_again(b, offload, &y));
        REQUIRE_OK(rig_dot(b->r.tape, y, y, &loss));
        REQUIRE_OK(tsr_backward(b->r.tape, loss));
        REQUIRE_OK(tsr_step_loss(b->r.tape, &b->loss));
        REQUIRE_OK(tsr_step_end(b->r.tape));
        b->host = tsri_comm_device(b->r.comm)->host_peak;
        CHECK(step == 0 || b->host == host);
        host = b->host;
    }
    REQUIRE_OK(rig_grad(b->up, COUNT, b->grad[1]));
    REQUIRE_OK(rig_grad(b->x, (int64_t)BATCH * SEQ * DIM, b->grad[3]));
    rig_close(&b->r);
}

static void test_read_again(void)
{
    bench *here = NULL;
    bench *away = NULL;

    REQUIRE_OK(tsri_alloc(1, sizeof(*here), &here));
    REQUIRE_OK(tsri_alloc(1, sizeof(*away), &away));
    run_again(here, false);
    run_again(away, true);
    CHECK(here->loss == away->loss);
    CHECK(here->host == 0 && away->host > 0);
    for (int i = 0; i < COUNT; i++) {
        CHECK(here->grad[1][i] == away->grad[1][i]);
        CHECK(here->grad[3][i] == away->grad[3][i]);
    }
    tsri_free(&here);
    tsri_free(&away);
}

const tsr_test_case tsr_test_cases[] = {{"parts", test_parts},
                                        {"nested parts", test_nested},
                                        {"offloaded", test_offloaded},
                                        {"kept", test_kept},
                                        {"nothing to keep", test_nothing_to_keep},
                                        {"read again", test_read_again},
                                        {NULL, NULL}};
