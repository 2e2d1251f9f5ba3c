/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dtensor.c
 * Dtensors, their storage, and how kernels reach a piece.
 *
 * A dtensor is a layout on a range of bytes; views share the range. The range goes back to where it
 * came from when its last dtensor goes: to the step arena with the point that the compute stream
 * has reached, or, a buffer of its own, to the device once that stream is done with it. A borrowed
 * range is left alone.
 */
#include "dtensor_priv.h"

#include "base/base.h"

/* Ledgers keep labels longer than a dtensor lives, so memory is never labelled with its own. */
static const char own_label[] = "dtensor";

/* ---- storage ---- */

tsr_status tsri_storage_create(tsr_comm *comm, size_t bytes, tsri_mem_kind kind, bool persistent,
                               const char *label, tsri_storage **out)
{
    tsr_status status = TSR_OK;
    tsri_storage *storage = NULL;

    TSR_TRY(tsri_alloc(1, sizeof(*storage), &storage));
    storage->owners = 1;
    storage->stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE);
    if (persistent) {
        TSR_TRY_GOTO(status,
                     tsri_buffer_alloc(tsri_comm_device(comm), bytes, kind, label, &storage->owned),
                     free_storage);
        storage->mem = (tsri_mem){.buffer = storage->owned, .bytes = bytes, .interval = -1};
    } else {
        tsri_arena *arena = tsri_comm_arena(comm);
        TSR_TRY_GOTO(status,
                     tsri_arena_acquire(arena, bytes, kind, label, storage->stream, &storage->mem),
                     free_storage);
        storage->arena = arena;
    }
    *out = storage;
    return TSR_OK;
free_storage:
    tsri_free(&storage);
    return status;
}

void tsri_storage_release(tsri_storage **storage)
{
    tsri_storage *old = *storage;

    *storage = NULL;
    if (old == NULL || --old->owners > 0) {
        return;
    }
    if (old->arena != NULL) {
        tsri_arena_release(old->arena, &old->mem, tsri_event_record(old->stream));
    } else if (old->owned != NULL) {
        if (tsri_stream_sync(old->stream) != TSR_OK) {
            tsri_log(TSRI_LOG_WARN, "memory of a dtensor released on a stream that failed: %s",
                     tsr_error_message());
        }
        tsri_buffer_release(&old->owned);
    }
    tsri_free(&old);
}

/* ---- life ---- */

tsr_status tsri_dtensor_bare(tsr_comm *comm, const tsr_layout *layout, tsr_dtype dtype,
                             const char *label, tsr_dtensor **out)
{
    tsr_status status = TSR_OK;
    tsr_dtensor *tensor = NULL;

    if (comm == NULL || layout == NULL || layout->mesh != tsr_comm_mesh(comm)) {
        return TSR_RAISE(TSR_ERR_INVALID, "dtensor \"%s\": %s", label != NULL ? label : "?",
                         comm == NULL || layout == NULL ? "no comm or no layout"
                                                        : "layout of another mesh than the comm's");
    }
    if (tsr_dtype_size(dtype) == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "dtensor \"%s\": dtype %d is no element type",
                         label != NULL ? label : "?", (int)dtype);
    }
    TSR_TRY(tsri_alloc(1, sizeof(*tensor), &tensor));
    tensor->owners = 1;
    tensor->layout = *layout;
    tensor->dtype = dtype;
    tensor->node = -1;
    TSR_TRY_GOTO(
        status,
        tsr_layout_local(layout, tsr_comm_rank(comm), tensor->local_shape, tensor->local_offset),
        free_tensor);
    tensor->local_count = 1;
    for (int d = 0; d < layout->ndim; d++) {
        tensor->local_count *= tensor->local_shape[d];
    }
    TSR_TRY_GOTO(status, tsri_strdup(label != NULL ? label : "", &tensor->label), free_tensor);
    tensor->comm = tsr_comm_retain(comm);
    *out = tensor;
    return TSR_OK;
free_tensor:
    tsri_free(&tensor);
    return status;
}

tsr_status tsr_dtensor_create(tsr_comm *comm, const tsr_layout *layout, tsr_dtype dtype,
                              const char *label, tsr_dtensor **out)
{
    TSRI_WANT(comm, layout, out);

    tsr_status status = TSR_OK;
    tsr_dtensor *tensor = NULL;

    TSR_TRY(tsri_dtensor_bare(comm, layout, dtype, label, &tensor));
    TSR_TRY_GOTO(status,
                 tsri_storage_create(comm, tsri_dtensor_bytes(tensor), TSRI_MEM_OTHER, true,
                                     own_label, &tensor->storage),
                 release_tensor);
    *out = tensor;
    return TSR_OK;
release_tensor:
    tsr_dtensor_release(&tensor);
    return status;
}

