/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 */
/* What no program means: trees that are none, forwards that give nothing, models that go early. */
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

static tsr_module *sequence(api_fixture *f)
{
    return api_new_module(f);
}

static void trees_that_cannot_be(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_module *a = NULL;
    tsr_module *b = NULL;
    tsr_module *c = NULL;

    REQUIRE_OK(api_open(f, API_BASE));
    a = sequence(f);
    b = sequence(f);
    c = sequence(f);
    CHECK_EQ(tsr_module_add_child(a, "self", a), TSR_ERR_INVALID);
    CHECK(says("\"self\""));
    CHECK_OK(tsr_module_add_child(a, "b", b));
    CHECK_OK(tsr_module_add_child(b, "c", c));
    CHECK_EQ(tsr_module_add_child(c, "a", a), TSR_ERR_INVALID); /* a cycle: a stays */
    CHECK(says("below itself"));
    CHECK_EQ(tsr_module_add_child(a, "again", c), TSR_ERR_INVALID);
    CHECK(says("already \"b.c\""));
    CHECK_EQ(tsr_module_add_child(a, "b.c", sequence(f)), TSR_ERR_INVALID); /* two at one path */
    CHECK(says("path is taken"));
    CHECK_STR(tsr_module_path(c), "b.c");
    tsr_module_release(&a);
    api_close(f);
}

static void names_that_are_patterns_or_paths(void)
{
    static const char *const names[] = {"",   ".",   "..",  "a..b", ".a",  "a.",  "*",
                                        "a*", "{a}", "a,b", "a b",  "a\n", "\x7f"};
    const tsr_param_spec spec = {.shape = {2}, .ndim = 1};
    api_fixture fixture;
    api_fixture *f = &fixture;

    REQUIRE_OK(api_open(f, API_MODEL));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        CHECK_EQ(tsr_module_add_child(f->branch, names[i], sequence(f)), TSR_ERR_INVALID);
        CHECK_EQ(tsr_module_add_param(f->branch, names[i], &spec, NULL), TSR_ERR_INVALID);
    }
    tsr_error_clear();
    CHECK_OK(tsr_module_add_child(f->branch, "a.b", sequence(f)));
    CHECK_OK(tsr_module_add_param(f->branch, "a-1_B", &spec, NULL));
    api_close(f);
}

static void trees_of_two_comms_or_two_times(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_module *other = NULL;

    REQUIRE_OK(api_open(f, API_READY));
    CHECK_EQ(tsr_module_add_child(f->model, "late", sequence(f)), TSR_ERR_STATE);
    CHECK(says("materialised already"));
    REQUIRE_OK(tsr_comm_open(f->world, f->mesh, NULL, &f->comm2));
    REQUIRE_OK(tsr_sequential_create(f->comm2, &other));
    CHECK_EQ(tsr_module_add_child(f->branch, "foreign", other), TSR_ERR_INVALID);
    CHECK(says("another comm"));
    api_close(f);
}

/* ---- forwards ---- */

static tsr_status give_nothing(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                               tsr_dtensor **out)
{
    (void)self;
    (void)tape;
    (void)in;
    (void)in_count;
    (void)out;
    return TSR_OK;
}

static tsr_status call_root(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                            tsr_dtensor **out)
{
    return tsr_module_call(*(tsr_module **)self, tape, in, in_count, out);
}

/* A materialised module of forward under a step that has begun. */
static tsr_status open_own(api_fixture *f, tsr_forward_fn forward, void *self)
{
    TSR_TRY(tsr_module_create(f->comm, forward, self, NULL, &f->module2));
    TSR_TRY(tsr_module_materialize(f->module2, 1));
    TSR_TRY(tsr_tape_begin(f->tape, 0));
    return TSR_OK;
}

