/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_alloc.c
 * Memory is zeroed, counted, checked for overflow, and fails when told to.
 */
#include "base/base.h"

#include <limits.h>
#include <string.h>

#include "support/tsr_test.h"

static void memory_is_zeroed_and_counted(void)
{
    int64_t before = tsri_alloc_live();
    int *numbers = NULL;
    char *nothing = NULL;

    REQUIRE_OK(tsri_alloc(1000, sizeof(*numbers), &numbers));
    for (int i = 0; i < 1000; i++) {
        CHECK_EQ(numbers[i], 0);
    }
    REQUIRE_OK(tsri_alloc(0, 8, &nothing));
    CHECK(nothing != NULL);
    CHECK_EQ(tsri_alloc_live() - before, 2);
    tsri_free(&numbers);
    tsri_free(&nothing);
    CHECK(numbers == NULL);
    tsri_free(&numbers);
    CHECK_EQ(tsri_alloc_live(), before);
}

static void overflow_is_no_memory(void)
{
    char *out = NULL;

    CHECK_STATUS(TSR_ERR_NOMEM, tsri_alloc(SIZE_MAX / 2, 3, &out));
    CHECK(out == NULL);
}

static void injected_failure_hits_once(void)
{
    char *a = NULL;
    char *b = NULL;

    tsri_alloc_fail_at(2);
    CHECK_OK(tsri_alloc(1, 1, &a));
    CHECK_STATUS(TSR_ERR_NOMEM, tsri_alloc(1, 1, &b));
    CHECK(b == NULL);
    CHECK_OK(tsri_alloc(1, 1, &b));
    tsri_free(&a);
    tsri_free(&b);
}

static void growth_keeps_content_and_zeroes_the_rest(void)
{
    int *array = NULL;
    int capacity = 0;

    for (int i = 0; i < 100; i++) {
        REQUIRE_OK(tsri_grow(&array, &capacity, i + 1, sizeof(*array)));
        CHECK_EQ(array[i], 0);
        array[i] = i + 1;
    }
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(array[i], i + 1);
    }
    CHECK_EQ(capacity, 128);
    tsri_alloc_fail_at(1);
    CHECK_STATUS(TSR_ERR_NOMEM, tsri_grow(&array, &capacity, 129, sizeof(*array)));
    CHECK_EQ(capacity, 128);
    CHECK_EQ(array[99], 100);
    tsri_free(&array);
}

static void narrowing_is_checked(void)
{
    int out = 7;

    CHECK_OK(tsri_to_int(INT_MAX, "count", &out));
    CHECK_EQ(out, INT_MAX);
    CHECK_STATUS(TSR_ERR_INVALID, tsri_to_int((int64_t)INT_MAX + 1, "count", &out));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_to_int((int64_t)INT_MIN - 1, "count", &out));
    CHECK_EQ(out, INT_MAX);
}

static void strings_are_copied(void)
{
    char *copy = NULL;

    REQUIRE_OK(tsri_strdup("layers.0", &copy));
    CHECK_STR(copy, "layers.0");
    tsri_free(&copy);
}

static void clock_runs_forward(void)
{
    double before = tsri_now_s();

    CHECK(before > 0.0);
    CHECK(tsri_now_s() >= before);
}

const tsr_test_case tsr_test_cases[] = {
    {"memory_is_zeroed_and_counted", memory_is_zeroed_and_counted},
    {"overflow_is_no_memory", overflow_is_no_memory},
    {"injected_failure_hits_once", injected_failure_hits_once},
    {"growth_keeps_content_and_zeroes_the_rest", growth_keeps_content_and_zeroes_the_rest},
    {"narrowing_is_checked", narrowing_is_checked},
    {"strings_are_copied", strings_are_copied},
    {"clock_runs_forward", clock_runs_forward},
    {NULL, NULL},
};
