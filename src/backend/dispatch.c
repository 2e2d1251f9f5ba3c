/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The one way into a backend. Every function: check the arguments, record the call, call the slot,
 * and take the record back if the slot refused. A stream's seq counts exactly the launches,
 * collectives and copies that reached its backend; that number is what events compare, so it is
 * counted by tsri_op_begin and nowhere else. Collectives are in dispatch_coll.c, copies in
 * dispatch_copy.c, in the same shape. */
#include "backend/backend_priv.h"

#include "base/base.h"

#define BUFFER_ALIGN 256

static const size_t args_bytes[TSRK_COUNT] = {
#define ARGS_BYTES(upper, lower) [TSRK_##upper] = sizeof(tsrk_##lower),
    TSRK_MAP(ARGS_BYTES)
#undef ARGS_BYTES
};

/* ---- device ---- */

tsr_status tsri_device_open(const tsr_backend *backend, const tsri_device_options *options,
                            tsr_device **out)
{
    tsri_device_options filled = {0};
    tsr_device *device = NULL;
    tsr_status status = TSR_OK;
    if (backend == NULL || out == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "device open without a backend or a place for it");
    }
    if (backend->abi != TSR_BACKEND_ABI) {
        return TSR_RAISE(TSR_ERR_INVALID, "backend \"%s\" has abi %u, expected %d", backend->name,
                         (unsigned)backend->abi, (int)TSR_BACKEND_ABI);
    }
    if (options != NULL) {
        filled = *options;
    }
    if (filled.world_size == 0) {
        filled.world_size = 1;
    }
    if (filled.world_size < 0 || filled.world_rank < 0 || filled.world_rank >= filled.world_size) {
        return TSR_RAISE(TSR_ERR_INVALID, "device of rank %d in a world of %d", filled.world_rank,
                         filled.world_size);
    }
    if (filled.threads < 0 || !(filled.timeout_s >= 0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "device with %d threads and a timeout of %g s",
                         filled.threads, filled.timeout_s);
    }
    TSR_TRY(backend->device_open(&filled, &device));
    device->backend = backend;
    if (filled.world_size > 1 && (backend->caps & TSR_CAP_EXECUTES) != 0) {
        TSR_TRY_GOTO(status, tsri_guard_open(device), close_device);
    }
    *out = device;
    return TSR_OK;
close_device:
    backend->device_close(device);
    return status;
}

void tsri_device_close(tsr_device **device)
{
    if (device == NULL || *device == NULL) {
        return;
    }
    if ((*device)->bytes_now != 0 || (*device)->host_now != 0 || (*device)->streams_open != 0) {
        tsri_log(TSRI_LOG_WARN, "device closed with %zu bytes and streams 0x%x open",
                 (*device)->bytes_now + (*device)->host_now, (*device)->streams_open);
    }
    tsri_recorder_detach(*device);
    tsri_guard_close(*device);
    tsri_exposed_free(*device);
    tsri_stage_free(*device);
    (*device)->backend->device_close(*device);
    *device = NULL;
}

/* ---- buffers ---- */

static void count(const tsr_buffer *buffer)
{
    tsr_device *device = buffer->device;
    size_t *now = buffer->host ? &device->host_now : &device->bytes_now;
    size_t *peak = buffer->host ? &device->host_peak : &device->bytes_peak;

    *now += buffer->bytes;
    *peak = *now > *peak ? *now : *peak;
    (buffer->host ? device->host_kind : device->bytes_kind)[buffer->kind] += buffer->bytes;
}

static void uncount(const tsr_buffer *buffer)
{
    tsr_device *device = buffer->device;

    *(buffer->host ? &device->host_now : &device->bytes_now) -= buffer->bytes;
    (buffer->host ? device->host_kind : device->bytes_kind)[buffer->kind] -= buffer->bytes;
}

