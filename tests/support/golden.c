/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file golden.c
 * A file is read whole; a safetensors header is just the JSON part of it, and tensors are borrowed
 * from the bytes that follow. The bytes are copied to an aligned buffer, since a header may have
 * any length.
 */
#include "golden.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef TSR_GOLDEN_DIR
#    define TSR_GOLDEN_DIR "tests/golden"
#endif

struct tsr_golden {
    json_t *json;
    unsigned char *data; /* tensors; NULL for a JSON file */
    size_t data_bytes;
};

static unsigned char *read_file(const char *path, size_t *bytes_out)
{
    char full[4096];
    (void)snprintf(full, sizeof full, "%s%s", path[0] == '/' ? "" : TSR_GOLDEN_DIR "/", path);
    FILE *file = fopen(full, "rb");
    if (file == NULL) {
        (void)fprintf(stderr, "golden %s: cannot open\n", full);
        return NULL;
    }
    unsigned char *bytes = NULL;
    long size = -1;
    if (fseek(file, 0, SEEK_END) == 0) {
        size = ftell(file);
    }
    if (size >= 0 && fseek(file, 0, SEEK_SET) == 0) {
        bytes = malloc((size_t)size + 1);
    }
    if (bytes != NULL && fread(bytes, 1, (size_t)size, file) != (size_t)size) {
        free(bytes);
        bytes = NULL;
    }
    (void)fclose(file);
    *bytes_out = bytes != NULL ? (size_t)size : 0;
    return bytes;
}

/* Split bytes into header and tensors; false if it is no safetensors file. */
static bool parse_tensors(tsr_golden *golden, const unsigned char *bytes, size_t size)
{
    uint64_t header = 0;
    if (size < 8) {
        return false;
    }
    memcpy(&header, bytes, sizeof header);
    if (header > size - 8) {
        return false;
    }
    golden->json = json_loadb((const char *)bytes + 8, (size_t)header, 0, NULL);
    golden->data_bytes = size - 8 - (size_t)header;
    golden->data = malloc(golden->data_bytes + 1);
    if (golden->json == NULL || golden->data == NULL) {
        return false;
    }
    memcpy(golden->data, bytes + 8 + header, golden->data_bytes);
    return true;
}

tsr_golden *tsr_golden_open(const char *path)
{
    size_t size = 0;
    unsigned char *bytes = read_file(path, &size);
    tsr_golden *golden = calloc(1, sizeof *golden);
    bool good = bytes != NULL && golden != NULL;
    size_t length = strlen(path);
    if (good && length > 5 && strcmp(path + length - 5, ".json") == 0) {
        golden->json = json_loadb((const char *)bytes, size, 0, NULL);
        good = golden->json != NULL;
    } else if (good) {
        good = parse_tensors(golden, bytes, size);
    }
    free(bytes);
    if (!good) {
        (void)fprintf(stderr, "golden %s: cannot read\n", path);
        tsr_golden_close(golden);
        return NULL;
    }
    return golden;
}

void tsr_golden_close(tsr_golden *golden)
{
    if (golden != NULL) {
        json_decref(golden->json);
        free(golden->data);
        free(golden);
    }
}

static tsr_dtype dtype_of(const char *name)
{
    static const struct {
        const char *name;
        tsr_dtype dtype;
    } map[] = {{"F32", TSR_F32}, {"BF16", TSR_BF16}, {"F16", TSR_F16}, {"F64", TSR_F64},
               {"I32", TSR_I32}, {"I64", TSR_I64},   {"U8", TSR_U8}};
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++) {
        if (name != NULL && strcmp(name, map[i].name) == 0) {
            return map[i].dtype;
        }
    }
    return TSR_DTYPE_DEFAULT;
}

const void *tsr_golden_tensor(const tsr_golden *golden, const char *name, tsr_dtype *dtype,
                              int64_t *shape, int *ndim)
{
    const json_t *entry = json_object_get(golden->json, name);
    const json_t *dims = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    int count = (int)json_array_size(dims);
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    if (golden->data == NULL || entry == NULL || count > TSR_GOLDEN_MAX_DIMS || begin < 0 ||
        end < begin || (size_t)end > golden->data_bytes) {
        return NULL;
    }
    for (int d = 0; shape != NULL && d < count; d++) {
        shape[d] = json_integer_value(json_array_get(dims, (size_t)d));
    }
    if (ndim != NULL) {
        *ndim = count;
    }
    if (dtype != NULL) {
        *dtype = dtype_of(json_string_value(json_object_get(entry, "dtype")));
    }
    return golden->data + begin;
}

int64_t tsr_golden_count(const tsr_golden *golden, const char *name)
{
    int64_t shape[TSR_GOLDEN_MAX_DIMS];
    int ndim = 0;
    if (tsr_golden_tensor(golden, name, NULL, shape, &ndim) == NULL) {
        return -1;
    }
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) {
        count *= shape[d];
    }
    return count;
}

static const json_t *find(const tsr_golden *golden, const char *path)
{
    const json_t *node = golden->json;
    while (node != NULL && *path != '\0') {
        char key[256];
        size_t length = strcspn(path, "/");
        if (length >= sizeof key) {
            return NULL;
        }
        memcpy(key, path, length);
        key[length] = '\0';
        if (json_is_array(node)) {
            node = json_array_get(node, (size_t)strtoul(key, NULL, 10));
        } else {
            node = json_object_get(node, key);
        }
        path += length;
        path += *path == '/' ? 1 : 0;
    }
    return node;
}

double tsr_golden_number(const tsr_golden *golden, const char *path)
{
    const json_t *node = find(golden, path);
    if (json_is_boolean(node)) {
        return json_is_true(node) ? 1.0 : 0.0;
    }
    return json_is_number(node) ? json_number_value(node) : (double)NAN;
}

const char *tsr_golden_text(const tsr_golden *golden, const char *path)
{
    return json_string_value(find(golden, path));
}

int tsr_golden_length(const tsr_golden *golden, const char *path)
{
    const json_t *node = find(golden, path);
    if (json_is_array(node)) {
        return (int)json_array_size(node);
    }
    return json_is_object(node) ? (int)json_object_size(node) : -1;
}
