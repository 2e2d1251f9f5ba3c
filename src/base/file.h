/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file file.h
 * Small files, whole.
 */
#pragma once

#include "tessera/status.h"

/** Read path into out: bytes characters and a '\0' behind them; free with tsri_free. A pipe is read
 *  to its end, and given up where nothing comes for 10 seconds.
 *  TSR_ERR_IO with the system's reason. */
tsr_status tsri_file_read(const char *path, char **out, size_t *bytes_out);

/** The same of a file that is read more than once: TSR_ERR_IO where path is a pipe. */
tsr_status tsri_file_read_plain(const char *path, char **out, size_t *bytes_out);

/** Write path so that a reader finds the old file or the new one: a neighbour, then rename. */
tsr_status tsri_file_write(const char *path, const char *text, size_t bytes);

/** Create path for writing, with a stream that is closed by fclose. TSR_ERR_IO: it is there, be it
 * as a symbolic link, or it cannot be made. */
tsr_status tsri_file_create(const char *path, FILE **out);
