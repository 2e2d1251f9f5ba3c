/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reading safetensors. The header is trusted only after every rule of the format has been checked:
 * size, types, shapes against byte ranges, and that ranges tile the data without hole or overlap.
 */
#include "checkpoint/safetensors.h"

#include "base/base.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PREFIX_BYTES = 8,
    MAX_HEADER_BYTES = 100000000,
    PATH_BYTES = 4096,
    CHUNK_BYTES = 1 << 18
};

typedef struct shard {
    char *path;
    int fd;
} shard;

struct tsri_safetensors {
    char *path;
    shard *shards;
    int shard_count, shard_capacity;
    tsri_safetensors_tensor *tensors; /* sorted by name */
    int tensor_count, tensor_capacity;
    void *chunk; /* CHUNK_BYTES for conversion */
};

static const struct {
    const char *name;
    tsr_dtype dtype;
} dtypes[] = {{"F32", TSR_F32}, {"BF16", TSR_BF16}, {"F16", TSR_F16}, {"F64", TSR_F64},
              {"I32", TSR_I32}, {"I64", TSR_I64},   {"U8", TSR_U8}};

static tsr_status read_exact(const shard *s, int64_t offset, void *out, size_t bytes)
{
    char *to = out;

    while (bytes > 0) {
        const ssize_t n = pread(s->fd, to, bytes, (off_t)offset);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return TSR_RAISE(TSR_ERR_IO, "%s: %s", s->path, strerror(errno));
        }
        if (n == 0) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: ends %zu bytes early at byte %lld", s->path,
                             bytes, (long long)offset);
        }
        to += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return TSR_OK;
}

static tsr_status parse_dtype(const char *file, const char *tensor, const json_t *entry,
                              tsr_dtype *out)
{
    const char *name = NULL;

    TSR_TRY(tsri_json_string(entry, "dtype", file, &name));
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = dtypes[i].dtype;
            return TSR_OK;
        }
    }
    return TSR_RAISE(TSR_ERR_FORMAT,
                     "%s: tensor %s has dtype %s, wants F32, BF16, F16, F64, I32, I64 or U8", file,
                     tensor, name);
}

static tsr_status parse_shape(const char *file, const json_t *entry, tsri_safetensors_tensor *t)
{
    json_t *shape = NULL;

    TSR_TRY(tsri_json_array(entry, "shape", file, &shape));
    if (json_array_size(shape) > TSRI_SAFETENSORS_MAX_DIMS) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s has %zu dims, at most %d", file, t->name,
                         json_array_size(shape), TSRI_SAFETENSORS_MAX_DIMS);
    }
    t->ndim = (int)json_array_size(shape);
    t->count = 1;
    for (int i = 0; i < t->ndim; i++) {
        const json_t *extent = json_array_get(shape, (size_t)i);

        t->shape[i] = json_is_integer(extent) ? json_integer_value(extent) : -1;
        if (t->shape[i] < 0 || __builtin_mul_overflow(t->count, t->shape[i], &t->count)) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s: extent %d is not a usable size", file,
                             t->name, i);
        }
    }
    return TSR_OK;
}

/* Checks the byte range of t against its shape and the data's size; leaves it relative to data. */
static tsr_status parse_range(const char *file, const json_t *entry, int64_t data_bytes,
                              tsri_safetensors_tensor *t, int64_t *end_out)
{
    json_t *offsets = NULL;
    int64_t bytes = 0;

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
    if (__builtin_mul_overflow(t->count, (int64_t)tsr_dtype_size(t->dtype), &bytes) ||
        bytes != *end_out - t->begin) {
        char shape[96];

        return TSR_RAISE(
            TSR_ERR_FORMAT, "%s: tensor %s of shape %s in %s wants %lld bytes, has %lld", file,
            t->name, tsri_format_shape(t->shape, t->ndim, shape, sizeof(shape)),
            tsr_dtype_name(t->dtype), (long long)bytes, (long long)(*end_out - t->begin));
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

    TSR_TRY(tsri_grow(&st->tensors, &st->tensor_capacity, st->tensor_count + 1, sizeof(*t)));
    t = &st->tensors[st->tensor_count];
    memset(t, 0, sizeof(*t));
    TSR_TRY(tsri_strdup(name, &t->name));
    st->tensor_count++;
    t->file = st->shard_count - 1;
    TSR_TRY(parse_dtype(file, name, entry, &t->dtype));
    TSR_TRY(parse_shape(file, entry, t));
    TSR_TRY(parse_range(file, entry, data_bytes, t, &out->end));
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
    const shard *s = &st->shards[st->shard_count - 1];
    unsigned char prefix[PREFIX_BYTES];
    uint64_t header_bytes = 0;
    char *text = NULL;
    json_t *header = NULL;
    tsr_status status = TSR_OK;

    if (file_bytes < PREFIX_BYTES) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: %lld bytes are no safetensors file", s->path,
                         (long long)file_bytes);
    }
    TSR_TRY(read_exact(s, 0, prefix, sizeof(prefix)));
    for (int i = PREFIX_BYTES - 1; i >= 0; i--) {
        header_bytes = header_bytes << 8 | prefix[i];
    }
    if (header_bytes > MAX_HEADER_BYTES || (int64_t)header_bytes > file_bytes - PREFIX_BYTES) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: header of %llu bytes in a file of %lld: truncated, or no safetensors",
                         s->path, (unsigned long long)header_bytes, (long long)file_bytes);
    }
    TSR_TRY(tsri_alloc((size_t)header_bytes + 1, 1, &text));
    TSR_TRY_GOTO(status, read_exact(s, PREFIX_BYTES, text, (size_t)header_bytes), free_text);
    TSR_TRY_GOTO(status, tsri_json_parse(text, (size_t)header_bytes, s->path, &header), free_text);
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

