/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The folder of a run: what is there stays, and is not followed elsewhere. */
#include "base/base.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/tsr_test.h"
#include "train/run_folder.h"

static const char *const names[] = {"config.yaml", "plan.txt", "metrics.jsonl", "trace-rank0.json"};

/* A folder of its own for each case, made anew. */
static void make_root(char *root)
{
    char command[TSRI_RUN_PATH_BYTES + 16];

    (void)snprintf(root, TSRI_RUN_PATH_BYTES - 64, "%s", tsr_test_scratch_path("run_folder"));
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", root);
    CHECK_EQ(system(command), 0); /* NOLINT(cert-env33-c): a folder of this test's name */
    CHECK_EQ(mkdir(root, 0777), 0);
}

static void check_opens(const char *dir, const char *end)
{
    tsri_run_folder folder;
    struct stat info;
    char path[TSRI_RUN_PATH_BYTES];
    size_t length = 0;

    REQUIRE_OK(tsri_run_folder_open(dir, &folder));
    length = strlen(folder.dir);
    if (length < strlen(end) || strcmp(folder.dir + length - strlen(end), end) != 0) {
        CHECK_STR(folder.dir, end);
    }
    REQUIRE_OK(tsri_run_folder_path(&folder, "metrics.jsonl", path));
    CHECK_EQ(lstat(path, &info), 0);
    CHECK(S_ISREG(info.st_mode));
    tsri_run_folder_close(&folder);
}

static void any_file_makes_it_another(void)
{
    char root[TSRI_RUN_PATH_BYTES];

    for (int i = 0; i < 4; i++) {
        char path[TSRI_RUN_PATH_BYTES];
        struct stat info;

        make_root(root);
        (void)snprintf(path, sizeof(path), "%.3900s/%s", root, names[i]);
        CHECK_OK(tsri_file_write(path, "mine", 4));
        check_opens(root, "run_folder-2");
        CHECK_EQ(stat(path, &info), 0);
        CHECK_EQ(info.st_size, 4);
        CHECK_EQ(unlink(path), 0);
        CHECK_EQ(symlink("/nowhere/at/all", path), 0);
        check_opens(root, "run_folder-3");
        (void)snprintf(path, sizeof(path), "rm -rf '%.3900s-2' '%.100s-3'", root, root);
        CHECK_EQ(system(path), 0); /* NOLINT(cert-env33-c) */
    }
}

static void a_dot_has_a_name(void)
{
    char root[TSRI_RUN_PATH_BYTES];
    char path[TSRI_RUN_PATH_BYTES];

    make_root(root);
    (void)snprintf(path, sizeof(path), "%.3900s/sub/", root);
    check_opens(path, "/sub");
    check_opens(path, "/sub-2");
    (void)snprintf(path, sizeof(path), "%.3900s/sub/.", root);
    check_opens(path, "/sub-3");
    (void)snprintf(path, sizeof(path), "%.3900s/sub-2/..", root);
    check_opens(path, "/run_folder");
}

static void files_are_written_once(void)
{
    char root[TSRI_RUN_PATH_BYTES];
    char path[TSRI_RUN_PATH_BYTES];
    tsri_run_folder folder;
    tsri_text text = {0};

    make_root(root);
    REQUIRE_OK(tsri_run_folder_open(root, &folder));
    tsri_text_add(&text, "a: 1\n");
    CHECK_OK(tsri_run_folder_write(&folder, "config.yaml", &text));
    CHECK_STATUS(TSR_ERR_IO, tsri_run_folder_write(&folder, "config.yaml", &text));
    (void)snprintf(path, sizeof(path), "%.3900s/plan.txt", root);
    CHECK_EQ(symlink("elsewhere", path), 0);
    CHECK_STATUS(TSR_ERR_IO, tsri_run_folder_write(&folder, "plan.txt", &text));
    (void)snprintf(path, sizeof(path), "%.3900s/elsewhere", root);
    CHECK(access(path, F_OK) != 0);
    tsri_run_folder_close(&folder);
    tsri_text_free(&text);
}

/* Cleared away under the run: rows go on in a new file, and that is told. */
static void deleted_metrics_are_renewed(void)
{
    char root[TSRI_RUN_PATH_BYTES];
    char path[TSRI_RUN_PATH_BYTES];
    tsri_run_folder folder;
    tsri_text line = {0};
    struct stat info;
    bool renewed = true;

    make_root(root);
    (void)snprintf(path, sizeof(path), "%.3900s/run", root);
    REQUIRE_OK(tsri_run_folder_open(path, &folder));
    REQUIRE_OK(tsri_run_folder_path(&folder, "metrics.jsonl", path));
    tsri_text_add(&line, "{}\n");
    CHECK_OK(tsri_run_folder_add_row(&folder, &line, &renewed));
    CHECK(!renewed);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(rmdir(folder.dir), 0);
    CHECK_OK(tsri_run_folder_add_row(&folder, &line, &renewed));
    CHECK(renewed);
    CHECK_OK(tsri_run_folder_add_row(&folder, &line, &renewed));
    CHECK(!renewed);
    CHECK_EQ(stat(path, &info), 0);
    CHECK_EQ(info.st_size, 6);
    tsri_text_free(&line);
    tsri_run_folder_close(&folder);
}

/* Before any rank starts. */
static void what_cannot_be_written_is_refused(void)
{
    char root[TSRI_RUN_PATH_BYTES];
    char path[TSRI_RUN_PATH_BYTES];

    make_root(root);
    (void)snprintf(path, sizeof(path), "%.3900s/new/deep/er", root);
    CHECK_OK(tsri_run_folder_check(path));
    CHECK_OK(tsri_run_folder_check("new"));
    (void)snprintf(path, sizeof(path), "%.3900s/file", root);
    CHECK_OK(tsri_file_write(path, "x", 1));
    (void)snprintf(path, sizeof(path), "%.3900s/file/run", root);
    CHECK_STATUS(TSR_ERR_IO, tsri_run_folder_check(path));
    if (geteuid() != 0) { /* root may write anywhere */
        CHECK_EQ(chmod(root, 0555), 0);
        (void)snprintf(path, sizeof(path), "%.3900s/run", root);
        CHECK_STATUS(TSR_ERR_IO, tsri_run_folder_check(path));
        CHECK_EQ(chmod(root, 0777), 0);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"any_file_makes_it_another", any_file_makes_it_another},
    {"a_dot_has_a_name", a_dot_has_a_name},
    {"files_are_written_once", files_are_written_once},
    {"deleted_metrics_are_renewed", deleted_metrics_are_renewed},
    {"what_cannot_be_written_is_refused", what_cannot_be_written_is_refused},
    {NULL, NULL},
};
