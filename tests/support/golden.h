/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file golden.h
 * Reads the files of tests/golden: safetensors and JSON.
 *
 * A test reader, deliberately apart from the library's own parsers, which it may serve to check.
 * Threads: a golden never changes once opened.
 */
#pragma once

#include "tessera/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#define TSR_GOLDEN_MAX_DIMS 8

typedef struct tsr_golden tsr_golden;

/** Open a .safetensors or .json file; a relative path is looked up under tests/golden. NULL with a
 *  line on stderr when it cannot be read. */
tsr_golden *tsr_golden_open(const char *path);

/** Free; NULL is allowed. */
void tsr_golden_close(tsr_golden *golden);

/** Data of tensor name, row-major, borrowed and aligned for its type; NULL if there is none. dtype,
 *  shape [TSR_GOLDEN_MAX_DIMS] and ndim may each be NULL. */
const void *tsr_golden_tensor(const tsr_golden *golden, const char *name, tsr_dtype *dtype,
                              int64_t *shape, int *ndim);

/** Elements of tensor name; -1 if there is none. */
int64_t tsr_golden_count(const tsr_golden *golden, const char *name);

/* A JSON value by slash-separated keys and array indices: "cases/0/steps/3/lr". */

/** Number (a boolean counts as 0 or 1) at path; NAN if there is none. */
double tsr_golden_number(const tsr_golden *golden, const char *path);
/** Text at path, borrowed; NULL if there is none. */
const char *tsr_golden_text(const tsr_golden *golden, const char *path);
/** Entries of the array or object at path; -1 if there is none. */
int tsr_golden_length(const tsr_golden *golden, const char *path);
