/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Saying why a play came to a stand.
 *
 * A member that never makes a call is looked for first; where there is none, every member that a
 * call waits for is itself held up in one, and following them from call to call must come round. */
#include "plan/match_priv.h"

#include "base/base.h"

#include <stdarg.h>
#include <string.h>

enum {
    LIST_RANGES = 6, /* ranges of ranks that are written out */
    LIST_SIDES = 6,  /* ways of making a call that are told apart */
    LIST_LINKS = 16  /* of a cycle that are written out */
};

typedef struct place {
    int rank, lane;
} place;

/* ---- text ---- */

static void add_text(tsri_match_report *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add_text(tsri_match_report *out, const char *format, ...)
{
    const size_t used = strlen(out->text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(out->text + used, sizeof(out->text) - used, format, args);
    va_end(args);
}

static const lane_event *head(const match *m, place at)
{
    const player *p = &m->players[at.rank];
    const script *s = p->script;

    return p->done[at.lane] < s->event_count[at.lane] ? &s->events[at.lane][p->done[at.lane]]
                                                      : NULL;
}

static const match_group *group_at(const match *m, place at)
{
    return &m->groups[m->players[at.rank].groups[head(m, at)->group]];
}

static const tsri_entry *entry_of(const match *m, int rank, const lane_event *event)
{
    return &m->players[rank].script->entries[event->entry];
}

/* "all_gather of layers.1" */
static void add_operation(tsri_match_report *out, const tsri_entry *e)
{
    if (e->kind == TSRI_ENTRY_GROUP) {
        add_text(out, "the opening of group %s for stream %s", e->group,
                 tsri_stream_name(e->stream));
        return;
    }
    add_text(out, "%s of %s", tsri_coll_name((tsri_coll_kind)e->op),
             e->label == NULL ? "?" : (e->label[0] == '\0' ? "(root)" : e->label));
}

/* "over shard" */
static void add_where(tsri_match_report *out, const tsri_entry *e)
{
    if (e->kind == TSRI_ENTRY_GROUP) {
        add_text(out, "over all ranks");
    } else {
        add_text(out, "over %s", e->group);
    }
}

/* " (call 3, stream gather)", but the stream of an opening has no part in it */
static void add_number(tsri_match_report *out, const tsri_entry *e, int number)
{
    if (e->kind == TSRI_ENTRY_GROUP) {
        add_text(out, " (opening %d)", number);
    } else {
        add_text(out, " (call %d, stream %s)", number, tsri_stream_name(e->stream));
    }
}

/* "rank 3", "ranks 0 to 3 and 5"; chosen[rank_count] */
static void add_ranks(tsri_match_report *out, const bool *chosen, int rank_count)
{
    int count = 0;
    int ranges = 0;

    for (int r = 0; r < rank_count; r++) {
        count += chosen[r];
    }
    add_text(out, "rank%s", count == 1 ? "" : "s");
    for (int r = 0; r < rank_count; r++) {
        int end = r;

        while (chosen[r] && end + 1 < rank_count && chosen[end + 1]) {
            end++;
        }
        if (!chosen[r]) {
            continue;
        }
        if (ranges == LIST_RANGES) {
            add_text(out, ", ... (%d in all)", count);
            return;
        }
        add_text(out, "%s%d", ranges == 0 ? " " : ", ", r);
        if (end > r) {
            add_text(out, "%s%d", end == r + 1 ? ", " : " to ", end);
        }
        ranges++;
        r = end;
    }
}

/* ---- looking things up ---- */

static int script_group_of(const match *m, int rank, int group)
{
    const player *p = &m->players[rank];

    for (int i = 0; i < p->script->group_count; i++) {
        if (p->groups[i] == group) {
            return i;
        }
    }
    return -1;
}

/* rank's call number k (from 0) over group; NULL: it makes none. */
static const lane_event *call_of(const match *m, int rank, int group, int k)
{
    const script *s = m->players[rank].script;
    const int own = script_group_of(m, rank, group);
    const int lane = m->groups[group].lane;

    if (own < 0 || k < 0 || k >= s->groups[own].calls) {
        return NULL;
    }
    for (int i = 0; i < s->event_count[lane]; i++) {
        if (s->events[lane][i].group == own && k-- == 0) {
            return &s->events[lane][i];
        }
    }
    return NULL;
}

/* ---- calls that differ ---- */

typedef struct side {
    uint64_t hash;
    const tsri_entry *entry; /* NULL: no such call */
    bool *ranks;
} side;

typedef struct sides {
    side side[LIST_SIDES];
    int count;
    bool *room;
} sides;

static tsr_status sort_members(const match *m, int group, sides *out)
{
    const match_group *g = &m->groups[group];
    const size_t ranks = (size_t)m->input->rank_count;

    TSR_TRY(tsri_alloc(ranks * LIST_SIDES, sizeof(bool), &out->room));
    for (int i = 0; i < g->size; i++) {
        const int rank = g->members[i];
        const lane_event *event = call_of(m, rank, group, g->round);
        const uint64_t hash = event != NULL ? event->hash : 0;
        int at = 0;

        while (at < out->count &&
               (out->side[at].hash != hash || (out->side[at].entry == NULL) != (event == NULL))) {
            at++;
        }
        if (at == LIST_SIDES) {
            continue;
        }
        if (at == out->count) {
            out->side[out->count++] =
                (side){.hash = hash,
                       .entry = event != NULL ? entry_of(m, rank, event) : NULL,
                       .ranks = out->room + (size_t)at * ranks};
        }
        out->side[at].ranks[rank] = true;
    }
    return TSR_OK;
}

static bool has_label(const match *m, int rank, int group, const char *label)
{
    const script *s = m->players[rank].script;
    const int own = script_group_of(m, rank, group);
    const int lane = m->groups[group].lane;

    for (int i = 0; own >= 0 && i < s->event_count[lane]; i++) {
        const char *other = s->entries[s->events[lane][i].entry].label;

        if (s->events[lane][i].group == own && other != NULL && strcmp(other, label) == 0) {
            return true;
        }
    }
    return false;
}

static int first_of(const match *m, const side *s)
{
    int rank = 0;

    while (rank < m->input->rank_count - 1 && !s->ranks[rank]) {
        rank++;
    }
    return rank;
}

/* Modules for which one side calls and the other never does: most often the slip itself. */
static void add_absent(const match *m, int group, const side *from, const side *to,
                       tsri_match_report *out)
{
    const int caller = first_of(m, from);
    const int other = first_of(m, to);
    const script *s = m->players[caller].script;
    const int own = script_group_of(m, caller, group);
    const int lane = m->groups[group].lane;
    const char *seen = NULL;

    for (int i = 0; own >= 0 && i < s->event_count[lane]; i++) {
        const tsri_entry *e = &s->entries[s->events[lane][i].entry];

        if (s->events[lane][i].group == own && e->label != NULL &&
            !has_label(m, other, group, e->label)) {
            seen = e->label;
            break;
        }
    }
    if (seen != NULL) {
        add_text(out, "; %s is never called there by ", seen);
        add_ranks(out, to->ranks, m->input->rank_count);
    }
}

static bool same_data(const sides *all)
{
    for (int i = 1; i < all->count; i++) {
        if (all->side[i].entry == NULL || all->side[0].entry == NULL ||
            all->side[i].entry->call != all->side[0].entry->call) {
            return false;
        }
    }
    return true;
}

/* Where and which; some member makes the call, for two of them differ. */
static void add_call(const match_group *g, const sides *all, tsri_match_report *out)
{
    for (int i = 0; i < all->count; i++) {
        const tsri_entry *e = all->side[i].entry;

        if (e != NULL) {
            add_text(out, "%s %d ", e->kind == TSRI_ENTRY_GROUP ? "opening" : "call", g->round + 1);
            add_where(out, e);
            add_text(out, " (stream %s) differs", tsri_stream_name(e->stream));
            return;
        }
    }
}

static void add_side(const side *s, int rank_count, tsri_match_report *out)
{
    add_ranks(out, s->ranks, rank_count);
    add_text(out, ": ");
    if (s->entry == NULL) {
        add_text(out, "no such call");
        return;
    }
    add_operation(out, s->entry);
    if (s->entry->kind == TSRI_ENTRY_COLLECTIVE) {
        add_text(out, ", %zu bytes of %s", s->entry->bytes, tsr_dtype_name(s->entry->dtype));
    }
}

static tsr_status explain_difference(const match *m, tsri_match_report *out)
{
    sides all = {.count = 0};
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, sort_members(m, m->differs, &all), free_room);
    out->cause = TSRI_MATCH_DIFFERS;
    add_call(&m->groups[m->differs], &all, out);
    for (int i = 0; i < all.count; i++) {
        add_text(out, i == 0 ? ": " : "; ");
        add_side(&all.side[i], m->input->rank_count, out);
    }
    if (same_data(&all)) {
        add_text(out, "; sizes agree, so data of one would go to the other");
    }
    for (int i = 1; i < all.count; i++) {
        add_absent(m, m->differs, &all.side[0], &all.side[i], out);
        add_absent(m, m->differs, &all.side[i], &all.side[0], out);
    }
free_room:
    tsri_free(&all.room);
    return status;
}

/* ---- what a rank that stands still waits for ---- */

/* The lane of rank whose head is a collective that it came to, and behind which lane's next event
 * stands. Each turn goes to an earlier point in host order, so it ends. */
static place resolve(const match *m, place at)
{
    const player *p = &m->players[at.rank];

    while (!p->arrived[at.lane]) {
        const lane_event *event = head(m, at);

        if (event == NULL || event->gates > p->gates_passed) {
            at.lane = p->script->gates[p->gates_passed].lane;
        } else {
            at.lane = event->target;
        }
    }
    return at;
}

static bool has_come(const match *m, int rank, const match_group *g)
{
    const place at = {rank, g->lane};
    const player *p = &m->players[rank];

    return p->arrived[g->lane] && group_at(m, at) == g;
}

static bool will_come(const match *m, int rank, const match_group *g)
{
    const int group = (int)(g - m->groups);
    const int own = script_group_of(m, rank, group);

    return own >= 0 && m->players[rank].script->groups[own].calls > g->round;
}

/* ---- a member that never makes the call ---- */

static void add_last_call(const match *m, int rank, int group, tsri_match_report *out)
{
    const match_group *g = &m->groups[group];
    const script *s = m->players[rank].script;
    const lane_event *event = call_of(m, rank, group, g->round - 1);
    int last = -1;

    if (event != NULL) {
        add_text(out, "; the last call of rank %d there is ", rank);
        add_operation(out, entry_of(m, rank, event));
        add_text(out, " (call %d)", g->round);
        return;
    }
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        for (int i = 0; i < s->event_count[lane]; i++) {
            if (s->events[lane][i].group >= 0 && s->events[lane][i].entry > last) {
                last = s->events[lane][i].entry;
            }
        }
    }
    add_text(out, "; rank %d makes no call there", rank);
    if (last >= 0) {
        add_text(out, ", its last anywhere is ");
        add_operation(out, &s->entries[last]);
        add_text(out, " ");
        add_where(out, &s->entries[last]);
    } else {
        add_text(out, ", nor anywhere");
    }
}

