/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The folder of a run. Files are created exclusively, metrics.jsonl first, so that of two jobs that
 * start at once each gets a folder of its own, and nothing that is there is written over, nor what
 * a link leads to. */
#include "train/run_folder.h"

#include "base/base.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST_RUNS = 100000,
    MARGIN_BYTES = 32 /* for a number, and the name of a file */
};

/* Of the folders in which dir lies, and dir itself: the nearest that there is. */
static tsr_status check_nearest(const char *dir)
{
    char path[TSRI_RUN_PATH_BYTES];
    struct stat info;
    char *end = NULL;

    (void)snprintf(path, sizeof(path), "%s", dir);
    while (stat(path, &info) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        end = strrchr(path, '/');
        if (end == NULL) {
            (void)snprintf(path, sizeof(path), ".");
        } else {
            end[end == path ? 1 : 0] = '\0';
        }
    }
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        return TSR_RAISE(TSR_ERR_IO, "run.dir %s: %s is a file, wants a folder", dir, path);
    }
    if (faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "run.dir %s: cannot write in %s: %s", dir, path,
                         strerror(errno));
    }
    return TSR_OK;
}

tsr_status tsri_run_folder_check(const char *dir)
{
    struct stat info;

    if (strlen(dir) + MARGIN_BYTES > TSRI_RUN_PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "run.dir has %zu characters, wants at most %d",
                         strlen(dir), TSRI_RUN_PATH_BYTES - MARGIN_BYTES);
    }
    if (stat(dir, &info) == 0 && !S_ISDIR(info.st_mode)) {
        return TSR_RAISE(TSR_ERR_IO, "run.dir %s is a file, wants a folder", dir);
    }
    TSR_TRY(check_nearest(dir));
    return TSR_OK;
}

/* mkdir -p */
static tsr_status make_folders(const char *dir)
{
    char path[TSRI_RUN_PATH_BYTES];
    const size_t length = strlen(dir);

    (void)snprintf(path, sizeof(path), "%s", dir);
    for (size_t i = 1; i <= length; i++) {
        if (dir[i] != '/' && dir[i] != '\0') {
            continue;
        }
        path[i] = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            return TSR_RAISE(TSR_ERR_IO, "cannot make folder %s: %s", path, strerror(errno));
        }
        path[i] = dir[i];
    }
    return TSR_OK;
}

tsr_status tsri_run_folder_path(const tsri_run_folder *folder, const char *name, char *text)
{
    const int length = snprintf(text, TSRI_RUN_PATH_BYTES, "%s/%s", folder->dir, name);

    if (length < 0 || length >= TSRI_RUN_PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "path of %s in the run's folder is too long", name);
    }
    return TSR_OK;
}

/* Is there anything of that name, be it a link that leads nowhere? */
static bool exists(const char *path)
{
    struct stat info;

    return lstat(path, &info) == 0;
}

static tsr_status holds_run(const tsri_run_folder *folder, bool *out)
{
    static const char *const names[] = {"config.yaml", "plan.txt", "metrics.jsonl",
                                        "trace-rank0.json"};
    char path[TSRI_RUN_PATH_BYTES];

    *out = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        TSR_TRY(tsri_run_folder_path(folder, names[i], path));
        *out = *out || exists(path);
    }
    return TSR_OK;
}

/* dir without slashes at its end. What ends in a dot has a name of its own, which -2 can follow. */
static tsr_status name_folder(const char *dir, char *out)
{
    size_t length = strlen(dir);
    const char *last = NULL;
    char whole[PATH_MAX];

    while (length > 1 && dir[length - 1] == '/') {
        length--;
    }
    (void)snprintf(out, TSRI_RUN_PATH_BYTES, "%.*s", (int)length, dir);
    last = strrchr(out, '/') != NULL ? strrchr(out, '/') + 1 : out;
    if (strcmp(last, ".") != 0 && strcmp(last, "..") != 0) {
        return TSR_OK;
    }
    if (realpath(out, whole) == NULL) {
        return TSR_RAISE(TSR_ERR_IO, "run.dir %s: %s", dir, strerror(errno));
    }
    TSR_TRY(tsri_run_folder_check(whole));
    (void)snprintf(out, TSRI_RUN_PATH_BYTES, "%s", whole);
    return TSR_OK;
}

