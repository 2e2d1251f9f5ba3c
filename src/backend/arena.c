/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Step memory: record a step, plan it, replay the plan.
 *
 * Every step is recorded. While it agrees with the plan, the n-th acquire gets its planned offset
 * after its stream waits for the last uses of the intervals whose memory it takes over; that those
 * are released is checked, so a step that only releases later than recorded departs as well, and
 * no two live ranges ever share a byte.
 *
 * Ranges outside the plan are buffers of their own, reused within the step by the same rule (wait
 * for the last use, then take). They are freed when every stream the arena has seen is done, at the
 * end of a step without plan or with a departure, and so is the old plan's buffer.
 *
 * A step that ends before the plan does leaves memory whose last user is not the planned one; its
 * last uses, newest per stream, are carried to the next step, whose first takers wait for them. */
#include "backend/arena_priv.h"

#include "base/base.h"

#include <string.h>

#define NOT_THE_ARENAS (-1)
#define PLANNED        (-1)

/* A buffer outside the plan. */
typedef struct own_buffer {
    tsr_buffer *buffer; /* NULL: a free place */
    tsr_event last_use;
    bool is_busy;
} own_buffer;

typedef struct holding {
    int own; /* index of the own buffer, or PLANNED */
    bool is_live;
} holding;

struct tsri_arena {
    tsr_device *device;
    bool in_step, has_departed;
    uint64_t generation; /* another one whenever a step begins or ends */
    int64_t number;      /* of the step, for messages */

    tsri_interval *step; /* the step so far, [count] */
    int count, capacity;
    holding *holdings; /* [count] */
    int holdings_capacity;
    int live_count, tick;

    bool is_rough;            /* plans are made in less time */
    tsri_arena_plans *shared; /* where plans are looked up; NULL: nowhere */
    tsri_arena_plan *plan;    /* NULL: none yet */
    tsr_buffer *buffer;       /* the plan's */
    tsr_event *last_use;      /* [plan->count], of the newest step that came that far */
    tsr_event carried[TSRI_STREAM_COUNT];

    own_buffer *own;
    int own_count, own_capacity;
    int own_full; /* no place below it is free */
    int *idle;    /* [idle_count] places of buffers that nobody has, by kind, bytes and place */
    int idle_count, idle_capacity; /* capacity for all of own */

    tsr_stream *streams[TSRI_STREAM_COUNT]; /* seen so far */
    /* waited[s][t]: newest seq of t that s was made to wait for */
    uint64_t waited[TSRI_STREAM_COUNT][TSRI_STREAM_COUNT];
    int departures;
    const char *departure_label;
};

/* ---- streams ---- */

static void see_stream(tsri_arena *arena, tsr_stream *stream)
{
    if (stream == NULL || arena->streams[stream->kind] == stream) {
        return;
    }
    arena->streams[stream->kind] = stream;
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        arena->waited[stream->kind][s] = 0;
        arena->waited[s][stream->kind] = 0;
    }
}

static tsr_status wait_for(tsri_arena *arena, tsr_stream *stream, tsr_event event)
{
    if (event.stream == NULL || event.stream == stream ||
        event.seq <= arena->waited[stream->kind][event.stream->kind]) {
        return TSR_OK;
    }
    TSR_TRY(tsri_stream_wait(stream, event));
    arena->waited[stream->kind][event.stream->kind] = event.seq;
    return TSR_OK;
}

static void keep_latest(tsr_event latest[TSRI_STREAM_COUNT], tsr_event event)
{
    if (event.stream != NULL && event.seq >= latest[event.stream->kind].seq) {
        latest[event.stream->kind] = event;
    }
}

/* Blocks. Every stream is tried; returns the first failure. */
static tsr_status sync_streams(const tsri_arena *arena)
{
    tsr_status status = TSR_OK;
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        if (arena->streams[s] == NULL) {
            continue;
        }
        tsr_status one = tsri_stream_sync(arena->streams[s]);
        if (one != TSR_OK && status == TSR_OK) {
            status = tsr_error_pass(one, __FILE__, __LINE__, __func__);
        }
    }
    return status;
}

/* ---- buffers outside the plan ---- */

