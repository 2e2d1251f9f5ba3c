/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Boiling a ledger down to what can hold a lane or the host. */
#include "plan/match_priv.h"

#include "base/base.h"

/* What is known of a stream while the ledger is read. */
typedef struct reading {
    int *after; /* events that must be done for operation first_seq + i to be done */
    int count, capacity;
    uint64_t first_seq;
    int waited[LANE_COUNT]; /* most events of each lane that this one waits for so far */
    int gated;              /* most events of it that the host waits for so far */
} reading;

static tsr_status add_event(script *s, int lane, const lane_event *event)
{
    TSR_TRY(tsri_grow(&s->events[lane], &s->event_capacity[lane], s->event_count[lane] + 1,
                      sizeof(lane_event)));
    s->events[lane][s->event_count[lane]] = *event;
    s->events[lane][s->event_count[lane]].gates = s->gate_count;
    s->event_count[lane]++;
    return TSR_OK;
}

/* The host goes on when lane has done `need` events. */
static tsr_status add_gate(script *s, reading *r, int lane, int need)
{
    if (need <= r->gated) {
        return TSR_OK;
    }
    TSR_TRY(tsri_grow(&s->gates, &s->gate_capacity, s->gate_count + 1, sizeof(gate)));
    s->gates[s->gate_count++] = (gate){lane, need};
    r->gated = need;
    return TSR_OK;
}

static tsr_status find_script_group(script *s, int entry, int lane, int *out)
{
    const tsri_entry *e = &s->entries[entry];
    const bool world = lane == LANE_HOST;

    for (int i = 0; i < s->group_count; i++) {
        const script_group *g = &s->groups[i];

        if (g->lane == lane && (world || (g->members == e->members && g->size == e->group_size))) {
            *out = i;
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_grow(&s->groups, &s->group_capacity, s->group_count + 1, sizeof(script_group)));
    s->groups[s->group_count] = (script_group){.members = world ? NULL : e->members,
                                               .size = world ? 0 : e->group_size,
                                               .lane = lane,
                                               .entry = entry};
    *out = s->group_count++;
    return TSR_OK;
}

static tsr_status add_collective(script *s, int entry, int lane)
{
    const tsri_entry *e = &s->entries[entry];
    const uint64_t alike[] = {(uint64_t)e->kind, (uint64_t)e->op, e->call,
                              e->label != NULL ? tsri_hash_text(e->label) : 0};
    lane_event event = {.hash = tsri_hash(alike, sizeof(alike), 0), .entry = entry};

    TSR_TRY(find_script_group(s, entry, lane, &event.group));
    s->groups[event.group].calls++;
    TSR_TRY(add_event(s, lane, &event));
    return TSR_OK;
}

/* Operation e was issued; its events have been added. */
static tsr_status note_operation(const script *s, reading *r, const tsri_entry *e)
{
    if (r->count > 0 && e->seq != r->first_seq + (uint64_t)r->count) {
        r->count = 0; /* a stream opened anew */
    }
    if (r->count == 0) {
        r->first_seq = e->seq;
    }
    TSR_TRY(tsri_grow(&r->after, &r->capacity, r->count + 1, sizeof(int)));
    r->after[r->count++] = s->event_count[e->stream];
    return TSR_OK;
}

/* Events of stream that must be done for its operation that entry waits for. Before the ledger
 * begins, everything is done. */
static tsr_status find_need(const script *s, const reading *target, int stream, int entry, int *out)
{
    const tsri_entry *e = &s->entries[entry];

    *out = 0;
    if (target->count > 0 && e->seq >= target->first_seq) {
        if (e->seq - target->first_seq >= (uint64_t)target->count) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "entry %d waits for %s:%llu, the newest operation is %llu", entry,
                             tsri_stream_name((tsri_stream_kind)stream), (unsigned long long)e->seq,
                             (unsigned long long)(target->first_seq + (uint64_t)target->count - 1));
        }
        *out = target->after[e->seq - target->first_seq];
    }
    return TSR_OK;
}

static tsr_status add_sync(script *s, reading *readings, int entry)
{
    const tsri_entry *e = &s->entries[entry];
    reading *target = &readings[e->stream];
    int need = 0;

    TSR_TRY(find_need(s, target, (int)e->stream, entry, &need));
    TSR_TRY(add_gate(s, target, (int)e->stream, need));
    return TSR_OK;
}

static tsr_status add_wait(script *s, reading *readings, int entry)
{
    const tsri_entry *e = &s->entries[entry];
    int need = 0;

    TSR_TRY(find_need(s, &readings[e->op], e->op, entry, &need));
    if (need > readings[e->stream].waited[e->op]) {
        const lane_event event = {.entry = entry, .group = -1, .target = e->op, .need = need};

        readings[e->stream].waited[e->op] = need;
        TSR_TRY(add_event(s, (int)e->stream, &event));
    }
    return TSR_OK;
}

static tsr_status read_entry(script *s, reading *readings, int entry, bool inline_compute)
{
    const tsri_entry *e = &s->entries[entry];

    switch (e->kind) {
    case TSRI_ENTRY_GROUP:
        TSR_TRY(add_collective(s, entry, LANE_HOST));
        TSR_TRY(add_gate(s, &readings[LANE_HOST], LANE_HOST, s->event_count[LANE_HOST]));
        return TSR_OK;
    case TSRI_ENTRY_COLLECTIVE:
        TSR_TRY(add_collective(s, entry, (int)e->stream));
        TSR_TRY(note_operation(s, &readings[e->stream], e));
        break;
    case TSRI_ENTRY_KERNEL:
    case TSRI_ENTRY_COPY:
        TSR_TRY(note_operation(s, &readings[e->stream], e));
        break;
    case TSRI_ENTRY_WAIT:
        TSR_TRY(add_wait(s, readings, entry));
        break;
    case TSRI_ENTRY_SYNC:
        TSR_TRY(add_sync(s, readings, entry));
        return TSR_OK;
    case TSRI_ENTRY_ALLOC:
    case TSRI_ENTRY_RELEASE:
    default:
        return TSR_OK;
    }
    if ((e->kind == TSRI_ENTRY_COPY && e->op == TSRI_COPY_READ) ||
        (inline_compute && e->stream == TSRI_STREAM_COMPUTE)) {
        TSR_TRY(add_gate(s, &readings[e->stream], (int)e->stream, s->event_count[e->stream]));
    }
    return TSR_OK;
}

tsr_status tsri_script_create(const tsri_match_ledger *ledger, bool inline_compute, script **out)
{
    reading readings[LANE_COUNT] = {{0}};
    script *s = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*s), &s));
    s->entries = ledger->entries;
    s->entry_count = ledger->count;
    for (int i = 0; i < ledger->count && status == TSR_OK; i++) {
        status = read_entry(s, readings, i, inline_compute);
    }
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        tsri_free(&readings[lane].after);
    }
    if (status != TSR_OK) {
        tsri_script_destroy(&s);
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    *out = s;
    return TSR_OK;
}

void tsri_script_destroy(script **pointer)
{
    script *s = *pointer;

    *pointer = NULL;
    if (s == NULL) {
        return;
    }
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        tsri_free(&s->events[lane]);
    }
    tsri_free(&s->gates);
    tsri_free(&s->groups);
    tsri_free(&s);
}
