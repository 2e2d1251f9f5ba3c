/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Opening safetensors. The header is trusted only after every rule of the format has been checked:
 * size, shapes against byte ranges, and that ranges tile the data without hole or overlap. A type
 * is checked no further than its size: whether a tensor is wanted is for others to say. */
#include "checkpoint/safetensors_priv.h"

#include "base/base.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PREFIX_BYTES = 8,
    MAX_HEADER_BYTES = 100000000
};

/* Types of the format, with their bits per element. */
static const struct {
    const char *name;
    tsr_dtype dtype;
    int bits;
} types[] = {
    {"F32", TSR_F32, 32},
    {"BF16", TSR_BF16, 16},
    {"F16", TSR_F16, 16},
    {"F64", TSR_F64, 64},
    {"I32", TSR_I32, 32},
    {"I64", TSR_I64, 64},
    {"U8", TSR_U8, 8},
    {"BOOL", TSR_DTYPE_DEFAULT, 8},
    {"I8", TSR_DTYPE_DEFAULT, 8},
    {"I16", TSR_DTYPE_DEFAULT, 16},
    {"U16", TSR_DTYPE_DEFAULT, 16},
    {"U32", TSR_DTYPE_DEFAULT, 32},
    {"U64", TSR_DTYPE_DEFAULT, 64},
    {"F8_E4M3", TSR_DTYPE_DEFAULT, 8},
    {"F8_E5M2", TSR_DTYPE_DEFAULT, 8},
    {"F8_E8M0", TSR_DTYPE_DEFAULT, 8},
    {"F6_E2M3", TSR_DTYPE_DEFAULT, 6},
    {"F6_E3M2", TSR_DTYPE_DEFAULT, 6},
    {"F4", TSR_DTYPE_DEFAULT, 4},
    {"C64", TSR_DTYPE_DEFAULT, 64},
};

/* bits 0: a type that is not known here, whose bytes are what the file says. */
static tsr_status parse_type(const char *file, const json_t *entry, tsri_safetensors_tensor *t,
                             int *bits)
{
    const char *name = NULL;

    *bits = 0;
    TSR_TRY(tsri_json_string(entry, "dtype", file, &name));
    (void)snprintf(t->type, sizeof(t->type), "%s", name);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcasecmp(types[i].name, name) == 0) {
            t->dtype = types[i].dtype;
            *bits = types[i].bits;
        }
    }
    return TSR_OK;
}

static tsr_status parse_shape(const char *file, const json_t *entry, tsri_safetensors_tensor *t)
{
    json_t *shape = NULL;

    TSR_TRY(tsri_json_array(entry, "shape", file, &shape));
    TSR_TRY(tsri_to_int((int64_t)json_array_size(shape), "dims", &t->ndim));
    t->count = 1;
    for (int i = 0; i < t->ndim; i++) {
        const json_t *extent = json_array_get(shape, (size_t)i);
        const int64_t size = json_is_integer(extent) ? json_integer_value(extent) : -1;

        if (size < 0 || __builtin_mul_overflow(t->count, size, &t->count)) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s: extent %d is not a usable size", file,
                             t->name, i);
        }
        if (i < TSRI_SAFETENSORS_MAX_DIMS) {
            t->shape[i] = size;
        }
    }
    return TSR_OK;
}

/* Does t of bits per element fill bytes? */
static bool fills(const tsri_safetensors_tensor *t, int bits, int64_t bytes)
{
    int64_t total = 0;

    return bits == 0 || (!__builtin_mul_overflow(t->count, (int64_t)bits, &total) &&
                         total % 8 == 0 && total / 8 == bytes);
}

