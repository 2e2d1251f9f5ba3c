/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file run_folder.h
 * The folder of a run: which one it is, and the files in it. Used by one rank.
 */
#pragma once

#include "base/growing_text.h"

#include <stdbool.h>

enum {
    TSRI_RUN_PATH_BYTES = 4096
};

typedef struct tsri_run_folder {
    char dir[TSRI_RUN_PATH_BYTES];
    bool renamed;  /* dir is not the folder that was asked for: that one holds a run */
    FILE *metrics; /* metrics.jsonl, open for writing; NULL: none */
} tsri_run_folder;

/** Local. Could dir become a run's folder? TSR_ERR_IO if something else bears its name or that of a
 *  folder it lies in, or if it could not be written. */
tsr_status tsri_run_folder_check(const char *dir);

/**
 * Make dir, or where it holds any of a run's files already dir-2, dir-3, ..., with an empty
 * metrics.jsonl. A run's files are never written over. TSR_ERR_IO.
 */
tsr_status tsri_run_folder_open(const char *dir, tsri_run_folder *out);
void tsri_run_folder_close(tsri_run_folder *folder);

/** Path of name in the folder into text[TSRI_RUN_PATH_BYTES]; TSR_ERR_INVALID: too long. */
tsr_status tsri_run_folder_path(const tsri_run_folder *folder, const char *name, char *text);
/** Create a file that is not there, for tsri_run_folder_finish to close. TSR_ERR_IO. */
tsr_status tsri_run_folder_create(const tsri_run_folder *folder, const char *name, FILE **out);
/** Close it; TSR_ERR_IO if not all of it could be written. */
tsr_status tsri_run_folder_finish(const tsri_run_folder *folder, const char *name, FILE *file);
/** Both, of a file that is text. */
tsr_status tsri_run_folder_write(const tsri_run_folder *folder, const char *name,
                                 const tsri_text *text);
/** Append a line to metrics.jsonl, at once. *renewed_out: it had been deleted, and the line is the
 *  first of a new one. */
tsr_status tsri_run_folder_add_row(tsri_run_folder *folder, const tsri_text *line,
                                   bool *renewed_out);
