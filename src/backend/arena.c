/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Step memory: record a step, plan it, replay the plan.
 *
 * Every step is recorded. While it agrees with its plan, the n-th acquire gets its planned offset
 * after its stream waits for the last uses of the intervals whose memory it takes over; that those
 * are released is checked, so a step that only releases later than recorded departs as well, and
 * no two live ranges ever share a byte. Which plan it is, and how plans share memory, is in
 * arena_named.c.
 *
 * Ranges outside the plan are buffers of their own, reused within the step by the same rule (wait
 * for the last use, then take). They are freed when every stream the arena has seen is done, at the
 * end of a step without plan or with a departure.
 *
 * A step that ends before the plan does leaves memory whose last user is not the planned one; its
 * last uses, newest per stream, are carried to the next step, whose first takers wait for them. */
#include "backend/arena_priv.h"

#include "base/base.h"

#include <string.h>

#define NOT_THE_ARENAS (-1)

/* ---- one range ---- */

/* Can the newest interval of the step have its planned place? */
static bool agrees(const tsri_recording *r, const tsri_interval *interval)
{
    const tsri_arena_plan *plan = r->named->plan;
    const int n = r->count;
    if (n >= plan->count) {
        return false;
    }
    const tsri_interval *planned = &plan->intervals[n];
    if (planned->bytes != interval->bytes || planned->kind != interval->kind ||
        planned->stream != interval->stream) {
        return false;
    }
    for (int i = plan->before_first[n]; i < plan->before_first[n + 1]; i++) {
        if (plan->before[i] < n && r->holdings[plan->before[i]].is_live) {
            return false;
        }
    }
    return true;
}

static tsr_status wait_for_place(tsri_arena *arena, const tsri_recording *r, tsr_stream *stream)
{
    const tsri_named_plan *named = r->named;
    const tsri_arena_plan *plan = named->plan;
    const int n = r->count;
    tsr_event latest[TSRI_STREAM_COUNT] = {{0}};
    memcpy(latest, r->inside, sizeof(latest));
    for (int i = plan->before_first[n]; i < plan->before_first[n + 1]; i++) {
        tsri_arena_keep_latest(latest, named->last_use[plan->before[i]]);
        for (int s = 0; plan->before[i] >= n && s < TSRI_STREAM_COUNT; s++) {
            tsri_arena_keep_latest(latest, named->carried[s]);
        }
    }
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        TSR_TRY(tsri_arena_wait_for(arena, stream, latest[s]));
    }
    return TSR_OK;
}

/* For messages. */
static const char *label_of(const tsri_interval *interval)
{
    const char *label = interval->label;
    return label == NULL ? "?" : label[0] == '\0' ? "the root" : label;
}

static void depart(tsri_arena *arena, tsri_recording *r, const tsri_interval *interval)
{
    const tsri_arena_plan *plan = r->named->plan;
    const int n = r->count;
    const bool is_planned = n < plan->count;
    r->has_departed = true;
    arena->departures++;
    arena->departure_label = interval->label;
    tsri_log(
        TSRI_LOG_INFO,
        "step (%s) departs from its plan at range %d of %d: %s, %zu bytes of %s on %s, planned "
        "%zu bytes of %s on %s; it is planned again when it ends",
        r->named->name, n, plan->count, label_of(interval), interval->bytes,
        tsri_mem_name(interval->kind), tsri_stream_name(interval->stream),
        is_planned ? plan->intervals[n].bytes : 0,
        is_planned ? tsri_mem_name(plan->intervals[n].kind) : "nothing",
        tsri_stream_name(is_planned ? plan->intervals[n].stream : interval->stream));
}

/* ---- life ---- */

tsr_status tsri_arena_create(tsr_device *device, tsri_arena **out)
{
    tsri_arena *arena = NULL;
    TSR_TRY(tsri_alloc(1, sizeof(*arena), &arena));
    arena->device = device;
    *out = arena;
    return TSR_OK;
}