/* Checks the byte range of t against its shape and the data's size; leaves it relative to data. */
static tsr_status parse_range(const char *file, const json_t *entry, int64_t data_bytes, int bits,
                              tsri_safetensors_tensor *t, int64_t *end_out)
{
    json_t *offsets = NULL;

    TSR_TRY(tsri_json_array(entry, "data_offsets", file, &offsets));
    if (json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1))) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s: data_offsets wants two integers", file,
                         t->name);
    }
    t->begin = json_integer_value(json_array_get(offsets, 0));
    *end_out = json_integer_value(json_array_get(offsets, 1));
    if (t->begin < 0 || *end_out < t->begin || *end_out > data_bytes) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: tensor %s lies at bytes %lld..%lld of %lld: the file is truncated or "
                         "inconsistent",
                         file, t->name, (long long)t->begin, (long long)*end_out,
                         (long long)data_bytes);
    }
    if (!fills(t, bits, *end_out - t->begin)) {
        char shape[96];

        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: tensor %s of shape %s in %s does not fill its %lld bytes", file,
                         t->name, tsri_safetensors_shape(t, shape, sizeof(shape)), t->type,
                         (long long)(*end_out - t->begin));
    }
    return TSR_OK;
}

typedef struct range {
    int64_t begin, end;
} range;

static int compare_ranges(const void *a, const void *b)
{
    const range *x = a;
    const range *y = b;

    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return (x->end > y->end) - (x->end < y->end);
}

static tsr_status check_tiling(const char *file, range *ranges, int count, int64_t data_bytes)
{
    int64_t at = 0;

    qsort(ranges, (size_t)count, sizeof(*ranges), compare_ranges);
    for (int i = 0; i < count; i++) {
        if (ranges[i].begin != at) {
            return TSR_RAISE(TSR_ERR_FORMAT,
                             "%s: data has %s at byte %lld: next tensor begins at %lld", file,
                             ranges[i].begin > at ? "a hole" : "an overlap", (long long)at,
                             (long long)ranges[i].begin);
        }
        at = ranges[i].end;
    }
    if (at != data_bytes) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensors cover %lld of %lld bytes of data", file,
                         (long long)at, (long long)data_bytes);
    }
    return TSR_OK;
}

static tsr_status add_tensor(tsri_safetensors *st, const char *name, const json_t *entry,
                             int64_t data_bytes, range *out)
{
    const char *file = st->shards[st->shard_count - 1].path;
    tsri_safetensors_tensor *t = NULL;
    int bits = 0;

    TSR_TRY(tsri_grow(&st->tensors, &st->tensor_capacity, st->tensor_count + 1, sizeof(*t)));
    t = &st->tensors[st->tensor_count];
    memset(t, 0, sizeof(*t));
    TSR_TRY(tsri_strdup(name, &t->name));
    st->tensor_count++;
    t->file = st->shard_count - 1;
    t->twin = -1;
    TSR_TRY(parse_type(file, entry, t, &bits));
    TSR_TRY(parse_shape(file, entry, t));
    TSR_TRY(parse_range(file, entry, data_bytes, bits, t, &out->end));
    out->begin = t->begin;
    return TSR_OK;
}

static tsr_status add_tensors(tsri_safetensors *st, json_t *header, int64_t data_begin,
                              int64_t data_bytes)
{
    const char *file = st->shards[st->shard_count - 1].path;
    const int first = st->tensor_count;
    const char *name = NULL;
    json_t *entry = NULL;
    range *ranges = NULL;
    tsr_status status = TSR_OK;

    if (!json_is_object(header)) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: header is not a JSON object", file);
    }
    TSR_TRY(tsri_alloc(json_object_size(header) + 1, sizeof(*ranges), &ranges));
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") != 0) {
            TSR_TRY_GOTO(status,
                         add_tensor(st, name, entry, data_bytes, &ranges[st->tensor_count - first]),
                         free_ranges);
        }
    }
    TSR_TRY_GOTO(status, check_tiling(file, ranges, st->tensor_count - first, data_bytes),
                 free_ranges);
    for (int i = first; i < st->tensor_count; i++) {
        st->tensors[i].begin += data_begin;
    }
