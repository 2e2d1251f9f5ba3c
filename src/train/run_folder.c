/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The folder of a run. metrics.jsonl is created exclusively, so that of two jobs that start at once
 * each gets a folder of its own. */
#include "train/run_folder.h"

#include "base/base.h"
#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum {
    MOST_RUNS = 100000
};

tsr_status tsri_run_folder_check(const char *dir)
{
    struct stat info;

    if (strlen(dir) + 32 > TSRI_RUN_PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "run.dir has %zu characters, wants at most %d",
                         strlen(dir), TSRI_RUN_PATH_BYTES - 32);
    }
    if (stat(dir, &info) == 0 && !S_ISDIR(info.st_mode)) {
        return TSR_RAISE(TSR_ERR_IO, "run.dir %s is a file, wants a folder", dir);
    }
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

tsr_status tsri_run_folder_open(const char *dir, tsri_run_folder *out)
{
    char path[TSRI_RUN_PATH_BYTES];
    size_t length = strlen(dir);

    TSR_TRY(tsri_run_folder_check(dir));
    while (length > 1 && dir[length - 1] == '/') {
        length--;
    }
    memset(out, 0, sizeof(*out));
    for (int i = 1; i < MOST_RUNS; i++) {
        if (i == 1) {
            (void)snprintf(out->dir, sizeof(out->dir), "%.*s", (int)length, dir);
        } else {
            (void)snprintf(out->dir, sizeof(out->dir), "%.*s-%d", (int)length, dir, i);
        }
        out->renamed = i > 1;
        TSR_TRY(make_folders(out->dir));
        TSR_TRY(tsri_run_folder_path(out, "metrics.jsonl", path));
        out->metrics = fopen(path, "wxe");
        if (out->metrics != NULL) {
            return TSR_OK;
        }
        if (errno != EEXIST) {
            return TSR_RAISE(TSR_ERR_IO, "cannot write %s: %s", path, strerror(errno));
        }
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

tsr_status tsri_run_folder_write(const tsri_run_folder *folder, const char *name,
                                 const tsri_text *text)
{
    char path[TSRI_RUN_PATH_BYTES];

    TSR_TRY(tsri_text_status(text));
    TSR_TRY(tsri_run_folder_path(folder, name, path));
    TSR_TRY(tsri_file_write(path, text->data != NULL ? text->data : "", (size_t)text->length));
    return TSR_OK;
}

tsr_status tsri_run_folder_add_row(tsri_run_folder *folder, const tsri_text *line)
{
    TSR_TRY(tsri_text_status(line));
    if (fputs(line->data, folder->metrics) < 0 || fflush(folder->metrics) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "cannot write %s/metrics.jsonl: %s", folder->dir,
                         strerror(errno));
    }
    return TSR_OK;
}
