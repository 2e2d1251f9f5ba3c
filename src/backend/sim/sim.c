/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The sim backend: sizes without bytes.
 *
 * Buffers have no address, kernels and collectives do nothing, events are always reached. So a
 * program's schedule runs unchanged for any rank of any world in one process, and what dispatch
 * records of it (memory, traffic, order) is what a real device would see. Workspace sizes come from
 * the kernel table of the target, because they are part of that memory. */
#include "backend/sim/sim.h"

#include "base/base.h"

#include <string.h>

typedef struct sim_device {
    tsr_device head;
    char *read_value; /* NULL: reads give zeros */
    size_t read_bytes;
} sim_device;

typedef struct sim_group {
    tsr_group head;
    int *world_ranks;
    char *name;
} sim_group;

/* ---- device ---- */

static tsr_status sim_kernels(const tsri_kernel_table **out)
{
    (void)out;
    return TSR_RAISE(TSR_ERR_INVALID, "sim has no kernels of its own: its target is a backend that "
                                      "executes");
}

static tsr_status find_table(const char *target, const tsri_kernel_table **out)
{
    const tsr_backend *backend = NULL;
    TSR_TRY(tsri_backend_find(target == NULL ? "cpu" : target, &backend));
    TSR_TRY(backend->kernels(out));
    return TSR_OK;
}

static tsr_status sim_device_open(const tsri_device_options *options, tsr_device **out)
{
    const tsri_kernel_table *table = NULL;
    sim_device *device = NULL;
    TSR_TRY(find_table(options->sim_target, &table));
    TSR_TRY(tsri_alloc(1, sizeof(*device), &device));
    device->head.kernels = table;
    device->head.threads = options->threads > 0 ? options->threads : 1;
    device->head.timeout_s = options->timeout_s > 0 ? options->timeout_s : 600;
    *out = &device->head;
    return TSR_OK;
}

static void sim_device_close(tsr_device *device)
{
    sim_device *sim = (sim_device *)device;
    tsri_free(&sim->read_value);
    tsri_free(&sim);
}

tsr_status tsri_sim_set_read(tsr_device *device, const void *value, size_t bytes)
{
    char *copy = NULL;
    if (device->backend != &tsri_backend_sim) {
        return TSR_RAISE(TSR_ERR_INVALID, "read value for a device of backend \"%s\"",
                         device->backend->name);
    }
    if (bytes > 0) {
        TSR_TRY(tsri_alloc(bytes, 1, &copy));
        memcpy(copy, value, bytes);
    }
    sim_device *sim = (sim_device *)device;
    tsri_free(&sim->read_value);
    sim->read_value = copy;
    sim->read_bytes = bytes;
    return TSR_OK;
}

/* ---- buffers ---- */

static tsr_status sim_alloc(tsr_device *device, size_t bytes, tsr_buffer **out)
{
    tsr_buffer *buffer = NULL;
    TSR_TRY(tsri_alloc(1, sizeof(*buffer), &buffer));
    buffer->device = device;
    buffer->bytes = bytes;
    *out = buffer;
    return TSR_OK;
}

static void sim_release(tsr_buffer *buffer)
{
    tsri_free(&buffer);
}

static tsr_status sim_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                            tsr_stream *stream)
{
    (void)buffer;
    (void)offset;
    (void)host;
    (void)bytes;
    (void)stream;
    return TSR_OK;
}

static tsr_status sim_read(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                           tsr_stream *stream)
{
    const sim_device *sim = (const sim_device *)buffer->device;
    (void)offset;
    (void)stream;
    if (sim->read_value == NULL) {
        memset(host, 0, bytes);
        return TSR_OK;
    }
    for (size_t i = 0; i < bytes; i++) {
        ((char *)host)[i] = sim->read_value[i % sim->read_bytes];
    }
    return TSR_OK;
}

static tsr_status sim_copy(tsr_buffer *to, size_t to_offset, const tsr_buffer *from,
                           size_t from_offset, size_t bytes, tsr_stream *stream)
{
    (void)to;
    (void)to_offset;
    (void)from;
    (void)from_offset;
    (void)bytes;
    (void)stream;
    return TSR_OK;
}

/* ---- streams ---- */

