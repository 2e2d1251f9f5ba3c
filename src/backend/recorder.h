/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file recorder.h
 * What dispatch writes down about a device: the ledger and the race check.
 *
 * Ledger: one entry per allocation, release, kernel, collective, copy, event wait of a
 * stream or the host, and opening of a group, in host order, with step, stream, label, group,
 * bytes, and (on executing backends) begin and end times. Race check: each stream has a vector
 * clock; an event carries the clock of its point; a wait joins it. For every buffer range the
 * checker keeps the last write and the reads since; a new access that conflicts with one it is not
 * ordered after (no event path) is a race, reported with both calls' names, streams and ranges. The
 * host takes part: sync and read order it after what they waited for, every later call is ordered
 * after that, and releasing a buffer counts as a write by the host. A group of one records kernels
 * that copy, no collectives.
 */
#pragma once

#include "backend/dispatch.h"

typedef enum tsri_entry_kind {
    TSRI_ENTRY_ALLOC,
    TSRI_ENTRY_RELEASE,
    TSRI_ENTRY_KERNEL,
    TSRI_ENTRY_COLLECTIVE,
    TSRI_ENTRY_WAIT,
    TSRI_ENTRY_COPY,
    TSRI_ENTRY_SYNC, /* the host waits for an operation that it had not waited for */
    TSRI_ENTRY_GROUP /* opening of a group of more than one: all ranks of the world take part */
} tsri_entry_kind;

/** op of a TSRI_ENTRY_COPY. */
typedef enum tsri_copy_kind {
    TSRI_COPY_WRITE = 0, /* from the program's memory */
    TSRI_COPY_READ,      /* to it, and the host waits */
    TSRI_COPY_FETCH,     /* to it, and the host goes on */
    TSRI_COPY_HOST,      /* between buffers, of which one is of the host pool */
    TSRI_COPY_DEVICE     /* within a device's memory */
} tsri_copy_kind;

const char *tsri_copy_name(tsri_copy_kind kind); /* "write", "read", "copy" */

typedef struct tsri_entry {
    tsri_entry_kind kind;
    int step;
    tsri_stream_kind stream;
    int op;             /* tsrk_id, tsri_coll_kind, tsri_mem_kind of an allocation or release,
                           TSRI_COPY_*, or of a WAIT the awaited tsri_stream_kind */
    const char *label;  /* borrowed */
    const char *group;  /* axes' name of a collective, else NULL; borrowed */
    const int *members; /* world ranks of a collective's group [group_size]; the group's */
    int group_size;
    unsigned axis_mask;
    uint64_t seq;      /* stream's sequence number; of a WAIT or SYNC: the awaited one */
    uint64_t call;     /* of a collective: hash of what all members must pass alike */
    size_t bytes;      /* of the allocation; that a copy moves; that a kernel reads and writes; of a
                          collective: the whole tensor (W pieces) */
    double flops;      /* of a kernel, as tsrk_flops counts */
    tsr_dtype dtype;   /* of a collective; of a kernel, what it multiplies in */
    size_t sent_bytes; /* what this rank sends at least: AG, RS, A2A (W-1)/W, AR 2(W-1)/W of bytes;
                          broadcast (W-1)/W, the mean over the ranks */
    double begin_s, end_s; /* executing backends fill them when the operation ran; else 0 */
} tsri_entry;

typedef struct tsri_recorder tsri_recorder;

typedef struct tsri_recorder_options {
    bool ledger;     /* keep entries */
    bool own;        /* copy what entries borrow: they outlive modules and groups */
    bool race_check; /* fail a conflicting call with TSR_ERR_INTERNAL */
    int drop_wait;   /* test switch: ignore the n-th (1-based) stream_wait for the race check */
} tsri_recorder_options;

/** Attach a recorder to device (one per device; replaces an older one). */
tsr_status tsri_recorder_attach(tsr_device *device, const tsri_recorder_options *options);
void tsri_recorder_detach(tsr_device *device);
void tsri_recorder_set_step(tsr_device *device, int step);
/** Forget the entries so far (the race check's state stays). */
void tsri_recorder_clear(tsr_device *device);
/** Entries so far, borrowed until the next recorded call. Times are final after stream_sync. */
const tsri_entry *tsri_recorder_entries(const tsr_device *device, int *count_out);
/** A ledger that outlives its device. */
typedef struct tsri_ledger tsri_ledger;
/** Take the entries of a recorder that owns what they borrow; it begins anew. Nothing may still be
 * running. */
tsr_status tsri_recorder_take(tsr_device *device, tsri_ledger **out);
const tsri_entry *tsri_ledger_entries(const tsri_ledger *ledger, int *count_out);
void tsri_ledger_destroy(tsri_ledger **pointer);
/** Number of stream_wait calls that the race check saw. */
int tsri_recorder_wait_count(const tsr_device *device);
/** Races found so far; 0 without a race check. A release that races cannot fail: it is counted
 * here, logged, and reported by the next call that can. */
int tsri_recorder_race_count(const tsr_device *device);
/** Sum of sent_bytes of collectives over exactly the axes of axis_mask. */
size_t tsri_recorder_sent_bytes(const tsr_device *device, unsigned axis_mask);

/** For executing backends: when an operation ran. Safe from any thread. */
void tsri_record_time(tsr_device *device, tsri_stream_kind stream, uint64_t seq, double begin_s,
                      double end_s);
