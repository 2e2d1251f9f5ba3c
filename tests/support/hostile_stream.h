/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hostile_stream.h
 * Queues of the hostile backend, and who of them runs next.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "support/hostile.h"

#define HOSTILE_POISON 0xFF /* bytes: NaN in every float type, -1 in integers */

struct hostile_coll;

typedef enum hostile_op_kind {
    HOSTILE_WAIT,
    HOSTILE_LAUNCH,
    HOSTILE_WRITE,
    HOSTILE_READ,
    HOSTILE_COPY,
    HOSTILE_MARK,
    HOSTILE_COLLECTIVE
} hostile_op_kind;

typedef struct hostile_op {
    struct hostile_op *next;
    hostile_op_kind kind;
    uint64_t seq;    /* of its stream; 0: a wait, or a mark */
    uint64_t order;  /* in which the device's operations were enqueued */
    tsr_event event; /* of a wait, or a mark's */
    tsrk_id kernel;
    void *to;
    const void *from;
    size_t bytes;
    struct hostile_coll *coll; /* owned */
    void *owned;               /* what to free: arguments, bytes to write */
} hostile_op;

typedef struct hostile_stream {
    tsr_stream head;
    hostile_op *first, *last;
    int count;
    uint64_t done;     /* operations 1..done are */
    uint64_t marked;   /* the newest mark taken */
    uint64_t passed;   /* marks 1..passed are */
    double *passed_s;  /* [TSRI_TIMED_EVENTS] when, by number */
    tsr_status failed; /* stands still for ever */
    char text[400];
} hostile_stream;

typedef struct hostile_device {
    tsr_device head;
    struct tsri_team *team;
    int rank;
    pthread_mutex_t lock;
    hostile_stream *streams[TSRI_STREAM_COUNT];
    uint64_t enqueued;
    int collectives; /* enqueued and not over */

    /* Habits, which last some operations. */
    uint64_t random;
    uint64_t generation; /* of the options */
    int order[TSRI_STREAM_COUNT];
    int quantum;     /* operations until others are drawn */
    bool alternates; /* no order: any stream's next */
    int starved;     /* stream that goes on only where no other can; -1: none */
    bool lingers;    /* between a collective's begin, with its output poisoned, and its rest */
    bool stubborn;   /* others do not go on at once where one waits for other ranks */
    double grace_s;  /* for so long they do not */
    int room;        /* of a queue */

    struct hostile_block *freed, *freed_last;
    size_t freed_bytes;

    pthread_t driver;
    bool has_driver;
    atomic_bool closing;
    atomic_uint calls;
} hostile_device;

/** What hostile_set set; counted here too. */
typedef struct hostile_state {
    hostile_options options;
    uint64_t generation;
    int waits;
    int64_t overtaken;
    int faults;
    bool is_set;
} hostile_state;
hostile_state *hostile_get_state(void);

/** Every slot that enters the device does. */
void hostile_enter(hostile_device *device);
void hostile_leave(hostile_device *device);

/** The stream's failure so far. Inside enter. */
tsr_status hostile_stream_check(const hostile_stream *stream);
/** Inside enter; owns op afterwards, also on failure. Runs others' work where the queue is full. */
tsr_status hostile_stream_push(hostile_stream *stream, const hostile_op *op);
/** Run what the host wants, and perhaps more, until the stream has nothing left. Inside enter. */
void hostile_stream_drain(hostile_stream *stream);

/** Ends what waits without end: other ranks want collectives while this host is elsewhere. */
tsr_status hostile_driver_start(hostile_device *device);
void hostile_driver_stop(hostile_device *device);

tsr_status hostile_stream_open(tsr_device *device, tsri_stream_kind kind, tsr_stream **out);
void hostile_stream_close(tsr_stream *stream);
tsr_status hostile_stream_wait(tsr_stream *stream, tsr_event event);
tsr_status hostile_stream_sync(tsr_stream *stream);
tsri_stream_state hostile_poll(tsr_stream *stream, char *text, size_t size);
void hostile_abort(tsr_stream *stream, tsr_status status, const char *text);
void hostile_event_record(tsr_stream *stream, bool timed, tsr_event *event);
bool hostile_event_done(tsr_event event);
tsr_status hostile_event_sync(tsr_event event);
tsr_status hostile_event_elapsed(tsr_event from, tsr_event to, double *seconds_out);
tsr_status hostile_launch(tsr_stream *stream, tsrk_id kernel, const void *args, size_t args_bytes);
tsr_status hostile_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                         tsr_stream *stream);
tsr_status hostile_read(tsr_buffer *buffer, size_t offset, void *host, size_t bytes,
                        tsr_stream *stream);
tsr_status hostile_copy(tsr_buffer *to, size_t to_offset, const tsr_buffer *from,
                        size_t from_offset, size_t bytes, tsr_stream *stream);