void tsri_arena_destroy(tsri_arena **arena)
{
    if (arena == NULL || *arena == NULL) {
        return;
    }
    tsri_arena *dying = *arena;
    while (dying->depth > 0) {
        tsri_arena_step_abort(dying);
    }
    if (tsri_arena_sync(dying) != TSR_OK) {
        tsri_log(TSRI_LOG_WARN, "step memory freed after a failure: %s", tsr_error_message());
    }
    for (int i = 0; i < dying->own_count; i++) {
        dying->own[i].is_busy = false;
    }
    tsri_arena_free_idle(dying);
    tsri_arena_drop_plans(dying);
    tsri_free(&dying->own);
    tsri_free(&dying->idle);
    for (int i = 0; i < TSRI_ARENA_DEPTH; i++) {
        tsri_free(&dying->recordings[i].step);
        tsri_free(&dying->recordings[i].holdings);
    }
    tsri_free(arena);
}

/* ---- steps ---- */

/* The innermost begins or is over; its arrays stay. */
static void clear(tsri_arena *arena, tsri_recording *r)
{
    *r = (tsri_recording){.step = r->step,
                          .holdings = r->holdings,
                          .capacity = r->capacity,
                          .holdings_capacity = r->holdings_capacity,
                          .generation = ++arena->generation};
}

static void leave(tsri_arena *arena)
{
    clear(arena, tsri_arena_now(arena));
    arena->depth--;
}

tsr_status tsri_arena_step_begin(tsri_arena *arena, const char *name, int64_t number)
{
    tsri_recording *r = &arena->recordings[arena->depth];
    tsr_status status = TSR_OK;
    if (arena->depth == TSRI_ARENA_DEPTH) {
        return TSR_RAISE(TSR_ERR_STATE, "step begins inside a step within a step");
    }
    if (arena->depth == 0 && tsri_arena_has_idle(arena)) {
        TSR_TRY(tsri_arena_sync(arena));
        tsri_arena_free_idle(arena);
    }
    clear(arena, r);
    r->number = number;
    arena->depth++;
    TSR_TRY_GOTO(status, tsri_arena_name(arena, r, name), leave_step);
    return TSR_OK;
leave_step:
    leave(arena);
    return status;
}

bool tsri_arena_step(const tsri_arena *arena, int64_t *number_out)
{
    *number_out = arena->recordings[0].number;
    return arena->depth > 0;
}

/* Which of the steps under way has taken mem; -1: none, it is over. */
static int taker(const tsri_arena *arena, const tsri_mem *mem)
{
    int at = arena->depth - 1;
    while (at >= 0 && arena->recordings[at].generation != mem->generation) {
        at--;
    }
    return at;
}

bool tsri_arena_is_stale(const tsri_arena *arena, const tsri_mem *mem)
{
    return mem->buffer != NULL && mem->interval >= 0 && taker(arena, mem) < 0;
}

static tsr_status check_all_released(const tsri_recording *r)
{
    if (r->live_count == 0) {
        return TSR_OK;
    }
    int first = 0;
    while (!r->holdings[first].is_live) {
        first++;
    }
    return TSR_RAISE(TSR_ERR_STATE,
                     "step ends with %d ranges not released, the first of %s of \"%s\" (%zu bytes)",
                     r->live_count, tsri_mem_name(r->step[first].kind), label_of(&r->step[first]),
                     r->step[first].bytes);
}

/* Without a plan, or having left it. */
static tsr_status end_unplanned(tsri_arena *arena, tsri_recording *r)
{
    TSR_TRY(tsri_arena_sync(arena));
    tsri_arena_free_idle(arena);
    tsri_arena_forget_uses(arena);
    if (r->named->plan == NULL || r->has_departed) {
        TSR_TRY(tsri_arena_plan_again(arena, r));
    }
    return TSR_OK;
}

tsr_status tsri_arena_step_end(tsri_arena *arena)
{
    tsri_recording *r = NULL;
    tsr_status status = TSR_OK;
    if (arena->depth == 0) {
        return TSR_RAISE(TSR_ERR_STATE, "step ends that did not begin");
    }
    r = tsri_arena_now(arena);
    TSR_TRY_GOTO(status, check_all_released(r), abort_step);
    if (tsri_arena_follows(arena, r)) {
        tsri_arena_pass_on(arena, r);
    } else if (r->named != NULL) {
        TSR_TRY_GOTO(status, end_unplanned(arena, r), abort_step);
    }
    arena->newest = arena->depth == 1 ? r->named : arena->newest;
    leave(arena);
    if (arena->depth == 0) {
        TSR_TRY(tsri_arena_fit(arena));
    }
    return TSR_OK;
abort_step:
    tsri_arena_step_abort(arena);
    return status;
}

