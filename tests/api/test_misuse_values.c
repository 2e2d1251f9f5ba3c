/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 */
/* What no program means, of values, tapes and operations: what is refused on many ranks is refused
 * on one, what is of another comm is told, and ranks that came for different steps hear it first.
 */
#include "tessera/tessera.h"

#include <string.h>

#include "api/fixture.h"

static bool says(const char *words)
{
    const bool found = strstr(tsr_error_message(), words) != NULL;

    if (!found) {
        (void)fprintf(stderr, "  wants \"%s\" in \"%s\"\n", words, tsr_error_message());
    }
    tsr_error_clear();
    return found;
}

/* ---- to Partial ---- */

/* Axis "shard" has all ranks, "tp" one: the answer is the same. */
static void nothing_becomes_partial(void)
{
    static const char *const axes[] = {"shard", "tp"};
    api_fixture fixture;
    api_fixture *f = &fixture;

    REQUIRE_OK(api_open(f, API_FORWARD));
    for (int i = 0; i < 2; i++) {
        for (int split = 0; split < 2; split++) {
            tsr_layout from = f->layout2;
            tsr_layout to = f->layout2;
            tsr_dtensor *x = NULL;
            tsr_dtensor *moved = NULL;

            REQUIRE_OK(tsr_layout_place(&from, axes[i], split ? tsr_shard(0) : tsr_replicate()));
            REQUIRE_OK(tsr_layout_place(&to, axes[i], tsr_partial()));
            REQUIRE_OK(tsr_dtensor_create(f->comm, &from, TSR_F32, "x", &x));
            CHECK_EQ(tsr_dtensor_redistribute(x, &to, &moved), TSR_ERR_PLACEMENT);
            CHECK(says(axes[i]));
            CHECK_EQ(tsr_op_redistribute(f->tape, x, &to, &f->y), TSR_ERR_PLACEMENT);
            CHECK(says(axes[i]));
            tsr_dtensor_release(&x);
            REQUIRE_OK(tsr_dtensor_create(f->comm, &to, TSR_F32, "sum", &x)); /* Partial stays */
            CHECK_OK(tsr_dtensor_redistribute(x, &to, &moved));
            CHECK_EQ(tsr_dtensor_layout(moved)->place[i].kind, TSR_PARTIAL);
            tsr_dtensor_release(&moved);
            CHECK_OK(tsr_dtensor_redistribute(x, &from, &moved));
            tsr_dtensor_release(&moved);
            tsr_dtensor_release(&x);
        }
    }
    api_close(f);
}

/* A loss is Partial over "shard", on one rank too: a program may name that it stays so. */
static void a_loss_stays_partial(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_dtensor *moved = NULL;
    tsr_layout to;

    REQUIRE_OK(api_open(f, API_FORWARD));
    REQUIRE_OK(tsr_layout_init(f->mesh, NULL, 0, &to));
    REQUIRE_OK(tsr_layout_place(&to, "shard", tsr_partial()));
    CHECK_OK(tsr_dtensor_redistribute(f->loss, &to, &moved));
    tsr_dtensor_release(&moved);
    CHECK_OK(tsr_op_redistribute(f->tape, f->loss, &to, &f->loss));
    CHECK_OK(tsr_backward(f->tape, f->loss));
    api_close(f);
}

/* ---- of another comm ---- */

