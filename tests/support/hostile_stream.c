/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Queues of the hostile backend, and who of them runs next.
 *
 * Every stream is a list of operations. advance() takes one from some stream whose next may run:
 * the first in an order of the streams that lasts some operations, or any. A collective that waits
 * for other ranks stands in nobody's way but its stream's. The host calls advance until it has what
 * it wants, and now and then longer.
 *
 * A stream that failed stands still: what is queued counts as over, whoever waits for it fails too.
 */
#include "support/hostile_stream.h"

#include "backend/recorder.h"
#include "base/base.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "support/hostile_coll.h"
#include "support/hostile_habits.h"

enum {
    FOREVER = 1 << 30
};

static const long nap_ns = 20000;
/* A host that is elsewhere for so long may be waiting for a rank that waits for it. */
static const double patience_s = 0.05;

/* ---- entering ---- */

void hostile_enter(hostile_device *device)
{
    const hostile_state *state = hostile_get_state();

    atomic_fetch_add(&device->calls, 1);
    (void)pthread_mutex_lock(&device->lock);
    if (device->generation != state->generation) {
        /* With even seeds ranks begin with the same habits, with odd ones each has its own. */
        const uint64_t seed = state->options.seed;
        const int64_t words[] = {(int64_t)seed, seed % 2 == 0 ? 0 : device->rank};

        device->generation = state->generation;
        device->random = tsri_hash(words, sizeof(words), 0);
        for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
            device->order[s] = s;
        }
        hostile_draw_habits(device);
    }
}

void hostile_leave(hostile_device *device)
{
    (void)pthread_mutex_unlock(&device->lock);
}

static void nap(hostile_device *device)
{
    const struct timespec time = {.tv_nsec = nap_ns};

    (void)pthread_mutex_unlock(&device->lock);
    (void)nanosleep(&time, NULL);
    (void)pthread_mutex_lock(&device->lock);
}

/* ---- running ---- */

tsr_status hostile_stream_check(const hostile_stream *stream)
{
    return stream->failed == TSR_OK ? TSR_OK : TSR_RAISE(stream->failed, "%s", stream->text);
}

static void free_op(hostile_op *op)
{
    hostile_coll_free(&op->coll);
    tsri_free(&op->owned);
    tsri_free(&op);
}

static void count_overtaken(const hostile_device *device, const hostile_op *op)
{
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        const hostile_stream *other = device->streams[s];

        if (other != NULL && other->first != NULL && other->first->order < op->order) {
            hostile_get_state()->overtaken++;
            return;
        }
    }
}

static void pop(hostile_stream *stream)
{
    hostile_device *device = (hostile_device *)stream->head.device;
    hostile_op *op = stream->first;

    stream->first = op->next;
    stream->last = stream->first == NULL ? NULL : stream->last;
    stream->count--;
    stream->done = op->seq > 0 ? op->seq : stream->done;
    if (op->kind == HOSTILE_MARK) {
        stream->passed = op->event.mark;
        stream->passed_s[op->event.mark % TSRI_TIMED_EVENTS] = tsri_now_s();
    }
    device->collectives -= op->kind == HOSTILE_COLLECTIVE;
    if (op->seq > 0) {
        count_overtaken(device, op);
    }
    free_op(op);
}

static void fail_with(hostile_stream *stream, tsr_status status, const char *text)
{
    stream->failed = status;
    (void)snprintf(stream->text, sizeof(stream->text), "%s", text);
    while (stream->first != NULL) {
        pop(stream);
    }
}

static void fail(hostile_stream *stream, tsr_status status)
{
    fail_with(stream, status, tsr_error_message());
    tsr_error_clear();
}

static bool reached(tsr_event event)
{
    const hostile_stream *stream = (const hostile_stream *)event.stream;

    return stream->done >= event.seq && stream->passed >= event.mark;
}

static bool run_wait(hostile_stream *stream, const hostile_op *op)
{
    const hostile_stream *other = (const hostile_stream *)op->event.stream;

    if (!reached(op->event)) {
        return false;
    }
    if (other->failed != TSR_OK) {
        fail(stream, hostile_stream_check(other));
        return true;
    }
    pop(stream);
    return true;
}

static bool run_launch(hostile_stream *stream, const hostile_op *op, double begin)
{
    const tsr_device *device = stream->head.device;
    const tsrk_context context = {.threads = device->threads};
    const tsr_status status = device->kernels->fn[op->kernel](op->owned, &context);

    if (status != TSR_OK) {
        fail(stream, status);
        return true;
    }
    tsri_record_time(stream->head.device, stream->head.kind, op->seq, begin, tsri_now_s());
    pop(stream);
    return true;
}

