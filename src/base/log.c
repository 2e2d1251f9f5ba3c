/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file log.c
 * The log, silent unless TSR_LOG or a caller asks; and the clock.
 *
 * TSR_LOG is read once, at the first message. A message is one write, so that the lines of ranks
 * sharing a terminal do not interleave.
 */
#include "base/base_priv.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const g_level_names[] = {"none", "error", "warn", "info", "debug"};

static tsri_log_level level_from_environment(void)
{
    const char *asked = getenv("TSR_LOG");

    for (int i = TSRI_LOG_NONE; asked != NULL && i <= TSRI_LOG_DEBUG; i++) {
        if (strcmp(asked, g_level_names[i]) == 0) {
            return (tsri_log_level)i;
        }
    }
    return TSRI_LOG_NONE;
}

void tsri_log_set(tsri_log_level level)
{
    atomic_store(&tsri_g_process.log_level, (int)level);
}

void tsri_log(tsri_log_level level, const char *format, ...)
{
    int limit = atomic_load(&tsri_g_process.log_level);
    char text[1024];
    va_list args;

    if (limit < 0) {
        limit = (int)level_from_environment();
        tsri_log_set((tsri_log_level)limit);
    }
    if (level == TSRI_LOG_NONE || (int)level > limit) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)fprintf(stderr, "[rank %d/%d] %s: %s\n", tsri_rank(), tsri_size(), g_level_names[level],
                  text);
}

double tsri_now_s(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