static tsr_status add_file(tsri_safetensors *st, const char *path)
{
    struct stat info;
    shard *s = NULL;

    TSR_TRY(tsri_grow(&st->shards, &st->shard_capacity, st->shard_count + 1, sizeof(*s)));
    s = &st->shards[st->shard_count];
    s->fd = -1;
    TSR_TRY(tsri_strdup(path, &s->path));
    st->shard_count++;
    s->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &info) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "%s: %s", path, strerror(errno));
    }
    TSR_TRY(read_header(st, (int64_t)info.st_size));
    return TSR_OK;
}

static int compare_tensors(const void *a, const void *b)
{
    const tsri_safetensors_tensor *x = a;
    const tsri_safetensors_tensor *y = b;

    return strcmp(x->name, y->name);
}

static tsr_status sort_tensors(tsri_safetensors *st)
{
    qsort(st->tensors, (size_t)st->tensor_count, sizeof(*st->tensors), compare_tensors);
    for (int i = 1; i < st->tensor_count; i++) {
        const tsri_safetensors_tensor *a = &st->tensors[i - 1];
        const tsri_safetensors_tensor *b = &st->tensors[i];

        if (strcmp(a->name, b->name) == 0) {
            return TSR_RAISE(TSR_ERR_FORMAT, "tensor %s is in %s and in %s", a->name,
                             st->shards[a->file].path, st->shards[b->file].path);
        }
    }
    return TSR_OK;
}

static int find_shard(const tsri_safetensors *st, const char *path)
{
    for (int i = 0; i < st->shard_count; i++) {
        if (strcmp(st->shards[i].path, path) == 0) {
            return i;
        }
    }
    return -1;
}

static tsr_status join_path(const char *folder, const char *name, char *out)
{
    const int n = snprintf(out, PATH_BYTES, "%s/%s", folder, name);

    if (n < 0 || n >= PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "path %s/%s is longer than %d", folder, name,
                         PATH_BYTES - 1);
    }
    return TSR_OK;
}

/* The files that the map names, each once. */
static tsr_status add_index_files(tsri_safetensors *st, const char *folder, const char *index_path,
                                  json_t *map)
{
    char path[PATH_BYTES];
    json_t *value = NULL;
    const char *name = NULL;

    json_object_foreach(map, name, value)
    {
        const char *file = json_string_value(value);

        if (file == NULL || file[0] == '\0' || strchr(file, '/') != NULL) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s wants the name of a file beside it",
                             index_path, name);
        }
        TSR_TRY(join_path(folder, file, path));
        if (find_shard(st, path) < 0) {
            TSR_TRY(add_file(st, path));
        }
    }
    return TSR_OK;
}

/* Every tensor of the map must be in the file that the map says. */
static tsr_status check_index(const tsri_safetensors *st, const char *folder,
                              const char *index_path, json_t *map)
{
    char path[PATH_BYTES];
    json_t *value = NULL;
    const char *name = NULL;

    json_object_foreach(map, name, value)
    {
        const tsri_safetensors_tensor *t = tsri_safetensors_find(st, name);

        TSR_TRY(join_path(folder, json_string_value(value), path));
        if (t == NULL || strcmp(st->shards[t->file].path, path) != 0) {
            return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s is not in %s", index_path, name, path);
        }
    }
    return TSR_OK;
}

static tsr_status add_index(tsri_safetensors *st, const char *folder, const char *index_path)
{
    json_t *index = NULL;
    json_t *map = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_json_load_file(index_path, &index));
    TSR_TRY_GOTO(status, tsri_json_object(index, "weight_map", index_path, &map), free_index);
    TSR_TRY_GOTO(status, add_index_files(st, folder, index_path, map), free_index);
    TSR_TRY_GOTO(status, sort_tensors(st), free_index);
    TSR_TRY_GOTO(status, check_index(st, folder, index_path, map), free_index);