static void free_idle_buffers(tsri_arena *arena)
{
    for (int i = 0; i < arena->own_count; i++) {
        if (!arena->own[i].is_busy) {
            tsri_buffer_release(&arena->own[i].buffer);
        }
    }
    while (arena->own_count > 0 && arena->own[arena->own_count - 1].buffer == NULL) {
        arena->own_count--;
    }
    arena->own_full = 0;
    arena->idle_count = 0;
}

static bool has_idle_buffers(const tsri_arena *arena)
{
    for (int i = 0; i < arena->own_count; i++) {
        if (arena->own[i].buffer != NULL && !arena->own[i].is_busy) {
            return true;
        }
    }
    return false;
}

/* Where the first idle buffer of kind with at least size bytes is, or one with those at a place of
 * at least place. */
static int find_idle(const tsri_arena *arena, tsri_mem_kind kind, size_t size, int place)
{
    int low = 0;
    int high = arena->idle_count;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        const tsr_buffer *buffer = arena->own[arena->idle[middle]].buffer;
        const bool is_below = buffer->kind != kind    ? buffer->kind < kind
                              : buffer->bytes != size ? buffer->bytes < size
                                                      : arena->idle[middle] < place;
        low = is_below ? middle + 1 : low;
        high = is_below ? high : middle;
    }
    return low;
}

/* Take the smallest idle buffer of the kind out of the list, if it wastes at most a quarter; -1. */
static int take_idle(tsri_arena *arena, size_t size, tsri_mem_kind kind)
{
    const int at = find_idle(arena, kind, size, 0);
    if (at == arena->idle_count) {
        return -1;
    }
    const int place = arena->idle[at];
    const tsr_buffer *buffer = arena->own[place].buffer;
    if (buffer->kind != kind || buffer->bytes - size > size / 4) {
        return -1;
    }
    arena->idle_count--;
    memmove(arena->idle + at, arena->idle + at + 1,
            (size_t)(arena->idle_count - at) * sizeof(*arena->idle));
    return place;
}

static void add_idle(tsri_arena *arena, int place)
{
    const tsr_buffer *buffer = arena->own[place].buffer;
    const int at = find_idle(arena, buffer->kind, buffer->bytes, place);
    memmove(arena->idle + at + 1, arena->idle + at,
            (size_t)(arena->idle_count - at) * sizeof(*arena->idle));
    arena->idle[at] = place;
    arena->idle_count++;
}

static tsr_status add_own(tsri_arena *arena, size_t size, tsri_mem_kind kind, const char *label,
                          int *out)
{
    int place = arena->own_full;
    while (place < arena->own_count && arena->own[place].buffer != NULL) {
        place++;
    }
    TSR_TRY(tsri_grow(&arena->own, &arena->own_capacity, place + 1, sizeof(own_buffer)));
    TSR_TRY(tsri_grow(&arena->idle, &arena->idle_capacity, place + 1, sizeof(*arena->idle)));
    arena->own[place] = (own_buffer){0};
    TSR_TRY(tsri_buffer_alloc(arena->device, size, kind, label, &arena->own[place].buffer));
    if (place == arena->own_count) {
        arena->own_count++;
    }
    arena->own_full = place + 1;
    *out = place;
    return TSR_OK;
}

static tsr_status take_own(tsri_arena *arena, const tsri_interval *interval, tsr_stream *stream,
                           int *out)
{
    int place = take_idle(arena, interval->size, interval->kind);
    if (place < 0) {
        TSR_TRY(add_own(arena, interval->size, interval->kind, interval->label, &place));
    }
    const tsr_status status = wait_for(arena, stream, arena->own[place].last_use);
    if (status != TSR_OK) {
        add_idle(arena, place);
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    arena->own[place].is_busy = true;
    *out = place;
    return TSR_OK;
}

/* ---- the plan ---- */

static void drop_plan(tsri_arena *arena)
{
    tsri_buffer_release(&arena->buffer);
    tsri_free(&arena->last_use);
    tsri_arena_plan_destroy(&arena->plan);
    memset(arena->carried, 0, sizeof(arena->carried));
}

/* Take ownership of plan (also on failure) and allocate what it needs; streams are idle. */
static tsr_status install_plan(tsri_arena *arena, tsri_arena_plan *plan)
{
    tsr_event *last_use = NULL;
    tsr_status status = TSR_OK;
    drop_plan(arena);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)plan->count, sizeof(tsr_event), &last_use),
                 destroy_plan);
    TSR_TRY_GOTO(status,
                 tsri_buffer_alloc(arena->device, plan->bytes, TSRI_MEM_ACTIVATION, "step arena",
                                   &arena->buffer),
                 destroy_plan);
    arena->plan = plan;
    arena->last_use = last_use;
    return TSR_OK;
