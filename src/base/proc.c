/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file proc.c
 * /proc, read as text. What is not there, or not ours to read, counts as absent.
 */
#include "base/proc.h"

#include "base/base.h"

#include <ctype.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

bool tsri_proc_read(pid_t pid, tsri_proc *out)
{
    char path[64];
    char line[512];
    const char *rest = NULL;
    FILE *file = NULL;

    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    /* The name in brackets may hold anything, brackets too. */
    if (fgets(line, sizeof(line), file) != NULL) {
        rest = strrchr(line, ')');
    }
    (void)fclose(file);
    if (rest == NULL || strlen(rest) < 5) {
        return false;
    }
    *out = (tsri_proc){.pid = pid, .parent = (pid_t)strtol(rest + 4, NULL, 10), .state = rest[2]};
    return true;
}

int tsri_proc_list(tsri_proc **out, int *capacity)
{
    DIR *folder = opendir("/proc");
    int count = 0;

    if (folder == NULL) {
        return -1;
    }
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (!isdigit((unsigned char)entry->d_name[0])) {
            continue;
        }
        if (tsri_grow(out, capacity, count + 1, sizeof(**out)) != TSR_OK) {
            count = -1;
            break;
        }
        count += tsri_proc_read((pid_t)strtol(entry->d_name, NULL, 10), &(*out)[count]) ? 1 : 0;
    }
    (void)closedir(folder);
    return count;
}

int tsri_proc_rank(pid_t pid)
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_RANK=", "PMIX_RANK=", "PMI_RANK=", "SLURM_PROCID="};
    char path[64];
    char *entry = NULL;
    size_t room = 0;
    int rank = -1;
    FILE *file = NULL;

    (void)snprintf(path, sizeof(path), "/proc/%ld/environ", (long)pid);
    file = fopen(path, "re");
    while (file != NULL && rank < 0 && getdelim(&entry, &room, '\0', file) > 0) {
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            const size_t length = strlen(names[i]);

            if (strncmp(entry, names[i], length) == 0) {
                rank = (int)strtol(entry + length, NULL, 10);
            }
        }
    }
    free(entry);
    if (file != NULL) {
        (void)fclose(file);
    }
    return rank;
}
