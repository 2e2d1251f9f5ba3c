/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file arena.h
 * Step memory planned from the recorded schedule: slots, activations, workspace.
 *
 * A step acquires and releases ranges in the same order every time. Each (acquire .. release) pair
 * is an interval in host order; the plan colours the intervals: overlapping intervals get disjoint
 * offsets of one buffer, by first fit in order of decreasing size. A later step replays the plan:
 * the n-th acquire gets its planned offset, and its stream first waits for the last-use events of
 * the intervals whose memory it takes over. So nothing is allocated after the first step, and reuse
 * across streams is ordered by events alone.
 *
 * Before a plan exists (first step of a program that made no dry run), and after a step departed
 * from the plan (another size, kind or stream at the n-th acquire, or memory that should be free by
 * then is not), ranges come from buffers of their own until the step ends; then the step just
 * recorded becomes the plan. A step that ends before the plan does has not departed. Outside steps
 * ranges are buffers of their own too, kept for reuse until the next step begins.
 *
 * There is a plan for each name of steps, such as "train" and "eval", all over one memory as large
 * as the largest needs. A step may stand within another; it then takes what that one does not hold.
 *
 * Whoever takes memory over waits for its last use. So a holder whose last use lags behind (a
 * reduction) releases late in host order where it does not want the next taker to wait.
 *
 * A plan recorded on a sim device can be given to an executing one: tsri_arena_adopt.
 *
 * Threads: one thread at a time per arena.
 */
#pragma once

#include "backend/dispatch.h"

typedef struct tsri_arena tsri_arena;

/** A range of device memory. buffer is borrowed from the arena (or from its owner). */
typedef struct tsri_mem {
    tsr_buffer *buffer;
    size_t offset, bytes;
    int interval; /* index within the step; -1: not the arena's; below: taken outside a step */
    uint64_t generation; /* of the step in which it was taken: no other one has it */
    int64_t step;        /* number of the step in which it was taken */
} tsri_mem;

tsr_status tsri_arena_create(tsr_device *device, tsri_arena **out);
/** Blocks until the streams it has seen are done; destroy it before them. */
void tsri_arena_destroy(tsri_arena **arena);

/** Begin a step that follows the plan called name (static), by itself or within the one under way.
 *  number: by which people know it. */
tsr_status tsri_arena_step_begin(tsri_arena *arena, const char *name, int64_t number);
/** True within a step; the number of the outermost. */
bool tsri_arena_step(const tsri_arena *arena, int64_t *number_out);
/** True of a range of a step that is over: its memory is somebody else's. */
bool tsri_arena_is_stale(const tsri_arena *arena, const tsri_mem *mem);
/** End the innermost step. Everything acquired in it must be released, else TSR_ERR_STATE and it is
 *  abandoned. Makes or remakes the plan where needed (then it Blocks: buffers are freed). */
tsr_status tsri_arena_step_end(tsri_arena *arena);
/** Abandon the innermost step, which failed: drop its ranges without a plan; a later release of
 *  them does nothing. Blocks. */
void tsri_arena_step_abort(tsri_arena *arena);

/** A range of bytes for use on stream, contents unspecified, 256-byte aligned. label long-lived. */
tsr_status tsri_arena_acquire(tsri_arena *arena, size_t bytes, tsri_mem_kind kind,
                              const char *label, tsr_stream *stream, tsri_mem *out);
/** Give a range back; last_use: the point after which its memory may be taken over. Resets *mem. */
void tsri_arena_release(tsri_arena *arena, tsri_mem *mem, tsr_event last_use);

/** Facts about the plan of the step by itself that ended last. */
typedef struct tsri_arena_stats {
    size_t planned_bytes;                /* size of the one buffer of all plans; 0: no plan */
    size_t live_peak_bytes;              /* largest sum of live intervals: the lower bound */
    size_t kind_at_peak[TSRI_MEM_COUNT]; /* live bytes by kind at that moment */
    size_t kind_peak[TSRI_MEM_COUNT];    /* most live bytes of each kind by itself */
    const char *peak_label;              /* label of the acquire that reached the peak */
    int interval_count;
    int plans_made;              /* so far, for all names */
    int departures;              /* steps that left their plan so far */
    const char *departure_label; /* of the acquire that left it last */
} tsri_arena_stats;
void tsri_arena_get_stats(const tsri_arena *arena, tsri_arena_stats *out);

/** Bytes of the ranges of kind, each asked for with exactly `bytes`, that are live at the peak. */
size_t tsri_arena_peak_bytes(const tsri_arena *arena, tsri_mem_kind kind, size_t bytes);
/** Ranges acquired so far in the outermost step under way: a moment in it. */
int tsri_arena_moment(const tsri_arena *arena);
/** Most bytes of the plan's intervals of kinds (bit 1 << kind) that were alive together at a moment
 *  from first until before end. */
size_t tsri_arena_peak_between(const tsri_arena *arena, unsigned kinds, int first, int end);

/** Allocate now what from's newest plan needs, and replay it in steps of its name. Not inside a
 * step. TSR_ERR_STATE if from has no plan. Blocks. */
tsr_status tsri_arena_adopt(tsri_arena *arena, const tsri_arena *from);

/** Plans made so far for ranks of one program. Ranks whose steps are alike need not plan again:
 *  the search takes longer than the step on sim. */
typedef struct tsri_arena_plans tsri_arena_plans;
tsr_status tsri_arena_plans_create(tsri_arena_plans **out);
void tsri_arena_plans_destroy(tsri_arena_plans **pointer);
/** arena looks up its plans in plans, which outlives it, and enters new ones. */
void tsri_arena_share_plans(tsri_arena *arena, tsri_arena_plans *plans);
/** Plan in less time, some percent larger: for a dry run that is one of many. */
void tsri_arena_plan_rough(tsri_arena *arena);