static void tapes_and_labels_of_another_comm(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;

    REQUIRE_OK(api_open(f, API_READY));
    REQUIRE_OK(tsr_comm_open(f->world, f->mesh, NULL, &f->comm2));
    REQUIRE_OK(tsr_tape_create(f->comm2, &f->tape2));
    CHECK_EQ(tsr_plan_print(f->model, f->tape2, f->sink), TSR_ERR_INVALID);
    CHECK(says("the tape lies on another comm than model \"\""));
    CHECK_EQ(ftell(f->sink), 0);
    CHECK_OK(tsr_plan_print(f->model, f->tape, f->sink));
    CHECK_EQ(tsr_step_begin(f->tape2, 0, &f->labels, 1), TSR_ERR_INVALID);
    CHECK(says("labels of micro-batch 0 lie on another comm than the tape"));
    CHECK_EQ(tsr_loss_scale_begin(f->optimizer, f->tape2, NULL), TSR_ERR_INVALID);
    CHECK(says("the tape lies on another comm than the optimizer"));
    CHECK_EQ(tsr_loss_scale_read(f->optimizer, f->tape2, &f->number, NULL), TSR_ERR_INVALID);
    CHECK(says("the tape lies on another comm than the optimizer"));
    CHECK_EQ(tsr_clip_grad_norm(f->optimizer, f->tape2, 1.0), TSR_ERR_INVALID);
    CHECK(says("the tape lies on another comm than the optimizer"));
    CHECK_OK(tsr_loss_scale_read(f->optimizer, f->tape, &f->number, NULL));
    api_close(f);
}

/* ---- operations of a program's own ---- */

static void bits_of_inputs_that_are_none(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_dtensor *in[2] = {NULL};

    REQUIRE_OK(api_open(f, API_FORWARD));
    in[0] = f->x;
    in[1] = f->x;
    f->op.keep_in = 1U << 1 | 1U << 3;
    CHECK_EQ(tsr_op_custom(f->tape, &f->op, in, 1, NULL, 0, &f->y), TSR_ERR_INVALID);
    CHECK(says("copy: keep_in has bit 1, of inputs 0 to 0"));
    CHECK_EQ(tsr_op_custom(f->tape, &f->op, in, 2, NULL, 0, &f->y), TSR_ERR_INVALID);
    CHECK(says("copy: keep_in has bit 3, of inputs 0 to 1"));
    f->op.keep_in = 1U << 1;
    f->op.adds_grad = 1U << 31;
    CHECK_EQ(tsr_op_custom(f->tape, &f->op, in, 2, NULL, 0, &f->y), TSR_ERR_INVALID);
    CHECK(says("copy: adds_grad has bit 31, of inputs 0 to 1"));
    f->op.adds_grad = 3;
    f->op.takes[1] = TSR_F32; /* the type, not its bit: that of no type */
    CHECK_EQ(tsr_op_custom(f->tape, &f->op, in, 2, NULL, 0, &f->y), TSR_ERR_INVALID);
    CHECK(says("copy: takes[1] is 0x1, wants TSR_DTYPE_BIT"));
    f->op.takes[1] = TSR_DTYPE_BIT(TSR_F32);
    CHECK_OK(tsr_op_custom(f->tape, &f->op, in, 2, NULL, 0, &f->y));
    api_close(f);
}

/* ---- ranks that came for different steps ---- */

/* Shapes that do not meet: said with both, and the step goes on. */
static void shapes_that_do_not_meet(void)
{
    const tsr_attention_options full = {.full = true};
    tsr_dtensor *parts[5];
    tsr_dtensor *one = NULL;
    api_fixture fixture;
    api_fixture *f = &fixture;

    REQUIRE_OK(api_open(f, API_FORWARD));
    for (int i = 0; i < 5; i++) {
        parts[i] = f->x;
    }
    CHECK_EQ(tsr_op_sum(f->tape, f->x, 3, false, &f->y), TSR_ERR_SHAPE);
    CHECK(says("sum: over dim 3 of x [2, 4, 16]"));
    CHECK_EQ(tsr_op_multiply(f->tape, f->gain, f->x, &f->y), TSR_ERR_SHAPE);
    CHECK(says("multiply: a [16], b [2, 4, 16]; want b of a's shape"));
    CHECK_EQ(tsr_op_slice(f->tape, f->x, 1, 2, 3, &f->y), TSR_ERR_SHAPE);
    CHECK(says("slice: 3 entries from 2 on of dim 1 of x [2, 4, 16]"));
    CHECK_EQ(tsr_op_concat(f->tape, parts, 5, 0, &f->y), TSR_ERR_INVALID);
    CHECK(says("of 5 parts, wants 1 to 4"));
    parts[1] = f->logits;
    CHECK_EQ(tsr_op_concat(f->tape, parts, 2, 0, &f->y), TSR_ERR_SHAPE);
    CHECK(says("concat: along dim 0 of part 0 [2, 4, 16], part 1 [2, 4, 32]"));
    CHECK_EQ(tsr_op_matmul(f->tape, f->x, f->x, NULL, &f->y), TSR_ERR_SHAPE);
    CHECK(says("matmul: a [2, 4, 16] times b [2, 4, 16]"));
    CHECK_OK(tsr_op_slice(f->tape, f->heads, 1, 0, 1, &one));
    CHECK_EQ(tsr_op_attention(f->tape, f->heads, one, one, 0.0, &f->y), TSR_ERR_SHAPE);
    CHECK(says("no fewer keys than causal queries"));
    CHECK_OK(tsr_op_attention_with(f->tape, f->heads, one, one, &full, &f->y));
    CHECK_OK(tsr_op_attention(f->tape, one, f->heads, f->heads, 0.0, &f->y));
    CHECK_OK(tsr_backward(f->tape, f->loss));
    api_close(f);
}

