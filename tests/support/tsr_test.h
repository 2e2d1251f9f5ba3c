/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tsr_test.h
 * The test harness: checks that print both sides, and a table of cases run by a main of its own.
 *
 * A test file defines tsr_test_cases, ended by {NULL, NULL}. main_unit.c runs it in one process,
 * main_mpi.c on every rank: there a case fails everywhere if it fails anywhere. CHECK goes on after
 * a failure; REQUIRE leaves the case. A case that exceeds TSR_TEST_WATCHDOG_S ends the program;
 * on a busy machine it may take longer, by the load of its cores.
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tsr_test_case {
    const char *name;
    void (*run)(void);
} tsr_test_case;

/** Defined by each test file; the last entry is {NULL, NULL}. */
extern const tsr_test_case tsr_test_cases[];

/** This rank and the number of ranks; 0 and 1 without MPI. */
int tsr_test_rank(void);
int tsr_test_size(void);

/** Path of a file or folder of tests/golden; valid until eight more paths were asked for. */
const char *tsr_test_golden_path(const char *name);
/** Path inside tests/, likewise. */
const char *tsr_test_source_path(const char *name);
/** Path inside a scratch folder of this test, empty when it starts and shared by its ranks. */
const char *tsr_test_scratch_path(const char *name);

/* What the macros call; each returns whether the check held. */
bool tsr_test_true(bool held, const char *file, int line, const char *text);
bool tsr_test_eq(long long a, long long b, const char *file, int line, const char *text);
bool tsr_test_near(double a, double b, double tolerance, const char *file, int line,
                   const char *text);
bool tsr_test_str(const char *a, const char *b, const char *file, int line, const char *text);
bool tsr_test_status(tsr_status expected, tsr_status actual, const char *file, int line,
                     const char *text);

#define TSR_TEST_EQ(a, b) \
    tsr_test_eq((long long)(a), (long long)(b), __FILE__, __LINE__, #a " == " #b)
#define TSR_TEST_NEAR(a, b, tol) \
    tsr_test_near((double)(a), (double)(b), (double)(tol), __FILE__, __LINE__, #a " ~ " #b)
#define TSR_TEST_REQUIRE(held) \
    do { \
        if (!(held)) \
            return; \
    } while (0)

/** The condition holds. */
#define CHECK(cond) ((void)tsr_test_true((cond), __FILE__, __LINE__, #cond))
/** Two integers are equal. */
#define CHECK_EQ(a, b) ((void)TSR_TEST_EQ(a, b))
/** |a - b| <= tol; never for NaN. Write the tolerance as a formula of type and size. */
#define CHECK_NEAR(a, b, tol) ((void)TSR_TEST_NEAR(a, b, tol))
/** Two texts are equal. */
#define CHECK_STR(a, b) ((void)tsr_test_str((a), (b), __FILE__, __LINE__, #a " == " #b))
/** The call returns this status; the trail is printed if not, and cleared. */
#define CHECK_STATUS(expected, call) \
    ((void)tsr_test_status((expected), (call), __FILE__, __LINE__, #call))
#define CHECK_OK(call) CHECK_STATUS(TSR_OK, call)

/* The same, leaving the case (a function that returns void) on failure. */
#define REQUIRE(cond)           TSR_TEST_REQUIRE(tsr_test_true((cond), __FILE__, __LINE__, #cond))
#define REQUIRE_EQ(a, b)        TSR_TEST_REQUIRE(TSR_TEST_EQ(a, b))
#define REQUIRE_NEAR(a, b, tol) TSR_TEST_REQUIRE(TSR_TEST_NEAR(a, b, tol))
#define REQUIRE_STATUS(expect, x) \
    TSR_TEST_REQUIRE(tsr_test_status((expect), (x), __FILE__, __LINE__, #x))
#define REQUIRE_OK(call) REQUIRE_STATUS(TSR_OK, call)

/* ---- for the two mains ---- */

/** Sums failures over ranks; the identity without MPI. */
typedef int (*tsr_test_sum)(int mine);
/** Name this process; before the first case. */
void tsr_test_begin(int rank, int size);
/** Run the cases (only those named in argv, if any); returns the exit status. */
int tsr_test_run(int argc, char **argv, tsr_test_sum sum);
/** Report leaks so far if the build has LeakSanitizer; true if there are any. */
bool tsr_test_leaked(void);