static void check_next_step(api_fixture *f)
{
    CHECK_OK(tsr_step_end(f->tape));
    CHECK_OK(tsr_step_begin(f->tape, 1, &f->labels, 1));
    CHECK_OK(tsr_tape_begin(f->tape, 0));
    CHECK_OK(tsr_module_call(f->model, f->tape, &f->ids, 1, &f->y));
    CHECK_OK(tsr_op_cross_entropy(f->tape, f->y, f->labels, &f->loss));
    CHECK_OK(tsr_backward(f->tape, f->loss));
    CHECK_OK(tsr_step_end(f->tape));
}

static void forward_gives_nothing(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;

    REQUIRE_OK(api_open(f, API_STEP));
    REQUIRE_OK(open_own(f, give_nothing, NULL));
    CHECK_EQ(tsr_module_call(f->module2, f->tape, &f->x, 1, &f->y), TSR_ERR_INVALID);
    CHECK(says("returned without an output"));
    check_next_step(f);
    api_close(f);
}

static void module_calls_itself(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;

    REQUIRE_OK(api_open(f, API_STEP));
    REQUIRE_OK(open_own(f, call_root, &f->module2));
    CHECK_EQ(tsr_module_call(f->module2, f->tape, &f->x, 1, &f->y), TSR_ERR_STATE);
    CHECK(says("while its own forward runs"));
    check_next_step(f);
    api_close(f);
}

static void inputs_that_are_missing(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_dtensor *none[2] = {NULL, NULL};

    REQUIRE_OK(api_open(f, API_FORWARD));
    CHECK_EQ(tsr_module_call(f->model, f->tape, NULL, 0, &f->y), TSR_ERR_INVALID);
    CHECK(says("0 inputs, wants 1"));
    none[0] = f->ids;
    CHECK_EQ(tsr_module_call(f->model, f->tape, none, 2, &f->y), TSR_ERR_INVALID);
    CHECK(says("in[1] is NULL"));
    CHECK_OK(tsr_backward(f->tape, f->loss)); /* refused calls leave the step as it was */
    api_close(f);
}

static void model_goes_within_a_step(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_module *model = NULL;

    REQUIRE_OK(api_open(f, API_FORWARD));
    model = f->model;
    f->model = NULL;
    tsr_module_release(&model);
    CHECK_OK(tsr_backward(f->tape, f->loss));
    CHECK_OK(tsr_clip_grad_norm(f->optimizer, f->tape, 1.0));
    CHECK_OK(tsr_optimizer_step(f->optimizer, 0.1));
    CHECK_OK(tsr_step_end(f->tape));
    CHECK_EQ(tsr_optimizer_step(f->optimizer, 0.1), TSR_ERR_STATE); /* now it is gone */
    tsr_error_clear();
    api_close(f);
}

static void parameter_given_twice(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_param *twice[2] = {NULL};

    REQUIRE_OK(api_open(f, API_READY));
    twice[0] = f->params[1];
    twice[1] = f->params[1];
    CHECK_EQ(tsr_optimizer_create(f->comm, twice, 2, NULL, &f->optimizer2), TSR_ERR_INVALID);
    CHECK(says("twice"));
    api_close(f);
}

/* ---- ranks that differ ---- */

static void ranks_differ(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_param *swapped[2] = {NULL};
    const int other = tsr_test_rank() == 1;

    if (tsr_test_size() == 1) {
        return;
    }
    REQUIRE_OK(api_open(f, API_MODEL));
    CHECK_EQ(tsr_module_materialize(f->model, other ? 2 : 1), TSR_ERR_DISAGREE);
    CHECK(says("the seed of tsr_module_materialize differs between ranks 0 and 1"));
    CHECK_OK(tsr_module_materialize(f->model, 1));
    swapped[other] = f->params[0];
    swapped[!other] = f->params[1];
    CHECK_EQ(tsr_optimizer_create(f->comm, swapped, 2, NULL, &f->optimizer), TSR_ERR_DISAGREE);
    CHECK(says("the optimizer's list of parameters differs"));
    CHECK_OK(tsr_optimizer_create(f->comm, f->params, f->count, NULL, &f->optimizer));
    api_close(f);
}

