/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file error.c
 * The error trail: a fixed array per thread, so that recording a failure never allocates.
 *
 * A trail belongs to one failure. A status that is passed on while the trail tells of nothing, or
 * of another status, was returned without TSR_RAISE; it starts a trail of its own.
 */
#include "base/base_priv.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *status_text(tsr_status status)
{
    switch (status) {
#define TSR_STATUS_CASE(name, value, text) \
    case TSR_##name: \
        return text;
        TSR_STATUS_MAP(TSR_STATUS_CASE)
#undef TSR_STATUS_CASE
    }
    return "unknown status";
}

static const char *or_unknown(const char *text)
{
    return text != NULL ? text : "?";
}

static void push_frame(const char *file, int line, const char *func)
{
    tsri_trail *trail = &tsri_g_trail;

    if (trail->depth < TSRI_TRAIL_FRAMES) {
        trail->frame[trail->depth] = (tsri_trail_frame){or_unknown(file), or_unknown(func), line};
        trail->depth++;
    }
}

static bool is_held(void)
{
    return tsri_g_trail.held > 0 && tsri_g_trail.depth > 0;
}

tsr_status tsr_error_raise(tsr_status status, const char *file, int line, const char *func,
                           const char *format, ...)
{
    char text[TSRI_TRAIL_TEXT]; /* apart, because an argument may be the previous message */
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), or_unknown(format), args);
    va_end(args);
    (void)tsri_make_printable(text); /* names in messages come from files */
    if (is_held()) {
        return status;
    }
    memcpy(tsri_g_trail.text, text, sizeof(text));
    tsri_g_trail.status = status;
    tsri_g_trail.depth = 0;
    tsri_g_trail.teller = 0;
    push_frame(file, line, func);
    return status;
}

tsr_status tsr_error_pass(tsr_status status, const char *file, int line, const char *func)
{
    if (tsri_g_trail.depth == 0 || tsri_g_trail.status != status) {
        return tsr_error_raise(status, file, line, func, "%s", status_text(status));
    }
    if (!is_held()) {
        push_frame(file, line, func);
    }
    return status;
}

const char *tsr_status_name(tsr_status status)
{
    switch (status) {
#define TSR_STATUS_CASE(name, value, text) \
    case TSR_##name: \
        return #name;
        TSR_STATUS_MAP(TSR_STATUS_CASE)
#undef TSR_STATUS_CASE
    }
    return "?";
}

const char *tsr_error_message(void)
{
    return tsri_g_trail.depth == 0 ? "" : tsri_g_trail.text;
}

void tsr_error_print(FILE *stream)
{
    TSRI_WANT_VOID(stream);

    const tsri_trail *trail = &tsri_g_trail;

    if (trail->depth == 0) {
        return;
    }
    (void)fprintf(stream, "[rank %d/%d] %s: %s\n", tsri_rank(), tsri_size(),
                  tsr_status_name(trail->status), trail->text);
    for (int i = 0; i < trail->depth; i++) {
        const tsri_trail_frame *f = &trail->frame[i];
        (void)fprintf(stream, "[rank %d/%d]   #%d %s (%s:%d)\n", tsri_rank(), tsri_size(), i,
                      f->func, f->file, f->line);
    }
}

void tsr_error_clear(void)
{
    if (is_held()) {
        return;
    }
    tsri_g_trail.status = TSR_OK;
    tsri_g_trail.depth = 0;
    tsri_g_trail.teller = 0;
    tsri_g_trail.text[0] = '\0';
}

void tsri_error_hold(void)
{
    tsri_g_trail.held++;
}

void tsri_error_release(void)
{
    tsri_g_trail.held--;
}

void tsri_error_share(int teller)
{
    tsri_g_trail.teller = tsri_g_trail.depth > 0 ? teller + 1 : 0;
}

tsr_status tsri_error_untold(void)
{
    return tsri_g_trail.depth > 0 && tsri_g_trail.teller == 0 ? tsri_g_trail.status : TSR_OK;
}

int tsri_error_teller(tsr_status status)
{
    return tsri_g_trail.status == status ? tsri_g_trail.teller - 1 : -1;
}

void tsri_assert_fail(const char *cond, const char *file, int line)
{
    (void)fprintf(stderr, "[rank %d/%d] %s:%d: invariant broken: %s\n", tsri_rank(), tsri_size(),
                  file, line, cond);
    abort();
}
