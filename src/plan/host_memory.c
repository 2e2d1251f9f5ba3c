/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Memory that is left on this machine, from /proc/meminfo and the control group's files. */
#include "plan/host_memory.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

enum {
    PATH_BYTES = 1024
};

/* The number behind name in file, 0 if there is none ("max"). */
static size_t read_limit(const char *path, const char *name)
{
    const size_t length = strlen(name);
    FILE *file = fopen(path, "re");
    char line[256];
    size_t value = 0;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, name, length) == 0) {
            value = (size_t)strtoull(line + length, NULL, 10);
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return value;
}

/* The files of the two versions of control groups. */
typedef struct group_files {
    const char *root, *key; /* of /proc/self/cgroup: what stands before the group's path */
    const char *limit, *used, *files[2];
} group_files;

static const group_files versions[] = {
    {"/sys/fs/cgroup", "0::", "memory.max", "memory.current", {"inactive_file ", "active_file "}},
    {"/sys/fs/cgroup/memory",
     ":memory:",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file ", "total_active_file "}},
};

static size_t read_in(const char *base, const char *path, const char *file, const char *name)
{
    char whole[PATH_BYTES];
    const int length = snprintf(whole, sizeof(whole), "%s%s/%s", base, path, file);

    return length > 0 && length < PATH_BYTES ? read_limit(whole, name) : 0;
}

/* What is left in the group at path below its limit; pages of files give way. 0: no limit. */
static size_t left_in(const group_files *v, const char *base, const char *path)
{
    const size_t limit = read_in(base, path, v->limit, "");
    const size_t used = read_in(base, path, v->used, "");
    const size_t files = read_in(base, path, "memory.stat", v->files[0]) +
                         read_in(base, path, "memory.stat", v->files[1]);
    const size_t held = used > files ? used - files : 0;

    if (limit == 0) {
        return 0;
    }
    return limit > held ? limit - held : 1;
}

/* This process's group of a version, as its list of groups says; "" where it has none. */
static void find_control_group(const group_files *v, const char *list, char *out, size_t size)
{
    FILE *file = fopen(list, "re");
    char line[PATH_BYTES];

    out[0] = '\0';
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *at = strstr(line, v->key);

        if (at != NULL) {
            (void)snprintf(out, size, "%.*s", (int)strcspn(at + strlen(v->key), "\n"),
                           at + strlen(v->key));
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* Limits hold from each group down, and a container may see its group as the root. */
size_t tsri_host_memory_of_groups(const char *prefix)
{
    size_t least = 0;

    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        char list[PATH_BYTES];
        char base[PATH_BYTES];
        char path[PATH_BYTES];

        (void)snprintf(list, sizeof(list), "%s/proc/self/cgroup", prefix);
        (void)snprintf(base, sizeof(base), "%s%s", prefix, versions[i].root);
        find_control_group(&versions[i], list, path, sizeof(path));
        for (char *end = path; end != NULL;) {
            const size_t left = left_in(&versions[i], base, path);

            least = left > 0 && (least == 0 || left < least) ? left : least;
            end = strrchr(path, '/');
            if (end != NULL) {
                *end = '\0';
            }
        }
    }
    return least;
}

tsr_status tsri_host_memory_check(size_t bytes, int ranks)
{
    const size_t available = tsri_host_memory_available();
    const double wanted = (double)bytes * ranks;
    char each[32];
    char all[32];
    char have[32];

    if (available == 0 || wanted <= (double)available) {
        return TSR_OK;
    }
    return TSR_RAISE(TSR_ERR_NOMEM, "%d ranks with %s each want %s, this machine has %s available",
                     ranks, tsri_format_bytes((double)bytes, each, sizeof(each)),
                     tsri_format_bytes(wanted, all, sizeof(all)),
                     tsri_format_bytes((double)available, have, sizeof(have)));
}

size_t tsri_host_memory_available(void)
{
    const size_t system =
        (read_limit("/proc/meminfo", "MemAvailable:") + read_limit("/proc/meminfo", "SwapFree:")) *
        1024;
    const size_t group = tsri_host_memory_of_groups("");

    return group > 0 && group < system ? group : system;
}
