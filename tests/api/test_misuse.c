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

const tsr_test_case tsr_test_cases[] = {
    {"trees_that_cannot_be", trees_that_cannot_be},
    {"names_that_are_patterns_or_paths", names_that_are_patterns_or_paths},
    {"trees_of_two_comms_or_two_times", trees_of_two_comms_or_two_times},
    {"forward_gives_nothing", forward_gives_nothing},
    {"module_calls_itself", module_calls_itself},
    {"inputs_that_are_missing", inputs_that_are_missing},
    {"model_goes_within_a_step", model_goes_within_a_step},
    {"parameter_given_twice", parameter_given_twice},
    {"the_job_is_left", api_end},
    {NULL, NULL},
};