void tsri_arena_step_abort(tsri_arena *arena)
{
    if (arena->depth == 0) {
        return;
    }
    const tsri_recording *r = tsri_arena_now(arena);
    for (int i = r->fixed; i < r->count; i++) {
        if (r->holdings[i].is_live && r->holdings[i].own != TSRI_PLANNED) {
            arena->own[r->holdings[i].own].is_busy = false;
        }
    }
    /* Where abandoned ranges were used is unknown: all streams must be done before any reuse. */
    if (tsri_arena_sync(arena) != TSR_OK) {
        tsri_log(TSRI_LOG_WARN, "step abandoned after a failure: %s", tsr_error_message());
    }
    tsri_arena_free_idle(arena);
    tsri_arena_forget_uses(arena);
    leave(arena);
}

/* ---- ranges ---- */

static tsr_status acquire_in_step(tsri_arena *arena, tsri_interval *interval, tsr_stream *stream,
                                  tsri_mem *mem)
{
    tsri_recording *r = tsri_arena_now(arena);
    const int n = r->count;
    tsri_holding held = {.own = TSRI_PLANNED, .is_live = true};
    TSR_TRY(tsri_grow(&r->step, &r->capacity, n + 1, sizeof(tsri_interval)));
    TSR_TRY(tsri_grow(&r->holdings, &r->holdings_capacity, n + 1, sizeof(tsri_holding)));
    if (tsri_arena_follows(arena, r) && !agrees(r, interval)) {
        depart(arena, r, interval);
    }
    if (tsri_arena_follows(arena, r)) {
        TSR_TRY(wait_for_place(arena, r, stream));
        mem->buffer = arena->buffer;
        mem->offset = r->named->plan->intervals[n].offset;
    } else {
        TSR_TRY(tsri_arena_take_own(arena, interval, stream, &held.own));
        mem->buffer = arena->own[held.own].buffer;
        mem->offset = 0;
    }
    interval->birth = r->tick++;
    r->step[n] = *interval;
    r->holdings[n] = held;
    mem->interval = n;
    mem->generation = r->generation;
    mem->step = r->number;
    r->count++;
    r->live_count++;
    return TSR_OK;
}