static void steps_differ(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;

    if (tsr_test_size() == 1) {
        return;
    }
    REQUIRE_OK(api_open(f, API_READY));
    REQUIRE_OK(tsr_step_begin(f->tape, tsr_test_rank() == 1 ? 7 : 3, &f->labels, 1));
    REQUIRE_OK(tsr_tape_begin(f->tape, 0));
    REQUIRE_OK(tsr_module_call(f->model, f->tape, &f->ids, 1, &f->y));
    REQUIRE_OK(tsr_op_cross_entropy(f->tape, f->y, f->labels, &f->loss));
    CHECK_EQ(tsr_backward(f->tape, f->loss), TSR_ERR_DISAGREE);
    CHECK(says("with steps 3 to 7 on others"));
    CHECK_OK(tsr_step_end(f->tape));
    api_close(f);
}

/* ---- labels and ids out of range ---- */

enum {
    VOCAB = 32, /* the fixture's model; ids and labels are [2, 4] */
    BATCH = 2,
    SEQ = 4
};

/* This rank's rows of zeros with one element, of the whole, being value. */
static void write_ids(tsr_dtensor *tensor, int row, int col, int32_t value)
{
    const int rows = BATCH / tsr_test_size();
    const int first = tsr_test_rank() * rows;
    int32_t ids[BATCH * SEQ] = {0};

    if (row >= first && row < first + rows) {
        ids[(row - first) * SEQ + col] = value;
    }
    CHECK_OK(tsr_dtensor_write(tensor, ids));
}

static tsr_status run_step(api_fixture *f, int64_t number, bool backward, double *loss)
{
    TSR_TRY(tsr_step_begin(f->tape, number, &f->labels, 1));
    TSR_TRY(tsr_tape_begin(f->tape, 0));
    TSR_TRY(tsr_module_call(f->model, f->tape, &f->ids, 1, &f->y));
    TSR_TRY(tsr_op_cross_entropy(f->tape, f->y, f->labels, &f->loss));
    if (backward) {
        TSR_TRY(tsr_backward(f->tape, f->loss));
        TSR_TRY(tsr_step_loss(f->tape, loss));
    }
    TSR_TRY(tsr_step_end(f->tape));
    return TSR_OK;
}

static void check_outside(api_fixture *f, tsr_dtensor *tensor, int32_t value, const char *words)
{
    double loss = 0.0;

    write_ids(tensor, 1, 2, value); /* the last rank's */
    CHECK_EQ(run_step(f, 1, true, &loss), TSR_ERR_INVALID);
    CHECK(says(words));
    CHECK_OK(tsr_step_end(f->tape));
    write_ids(tensor, 1, 2, 0);
    CHECK_OK(run_step(f, 2, true, &loss)); /* and nothing is left of it */
}

static void labels_and_ids_out_of_range(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;

    REQUIRE_OK(api_open(f, API_READY));
    check_outside(f, f->labels, -1, "label -1 at [1, 2] of micro-batch 0 is outside [0, 32)");
    check_outside(f, f->labels, VOCAB, "label 32 at [1, 2]");
    check_outside(f, f->ids, 100000, "id 100000 at [1, 2] of micro-batch 0 is outside [0, 32)");
    check_outside(f, f->ids, -7, "the table of embedding in \"embed\"");
    write_ids(f->ids, 0, 0, TSR_IGNORE_INDEX); /* of labels alone */
    CHECK_EQ(run_step(f, 3, true, &f->number), TSR_ERR_INVALID);
    CHECK(says("id -100 at [0, 0]"));
    CHECK_OK(tsr_step_end(f->tape));
    api_close(f);
}

static void evaluation_looks_too(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_dtensor *loss = NULL;

    REQUIRE_OK(api_open(f, API_READY));
    REQUIRE_OK(tsr_step_begin(f->tape, 0, &f->labels, 1));
    REQUIRE_OK(tsr_tape_begin(f->tape, 0));
    write_ids(f->labels, 0, 1, 99);
    REQUIRE_OK(tsr_op_cross_entropy(f->tape, f->logits, f->labels, &loss));
    CHECK_EQ(tsr_step_end(f->tape), TSR_ERR_INVALID);
    CHECK(says("label 99 at [0, 1]"));
    write_ids(f->labels, 0, 1, 0);
    CHECK_OK(run_step(f, 1, true, &f->number));
    api_close(f);
}

