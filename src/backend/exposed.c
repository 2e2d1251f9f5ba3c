/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Exposed time from event times, where the host enqueues a step and waits for nothing in it.
 *
 * Around each wait of compute for another stream, and each collective on it, lie two timed events.
 * What is between them is time in which compute computed nothing. Spans that are over are added up
 * when somebody asks, or when many have come together; of more than TSRI_TIMED_EVENTS / 2 that are
 * not over, the oldest are lost. */
#include "backend/backend_priv.h"

#include "base/base.h"

typedef struct tsri_span {
    tsr_event begin, end;
} tsri_span;

static bool is_counted(const tsr_stream *stream)
{
    const tsr_backend *backend = stream->device->backend;

    return stream->kind == TSRI_STREAM_COMPUTE && backend->exposed_s == NULL &&
           (backend->caps & TSR_CAP_EXECUTES) != 0;
}

/* Add up what is over. Whoever has lost the times of a span loses the span. */
static void settle(tsri_exposure *exposure)
{
    int left = 0;

    for (int i = 0; i < exposure->count; i++) {
        const tsri_span span = exposure->spans[i];
        double seconds = 0.0;

        if (!tsri_event_done(span.end)) {
            exposure->spans[left++] = span;
        } else if (tsri_event_elapsed(span.begin, span.end, &seconds) == TSR_OK) {
            exposure->seconds += seconds;
        } else {
            tsr_error_clear();
        }
    }
    exposure->count = left;
}

tsr_event tsri_exposed_begin(tsr_stream *stream)
{
    return is_counted(stream) ? tsri_event_record_timed(stream) : (tsr_event){0};
}

void tsri_exposed_end(tsr_stream *stream, tsr_event begin)
{
    tsri_exposure *exposure = &stream->device->exposure;

    if (begin.stream == NULL) {
        return;
    }
    if (exposure->count == exposure->capacity) {
        settle(exposure);
    }
    if (tsri_grow(&exposure->spans, &exposure->capacity, exposure->count + 1, sizeof(tsri_span)) !=
        TSR_OK) {
        tsr_error_clear();
        return;
    }
    exposure->spans[exposure->count++] = (tsri_span){begin, tsri_event_record_timed(stream)};
}

void tsri_exposed_forget(const tsr_stream *stream)
{
    if (stream->kind == TSRI_STREAM_COMPUTE) {
        stream->device->exposure.count = 0;
    }
}

void tsri_exposed_free(tsr_device *device)
{
    tsri_free(&device->exposure.spans);
    device->exposure = (tsri_exposure){0};
}

double tsri_exposed_s(tsr_device *device)
{
    if (device->backend->exposed_s != NULL) {
        return device->backend->exposed_s(device);
    }
    settle(&device->exposure);
    return device->exposure.seconds;
}