tsr_status tsri_run_folder_open(const char *dir, tsri_run_folder *out)
{
    char first[TSRI_RUN_PATH_BYTES];
    char path[TSRI_RUN_PATH_BYTES];
    bool taken = false;

    TSR_TRY(tsri_run_folder_check(dir));
    memset(out, 0, sizeof(*out));
    TSR_TRY(name_folder(dir, first));
    for (int i = 1; i < MOST_RUNS; i++) {
        if (i == 1) {
            (void)snprintf(out->dir, sizeof(out->dir), "%s", first);
        } else {
            (void)snprintf(out->dir, sizeof(out->dir), "%.*s-%d",
                           TSRI_RUN_PATH_BYTES - MARGIN_BYTES, first, i);
        }
        out->renamed = i > 1;
        TSR_TRY(make_folders(out->dir));
        TSR_TRY(holds_run(out, &taken));
        if (taken) {
            continue;
        }
        TSR_TRY(tsri_run_folder_path(out, "metrics.jsonl", path));
        const tsr_status status = tsri_file_create(path, &out->metrics);

        if (status == TSR_OK) {
            return TSR_OK;
        }
        if (!exists(path)) {
            TSR_TRY(status);
        }
        tsr_error_clear(); /* another job was faster */
    }
    return TSR_RAISE(TSR_ERR_IO, "run.dir %s: %d runs have that name already", dir, MOST_RUNS);
}

void tsri_run_folder_close(tsri_run_folder *folder)
{
    if (folder->metrics != NULL) {
        (void)fclose(folder->metrics);
    }
    folder->metrics = NULL;
}

tsr_status tsri_run_folder_create(const tsri_run_folder *folder, const char *name, FILE **out)
{
    char path[TSRI_RUN_PATH_BYTES];

    TSR_TRY(tsri_run_folder_path(folder, name, path));
    TSR_TRY(tsri_file_create(path, out));
    return TSR_OK;
}

tsr_status tsri_run_folder_finish(const tsri_run_folder *folder, const char *name, FILE *file)
{
    const bool written = ferror(file) == 0 && fflush(file) == 0;
    const int reason = errno;

    if (fclose(file) != 0 || !written) {
        return TSR_RAISE(TSR_ERR_IO, "cannot write %s/%s: %s", folder->dir, name,
                         strerror(written ? errno : reason));
    }
    return TSR_OK;
}

tsr_status tsri_run_folder_write(const tsri_run_folder *folder, const char *name,
                                 const tsri_text *text)
{
    FILE *file = NULL;

    TSR_TRY(tsri_text_status(text));
    TSR_TRY(tsri_run_folder_create(folder, name, &file));
    (void)fwrite(text->data != NULL ? text->data : "", 1, (size_t)text->length, file);
    TSR_TRY(tsri_run_folder_finish(folder, name, file));
    return TSR_OK;
}

/* Somebody cleared the folder away: rows go on where they are looked for. */
static tsr_status renew(tsri_run_folder *folder)
{
    FILE *file = NULL;

    TSR_TRY(make_folders(folder->dir));
    TSR_TRY(tsri_run_folder_create(folder, "metrics.jsonl", &file));
    (void)fclose(folder->metrics);
    folder->metrics = file;
    return TSR_OK;
}

tsr_status tsri_run_folder_add_row(tsri_run_folder *folder, const tsri_text *line,
                                   bool *renewed_out)
{
    struct stat info;

    TSR_TRY(tsri_text_status(line));
    *renewed_out = fstat(fileno(folder->metrics), &info) == 0 && info.st_nlink == 0;
    if (*renewed_out) {
        TSR_TRY(renew(folder));
    }
    if (fputs(line->data, folder->metrics) < 0 || fflush(folder->metrics) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot write %s/metrics.jsonl: %s", folder->dir,
                         strerror(errno));
    }
    return TSR_OK;
}
