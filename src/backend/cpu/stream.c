/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file stream.c
 * Streams from the caller's side: enqueue, wait, synchronise.
 *
 * The compute stream has no queue: what is enqueued is done when the call returns. Any other
 * stream is a ring with one writer (the caller) and one reader (the progress thread); an operation
 * counts as done when completed has reached its seq. After a failure the stream stands still: the
 * progress thread empties it, and every later call returns that first failure.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/dispatch.h"

#include <string.h>

tsr_status tsri_cpu_stream_open(tsr_device *device, tsri_stream_kind kind, tsr_stream **out)
{
    tsri_cpu_device *cpu = (tsri_cpu_device *)device;
    tsri_cpu_stream *stream = NULL;
    tsr_status status = TSR_OK;

    if (cpu->stream[kind] != NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "stream kind %d is open already", (int)kind);
    }
    TSR_TRY(tsri_alloc(1, sizeof *stream, &stream));
    stream->head.device = device;
    stream->head.kind = kind;
    if (kind != TSRI_STREAM_COMPUTE) {
        TSR_TRY_GOTO(status, tsri_alloc(TSRI_CPU_QUEUE, sizeof *stream->queue, &stream->queue),
                     free_stream);
    }
    (void)pthread_mutex_lock(&cpu->lock);
    cpu->stream[kind] = stream;
    (void)pthread_mutex_unlock(&cpu->lock);
    *out = &stream->head;
    return TSR_OK;

free_stream:
    tsri_free(&stream);
    return status;
}

void tsri_cpu_stream_close(tsr_stream *stream)
{
    tsri_cpu_device *cpu = (tsri_cpu_device *)stream->device;
    tsri_cpu_stream *mine = (tsri_cpu_stream *)stream;

    tsri_cpu_stream_drain(mine); /* failures were told to whoever enqueued or synchronised */
    /* The progress thread holds the lock while it looks at streams. */
    (void)pthread_mutex_lock(&cpu->lock);
    cpu->stream[stream->kind] = NULL;
    (void)pthread_mutex_unlock(&cpu->lock);
    tsri_free(&mine->queue);
    tsri_free(&mine->marks);
    tsri_free(&mine);
}

tsr_status tsri_cpu_stream_check(tsri_cpu_stream *stream)
{
    tsr_status failed = (tsr_status)atomic_load_explicit(&stream->failed, memory_order_acquire);

    return failed == TSR_OK ? TSR_OK : TSR_RAISE(failed, "%s", stream->text);
}

static void fail_with(tsri_cpu_device *device, tsri_cpu_stream *stream, tsr_status status,
                      const char *text)
{
    if (atomic_exchange(&stream->fails, true)) {
        return;
    }
    (void)snprintf(stream->text, sizeof stream->text, "%s", text);
    atomic_store_explicit(&stream->failed, status, memory_order_release);
    for (tsri_cpu_group *group = device->groups; group != NULL; group = group->next) {
        if (group->head.stream_kind == stream->head.kind) {
            tsri_cpu_group_break(group, status, text);
        }
    }
}

void tsri_cpu_stream_fail(tsri_cpu_device *device, tsri_cpu_stream *stream, tsr_status status)
{
    fail_with(device, stream, status, tsr_error_message());
}

void tsri_cpu_abort(tsr_stream *stream, tsr_status status, const char *text)
{
    tsri_cpu_device *device = (tsri_cpu_device *)stream->device;

    (void)pthread_mutex_lock(&device->lock); /* of the list of groups */
    fail_with(device, (tsri_cpu_stream *)stream, status, text);
    (void)pthread_mutex_unlock(&device->lock);
    tsri_cpu_ring(device->control);
}

static bool idle(const tsri_cpu_stream *stream)
{
    return atomic_load_explicit(&stream->popped, memory_order_acquire) ==
           atomic_load_explicit(&stream->pushed, memory_order_relaxed);
}

static tsri_cpu_mark *mark_of(const tsri_cpu_stream *stream, uint64_t mark)
{
    return &stream->marks[mark % TSRI_TIMED_EVENTS];
}

