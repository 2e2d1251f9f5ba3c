/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file arena_priv.h
 * The arena's plan: intervals, their offsets in one buffer, and whose memory each takes over.
 */
#pragma once

#include "backend/arena.h"

#define TSRI_ARENA_ALIGN 256

/** One acquire .. release. birth and death count acquires and releases of the step: two intervals
 *  are alive together if each is born before the other dies. */
typedef struct tsri_interval {
    size_t bytes;  /* as asked for */
    size_t size;   /* a multiple of TSRI_ARENA_ALIGN */
    size_t offset; /* set by the plan */
    tsri_mem_kind kind;
    tsri_stream_kind stream;
    const char *label; /* borrowed; NULL in an adopted plan */
    int birth, death;
} tsri_interval;

typedef struct tsri_arena_plan {
    tsri_interval *intervals; /* [count], in order of birth */
    int count;
    size_t bytes;           /* of the one buffer */
    size_t live_peak_bytes; /* no plan can be smaller */
    size_t kind_at_peak[TSRI_MEM_COUNT];
    size_t kind_peak[TSRI_MEM_COUNT];
    char *peak_label;
    int peak_tick; /* birth that reached the peak */
    /* Interval i takes over memory of before[before_first[i] .. before_first[i + 1]). An index
     * below i is an interval of the same step, any other one of the step before. */
    int *before_first; /* [count + 1] */
    int *before;
} tsri_arena_plan;

/** Place intervals (copied; in order of birth). */
tsr_status tsri_arena_plan_create(const tsri_interval *intervals, int count, tsri_arena_plan **out);
/** The same in less time, some percent larger. */
tsr_status tsri_arena_plan_roughly(const tsri_interval *intervals, int count,
                                   tsri_arena_plan **out);
tsr_status tsri_arena_plan_copy(const tsri_arena_plan *from, tsri_arena_plan **out);
void tsri_arena_plan_destroy(tsri_arena_plan **plan);

/** The plan of these intervals: a copy of the one in plans, or a new one, which is entered there.
 *  plans NULL: a new one. */
tsr_status tsri_arena_plans_get(tsri_arena_plans *plans, const tsri_interval *intervals, int count,
                                tsri_arena_plan **out);
