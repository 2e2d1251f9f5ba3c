/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_json.c
 * JSON files and getters say what is wrong, where.
 */
#include "base/base.h"
#include "base/file.h"
#include "base/json.h"

#include <string.h>
#include <unistd.h>

#include "support/tsr_test.h"

static void check_message(const char *text, const char *message)
{
    json_t *value = NULL;
    tsr_status status = tsri_json_parse(text, strlen(text), "x.json", &value);

    CHECK_EQ(status, TSR_ERR_FORMAT);
    CHECK(value == NULL);
    if (strstr(tsr_error_message(), message) != tsr_error_message()) {
        CHECK_STR(tsr_error_message(), message);
    }
    tsr_error_clear();
}

static void bad_text_is_placed(void)
{
    check_message("{\"a\": 1,\n \"b\" 2}", "x.json:2:6: ");
    check_message("", "x.json:1:");
    check_message("{\"a\": 1, \"a\": 2}", "x.json:1:");
    check_message("[1, 2] 3", "x.json:1:8: ");
    check_message("17", "x.json:1:");
}

static void getters_check_key_and_type(void)
{
    static const char text[] = "{\"i\": 3, \"n\": 1.5, \"s\": \"t\", \"b\": true, \"z\": null,"
                               " \"l\": [1], \"o\": {}}";
    json_t *json = NULL;
    json_t *part = NULL;
    int64_t i = 0;
    double n = 0;
    bool b = false;
    const char *s = NULL;

    REQUIRE_OK(tsri_json_parse(text, strlen(text), "f", &json));
    CHECK_OK(tsri_json_int(json, "i", "f", &i));
    CHECK_EQ(i, 3);
    CHECK_OK(tsri_json_number(json, "n", "f", &n));
    CHECK(n == 1.5);
    CHECK_OK(tsri_json_number(json, "i", "f", &n));
    CHECK(n == 3.0);
    CHECK_OK(tsri_json_string(json, "s", "f", &s));
    CHECK_STR(s, "t");
    CHECK_OK(tsri_json_bool(json, "b", "f", &b));
    CHECK(b);
    CHECK_OK(tsri_json_array(json, "l", "f", &part));
    CHECK_OK(tsri_json_object(json, "o", "f", &part));
    CHECK_OK(tsri_json_int_or(json, "absent", "f", 9, &i));
    CHECK_EQ(i, 9);
    CHECK_OK(tsri_json_int_or(json, "z", "f", 8, &i));
    CHECK_EQ(i, 8);
    CHECK_OK(tsri_json_number_or(json, "absent", "f", 0.5, &n));
    CHECK(n == 0.5);
    CHECK_OK(tsri_json_bool_or(json, "absent", "f", false, &b));
    CHECK(!b);
    CHECK_OK(tsri_json_string_or(json, "s", "f", "u", &s));
    CHECK_STR(s, "t");
    CHECK_EQ(tsri_json_int(json, "n", "f", &i), TSR_ERR_FORMAT);
    CHECK_STR(tsr_error_message(), "f: \"n\" is a number, wants an integer");
    CHECK_EQ(tsri_json_int(json, "absent", "f", &i), TSR_ERR_FORMAT);
    CHECK_STR(tsr_error_message(), "f: key \"absent\" is missing");
    CHECK_STATUS(TSR_ERR_FORMAT, tsri_json_string_or(json, "i", "f", "u", &s));
    CHECK_STATUS(TSR_ERR_FORMAT, tsri_json_int(part, "i", "f", &i));
    CHECK_STATUS(TSR_ERR_FORMAT, tsri_json_bool(NULL, "i", "f", &b));
    json_decref(json);
}

static void files_are_saved_and_loaded(void)
{
    const char *path = tsr_test_scratch_path("saved.json");
    json_t *saved = json_pack("{s:i, s:[f, s]}", "n", 5, "list", 0.1, "text");
    json_t *loaded = NULL;

    REQUIRE(saved != NULL);
    REQUIRE_OK(tsri_json_save_file(saved, path));
    REQUIRE_OK(tsri_json_load_file(path, &loaded));
    CHECK(json_equal(saved, loaded));
    json_decref(saved);
    json_decref(loaded);
}

/* Strictly an error, and loosely what Python makes of it. */
static void keys_that_come_twice(void)
{
    static const char text[] = "\xEF\xBB\xBF{\"a\": 1,\n\"b\": 2, \"a\": 3}";
    char twice[TSRI_JSON_TWICE_BYTES];
    json_t *json = NULL;
    int64_t value = 0;

    CHECK_EQ(tsri_json_parse(text, strlen(text), "x", &json), TSR_ERR_FORMAT);
    tsr_error_clear();
    REQUIRE_OK(tsri_json_parse_loose(text, strlen(text), "x", &json, twice));
    CHECK_OK(tsri_json_int(json, "a", "x", &value));
    CHECK_EQ(value, 3);
    CHECK(strstr(twice, "line 2: ") != NULL && strstr(twice, "\"a\"") != NULL);
    json_decref(json);
    REQUIRE_OK(tsri_json_parse_loose("{\"a\": 1}", 8, "x", &json, twice));
    CHECK_STR(twice, "");
    json_decref(json);
}

/* Nothing that is there is opened, nor what a link leads to. */
static void files_are_created_once(void)
{
    const char *path = tsr_test_scratch_path("once");
    FILE *file = NULL;

    (void)unlink(path);
    REQUIRE_OK(tsri_file_create(path, &file));
    CHECK_EQ(fclose(file), 0);
    CHECK_STATUS(TSR_ERR_IO, tsri_file_create(path, &file));
    (void)unlink(path);
    CHECK_EQ(symlink("elsewhere", path), 0);
    CHECK_STATUS(TSR_ERR_IO, tsri_file_create(path, &file));
    CHECK_OK(tsri_file_write(path, "x", 1)); /* in place of the link */
    CHECK(access(tsr_test_scratch_path("elsewhere"), F_OK) != 0);
    (void)unlink(tsr_test_scratch_path("once"));
}

static void unreadable_files_say_why(void)
{
    json_t *json = NULL;
    char *text = NULL;
    size_t bytes = 0;

    CHECK_EQ(tsri_json_load_file("/nowhere/a.json", &json), TSR_ERR_IO);
    CHECK_STR(tsr_error_message(), "/nowhere/a.json: cannot open: No such file or directory");
    CHECK_EQ(tsri_json_load_file("/", &json), TSR_ERR_IO);
    CHECK(strstr(tsr_error_message(), "Is a directory") != NULL);
    tsr_error_clear();
    CHECK_STATUS(TSR_ERR_IO, tsri_file_write("/nowhere/a.json", "x", 1));
    CHECK_OK(tsri_file_write(tsr_test_scratch_path("a"), "x\0y", 3));
    REQUIRE_OK(tsri_file_read(tsr_test_scratch_path("a"), &text, &bytes));
    CHECK_EQ(bytes, 3);
    CHECK(memcmp(text, "x\0y", 4) == 0);
    tsri_free(&text);
}

const tsr_test_case tsr_test_cases[] = {
    {"bad_text_is_placed", bad_text_is_placed},
    {"getters_check_key_and_type", getters_check_key_and_type},
    {"files_are_saved_and_loaded", files_are_saved_and_loaded},
    {"keys_that_come_twice", keys_that_come_twice},
    {"files_are_created_once", files_are_created_once},
    {"unreadable_files_say_why", unreadable_files_say_why},
    {NULL, NULL},
};
