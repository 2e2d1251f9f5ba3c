/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file safetensors_priv.h
 * An open checkpoint, between the files that find, read and convert it.
 */
#pragma once

#include <stddef.h>

#include "checkpoint/safetensors.h"

enum {
    TSRI_SAFETENSORS_PATH_BYTES = 4096,
    TSRI_SAFETENSORS_CHUNK_BYTES = 1 << 18
};

typedef struct tsri_safetensors_shard {
    char *path;
    int fd;
} tsri_safetensors_shard;

struct tsri_safetensors {
    char *path;
    tsri_safetensors_shard *shards;
    int shard_count, shard_capacity;
    tsri_safetensors_tensor *tensors; /* sorted by name, once all files are added */
    int tensor_count, tensor_capacity;
    void *chunk; /* TSRI_SAFETENSORS_CHUNK_BYTES for conversion */
    char source[TSRI_SAFETENSORS_SOURCE_BYTES];
};

/** Add the tensors of the file at path, whose header is checked. */
tsr_status tsri_safetensors_add_file(tsri_safetensors *st, const char *path);
/** Add the files of folder: model.safetensors, or else those of its index. */
tsr_status tsri_safetensors_add_folder(tsri_safetensors *st, const char *folder);
/** Sort by name. Of a name that several files hold one remains: that of file chosen(context, name)
 *  (-1: none is chosen, and the tensor remembers that it has a twin); chosen may be NULL. */
void tsri_safetensors_sort(tsri_safetensors *st, int (*chosen)(void *context, const char *name),
                           void *context, int *dropped_out);
tsr_status tsri_safetensors_read_exact(const tsri_safetensors_shard *s, int64_t offset, void *out,
                                       size_t bytes);
