/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file safetensors.h
 * Reading safetensors: one file, or a folder with one file or an index of several.
 *
 * Format (huggingface/safetensors, README): u64 little-endian N; N bytes of JSON, an object of
 * name -> {dtype, shape, data_offsets [begin, end) from the byte after the header}, and an optional
 * "__metadata__" of strings; then the data to the end of the file, without holes or overlaps,
 * row-major, little-endian. N is at most 100,000,000. An index, model.safetensors.index.json, holds
 * weight_map: name -> file.
 *
 * Headers are checked when opened; data is read by exact ranges, never a whole file. A tensor of a
 * type that Tessera does not compute with is listed like any other, and refused by who reads it.
 *
 * A folder's model.safetensors counts, whatever index lies beside it. Of an index the files count;
 * which of them holds a tensor it must say only where several do.
 *
 * Threads: one thread at a time per tsri_safetensors.
 */
#pragma once

#include "tessera/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    TSRI_SAFETENSORS_MAX_DIMS = 8,
    TSRI_SAFETENSORS_TYPE_BYTES = 16,
    TSRI_SAFETENSORS_SOURCE_BYTES = 256
};

typedef struct tsri_safetensors tsri_safetensors;

typedef struct tsri_safetensors_tensor {
    char *name;
    char type[TSRI_SAFETENSORS_TYPE_BYTES]; /* as the file calls it */
    tsr_dtype dtype;                        /* TSR_DTYPE_DEFAULT: type is none of Tessera's */
    int ndim;                               /* shape holds the first MAX_DIMS of them */
    int64_t shape[TSRI_SAFETENSORS_MAX_DIMS];
    int64_t count;
    int64_t begin; /* of the data, bytes from the start of its file */
    int file;
    int twin; /* another file that holds it, and nothing says which counts; -1: none */
} tsri_safetensors_tensor;

/**
 * Open path: a .safetensors file, or a folder holding model.safetensors or
 * model.safetensors.index.json.
 *
 * TSR_ERR_IO: missing, unreadable, or no plain file. TSR_ERR_FORMAT: truncated or inconsistent; the
 * message names file, tensor and values.
 */
tsr_status tsri_safetensors_open(const char *path, tsri_safetensors **out);
void tsri_safetensors_close(tsri_safetensors **pointer);

/** The path that was opened. */
const char *tsri_safetensors_path(const tsri_safetensors *st);
/** Which files are read of it, and which are not though they lie there: "model.safetensors". */
const char *tsri_safetensors_source(const tsri_safetensors *st);
/** The file that holds t. */
const char *tsri_safetensors_file(const tsri_safetensors *st, const tsri_safetensors_tensor *t);
int tsri_safetensors_count(const tsri_safetensors *st);
const tsri_safetensors_tensor *tsri_safetensors_at(const tsri_safetensors *st, int index);
/** The tensor called name, or NULL. */
const tsri_safetensors_tensor *tsri_safetensors_find(const tsri_safetensors *st, const char *name);
/** "[4096, 11008]" into buffer; returns buffer. */
const char *tsri_safetensors_shape(const tsri_safetensors_tensor *t, char *buffer, size_t size);

/** TSR_ERR_FORMAT: t is of a type that tsri_safetensors_read_f32 does not widen, or it is in two
 *  files. */
tsr_status tsri_safetensors_check_float(const tsri_safetensors *st,
                                        const tsri_safetensors_tensor *t);
/** Elements [first, first + count) of the flattened tensor, widened to f32 (f32, bf16, f16, f64).
 */
tsr_status tsri_safetensors_read_f32(tsri_safetensors *st, const tsri_safetensors_tensor *t,
                                     int64_t first, int64_t count, float *out);
/** The same of an I32 or I64 tensor; TSR_ERR_FORMAT where a value does not fit. */
tsr_status tsri_safetensors_read_i32(tsri_safetensors *st, const tsri_safetensors_tensor *t,
                                     int64_t first, int64_t count, int32_t *out);
