/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file backend_priv.h
 * Between dispatch's files, recorder and race check.
 *
 * Dispatch tells the recorder of every call before it reaches the backend (op_begin), and takes the
 * entry back when the backend refused it (op_undo). All of these do nothing without a recorder.
 */
#pragma once

#include "backend/dispatch.h"
#include "backend/recorder.h"

/* ---- what dispatch's files share ---- */

/** TSR_ERR_INVALID: access is not of stream's device, or outside its buffer. what: the call. */
tsr_status tsri_check_range(const tsr_stream *stream, const tsri_access *access, const char *what,
                            const char *label);
/** Give the stream's next operation its seq, and record it. */
tsr_status tsri_op_begin(tsr_stream *stream, const tsri_entry *entry, const tsri_access *access,
                         int access_count);
/** The backend refused the operation just begun: take both back. */
void tsri_op_undo(tsr_stream *stream);

/* ---- the watch over a device's streams (guard.c) ---- */

/** Begin to look at the streams of device. */
tsr_status tsri_guard_open(tsr_device *device);
/** stream of kind is open (NULL: closes). */
void tsri_guard_stream(tsr_device *device, tsri_stream_kind kind, tsr_stream *stream);
void tsri_guard_close(tsr_device *device);

/* ---- staging (staging.c) ---- */

/** Blocks until event is reached; says nothing of failures, and leaves the error trail alone. */
void tsri_event_outlast(tsr_event event);
/** Memory for bytes [1..TSRI_STAGE_MOST] that a write takes from here. Blocks while it is full. */
tsr_status tsri_stage_take(tsr_device *device, size_t bytes, void **out);
/** What was taken last is free again when its stream is past event. */
void tsri_stage_until(tsr_device *device, tsr_event event);
/** A slot of TSRI_READING_MOST bytes. */
tsr_status tsri_stage_slot(tsr_device *device, void **out);
void tsri_stage_give(tsr_device *device, void *slot);
/** stream closes. */
void tsri_stage_forget(const tsr_stream *stream);
void tsri_stage_free(tsr_device *device);

/* ---- exposed time (exposed.c), where the backend counts none ---- */

/** Before compute waits, or begins a collective; what it returns goes to the end. */
tsr_event tsri_exposed_begin(tsr_stream *stream);
void tsri_exposed_end(tsr_stream *stream, tsr_event begin);
/** stream closes. */
void tsri_exposed_forget(const tsr_stream *stream);
void tsri_exposed_free(tsr_device *device);

/* ---- what dispatch tells the recorder ---- */

/** An operation that has a seq: ledger entry, stream (at its new seq) and ranges touched. */
tsr_status tsri_recorder_op_begin(tsr_stream *stream, const tsri_entry *entry,
                                  const tsri_access *access, int access_count);
/** The operation just begun was refused. */
void tsri_recorder_op_undo(tsr_stream *stream);
/** stream is about to wait for event (of another stream, seq > 0). */
tsr_status tsri_recorder_wait(tsr_stream *stream, tsr_event event);
/** The host waited for all of stream. */
void tsri_recorder_host_join(tsr_stream *stream);
/** The host waits for event (seq > 0), and has waited. */
tsr_status tsri_recorder_sync(tsr_event event);
void tsri_recorder_host_sync(tsr_event event);
void tsri_recorder_stream_open(tsr_stream *stream);
tsr_status tsri_recorder_alloc(tsr_buffer *buffer);
/** A group was opened. */
tsr_status tsri_recorder_group(const tsr_group *group);
/** A race found here is reported by the next call that can fail. */
void tsri_recorder_release(tsr_buffer *buffer);

/* ---- race check (race.c), used by recorder.c alone ---- */

typedef struct tsri_race tsri_race;

tsr_status tsri_race_create(int drop_wait, tsri_race **out);
void tsri_race_destroy(tsri_race **race);
tsr_status tsri_race_op(tsri_race *race, tsr_stream *stream, const tsri_entry *entry,
                        const tsri_access *access, int access_count);
/** The operation just begun was refused. */
void tsri_race_op_undo(tsri_race *race, const tsr_stream *stream);
tsr_status tsri_race_wait(tsri_race *race, tsr_stream *stream, tsr_event event);
void tsri_race_host_join(tsri_race *race, tsri_stream_kind kind);
void tsri_race_host_sync(tsri_race *race, tsr_event event);
void tsri_race_stream_open(tsri_race *race, tsri_stream_kind kind);
void tsri_race_release(tsri_race *race, tsr_buffer *buffer);
/** The failure that a release found, once. */
tsr_status tsri_race_pending(tsri_race *race);

int tsri_race_found_count(const tsri_race *race);