/* Told to be ignored, such labels are as -100, to the bit. */
static void outside_is_ignored(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    double expected = 0.0;
    double loss = 0.0;

    REQUIRE_OK(api_open(f, API_READY));
    write_ids(f->labels, 0, 1, TSR_IGNORE_INDEX);
    CHECK_OK(run_step(f, 0, true, &expected));
    CHECK_OK(tsr_tape_ignore_outside(f->tape, VOCAB));
    for (int i = 0; i < 3; i++) {
        const int32_t values[] = {-1, VOCAB, TSR_IGNORE_INDEX};

        write_ids(f->labels, 0, 1, values[i]);
        CHECK_OK(run_step(f, 1 + i, true, &loss));
        CHECK_NEAR(loss, expected, 0.0);
    }
    write_ids(f->ids, 1, 0, 1000); /* zeros */
    CHECK_OK(run_step(f, 4, true, &loss));
    CHECK_OK(tsr_tape_ignore_outside(f->tape, VOCAB + 1));
    CHECK_EQ(run_step(f, 5, true, &loss), TSR_ERR_SHAPE);
    CHECK(says("vocabulary of 32"));
    (void)!tsr_step_end(f->tape); /* of a step without backward */
    tsr_error_clear();
    CHECK_OK(tsr_tape_ignore_outside(f->tape, 0));
    CHECK_EQ(run_step(f, 6, true, &loss), TSR_ERR_INVALID);
    tsr_error_clear();
    CHECK_OK(tsr_step_end(f->tape));
    api_close(f);
}

/* ---- handles ---- */

static void loss_is_read_after_backward(void)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    float before = 0.0F;
    float after = 0.0F;

    REQUIRE_OK(api_open(f, API_FORWARD));
    CHECK_OK(tsr_dtensor_read(f->loss, &before));
    CHECK_OK(tsr_backward(f->tape, f->loss));
    CHECK_OK(tsr_clip_grad_norm(f->optimizer, f->tape, 1.0));
    CHECK_OK(tsr_dtensor_read(f->loss, &after));
    CHECK(before > 0.0F);
    CHECK_NEAR(after, before, 0.0);
    CHECK_OK(tsr_step_end(f->tape));
    CHECK_EQ(tsr_dtensor_read(f->loss, &after), TSR_ERR_STATE);
    CHECK(says("was released"));
    CHECK_OK(tsr_step_begin(f->tape, 1, &f->labels, 1));
    CHECK_OK(tsr_tape_begin(f->tape, 0));
    CHECK_EQ(tsr_backward(f->tape, f->loss), TSR_ERR_STATE);
    CHECK(says("was released"));
    CHECK(tsr_dtensor_retain(f->loss) == NULL);
    CHECK_OK(tsr_step_end(f->tape));
    api_close(f);
}

static tsr_status norm_of_step(api_fixture *f, int64_t number, tsr_dtensor **drop, double *norm)
{
    TSR_TRY(tsr_step_begin(f->tape, number, &f->labels, 1));
    TSR_TRY(tsr_tape_begin(f->tape, 0));
    TSR_TRY(tsr_module_call(f->model, f->tape, &f->ids, 1, &f->y));
    tsr_dtensor_release(drop); /* in the middle of what is not its step */
    TSR_TRY(tsr_op_cross_entropy(f->tape, f->y, f->labels, &f->loss));
    TSR_TRY(tsr_backward(f->tape, f->loss));
    TSR_TRY(tsr_clip_grad_norm(f->optimizer, f->tape, 0.0));
    TSR_TRY(tsr_grad_norm_read(f->optimizer, norm, NULL));
    TSR_TRY(tsr_step_end(f->tape));
    return TSR_OK;
}