/* What waits has a limit of its own (watch.c), so a stream fails instead of being late. */
tsri_stream_state tsri_cpu_poll(tsr_stream *stream, char *text, size_t size)
{
    const tsri_cpu_stream *mine = (const tsri_cpu_stream *)stream;

    if (atomic_load_explicit(&mine->failed, memory_order_acquire) != TSR_OK) {
        (void)snprintf(text, size, "%s", mine->text);
        return TSRI_STREAM_FAILED;
    }
    return mine->queue == NULL
               ? (atomic_load(&mine->waits) ? TSRI_STREAM_RUNNING : TSRI_STREAM_DONE)
           : idle(mine) ? TSRI_STREAM_DONE
                        : TSRI_STREAM_RUNNING;
}

/* A mark that a later one has replaced is reached. */
static bool reached(const tsri_cpu_stream *stream, tsr_event event)
{
    return stream->queue == NULL ||
           (atomic_load_explicit(&stream->completed, memory_order_acquire) >= event.seq &&
            (event.mark == 0 || atomic_load_explicit(&mark_of(stream, event.mark)->number,
                                                     memory_order_acquire) >= event.mark));
}

bool tsri_cpu_event_done(tsr_event event)
{
    return event.stream == NULL || reached((tsri_cpu_stream *)event.stream, event);
}

void tsri_cpu_mark_now(tsri_cpu_stream *stream, uint64_t mark)
{
    mark_of(stream, mark)->at_s = tsri_now_s();
    atomic_store_explicit(&mark_of(stream, mark)->number, mark, memory_order_release);
}

/* What a failed stream discards counts as over, but its failure is there before that. So whether it
 * is over is asked first: the other way round, a failure in between would be missed. */
tsr_status tsri_cpu_event_look(tsr_event event, bool *over_out)
{
    *over_out = tsri_cpu_event_done(event);
    return event.stream == NULL ? TSR_OK : tsri_cpu_stream_check((tsri_cpu_stream *)event.stream);
}

/* Block until stream has room for an entry, and return it; push makes it visible. */
static tsri_cpu_entry *next_entry(tsri_cpu_device *device, tsri_cpu_stream *stream)
{
    uint64_t at = atomic_load_explicit(&stream->pushed, memory_order_relaxed);

    for (;;) {
        uint32_t seen = tsri_cpu_bell(device);
        if (at - atomic_load_explicit(&stream->popped, memory_order_acquire) < TSRI_CPU_QUEUE) {
            return &stream->queue[at % TSRI_CPU_QUEUE];
        }
        tsri_cpu_pause(device, seen, TSRI_CPU_NAP_S);
    }
}

static void push(tsri_cpu_device *device, tsri_cpu_stream *stream)
{
    (void)atomic_fetch_add_explicit(&stream->pushed, 1, memory_order_release);
    tsri_cpu_ring(device->control);
}

/* Untimed, an event is its stream and seq. */
void tsri_cpu_event_record(tsr_stream *stream, bool timed, tsr_event *event)
{
    tsri_cpu_stream *mine = (tsri_cpu_stream *)stream;

    if (!timed) {
        return;
    }
    if (mine->marks == NULL &&
        tsri_alloc(TSRI_TIMED_EVENTS, sizeof *mine->marks, &mine->marks) != TSR_OK) {
        tsr_error_clear(); /* then it has no time, which who asks is told */
        return;
    }
    event->mark = ++mine->marked;
    if (mine->queue == NULL || idle(mine)) {
        tsri_cpu_mark_now(mine, event->mark);
        return;
    }
    tsri_cpu_entry *entry = next_entry((tsri_cpu_device *)stream->device, mine);
    entry->kind = TSRI_CPU_MARK;
    entry->seq = 0;
    entry->as.event = *event;
    push((tsri_cpu_device *)stream->device, mine);
}