destroy_plan:
    tsri_free(&last_use);
    tsri_arena_plan_destroy(&plan);
    return status;
}

/* Can the newest interval of the step have its planned place? */
static bool follows_plan(const tsri_arena *arena, const tsri_interval *interval)
{
    const tsri_arena_plan *plan = arena->plan;
    const int n = arena->count;
    if (n >= plan->count) {
        return false;
    }
    const tsri_interval *planned = &plan->intervals[n];
    if (planned->bytes != interval->bytes || planned->kind != interval->kind ||
        planned->stream != interval->stream) {
        return false;
    }
    for (int i = plan->before_first[n]; i < plan->before_first[n + 1]; i++) {
        if (plan->before[i] < n && arena->holdings[plan->before[i]].is_live) {
            return false;
        }
    }
    return true;
}

static tsr_status wait_for_place(tsri_arena *arena, tsr_stream *stream)
{
    const tsri_arena_plan *plan = arena->plan;
    const int n = arena->count;
    tsr_event latest[TSRI_STREAM_COUNT] = {{0}};
    for (int i = plan->before_first[n]; i < plan->before_first[n + 1]; i++) {
        keep_latest(latest, arena->last_use[plan->before[i]]);
        for (int s = 0; plan->before[i] >= n && s < TSRI_STREAM_COUNT; s++) {
            keep_latest(latest, arena->carried[s]);
        }
    }
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        TSR_TRY(wait_for(arena, stream, latest[s]));
    }
    return TSR_OK;
}

static void depart(tsri_arena *arena, const tsri_interval *interval)
{
    const int n = arena->count;
    const bool is_planned = n < arena->plan->count;
    arena->has_departed = true;
    arena->departures++;
    arena->departure_label = interval->label;
    tsri_log(TSRI_LOG_INFO,
             "step departs from its plan at range %d of %d: %s, %zu bytes of %s on %s, planned %zu "
             "bytes of %s on %s; it is planned again when it ends",
             n, arena->plan->count, interval->label == NULL ? "?" : interval->label,
             interval->bytes, tsri_mem_name(interval->kind), tsri_stream_name(interval->stream),
             is_planned ? arena->plan->intervals[n].bytes : 0,
             is_planned ? tsri_mem_name(arena->plan->intervals[n].kind) : "nothing",
             tsri_stream_name(is_planned ? arena->plan->intervals[n].stream : interval->stream));
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
    tsri_arena_step_abort(dying);
    if (sync_streams(dying) != TSR_OK) {
        tsri_log(TSRI_LOG_WARN, "step memory freed after a failure: %s", tsr_error_message());
    }
    for (int i = 0; i < dying->own_count; i++) {
        dying->own[i].is_busy = false;
    }
    free_idle_buffers(dying);
    drop_plan(dying);
    tsri_free(&dying->own);
    tsri_free(&dying->idle);
    tsri_free(&dying->step);
    tsri_free(&dying->holdings);
    tsri_free(arena);
}

/* ---- steps ---- */

static void forget_step(tsri_arena *arena)
{
    arena->generation++;
    arena->in_step = false;
    arena->has_departed = false;
    arena->count = 0;
    arena->live_count = 0;
    arena->tick = 0;
}

tsr_status tsri_arena_step_begin(tsri_arena *arena)
{
    if (arena->in_step) {
        return TSR_RAISE(TSR_ERR_STATE, "step begins inside a step (%d ranges so far)",
                         arena->count);
    }
    if (has_idle_buffers(arena)) {
        TSR_TRY(sync_streams(arena));
        free_idle_buffers(arena);
    }
    forget_step(arena);
    arena->in_step = true;
    return TSR_OK;
}

