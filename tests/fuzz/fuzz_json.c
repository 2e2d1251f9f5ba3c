/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fuzz_json.c
 * Any bytes as JSON: read or refused, and getters on what was read.
 */
#include "base/base.h"
#include "base/json.h"

/* NOLINTNEXTLINE(readability-identifier-naming): libFuzzer names it */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    json_t *value = NULL;
    int64_t number = 0;
    const char *text = NULL;

    if (tsri_json_parse((const char *)data, bytes, "fuzz", &value) == TSR_OK) {
        (void)tsri_json_int_or(value, "a", "fuzz", 0, &number);
        (void)tsri_json_string(value, "b", "fuzz", &text);
        json_decref(value);
    }
    tsr_error_clear();
    return 0;
}
