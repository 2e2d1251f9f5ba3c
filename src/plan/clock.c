/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A discrete-event run over one ledger.
 *
 * Each stream's entries form a queue of operations and waits. The head of a queue is ready at the
 * latest of: its stream's end so far, the ends of what it waited for, and the moment when the host
 * enqueued it. A head that waits for an operation still to come is passed over; that operation is
 * not earlier than the earliest ready head, so taking the earliest ready head first plays
 * everything in order of time (Misra 1986). A wait costs nothing and is played with the operation
 * behind it.
 *
 * The host: entries after a read, or a SYNC, were enqueued at the end of what it awaits. Where
 * compute runs inline, entries after an operation or a wait of the compute stream were enqueued
 * when that was over. So an entry's "gate" is the last such entry before it. */
#include "plan/clock.h"

#include "base/base.h"

#include <math.h>
#include <string.h>

enum {
    NO_ENTRY = -1
};

typedef struct queue {
    int *entry; /* [count] indices of entries, in order */
    int count, next;
    uint64_t first_seq; /* of the stream's first operation here; 0: none yet */
    double *end;        /* [ops] by seq - first_seq */
    int ops, done;
    double end_s; /* of the newest */
} queue;

typedef struct clock_run {
    const tsri_machine *machine;
    tsri_entry *entries;
    int count;
    int *gate; /* [count] */
    queue queues[TSRI_STREAM_COUNT];
    double tier_free_s[TSRI_MACHINE_MAX_TIERS];
    double moving_until_s; /* collectives beside compute that have begun are over */
    tsri_clock_result *out;
} clock_run;

static bool is_operation(const tsri_entry *e)
{
    return e->kind == TSRI_ENTRY_KERNEL || e->kind == TSRI_ENTRY_COLLECTIVE ||
           e->kind == TSRI_ENTRY_COPY;
}

static bool holds_host(const clock_run *run, const tsri_entry *e)
{
    if (e->kind == TSRI_ENTRY_SYNC || (e->kind == TSRI_ENTRY_COPY && e->op == TSRI_COPY_READ)) {
        return true;
    }
    return run->machine->inline_compute && e->stream == TSRI_STREAM_COMPUTE &&
           (is_operation(e) || e->kind == TSRI_ENTRY_WAIT);
}

/* ---- queues ---- */

static void count_entries(clock_run *run)
{
    for (int i = 0; i < run->count; i++) {
        const tsri_entry *e = &run->entries[i];
        queue *q = &run->queues[e->stream];

        if (is_operation(e)) {
            q->first_seq = q->first_seq == 0 ? e->seq : q->first_seq;
            q->ops++;
        }
        q->count += is_operation(e) || e->kind == TSRI_ENTRY_WAIT;
    }
}

static tsr_status fill_queues(clock_run *run)
{
    int gate = NO_ENTRY;

    TSR_TRY(tsri_alloc((size_t)run->count, sizeof(int), &run->gate));
    count_entries(run);
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        queue *q = &run->queues[s];

        TSR_TRY(tsri_alloc((size_t)q->count, sizeof(int), &q->entry));
        TSR_TRY(tsri_alloc((size_t)q->ops, sizeof(double), &q->end));
        q->count = 0;
    }
    for (int i = 0; i < run->count; i++) {
        const tsri_entry *e = &run->entries[i];
        queue *q = &run->queues[e->stream];

        run->gate[i] = gate;
        if (is_operation(e) || e->kind == TSRI_ENTRY_WAIT) {
            q->entry[q->count++] = i;
        }
        gate = holds_host(run, e) ? i : gate;
    }
    return TSR_OK;
}

static void free_queues(clock_run *run)
{
    tsri_free(&run->gate);
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        tsri_free(&run->queues[s].entry);
        tsri_free(&run->queues[s].end);
    }
}

/* ---- when a head is ready ---- */

/* End of (stream, seq); false while it has not run. Operations before the ledger are over. */
static bool find_end(const clock_run *run, int stream, uint64_t seq, double *out)
{
    const queue *q = &run->queues[stream];

    *out = 0.0;
    if (q->first_seq == 0 || seq < q->first_seq) {
        return true;
    }
    if (seq - q->first_seq >= (uint64_t)q->done) {
        return false;
    }
    *out = q->end[seq - q->first_seq];
    return true;
}

/* When the host came past the operations before entry, and past the waits as well. */
static bool gate_end(const clock_run *run, int entry, double *operations_s, double *waits_s)
{
    *operations_s = 0.0;
    *waits_s = 0.0;
    for (int gate = run->gate[entry]; gate != NO_ENTRY; gate = run->gate[gate]) {
        const tsri_entry *e = &run->entries[gate];
        double end = 0.0;

        const bool is_wait = e->kind == TSRI_ENTRY_WAIT;

        if (!find_end(run, is_wait ? e->op : (int)e->stream, e->seq, &end)) {
            return false;
        }
        if (is_wait) {
            *waits_s = tsri_max_double(*waits_s, end);
            continue;
        }
        *operations_s = tsri_max_double(*operations_s, end);
        if (is_operation(e)) { /* later than all before it; a SYNC may be of something older */
            return true;
        }
    }
    return true;
}