tsr_status tsri_dtensor_acquire(tsr_comm *comm, const tsr_layout *layout, tsr_dtype dtype,
                                tsri_mem_kind kind, const char *label, size_t extra_bytes,
                                tsr_dtensor **out)
{
    tsr_status status = TSR_OK;
    tsr_dtensor *tensor = NULL;

    TSR_TRY(tsri_dtensor_bare(comm, layout, dtype, label, &tensor));
    TSR_TRY_GOTO(status,
                 tsri_storage_create(comm, tsri_dtensor_bytes(tensor) + extra_bytes, kind, false,
                                     label != NULL ? label : own_label, &tensor->storage),
                 release_tensor);
    *out = tensor;
    return TSR_OK;
release_tensor:
    tsr_dtensor_release(&tensor);
    return status;
}

tsr_status tsri_dtensor_view(tsr_dtensor *from, const tsr_layout *layout, size_t offset,
                             tsr_dtensor **out)
{
    tsr_status status = TSR_OK;
    tsr_dtensor *view = NULL;

    TSR_TRY(tsri_dtensor_check(from, "view"));
    if (from->storage == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "view of \"%s\", which has no memory", from->label);
    }
    TSR_TRY(tsri_dtensor_bare(from->comm, layout, from->dtype, from->label, &view));
    view->offset = from->offset + offset;
    if (view->offset > from->storage->mem.bytes ||
        tsri_dtensor_bytes(view) > from->storage->mem.bytes - view->offset) {
        status = TSR_RAISE(TSR_ERR_SHAPE, "view of \"%s\": %zu bytes at %zu, storage has %zu",
                           from->label, tsri_dtensor_bytes(view), view->offset,
                           from->storage->mem.bytes);
        goto release_view;
    }
    view->storage = from->storage;
    view->storage->owners++;
    *out = view;
    return TSR_OK;
release_view:
    tsr_dtensor_release(&view);
    return status;
}

tsr_status tsri_dtensor_attach(tsr_dtensor *tensor, tsr_buffer *buffer, size_t offset)
{
    tsri_storage *storage = NULL;
    size_t bytes = tsri_dtensor_bytes(tensor);

    if (buffer != NULL && (offset > buffer->bytes || bytes > buffer->bytes - offset)) {
        return TSR_RAISE(TSR_ERR_SHAPE, "\"%s\" wants %zu bytes at %zu, buffer has %zu",
                         tensor->label, bytes, offset, buffer->bytes);
    }
    if (buffer != NULL) {
        TSR_TRY(tsri_alloc(1, sizeof(*storage), &storage));
        storage->owners = 1;
        storage->mem =
            (tsri_mem){.buffer = buffer, .offset = offset, .bytes = bytes, .interval = -1};
        storage->stream = tsri_comm_stream(tensor->comm, TSRI_STREAM_COMPUTE);
    }
    tsri_storage_release(&tensor->storage);
    tensor->storage = storage;
    tensor->offset = 0;
    return TSR_OK;
}

tsri_storage *tsri_dtensor_take_storage(tsr_dtensor *tensor)
{
    tsri_storage *storage = tensor->storage;

    if (storage == NULL || storage->arena == NULL || storage->owners != 1) {
        return NULL;
    }
    tensor->storage = NULL;
    return storage;
}

void tsri_dtensor_put_storage(tsr_dtensor *tensor, tsri_storage **storage)
{
    tensor->storage = *storage;
    *storage = NULL;
}

void tsri_storage_drop(tsri_storage **storage, tsr_event last_use)
{
    tsri_storage *old = *storage;

    *storage = NULL;
    if (old != NULL) {
        tsri_arena_release(old->arena, &old->mem, last_use);
        tsri_free(&old);
    }
}

tsr_status tsri_dtensor_refill(tsr_dtensor *tensor, tsri_mem_kind kind, const char *label,
                               tsr_stream *stream)
{
    tsri_arena *arena = tsri_comm_arena(tensor->comm);
    tsri_storage *storage = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*storage), &storage));
    TSR_TRY_GOTO(
        status,
        tsri_arena_acquire(arena, tsri_dtensor_bytes(tensor), kind, label, stream, &storage->mem),
        free_storage);
    storage->owners = 1;
    storage->arena = arena;
    storage->stream = tsri_comm_stream(tensor->comm, TSRI_STREAM_COMPUTE);
    tensor->storage = storage;
    tensor->offset = 0;
    return TSR_OK;
free_storage:
    tsri_free(&storage);
    return status;
}

tsr_dtensor *tsr_dtensor_retain(tsr_dtensor *tensor)
{
    TSRI_WANT_OR(tensor, NULL);
    if (tensor->owners == 0) {
        return NULL;
    }
    tensor->owners++;
    return tensor;
}

void tsr_dtensor_release(tsr_dtensor **tensor)
{
    TSRI_WANT_VOID(tensor);

    tsr_dtensor *old = *tensor;

    *tensor = NULL;
    if (old == NULL || old->owners == 0 || --old->owners > 0) {
        return;
    }
    tsri_storage_release(&old->storage);
    tsr_comm_release(&old->comm);
    tsri_free(&old->label);
    tsri_retire(&old);
}

/* ---- queries ---- */

