/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 */
/**
 * @file test_tape.c
 * The tape's life: what it refuses, what it keeps and for how long, and what a step adds up.
 */
#include "base/base.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "support/tape_rig.h"

enum {
    ROWS = 8,
    COLS = 32,
    COUNT = ROWS * COLS
};

static const int64_t shape[] = {ROWS, COLS};
static const int64_t cube[] = {4, 2, COLS};
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

static rig_leaf *leaf(bench *b, const char *name, const int64_t *dims, int ndim)
{
    tsr_layout layout;
    rig_leaf *out = NULL;

    CHECK_OK(tsr_layout_init(b->r.mesh, dims, ndim, &layout));
    CHECK_OK(rig_leaf_add(&b->r, name, &layout, b->numbers, &out));
    return out;
}

static tsr_dtensor *constant(bench *b, const int64_t *dims, int ndim)
{
    tsr_layout layout;
    tsr_dtensor *out = NULL;

    CHECK_OK(tsr_layout_init(b->r.mesh, dims, ndim, &layout));
    CHECK_OK(rig_floats(&b->r, &layout, b->numbers, &out));
    return out;
}

static void check_says(const char *words)
{
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

/* ---- refusals ---- */

static void test_states(void)
{
    bench b;
    rig_leaf *x = NULL;
    tsr_dtensor *y = NULL;
    tsr_tape *tape = NULL;

    open_bench(&b);
    tape = b.r.tape;
    x = leaf(&b, "x", shape, 2);
    REQUIRE(tsr_tape_begin(tape, 0) == TSR_ERR_STATE);
    check_says("outside of a step");
    REQUIRE(tsr_step_end(tape) == TSR_ERR_STATE);
    REQUIRE(tsr_step_begin(tape, 0, &b.r.labels, 0) == TSR_ERR_INVALID);
    REQUIRE(tsr_step_begin(tape, 0, &x->param.value, 1) == TSR_ERR_INVALID);
    check_says("labels of micro-batch 0 are f32, want i32");
    REQUIRE_OK(tsr_step_begin(tape, 5, &b.r.labels, 1));
    REQUIRE(tsr_step_begin(tape, 6, &b.r.labels, 1) == TSR_ERR_STATE);
    check_says("step 6 begins before step 5 has ended");
    REQUIRE(tsr_op_gelu(tape, x->param.value, &y) == TSR_ERR_STATE);
    check_says("gelu: called before tsr_tape_begin");
    REQUIRE(tsr_tape_begin(tape, 1) == TSR_ERR_STATE);
    check_says("micro-batch 1 of 1 begins, expected 0");
    REQUIRE_OK(tsr_tape_begin(tape, 0));
    REQUIRE_OK(tsr_op_gelu(tape, x->param.value, &y));
    REQUIRE(tsr_backward(tape, y) == TSR_ERR_SHAPE);
    tsr_error_clear();
    REQUIRE_OK(tsr_step_end(tape));
    rig_close(&b.r);
}

static void test_messages(void)
{
    static const int64_t thin[] = {100, 40};
    static const int64_t odd[] = {4, 2, 3, 5};
    bench b;
    tsr_dtensor *y = NULL;
    tsr_dtensor *x = NULL;
    tsr_dtensor *kv = NULL;
    tsr_dtensor *weight = NULL;
    tsr_dtensor *odd_x = NULL;

    open_bench(&b);
    x = constant(&b, cube, 3);
    weight = constant(&b, square, 2);
    odd_x = constant(&b, odd, 4);
    kv = leaf(&b, "kv", thin, 1)->param.value;
    REQUIRE_OK(rig_begin(&b.r, 0));
    REQUIRE_OK(tsri_tape_enter(b.r.tape, "layers.0.attn.q"));
    REQUIRE(tsr_op_linear(b.r.tape, odd_x, weight, NULL, &y) == TSR_ERR_SHAPE);
    check_says("linear in layers.0.attn.q: x [..., 5] times weight [32, 32]: 5 != 32");
    REQUIRE(tsr_op_linear(b.r.tape, x, weight, kv, &y) == TSR_ERR_SHAPE);
    check_says("bias [100] for weight [32, 32]");
    REQUIRE(tsr_op_add(b.r.tape, x, weight, &y) == TSR_ERR_SHAPE);
    check_says("add in layers.0.attn.q: [4, 2, 32] and [32, 32]");
    REQUIRE(tsr_op_rope(b.r.tape, odd_x, 100.0, &y) == TSR_ERR_SHAPE);
    REQUIRE(tsr_op_split_heads(b.r.tape, x, 5, &y) == TSR_ERR_SHAPE);
    REQUIRE(tsr_op_rmsnorm(b.r.tape, x, kv, 1e-5, &y) == TSR_ERR_SHAPE);
    REQUIRE(tsr_op_embedding(b.r.tape, x, weight, &y) == TSR_ERR_INVALID);
    check_says("ids is f32, wants i32");
    REQUIRE(tsr_op_cross_entropy(b.r.tape, x, b.r.labels, &y) == TSR_ERR_SHAPE);
    REQUIRE(tsr_op_dropout(b.r.tape, x, 1.0, &y) == TSR_ERR_INVALID);
    REQUIRE(tsr_op_add_position(b.r.tape, x, kv, &y) == TSR_ERR_SHAPE);
    REQUIRE(tsr_op_attention(b.r.tape, odd_x, x, x, 0.0, &y) == TSR_ERR_SHAPE);
    tsr_error_clear();
    tsri_tape_leave(b.r.tape, NULL);
    /* A rule that refuses has changed nothing. */
    REQUIRE_OK(tsr_op_gelu(b.r.tape, x, &y));
    REQUIRE_OK(tsr_step_end(b.r.tape));
    tsr_dtensor_release(&x);
    tsr_dtensor_release(&weight);
    tsr_dtensor_release(&odd_x);
    rig_close(&b.r);
}

/* A parameter that has no memory now; one that nobody collects; a value of an older micro-batch. */
static void test_refused_inputs(void)
{
    const tsr_param_spec spec = {.shape = {COLS, COLS}, .ndim = 2};
    tsr_dtensor *labels[2] = {NULL};
    bench b;
    tsr_param *param = NULL;
    tsr_dtensor *weight = NULL;
    tsr_dtensor *x = NULL;
    tsr_dtensor *y = NULL;
    tsr_dtensor *loss = NULL;
    rig_leaf *w = NULL;

    open_bench(&b);
    x = constant(&b, shape, 2);
    weight = constant(&b, shape, 2);
    w = leaf(&b, "w", square, 2);
    REQUIRE_OK(tsri_param_create(b.r.comm, "layers.3.mlp.up.weight", &spec, &param));
    REQUIRE_OK(rig_begin(&b.r, 0));
    REQUIRE(tsr_op_linear(b.r.tape, x, param->value, NULL, &y) == TSR_ERR_STATE);
    check_says("parameter layers.3.mlp.up.weight is not gathered: its unit is not running");
    REQUIRE_OK(tsr_step_end(b.r.tape));

    REQUIRE_OK(rig_begin(&b.r, 1));
    w->param.sink = NULL;
    REQUIRE_OK(tsr_op_linear(b.r.tape, x, w->param.value, NULL, &y));
    REQUIRE_OK(rig_dot(b.r.tape, y, weight, &loss));
    REQUIRE(tsr_backward(b.r.tape, loss) == TSR_ERR_STATE);
    check_says("nothing takes the gradient of parameter w");
    /* The step failed: it goes on with nothing but its end, and the next is well. */
    REQUIRE(tsr_tape_begin(b.r.tape, 0) == TSR_ERR_STATE);
    w->param.sink = NULL;

    labels[0] = b.r.labels;
    labels[1] = b.r.labels;
    REQUIRE_OK(tsr_step_begin(b.r.tape, 2, labels, 2));
    REQUIRE_OK(tsr_tape_begin(b.r.tape, 0));
    REQUIRE_OK(tsr_op_linear(b.r.tape, x, w->param.value, NULL, &y));
    y = tsr_dtensor_retain(y);
    REQUIRE_OK(tsr_tape_begin(b.r.tape, 1));
    REQUIRE(tsr_op_gelu(b.r.tape, y, &loss) == TSR_ERR_STATE);
    check_says("made before this micro-batch began");
    tsr_dtensor_release(&y);
    REQUIRE_OK(tsr_step_end(b.r.tape));
    tsri_param_release(&param);
    tsr_dtensor_release(&x);
    tsr_dtensor_release(&weight);
    rig_close(&b.r);
}

static void test_params(void)
{
    const tsr_mesh_axis axes[] = {{"data", 2}, {"tp", 2}};
    const tsr_param_spec spec = {.shape = {10, 6}, .ndim = 2};
    const tsr_param_spec bad = {.shape = {1, 2, 3, 4, 5}, .ndim = 5};
    const tsr_placement by_row = {.kind = TSR_SHARD, .dim = 0};
    tsr_param *param = NULL;
    rig r;

    REQUIRE_OK(rig_open(&r, "sim", axes, 2, 3));
    REQUIRE(tsri_param_create(r.comm, "p", &bad, &param) == TSR_ERR_INVALID);
    check_says("parameter p has 5 dims, wants 1 to 4");
    REQUIRE_OK(tsri_param_create(r.comm, "p", &spec, &param));
    CHECK_EQ(tsr_param_count(param), 60);
    CHECK(tsr_param_value(param)->param == param);
    CHECK(tsr_param_get_spec(param)->ndim == 2);
    REQUIRE_OK(tsri_param_rename(param, "layers.0.p"));
    CHECK_STR(tsr_param_name(param), "layers.0.p");
    REQUIRE_OK(tsri_param_place(param, "tp", by_row));
    CHECK_EQ(param->value->local_count, 30);
    REQUIRE(tsri_param_place(param, "no", by_row) == TSR_ERR_INVALID);
    param->master.buffer = r.labels->storage->mem.buffer;
    REQUIRE(tsri_param_place(param, "tp", by_row) == TSR_ERR_STATE);
    tsr_error_clear();
    tsri_param_release(&param);
    rig_close(&r);
}

/* ---- what is kept ---- */

/* Bytes alive at the peak of a step in which depth modules, each gelu of its input, run in turn. */
static size_t peak_of_chain(bench *b, int depth, bool evaluates, int64_t step)
{
    tsri_arena_stats stats = {0};
    tsr_dtensor *h = leaf(b, "x", shape, 2)->param.value;

    if (evaluates) {
        CHECK_OK(tsr_eval_begin(b->r.tape));
    } else {
        CHECK_OK(rig_begin(&b->r, step));
    }
    for (int i = 0; i < depth; i++) {
        CHECK_OK(tsri_tape_enter(b->r.tape, "layer"));
        CHECK_OK(tsr_op_scale(b->r.tape, h, 0.5, &h)); /* dropped inside, kept by no node */
        CHECK_OK(tsr_op_gelu(b->r.tape, h, &h));
        tsri_tape_leave(b->r.tape, h);
    }
    CHECK_OK(evaluates ? tsr_eval_end(b->r.tape) : tsr_step_end(b->r.tape));
    tsri_arena_get_stats(tsri_comm_arena(b->r.comm), &stats);
    rig_clear(&b->r);
    return stats.live_peak_bytes;
}

static void test_scopes(void)
{
    const size_t bytes = COUNT * sizeof(float);
    bench b;

    open_bench(&b);
    /* Values live until their maker's caller returns: results 1 .. depth, and one scaled copy. */
    CHECK_EQ(peak_of_chain(&b, 4, true, 0), 5 * bytes);
    /* gelu keeps its input: one more per layer. */
    CHECK_EQ(peak_of_chain(&b, 4, false, 1), 8 * bytes);
    CHECK_EQ(peak_of_chain(&b, 6, false, 2), 12 * bytes);
    rig_close(&b.r);
}

/* A value that the program still holds at the end of the step is an error; the tape goes on. */
static void test_kept_value(void)
{
    bench b;
    tsr_dtensor *y = NULL;

    open_bench(&b);
    REQUIRE_OK(rig_begin(&b.r, 0));
    REQUIRE_OK(tsr_op_gelu(b.r.tape, leaf(&b, "x", shape, 2)->param.value, &y));
    y = tsr_dtensor_retain(y);
    CHECK(tsr_step_end(b.r.tape) != TSR_OK);
    tsr_error_clear();
    REQUIRE_OK(rig_begin(&b.r, 1));
    REQUIRE_OK(tsr_step_end(b.r.tape));
    y->storage->arena = NULL; /* its range went with the abandoned step */
    tsr_dtensor_release(&y);
    rig_close(&b.r);
}

static tsr_status loss_step(bench *b, const rig_leaf *w, tsr_dtensor *x, tsr_dtensor *labels,
                            bool hold, int64_t step, int *ranges)
{
    tsri_arena_stats stats = {0};
    tsr_dtensor *logits = NULL;
    tsr_dtensor *loss = NULL;

    TSR_TRY(tsr_step_begin(b->r.tape, step, &labels, 1));
    TSR_TRY(tsr_tape_begin(b->r.tape, 0));
    TSR_TRY(tsr_op_linear(b->r.tape, x, w->param.value, NULL, &logits));
    TSR_TRY(tsr_op_cross_entropy(b->r.tape, logits, labels, &loss));
    logits = hold ? tsr_dtensor_retain(logits) : NULL;
    TSR_TRY(tsr_backward(b->r.tape, loss));
    tsr_dtensor_release(&logits);
    TSR_TRY(tsr_step_end(b->r.tape));
    tsri_arena_get_stats(tsri_comm_arena(b->r.comm), &stats);
    *ranges = stats.interval_count;
    return TSR_OK;
}

/* dlogits take the place of logits unless somebody still looks at those. */
static void test_loss_in_place(void)
{
    static const int64_t labels_shape[] = {ROWS};
    static const int32_t numbers[ROWS] = {1, 5, 3, 31, 0, 7, 9, 2};
    bench b;
    tsr_layout layout;
    tsr_dtensor *labels = NULL;
    tsr_dtensor *x = NULL;
    rig_leaf *w = NULL;
    int alone = 0; /* ranges of memory taken in the step */
    int held = 0;
    double first[COLS * COLS];

    open_bench(&b);
    x = constant(&b, shape, 2);
    w = leaf(&b, "w", square, 2);
    REQUIRE_OK(tsr_layout_init(b.r.mesh, labels_shape, 1, &layout));
    REQUIRE_OK(rig_ints(&b.r, &layout, numbers, &labels));
    REQUIRE_OK(loss_step(&b, w, x, labels, false, 0, &alone));
    REQUIRE_OK(rig_grad(w, (int64_t)COLS * COLS, first));
    REQUIRE_OK(loss_step(&b, w, x, labels, true, 1, &held));
    REQUIRE_OK(rig_grad(w, (int64_t)COLS * COLS, b.read));
    CHECK_EQ(held, alone + 1);
    for (int i = 0; i < COLS * COLS; i++) {
        /* The second step added the same once more. */
        CHECK_NEAR(b.read[i], 2.0 * first[i], 2.0 * (double)FLT_EPSILON * fabs(first[i]));
    }
    CHECK_EQ(w->contributions, 2);
    tsr_dtensor_release(&labels);
    tsr_dtensor_release(&x);
    rig_close(&b.r);
}

/* After the first step the plan is replayed: no departure, and not a byte allocated. */
static void test_replay(void)
{
    static const int64_t labels_shape[] = {ROWS};
    static const int32_t numbers[ROWS] = {1, 5, 3, 31, 0, 7, 9, 2};
    bench b;
    tsr_layout layout;
    tsr_dtensor *labels = NULL;
    tsr_dtensor *x = NULL;
    rig_leaf *w = NULL;
    tsri_arena_stats stats = {0};
    int ranges = 0;
    size_t peak = 0;
    size_t after_two = 0;
    size_t now = 0;

    open_bench(&b);
    x = constant(&b, shape, 2);
    w = leaf(&b, "w", square, 2);
    REQUIRE_OK(tsr_layout_init(b.r.mesh, labels_shape, 1, &layout));
    REQUIRE_OK(rig_ints(&b.r, &layout, numbers, &labels));
    for (int64_t step = 0; step < 4; step++) {
        REQUIRE_OK(loss_step(&b, w, x, labels, false, step, &ranges));
        tsr_comm_memory(b.r.comm, &now, &peak);
        after_two = step == 1 ? now : after_two;
    }
    CHECK_EQ(now, after_two);
    tsri_arena_get_stats(tsri_comm_arena(b.r.comm), &stats);
    CHECK_EQ(stats.departures, 0);
    CHECK(stats.planned_bytes > 0);
    tsr_dtensor_release(&labels);
    tsr_dtensor_release(&x);
    rig_close(&b.r);
}

/* ---- what a step adds up ---- */

typedef struct visit_log {
    char text[32];
    int length;
} visit_log;

static void note(visit_log *log, char mark)
{
    REQUIRE(log->length + 1 < (int)sizeof(log->text));
    log->text[log->length++] = mark;
}

static tsr_status mark_a(void *context, tsr_tape *tape)
{
    visit_log *log = context;

    CHECK(tsri_tape_in_backward(tape));
    note(log, 'a');
    return TSR_OK;
}

static tsr_status mark_b(void *context, tsr_tape *tape)
{
    visit_log *log = context;

    (void)tape;
    note(log, 'b');
    return TSR_OK;
}

/* Loss and gradient over two micro-batches of which one half does not count; markers in reverse. */
static void test_micro_batches(void)
{
    static const int64_t labels_shape[] = {ROWS};
    static const int32_t first[ROWS] = {1, 5, 3, 31, 0, 7, 9, 2};
    static const int32_t second[ROWS] = {4, -100, -100, 2, -100, 7, -100, -100};
    bench b;
    tsr_layout layout;
    visit_log log = {.length = 0};
    tsr_dtensor *labels[2] = {NULL};
    tsr_dtensor *x = NULL;
    rig_leaf *w = NULL;
    double total = 0.0;
    double sum = 0.0;
    double tokens = 0.0;

    open_bench(&b);
    x = constant(&b, shape, 2);
    w = leaf(&b, "w", square, 2);
    REQUIRE_OK(tsr_layout_init(b.r.mesh, labels_shape, 1, &layout));
    REQUIRE_OK(rig_ints(&b.r, &layout, first, &labels[0]));
    REQUIRE_OK(rig_ints(&b.r, &layout, second, &labels[1]));
    REQUIRE_OK(tsr_step_begin(b.r.tape, 0, labels, 2));
    for (int i = 0; i < 2; i++) {
        tsr_dtensor *y = NULL;
        tsr_dtensor *loss = NULL;
        double one = 0.0;

        REQUIRE_OK(tsr_tape_begin(b.r.tape, i));
        CHECK_EQ(tsri_tape_micro_batch(b.r.tape), i);
        REQUIRE_OK(tsri_tape_marker(b.r.tape, mark_a, &log));
        REQUIRE_OK(tsr_op_linear(b.r.tape, x, w->param.value, NULL, &y));
        REQUIRE_OK(tsri_tape_marker(b.r.tape, mark_b, &log));
        REQUIRE_OK(tsr_op_cross_entropy(b.r.tape, y, labels[i], &loss));
        REQUIRE_OK(rig_read(loss, &one));
        sum += one;
        REQUIRE_OK(tsr_backward(b.r.tape, loss));
    }
    CHECK_STR(log.text, "baba");
    REQUIRE_OK(tsr_step_tokens(b.r.tape, &tokens));
    CHECK_NEAR(tokens, ROWS + 3.0, 0.0);
    REQUIRE_OK(tsr_step_loss(b.r.tape, &total));
    /* Two f32 numbers added. */
    CHECK_NEAR(total, sum, (double)FLT_EPSILON * sum);
    /* Near the entropy of a uniform guess: both halves count by tokens. */
    CHECK(total > 0.5 * log2(COLS) * 0.6 && total < 2.0 * log2(COLS) * 0.7);
    CHECK_EQ(w->contributions, 2);
    CHECK_EQ(w->grad_count, 1);
    REQUIRE_OK(tsr_step_end(b.r.tape));
    for (int i = 0; i < 2; i++) {
        tsr_dtensor_release(&labels[i]);
    }
    tsr_dtensor_release(&x);
    rig_close(&b.r);
}

/* Where no label counts, loss and gradient are 0. */
static void test_no_tokens(void)
{
    static const int64_t labels_shape[] = {ROWS};
    static const int32_t none[ROWS] = {-100, -100, -100, -100, -100, -100, -100, -100};
    bench b;
    tsr_layout layout;
    tsr_dtensor *labels = NULL;
    tsr_dtensor *x = NULL;
    rig_leaf *w = NULL;
    int ranges = 0;
    double loss = 1.0;

    open_bench(&b);
    x = constant(&b, shape, 2);
    w = leaf(&b, "w", square, 2);
    REQUIRE_OK(tsr_layout_init(b.r.mesh, labels_shape, 1, &layout));
    REQUIRE_OK(rig_ints(&b.r, &layout, none, &labels));
    REQUIRE_OK(loss_step(&b, w, x, labels, false, 0, &ranges));
    REQUIRE_OK(tsr_step_loss(b.r.tape, &loss));
    CHECK_NEAR(loss, 0.0, 0.0);
    REQUIRE_OK(rig_grad(w, (int64_t)COLS * COLS, b.read));
    for (int i = 0; i < COLS * COLS; i++) {
        CHECK_NEAR(b.read[i], 0.0, 0.0);
    }
    tsr_dtensor_release(&labels);
    tsr_dtensor_release(&x);
    rig_close(&b.r);
}

/* Write the mask of rows [begin, begin + rows) of ROWS ones, seen as micro-batch number. */
static void mask_of(bench *b, int rows, int number, int count, const char *path, double *out)
{
    const int64_t part[] = {rows, COLS};
    tsr_dtensor *labels[ROWS] = {NULL};
    tsr_dtensor *y = NULL;
    tsr_dtensor *x = constant(b, part, 2);

    for (int i = 0; i < count; i++) {
        labels[i] = b->r.labels;
    }
    REQUIRE_OK(tsr_step_begin(b->r.tape, 11, labels, count));
    for (int i = 0; i <= number; i++) {
        REQUIRE_OK(tsr_tape_begin(b->r.tape, i));
    }
    REQUIRE_OK(tsri_tape_enter(b->r.tape, path));
    REQUIRE_OK(tsr_op_dropout(b->r.tape, x, 0.5, &y));
    REQUIRE_OK(rig_read(y, out));
    tsri_tape_leave(b->r.tape, NULL);
    REQUIRE_OK(tsr_step_end(b->r.tape));
    tsr_dtensor_release(&x);
}

static void test_dropout(void)
{
    bench b;
    double all[COUNT];
    double part[COUNT];
    double other[COUNT];
    int zeros = 0;
    int different = 0;

    open_bench(&b);
    for (int i = 0; i < COLS * COLS; i++) {
        b.numbers[i] = 1.0F;
    }
    mask_of(&b, ROWS, 0, 1, "m", all);
    mask_of(&b, ROWS, 0, 1, "n", other);
    for (int number = 0; number < 4; number++) {
        mask_of(&b, ROWS / 4, number, 4, "m", part + (size_t)number * COUNT / 4);
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK_NEAR(part[i], all[i], 0.0);
        zeros += fabs(all[i]) > 0.0 ? 0 : 1;
        different += fabs(all[i] - other[i]) > 0.0 ? 1 : 0;
    }
    /* Fair coins: within 5 standard deviations of half. */
    CHECK_NEAR(zeros, COUNT / 2.0, 5.0 * sqrt(COUNT / 4.0));
    CHECK_NEAR(different, COUNT / 2.0, 5.0 * sqrt(COUNT / 4.0));
    rig_close(&b.r);
}

const tsr_test_case tsr_test_cases[] = {{"states", test_states},
                                        {"messages", test_messages},
                                        {"refused inputs", test_refused_inputs},
                                        {"params", test_params},
                                        {"scopes", test_scopes},
                                        {"kept value", test_kept_value},
                                        {"loss in place", test_loss_in_place},
                                        {"replay", test_replay},
                                        {"micro-batches", test_micro_batches},
                                        {"no tokens", test_no_tokens},
                                        {"dropout", test_dropout},
                                        {NULL, NULL}};