typedef struct head {
    int stream;
    int entry;      /* of the operation */
    int position;   /* of it in the queue */
    double ready_s; /* with all it waits for */
    double free_s;  /* without the waits: when its stream and the host were there */
    int awaited;    /* stream whose operation it waited for longest; NO_ENTRY */
    uint64_t awaited_seq;
} head;

/* The next operation of stream s; false if there is none or it is not ready. */
static bool find_head(const clock_run *run, int s, head *out)
{
    const queue *q = &run->queues[s];
    double waits_s = 0.0;

    *out = (head){.stream = s, .awaited = NO_ENTRY};
    for (int at = q->next; at < q->count; at++) {
        const tsri_entry *e = &run->entries[q->entry[at]];
        double end = 0.0;

        if (is_operation(e)) {
            double held_s = 0.0;

            out->entry = q->entry[at];
            out->position = at;
            if (!gate_end(run, out->entry, &end, &held_s)) {
                return false;
            }
            out->free_s = tsri_max_double(end, q->end_s);
            out->ready_s = tsri_max_double(out->free_s, tsri_max_double(waits_s, held_s));
            return true;
        }
        if (!find_end(run, e->op, e->seq, &end)) {
            return false;
        }
        if (end > waits_s) {
            waits_s = end;
            out->awaited = e->op;
            out->awaited_seq = e->seq;
        }
    }
    return false;
}

static bool find_earliest(const clock_run *run, head *out)
{
    bool found = false;
    head h;

    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        if (find_head(run, s, &h) && (!found || h.ready_s < out->ready_s ||
                                      (h.ready_s == out->ready_s && h.entry < out->entry))) {
            *out = h;
            found = true;
        }
    }
    return found;
}

/* ---- sums ---- */

static tsri_clock_axes *find_clock_axes(clock_run *run, const tsri_entry *e)
{
    tsri_clock_result *out = run->out;

    for (int i = 0; i < out->axes_count; i++) {
        if (strcmp(out->axes[i].group, e->group) == 0 && out->axes[i].size == e->group_size) {
            return &out->axes[i];
        }
    }
    if (out->axes_count == TSRI_CLOCK_MAX_AXES) {
        return &out->axes[TSRI_CLOCK_MAX_AXES - 1];
    }
    tsri_clock_axes *axes = &out->axes[out->axes_count++];

    *axes = (tsri_clock_axes){.group = e->group, .size = e->group_size, .tier = -1};
    return axes;
}

/* Of a kernel, or of a copy within the device's memory, which reads and writes. */
static double kernel_s(const clock_run *run, const tsri_entry *e)
{
    if (e->kind == TSRI_ENTRY_COPY) {
        return tsri_machine_kernel_s(run->machine, TSRK_COPY_BLOCKS, 2.0 * (double)e->bytes, 0.0,
                                     TSR_F32);
    }
    return tsri_machine_kernel_s(run->machine, (tsrk_id)e->op, (double)e->bytes, e->flops,
                                 e->dtype);
}

/* Seconds from at_s on in which compute goes on before it waits for anything, most_s at most. */
static double computes_for(const clock_run *run, double at_s, double most_s)
{
    const queue *q = &run->queues[TSRI_STREAM_COMPUTE];
    double until = tsri_max_double(q->end_s, at_s);

    for (int at = q->next; at < q->count && until < at_s + most_s; at++) {
        const tsri_entry *e = &run->entries[q->entry[at]];
        double end = 0.0;

        if (e->kind == TSRI_ENTRY_WAIT ? !find_end(run, e->op, e->seq, &end) || end > until
                                       : e->kind != TSRI_ENTRY_KERNEL) {
            break;
        }
        until += e->kind == TSRI_ENTRY_KERNEL ? kernel_s(run, e) : 0.0;
    }
    return until < at_s + most_s ? until - at_s : most_s;
}

static double play_collective(clock_run *run, const tsri_entry *e, double *begin_s)
{
    tsri_reach reach;
    tsri_clock_axes *axes = find_clock_axes(run, e);
    int tier = -1;

    tsri_machine_reach(run->machine, e->members, e->group_size, &reach);
    double seconds = tsri_machine_collective_s(run->machine, &reach, e->op, (double)e->bytes,
                                               e->group_size, &tier);

    if (tier >= 0) {
        *begin_s = tsri_max_double(run->tier_free_s[tier], *begin_s);
        if (e->stream != TSRI_STREAM_COMPUTE) { /* the core is free when compute waits */
            seconds += computes_for(run, *begin_s, run->machine->tiers[reach.top].busy_s);
        }
        run->tier_free_s[tier] = *begin_s + seconds;
    }
    axes->tier = reach.top;
    axes->sent += (double)e->sent_bytes;
    axes->busy_s += seconds;
    for (int t = 0; t < TSRI_MACHINE_MAX_TIERS; t++) {
        axes->crossing[t] +=
            tsri_machine_crossing(&reach, t, e->op, (double)e->bytes, e->group_size) *
            reach.shared[t];
    }
    run->out->busy_s += seconds;
    return seconds;
}

