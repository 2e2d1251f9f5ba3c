/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Playing all ranks' scripts until nobody can go on.
 *
 * A rank goes on as far as it can and is taken up again when a collective that it came to is over.
 * Invariant: a rank that is not in the queue stands still in every lane. What is left when the
 * queue is empty hangs; match_report.c says why. */
#include "plan/match_priv.h"

#include "base/base.h"

enum {
    FIRST_BUCKETS = 1024 /* a power of two */
};

/* ---- groups ---- */

static uint64_t group_hash(const match_group *g)
{
    return tsri_hash(&g->members, sizeof(const int *), (uint64_t)g->lane);
}

static void enter(match *m, int group)
{
    uint64_t at = group_hash(&m->groups[group]);

    for (at &= (uint64_t)m->bucket_count - 1; m->buckets[at] != 0;) {
        at = (at + 1) & ((uint64_t)m->bucket_count - 1);
    }
    m->buckets[at] = group + 1;
}

static tsr_status widen_buckets(match *m)
{
    int *wider = NULL;
    const int count = m->bucket_count == 0 ? FIRST_BUCKETS : 2 * m->bucket_count;

    TSR_TRY(tsri_alloc((size_t)count, sizeof(int), &wider));
    tsri_free(&m->buckets);
    m->buckets = wider;
    m->bucket_count = count;
    for (int i = 0; i < m->group_count; i++) {
        enter(m, i);
    }
    return TSR_OK;
}