static tsr_status alloc(tsr_device *device, bool host, size_t bytes, tsri_mem_kind kind,
                        const char *label, tsr_buffer **out)
{
    const tsr_backend *backend = device->backend;
    tsr_buffer *buffer = NULL;
    tsr_status status = TSR_OK;
    if ((unsigned)kind >= TSRI_MEM_COUNT) {
        return TSR_RAISE(TSR_ERR_INVALID, "memory kind %d, expected 0..%d", (int)kind,
                         (int)TSRI_MEM_COUNT - 1);
    }
    if (bytes > SIZE_MAX / 2) {
        return TSR_RAISE(TSR_ERR_INVALID, "buffer of %zu bytes for %s", bytes,
                         label == NULL ? "?" : label);
    }
    if (host && backend->alloc_host != NULL) {
        TSR_TRY(backend->alloc_host(device, bytes, &buffer));
    } else {
        TSR_TRY(backend->alloc(device, bytes, &buffer));
    }
    TSRI_ASSERT((uintptr_t)buffer->address % BUFFER_ALIGN == 0);
    buffer->device = device;
    buffer->bytes = bytes;
    buffer->kind = kind;
    buffer->host = host;
    buffer->label = label;
    buffer->race = NULL;
    buffer->id = device->next_buffer_id++;
    TSR_TRY_GOTO(status, tsri_recorder_alloc(buffer), release_buffer);
    count(buffer);
    *out = buffer;
    return TSR_OK;
release_buffer:
    backend->release(buffer);
    return status;
}

tsr_status tsri_buffer_alloc(tsr_device *device, size_t bytes, tsri_mem_kind kind,
                             const char *label, tsr_buffer **out)
{
    TSR_TRY(alloc(device, false, bytes, kind, label, out));
    return TSR_OK;
}

tsr_status tsri_buffer_alloc_host(tsr_device *device, size_t bytes, tsri_mem_kind kind,
                                  const char *label, tsr_buffer **out)
{
    TSR_TRY(alloc(device, true, bytes, kind, label, out));
    return TSR_OK;
}

void tsri_buffer_release(tsr_buffer **buffer)
{
    if (buffer == NULL || *buffer == NULL) {
        return;
    }
    tsr_device *device = (*buffer)->device;
    tsri_recorder_release(*buffer);
    uncount(*buffer);
    device->backend->release(*buffer);
    *buffer = NULL;
}

/* ---- streams and events ---- */

tsr_status tsri_stream_open(tsr_device *device, tsri_stream_kind kind, tsr_stream **out)
{
    tsr_stream *stream = NULL;
    if ((unsigned)kind >= TSRI_STREAM_COUNT) {
        return TSR_RAISE(TSR_ERR_INVALID, "stream kind %d, expected 0..%d", (int)kind,
                         (int)TSRI_STREAM_COUNT - 1);
    }
    if ((device->streams_open & (1U << (unsigned)kind)) != 0) {
        return TSR_RAISE(TSR_ERR_STATE, "stream %s of this device is open already",
                         tsri_stream_name(kind));
    }
    TSR_TRY(device->backend->stream_open(device, kind, &stream));
    stream->device = device;
    stream->kind = kind;
    stream->enqueued = 0;
    device->streams_open |= 1U << (unsigned)kind;
    tsri_recorder_stream_open(stream);
    tsri_guard_stream(device, kind, stream);
    *out = stream;
    return TSR_OK;
}

void tsri_stream_close(tsr_stream **stream)
{
    if (stream == NULL || *stream == NULL) {
        return;
    }
    tsr_device *device = (*stream)->device;
    tsri_guard_stream(device, (*stream)->kind, NULL);
    tsri_recorder_host_join(*stream);
    tsri_stage_forget(*stream);
    tsri_exposed_forget(*stream);
    device->streams_open &= ~(1U << (unsigned)(*stream)->kind);
    device->backend->stream_close(*stream);
    *stream = NULL;
}

static tsr_event record_event(tsr_stream *stream, bool timed)
{
    tsr_event event = {.stream = stream, .seq = stream->enqueued};
    stream->device->backend->event_record(stream, timed, &event);
    return event;
}

