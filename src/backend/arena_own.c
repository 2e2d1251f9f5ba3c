/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The arena's streams, and its buffers outside the plans: each one range at a time, kept for reuse
 * by the same rule as planned memory: wait for the last use, then take. */
#include "backend/arena_priv.h"

#include "base/base.h"

#include <string.h>

/* ---- streams ---- */

void tsri_arena_see_stream(tsri_arena *arena, tsr_stream *stream)
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

tsr_status tsri_arena_wait_for(tsri_arena *arena, tsr_stream *stream, tsr_event event)
{
    if (event.stream == NULL || event.stream == stream ||
        event.seq <= arena->waited[stream->kind][event.stream->kind]) {
        return TSR_OK;
    }
    TSR_TRY(tsri_stream_wait(stream, event));
    arena->waited[stream->kind][event.stream->kind] = event.seq;
    return TSR_OK;
}

void tsri_arena_keep_latest(tsr_event latest[TSRI_STREAM_COUNT], tsr_event event)
{
    if (event.stream != NULL && event.seq >= latest[event.stream->kind].seq) {
        latest[event.stream->kind] = event;
    }
}

/* Blocks. Every stream is tried; returns the first failure. */
tsr_status tsri_arena_sync(const tsri_arena *arena)
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

void tsri_arena_free_idle(tsri_arena *arena)
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

bool tsri_arena_has_idle(const tsri_arena *arena)
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
    TSR_TRY(tsri_grow(&arena->own, &arena->own_capacity, place + 1, sizeof(tsri_own_buffer)));
    TSR_TRY(tsri_grow(&arena->idle, &arena->idle_capacity, place + 1, sizeof(*arena->idle)));
    arena->own[place] = (tsri_own_buffer){0};
    TSR_TRY(tsri_buffer_alloc(arena->device, size, kind, label, &arena->own[place].buffer));
    if (place == arena->own_count) {
        arena->own_count++;
    }
    arena->own_full = place + 1;
    *out = place;
    return TSR_OK;
}

tsr_status tsri_arena_take_own(tsri_arena *arena, const tsri_interval *interval, tsr_stream *stream,
                               int *out)
{
    int place = take_idle(arena, interval->size, interval->kind);
    if (place < 0) {
        TSR_TRY(add_own(arena, interval->size, interval->kind, interval->label, &place));
    }
    const tsr_status status = tsri_arena_wait_for(arena, stream, arena->own[place].last_use);
    if (status != TSR_OK) {
        add_idle(arena, place);
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    arena->own[place].is_busy = true;
    *out = place;
    return TSR_OK;
}

void tsri_arena_give_own(tsri_arena *arena, int own, tsr_event last_use)
{
    arena->own[own].last_use = last_use;
    arena->own[own].is_busy = false;
    add_idle(arena, own);
}