static tsr_status explain_missing(const match *m, place at, tsri_match_report *out)
{
    const match_group *g = group_at(m, at);
    const tsri_entry *e = entry_of(m, at.rank, head(m, at));
    const int ranks = m->input->rank_count;
    bool *come = NULL;
    bool *never = NULL;
    int first = -1;

    TSR_TRY(tsri_alloc(2 * (size_t)ranks, sizeof(bool), &come));
    never = come + ranks;
    for (int i = g->size - 1; i >= 0; i--) {
        come[g->members[i]] = has_come(m, g->members[i], g);
        never[g->members[i]] = !will_come(m, g->members[i], g);
        first = never[g->members[i]] ? g->members[i] : first;
    }
    out->cause = TSRI_MATCH_MISSING;
    add_ranks(out, come, ranks);
    add_text(out, " wait in ");
    add_operation(out, e);
    add_text(out, " ");
    add_where(out, e);
    add_number(out, e, g->round + 1);
    add_text(out, " for ");
    add_ranks(out, never, ranks);
    add_text(out, ", whose program ends without it");
    add_last_call(m, first, (int)(g - m->groups), out);
    tsri_free(&come);
    return TSR_OK;
}

/* ---- orders that cycle ---- */

/* Where the walk goes from at: to a member that has not come, one already seen if there is. */
static place next_place(const match *m, place at, const int *seen)
{
    const match_group *g = group_at(m, at);
    place chosen = {-1, 0};

    for (int i = 0; i < g->size; i++) {
        if (!has_come(m, g->members[i], g)) {
            const place to = resolve(m, (place){g->members[i], g->lane});

            if (seen[to.rank * LANE_COUNT + to.lane] > 0) {
                return to;
            }
            chosen = chosen.rank < 0 ? to : chosen;
        }
    }
    return chosen;
}