free_index:
    json_decref(index);
    return status;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static tsr_status open_path(tsri_safetensors *st, const char *path)
{
    char file[PATH_BYTES];
    struct stat info;

    if (stat(path, &info) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        TSR_TRY(add_file(st, path));
        TSR_TRY(sort_tensors(st));
        return TSR_OK;
    }
    TSR_TRY(join_path(path, "model.safetensors.index.json", file));
    if (exists(file)) {
        TSR_TRY(add_index(st, path, file));
        return TSR_OK;
    }
    TSR_TRY(join_path(path, "model.safetensors", file));
    if (!exists(file)) {
        return TSR_RAISE(TSR_ERR_IO,
                         "%s: holds neither model.safetensors nor model.safetensors.index.json",
                         path);
    }
    TSR_TRY(add_file(st, file));
    TSR_TRY(sort_tensors(st));
    return TSR_OK;
}

tsr_status tsri_safetensors_open(const char *path, tsri_safetensors **out)
{
    tsri_safetensors *st = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*st), &st));
    TSR_TRY_GOTO(status, tsri_strdup(path, &st->path), close);
    TSR_TRY_GOTO(status, tsri_alloc(CHUNK_BYTES, 1, &st->chunk), close);
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

static float from_bits(uint32_t bits)
{
    float value = 0.0F;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
static float widen_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = h >> 10 & 0x1fu;
    const uint32_t fraction = h & 0x3ffu;

    if (exponent == 0x1f) {
        return from_bits(sign | 0x7f800000u | fraction << 13);
    }
    if (exponent == 0) {
        const float magnitude = (float)fraction * 0x1p-24F;

        return sign != 0 ? -magnitude : magnitude;
    }
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static void widen(const void *chunk, tsr_dtype dtype, int64_t count, float *out)
{
    const uint16_t *half = chunk;
    const double *wide = chunk;

    if (dtype == TSR_F32) {
        memcpy(out, chunk, (size_t)count * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        if (dtype == TSR_BF16) {
            out[i] = from_bits((uint32_t)half[i] << 16);
        } else if (dtype == TSR_F16) {
            out[i] = widen_f16(half[i]);
        } else {
            out[i] = (float)wide[i];
        }
    }
}

static tsr_status check_range(const tsri_safetensors *st, const tsri_safetensors_tensor *t,
                              int64_t first, int64_t count)
{
    if (first < 0 || count < 0 || first > t->count - count) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: elements %lld..%lld of tensor %s, which has %lld",
                         st->shards[t->file].path, (long long)first, (long long)(first + count),
                         t->name, (long long)t->count);
    }
    return TSR_OK;
}

tsr_status tsri_safetensors_check_float(const tsri_safetensors *st,
                                        const tsri_safetensors_tensor *t)
{
    if (t->dtype == TSR_I32 || t->dtype == TSR_I64 || t->dtype == TSR_U8) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s is %s, wants a floating-point type",
                         st->shards[t->file].path, t->name, tsr_dtype_name(t->dtype));
    }
    return TSR_OK;
}

tsr_status tsri_safetensors_read_f32(tsri_safetensors *st, const tsri_safetensors_tensor *t,
                                     int64_t first, int64_t count, float *out)
{
    const int64_t size = (int64_t)tsr_dtype_size(t->dtype);

    TSR_TRY(check_range(st, t, first, count));
    TSR_TRY(tsri_safetensors_check_float(st, t));
    while (count > 0) {
        const int64_t n = tsri_min64(count, CHUNK_BYTES / size);

        TSR_TRY(read_exact(&st->shards[t->file], t->begin + first * size, st->chunk,
                           (size_t)(n * size)));
        widen(st->chunk, t->dtype, n, out);
        out += n;
        first += n;
        count -= n;
    }
    return TSR_OK;
}

tsr_status tsri_safetensors_read_i32(tsri_safetensors *st, const tsri_safetensors_tensor *t,
                                     int64_t first, int64_t count, int32_t *out)
{
    const int64_t size = (int64_t)tsr_dtype_size(t->dtype);

    TSR_TRY(check_range(st, t, first, count));
    if (t->dtype != TSR_I32 && t->dtype != TSR_I64) {
        return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s is %s, wants I32 or I64",
                         st->shards[t->file].path, t->name, tsr_dtype_name(t->dtype));
    }
    while (count > 0) {
        const int64_t n = tsri_min64(count, CHUNK_BYTES / size);
        const int64_t *wide = st->chunk;

        TSR_TRY(read_exact(&st->shards[t->file], t->begin + first * size, st->chunk,
                           (size_t)(n * size)));
        if (t->dtype == TSR_I32) {
            memcpy(out, st->chunk, (size_t)n * sizeof(int32_t));
        }
        for (int64_t i = 0; t->dtype == TSR_I64 && i < n; i++) {
            if (wide[i] < INT32_MIN || wide[i] > INT32_MAX) {
                return TSR_RAISE(TSR_ERR_FORMAT, "%s: tensor %s holds %lld, beyond 32 bits",
                                 st->shards[t->file].path, t->name, (long long)wide[i]);
            }
            out[i] = (int32_t)wide[i];
        }
        out += n;
        first += n;
        count -= n;
    }
    return TSR_OK;
}