/* A value retained over the end of its step, or over a step that failed. */
static void check_kept_value(bool fails)
{
    api_fixture fixture;
    api_fixture *f = &fixture;
    float host[API_FLOATS];
    tsr_dtensor *kept = NULL;
    tsr_dtensor *none = NULL;
    double expected = 0.0;
    double norm = 0.0;

    REQUIRE_OK(api_open(f, API_READY));
    REQUIRE_OK(norm_of_step(f, 0, &none, &expected)); /* records the plan */
    REQUIRE_OK(tsr_step_begin(f->tape, 1, &f->labels, 1));
    REQUIRE_OK(tsr_tape_begin(f->tape, 0));
    REQUIRE_OK(tsr_op_gelu(f->tape, f->x, &f->y));
    kept = tsr_dtensor_retain(f->y);
    CHECK_OK(tsr_dtensor_read(kept, host));
    if (fails) {
        REQUIRE_OK(tsr_module_create(f->comm, give_nothing, NULL, NULL, &f->module2));
        CHECK_EQ(tsr_module_call(f->module2, f->tape, &f->x, 1, &f->y), TSR_ERR_INVALID);
        CHECK_OK(tsr_step_end(f->tape));
    } else {
        CHECK_EQ(tsr_step_end(f->tape), TSR_ERR_STATE); /* it is told of */
    }
    tsr_error_clear();
    CHECK_EQ(tsr_dtensor_read(kept, host), TSR_ERR_STATE);
    CHECK(says("a value of step 1, which is over"));
    CHECK_EQ(tsr_dtensor_redistribute(kept, &f->layout2, &f->tensor2), TSR_ERR_STATE);
    REQUIRE_OK(tsr_step_begin(f->tape, 2, &f->labels, 1));
    REQUIRE_OK(tsr_tape_begin(f->tape, 0));
    CHECK_EQ(tsr_op_gelu(f->tape, kept, &f->y), TSR_ERR_STATE);
    CHECK(says("gelu: x: \"\" is a value of step 1"));
    CHECK_OK(tsr_step_end(f->tape));
    REQUIRE_OK(norm_of_step(f, 3, &kept, &norm));
    CHECK_NEAR(norm, expected, 0.0); /* the same parameters, the same batch, the same bits */
    api_close(f);
}

static void kept_over_its_step(void)
{
    check_kept_value(false);
}

static void kept_over_a_failed_step(void)
{
    check_kept_value(true);
}

/* ---- writing parameters ---- */

static float expected_element(int64_t i, int round)
{
    return (float)(i % 13 + round) * 0.25F; /* exact in bf16 too */
}

static tsr_status write_value(tsr_dtensor *value, int round)
{
    const int64_t count = tsr_dtensor_local_count(value);
    float wide[API_FLOATS];
    uint16_t half[API_FLOATS];

    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = 0;

        wide[i] = expected_element(i, round);
        memcpy(&bits, &wide[i], sizeof(bits));
        half[i] = (uint16_t)(bits >> 16);
    }
    return tsr_dtensor_write(value,
                             tsr_dtensor_dtype(value) == TSR_F32 ? (const void *)wide : half);
}

static void check_value(tsr_dtensor *value, int round)
{
    const int64_t count = tsr_dtensor_local_count(value);
    float wide[API_FLOATS] = {0};
    uint16_t half[API_FLOATS] = {0};
    int wrong = 0;

    if (tsr_dtensor_dtype(value) == TSR_F32) {
        CHECK_OK(tsr_dtensor_read(value, wide));
    } else {
        CHECK_OK(tsr_dtensor_read(value, half));
    }
    for (int64_t i = 0; i < count; i++) {
        if (tsr_dtensor_dtype(value) != TSR_F32) {
            const uint32_t bits = (uint32_t)half[i] << 16;

            memcpy(&wide[i], &bits, sizeof(bits));
        }
        wrong += wide[i] != expected_element(i, round);
    }
    CHECK_EQ(wrong, 0);
}

