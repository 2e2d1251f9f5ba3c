/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file base.h
 * What every folder may use: checked memory, narrowing, log, hash, time, text.
 */
#pragma once

#include "tessera/dtype.h"
#include "tessera/status.h"

#include <float.h>
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

/* ---- arguments of public functions (docs/arguments.md): the first lines of each ----
 * Their inner statements go without braces, as in tessera/status.h. */

/** In a function that returns a status: refuse pointers that are NULL. */
#define TSRI_WANT(...) TSRI_WANT_AS(#__VA_ARGS__, __VA_ARGS__)
/** The same where the header has other names for them, in names, joined by ", ". */
#define TSRI_WANT_AS(names, ...) \
    do { \
        if (tsri_want(__FILE__, __LINE__, __func__, (names), (const void *const[]){__VA_ARGS__}, \
                      sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *)) != TSR_OK) \
            return TSR_ERR_INVALID; \
    } while (0)
tsr_status tsri_want(const char *file, int line, const char *func, const char *names,
                     const void *const *pointers, size_t count);

/** In any other function: answer so. */
#define TSRI_WANT_OR(arg, answer) \
    do { \
        if ((arg) == NULL) \
            return (answer); \
    } while (0)
#define TSRI_WANT_VOID(arg) \
    do { \
        if ((arg) == NULL) \
            return; \
    } while (0)

/** Refuse a negative count, and an array that is NULL although it has entries. */
#define TSRI_WANT_LIST(list, count) \
    TSR_TRY(tsri_want_list(__func__, #list, (list), #count, (count), 0))
/** The same of an array of pointers, none of which may be NULL. */
#define TSRI_WANT_EACH(list, count) \
    TSR_TRY(tsri_want_list(__func__, #list, (list), #count, (count), sizeof(*(list))))
tsr_status tsri_want_list(const char *func, const char *name, const void *list,
                          const char *count_name, int count, size_t pointer_bytes);

/** Refuse a value of an enum that counts from 0 to last. */
#define TSRI_WANT_ENUM(arg, last) \
    do { \
        if ((unsigned)(arg) > (unsigned)(last)) \
            return TSR_RAISE(TSR_ERR_INVALID, "%s: %s is %d, wants 0 to %d", __func__, #arg, \
                             (int)(arg), (int)(last)); \
    } while (0)

/** Refuse a count that is negative. */
#define TSRI_WANT_COUNT(arg) \
    do { \
        if ((arg) < 0) \
            return TSR_RAISE(TSR_ERR_INVALID, "%s: %s is %lld, wants 0 or more", __func__, #arg, \
                             (long long)(arg)); \
    } while (0)

/** Refuse a number that is negative, infinite or none. */
#define TSRI_WANT_NUMBER(arg) \
    do { \
        if (!((arg) >= 0.0 && (arg) <= DBL_MAX)) \
            return TSR_RAISE(TSR_ERR_INVALID, "%s: %s is %g, wants 0 or a finite number above", \
                             __func__, #arg, (double)(arg)); \
    } while (0)

/* ---- process facts, set once when the world opens (globals.c) ---- */
void tsri_set_rank(int rank, int size);
int tsri_rank(void);
int tsri_size(void);

/* ---- this thread's failure ---- */
/** Between hold and release (in pairs, nested) a failure that is there stays as it is, whatever
 *  clean-up raises or clears. */
void tsri_error_hold(void);
void tsri_error_release(void);
/** An exchange has told every rank of this failure, and rank teller is to print it; until another
 * is raised or it is cleared. */
void tsri_error_share(int teller);
/** Who prints status; -1: it is not the failure that was shared. */
int tsri_error_teller(tsr_status status);
/** The failure that is there, if it was not shared; TSR_OK. */
tsr_status tsri_error_untold(void);

/* ---- host memory: overflow checked, zeroed, counted ---- */
/** *(void **)out = count * size zeroed bytes (count 0 gives a valid pointer). TSR_ERR_NOMEM. */
tsr_status tsri_alloc(size_t count, size_t size, void *out);
/** Free and NULL *(void **)pointer. */
void tsri_free(void *pointer);
/** As tsri_free, but the bytes stay readable until many others were retired: what a stale handle
 *  points to can still tell that it is stale. */
void tsri_retire(void *pointer);
/** Grow the array *(void **)array to hold at least need elements; *capacity is updated. */
tsr_status tsri_grow(void *array, int *capacity, int need, size_t element_bytes);
/** Copy of text. */
tsr_status tsri_strdup(const char *text, char **out);
/** Fail the n-th allocation from now on in this process (tests); 0 switches it off. */
void tsri_alloc_fail_at(int n);
/** Live allocations (tests). */
int64_t tsri_alloc_live(void);

/** count elements of dtype (f32, bf16, f16 or f64) at from as f32; f64 is rounded. */
void tsri_widen(const void *from, tsr_dtype dtype, int64_t count, float *to);

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

/* ---- instructions that the kernels use; TSR_CPU_ISA=baseline|avx2|avx512 holds them to less than
 * the processor has ---- */
typedef enum tsri_isa {
    TSRI_ISA_BASELINE = 0, /* what every processor of the architecture has */
    TSRI_ISA_AVX2,         /* x86-64-v3: AVX2, FMA */
    TSRI_ISA_AVX512        /* x86-64-v4 */
} tsri_isa;
/** "baseline", "avx2", "avx512". */
const char *tsri_isa_name(tsri_isa isa);
/** The level that asked (NULL, "": the processor's) means. TSR_ERR_INVALID: no level;
 *  TSR_ERR_UNSUPPORTED: the processor has less. */
tsr_status tsri_isa_choose(const char *asked, tsri_isa *out);
/** What TSR_CPU_ISA said when it was first asked for; the processor's if that cannot be. */
tsri_isa tsri_isa_level(void);
/** Whether that level includes products of bf16. */
bool tsri_isa_has_bf16(void);

/* ---- hash: XXH3-64 ---- */
uint64_t tsri_hash(const void *data, size_t bytes, uint64_t seed);
uint64_t tsri_hash_text(const char *text);

/* ---- time ---- */
double tsri_now_s(void); /* monotonic seconds */

/* ---- text ---- */
/** Bytes of the byte-order mark of UTF-8 that text begins with, or 0. */
size_t tsri_text_mark(const char *text, size_t bytes);
/** Put '?' for whatever in text would move a terminal's cursor, or worse; returns text. */
char *tsri_make_printable(char *text);
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
static inline double tsri_max_double(double a, double b)
{
    return a > b ? a : b;
}
