/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file file.c
 * Small files, whole: the length is found by reading, since pipes and /proc tell none. Files are
 * opened without blocking, so that a pipe nobody writes to costs a time limit and not for ever.
 */
#include "base/file.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FIRST_BYTES = 1 << 16,
    MOST_BYTES = 1 << 28,
    PATIENCE_MS = 10000
};

/* Up to size bytes once there are some; *got 0 at the end. */
static tsr_status read_some(int fd, const char *path, void *out, size_t size, size_t *got)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    ssize_t n = -1;

    do {
        n = poll(&ready, 1, PATIENCE_MS);
        if (n == 0) {
            return TSR_RAISE(TSR_ERR_IO, "%s: nothing came for %d s: a pipe that nobody writes to?",
                             path, PATIENCE_MS / 1000);
        }
        if (n > 0) {
            n = read(fd, out, size);
        }
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n < 0) {
        return TSR_RAISE(TSR_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    }
    *got = (size_t)n;
    return TSR_OK;
}

static tsr_status read_all(int fd, const char *path, char **out, size_t *bytes_out)
{
    char *data = NULL;
    int capacity = 0;
    size_t bytes = 0;
    size_t got = 0;
    tsr_status status = TSR_OK;

    do {
        if (bytes >= MOST_BYTES) {
            status = TSR_RAISE(TSR_ERR_IO, "%s: more than %d bytes", path, MOST_BYTES);
            goto free_data;
        }
        TSR_TRY_GOTO(status, tsri_grow(&data, &capacity, (int)bytes + FIRST_BYTES, 1), free_data);
        TSR_TRY_GOTO(status, read_some(fd, path, data + bytes, (size_t)capacity - bytes - 1, &got),
                     free_data);
        bytes += got;
    } while (got > 0);
    data[bytes] = '\0';
    *out = data;
    *bytes_out = bytes;
    return TSR_OK;
free_data:
    tsri_free(&data);
    return status;
}

static tsr_status open_and_read(const char *path, bool plain, char **out, size_t *bytes_out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    tsr_status status = TSR_OK;

    if (fd < 0 || fstat(fd, &info) != 0) {
        status = TSR_RAISE(TSR_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    } else if (plain && S_ISFIFO(info.st_mode)) {
        status = TSR_RAISE(TSR_ERR_IO,
                           "%s is a pipe; it is read more than once, wants a plain file", path);
    } else {
        status = read_all(fd, path, out, bytes_out);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    TSR_TRY(status);
    return TSR_OK;
}

tsr_status tsri_file_read(const char *path, char **out, size_t *bytes_out)
{
    TSR_TRY(open_and_read(path, false, out, bytes_out));
    return TSR_OK;
}

tsr_status tsri_file_read_plain(const char *path, char **out, size_t *bytes_out)
{
    TSR_TRY(open_and_read(path, true, out, bytes_out));
    return TSR_OK;
}

tsr_status tsri_file_create(const char *path, FILE **out)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;

    if (file == NULL) {
        const int reason = errno;

        if (fd >= 0) {
            (void)close(fd);
        }
        return TSR_RAISE(TSR_ERR_IO, "%s: cannot create: %s", path, strerror(reason));
    }
    *out = file;
    return TSR_OK;
}

tsr_status tsri_file_write(const char *path, const char *text, size_t bytes)
{
    char neighbour[PATH_MAX];
    FILE *file = NULL;
    int reason = 0;

    if (snprintf(neighbour, sizeof(neighbour), "%s.tmp-%ld", path, (long)getpid()) >=
        (int)sizeof(neighbour)) {
        return TSR_RAISE(TSR_ERR_IO, "path of %zu characters is too long", strlen(path));
    }
    (void)unlink(neighbour); /* of a process that died, and had the same number */
    TSR_TRY(tsri_file_create(neighbour, &file));
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