/* What is written is there when it is gathered again, whether it was gathered or not. */
static void check_writes(const char *preset, tsr_dtype dtype, int dim)
{
    const tsr_shard_dim by_dim = {"**.q.weight", dim};
    api_fixture fixture;
    api_fixture *f = &fixture;
    tsr_dtensor *value = NULL;

    REQUIRE_OK(api_open(f, API_MODEL));
    REQUIRE_OK(tsr_fsdp_preset(f->comm, preset, &f->fsdp_options));
    f->fsdp_options.param_dtype = dtype;
    if (dim >= 0) {
        f->fsdp_options.shard_dims = &by_dim;
        f->fsdp_options.shard_dim_count = 1;
    }
    CHECK_EQ(write_value(tsr_module_value(f->linear, "weight"), 0), TSR_ERR_STATE);
    CHECK(says("tsr_module_materialize first"));
    REQUIRE_OK(tsr_fully_shard(f->layer, &f->fsdp_options));
    f->fsdp_options.shard_dim_count = 0;
    REQUIRE_OK(tsr_fully_shard(f->model, &f->fsdp_options));
    REQUIRE_OK(tsr_module_materialize(f->model, 1));
    REQUIRE_OK(tsr_tape_create(f->comm, &f->tape));
    value = tsr_module_value(f->linear, "weight");
    CHECK_OK(write_value(value, 1));
    CHECK_OK(tsr_unit_unshard(f->layer));
    check_value(value, 1);
    CHECK_OK(write_value(value, 2));
    check_value(value, 2);
    CHECK_OK(tsr_unit_reshard(f->layer));
    CHECK_OK(tsr_unit_unshard(f->layer));
    check_value(value, 2);
    CHECK_OK(tsr_unit_reshard(f->layer));
    CHECK_OK(tsr_step_begin(f->tape, 0, &f->labels, 1));
    CHECK_OK(tsr_tape_begin(f->tape, 0));
    CHECK_OK(tsr_module_call(f->model, f->tape, &f->ids, 1, &f->y));
    CHECK_EQ(write_value(value, 3), TSR_ERR_STATE);
    CHECK(says("within a step"));
    CHECK_OK(tsr_op_cross_entropy(f->tape, f->y, f->labels, &f->loss));
    CHECK_OK(tsr_backward(f->tape, f->loss));
    CHECK_OK(tsr_step_end(f->tape));
    CHECK_OK(tsr_unit_unshard(f->layer));
    check_value(value, 2);
    CHECK_OK(tsr_unit_reshard(f->layer));
    api_close(f);
}

static void writes_reach_what_is_at_rest(void)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};

    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        check_writes(presets[i], TSR_F32, -1);
        check_writes(presets[i], TSR_BF16, -1);
    }
    check_writes("fsdp", TSR_F32, 1);
}

const tsr_test_case tsr_test_cases[] = {
    {"trees_that_cannot_be", trees_that_cannot_be},
    {"names_that_are_patterns_or_paths", names_that_are_patterns_or_paths},
    {"trees_of_two_comms_or_two_times", trees_of_two_comms_or_two_times},
    {"forward_gives_nothing", forward_gives_nothing},
    {"module_calls_itself", module_calls_itself},
    {"inputs_that_are_missing", inputs_that_are_missing},
    {"model_goes_within_a_step", model_goes_within_a_step},
    {"parameter_given_twice", parameter_given_twice},
    {"ranks_differ", ranks_differ},
    {"steps_differ", steps_differ},
    {"labels_and_ids_out_of_range", labels_and_ids_out_of_range},
    {"evaluation_looks_too", evaluation_looks_too},
    {"outside_is_ignored", outside_is_ignored},
    {"loss_is_read_after_backward", loss_is_read_after_backward},
    {"kept_over_its_step", kept_over_its_step},
    {"kept_over_a_failed_step", kept_over_a_failed_step},
    {"writes_reach_what_is_at_rest", writes_reach_what_is_at_rest},
    {"the_job_is_left", api_end},
    {NULL, NULL},
};