/* Compute stood still because of an operation of another stream: say whose it was. What follows a
 * collective on its stream (sums, casts) is late because the collective was. */
static void add_exposed(clock_run *run, const head *h)
{
    const queue *q = &run->queues[h->awaited];
    const double wait_s = h->ready_s - h->free_s;

    for (int at = q->next - 1; at >= 0; at--) {
        const tsri_entry *e = &run->entries[q->entry[at]];

        if (!is_operation(e) || e->seq > h->awaited_seq) {
            continue;
        }
        if (e->end_s <= h->free_s) {
            break;
        }
        if (e->kind == TSRI_ENTRY_COLLECTIVE) {
            find_clock_axes(run, e)->exposed_s += wait_s;
            run->out->exposed_s += wait_s;
            return;
        }
    }
    run->out->copy_exposed_s += wait_s;
}

static void add_work(clock_run *run, const tsri_entry *e, double seconds)
{
    tsri_clock_result *out = run->out;

    out->flops += e->flops;
    if (e->kind == TSRI_ENTRY_COLLECTIVE) {
        if (e->stream == TSRI_STREAM_COMPUTE) {
            find_clock_axes(run, e)->exposed_s += seconds;
            out->exposed_s += seconds;
        }
    } else if (e->kind == TSRI_ENTRY_KERNEL && e->stream == TSRI_STREAM_COMPUTE) {
        out->compute_s += seconds;
    } else {
        out->copy_s += seconds;
    }
}

/* ---- the run ---- */

/* Kernels of the copy stream cast on their way. */
static bool crosses_host(const tsri_entry *e)
{
    return e->kind == TSRI_ENTRY_COPY ? e->op != TSRI_COPY_DEVICE : e->stream == TSRI_STREAM_COPY;
}

/* A collective beside it takes a kernel's memory and units for its own. */
static double contended_s(const clock_run *run, double begin_s, double seconds)
{
    const double lost = run->machine->contention;
    const double beside_s = run->moving_until_s - begin_s;

    if (lost <= 0.0 || beside_s <= 0.0) {
        return seconds;
    }
    return fmin(seconds / (1.0 - lost), seconds + lost * beside_s);
}

static double operation_s(clock_run *run, const tsri_entry *e, double *begin_s)
{
    if (e->kind == TSRI_ENTRY_COLLECTIVE) {
        const double seconds = play_collective(run, e, begin_s);

        if (e->stream != TSRI_STREAM_COMPUTE) {
            run->moving_until_s = tsri_max_double(run->moving_until_s, *begin_s + seconds);
        }
        return seconds;
    }
    if (crosses_host(e)) {
        const double rate = run->machine->host_bytes_per_s;

        return run->machine->launch_s + (rate > 0.0 ? (double)e->bytes / rate : 0.0);
    }
    return e->stream == TSRI_STREAM_COMPUTE ? contended_s(run, *begin_s, kernel_s(run, e))
                                            : kernel_s(run, e);
}

static void play_head(clock_run *run, const head *h)
{
    queue *q = &run->queues[h->stream];
    tsri_entry *e = &run->entries[h->entry];
    double begin = h->ready_s;
    const double seconds = operation_s(run, e, &begin);

    e->begin_s = begin;
    e->end_s = begin + seconds;
    if (h->stream == TSRI_STREAM_COMPUTE && h->awaited != NO_ENTRY && h->ready_s > h->free_s) {
        add_exposed(run, h);
    }
    add_work(run, e, e->end_s - h->ready_s);
    q->end_s = e->end_s;
    q->end[q->done++] = e->end_s;
    q->next = h->position + 1;
    run->out->step_s = tsri_max_double(run->out->step_s, e->end_s);
}

static tsr_status check_done(const clock_run *run)
{
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        const queue *q = &run->queues[s];

        if (q->done < q->ops) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "ledger of %d entries: operation %d of %d on stream %s waits for one "
                             "that is not in it",
                             run->count, q->done + 1, q->ops,
                             tsri_stream_name((tsri_stream_kind)s));
        }
    }
    return TSR_OK;
}

tsr_status tsri_clock_run(const tsri_machine *machine, tsri_entry *entries, int count,
                          tsri_clock_result *out)
{
    clock_run run = {.machine = machine, .entries = entries, .count = count, .out = out};
    tsr_status status = TSR_OK;
    head next = {0};

    *out = (tsri_clock_result){0};
    TSR_TRY_GOTO(status, fill_queues(&run), free);
    while (find_earliest(&run, &next)) {
        play_head(&run, &next);
    }
    TSR_TRY_GOTO(status, check_done(&run), free);
free:
    free_queues(&run);
    return status;
}
