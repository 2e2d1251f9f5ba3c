/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The watch over a device's streams: what waits for other ranks for too long is ended.
 *
 * The job's watchdog looks about once a second. A stream that is late then fails, and with it
 * whoever waits for it, so that the host comes back and says why; nobody waits for ever for a rank
 * that does not come. Backends that look at the clock themselves are never late. */
#include "backend/backend_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include <pthread.h>

struct tsri_guard {
    pthread_mutex_t lock; /* of streams, which the watchdog's thread reads */
    tsr_stream *streams[TSRI_STREAM_COUNT];
};

static void look(void *context)
{
    struct tsri_guard *guard = context;
    char text[320];

    (void)pthread_mutex_lock(&guard->lock);
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        tsr_stream *stream = guard->streams[kind];

        if (stream != NULL && tsri_stream_poll(stream, text, sizeof(text)) == TSRI_STREAM_LATE) {
            tsri_stream_abort(stream, TSR_ERR_COMM, text);
        }
    }
    (void)pthread_mutex_unlock(&guard->lock);
}

tsr_status tsri_guard_open(tsr_device *device)
{
    struct tsri_guard *guard = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*guard), &guard));
    (void)pthread_mutex_init(&guard->lock, NULL);
    TSR_TRY_GOTO(status, tsri_boot_look_add(look, guard), free_guard);
    device->guard = guard;
    return TSR_OK;
free_guard:
    (void)pthread_mutex_destroy(&guard->lock);
    tsri_free(&guard);
    return status;
}

void tsri_guard_stream(tsr_device *device, tsri_stream_kind kind, tsr_stream *stream)
{
    if (device->guard != NULL) {
        (void)pthread_mutex_lock(&device->guard->lock);
        device->guard->streams[kind] = stream;
        (void)pthread_mutex_unlock(&device->guard->lock);
    }
}

void tsri_guard_close(tsr_device *device)
{
    if (device->guard != NULL) {
        tsri_boot_look_remove(look, device->guard);
        (void)pthread_mutex_destroy(&device->guard->lock);
        tsri_free(&device->guard);
    }
}
