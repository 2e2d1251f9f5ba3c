/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Kernels in their order each go to the collective under way that compute waits for first: with one
 * machine and work that can be cut anywhere, earliest deadline first places the most (Jackson
 * 1955).
 */
#include "train/hideable.h"

#include "base/base.h"

typedef struct hidden_call {
    int from, until; /* entries: after its call, before compute waits for it */
    double left_s;
} hidden_call;

static bool is_hidden_call(const tsri_entry *e)
{
    return e->kind == TSRI_ENTRY_COLLECTIVE && e->stream != TSRI_STREAM_COMPUTE;
}

/* The first entry at which compute waits for entries[call] or for what follows it. */
static int find_wait(const tsri_entry *entries, int count, int call)
{
    const tsri_entry *c = &entries[call];

    for (int i = call + 1; i < count; i++) {
        const tsri_entry *e = &entries[i];

        if (e->kind == TSRI_ENTRY_WAIT && e->stream == TSRI_STREAM_COMPUTE &&
            e->op == (int)c->stream && e->seq >= c->seq) {
            return i;
        }
    }
    return count;
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
    int used = 0;

    *out = 0.0;
    TSR_TRY(tsri_alloc((size_t)count + 1, sizeof(*calls), &calls));
    for (int i = 0; i < count; i++) {
        if (is_hidden_call(&entries[i])) {
            calls[used++] = (hidden_call){i, find_wait(entries, count, i),
                                          entries[i].end_s - entries[i].begin_s};
        }
    }
    for (int i = 0; i < count; i++) {
        const tsri_entry *e = &entries[i];

        if (e->kind == TSRI_ENTRY_KERNEL && e->stream == TSRI_STREAM_COMPUTE) {
            *out += hide(calls, used, i, e->end_s - e->begin_s);
        }
    }
    tsri_free(&calls);
    return TSR_OK;
}