const tsr_layout *tsr_dtensor_layout(const tsr_dtensor *tensor)
{
    TSRI_WANT_OR(tensor, NULL);
    return &tensor->layout;
}

tsr_dtype tsr_dtensor_dtype(const tsr_dtensor *tensor)
{
    TSRI_WANT_OR(tensor, TSR_DTYPE_DEFAULT);
    return tensor->dtype;
}

const int64_t *tsr_dtensor_local_shape(const tsr_dtensor *tensor)
{
    TSRI_WANT_OR(tensor, NULL);
    return tensor->local_shape;
}

int64_t tsr_dtensor_local_count(const tsr_dtensor *tensor)
{
    TSRI_WANT_OR(tensor, 0);
    return tensor->local_count;
}

size_t tsri_dtensor_bytes(const tsr_dtensor *tensor)
{
    return (size_t)tensor->local_count * tsr_dtype_size(tensor->dtype);
}

tsr_buffer *tsri_dtensor_buffer(const tsr_dtensor *tensor)
{
    return tensor->storage != NULL ? tensor->storage->mem.buffer : NULL;
}

size_t tsri_dtensor_buffer_offset(const tsr_dtensor *tensor)
{
    return tensor->storage != NULL ? tensor->storage->mem.offset + tensor->offset : 0;
}

/* ---- the piece, from the host and from kernels ---- */

bool tsri_dtensor_is_stale(const tsr_dtensor *tensor)
{
    const tsri_storage *storage = tensor->storage;

    return tensor->owners == 0 || (storage != NULL && storage->arena != NULL &&
                                   tsri_arena_is_stale(storage->arena, &storage->mem));
}

tsr_status tsri_dtensor_check(const tsr_dtensor *tensor, const char *what)
{
    if (tensor->owners == 0) {
        return TSR_RAISE(
            TSR_ERR_STATE,
            "%s: the tensor was released; a value of the tape lives until the module call "
            "that made it returns, at the latest until backward, unless it is retained",
            what);
    }
    if (tsri_dtensor_is_stale(tensor)) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "%s: \"%s\" is a value of step %lld, which is over and its memory used "
                         "again; read it before tsr_step_end",
                         what, tensor->label, (long long)tensor->storage->mem.step);
    }
    return TSR_OK;
}

static tsr_status check_host_copy(const tsr_dtensor *tensor, const void *host, const char *what)
{
    TSR_TRY(tsri_dtensor_check(tensor, what));
    if (tensor->storage == NULL && tensor->write == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "%s of \"%s\", which has no memory", what, tensor->label);
    }
    if (host == NULL && tensor->local_count > 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of \"%s\": host is NULL, wants %lld elements", what,
                         tensor->label, (long long)tensor->local_count);
    }
    return TSR_OK;
}

tsr_status tsr_dtensor_write(tsr_dtensor *tensor, const void *host)
{
    TSRI_WANT(tensor);
    TSR_TRY(check_host_copy(tensor, host, "write"));
    if (tensor->write != NULL) {
        TSR_TRY(tensor->write(tensor, host));
    }
    if (tensor->local_count > 0 && tensor->storage != NULL) {
        TSR_TRY(tsri_write(tsri_dtensor_buffer(tensor), tsri_dtensor_buffer_offset(tensor), host,
                           tsri_dtensor_bytes(tensor),
                           tsri_comm_stream(tensor->comm, TSRI_STREAM_COMPUTE)));
    }
    return TSR_OK;
}

tsr_status tsr_dtensor_read(tsr_dtensor *tensor, void *host)
{
    TSRI_WANT(tensor);
    TSR_TRY(check_host_copy(tensor, host, "read"));
    if (tensor->storage == NULL) {
        return TSR_RAISE(
            TSR_ERR_STATE,
            "read of parameter \"%s\", which is not gathered: call tsr_unit_unshard first",
            tensor->label);
    }
    if (tensor->local_count > 0) {
        TSR_TRY(tsri_read(tsri_dtensor_buffer(tensor), tsri_dtensor_buffer_offset(tensor), host,
                          tsri_dtensor_bytes(tensor),
                          tsri_comm_stream(tensor->comm, TSRI_STREAM_COMPUTE)));
    }
    return TSR_OK;
}

const void *tsri_in(tsri_call *call, const tsr_dtensor *tensor)
{
    return tsri_arg_in(call, tsri_dtensor_buffer(tensor), tsri_dtensor_buffer_offset(tensor),
                       tsri_dtensor_bytes(tensor));
}

void *tsri_out(tsri_call *call, tsr_dtensor *tensor)
{
    return tsri_arg_out(call, tsri_dtensor_buffer(tensor), tsri_dtensor_buffer_offset(tensor),
                        tsri_dtensor_bytes(tensor));
}

void *tsri_inout(tsri_call *call, tsr_dtensor *tensor)
{
    return tsri_arg_inout(call, tsri_dtensor_buffer(tensor), tsri_dtensor_buffer_offset(tensor),
                          tsri_dtensor_bytes(tensor));
}