static void add_link(const match *m, place at, const char *before, tsri_match_report *out)
{
    const tsri_entry *e = entry_of(m, at.rank, head(m, at));

    add_text(out, "%srank %d%s waits in ", before, at.rank, before[0] == '\0' ? "" : ", which");
    add_operation(out, e);
    add_text(out, " ");
    add_where(out, e);
    add_number(out, e, group_at(m, at)->round + 1);
}

static void write_cycle(const match *m, place start, int length, const int *seen,
                        tsri_match_report *out)
{
    place at = start;

    add_text(out, "the order of calls goes round between groups: ");
    for (int i = 0; i < length; i++) {
        if (i < LIST_LINKS) {
            add_link(m, at, i == 0 ? "" : " for ", out);
        }
        at = next_place(m, at, seen);
    }
    if (length > LIST_LINKS) {
        add_text(out, ", and so on over %d more,", length - LIST_LINKS);
    }
    add_text(out, " for rank %d", start.rank);
}

static tsr_status explain_cycle(const match *m, place at, tsri_match_report *out)
{
    int *seen = NULL;
    int turn = 1;

    TSR_TRY(tsri_alloc((size_t)m->input->rank_count * LANE_COUNT, sizeof(int), &seen));
    while (seen[at.rank * LANE_COUNT + at.lane] == 0) {
        seen[at.rank * LANE_COUNT + at.lane] = turn++;
        at = next_place(m, at, seen);
    }
    out->cause = TSRI_MATCH_CYCLE;
    /* Leave only the cycle seen, so that writing it follows the same way. */
    const int first = seen[at.rank * LANE_COUNT + at.lane];

    for (int i = 0; i < m->input->rank_count * LANE_COUNT; i++) {
        seen[i] = seen[i] >= first ? seen[i] : 0;
    }
    write_cycle(m, at, turn - first, seen, out);
    tsri_free(&seen);
    return TSR_OK;
}