void tsri_arena_name_step(tsri_arena *arena, int64_t step)
{
    arena->number = step;
}

bool tsri_arena_step(const tsri_arena *arena, int64_t *number_out)
{
    *number_out = arena->number;
    return arena->in_step;
}

bool tsri_arena_is_stale(const tsri_arena *arena, const tsri_mem *mem)
{
    return mem->buffer != NULL && mem->interval >= 0 && mem->generation != arena->generation;
}

static tsr_status replan(tsri_arena *arena)
{
    tsri_arena_plan *plan = NULL;
    TSR_TRY(sync_streams(arena));
    free_idle_buffers(arena);
    if (arena->count == 0) {
        return TSR_OK;
    }
    if (arena->is_rough) {
        TSR_TRY(tsri_arena_plan_roughly(arena->step, arena->count, &plan));
    } else {
        TSR_TRY(tsri_arena_plans_get(arena->shared, arena->step, arena->count, &plan));
    }
    TSR_TRY(install_plan(arena, plan));
    return TSR_OK;
}

static tsr_status check_all_released(const tsri_arena *arena)
{
    if (arena->live_count == 0) {
        return TSR_OK;
    }
    int first = 0;
    while (!arena->holdings[first].is_live) {
        first++;
    }
    const char *label = arena->step[first].label;
    return TSR_RAISE(TSR_ERR_STATE,
                     "step ends with %d ranges not released, the first %s (%zu "
                     "bytes)",
                     arena->live_count, label == NULL ? "?" : label, arena->step[first].bytes);
}

tsr_status tsri_arena_step_end(tsri_arena *arena)
{
    tsr_status status = TSR_OK;
    if (!arena->in_step) {
        return TSR_RAISE(TSR_ERR_STATE, "step ends that did not begin");
    }
    TSR_TRY_GOTO(status, check_all_released(arena), abort_step);
    if (arena->plan == NULL || arena->has_departed) {
        TSR_TRY_GOTO(status, replan(arena), abort_step);
    } else if (arena->count < arena->plan->count) {
        for (int i = 0; i < arena->count; i++) {
            keep_latest(arena->carried, arena->last_use[i]);
        }
    } else {
        memset(arena->carried, 0, sizeof(arena->carried));
    }
    forget_step(arena);
    return TSR_OK;
abort_step:
    tsri_arena_step_abort(arena);
    return status;
}

void tsri_arena_step_abort(tsri_arena *arena)
{
    if (!arena->in_step) {
        return;
    }
    for (int i = 0; i < arena->count; i++) {
        if (arena->holdings[i].is_live && arena->holdings[i].own != PLANNED) {
            arena->own[arena->holdings[i].own].is_busy = false;
        }
    }
    /* Where abandoned ranges were used is unknown: all streams must be done before any reuse. */
    if (sync_streams(arena) != TSR_OK) {
        tsri_log(TSRI_LOG_WARN, "step abandoned after a failure: %s", tsr_error_message());
    }
    free_idle_buffers(arena);
    if (arena->plan != NULL) {
        memset(arena->last_use, 0, (size_t)arena->plan->count * sizeof(tsr_event));
        memset(arena->carried, 0, sizeof(arena->carried));
    }
    forget_step(arena);
}

/* ---- ranges ---- */

