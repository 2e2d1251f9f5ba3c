/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file openmp.c
 * How long threads of a kernel spin before they sleep.
 *
 * GCC's OpenMP lets a thread that waits for its team spin for milliseconds, as long as the process
 * has no more threads than the machine has cores: it does not see other processes, nor our progress
 * thread. Where the core is wanted, each barrier then costs a time slice. Kernels follow each other
 * within microseconds, so the count that it uses on a crowded machine serves on an idle one too.
 * It is read once when the process starts; hence the process starts itself again.
 */
#include "cli_priv.h"

#include "base/base.h"

#include <stdlib.h>
#include <unistd.h>

#define SPIN_COUNT "1000"
#define PATH_BYTES 4096

static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && *value != '\0';
}

void tsri_cli_calm_openmp(char **argv)
{
    char self[PATH_BYTES]; /* not /proc/self/exe, or the process would be called "exe" */
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (length < 0 || is_set("GOMP_SPINCOUNT") || is_set("OMP_WAIT_POLICY") ||
        setenv("GOMP_SPINCOUNT", SPIN_COUNT, 1) != 0) {
        return;
    }
    (void)fflush(NULL);
    self[length] = '\0';
    (void)execv(self, argv);
    /* Still here: it works, only less well. */
    tsri_log(TSRI_LOG_INFO, "threads spin longer than they should: cannot start again");
}
