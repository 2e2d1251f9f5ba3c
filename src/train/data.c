/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Text files as samples.
 *
 * The permutation is a Feistel network over the smallest power of four that holds all windows:
 * whatever its round function, it maps that range onto itself one to one. A value beyond the count
 * is mapped again until it falls below (cycle walking), which keeps it one to one, and takes less
 * than four rounds on average. */
#include "train/data.h"

#include "base/base.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ROUNDS = 6,
    BLOCK_BYTES = 4096,
    MOST_BLOCKS = 4096
};

typedef struct data_file {
    char *path;
    int64_t begin, bytes; /* of all files together; of this one */
} data_file;

struct tsri_data {
    data_file *files;
    int count, capacity;
    int64_t bytes, seq, windows;
    uint64_t seed;
    unsigned char *window; /* [seq + 1] */
    int open_file;         /* index of the file behind descriptor; -1: none */
    int descriptor;
};

/* ---- order ---- */

int64_t tsri_permute(uint64_t key, int64_t count, int64_t index)
{
    uint64_t value = (uint64_t)index;
    int bits = 1;

    while ((int64_t)1 << (2 * bits) < count) {
        bits++;
    }
    do {
        const uint64_t mask = ((uint64_t)1 << bits) - 1;
        uint64_t left = value >> bits;
        uint64_t right = value & mask;

        for (int round = 0; round < ROUNDS; round++) {
            const uint64_t mixed = tsri_rng_key(key, right, (uint64_t)round, 0);
            const uint64_t next = left ^ (mixed & mask);

            left = right;
            right = next;
        }
        value = left << bits | right;
    } while (value >= (uint64_t)count);
    return (int64_t)value;
}

/* ---- files ---- */

static tsr_status add_file(tsri_data *data, const char *path)
{
    struct stat info;
    data_file *file = NULL;

    if (stat(path, &info) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "data file %s: %s", path, strerror(errno));
    }
    if (S_ISDIR(info.st_mode)) {
        return TSR_RAISE(TSR_ERR_IO, "data file %s is a folder; name its files, such as %s/*.txt",
                         path, path);
    }
    if (access(path, R_OK) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "data file %s: cannot read: %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return TSR_RAISE(TSR_ERR_IO, "data file %s is no plain file", path);
    }
    if (info.st_size == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "data file %s is empty", path);
    }
    TSR_TRY(tsri_grow(&data->files, &data->capacity, data->count + 1, sizeof(*data->files)));
    file = &data->files[data->count];
    TSR_TRY(tsri_strdup(path, &file->path));
    file->begin = data->bytes;
    file->bytes = info.st_size;
    data->bytes += info.st_size;
    data->count++;
    return TSR_OK;
}

static tsr_status find_files(tsri_data *data, const char *pattern)
{
    glob_t found = {0};
    const int code = glob(pattern, GLOB_ERR, NULL, &found);
    tsr_status status = TSR_OK;

    if (code == GLOB_NOMATCH) {
        status = TSR_RAISE(TSR_ERR_IO, "data.path %s: there is no such file", pattern);
    } else if (code == GLOB_NOSPACE) {
        status = TSR_RAISE(TSR_ERR_NOMEM, "data.path %s: no memory for the files' names", pattern);
    } else if (code != 0) {
        status = TSR_RAISE(TSR_ERR_IO, "data.path %s: a folder cannot be read: %s", pattern,
                           strerror(errno));
    }
    for (size_t i = 0; status == TSR_OK && i < found.gl_pathc; i++) {
        status = add_file(data, found.gl_pathv[i]);
    }
    globfree(&found);
    TSR_TRY(status);
    return TSR_OK;
}

static tsr_status list_files(tsri_data *data, const char *pattern)
{
    if (*pattern == '\0') {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "data.path is not given: wants the text to train on, such as data/*.txt");
    }
    if (access(pattern, F_OK) == 0) {
        TSR_TRY(add_file(data, pattern)); /* whatever its name holds */
    } else {
        TSR_TRY(find_files(data, pattern));
    }
    data->windows = (data->bytes - 1) / data->seq;
    if (data->windows < 1) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "data.path %s: %lld bytes of text are shorter than one sequence, which "
                         "takes train.seq + 1 = %lld",
                         pattern, (long long)data->bytes, (long long)data->seq + 1);
    }
    TSR_TRY(tsri_alloc((size_t)data->seq + 1, 1, &data->window));
    return TSR_OK;
}

tsr_status tsri_data_open(const char *pattern, int64_t seq, uint64_t seed, tsri_data **out)
{
    tsri_data *data = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*data), &data));
    data->seq = seq;
    data->seed = seed;
    data->open_file = -1;
    data->descriptor = -1;
    TSR_TRY_GOTO(status, list_files(data, pattern), close);
    *out = data;
    return TSR_OK;
close:
    tsri_data_close(&data);
    return status;
}

