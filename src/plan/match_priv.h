/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file match_priv.h
 * The matcher's own structures.
 *
 * A ledger is boiled down to a script: per lane (stream, and one of the host for openings) the
 * events that can hold it, and the gates at which the host waits. Everything else in a ledger only
 * takes time. "need" counts events of a lane: with that many done, all work up to a point is done.
 */
#pragma once

#include "backend/dispatch.h"
#include "base/intern.h"

#include "plan/match.h"

enum {
    LANE_HOST = TSRI_STREAM_COUNT,
    LANE_COUNT
};

typedef struct lane_event {
    uint64_t hash; /* of a collective: what all members must do alike */
    int entry;     /* index in the ledger */
    int gates;     /* that the host must have passed */
    int group;     /* of a collective: in the script's groups; of a wait: -1 */
    int target;    /* of a wait: the lane awaited */
    int need;      /* of a wait: events of it */
} lane_event;

typedef struct gate {
    int lane, need;
} gate;

/* A group as the ledger names it. */
typedef struct script_group {
    const int *members; /* NULL: the whole world, for openings */
    int size, lane;
    int entry; /* the first call */
    int calls;
} script_group;

typedef struct script {
    const tsri_entry *entries;
    int entry_count;
    lane_event *events[LANE_COUNT];
    int event_count[LANE_COUNT], event_capacity[LANE_COUNT];
    gate *gates;
    int gate_count, gate_capacity;
    script_group *groups;
    int group_count, group_capacity;
} script;

tsr_status tsri_script_create(const tsri_match_ledger *ledger, bool inline_compute, script **out);
void tsri_script_destroy(script **pointer);

typedef struct player {
    const script *script;
    int *groups; /* per script group: which of the match's */
    int done[LANE_COUNT];
    int gates_passed;
    bool arrived[LANE_COUNT]; /* at the collective that comes next in the lane */
    bool queued;
} player;

typedef struct match_group {
    const int *members; /* interned */
    int size, lane;
    int round;   /* calls that are over */
    int arrived; /* members at the next one */
    uint64_t hash;
} match_group;

typedef struct match {
    const tsri_match_input *input;
    script **scripts;
    int script_count, script_capacity;
    player *players;
    match_group *groups;
    int group_count, group_capacity;
    int *buckets; /* groups by hash of members and lane: index + 1, or 0 */
    int bucket_count;
    tsri_intern *members;
    int *scratch; /* [rank_count] */
    int world;    /* the group of all ranks, in which groups are opened; -1: none yet */
    int *queue;   /* ranks that may go on */
    int queue_count;
    int differs; /* group at which members' calls differ; -1: none */
} match;

/* match_report.c: what ended the play. */
tsr_status tsri_match_explain(const match *m, tsri_match_report *out);