static bool run_collective(hostile_stream *stream, hostile_op *op)
{
    bool moved = false;
    bool over = false;
    const double begin = tsri_now_s();
    const tsr_status status = hostile_coll_step(op->coll, &moved, &over);

    if (status != TSR_OK) {
        fail(stream, status);
        return true;
    }
    if (over) {
        tsri_record_time(stream->head.device, stream->head.kind, op->seq, begin, tsri_now_s());
        pop(stream);
    }
    return moved;
}

/* False: the stream's next operation cannot go on now, or there is none. */
static bool run_next(hostile_stream *stream)
{
    hostile_op *op = stream == NULL ? NULL : stream->first;
    const double begin = tsri_now_s();

    if (op == NULL) {
        return false;
    }
    switch (op->kind) {
    case HOSTILE_WAIT:
        return run_wait(stream, op);
    case HOSTILE_COLLECTIVE:
        return run_collective(stream, op);
    case HOSTILE_LAUNCH:
        return run_launch(stream, op, begin);
    case HOSTILE_MARK:
        pop(stream);
        return true;
    case HOSTILE_WRITE:
    case HOSTILE_READ:
    case HOSTILE_COPY:
    default:
        memcpy(op->to, op->from, op->bytes);
        break;
    }
    tsri_record_time(stream->head.device, stream->head.kind, op->seq, begin, tsri_now_s());
    pop(stream);
    return true;
}

static const hostile_coll *next_collective(const hostile_stream *stream)
{
    const hostile_op *op = stream == NULL ? NULL : stream->first;

    return op != NULL && op->kind == HOSTILE_COLLECTIVE ? op->coll : NULL;
}

static bool run_first(hostile_device *device, bool skips_begun)
{
    for (int i = 0; i < TSRI_STREAM_COUNT; i++) {
        hostile_stream *stream = device->streams[device->order[i]];
        const hostile_coll *coll = next_collective(stream);

        if (device->order[i] == device->starved ||
            (skips_begun && coll != NULL && hostile_coll_has_begun(coll))) {
            continue;
        }
        if (run_next(stream)) {
            return true;
        }
        if (device->stubborn && coll != NULL && hostile_coll_waits_s(coll) < device->grace_s) {
            return false;
        }
    }
    return false;
}

/* Only where no other stream can go on, nor might soon. */
static bool run_starved(hostile_device *device)
{
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        const hostile_coll *coll = next_collective(device->streams[s]);

        if (s != device->starved && coll != NULL && hostile_coll_waits_s(coll) < device->grace_s) {
            return false;
        }
    }
    return device->starved >= 0 && run_next(device->streams[device->starved]);
}

/* False: nothing can go on now. */
static bool advance(hostile_device *device)
{
    device->quantum--;
    if (device->quantum < 0) {
        hostile_draw_habits(device);
    }
    if (device->alternates) {
        hostile_shuffle(device);
    }
    return (device->lingers && run_first(device, true)) || run_first(device, false) ||
           run_starved(device);
}

static void run_on(hostile_device *device)
{
    const uint64_t how = hostile_draw(device, 4);
    int most = how == 3 ? FOREVER : (int)hostile_draw(device, 32);

    while (how >= 2 && most > 0 && advance(device)) {
        most--;
    }
}

static void drain_to(hostile_stream *stream, int count)
{
    hostile_device *device = (hostile_device *)stream->head.device;

    while (stream->count > count) {
        if (!advance(device)) {
            nap(device);
        }
    }
}

void hostile_stream_drain(hostile_stream *stream)
{
    drain_to(stream, 0);
    run_on((hostile_device *)stream->head.device);
}

tsr_status hostile_stream_push(hostile_stream *stream, const hostile_op *op)
{
    hostile_device *device = (hostile_device *)stream->head.device;
    hostile_op *copy = NULL;

    TSR_TRY(tsri_alloc(1, sizeof(*copy), &copy));
    *copy = *op;
    copy->next = NULL;
    copy->order = ++device->enqueued;
    if (stream->count >= device->room) {
        drain_to(stream, (int)hostile_draw(device, (uint64_t)device->room));
        if (stream->failed != TSR_OK) {
            tsri_free(&copy);
            return hostile_stream_check(stream);
        }
    }
    if (stream->last == NULL) {
        stream->first = copy;
    } else {
        stream->last->next = copy;
    }
    stream->last = copy;
    stream->count++;
    device->collectives += op->kind == HOSTILE_COLLECTIVE;
    return TSR_OK;
}