tsr_event tsri_event_record(tsr_stream *stream)
{
    return record_event(stream, false);
}

tsr_event tsri_event_record_timed(tsr_stream *stream)
{
    return record_event(stream, true);
}

tsr_status tsri_stream_wait(tsr_stream *stream, tsr_event event)
{
    if (event.stream == NULL || event.stream == stream || event.seq == 0) {
        return TSR_OK;
    }
    if (event.stream->device != stream->device) {
        return TSR_RAISE(TSR_ERR_INVALID, "stream %s waits for an event of another device",
                         tsri_stream_name(stream->kind));
    }
    if (event.seq > event.stream->enqueued) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "stream %s waits for %s:%llu, whose newest operation is %llu",
                         tsri_stream_name(stream->kind), tsri_stream_name(event.stream->kind),
                         (unsigned long long)event.seq, (unsigned long long)event.stream->enqueued);
    }
    TSR_TRY(tsri_recorder_wait(stream, event));
    const tsr_event begin = tsri_exposed_begin(stream);
    TSR_TRY(stream->device->backend->stream_wait(stream, event));
    tsri_exposed_end(stream, begin);
    return TSR_OK;
}

bool tsri_event_done(tsr_event event)
{
    return event.stream == NULL || (event.seq == 0 && event.mark == 0) ||
           event.stream->device->backend->event_done(event);
}

tsr_status tsri_event_sync(tsr_event event)
{
    if (event.stream == NULL || event.seq == 0) {
        return TSR_OK;
    }
    if (event.seq > event.stream->enqueued) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "the host waits for %s:%llu, whose newest operation is "
                         "%llu",
                         tsri_stream_name(event.stream->kind), (unsigned long long)event.seq,
                         (unsigned long long)event.stream->enqueued);
    }
    TSR_TRY(tsri_recorder_sync(event));
    TSR_TRY(event.stream->device->backend->event_sync(event));
    tsri_recorder_host_sync(event);
    return TSR_OK;
}

tsr_status tsri_event_elapsed(tsr_event from, tsr_event to, double *seconds_out)
{
    if (from.stream == NULL || to.stream == NULL || from.stream->device != to.stream->device) {
        return TSR_RAISE(TSR_ERR_INVALID, "time between two events, which are not of one device");
    }
    const tsr_backend *backend = from.stream->device->backend;
    if ((backend->caps & TSR_CAP_EXECUTES) == 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED,
                         "time between events of backend \"%s\", which executes "
                         "nothing",
                         backend->name);
    }
    TSR_TRY(backend->event_elapsed(from, to, seconds_out));
    return TSR_OK;
}

tsr_status tsri_stream_sync(tsr_stream *stream)
{
    TSR_TRY(stream->device->backend->stream_sync(stream));
    tsri_recorder_host_join(stream);
    return TSR_OK;
}

tsri_stream_state tsri_stream_poll(tsr_stream *stream, char *text, size_t size)
{
    text[0] = '\0';
    return stream->device->backend->poll(stream, text, size);
}

void tsri_stream_abort(tsr_stream *stream, tsr_status status, const char *text)
{
    stream->device->backend->abort(stream, status, text);
}

/* ---- operations ---- */

static const char *or_unnamed(const char *label)
{
    return label == NULL ? "?" : label;
}

tsr_status tsri_check_range(const tsr_stream *stream, const tsri_access *access, const char *what,
                            const char *label)
{
    const tsr_buffer *buffer = access->buffer;
    if (buffer == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %s: %zu bytes of no buffer", what,
                         or_unnamed(label), access->bytes);
    }
    if (buffer->device != stream->device) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %s: buffer %llu (%s) is of another device", what,
                         or_unnamed(label), (unsigned long long)buffer->id,
                         or_unnamed(buffer->label));
    }
    if (access->offset > buffer->bytes || access->bytes > buffer->bytes - access->offset) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "%s of %s: bytes %zu + %zu are outside buffer %llu (%s) of %zu bytes",
                         what, or_unnamed(label), access->offset, access->bytes,
                         (unsigned long long)buffer->id, or_unnamed(buffer->label), buffer->bytes);
    }
    return TSR_OK;
}