static tsr_status sim_stream_open(tsr_device *device, tsri_stream_kind kind, tsr_stream **out)
{
    tsr_stream *stream = NULL;
    TSR_TRY(tsri_alloc(1, sizeof(*stream), &stream));
    stream->device = device;
    stream->kind = kind;
    *out = stream;
    return TSR_OK;
}

static void sim_stream_close(tsr_stream *stream)
{
    tsri_free(&stream);
}

static tsr_status sim_stream_wait(tsr_stream *stream, tsr_event event)
{
    (void)stream;
    (void)event;
    return TSR_OK;
}

static tsr_status sim_stream_sync(tsr_stream *stream)
{
    (void)stream;
    return TSR_OK;
}

/* Everything is done when it is enqueued. */
static tsri_stream_state sim_poll(tsr_stream *stream, char *text, size_t size)
{
    (void)stream;
    if (size > 0) {
        text[0] = '\0';
    }
    return TSRI_STREAM_DONE;
}

static void sim_abort(tsr_stream *stream, tsr_status status, const char *text)
{
    (void)stream;
    (void)status;
    (void)text;
}

static void sim_event_record(tsr_stream *stream, bool timed, tsr_event *event)
{
    (void)stream;
    (void)timed;
    (void)event;
}

static bool sim_event_done(tsr_event event)
{
    (void)event;
    return true;
}

static tsr_status sim_event_sync(tsr_event event)
{
    (void)event;
    return TSR_OK;
}

/* Dispatch refuses it of a backend that executes nothing. */
static tsr_status sim_event_elapsed(tsr_event from, tsr_event to, double *seconds_out)
{
    (void)from;
    (void)to;
    *seconds_out = 0.0;
    return TSR_OK;
}

static tsr_status sim_launch(tsr_stream *stream, tsrk_id kernel, const void *args,
                             size_t args_bytes)
{
    (void)stream;
    (void)kernel;
    (void)args;
    (void)args_bytes;
    return TSR_OK;
}

/* ---- groups ---- */

static void sim_group_close(tsr_group *group)
{
    sim_group *sim = (sim_group *)group;
    tsri_free(&sim->world_ranks);
    tsri_free(&sim->name);
    tsri_free(&sim);
}

static tsr_status sim_group_open(tsr_device *device, const int *world_ranks, int size, int index,
                                 tsr_stream *stream, const char *name, tsr_group **out)
{
    sim_group *group = NULL;
    tsr_status status = TSR_OK;
    TSR_TRY(tsri_alloc(1, sizeof(*group), &group));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)size, sizeof(int), &group->world_ranks), close_group);
    TSR_TRY_GOTO(status, tsri_strdup(name, &group->name), close_group);
    memcpy(group->world_ranks, world_ranks, (size_t)size * sizeof(int));
    group->head.device = device;
    group->head.name = group->name;
    group->head.size = size;
    group->head.index = index;
    group->head.world_ranks = group->world_ranks;
    group->head.stream_kind = stream->kind;
    *out = &group->head;
    return TSR_OK;
close_group:
    sim_group_close(&group->head);
    return status;
}

static tsr_status sim_collective(tsr_group *group, const tsri_coll *coll, tsr_stream *stream)
{
    (void)group;
    (void)coll;
    (void)stream;
    return TSR_OK;
}

const tsr_backend tsri_backend_sim = {
    .abi = TSR_BACKEND_ABI,
    .caps = 0,
    .name = "sim",
    .kernels = sim_kernels,
    .device_open = sim_device_open,
    .device_close = sim_device_close,
    .alloc = sim_alloc,
    .release = sim_release,
    .stream_open = sim_stream_open,
    .stream_close = sim_stream_close,
    .stream_wait = sim_stream_wait,
    .stream_sync = sim_stream_sync,
    .poll = sim_poll,
    .abort = sim_abort,
    .event_record = sim_event_record,
    .event_done = sim_event_done,
    .event_sync = sim_event_sync,
    .event_elapsed = sim_event_elapsed,
    .launch = sim_launch,
    .write = sim_write,
    .read = sim_read,
    .copy = sim_copy,
    .group_open = sim_group_open,
    .group_close = sim_group_close,
    .collective = sim_collective,
};
