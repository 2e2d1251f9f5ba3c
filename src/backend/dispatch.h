/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dispatch.h
 * The one way from the upper layers into a backend: check, record, call, record.
 *
 * Every function has the same shape. Recording feeds the ledger (sizes, order, bytes per group)
 * and the race check (ranges read and written, ordered by vector clocks), for every backend alike.
 */
#pragma once

#include "backend/backend.h"

/** Open a device of backend. Collective over the world when the backend communicates. */
tsr_status tsri_device_open(const tsr_backend *backend, const tsri_device_options *options,
                            tsr_device **out);
void tsri_device_close(tsr_device **device);

/** Buffers: zeroed, 256-byte aligned, counted by kind in the device; 0 bytes are legal. label:
 * static or long-lived. Release does not wait: sync first if work may still use it. */
tsr_status tsri_buffer_alloc(tsr_device *device, size_t bytes, tsri_mem_kind kind,
                             const char *label, tsr_buffer **out);
/** As tsri_buffer_alloc, from the host pool, which has counters of its own: memory that kernels
 * reach in place but slowly. Collectives take it on backends of TSR_CAP_HOST alone. */
tsr_status tsri_buffer_alloc_host(tsr_device *device, size_t bytes, tsri_mem_kind kind,
                                  const char *label, tsr_buffer **out);
void tsri_buffer_release(tsr_buffer **buffer);

/** A device has at most one stream of each kind at a time. Closing one finishes its work (Blocks).
 */
tsr_status tsri_stream_open(tsr_device *device, tsri_stream_kind kind, tsr_stream **out);
void tsri_stream_close(tsr_stream **stream);
/** The point that stream has reached in host order: its newest operation. Nobody may count on a
 * wait enqueued since then to be part of it. */
tsr_event tsri_event_record(tsr_stream *stream);
/** The same, with the time at which the stream comes to it, for tsri_event_elapsed. */
tsr_event tsri_event_record_timed(tsr_stream *stream);
/** stream goes on only after event. A NULL event stream or the same stream is a no-op. */
tsr_status tsri_stream_wait(tsr_stream *stream, tsr_event event);
/** Whether event is reached. Does not block; says nothing of failures, which a sync tells. */
bool tsri_event_done(tsr_event event);
/** Blocks until event is reached; returns its stream's failure. */
tsr_status tsri_event_sync(tsr_event event);
/** Seconds from one timed event to another; both are reached. See tsr_backend.event_elapsed.
 * TSR_ERR_UNSUPPORTED: nothing is executed here. */
tsr_status tsri_event_elapsed(tsr_event from, tsr_event to, double *seconds_out);
/** Seconds, since the device was opened, that compute has waited for other streams or spent in
 * collectives of its own: of all that is over. */
double tsri_exposed_s(tsr_device *device);
/** Blocks until stream has done everything enqueued. */
tsr_status tsri_stream_sync(tsr_stream *stream);
/** Any thread: how stream stands; text: see tsr_backend.poll. A device of more than one rank has
 * its streams looked at about once a second, and those that are late ended. */
tsri_stream_state tsri_stream_poll(tsr_stream *stream, char *text, size_t size);
/** Any thread: end stream with status (not TSR_OK) and text, see tsr_backend.abort. */
void tsri_stream_abort(tsr_stream *stream, tsr_status status, const char *text);

/** A byte range that a call reads or writes. */
typedef struct tsri_access {
    tsr_buffer *buffer;
    size_t offset, bytes;
    bool write;
} tsri_access;

#define TSRI_LAUNCH_MAX_ACCESSES 16

/** A kernel call being put together: filled by tsri_arg_*, sent by tsri_launch. */
typedef struct tsri_call {
    tsr_stream *stream;
    const char *label; /* module path or unit, for ledger and trace; may be NULL */
    int access_count;
    tsri_access access[TSRI_LAUNCH_MAX_ACCESSES];
} tsri_call;

/** Declare a range that the call reads / writes / reads and writes; returns its device address
 * (NULL on sim). Ranges are checked by tsri_launch. No buffer and 0 bytes: NULL, an absent
 * argument. */
const void *tsri_arg_in(tsri_call *call, tsr_buffer *buffer, size_t offset, size_t bytes);
void *tsri_arg_out(tsri_call *call, tsr_buffer *buffer, size_t offset, size_t bytes);
void *tsri_arg_inout(tsri_call *call, tsr_buffer *buffer, size_t offset, size_t bytes);
/** Enqueue kernel with args (its struct, copied). */
tsr_status tsri_launch(tsri_call *call, tsrk_id kernel, const void *args);
#define TSRI_LAUNCH(call, KERNEL, args) tsri_launch((call), TSRK_##KERNEL, (args))
/** Workspace bytes that kernel needs on this device for args. Pure. */
size_t tsri_workspace_bytes(const tsr_device *device, tsrk_id kernel, const void *args);

/** Host to buffer (host is copied before return; blocks for more than TSRI_STAGE_MOST bytes) and
 * back (Blocks); 0 bytes do nothing. sim: read gives zeros unless a value was configured with
 * tsri_sim_set_read. */
#define TSRI_STAGE_MOST ((size_t)1 << 20)
tsr_status tsri_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                      tsr_stream *stream);
tsr_status tsri_read(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                     tsr_stream *stream);

/** Some bytes on their way to the host. Zero: none. */
typedef struct tsri_reading {
    tsr_device *device;
    tsr_event there; /* when they are */
    void *staged;    /* where; the device's */
    size_t bytes;
} tsri_reading;
#define TSRI_READING_MOST 256
/** As tsri_read of at most TSRI_READING_MOST bytes, without waiting for them. *out is owned, and
 * ends before its device. */
tsr_status tsri_read_begin(tsr_buffer *buffer, size_t offset, size_t bytes, tsr_stream *stream,
                           tsri_reading *out);
/** Blocks until the bytes are there, copies them to host, and makes reading zero, on failure too.
 */
tsr_status tsri_read_end(tsri_reading *reading, void *host);
/** Forget a reading; zero is none. */
void tsri_read_drop(tsri_reading *reading);

/** to = from, bytes each, of any two buffers of the device, or of ranges of one that share no
 * bytes; 0 bytes do nothing. label: whose they are, as of a kernel. */
tsr_status tsri_copy(tsr_buffer *to, size_t to_offset, tsr_buffer *from, size_t from_offset,
                     size_t bytes, const char *label, tsr_stream *stream);

/** world_ranks are copied. Collective over the world, see backend.h. */
tsr_status tsri_group_open(tsr_device *device, const int *world_ranks, int size, int index,
                           unsigned axis_mask, const char *name, tsr_stream *stream,
                           tsr_group **out);
void tsri_group_close(tsr_group **group);
/** Enqueue a collective. A group of one copies in to out where they differ. Lists longer than
 *  TSRI_COLL_MAX_ITEMS are split; ranges of no elements are skipped. A broadcast's in is looked at
 *  on the root only. */
tsr_status tsri_collective(tsr_group *group, const tsri_coll *coll, tsr_stream *stream);

const char *tsri_coll_name(tsri_coll_kind kind);     /* "all_gather", ... */
const char *tsri_stream_name(tsri_stream_kind kind); /* "compute", ... */
const char *tsri_mem_name(tsri_mem_kind kind);       /* "parameters", "gradients", ... */
