/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file json.h
 * JSON: jansson's tree, with this library's errors. The one place that includes jansson.
 *
 * Messages begin "FILE:LINE:COLUMN: " where the text is wrong, "FILE: " where its content is.
 * Trees are released with json_decref; what getters return is borrowed from the tree.
 */
#pragma once

#include "tessera/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TSRI_JSON_TWICE_BYTES = 160
};

/** An object or array read from path. TSR_ERR_IO, TSR_ERR_FORMAT; duplicate keys are errors. */
tsr_status tsri_json_load_file(const char *path, json_t **out);
/** The same from bytes characters; name stands for the file in messages. */
tsr_status tsri_json_parse(const char *text, size_t bytes, const char *name, json_t **out);
/** The same of files that others write: a key may come twice, as in Python the last one counts.
 *  twice[TSRI_JSON_TWICE_BYTES] (NULL: nobody asks) says where the first such is, or is "". */
tsr_status tsri_json_parse_loose(const char *text, size_t bytes, const char *name, json_t **out,
                                 char *twice);
tsr_status tsri_json_load_loose(const char *path, json_t **out, char *twice);
/** Write value to path, indented, keys in the order of their insertion; the file changes at once.
 */
tsr_status tsri_json_save_file(const json_t *value, const char *path);

/* Getters of object[key], which must be there and be of the type; file is for the message.
 * TSR_ERR_FORMAT otherwise. */
tsr_status tsri_json_int(const json_t *object, const char *key, const char *file, int64_t *out);
tsr_status tsri_json_number(const json_t *object, const char *key, const char *file, double *out);
tsr_status tsri_json_bool(const json_t *object, const char *key, const char *file, bool *out);
tsr_status tsri_json_string(const json_t *object, const char *key, const char *file,
                            const char **out);
tsr_status tsri_json_array(const json_t *object, const char *key, const char *file, json_t **out);
tsr_status tsri_json_object(const json_t *object, const char *key, const char *file, json_t **out);

/* The same, but fallback where the key is absent or null. */
tsr_status tsri_json_int_or(const json_t *object, const char *key, const char *file,
                            int64_t fallback, int64_t *out);
tsr_status tsri_json_number_or(const json_t *object, const char *key, const char *file,
                               double fallback, double *out);
tsr_status tsri_json_bool_or(const json_t *object, const char *key, const char *file, bool fallback,
                             bool *out);
tsr_status tsri_json_string_or(const json_t *object, const char *key, const char *file,
                               const char *fallback, const char **out);
