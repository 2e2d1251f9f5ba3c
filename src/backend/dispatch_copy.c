/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Copies, in dispatch's shape: between the program's memory and a buffer, and between buffers.
 *
 * No backend's copy blocks. So what a write takes from the program is copied to staging first, and
 * what a reading brings comes to staging; only whoever waits lends his own memory. */
#include "backend/backend_priv.h"

#include "base/base.h"

#include <string.h>

/* ---- with the program's memory ---- */

static tsr_status host_copy_check(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                                  tsri_copy_kind kind, const tsr_stream *stream)
{
    const tsri_access access = {buffer, offset, bytes, kind == TSRI_COPY_WRITE};
    const char *what = tsri_copy_name(kind);
    if (stream == NULL || (host == NULL && bytes > 0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %zu bytes without %s", what, bytes,
                         stream == NULL ? "a stream" : "host memory");
    }
    TSR_TRY(tsri_check_range(stream, &access, what, buffer == NULL ? NULL : buffer->label));
    return TSR_OK;
}

static tsr_status host_copy_begin(tsr_buffer *buffer, size_t offset, size_t bytes,
                                  tsri_copy_kind kind, tsr_stream *stream)
{
    const tsri_access access = {buffer, offset, bytes, kind == TSRI_COPY_WRITE};
    const tsri_entry entry = {
        .kind = TSRI_ENTRY_COPY, .op = (int)kind, .label = buffer->label, .bytes = bytes};
    TSR_TRY(tsri_op_begin(stream, &entry, &access, 1));
    return TSR_OK;
}

/* host stays valid: until the stream is past the write, or until the program has waited. */
static tsr_status write_from(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                             tsr_stream *stream)
{
    tsr_status status = TSR_OK;
    TSR_TRY(host_copy_begin(buffer, offset, bytes, TSRI_COPY_WRITE, stream));
    TSR_TRY_GOTO(status, stream->device->backend->write(buffer, offset, host, bytes, stream), undo);
    return TSR_OK;
undo:
    tsri_op_undo(stream);
    return status;
}

tsr_status tsri_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                      tsr_stream *stream)
{
    void *staged = NULL;
    TSR_TRY(host_copy_check(buffer, offset, host, bytes, TSRI_COPY_WRITE, stream));
    const tsr_backend *backend = stream->device->backend;
    if (bytes == 0) {
        return TSR_OK;
    }
    if (bytes > TSRI_STAGE_MOST || (backend->caps & TSR_CAP_EXECUTES) == 0) {
        TSR_TRY(write_from(buffer, offset, host, bytes, stream));
        TSR_TRY(backend->event_sync(tsri_event_record(stream)));
        return TSR_OK;
    }
    TSR_TRY(tsri_stage_take(stream->device, bytes, &staged));
    memcpy(staged, host, bytes);
    TSR_TRY(write_from(buffer, offset, staged, bytes, stream));
    tsri_stage_until(stream->device, tsri_event_record(stream));
    return TSR_OK;
}

static tsr_status read_to(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                          tsri_copy_kind kind, tsr_stream *stream)
{
    tsr_status status = TSR_OK;
    TSR_TRY(host_copy_begin(buffer, offset, bytes, kind, stream));
    TSR_TRY_GOTO(status, stream->device->backend->read(buffer, offset, host, bytes, stream), undo);
    return TSR_OK;
undo:
    tsri_op_undo(stream);
    return status;
}

tsr_status tsri_read(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                     tsr_stream *stream)
{
    TSR_TRY(host_copy_check(buffer, offset, host, bytes, TSRI_COPY_READ, stream));
    if (bytes > 0) {
        TSR_TRY(read_to(buffer, offset, host, bytes, TSRI_COPY_READ, stream));
        TSR_TRY(stream->device->backend->stream_sync(stream));
        tsri_recorder_host_join(stream);
    }
    return TSR_OK;
}

tsr_status tsri_read_begin(tsr_buffer *buffer, size_t offset, size_t bytes, tsr_stream *stream,
                           tsri_reading *out)
{
    tsri_reading reading = {.bytes = bytes};
    tsr_status status = TSR_OK;
    if (bytes > TSRI_READING_MOST || stream == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "a reading of %zu bytes%s, at most %d", bytes,
                         stream == NULL ? " without a stream" : "", TSRI_READING_MOST);
    }
    reading.device = stream->device;
    TSR_TRY(tsri_stage_slot(stream->device, &reading.staged));
    TSR_TRY_GOTO(status,
                 host_copy_check(buffer, offset, reading.staged, bytes, TSRI_COPY_FETCH, stream),
                 give);
    if (bytes > 0) {
        TSR_TRY_GOTO(status,
                     read_to(buffer, offset, reading.staged, bytes, TSRI_COPY_FETCH, stream), give);
        reading.there = tsri_event_record(stream);
    }
    *out = reading;
    return TSR_OK;
give:
    tsri_stage_give(stream->device, reading.staged);
    return status;
}

tsr_status tsri_read_end(tsri_reading *reading, void *host)
{
    tsr_status status = TSR_OK;
    if (reading->device == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "the end of a reading that nobody began");
    }
    TSR_TRY_GOTO(status, tsri_event_sync(reading->there), drop);
    if (reading->bytes > 0) {
        memcpy(host, reading->staged, reading->bytes);
    }
drop:
    tsri_read_drop(reading);
    return status;
}

/* Nobody gets the slot before the stream is past it. */
void tsri_read_drop(tsri_reading *reading)
{
    if (reading->device != NULL) {
        tsri_event_outlast(reading->there);
        tsri_stage_give(reading->device, reading->staged);
    }
    *reading = (tsri_reading){0};
}

/* ---- between buffers ---- */

static bool shares_bytes(const tsri_access *a, const tsri_access *b)
{
    return a->buffer == b->buffer && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

tsr_status tsri_copy(tsr_buffer *to, size_t to_offset, tsr_buffer *from, size_t from_offset,
                     size_t bytes, const char *label, tsr_stream *stream)
{
    const tsri_access access[] = {{from, from_offset, bytes, false}, {to, to_offset, bytes, true}};
    tsr_status status = TSR_OK;
    if (stream == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "copy of %zu bytes of %s without a stream", bytes,
                         label == NULL ? "?" : label);
    }
    TSR_TRY(tsri_check_range(stream, &access[0], "copy", label));
    TSR_TRY(tsri_check_range(stream, &access[1], "copy", label));
    if (bytes == 0) {
        return TSR_OK;
    }
    if (shares_bytes(&access[0], &access[1])) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "copy of %s: bytes %zu + %zu and %zu + %zu of buffer %llu overlap",
                         label == NULL ? "?" : label, from_offset, bytes, to_offset, bytes,
                         (unsigned long long)to->id);
    }
    const tsri_entry entry = {.kind = TSRI_ENTRY_COPY,
                              .op = to->host || from->host ? TSRI_COPY_HOST : TSRI_COPY_DEVICE,
                              .label = label,
                              .bytes = bytes};
    TSR_TRY(tsri_op_begin(stream, &entry, access, 2));
    TSR_TRY_GOTO(status,
                 stream->device->backend->copy(to, to_offset, from, from_offset, bytes, stream),
                 undo);
    return TSR_OK;
undo:
    tsri_op_undo(stream);
    return status;
}
