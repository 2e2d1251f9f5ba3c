/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file base.h
 * What every folder may use: checked memory, narrowing, log, hash, time, text.
 */
#pragma once

#include "tessera/dtype.h"
#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- invariants of our own; debug builds only ---- */
#ifdef NDEBUG
#    define TSRI_ASSERT(cond) ((void)0)
#else
#    define TSRI_ASSERT(cond) ((cond) ? (void)0 : tsri_assert_fail(#    cond, __FILE__, __LINE__))
#endif
void tsri_assert_fail(const char *cond, const char *file, int line) __attribute__((noreturn));

/* ---- process facts, set once when the world opens (globals.c) ---- */
void tsri_set_rank(int rank, int size);
int tsri_rank(void);
int tsri_size(void);

/* ---- host memory: overflow checked, zeroed, counted ---- */
/** *(void **)out = count * size zeroed bytes (count 0 gives a valid pointer). TSR_ERR_NOMEM. */
tsr_status tsri_alloc(size_t count, size_t size, void *out);
/** Free and NULL *(void **)pointer. */
void tsri_free(void *pointer);
/** Grow the array *(void **)array to hold at least need elements; *capacity is updated. */
tsr_status tsri_grow(void *array, int *capacity, int need, size_t element_bytes);
/** Copy of text. */
tsr_status tsri_strdup(const char *text, char **out);
/** Fail the n-th allocation from now on in this process (tests); 0 switches it off. */
void tsri_alloc_fail_at(int n);
/** Live allocations (tests). */
int64_t tsri_alloc_live(void);

/* ---- checked narrowing ---- */
tsr_status tsri_to_int(int64_t value, const char *what, int *out);

/* ---- log: off unless asked for (TSR_LOG=error|warn|info|debug); writes "[rank r/n] ..." ---- */
typedef enum tsri_log_level {
    TSRI_LOG_NONE = 0,
    TSRI_LOG_ERROR,
    TSRI_LOG_WARN,
    TSRI_LOG_INFO,
    TSRI_LOG_DEBUG
} tsri_log_level;
void tsri_log_set(tsri_log_level level);
void tsri_log(tsri_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- hash: XXH3-64 ---- */
uint64_t tsri_hash(const void *data, size_t bytes, uint64_t seed);
uint64_t tsri_hash_text(const char *text);

/* ---- time ---- */
double tsri_now_s(void); /* monotonic seconds */

/* ---- text ---- */
/** True if name matches pattern: '*' stands for one dotted component, '**' for any number,
 *  '{a,b}' for alternatives; everything else literally. A pattern without a dot that holds no
 *  wildcard matches the name itself. */
bool tsri_pattern_match(const char *pattern, const char *name);
/** Edit distance (Levenshtein), for "nearest known name". */
int tsri_edit_distance(const char *a, const char *b);
/** The entry of names[count] nearest to name, or NULL when none is near. */
const char *tsri_nearest(const char *name, const char *const *names, int count);
/** "12.3 MiB" into buffer; returns buffer. */
const char *tsri_format_bytes(double bytes, char *buffer, size_t size);
/** "[4096, 11008]" into buffer; returns buffer. */
const char *tsri_format_shape(const int64_t *shape, int ndim, char *buffer, size_t size);

static inline int64_t tsri_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t tsri_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t tsri_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
