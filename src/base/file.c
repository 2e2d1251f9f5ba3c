/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file file.c
 * Small files, whole: the length is found by reading, since pipes and /proc tell none.
 */
#include "base/file.h"

#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

enum {
    FIRST_BYTES = 1 << 16
};

static tsr_status read_all(FILE *file, const char *path, char **out, size_t *bytes_out)
{
    char *data = NULL;
    int capacity = 0;
    size_t bytes = 0;
    tsr_status status = TSR_OK;

    do {
        if (bytes + 1 >= INT_MAX / 2) {
            status = TSR_RAISE(TSR_ERR_IO, "%s: more than %d bytes", path, INT_MAX / 2);
            goto free_data;
        }
        TSR_TRY_GOTO(status, tsri_grow(&data, &capacity, (int)bytes + FIRST_BYTES, 1), free_data);
        bytes += fread(data + bytes, 1, (size_t)capacity - bytes - 1, file);
    } while (!feof(file) && !ferror(file));
    if (ferror(file)) {
        status = TSR_RAISE(TSR_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
        goto free_data;
    }
    data[bytes] = '\0';
    *out = data;
    *bytes_out = bytes;
    return TSR_OK;
free_data:
    tsri_free(&data);
    return status;
}

tsr_status tsri_file_read(const char *path, char **out, size_t *bytes_out)
{
    FILE *file = fopen(path, "rb");
    tsr_status status = TSR_OK;

    if (file == NULL) {
        return TSR_RAISE(TSR_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    }
    status = read_all(file, path, out, bytes_out);
    (void)fclose(file);
    TSR_TRY(status);
    return TSR_OK;
}

tsr_status tsri_file_write(const char *path, const char *text, size_t bytes)
{
    char neighbour[PATH_MAX];
    FILE *file = NULL;
    int reason = 0;

    if (snprintf(neighbour, sizeof(neighbour), "%s.tmp", path) >= (int)sizeof(neighbour)) {
        return TSR_RAISE(TSR_ERR_IO, "path of %zu characters is too long", strlen(path));
    }
    file = fopen(neighbour, "wb");
    if (file == NULL) {
        return TSR_RAISE(TSR_ERR_IO, "%s: cannot create: %s", neighbour, strerror(errno));
    }
    if (fwrite(text, 1, bytes, file) != bytes || fflush(file) != 0 || fsync(fileno(file)) != 0) {
        reason = errno;
    }
    if (fclose(file) != 0 && reason == 0) {
        reason = errno;
    }
    if (reason == 0 && rename(neighbour, path) != 0) {
        reason = errno;
    }
    if (reason != 0) {
        (void)unlink(neighbour);
        return TSR_RAISE(TSR_ERR_IO, "%s: cannot write: %s", path, strerror(reason));
    }
    return TSR_OK;
}
