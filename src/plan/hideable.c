/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Kernels in their order each go to the collective under way that compute waits for first: with one
 * machine and work that can be cut anywhere, earliest deadline first places the most (Jackson
 * 1955).
 */
#include "plan/hideable.h"

#include "base/base.h"

typedef struct hidden_call {
    int from, until; /* entries: after its call, before compute waits for it */
    tsri_stream_kind stream;
    uint64_t seq;
    double left_s;
} hidden_call;

/* Per stream the newest operation that is over; after an operation, or before a stream's next. */
typedef struct past {
    uint64_t seq[TSRI_STREAM_COUNT];
} past;

static bool is_operation(const tsri_entry *e)
{
    return e->kind == TSRI_ENTRY_KERNEL || e->kind == TSRI_ENTRY_COLLECTIVE ||
           e->kind == TSRI_ENTRY_COPY;
}

static bool is_hidden_call(const tsri_entry *e)
{
    return e->kind == TSRI_ENTRY_COLLECTIVE && e->stream != TSRI_STREAM_COMPUTE;
}

static void join_past(past *to, const past *from)
{
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        to->seq[s] = from->seq[s] > to->seq[s] ? from->seq[s] : to->seq[s];
    }
}

/* What is over when the awaited operation of entries[wait] is. Those of earlier steps say no more
 * than themselves. */
static past awaited(const tsri_entry *entries, const past *after, int wait)
{
    const tsri_entry *w = &entries[wait];
    past found = {.seq = {0}};

    for (int i = wait - 1; i >= 0; i--) {
        if (is_operation(&entries[i]) && (int)entries[i].stream == w->op &&
            entries[i].seq == w->seq) {
            return after[i];
        }
    }
    found.seq[w->op] = w->seq;
    return found;
}

static void end_calls(hidden_call *calls, int count, const past *compute, int at)
{
    for (int i = 0; i < count; i++) {
        if (calls[i].until > at && compute->seq[calls[i].stream] >= calls[i].seq) {
            calls[i].until = at;
        }
    }
}

/* Calls, and where compute waits for each: for itself, or for what waited for it. */
static int find_calls(const tsri_entry *entries, int count, past *after, hidden_call *calls)
{
    past now[TSRI_STREAM_COUNT] = {{{0}}};
    int used = 0;

    for (int i = 0; i < count; i++) {
        const tsri_entry *e = &entries[i];
        past *mine = &now[e->stream];

        if (e->kind == TSRI_ENTRY_WAIT) {
            const past waited = awaited(entries, after, i);

            join_past(mine, &waited);
            if (e->stream == TSRI_STREAM_COMPUTE) {
                end_calls(calls, used, mine, i);
            }
        } else if (is_operation(e)) {
            mine->seq[e->stream] = e->seq;
            after[i] = *mine;
        }
        if (is_hidden_call(e)) {
            calls[used++] = (hidden_call){.from = i,
                                          .until = count,
                                          .stream = e->stream,
                                          .seq = e->seq,
                                          .left_s = e->end_s - e->begin_s};
        }
    }
    return used;
}

static hidden_call *find_urgent(hidden_call *calls, int count, int at)
{
    hidden_call *urgent = NULL;

    for (int i = 0; i < count; i++) {
        if (calls[i].from < at && at < calls[i].until && calls[i].left_s > 0.0 &&
            (urgent == NULL || calls[i].until < urgent->until)) {
            urgent = &calls[i];
        }
    }
    return urgent;
}

/* Seconds of calls[count] that a kernel of seconds at entry at hides. */
static double hide(hidden_call *calls, int count, int at, double seconds)
{
    double hidden = 0.0;

    for (hidden_call *c = find_urgent(calls, count, at); c != NULL && hidden < seconds;
         c = find_urgent(calls, count, at)) {
        const double part = c->left_s < seconds - hidden ? c->left_s : seconds - hidden;

        c->left_s -= part;
        hidden += part;
    }
    return hidden;
}

tsr_status tsri_hideable_s(const tsri_entry *entries, int count, double *out)
{
    hidden_call *calls = NULL;
    past *after = NULL; /* [count] */
    tsr_status status = TSR_OK;

    *out = 0.0;
    TSR_TRY(tsri_alloc((size_t)count + 1, sizeof(*calls), &calls));
    TSR_TRY_GOTO(status, tsri_alloc((size_t)count + 1, sizeof(*after), &after), free_calls);
    const int used = find_calls(entries, count, after, calls);

    for (int i = 0; i < count; i++) {
        const tsri_entry *e = &entries[i];

        if (e->kind == TSRI_ENTRY_KERNEL && e->stream == TSRI_STREAM_COMPUTE) {
            *out += hide(calls, used, i, e->end_s - e->begin_s);
        }
    }
    tsri_free(&after);
free_calls:
    tsri_free(&calls);
    return status;
}
