/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Text that grows. */
#include "base/growing_text.h"

#include "base/base.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    STEP_BYTES = 1024
};

void tsri_text_add(tsri_text *text, const char *format, ...)
{
    va_list arguments;
    int need = 0;

    if (text->status != TSR_OK) {
        return;
    }
    va_start(arguments, format);
    need = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (text->length + need >= text->capacity) {
        text->status = tsri_grow(&text->data, &text->capacity, text->length + need + STEP_BYTES, 1);
    }
    if (text->status != TSR_OK) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(text->data + text->length, (size_t)(text->capacity - text->length), format,
                    arguments);
    va_end(arguments);
    text->length += need;
}

void tsri_text_add_number(tsri_text *text, double value)
{
    char digits[40];

    if (!isfinite(value)) {
        tsri_text_add(text, "null");
        return;
    }
    for (int precision = 6; precision <= 17; precision++) {
        (void)snprintf(digits, sizeof(digits), "%.*g", precision, value);
        if (strtod(digits, NULL) == value) {
            break;
        }
    }
    tsri_text_add(text, "%s", digits);
}

void tsri_text_add_quoted(tsri_text *text, const char *value)
{
    tsri_text_add(text, "\"");
    for (const char *at = value; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            tsri_text_add(text, "\\%c", *at);
        } else if ((unsigned char)*at < 0x20) {
            tsri_text_add(text, "\\u%04x", (unsigned)(unsigned char)*at);
        } else {
            tsri_text_add(text, "%c", *at);
        }
    }
    tsri_text_add(text, "\"");
}

void tsri_text_clear(tsri_text *text)
{
    text->length = 0;
    text->status = TSR_OK;
    if (text->data != NULL) {
        text->data[0] = '\0';
    }
}

void tsri_text_free(tsri_text *text)
{
    tsri_free(&text->data);
    *text = (tsri_text){0};
}

tsr_status tsri_text_status(const tsri_text *text)
{
    return text->status == TSR_OK ? TSR_OK : TSR_RAISE(text->status, "no memory for a text");
}