/* ---- while the host is elsewhere ---- */

/* Ranks also wait for each other outside the backend. One that waits there for a rank whose
 * collective waits for it must go on here. */
static void *drive(void *context)
{
    hostile_device *device = context;
    const struct timespec tick = {.tv_nsec = 5000000};
    unsigned seen = 0;
    double since = tsri_now_s();

    while (!atomic_load(&device->closing)) {
        (void)nanosleep(&tick, NULL);
        if (atomic_load(&device->calls) != seen) {
            seen = atomic_load(&device->calls);
            since = tsri_now_s();
        }
        (void)pthread_mutex_lock(&device->lock);
        while (tsri_now_s() - since > patience_s && device->collectives > 0 &&
               atomic_load(&device->calls) == seen && !atomic_load(&device->closing)) {
            if (!advance(device)) {
                nap(device);
            }
        }
        (void)pthread_mutex_unlock(&device->lock);
    }
    return NULL;
}

tsr_status hostile_driver_start(hostile_device *device)
{
    if (pthread_create(&device->driver, NULL, drive, device) != 0) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no thread for a device");
    }
    device->has_driver = true;
    return TSR_OK;
}

void hostile_driver_stop(hostile_device *device)
{
    atomic_store(&device->closing, true);
    if (device->has_driver) {
        (void)pthread_join(device->driver, NULL);
    }
}

/* ---- the table's slots ---- */

tsr_status hostile_stream_open(tsr_device *device, tsri_stream_kind kind, tsr_stream **out)
{
    hostile_device *mine = (hostile_device *)device;
    hostile_stream *stream = NULL;

    TSR_TRY(tsri_alloc(1, sizeof(*stream), &stream));
    stream->head.device = device;
    stream->head.kind = kind;
    hostile_enter(mine);
    mine->streams[kind] = stream;
    hostile_leave(mine);
    *out = &stream->head;
    return TSR_OK;
}

void hostile_stream_close(tsr_stream *stream)
{
    hostile_device *device = (hostile_device *)stream->device;
    hostile_stream *mine = (hostile_stream *)stream;

    hostile_enter(device);
    hostile_stream_drain(mine);
    device->streams[stream->kind] = NULL;
    hostile_leave(device);
    tsri_free(&mine->passed_s);
    tsri_free(&mine);
}

tsr_status hostile_stream_wait(tsr_stream *stream, tsr_event event)
{
    hostile_device *device = (hostile_device *)stream->device;
    hostile_stream *mine = (hostile_stream *)stream;
    hostile_state *state = hostile_get_state();
    const hostile_op op = {.kind = HOSTILE_WAIT, .event = event};

    hostile_enter(device);
    state->waits++;
    tsr_status status = hostile_stream_check(mine);
    if (status == TSR_OK && !state->options.ignore_waits &&
        state->waits != state->options.drop_wait) {
        status = hostile_stream_push(mine, &op);
    }
    hostile_leave(device);
    return status;
}

tsr_status hostile_stream_sync(tsr_stream *stream)
{
    hostile_device *device = (hostile_device *)stream->device;
    hostile_stream *mine = (hostile_stream *)stream;

    hostile_enter(device);
    hostile_stream_drain(mine);
    const tsr_status status = hostile_stream_check(mine);
    hostile_leave(device);
    return status;
}

tsri_stream_state hostile_poll(tsr_stream *stream, char *text, size_t size)
{
    hostile_device *device = (hostile_device *)stream->device;
    const hostile_stream *mine = (const hostile_stream *)stream;

    hostile_enter(device);
    const hostile_coll *coll = next_collective(mine);
    const tsri_stream_state state = mine->failed != TSR_OK ? TSRI_STREAM_FAILED
                                    : mine->count == 0     ? TSRI_STREAM_DONE
                                    : coll != NULL && hostile_coll_is_late(coll, text, size)
                                        ? TSRI_STREAM_LATE
                                        : TSRI_STREAM_RUNNING;

    if (mine->failed != TSR_OK) {
        (void)snprintf(text, size, "%s", mine->text);
    }
    hostile_leave(device);
    return state;
}

void hostile_abort(tsr_stream *stream, tsr_status status, const char *text)
{
    hostile_device *device = (hostile_device *)stream->device;
    hostile_stream *mine = (hostile_stream *)stream;

    hostile_enter(device);
    if (mine->failed == TSR_OK) {
        fail_with(mine, status, text);
    }
    hostile_leave(device);
}

