/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file data.h
 * Training samples from text files: bytes as tokens, cut into windows, in a shuffled order.
 *
 * The files that match a path stand one behind the other, in order of their names. Window w is the
 * bytes [w * seq, w * seq + seq]: its inputs, and, one further, its labels. Sample g of the run is
 * window p(g mod windows), where p is a permutation of its own for each epoch, g / windows. It is
 * computed and not stored, and says nothing of ranks: whoever wants rows of a batch reads exactly
 * these, and a run sees the same samples on any mesh.
 *
 * Threads: one thread at a time per data.
 */
#pragma once

#include "tessera/status.h"

#include <stdint.h>

typedef struct tsri_data tsri_data;

/**
 * Look at the files of pattern. Nothing is kept open but the file that was read last.
 *
 * TSR_ERR_IO: no file matches, one cannot be read, or is a directory. TSR_ERR_INVALID: one is
 * empty, or all of them are shorter than one sequence. Messages name the file.
 */
tsr_status tsri_data_open(const char *pattern, int64_t seq, uint64_t seed, tsri_data **out);
void tsri_data_close(tsri_data **pointer);

int64_t tsri_data_bytes(const tsri_data *data);
int tsri_data_file_count(const tsri_data *data);
/** Samples of an epoch. */
int64_t tsri_data_windows(const tsri_data *data);

/** Samples [first, first + count) as ids and labels [count, seq]. Reads these bytes alone. */
tsr_status tsri_data_read(tsri_data *data, int64_t first, int64_t count, int32_t *ids,
                          int32_t *labels);

/**
 * "3 files, 120000 bytes, hash 0123456789abcdef" into text[size]: equal on ranks with equal files.
 * Of more than 16 MiB the hash sees blocks in equal distances.
 */
tsr_status tsri_data_describe(tsri_data *data, char *text, size_t size);

/** Where index, of 0..count-1, goes in the permutation of key. */
int64_t tsri_permute(uint64_t key, int64_t count, int64_t index);