/* The match's group of members[size] in lane. */
static tsr_status find_match_group(match *m, const int *members, int size, int lane, int *out)
{
    match_group wanted = {.size = size, .lane = lane};
    const void *kept = NULL;

    TSR_TRY(tsri_intern_keep(m->members, members, sizeof(int) * (size_t)size, &kept));
    wanted.members = kept;
    if (2 * m->group_count >= m->bucket_count) {
        TSR_TRY(widen_buckets(m));
    }
    for (uint64_t at = group_hash(&wanted);; at++) {
        const int found = m->buckets[at & ((uint64_t)m->bucket_count - 1)] - 1;

        if (found < 0) {
            break;
        }
        if (m->groups[found].members == wanted.members && m->groups[found].lane == lane) {
            *out = found;
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_grow(&m->groups, &m->group_capacity, m->group_count + 1, sizeof(match_group)));
    m->groups[m->group_count] = wanted;
    enter(m, m->group_count);
    *out = m->group_count++;
    return TSR_OK;
}

static tsr_status check_members(const match *m, int rank, int size)
{
    bool here = false;

    for (int i = 0; i < size; i++) {
        if (m->scratch[i] < 0 || m->scratch[i] >= m->input->rank_count) {
            return TSR_RAISE(TSR_ERR_INVALID, "group of rank %d has member %d of %d ranks", rank,
                             m->scratch[i], m->input->rank_count);
        }
        here = here || m->scratch[i] == rank;
    }
    if (!here) {
        return TSR_RAISE(TSR_ERR_INVALID, "rank %d is in no place of its own group of %d", rank,
                         size);
    }
    return TSR_OK;
}

/* The members of g, rank's, into scratch. */
static tsr_status read_members(const match *m, int rank, const script_group *g, int *size_out)
{
    const int ranks = m->input->rank_count;
    const bool world = g->lane == LANE_HOST;
    const int size = world ? ranks : g->size;

    if (size < 1 || size > ranks || (!world && g->members == NULL)) {
        return TSR_RAISE(TSR_ERR_INVALID, "rank %d has a group of %d of %d ranks", rank, size,
                         ranks);
    }
    if (!world && m->input->members != NULL) {
        const tsri_entry *entry = &m->players[rank].script->entries[g->entry];

        TSR_TRY(m->input->members(m->input->context, rank, entry, m->scratch));
    } else {
        for (int i = 0; i < size; i++) {
            m->scratch[i] = world ? i : g->members[i];
        }
    }
    TSR_TRY(check_members(m, rank, size));
    *size_out = size;
    return TSR_OK;
}

static tsr_status find_groups(match *m, int rank)
{
    player *p = &m->players[rank];

    TSR_TRY(tsri_alloc((size_t)p->script->group_count, sizeof(int), &p->groups));
    for (int i = 0; i < p->script->group_count; i++) {
        const script_group *g = &p->script->groups[i];
        int size = 0;

        if (g->lane == LANE_HOST && m->world >= 0) {
            p->groups[i] = m->world;
            continue;
        }
        TSR_TRY(read_members(m, rank, g, &size));
        TSR_TRY(find_match_group(m, m->scratch, size, g->lane, &p->groups[i]));
        m->world = g->lane == LANE_HOST ? p->groups[i] : m->world;
    }
    return TSR_OK;
}

/* ---- the play ---- */

static void enqueue(match *m, int rank)
{
    if (!m->players[rank].queued) {
        m->players[rank].queued = true;
        m->queue[m->queue_count++] = rank;
    }
}

static void finish_call(match *m, match_group *g)
{
    g->round++;
    g->arrived = 0;
    for (int i = 0; i < g->size; i++) {
        player *p = &m->players[g->members[i]];

        p->done[g->lane]++;
        p->arrived[g->lane] = false;
        enqueue(m, g->members[i]);
    }
}

static bool arrive_at_call(match *m, player *p, const lane_event *event)
{
    const int index = p->groups[event->group];
    match_group *g = &m->groups[index];

    if (g->arrived > 0 && g->hash != event->hash) {
        m->differs = index;
        return false;
    }
    g->hash = event->hash;
    g->arrived++;
    p->arrived[g->lane] = true;
    if (g->arrived < g->size) {
        return false;
    }
    finish_call(m, g);
    return true;
}

static bool step_lane(match *m, player *p, int lane)
{
    const script *s = p->script;
    const lane_event *event = &s->events[lane][p->done[lane]];

    if (p->arrived[lane] || p->done[lane] == s->event_count[lane] ||
        event->gates > p->gates_passed) {
        return false;
    }
    if (event->group >= 0) {
        return arrive_at_call(m, p, event);
    }
    if (p->done[event->target] < event->need) {
        return false;
    }
    p->done[lane]++;
    return true;
}

static bool step_host(player *p)
{
    const script *s = p->script;
    const int before = p->gates_passed;

    while (p->gates_passed < s->gate_count &&
           p->done[s->gates[p->gates_passed].lane] >= s->gates[p->gates_passed].need) {
        p->gates_passed++;
    }
    return p->gates_passed > before;
}

/* Returns whether p moved at all. */
static bool step_player(match *m, player *p)
{
    bool moved = step_host(p);

    for (int lane = 0; lane < LANE_COUNT; lane++) {
        while (m->differs < 0 && step_lane(m, p, lane)) {
            moved = true;
        }
    }
    return moved;
}

static void play_all(match *m)
{
    for (int rank = m->input->rank_count - 1; rank >= 0; rank--) {
        enqueue(m, rank);
    }
    while (m->queue_count > 0 && m->differs < 0) {
        player *p = &m->players[m->queue[--m->queue_count]];

        p->queued = false;
        while (m->differs < 0 && step_player(m, p)) {
        }
    }
}

/* ---- setting up ---- */

/* Ranks that share a ledger share its script; neighbours most often do. */
static tsr_status find_script(match *m, int rank)
{
    const tsri_match_ledger *ledger = &m->input->ledgers[rank];

    for (int i = m->script_count - 1; i >= 0 && ledger->count > 0; i--) {
        if (m->scripts[i]->entries == ledger->entries &&
            m->scripts[i]->entry_count == ledger->count) {
            m->players[rank].script = m->scripts[i];
            return TSR_OK;
        }
    }
    TSR_TRY(tsri_grow(&m->scripts, &m->script_capacity, m->script_count + 1, sizeof(script *)));
    TSR_TRY(tsri_script_create(ledger, m->input->inline_compute, &m->scripts[m->script_count]));
    m->players[rank].script = m->scripts[m->script_count++];
    return TSR_OK;
}

static tsr_status set_up(match *m)
{
    const size_t ranks = (size_t)m->input->rank_count;

    TSR_TRY(tsri_alloc(ranks, sizeof(player), &m->players));
    TSR_TRY(tsri_alloc(ranks, sizeof(int), &m->scratch));
    TSR_TRY(tsri_alloc(ranks, sizeof(int), &m->queue));
    TSR_TRY(tsri_intern_create(&m->members));
    for (int rank = 0; rank < m->input->rank_count; rank++) {
        TSR_TRY(find_script(m, rank));
        TSR_TRY(find_groups(m, rank));
    }
    return TSR_OK;
}

static void tear_down(match *m)
{
    for (int rank = 0; m->players != NULL && rank < m->input->rank_count; rank++) {
        tsri_free(&m->players[rank].groups);
    }
    for (int i = 0; i < m->script_count; i++) {
        tsri_script_destroy(&m->scripts[i]);
    }
    tsri_free(&m->scripts);
    tsri_free(&m->players);
    tsri_free(&m->groups);
    tsri_free(&m->buckets);
    tsri_free(&m->scratch);
    tsri_free(&m->queue);
    tsri_intern_destroy(&m->members);
}

tsr_status tsri_match(const tsri_match_input *input, tsri_match_report *out)
{
    match m = {.input = input, .differs = -1, .world = -1};
    tsr_status status = TSR_OK;

    out->cause = TSRI_MATCH_FITS;
    out->text[0] = '\0';
    TSR_TRY_GOTO(status, set_up(&m), tear_down);
    play_all(&m);
    TSR_TRY_GOTO(status, tsri_match_explain(&m, out), tear_down);
tear_down:
    tear_down(&m);
    return status;
}
