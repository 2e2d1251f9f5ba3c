/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Memory that is left on this machine, from /proc/meminfo and the control group's files. */
#include "train/host_memory.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

/* The number behind name in file, 0 if there is none ("max"). */
static size_t read_number(const char *path, const char *name)
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

/* What is left of this control group's memory; pages of files give way. 0: no limit. */
static size_t left_of_group(void)
{
    static const char stat[] = "/sys/fs/cgroup/memory.stat";
    const size_t limit = read_number("/sys/fs/cgroup/memory.max", "");
    const size_t used = read_number("/sys/fs/cgroup/memory.current", "");
    const size_t files = read_number(stat, "inactive_file ") + read_number(stat, "active_file ");
    const size_t held = used > files ? used - files : 0;

    if (limit == 0) {
        return 0;
    }
    return limit > held ? limit - held : 1;
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
    const size_t system = (read_number("/proc/meminfo", "MemAvailable:") +
                           read_number("/proc/meminfo", "SwapFree:")) *
                          1024;
    const size_t group = left_of_group();

    return group > 0 && group < system ? group : system;
}