static tsr_status acquire_in_step(tsri_arena *arena, tsri_interval *interval, tsr_stream *stream,
                                  tsri_mem *mem)
{
    const int n = arena->count;
    holding held = {.own = PLANNED, .is_live = true};
    TSR_TRY(tsri_grow(&arena->step, &arena->capacity, n + 1, sizeof(tsri_interval)));
    TSR_TRY(tsri_grow(&arena->holdings, &arena->holdings_capacity, n + 1, sizeof(holding)));
    if (arena->plan != NULL && !arena->has_departed && !follows_plan(arena, interval)) {
        depart(arena, interval);
    }
    if (arena->plan != NULL && !arena->has_departed) {
        TSR_TRY(wait_for_place(arena, stream));
        mem->buffer = arena->buffer;
        mem->offset = arena->plan->intervals[n].offset;
    } else {
        TSR_TRY(take_own(arena, interval, stream, &held.own));
        mem->buffer = arena->own[held.own].buffer;
        mem->offset = 0;
    }
    interval->birth = arena->tick++;
    arena->step[n] = *interval;
    arena->holdings[n] = held;
    mem->interval = n;
    mem->generation = arena->generation;
    mem->step = arena->number;
    arena->count++;
    arena->live_count++;
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
    see_stream(arena, stream);
    if (arena->in_step) {
        TSR_TRY(acquire_in_step(arena, &interval, stream, &mem));
    } else {
        int own = 0;
        TSR_TRY(take_own(arena, &interval, stream, &own));
        mem.buffer = arena->own[own].buffer;
        mem.interval = NOT_THE_ARENAS - 1 - own;
    }
    *out = mem;
    if (arena->device->scribbles && bytes > 0) {
        TSR_TRY(scribble(&mem, stream));
    }
    return TSR_OK;
}

static void give_own_back(tsri_arena *arena, int own, tsr_event last_use)
{
    arena->own[own].last_use = last_use;
    arena->own[own].is_busy = false;
    add_idle(arena, own);
}

void tsri_arena_release(tsri_arena *arena, tsri_mem *mem, tsr_event last_use)
{
    const int n = mem->interval;
    /* A range that step_abort dropped before its holder came to release it. */
    const bool is_empty =
        mem->buffer == NULL || n == NOT_THE_ARENAS || tsri_arena_is_stale(arena, mem);
    *mem = (tsri_mem){.interval = NOT_THE_ARENAS};
    if (is_empty) {
        return;
    }
    see_stream(arena, last_use.stream);
    if (n < 0) {
        const int own = NOT_THE_ARENAS - 1 - n;
        if (own < arena->own_count && arena->own[own].is_busy) {
            give_own_back(arena, own, last_use);
        }
        return;
    }
    if (!arena->in_step || n >= arena->count || !arena->holdings[n].is_live) {
        return;
    }
    arena->holdings[n].is_live = false;
    arena->step[n].death = arena->tick++;
    arena->live_count--;
    if (arena->holdings[n].own == PLANNED) {
        arena->last_use[n] = last_use;
    } else {
        give_own_back(arena, arena->holdings[n].own, last_use);
    }
}

/* ---- facts and adoption ---- */

void tsri_arena_get_stats(const tsri_arena *arena, tsri_arena_stats *out)
{
    *out = (tsri_arena_stats){.departures = arena->departures,
                              .departure_label = arena->departure_label};
    if (arena->plan == NULL) {
        return;
    }
    out->planned_bytes = arena->plan->bytes;
    out->live_peak_bytes = arena->plan->live_peak_bytes;
    memcpy(out->kind_at_peak, arena->plan->kind_at_peak, sizeof(out->kind_at_peak));
    memcpy(out->kind_peak, arena->plan->kind_peak, sizeof(out->kind_peak));
    out->peak_label = arena->plan->peak_label;
    out->interval_count = arena->plan->count;
}

size_t tsri_arena_peak_bytes(const tsri_arena *arena, tsri_mem_kind kind, size_t bytes)
{
    const tsri_arena_plan *plan = arena->plan;
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
    return arena->count;
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
    size_t peak = 0;
    for (int at = first; arena->plan != NULL && at < end && at < arena->plan->count; at++) {
        const size_t bytes = alive_at(arena->plan, kinds, at);
        peak = bytes > peak ? bytes : peak;
    }
    return peak;
}

tsr_status tsri_arena_adopt(tsri_arena *arena, const tsri_arena *from)
{
    tsri_arena_plan *plan = NULL;
    if (arena->in_step || from->plan == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "plan adopted %s",
                         arena->in_step ? "inside a step" : "from an arena that has none");
    }
    TSR_TRY(sync_streams(arena));
    free_idle_buffers(arena);
    TSR_TRY(tsri_arena_plan_copy(from->plan, &plan));
    TSR_TRY(install_plan(arena, plan));
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
