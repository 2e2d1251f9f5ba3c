/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file siblings.c
 * Who of this host's ranks does not run.
 *
 * A rank that waits in MPI's start cannot ask anybody why. The ranks of a host have one parent, the
 * launcher's process there, and their environments say which they are.
 */
#include "boot_priv.h"

#include "base/base.h"
#include "base/proc.h"

#include <stdio.h>
#include <unistd.h>

static void describe(const tsri_proc *proc, char *text, size_t size)
{
    const int rank = tsri_proc_rank(proc->pid);

    if (tsri_proc_has_ended(proc)) {
        (void)snprintf(text, size, "process %ld of the job has ended", (long)proc->pid);
    } else if (rank >= 0) {
        (void)snprintf(text, size, "rank %d (process %ld) is stopped", rank, (long)proc->pid);
    } else {
        (void)snprintf(text, size, "process %ld of the job is stopped", (long)proc->pid);
    }
}

const char *tsri_boot_look_around(char *text, size_t size)
{
    tsri_proc *procs = NULL;
    int capacity = 0;
    size_t used = 0;

    tsri_error_hold();
    const int count = tsri_proc_list(&procs, &capacity);
    tsri_error_release();
    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        const tsri_proc *p = &procs[i];
        char one[80];

        if (p->parent == getppid() && p->pid != getpid() &&
            (tsri_proc_is_stopped(p) || tsri_proc_has_ended(p)) && used < size) {
            describe(p, one, sizeof(one));
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", one);
        }
    }
    tsri_free(&procs);
    return text;
}
