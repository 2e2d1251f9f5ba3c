/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tree.c
 * Processes below this one. As a subreaper it inherits those whose parent ends, so that what
 * belongs to the job is what is below, whoever was killed.
 */
#include "cli_priv.h"

#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const double give_up_s = 5.0; /* a process in a system call that cannot be killed */

void tsri_tree_adopt(void)
{
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static bool is_below(const tsri_proc *procs, int count, pid_t root, int at)
{
    pid_t parent = procs[at].parent;

    for (int steps = 0; parent > 1 && steps < count; steps++) {
        int up = 0;

        if (parent == root) {
            return true;
        }
        while (up < count && procs[up].pid != parent) {
            up++;
        }
        if (up == count) {
            return false;
        }
        parent = procs[up].parent;
    }
    return false;
}

int tsri_tree_list(pid_t root, tsri_proc **procs, int *capacity)
{
    const int count = tsri_proc_list(procs, capacity);
    bool *below = NULL;
    int kept = 0;

    if (count <= 0 || tsri_alloc((size_t)count, sizeof(*below), &below) != TSR_OK) {
        tsr_error_clear();
        return 0;
    }
    for (int i = 0; i < count; i++) {
        below[i] = is_below(*procs, count, root, i);
    }
    for (int i = 0; i < count; i++) {
        if (below[i]) {
            (*procs)[kept++] = (*procs)[i];
        }
    }
    tsri_free(&below);
    return kept;
}

void tsri_tree_kill(void)
{
    const double begin = tsri_now_s();
    const struct timespec nap = {.tv_nsec = 20L * 1000 * 1000};
    tsri_proc *procs = NULL;
    int capacity = 0;
    int live = 1;

    while (live > 0 && tsri_now_s() - begin < give_up_s) {
        const int count = tsri_tree_list(getpid(), &procs, &capacity);

        live = 0;
        for (int i = 0; i < count; i++) {
            if (!tsri_proc_has_ended(&procs[i])) {
                (void)kill(procs[i].pid, SIGKILL);
                live++;
            }
        }
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        if (live > 0) {
            (void)nanosleep(&nap, NULL);
        }
    }
    tsri_free(&procs);
}

static void remove_entry(int folder, const char *name, int depth) // NOLINT(misc-no-recursion)
{
    DIR *inner = NULL;
    int fd = -1;

    if (unlinkat(folder, name, 0) == 0 || depth == 0) {
        return;
    }
    fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    inner = fd >= 0 ? fdopendir(fd) : NULL;
    if (inner == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    for (const struct dirent *entry = readdir(inner); entry != NULL; entry = readdir(inner)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            remove_entry(fd, entry->d_name, depth - 1);
        }
    }
    (void)closedir(inner);
    (void)unlinkat(folder, name, AT_REMOVEDIR);
}

void tsri_tree_remove_folder(const char *path)
{
    if (path[0] != '\0') {
        remove_entry(AT_FDCWD, path, 16);
    }
}