/* ---- the verdict ---- */

static bool is_stuck(const match *m, int rank)
{
    const player *p = &m->players[rank];

    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (p->done[lane] < p->script->event_count[lane]) {
            return true;
        }
    }
    return p->gates_passed < p->script->gate_count;
}

static bool all_will_come(const match *m, const match_group *g)
{
    for (int i = 0; i < g->size; i++) {
        if (!will_come(m, g->members[i], g)) {
            return false;
        }
    }
    return true;
}

/* A collective that some ranks came to and a member never makes. */
static bool find_missing(const match *m, place *out)
{
    for (int i = 0; i < m->input->rank_count * LANE_COUNT; i++) {
        const place at = {i / LANE_COUNT, i % LANE_COUNT};

        if (m->players[at.rank].arrived[at.lane] && !all_will_come(m, group_at(m, at))) {
            *out = at;
            return true;
        }
    }
    return false;
}

/* Any event that a stuck rank has before it. */
static place find_stuck(const match *m)
{
    place at = {0, 0};

    while (!is_stuck(m, at.rank)) {
        at.rank++;
    }
    while (head(m, at) == NULL) {
        at.lane++;
    }
    return resolve(m, at);
}

tsr_status tsri_match_explain(const match *m, tsri_match_report *out)
{
    place at = {0, 0};
    bool stuck = false;

    if (m->differs >= 0) {
        TSR_TRY(explain_difference(m, out));
        return TSR_OK;
    }
    for (int rank = 0; rank < m->input->rank_count && !stuck; rank++) {
        stuck = is_stuck(m, rank);
    }
    if (!stuck) {
        return TSR_OK;
    }
    if (find_missing(m, &at)) {
        TSR_TRY(explain_missing(m, at, out));
    } else {
        TSR_TRY(explain_cycle(m, find_stuck(m), out));
    }
    return TSR_OK;
}