/* Products whose operands cannot be. */
static void products_that_cannot_be(void)
{
    float a[6] = {1, 2, 3, 4, 5, 6};
    float c[4] = {0};
    tsr_product product = {
        .a = a, .b = a, .c = c, .m = 2, .n = 2, .k = 3, .lda = 2, .trans_b = true};

    CHECK_EQ(tsr_product_compute(&product), TSR_ERR_INVALID);
    CHECK(says("product: a is [2, 3] with rows 2 apart"));
    product.lda = 0;
    product.c_type = TSR_I32;
    CHECK_EQ(tsr_product_compute(&product), TSR_ERR_INVALID);
    CHECK(says("product: c is i32, wants f32, bf16 or f16"));
    product.c_type = TSR_F32;
    CHECK_OK(tsr_product_compute(&product));
    CHECK(c[0] == 14.0F && c[1] == 32.0F && c[2] == 32.0F && c[3] == 77.0F);
    product.accumulate = true;
    CHECK_OK(tsr_product_compute(&product));
    CHECK(c[3] == 154.0F);
    product.b = NULL;
    CHECK_EQ(tsr_product_compute(&product), TSR_ERR_INVALID);
    CHECK(says("product: b [2, 3] is NULL"));
}

static void micro_batches_differ(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    const int count = tsr_test_rank() == 1 ? 3 : 2;
    tsr_dtensor *labels[3] = {NULL};
    double tokens = 0.0;

    if (tsr_test_size() == 1) {
        return;
    }
    REQUIRE_OK(api_open(f, API_READY));
    for (int i = 0; i < 3; i++) {
        labels[i] = f->labels;
    }
    CHECK_EQ(tsr_step_begin(f->tape, 0, labels, count), TSR_ERR_DISAGREE);
    CHECK(says(count == 2 ? "micro_batch_count 2 on this rank, with 2 to 3 on others"
                          : "micro_batch_count 3 on this rank, with 2 to 3 on others"));
    CHECK_STATUS(TSR_ERR_STATE, tsr_step_end(f->tape)); /* none has begun */
    CHECK_OK(tsr_step_begin(f->tape, 0, labels, 3));
    CHECK_OK(tsr_step_tokens(f->tape, &tokens));
    CHECK_EQ((int)tokens, 3 * 8); /* [2, 4] labels */
    CHECK_OK(tsr_step_end(f->tape));
    api_close(f);
}

const tsr_test_case tsr_test_cases[] = {
    {"nothing_becomes_partial", nothing_becomes_partial},
    {"a_loss_stays_partial", a_loss_stays_partial},
    {"tapes_and_labels_of_another_comm", tapes_and_labels_of_another_comm},
    {"bits_of_inputs_that_are_none", bits_of_inputs_that_are_none},
    {"shapes_that_do_not_meet", shapes_that_do_not_meet},
    {"products_that_cannot_be", products_that_cannot_be},
    {"micro_batches_differ", micro_batches_differ},
    {"the_job_is_left", api_end},
    {NULL, NULL},
};
