/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file proc.h
 * Processes of this machine, as /proc shows them. Local.
 */
#pragma once

#include "tessera/status.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct tsri_proc {
    pid_t pid, parent;
    char state; /* as in /proc/PID/stat: R, S, D, T, Z, ... */
} tsri_proc;

/** Facts of process pid; false if there is none. */
bool tsri_proc_read(pid_t pid, tsri_proc *out);
/** Every process, in no order; *out has room for *capacity and grows. -1: /proc cannot be read, or
 *  no memory. */
int tsri_proc_list(tsri_proc **out, int *capacity);
/** The rank that a launcher started process pid as; -1: none, or the process has ended. */
int tsri_proc_rank(pid_t pid);

static inline bool tsri_proc_is_stopped(const tsri_proc *proc)
{
    return proc->state == 'T' || proc->state == 't';
}

static inline bool tsri_proc_has_ended(const tsri_proc *proc)
{
    return proc->state == 'Z' || proc->state == 'X';
}
