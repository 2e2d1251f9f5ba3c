/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Copies, in dispatch's shape: between the program's memory and a buffer, and between buffers. */
#include "backend/backend_priv.h"

#include "base/base.h"

/* ---- with the program's memory ---- */

static tsr_status host_copy_begin(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                                  tsri_copy_kind kind, tsr_stream *stream)
{
    const tsri_access access = {buffer, offset, bytes, kind == TSRI_COPY_WRITE};
    const char *what = tsri_copy_name(kind);
    if (stream == NULL || (host == NULL && bytes > 0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %zu bytes without %s", what, bytes,
                         stream == NULL ? "a stream" : "host memory");
    }
    TSR_TRY(tsri_check_range(stream, &access, what, buffer == NULL ? NULL : buffer->label));
    if (bytes == 0) {
        return TSR_OK;
    }
    const tsri_entry entry = {
        .kind = TSRI_ENTRY_COPY, .op = (int)kind, .label = buffer->label, .bytes = bytes};
    TSR_TRY(tsri_op_begin(stream, &entry, &access, 1));
    return TSR_OK;
}

tsr_status tsri_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                      tsr_stream *stream)
{
    tsr_status status = TSR_OK;
    TSR_TRY(host_copy_begin(buffer, offset, host, bytes, TSRI_COPY_WRITE, stream));
    if (bytes > 0) {
        TSR_TRY_GOTO(status, stream->device->backend->write(buffer, offset, host, bytes, stream),
                     undo);
    }
    return TSR_OK;
undo:
    tsri_op_undo(stream);
    return status;
}

tsr_status tsri_read(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                     tsr_stream *stream)
{
    tsr_status status = TSR_OK;
    TSR_TRY(host_copy_begin(buffer, offset, host, bytes, TSRI_COPY_READ, stream));
    if (bytes > 0) {
        TSR_TRY_GOTO(status, stream->device->backend->read(buffer, offset, host, bytes, stream),
                     undo);
        tsri_recorder_host_join(stream);
    }
    return TSR_OK;
undo:
    tsri_op_undo(stream);
    return status;
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