tsr_status tsri_cpu_event_elapsed(tsr_event from, tsr_event to, double *seconds_out)
{
    const tsr_event events[] = {from, to};
    double at_s[2];

    for (int i = 0; i < 2; i++) {
        const tsri_cpu_stream *stream = (const tsri_cpu_stream *)events[i].stream;

        if (events[i].mark == 0 || !reached(stream, events[i])) {
            return TSR_RAISE(TSR_ERR_STATE, "event %s:%llu is not %s",
                             tsri_stream_name(stream->head.kind), (unsigned long long)events[i].seq,
                             events[i].mark == 0 ? "timed" : "reached");
        }
        if (atomic_load(&mark_of(stream, events[i].mark)->number) != events[i].mark) {
            return TSR_RAISE(TSR_ERR_STATE, "%s has taken %d timed events since %s:%llu",
                             tsri_stream_name(stream->head.kind), TSRI_TIMED_EVENTS,
                             tsri_stream_name(stream->head.kind),
                             (unsigned long long)events[i].seq);
        }
        at_s[i] = mark_of(stream, events[i].mark)->at_s;
    }
    *seconds_out = at_s[1] - at_s[0];
    return TSR_OK;
}

/* The caller itself did operation seq of an idle stream. */
static void done_here(tsri_cpu_stream *stream)
{
    atomic_store_explicit(&stream->completed, stream->head.enqueued, memory_order_release);
}

/* waited_s += the seconds that it took. */
static tsr_status wait_here(tsri_cpu_device *device, tsr_event event, double *waited_s)
{
    double begin = 0;
    bool over = false;

    for (;;) {
        uint32_t seen = tsri_cpu_bell(device);
        TSR_TRY(tsri_cpu_event_look(event, &over));
        if (over) {
            *waited_s += begin > 0 ? tsri_now_s() - begin : 0;
            return TSR_OK;
        }
        begin = begin > 0 ? begin : tsri_now_s();
        tsri_cpu_pause(device, seen, TSRI_CPU_NAP_S);
    }
}

tsr_status tsri_cpu_stream_wait(tsr_stream *stream, tsr_event event)
{
    tsri_cpu_device *device = (tsri_cpu_device *)stream->device;
    tsri_cpu_stream *mine = (tsri_cpu_stream *)stream;
    tsri_cpu_stream *other = (tsri_cpu_stream *)event.stream;

    bool over = false;

    TSR_TRY(tsri_cpu_stream_check(mine));
    if (other == NULL || other == mine) {
        return TSR_OK;
    }
    if (mine->queue == NULL) {
        atomic_store(&mine->waits, true);
        const tsr_status status = wait_here(device, event, &device->exposed_s);

        atomic_store(&mine->waits, false);
        return status;
    }
    TSR_TRY(tsri_cpu_event_look(event, &over));
    /* An event that is over stays so, whatever else is still queued before this wait. */
    if (over) {
        return TSR_OK;
    }
    tsri_cpu_entry *entry = next_entry(device, mine);
    entry->kind = TSRI_CPU_WAIT;
    entry->seq = 0;
    entry->as.event = event;
    push(device, mine);
    return TSR_OK;
}

tsr_status tsri_cpu_event_sync(tsr_event event)
{
    double waited_s = 0;

    return wait_here((tsri_cpu_device *)event.stream->device, event, &waited_s);
}

void tsri_cpu_stream_drain(tsri_cpu_stream *stream)
{
    tsri_cpu_device *device = (tsri_cpu_device *)stream->head.device;

    while (stream->queue != NULL) {
        uint32_t seen = tsri_cpu_bell(device);
        if (idle(stream)) {
            return;
        }
        tsri_cpu_pause(device, seen, TSRI_CPU_NAP_S);
    }
}

tsr_status tsri_cpu_stream_sync(tsr_stream *stream)
{
    tsri_cpu_stream *mine = (tsri_cpu_stream *)stream;

    tsri_cpu_stream_drain(mine);
    return tsri_cpu_stream_check(mine);
}

