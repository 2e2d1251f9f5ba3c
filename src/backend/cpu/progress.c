/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file progress.c
 * Execution: the progress thread over all queues, and the loop that runs one operation here.
 *
 * The thread advances the first entry of every queue by one bounded step in turn, so a long copy
 * on one stream delays the others by a step at most, and an operation that waits delays nobody.
 * It sleeps when a whole round moved nothing.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/recorder.h"

#include <signal.h>
#include <string.h>

void tsri_cpu_record(tsri_cpu_stream *stream, uint64_t seq, double begin_s)
{
    tsr_device *device = stream->head.device;

    if (device->recorder != NULL && begin_s > 0) {
        tsri_record_time(device, stream->head.kind, seq, begin_s, tsri_now_s());
    }
}

/* True: the last of it is copied. */
static bool step_copy(const tsri_cpu_device *device, tsri_cpu_entry *entry)
{
    const size_t at = entry->as.copy.at;
    const size_t left = entry->as.copy.bytes - at;
    const size_t bytes = left < TSRI_CPU_STEP_BYTES ? left : TSRI_CPU_STEP_BYTES;

    tsri_cpu_copy(entry->as.copy.to + at, entry->as.copy.from + at, bytes,
                  entry->as.copy.bytes > device->cache_bytes);
    entry->as.copy.at = at + bytes;
    return bytes == left;
}

/* Beside compute, which has the others. */
static const tsrk_context one_thread = {.threads = 1};

static tsr_status step_entry(tsri_cpu_device *device, tsri_cpu_stream *stream,
                             tsri_cpu_entry *entry, tsri_cpu_activity *activity, bool *done_out)
{
    double begin = device->head.recorder == NULL ? 0 : tsri_now_s();

    *done_out = true;
    switch (entry->kind) {
    case TSRI_CPU_WAIT:
        TSR_TRY(tsri_cpu_event_look(entry->as.event, done_out));
        activity->pending = activity->pending || !*done_out;
        return TSR_OK;
    case TSRI_CPU_LAUNCH:
        TSR_TRY(
            device->head.kernels->fn[entry->as.launch.kernel](entry->as.launch.args, &one_thread));
        break;
    case TSRI_CPU_MARK:
        tsri_cpu_mark_now(stream, entry->as.event.mark);
        return TSR_OK;
    case TSRI_CPU_COPY:
        begin = entry->begin_s > 0 ? entry->begin_s : begin;
        entry->begin_s = begin;
        *done_out = step_copy(device, entry);
        activity->moved = true;
        break;
    case TSRI_CPU_COLLECTIVE:
        TSR_TRY(tsri_cpu_op_step(&entry->as.op, activity));
        *done_out = entry->as.op.state == TSRI_CPU_DONE;
        begin = entry->as.op.begin_s;
        break;
    }
    if (*done_out) {
        tsri_cpu_record(stream, entry->seq, begin);
    }
    return TSR_OK;
}

/* Drop what a failed stream still holds; its operations count as over. */
static void discard_entry(tsri_cpu_stream *stream, tsri_cpu_entry *entry)
{
    if (entry->kind == TSRI_CPU_MARK) {
        tsri_cpu_mark_now(stream, entry->as.event.mark);
    }
}

static void advance(tsri_cpu_device *device, tsri_cpu_stream *stream, tsri_cpu_activity *activity)
{
    uint64_t at = atomic_load_explicit(&stream->popped, memory_order_relaxed);
    bool done = true;

    if (stream->queue == NULL ||
        at == atomic_load_explicit(&stream->pushed, memory_order_acquire)) {
        return;
    }
    tsri_cpu_entry *entry = &stream->queue[at % TSRI_CPU_QUEUE];
    if (atomic_load_explicit(&stream->failed, memory_order_relaxed) != TSR_OK) {
        discard_entry(stream, entry);
    } else {
        tsr_status status = step_entry(device, stream, entry, activity, &done);
        if (status != TSR_OK) {
            tsri_cpu_stream_fail(device, stream, status);
            tsr_error_clear();
            done = true;
        }
    }
    if (!done) {
        return;
    }
    if (entry->seq != 0) {
        atomic_store_explicit(&stream->completed, entry->seq, memory_order_release);
    }
    atomic_store_explicit(&stream->popped, at + 1, memory_order_release);
    activity->moved = true;
    tsri_cpu_ring(device->control);
}

static void *progress_main(void *argument)
{
    tsri_cpu_device *device = argument;
    int looks = 0;

    while (!atomic_load(&device->stop)) {
        tsri_cpu_activity activity = {0};
        uint32_t seen = tsri_cpu_bell(device);
        (void)pthread_mutex_lock(&device->lock);
        for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
            if (device->stream[kind] != NULL) {
                advance(device, device->stream[kind], &activity);
            }
        }
        (void)pthread_mutex_unlock(&device->lock);
        if (activity.moved) {
            looks = 0;
        } else if (activity.polls) {
            /* The caller's thread computes meanwhile and may want this core. */
            tsri_cpu_poll_pause(device, seen, looks++, TSRI_CPU_POLL_FEW);
        } else {
            tsri_cpu_pause(device, seen, activity.pending ? TSRI_CPU_NAP_S : 10 * TSRI_CPU_NAP_S);
        }
    }
    return NULL;
}

tsr_status tsri_cpu_progress_start(tsri_cpu_device *device)
{
    sigset_t all;
    sigset_t before;

    if (device->running) {
        return TSR_OK;
    }
    /* Signals are the program's: none is delivered to this thread. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&device->thread, NULL, progress_main, device);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        return TSR_RAISE(TSR_ERR_DEVICE, "pthread_create: %s", strerror(code));
    }
    device->running = true;
    return TSR_OK;
}

void tsri_cpu_progress_stop(tsri_cpu_device *device)
{
    if (!device->running) {
        return;
    }
    atomic_store(&device->stop, true);
    tsri_cpu_ring(device->control);
    (void)pthread_join(device->thread, NULL);
    device->running = false;
}

tsr_status tsri_cpu_run(tsri_cpu_device *device, tsri_cpu_op *op)
{
    int yields = device->spin_s > 0 ? TSRI_CPU_POLL_MANY : TSRI_CPU_POLL_FEW;
    int looks = 0;

    for (;;) {
        tsri_cpu_activity activity = {0};
        uint32_t seen = tsri_cpu_bell(device);
        TSR_TRY(tsri_cpu_op_step(op, &activity));
        if (op->state == TSRI_CPU_DONE) {
            return TSR_OK;
        }
        if (activity.moved) {
            looks = 0;
        } else if (activity.polls) {
            tsri_cpu_poll_pause(device, seen, looks++, yields);
        } else if (!tsri_cpu_linger(device, seen)) {
            tsri_cpu_pause(device, seen, TSRI_CPU_NAP_S);
        }
    }
}
