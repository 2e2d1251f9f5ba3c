/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file arena_priv.h
 * The arena's own data; and its plans: intervals, their offsets in one buffer, and whose memory
 * each takes over.
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
    int fixed;              /* the first of them, which were placed before */
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
/** The same around the first fixed of them, which have their offsets and outlive all others. */
tsr_status tsri_arena_plan_around(const tsri_interval *intervals, int fixed, int count,
                                  tsri_arena_plan **out);
/** The same in less time, some percent larger. */
tsr_status tsri_arena_plan_roughly(const tsri_interval *intervals, int count,
                                   tsri_arena_plan **out);
tsr_status tsri_arena_plan_copy(const tsri_arena_plan *from, tsri_arena_plan **out);
void tsri_arena_plan_destroy(tsri_arena_plan **plan);

/** The plan of these intervals: a copy of the one in plans, or a new one, which is entered there.
 *  plans NULL: a new one. */
tsr_status tsri_arena_plans_get(tsri_arena_plans *plans, const tsri_interval *intervals, int count,
                                tsri_arena_plan **out);

/* ---- the arena ---- */

/** A buffer outside the plans. */
typedef struct tsri_own_buffer {
    tsr_buffer *buffer; /* NULL: a free place */
    tsr_event last_use;
    bool is_busy;
} tsri_own_buffer;

#define TSRI_PLANNED (-1)

typedef struct tsri_holding {
    int own; /* index of the own buffer, or TSRI_PLANNED */
    bool is_live;
} tsri_holding;

/** What steps of one name do, and who has used its memory last. */
typedef struct tsri_named_plan {
    const char *name;                     /* static */
    const struct tsri_named_plan *around; /* it stands within steps of that; NULL: by itself */
    int moment;                           /* when those have taken so many ranges */
    tsri_arena_plan *plan;                /* NULL: none yet */
    tsr_event *last_use;                  /* [plan->count], of the newest step that came that far */
    /* Newest uses of the memory by other plans, and by a step that ended before the plan does. */
    tsr_event carried[TSRI_STREAM_COUNT];
} tsri_named_plan;

/** A step under way. */
typedef struct tsri_recording {
    tsri_named_plan *named; /* NULL: it stands within a step that has no plan, and gets none */
    bool has_departed;
    uint64_t generation;    /* of its ranges */
    int64_t number;         /* for messages */
    tsri_interval *step;    /* so far, [count]; first come those of the step around that are held */
    tsri_holding *holdings; /* [count] */
    int fixed, count, capacity, holdings_capacity;
    int live_count, tick;
    tsr_event inside[TSRI_STREAM_COUNT]; /* newest uses by steps within this one */
} tsri_recording;

/** A step, and one within it. */
#define TSRI_ARENA_DEPTH 2

struct tsri_arena {
    tsr_device *device;
    tsri_recording recordings[TSRI_ARENA_DEPTH];
    int depth;           /* steps under way */
    uint64_t generation; /* of the newest step */

    bool is_rough;            /* plans are made in less time */
    tsri_arena_plans *shared; /* where plans are looked up; NULL: nowhere */
    tsri_named_plan **named;  /* [named_count] */
    int named_count, named_capacity;
    const tsri_named_plan *newest; /* of the step by itself that ended last */
    tsr_buffer *buffer;            /* of all plans; NULL: none needs one */

    tsri_own_buffer *own;
    int own_count, own_capacity;
    int own_full; /* no place below it is free */
    int *idle;    /* [idle_count] places of buffers that nobody has, by kind, bytes and place */
    int idle_count, idle_capacity; /* capacity for all of own */

    tsr_stream *streams[TSRI_STREAM_COUNT]; /* seen so far */
    /* waited[s][t]: newest seq of t that s was made to wait for */
    uint64_t waited[TSRI_STREAM_COUNT][TSRI_STREAM_COUNT];
    int departures, plans_made;
    const char *departure_label;
};

/* ---- streams and buffers outside the plans (arena_own.c) ---- */

void tsri_arena_see_stream(tsri_arena *arena, tsr_stream *stream);
tsr_status tsri_arena_wait_for(tsri_arena *arena, tsr_stream *stream, tsr_event event);
void tsri_arena_keep_latest(tsr_event latest[TSRI_STREAM_COUNT], tsr_event event);
/** Blocks. Every stream is tried; returns the first failure. */
tsr_status tsri_arena_sync(const tsri_arena *arena);
void tsri_arena_free_idle(tsri_arena *arena);
bool tsri_arena_has_idle(const tsri_arena *arena);
/** A place in own with a buffer for interval, for use on stream. */
tsr_status tsri_arena_take_own(tsri_arena *arena, const tsri_interval *interval, tsr_stream *stream,
                               int *out);
void tsri_arena_give_own(tsri_arena *arena, int own, tsr_event last_use);

/* ---- plans by name (arena_named.c) ---- */

/** The step under way, the innermost. */
static inline tsri_recording *tsri_arena_now(tsri_arena *arena)
{
    return &arena->recordings[arena->depth - 1];
}
/** It has a plan, which it has followed so far. */
static inline bool tsri_arena_follows(const tsri_arena *arena, const tsri_recording *r)
{
    return r->named != NULL && r->named->plan != NULL && !r->has_departed &&
           arena->buffer != NULL && r->named->plan->bytes <= arena->buffer->bytes;
}
/** Find the plan that r, the innermost, is to follow, and who has used its memory. */
tsr_status tsri_arena_name(tsri_arena *arena, tsri_recording *r, const char *name);
/** r has ended as planned: whoever takes its memory next waits for it. */
void tsri_arena_pass_on(tsri_arena *arena, const tsri_recording *r);
/** What r did becomes the plan; streams are idle. */
tsr_status tsri_arena_plan_again(tsri_arena *arena, tsri_recording *r);
/** Outside of steps: one buffer for the largest plan. Blocks where it changes. On failure there is
 *  no plan any more. */
tsr_status tsri_arena_fit(tsri_arena *arena);
/** All streams are idle. */
void tsri_arena_forget_uses(tsri_arena *arena);
/** plan, whose owner is taken over also on failure, is that of steps called name from now on. */
tsr_status tsri_arena_install(tsri_arena *arena, const char *name, tsri_arena_plan *plan);
void tsri_arena_drop_plans(tsri_arena *arena);
