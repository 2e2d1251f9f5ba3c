/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file status.h
 * Status codes, and the trail that says where a failure began and how it came up.
 *
 * A function that can fail returns a tsr_status. Where a failure is decided, TSR_RAISE writes the
 * message; every caller that passes it on with TSR_TRY adds one frame (function, file, line).
 * The same words serve the library, examples and tests.
 *
 * Threads: each thread has its own trail; these functions read and clear only the caller's.
 */
#pragma once

#include <stdio.h>

#ifdef __cplusplus
#    define TSR_BEGIN_DECLS extern "C" {
#    define TSR_END_DECLS   }
#else
#    define TSR_BEGIN_DECLS
#    define TSR_END_DECLS
#endif
#define TSR_API     __attribute__((visibility("default")))
#define TSR_CHECKED TSR_API __attribute__((warn_unused_result))

TSR_BEGIN_DECLS

/** One row per status: name, value, text. A released value never changes meaning. */
#define TSR_STATUS_MAP(X) \
    X(OK, 0, "success") \
    X(ERR_INVALID, -1, "invalid argument") \
    X(ERR_SHAPE, -2, "shapes do not agree") \
    X(ERR_PLACEMENT, -3, "placements do not agree") \
    X(ERR_STATE, -4, "called in the wrong state") \
    X(ERR_NOMEM, -5, "out of memory") \
    X(ERR_IO, -6, "input or output failed") \
    X(ERR_FORMAT, -7, "malformed data") \
    X(ERR_COMM, -8, "communication failed") \
    X(ERR_DEVICE, -9, "device failed") \
    X(ERR_REMOTE, -10, "another rank failed") \
    X(ERR_DISAGREE, -11, "ranks disagree") \
    X(ERR_UNSUPPORTED, -12, "not supported") \
    X(ERR_INTERNAL, -13, "internal error")

typedef enum tsr_status {
#define TSR_STATUS_ENUM(name, value, text) TSR_##name = (value),
    TSR_STATUS_MAP(TSR_STATUS_ENUM)
#undef TSR_STATUS_ENUM
} tsr_status;

/** Start a trail: record status, message and place; evaluates to @p status (named twice, so that
 *  static analysis sees which). */
#define TSR_RAISE(status, ...) \
    ((void)tsr_error_raise((status), __FILE__, __LINE__, __func__, __VA_ARGS__), (status))

/* Their inner statements go without braces: a level of nesting costs each function that uses them.
 */

/** Call something that returns a status; on failure add a frame and return it. */
#define TSR_TRY(call) \
    do { \
        tsr_status tsri_try_ = (call); \
        if (tsri_try_ != TSR_OK) \
            return ((void)tsr_error_pass(tsri_try_, __FILE__, __LINE__, __func__), tsri_try_); \
    } while (0)

/** Like TSR_TRY, but store the failure in @p status and jump to the clean-up label. */
#define TSR_TRY_GOTO(status, call, label) \
    do { \
        (status) = (call); \
        if ((status) != TSR_OK && \
            ((void)tsr_error_pass((status), __FILE__, __LINE__, __func__), 1)) \
            goto label; \
    } while (0)

/** Local. Record a failure and its origin; what TSR_RAISE calls. Returns @p status. */
TSR_API tsr_status tsr_error_raise(tsr_status status, const char *file, int line, const char *func,
                                   const char *format, ...)
    __attribute__((format(printf, 5, 6), cold));

/** Local. Add a frame to the trail; what TSR_TRY calls. Returns @p status. */
TSR_API tsr_status tsr_error_pass(tsr_status status, const char *file, int line, const char *func)
    __attribute__((cold));

/** Local. Name of @p status, such as "ERR_SHAPE"; "?" for an unknown value. */
TSR_API const char *tsr_status_name(tsr_status status);

/** Local. The calling thread's message, without frames; "" if nothing failed. Borrowed. */
TSR_API const char *tsr_error_message(void);

/** Local. Write origin, message and every frame that passed the failure on; nothing if none. */
TSR_API void tsr_error_print(FILE *stream);

/** Local. Forget the calling thread's trail. */
TSR_API void tsr_error_clear(void);

TSR_END_DECLS