tsr_status tsri_cpu_launch(tsr_stream *stream, tsrk_id kernel, const void *args, size_t args_bytes)
{
    tsri_cpu_device *device = (tsri_cpu_device *)stream->device;
    tsri_cpu_stream *mine = (tsri_cpu_stream *)stream;

    if (args_bytes > TSRK_ARGS_MAX_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "kernel %s with %zu bytes of arguments, at most %d",
                         tsrk_name(kernel), args_bytes, TSRK_ARGS_MAX_BYTES);
    }
    TSR_TRY(tsri_cpu_stream_check(mine));
    if (mine->queue == NULL) {
        double begin = device->head.recorder == NULL ? 0 : tsri_now_s();
        const tsrk_context context = {.threads = device->head.threads};
        const tsr_status status = device->head.kernels->fn[kernel](args, &context);

        if (status != TSR_OK) {
            tsri_cpu_stream_fail(device, mine, status);
            return tsr_error_pass(status, __FILE__, __LINE__, __func__);
        }
        tsri_cpu_record(mine, stream->enqueued, begin);
        return TSR_OK;
    }
    TSR_TRY(tsri_cpu_progress_start(device));
    tsri_cpu_entry *entry = next_entry(device, mine);
    entry->kind = TSRI_CPU_LAUNCH;
    entry->seq = stream->enqueued;
    entry->as.launch.kernel = kernel;
    memcpy(entry->as.launch.args, args, args_bytes);
    push(device, mine);
    return TSR_OK;
}

tsr_status tsri_cpu_submit(tsri_cpu_stream *stream, const tsri_cpu_op *op)
{
    tsri_cpu_device *device = (tsri_cpu_device *)stream->head.device;

    TSR_TRY(tsri_cpu_progress_start(device));
    tsri_cpu_entry *entry = next_entry(device, stream);
    entry->kind = TSRI_CPU_COLLECTIVE;
    entry->seq = stream->head.enqueued;
    entry->as.op = *op;
    push(device, stream);
    return TSR_OK;
}

/* Of what is short enough for the caller to do where the stream has nothing else to do. */
#define HERE_BYTES ((size_t)1 << 20)

static tsr_status move_bytes(tsr_stream *stream, unsigned char *to, const unsigned char *from,
                             size_t bytes)
{
    tsri_cpu_device *device = (tsri_cpu_device *)stream->device;
    tsri_cpu_stream *mine = (tsri_cpu_stream *)stream;

    TSR_TRY(tsri_cpu_stream_check(mine));
    if (mine->queue == NULL || (bytes <= HERE_BYTES && idle(mine))) {
        double begin = device->head.recorder == NULL ? 0 : tsri_now_s();
        tsri_cpu_copy(to, from, bytes, bytes > device->cache_bytes);
        tsri_cpu_record(mine, stream->enqueued, begin);
        done_here(mine);
        return TSR_OK;
    }
    TSR_TRY(tsri_cpu_progress_start(device));
    tsri_cpu_entry *entry = next_entry(device, mine);
    entry->kind = TSRI_CPU_COPY;
    entry->seq = stream->enqueued;
    entry->begin_s = 0;
    entry->as.copy.to = to;
    entry->as.copy.from = from;
    entry->as.copy.bytes = bytes;
    entry->as.copy.at = 0;
    push(device, mine);
    return TSR_OK;
}

tsr_status tsri_cpu_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                          tsr_stream *stream)
{
    return move_bytes(stream, (unsigned char *)buffer->address + offset, host, bytes);
}

tsr_status tsri_cpu_read(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                         tsr_stream *stream)
{
    return move_bytes(stream, host, (const unsigned char *)buffer->address + offset, bytes);
}

tsr_status tsri_cpu_copy_buffer(tsr_buffer *to, size_t to_offset, const tsr_buffer *from,
                                size_t from_offset, size_t bytes, tsr_stream *stream)
{
    return move_bytes(stream, (unsigned char *)to->address + to_offset,
                      (const unsigned char *)from->address + from_offset, bytes);
}
