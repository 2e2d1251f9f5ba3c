/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file json.c
 * Glue over jansson: where a file is wrong, say file, place and key.
 */
#include "base/json.h"

#include "base/base.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

/* What programs of other systems put before UTF-8; not part of the text. */
static const char *skip_mark(const char *text, size_t *bytes)
{
    const size_t mark = tsri_text_mark(text, *bytes);

    *bytes -= mark;
    return text + mark;
}

static tsr_status raise_error(const char *name, const json_error_t *error)
{
    return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d:%d: %s", name, error->line > 0 ? error->line : 1,
                     error->column > 0 ? error->column : 1, error->text);
}

tsr_status tsri_json_parse(const char *text, size_t bytes, const char *name, json_t **out)
{
    const char *begin = skip_mark(text, &bytes);
    json_error_t error;
    json_t *value = json_loadb(begin, bytes, JSON_REJECT_DUPLICATES, &error);

    if (value == NULL) {
        return raise_error(name, &error);
    }
    *out = value;
    return TSR_OK;
}

tsr_status tsri_json_parse_loose(const char *text, size_t bytes, const char *name, json_t **out,
                                 char *twice)
{
    const char *begin = skip_mark(text, &bytes);
    json_error_t error;
    json_t *value = json_loadb(begin, bytes, JSON_REJECT_DUPLICATES, &error);

    if (twice != NULL) {
        twice[0] = '\0';
    }
    if (value == NULL && json_error_code(&error) == json_error_duplicate_key) {
        if (twice != NULL) {
            (void)snprintf(twice, TSRI_JSON_TWICE_BYTES, "line %d: %.120s", error.line, error.text);
        }
        value = json_loadb(begin, bytes, 0, &error);
    }
    if (value == NULL) {
        return raise_error(name, &error);
    }
    *out = value;
    return TSR_OK;
}

tsr_status tsri_json_load_file(const char *path, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_file_read_plain(path, &text, &bytes));
    status = tsri_json_parse(text, bytes, path, out);
    tsri_free(&text);
    TSR_TRY(status);
    return TSR_OK;
}

tsr_status tsri_json_load_loose(const char *path, json_t **out, char *twice)
{
    char *text = NULL;
    size_t bytes = 0;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_file_read_plain(path, &text, &bytes));
    status = tsri_json_parse_loose(text, bytes, path, out, twice);
    tsri_free(&text);
    TSR_TRY(status);
    return TSR_OK;
}

tsr_status tsri_json_save_file(const json_t *value, const char *path)
{
    char *text = json_dumps(value, JSON_INDENT(1));
    tsr_status status = TSR_OK;

    if (text == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: the value has no JSON form", path);
    }
    status = tsri_file_write(path, text, strlen(text));
    free(text);
    TSR_TRY(status);
    return TSR_OK;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};

    return names[json_typeof(value)];
}

static bool is_absent(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return value == NULL || json_is_null(value);
}

/* The value at key if it is there and fits. */
static tsr_status find_value(const json_t *object, const char *key, const char *file,
                             bool (*fits)(json_type), const char *wants, json_t **out)
{
    json_t *value = json_object_get(object, key);

    if (!json_is_object(object)) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: \"%s\" is looked for in what is no object", file,
                         key);
    }
    if (value == NULL) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: key \"%s\" is missing", file, key);
    }
    if (!fits(json_typeof(value))) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: \"%s\" is %s, wants %s", file, key, type_name(value),
                         wants);
    }
    *out = value;
    return TSR_OK;
}

static bool fits_int(json_type type)
{
    return type == JSON_INTEGER;
}

static bool fits_number(json_type type)
{
    return type == JSON_INTEGER || type == JSON_REAL;
}

static bool fits_bool(json_type type)
{
    return type == JSON_TRUE || type == JSON_FALSE;
}

static bool fits_string(json_type type)
{
    return type == JSON_STRING;
}

static bool fits_array(json_type type)
{
    return type == JSON_ARRAY;
}

static bool fits_object(json_type type)
{
    return type == JSON_OBJECT;
}

tsr_status tsri_json_int(const json_t *object, const char *key, const char *file, int64_t *out)
{
    json_t *value = NULL;

    TSR_TRY(find_value(object, key, file, fits_int, "an integer", &value));
    *out = json_integer_value(value);
    return TSR_OK;
}

tsr_status tsri_json_number(const json_t *object, const char *key, const char *file, double *out)
{
    json_t *value = NULL;

    TSR_TRY(find_value(object, key, file, fits_number, "a number", &value));
    *out = json_number_value(value);
    return TSR_OK;
}

tsr_status tsri_json_bool(const json_t *object, const char *key, const char *file, bool *out)
{
    json_t *value = NULL;

    TSR_TRY(find_value(object, key, file, fits_bool, "true or false", &value));
    *out = json_is_true(value);
    return TSR_OK;
}

tsr_status tsri_json_string(const json_t *object, const char *key, const char *file,
                            const char **out)
{
    json_t *value = NULL;

    TSR_TRY(find_value(object, key, file, fits_string, "a string", &value));
    *out = json_string_value(value);
    return TSR_OK;
}

tsr_status tsri_json_array(const json_t *object, const char *key, const char *file, json_t **out)
{
    TSR_TRY(find_value(object, key, file, fits_array, "an array", out));
    return TSR_OK;
}

tsr_status tsri_json_object(const json_t *object, const char *key, const char *file, json_t **out)
{
    TSR_TRY(find_value(object, key, file, fits_object, "an object", out));
    return TSR_OK;
}

tsr_status tsri_json_int_or(const json_t *object, const char *key, const char *file,
                            int64_t fallback, int64_t *out)
{
    if (is_absent(object, key)) {
        *out = fallback;
        return TSR_OK;
    }
    TSR_TRY(tsri_json_int(object, key, file, out));
    return TSR_OK;
}

tsr_status tsri_json_number_or(const json_t *object, const char *key, const char *file,
                               double fallback, double *out)
{
    if (is_absent(object, key)) {
        *out = fallback;
        return TSR_OK;
    }
    TSR_TRY(tsri_json_number(object, key, file, out));
    return TSR_OK;
}

tsr_status tsri_json_bool_or(const json_t *object, const char *key, const char *file, bool fallback,
                             bool *out)
{
    if (is_absent(object, key)) {
        *out = fallback;
        return TSR_OK;
    }
    TSR_TRY(tsri_json_bool(object, key, file, out));
    return TSR_OK;
}

tsr_status tsri_json_string_or(const json_t *object, const char *key, const char *file,
                               const char *fallback, const char **out)
{
    if (is_absent(object, key)) {
        *out = fallback;
        return TSR_OK;
    }
    TSR_TRY(tsri_json_string(object, key, file, out));
    return TSR_OK;
}