tsr_status tsri_op_begin(tsr_stream *stream, const tsri_entry *entry, const tsri_access *access,
                         int access_count)
{
    stream->enqueued++;
    const tsr_status status = tsri_recorder_op_begin(stream, entry, access, access_count);

    if (status != TSR_OK) {
        stream->enqueued--;
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return TSR_OK;
}

void tsri_op_undo(tsr_stream *stream)
{
    tsri_recorder_op_undo(stream);
    stream->enqueued--;
}

/* ---- kernels ---- */

/* Out of range, no address: tsri_launch refuses the call, and nobody forms a wild pointer. */
static void *add_access(tsri_call *call, tsr_buffer *buffer, size_t offset, size_t bytes,
                        bool write)
{
    if (buffer == NULL && bytes == 0) {
        return NULL;
    }
    if (call->access_count < TSRI_LAUNCH_MAX_ACCESSES) {
        call->access[call->access_count] = (tsri_access){buffer, offset, bytes, write};
    }
    call->access_count++;
    if (buffer == NULL || buffer->address == NULL || offset > buffer->bytes) {
        return NULL;
    }
    return (char *)buffer->address + offset;
}

const void *tsri_arg_in(tsri_call *call, tsr_buffer *buffer, size_t offset, size_t bytes)
{
    return add_access(call, buffer, offset, bytes, false);
}

void *tsri_arg_out(tsri_call *call, tsr_buffer *buffer, size_t offset, size_t bytes)
{
    return add_access(call, buffer, offset, bytes, true);
}

void *tsri_arg_inout(tsri_call *call, tsr_buffer *buffer, size_t offset, size_t bytes)
{
    return add_access(call, buffer, offset, bytes, true);
}

static tsri_entry kernel_entry(const tsri_call *call, tsrk_id kernel, const void *args)
{
    tsri_entry entry = {.kind = TSRI_ENTRY_KERNEL, .op = (int)kernel, .label = call->label};
    if (call->stream->device->recorder == NULL) {
        return entry;
    }
    for (int i = 0; i < call->access_count; i++) {
        entry.bytes += call->access[i].bytes;
    }
    entry.flops = tsrk_flops(kernel, args, &entry.dtype);
    return entry;
}

tsr_status tsri_launch(tsri_call *call, tsrk_id kernel, const void *args)
{
    tsr_stream *stream = call->stream;
    if (stream == NULL || args == NULL || (unsigned)kernel >= TSRK_COUNT) {
        return TSR_RAISE(TSR_ERR_INVALID, "kernel %d of %s without stream, arguments or name",
                         (int)kernel, or_unnamed(call->label));
    }
    if (call->access_count > TSRI_LAUNCH_MAX_ACCESSES) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %s declares %d ranges, at most %d",
                         tsrk_name(kernel), or_unnamed(call->label), call->access_count,
                         TSRI_LAUNCH_MAX_ACCESSES);
    }
    for (int i = 0; i < call->access_count; i++) {
        TSR_TRY(tsri_check_range(stream, &call->access[i], tsrk_name(kernel), call->label));
    }
    tsri_entry entry = kernel_entry(call, kernel, args);
    tsr_status status = TSR_OK;
    TSR_TRY(tsri_op_begin(stream, &entry, call->access, call->access_count));
    TSR_TRY_GOTO(status, stream->device->backend->launch(stream, kernel, args, args_bytes[kernel]),
                 undo);
    return TSR_OK;
undo:
    tsri_op_undo(stream);
    return status;
}

size_t tsri_workspace_bytes(const tsr_device *device, tsrk_id kernel, const void *args)
{
    const tsri_kernel_table *table = device->kernels;
    if (table == NULL || table->workspace == NULL) {
        return 0;
    }
    return table->workspace(kernel, args, device->threads);
}