/* Whoever reads what he has not written gets NaN, of any float type. */
static tsr_status scribble(const tsri_mem *mem, tsr_stream *stream)
{
    unsigned char *poison = NULL;
    TSR_TRY(tsri_alloc(mem->bytes, 1, &poison));
    memset(poison, 0xFF, mem->bytes);
    const tsr_status status = tsri_write(mem->buffer, mem->offset, poison, mem->bytes, stream);
    tsri_free(&poison);
    if (status != TSR_OK) {
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return TSR_OK;
}

tsr_status tsri_arena_acquire(tsri_arena *arena, size_t bytes, tsri_mem_kind kind,
                              const char *label, tsr_stream *stream, tsri_mem *out)
{
    tsri_mem mem = {.bytes = bytes};
    if (stream == NULL || stream->device != arena->device || (unsigned)kind >= TSRI_MEM_COUNT ||
        bytes > SIZE_MAX / 4) {
        return TSR_RAISE(TSR_ERR_INVALID, "range %s of %zu bytes, kind %d, on %s",
                         label == NULL ? "?" : label, bytes, (int)kind,
                         stream == NULL ? "no stream" : tsri_stream_name(stream->kind));
    }
    tsri_interval interval = {.bytes = bytes,
                              .size = (bytes + TSRI_ARENA_ALIGN - 1) / TSRI_ARENA_ALIGN *
                                      TSRI_ARENA_ALIGN,
                              .kind = kind,
                              .stream = stream->kind,
                              .label = label};
    tsri_arena_see_stream(arena, stream);
    if (arena->depth > 0) {
        TSR_TRY(acquire_in_step(arena, &interval, stream, &mem));
    } else {
        int own = 0;
        TSR_TRY(tsri_arena_take_own(arena, &interval, stream, &own));
        mem.buffer = arena->own[own].buffer;
        mem.interval = NOT_THE_ARENAS - 1 - own;
    }
    *out = mem;
    if (arena->device->scribbles && bytes > 0) {
        TSR_TRY(scribble(&mem, stream));
    }
    return TSR_OK;
}

void tsri_arena_release(tsri_arena *arena, tsri_mem *mem, tsr_event last_use)
{
    const int n = mem->interval;
    const int at = taker(arena, mem);
    /* A range that step_abort dropped before its holder came to release it. */
    const bool is_empty = mem->buffer == NULL || n == NOT_THE_ARENAS || (n >= 0 && at < 0);
    tsri_recording *r = at >= 0 ? &arena->recordings[at] : NULL;
    *mem = (tsri_mem){.interval = NOT_THE_ARENAS};
    if (is_empty) {
        return;
    }
    tsri_arena_see_stream(arena, last_use.stream);
    if (n < 0) {
        const int own = NOT_THE_ARENAS - 1 - n;
        if (own < arena->own_count && arena->own[own].is_busy) {
            tsri_arena_give_own(arena, own, last_use);
        }
        return;
    }
    if (r == NULL || n >= r->count || !r->holdings[n].is_live) {
        return;
    }
    r->holdings[n].is_live = false;
    r->step[n].death = r->tick++;
    r->live_count--;
    if (r->holdings[n].own == TSRI_PLANNED) {
        r->named->last_use[n] = last_use;
    } else {
        tsri_arena_give_own(arena, r->holdings[n].own, last_use);
    }
}

/* ---- facts and adoption ---- */

/* Of steps by themselves, the one that ended last. */
static const tsri_arena_plan *newest_plan(const tsri_arena *arena)
{
    return arena->newest != NULL ? arena->newest->plan : NULL;
}

void tsri_arena_get_stats(const tsri_arena *arena, tsri_arena_stats *out)
{
    const tsri_arena_plan *plan = newest_plan(arena);
    *out = (tsri_arena_stats){.departures = arena->departures,
                              .plans_made = arena->plans_made,
                              .departure_label = arena->departure_label};
    if (plan == NULL) {
        return;
    }
    out->planned_bytes = arena->buffer->bytes;
    out->live_peak_bytes = plan->live_peak_bytes;
    memcpy(out->kind_at_peak, plan->kind_at_peak, sizeof(out->kind_at_peak));
    memcpy(out->kind_peak, plan->kind_peak, sizeof(out->kind_peak));
    out->peak_label = plan->peak_label;
    out->interval_count = plan->count;
}

size_t tsri_arena_peak_bytes(const tsri_arena *arena, tsri_mem_kind kind, size_t bytes)
{
    const tsri_arena_plan *plan = newest_plan(arena);
    size_t sum = 0;
    for (int i = 0; plan != NULL && i < plan->count; i++) {
        const tsri_interval *interval = &plan->intervals[i];
        if (interval->kind == kind && interval->bytes == bytes &&
            interval->birth <= plan->peak_tick && interval->death > plan->peak_tick) {
            sum += bytes;
        }
    }
    return sum;
}

int tsri_arena_moment(const tsri_arena *arena)
{
    return arena->recordings[0].count;
}

/* Bytes of kinds alive when interval at of the plan is born, with it. */
static size_t alive_at(const tsri_arena_plan *plan, unsigned kinds, int at)
{
    const int now = plan->intervals[at].birth;
    size_t bytes = 0;
    for (int i = 0; i <= at; i++) {
        const tsri_interval *interval = &plan->intervals[i];
        if ((kinds >> interval->kind & 1u) != 0 && interval->death > now) {
            bytes += interval->size;
        }
    }
    return bytes;
}

size_t tsri_arena_peak_between(const tsri_arena *arena, unsigned kinds, int first, int end)
{
    const tsri_arena_plan *plan = newest_plan(arena);
    size_t peak = 0;
    for (int at = first; plan != NULL && at < end && at < plan->count; at++) {
        const size_t bytes = alive_at(plan, kinds, at);
        peak = bytes > peak ? bytes : peak;
    }
    return peak;
}

tsr_status tsri_arena_adopt(tsri_arena *arena, const tsri_arena *from)
{
    tsri_arena_plan *plan = NULL;
    if (arena->depth > 0 || newest_plan(from) == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "plan adopted %s",
                         arena->depth > 0 ? "inside a step" : "from an arena that has none");
    }
    TSR_TRY(tsri_arena_sync(arena));
    tsri_arena_free_idle(arena);
    TSR_TRY(tsri_arena_plan_copy(newest_plan(from), &plan));
    TSR_TRY(tsri_arena_install(arena, from->newest->name, plan));
    return TSR_OK;
}

void tsri_arena_share_plans(tsri_arena *arena, tsri_arena_plans *plans)
{
    arena->shared = plans;
}

void tsri_arena_plan_rough(tsri_arena *arena)
{
    arena->is_rough = true;
}
