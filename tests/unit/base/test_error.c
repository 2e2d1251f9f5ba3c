/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_error.c
 * The error trail tells where a failure began and which functions it passed.
 */
#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

static tsr_status fails(int value)
{
    return TSR_RAISE(TSR_ERR_SHAPE, "dim %d, wants %d", value, 7);
}

static tsr_status passes(int value)
{
    TSR_TRY(fails(value));
    return TSR_OK;
}

static tsr_status cleans_up(int value, int *cleaned)
{
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, passes(value), undo);
undo:
    *cleaned = 1;
    return status;
}

static tsr_status silent(void)
{
    return TSR_ERR_IO;
}

static tsr_status passes_silent(void)
{
    TSR_TRY(silent());
    return TSR_OK;
}

static int lines_printed(char **text)
{
    size_t bytes = 0;
    FILE *stream = open_memstream(text, &bytes);
    int lines = 0;

    tsr_error_print(stream);
    (void)fclose(stream);
    for (const char *c = *text; *c != '\0'; c++) {
        lines += *c == '\n';
    }
    return lines;
}

static void trail_has_message_and_frames(void)
{
    int cleaned = 0;
    char *text = NULL;

    CHECK_EQ(cleans_up(3, &cleaned), TSR_ERR_SHAPE);
    CHECK_EQ(cleaned, 1);
    CHECK_STR(tsr_error_message(), "dim 3, wants 7");
    CHECK_EQ(lines_printed(&text), 4);
    CHECK(strstr(text, "[rank 0/1] ERR_SHAPE: dim 3, wants 7\n") == text);
    CHECK(strstr(text, "#0 fails (tests/unit/base/test_error.c:") != NULL);
    CHECK(strstr(text, "#2 cleans_up (") != NULL);
    free(text);
    tsr_error_clear();
    CHECK_STR(tsr_error_message(), "");
    CHECK_EQ(lines_printed(&text), 0);
    free(text);
}

static void new_failure_replaces_the_old(void)
{
    CHECK_EQ(fails(1), TSR_ERR_SHAPE);
    CHECK_EQ(TSR_RAISE(TSR_ERR_FORMAT, "file: %s", tsr_error_message()), TSR_ERR_FORMAT);
    CHECK_STR(tsr_error_message(), "file: dim 1, wants 7");
    CHECK_EQ(passes_silent(), TSR_ERR_IO);
    CHECK_STR(tsr_error_message(), "input or output failed");
    tsr_error_clear();
}

static void deep_trail_keeps_its_origin(void)
{
    char *text = NULL;

    CHECK_EQ(fails(1), TSR_ERR_SHAPE);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(tsr_error_pass(TSR_ERR_SHAPE, "f.c", i, "f"), TSR_ERR_SHAPE);
    }
    CHECK_EQ(lines_printed(&text), 1 + 24);
    CHECK(strstr(text, "#0 fails") != NULL);
    free(text);
    tsr_error_clear();
}

static void statuses_have_names(void)
{
    CHECK_STR(tsr_status_name(TSR_OK), "OK");
    CHECK_STR(tsr_status_name(TSR_ERR_DISAGREE), "ERR_DISAGREE");
    CHECK_STR(tsr_status_name((tsr_status)5), "?");
}

const tsr_test_case tsr_test_cases[] = {
    {"trail_has_message_and_frames", trail_has_message_and_frames},
    {"new_failure_replaces_the_old", new_failure_replaces_the_old},
    {"deep_trail_keeps_its_origin", deep_trail_keeps_its_origin},
    {"statuses_have_names", statuses_have_names},
    {NULL, NULL},
};