free_ranges:
    tsri_free(&ranges);
    return status;
}

static tsr_status read_header(tsri_safetensors *st, int64_t file_bytes)
{
    const tsri_safetensors_shard *s = &st->shards[st->shard_count - 1];
    unsigned char prefix[PREFIX_BYTES];
    uint64_t header_bytes = 0;
    char *text = NULL;
    json_t *header = NULL;
    tsr_status status = TSR_OK;

    if (file_bytes < PREFIX_BYTES) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: %lld bytes are no safetensors file", s->path,
                         (long long)file_bytes);
    }
    TSR_TRY(tsri_safetensors_read_exact(s, 0, prefix, sizeof(prefix)));
    if (memcmp(prefix, "version ", PREFIX_BYTES) == 0) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: is a pointer of Git LFS and holds no weights; `git lfs pull` fetches "
                         "them",
                         s->path);
    }
    for (int i = PREFIX_BYTES - 1; i >= 0; i--) {
        header_bytes = header_bytes << 8 | prefix[i];
    }
    if (header_bytes > MAX_HEADER_BYTES || (int64_t)header_bytes > file_bytes - PREFIX_BYTES) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: header of %llu bytes in a file of %lld: truncated, or no safetensors",
                         s->path, (unsigned long long)header_bytes, (long long)file_bytes);
    }
    TSR_TRY(tsri_alloc((size_t)header_bytes + 1, 1, &text));
    TSR_TRY_GOTO(status, tsri_safetensors_read_exact(s, PREFIX_BYTES, text, (size_t)header_bytes),
                 free_text);
    TSR_TRY_GOTO(status, tsri_json_parse_loose(text, (size_t)header_bytes, s->path, &header, NULL),
                 free_text);
    TSR_TRY_GOTO(status,
                 add_tensors(st, header, PREFIX_BYTES + (int64_t)header_bytes,
                             file_bytes - PREFIX_BYTES - (int64_t)header_bytes),
                 free_header);
free_header:
    json_decref(header);
free_text:
    tsri_free(&text);
    return status;
}

tsr_status tsri_safetensors_add_file(tsri_safetensors *st, const char *path)
{
    struct stat info;
    tsri_safetensors_shard *s = NULL;

    TSR_TRY(tsri_grow(&st->shards, &st->shard_capacity, st->shard_count + 1, sizeof(*s)));
    s = &st->shards[st->shard_count];
    s->fd = -1;
    TSR_TRY(tsri_strdup(path, &s->path));
    st->shard_count++;
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would make us wait */
    if (s->fd < 0 || fstat(s->fd, &info) != 0) {
        const int reason = errno;
        const bool link = lstat(path, &info) == 0 && S_ISLNK(info.st_mode);

        return TSR_RAISE(TSR_ERR_IO, "%s: %s%s", path, strerror(reason),
                         link ? "; it is a link, perhaps of a download that did not end" : "");
    }
    if (!S_ISREG(info.st_mode)) {
        return TSR_RAISE(TSR_ERR_IO, "%s is %s, wants a safetensors file", path,
                         S_ISDIR(info.st_mode) ? "a folder" : "no plain file");
    }
    TSR_TRY(read_header(st, (int64_t)info.st_size));
    return TSR_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    const tsri_safetensors_tensor *x = a;
    const tsri_safetensors_tensor *y = b;
    const int order = strcmp(x->name, y->name);

    return order != 0 ? order : (x->file > y->file) - (x->file < y->file);
}