void tsri_data_close(tsri_data **pointer)
{
    tsri_data *data = *pointer;

    *pointer = NULL;
    if (data == NULL) {
        return;
    }
    if (data->descriptor >= 0) {
        (void)close(data->descriptor);
    }
    for (int i = 0; i < data->count; i++) {
        tsri_free(&data->files[i].path);
    }
    tsri_free(&data->files);
    tsri_free(&data->window);
    tsri_free(&data);
}

int64_t tsri_data_bytes(const tsri_data *data)
{
    return data->bytes;
}

int tsri_data_file_count(const tsri_data *data)
{
    return data->count;
}

int64_t tsri_data_windows(const tsri_data *data)
{
    return data->windows;
}

/* ---- reading ---- */

/* The last file that begins at or before at. */
static int file_at(const tsri_data *data, int64_t at)
{
    int low = 0;
    int high = data->count - 1;

    while (low < high) {
        const int middle = (low + high + 1) / 2;

        if (data->files[middle].begin <= at) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

static tsr_status use_file(tsri_data *data, int index)
{
    if (data->open_file == index) {
        return TSR_OK;
    }
    if (data->descriptor >= 0) {
        (void)close(data->descriptor);
    }
    data->open_file = -1;
    data->descriptor = open(data->files[index].path, O_RDONLY | O_CLOEXEC);
    if (data->descriptor < 0) {
        return TSR_RAISE(TSR_ERR_IO, "data file %s: cannot open: %s", data->files[index].path,
                         strerror(errno));
    }
    data->open_file = index;
    return TSR_OK;
}

static tsr_status read_from(tsri_data *data, int index, int64_t offset, int64_t bytes,
                            unsigned char *out)
{
    TSR_TRY(use_file(data, index));
    while (bytes > 0) {
        const ssize_t got = pread(data->descriptor, out, (size_t)bytes, offset);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return TSR_RAISE(TSR_ERR_IO, "data file %s: cannot read: %s", data->files[index].path,
                             strerror(errno));
        }
        if (got == 0) {
            return TSR_RAISE(
                TSR_ERR_IO, "data file %s has no byte %lld any more, it had %lld bytes",
                data->files[index].path, (long long)offset, (long long)data->files[index].bytes);
        }
        out += got;
        offset += got;
        bytes -= got;
    }
    return TSR_OK;
}

/* Bytes [at, at + bytes) of all files together. */
static tsr_status read_bytes(tsri_data *data, int64_t at, int64_t bytes, unsigned char *out)
{
    for (int i = file_at(data, at); bytes > 0; i++) {
        const data_file *file = &data->files[i];
        const int64_t offset = at - file->begin;
        const int64_t part = tsri_min64(bytes, file->bytes - offset);

        TSR_TRY(read_from(data, i, offset, part, out));
        out += part;
        at += part;
        bytes -= part;
    }
    return TSR_OK;
}

tsr_status tsri_data_read(tsri_data *data, int64_t first, int64_t count, int32_t *ids,
                          int32_t *labels)
{
    for (int64_t row = 0; row < count; row++) {
        const int64_t sample = first + row;
        const uint64_t epoch = (uint64_t)(sample / data->windows);
        const uint64_t key = tsri_rng_key(data->seed, tsri_hash_text("order of samples"), epoch, 0);
        const int64_t window = tsri_permute(key, data->windows, sample % data->windows);
        int32_t *const row_ids = ids + row * data->seq;
        int32_t *const row_labels = labels + row * data->seq;

        TSR_TRY(read_bytes(data, window * data->seq, data->seq + 1, data->window));
        for (int64_t i = 0; i < data->seq; i++) {
            row_ids[i] = data->window[i];
            row_labels[i] = data->window[i + 1];
        }
    }
    return TSR_OK;
}

/* ---- are files the same ---- */

static tsr_status hash_blocks(tsri_data *data, uint64_t *out)
{
    const int64_t last = tsri_max64(0, data->bytes - BLOCK_BYTES);
    const int64_t blocks = tsri_min64(tsri_ceil_div(data->bytes, BLOCK_BYTES), MOST_BLOCKS);
    const int64_t length = tsri_min64(data->bytes, BLOCK_BYTES);
    unsigned char block[BLOCK_BYTES];
    uint64_t hash = 0;

    for (int64_t i = 0; i < blocks; i++) {
        /* In two factors, since last * i may not fit. */
        const int64_t gaps = tsri_max64(1, blocks - 1);
        const int64_t at = last / gaps * i + last % gaps * i / gaps;

        TSR_TRY(read_bytes(data, at, length, block));
        hash = tsri_hash(block, (size_t)length, hash);
    }
    *out = hash;
    return TSR_OK;
}

tsr_status tsri_data_describe(tsri_data *data, char *text, size_t size)
{
    uint64_t hash = 0;

    TSR_TRY(hash_blocks(data, &hash));
    for (int i = 0; i < data->count; i++) {
        hash = tsri_hash(&data->files[i].bytes, sizeof(data->files[i].bytes), hash);
    }
    (void)snprintf(text, size, "%d files, %lld bytes, hash %016llx", data->count,
                   (long long)data->bytes, (unsigned long long)hash);
    return TSR_OK;
}
