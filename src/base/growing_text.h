/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file text.h
 * Text that grows: what files of a run are made of, before they are written.
 *
 * A failure sticks: later additions do nothing, and tsri_text_status tells of it. Keeping one
 * object and clearing it makes rows without allocating.
 */
#pragma once

#include "tessera/status.h"

/** Zero-initialise; free with tsri_text_free. */
typedef struct tsri_text {
    char *data; /* NULL or terminated */
    int length;
    int capacity;
    tsr_status status;
} tsri_text;

void tsri_text_add(tsri_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** value in the fewest digits that read back as the same number; what is no number as "null". */
void tsri_text_add_number(tsri_text *text, double value);
/** value in double quotes, escaped as JSON wants. */
void tsri_text_add_quoted(tsri_text *text, const char *value);
/** Forget the text and the failure; keep the memory. */
void tsri_text_clear(tsri_text *text);
void tsri_text_free(tsri_text *text);
/** TSR_ERR_NOMEM if an addition found no memory. */
tsr_status tsri_text_status(const tsri_text *text);