void tsri_safetensors_sort(tsri_safetensors *st, int (*chosen)(void *context, const char *name),
                           void *context, int *dropped_out)
{
    int kept = 0;

    *dropped_out = 0;
    qsort(st->tensors, (size_t)st->tensor_count, sizeof(*st->tensors), compare_tensors);
    for (int i = 0; i < st->tensor_count; i++) {
        tsri_safetensors_tensor *t = &st->tensors[i];
        tsri_safetensors_tensor *last = kept > 0 ? &st->tensors[kept - 1] : NULL;

        if (last == NULL || strcmp(last->name, t->name) != 0) {
            st->tensors[kept] = *t;
            kept++;
            continue;
        }
        const int file = chosen != NULL ? chosen(context, t->name) : -1;

        if (file == t->file) {
            const tsri_safetensors_tensor other = *last;

            *last = *t;
            *t = other;
        }
        if (file != last->file) {
            last->twin = t->file;
        }
        tsri_free(&t->name);
        ++*dropped_out;
    }
    st->tensor_count = kept;
}

static tsr_status open_path(tsri_safetensors *st, const char *path)
{
    struct stat info;
    int dropped = 0;

    if (stat(path, &info) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (S_ISDIR(info.st_mode)) {
        TSR_TRY(tsri_safetensors_add_folder(st, path));
        return TSR_OK;
    }
    (void)snprintf(st->source, sizeof(st->source), "%.200s", path);
    TSR_TRY(tsri_safetensors_add_file(st, path));
    tsri_safetensors_sort(st, NULL, NULL, &dropped);
    return TSR_OK;
}

tsr_status tsri_safetensors_open(const char *path, tsri_safetensors **out)
{
    tsri_safetensors *st = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*st), &st));
    TSR_TRY_GOTO(status, tsri_strdup(path, &st->path), close);
    TSR_TRY_GOTO(status, tsri_alloc(TSRI_SAFETENSORS_CHUNK_BYTES, 1, &st->chunk), close);
    TSR_TRY_GOTO(status, open_path(st, path), close);
    *out = st;
    return TSR_OK;
close:
    tsri_safetensors_close(&st);
    return status;
}

void tsri_safetensors_close(tsri_safetensors **pointer)
{
    tsri_safetensors *st = *pointer;

    *pointer = NULL;
    if (st == NULL) {
        return;
    }
    for (int i = 0; i < st->shard_count; i++) {
        if (st->shards[i].fd >= 0) {
            (void)close(st->shards[i].fd);
        }
        tsri_free(&st->shards[i].path);
    }
    for (int i = 0; i < st->tensor_count; i++) {
        tsri_free(&st->tensors[i].name);
    }
    tsri_free(&st->path);
    tsri_free(&st->shards);
    tsri_free(&st->tensors);
    tsri_free(&st->chunk);
    tsri_free(&st);
}

const char *tsri_safetensors_path(const tsri_safetensors *st)
{
    return st->path;
}

int tsri_safetensors_count(const tsri_safetensors *st)
{
    return st->tensor_count;
}

const tsri_safetensors_tensor *tsri_safetensors_at(const tsri_safetensors *st, int index)
{
    return &st->tensors[index];
}

const char *tsri_safetensors_source(const tsri_safetensors *st)
{
    return st->source;
}

const char *tsri_safetensors_file(const tsri_safetensors *st, const tsri_safetensors_tensor *t)
{
    return st->shards[t->file].path;
}

const char *tsri_safetensors_shape(const tsri_safetensors_tensor *t, char *buffer, size_t size)
{
    if (t->ndim <= TSRI_SAFETENSORS_MAX_DIMS) {
        return tsri_format_shape(t->shape, t->ndim, buffer, size);
    }
    (void)snprintf(buffer, size, "of %d dims", t->ndim);
    return buffer;
}

static int compare_name(const void *key, const void *item)
{
    const char *name = key;
    const tsri_safetensors_tensor *t = item;

    return strcmp(name, t->name);
}

const tsri_safetensors_tensor *tsri_safetensors_find(const tsri_safetensors *st, const char *name)
{
    return st->tensor_count == 0 ? NULL
                                 : bsearch(name, st->tensors, (size_t)st->tensor_count,
                                           sizeof(*st->tensors), compare_name);
}