void hostile_event_record(tsr_stream *stream, bool timed, tsr_event *event)
{
    hostile_device *device = (hostile_device *)stream->device;
    hostile_stream *mine = (hostile_stream *)stream;
    hostile_op op = {.kind = HOSTILE_MARK};

    if (!timed || (mine->passed_s == NULL &&
                   tsri_alloc(TSRI_TIMED_EVENTS, sizeof(double), &mine->passed_s) != TSR_OK)) {
        return;
    }
    hostile_enter(device);
    op.event = *event;
    op.event.mark = mine->marked + 1;
    if (mine->failed == TSR_OK && hostile_stream_push(mine, &op) == TSR_OK) {
        event->mark = ++mine->marked;
    }
    hostile_leave(device);
}

tsr_status hostile_event_sync(tsr_event event)
{
    hostile_device *device = (hostile_device *)event.stream->device;

    hostile_enter(device);
    while (!reached(event)) {
        if (!advance(device)) {
            nap(device);
        }
    }
    run_on(device);
    const tsr_status status = hostile_stream_check((const hostile_stream *)event.stream);
    hostile_leave(device);
    return status;
}

tsr_status hostile_event_elapsed(tsr_event from, tsr_event to, double *seconds_out)
{
    hostile_device *device = (hostile_device *)from.stream->device;
    const hostile_stream *begin = (const hostile_stream *)from.stream;
    const hostile_stream *end = (const hostile_stream *)to.stream;

    hostile_enter(device);
    const bool known = from.mark > 0 && to.mark > 0 && begin->passed >= from.mark &&
                       end->passed >= to.mark && begin->marked < from.mark + TSRI_TIMED_EVENTS &&
                       end->marked < to.mark + TSRI_TIMED_EVENTS;
    if (known) {
        *seconds_out = end->passed_s[to.mark % TSRI_TIMED_EVENTS] -
                       begin->passed_s[from.mark % TSRI_TIMED_EVENTS];
    }
    hostile_leave(device);
    if (!known) {
        return TSR_RAISE(TSR_ERR_STATE, "an event that has no time, or none yet, or none any more");
    }
    return TSR_OK;
}

/* Who asks again and again must come to an end. */
bool hostile_event_done(tsr_event event)
{
    hostile_device *device = (hostile_device *)event.stream->device;

    hostile_enter(device);
    for (int most = 1 + (int)hostile_draw(device, 4); most > 0 && !reached(event); most--) {
        (void)advance(device);
    }
    const bool done = reached(event);
    hostile_leave(device);
    return done;
}

/* bytes of data are copied. */
static tsr_status enqueue(tsr_stream *stream, hostile_op *op, const void *data, size_t bytes)
{
    hostile_device *device = (hostile_device *)stream->device;
    hostile_stream *mine = (hostile_stream *)stream;
    tsr_status status = TSR_OK;

    if (bytes > 0) {
        TSR_TRY(tsri_alloc(bytes, 1, &op->owned));
        memcpy(op->owned, data, bytes);
        op->from = op->owned;
    }
    op->seq = stream->enqueued;
    hostile_enter(device);
    TSR_TRY_GOTO(status, hostile_stream_check(mine), leave);
    TSR_TRY_GOTO(status, hostile_stream_push(mine, op), leave);
    op->owned = NULL;
leave:
    hostile_leave(device);
    tsri_free(&op->owned);
    return status;
}

tsr_status hostile_launch(tsr_stream *stream, tsrk_id kernel, const void *args, size_t args_bytes)
{
    hostile_op op = {.kind = HOSTILE_LAUNCH, .kernel = kernel};

    return enqueue(stream, &op, args, args_bytes);
}

tsr_status hostile_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                         tsr_stream *stream)
{
    hostile_op op = {.kind = HOSTILE_WRITE,
                     .to = (unsigned char *)buffer->address + offset,
                     .from = host,
                     .bytes = bytes};

    return enqueue(stream, &op, NULL, 0);
}

tsr_status hostile_read(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                        tsr_stream *stream)
{
    hostile_op op = {.kind = HOSTILE_READ,
                     .to = host,
                     .from = (unsigned char *)buffer->address + offset,
                     .bytes = bytes};

    return enqueue(stream, &op, NULL, 0);
}

tsr_status hostile_copy(tsr_buffer *to, size_t to_offset, const tsr_buffer *from,
                        size_t from_offset, size_t bytes, tsr_stream *stream)
{
    hostile_op op = {.kind = HOSTILE_COPY,
                     .to = (unsigned char *)to->address + to_offset,
                     .from = (const unsigned char *)from->address + from_offset,
                     .bytes = bytes};

    return enqueue(stream, &op, NULL, 0);
}
