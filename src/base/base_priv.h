/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file base_priv.h
 * The process's only mutable state, defined in globals.c and touched by src/base alone.
 */
#pragma once

#include "base/base.h"

#include <stdatomic.h>

enum {
    TSRI_TRAIL_FRAMES = 24,
    TSRI_TRAIL_TEXT = 512,
    TSRI_RETIRED = 2048
};

typedef struct tsri_trail_frame {
    const char *file;
    const char *func;
    int line;
} tsri_trail_frame;

/** One thread's failure: depth 0 means that nothing failed. */
typedef struct tsri_trail {
    tsr_status status;
    int depth;
    int held;   /* clean-up is under way: what fails in it does not replace what is told here */
    int teller; /* 1 + the rank that tells of it, once every rank of the job knows; 0 before */
    char text[TSRI_TRAIL_TEXT];
    tsri_trail_frame frame[TSRI_TRAIL_FRAMES];
} tsri_trail;

typedef struct tsri_process {
    atomic_int rank;
    atomic_int size;
    atomic_int log_level;     /* -1: TSR_LOG not read yet */
    atomic_int isa;           /* -1: TSR_CPU_ISA not read yet */
    atomic_int fail_in;       /* allocations until the injected failure; 0: off */
    atomic_int_fast64_t live; /* allocations not freed */
    atomic_uint retired;      /* blocks so far */
    _Atomic(void *) retirees[TSRI_RETIRED];
} tsri_process;

extern tsri_process tsri_g_process;
extern _Thread_local tsri_trail tsri_g_trail;
