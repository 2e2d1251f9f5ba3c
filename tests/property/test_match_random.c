/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Random programs on random grids: what all ranks run alike fits; with one edit on one rank the
 * matcher says the same as playing the entries one by one, in the plainest way there is. */
#include "base/rng.h"

#include <stdio.h>
#include <string.h>

#include "plan/match.h"
#include "support/scores.h"
#include "support/tsr_test.h"

enum {
    PROGRAMS = 3000,
    MAX_LENGTH = 24
};

static score_world world;

/* ---- the plain play ---- */

typedef struct plain_rank {
    int host;                                        /* next entry to issue */
    int queue[TSRI_STREAM_COUNT][SCORE_MAX_ENTRIES]; /* issued, in order */
    int issued[TSRI_STREAM_COUNT], done[TSRI_STREAM_COUNT];
    uint64_t seq[TSRI_STREAM_COUNT]; /* newest operation done */
} plain_rank;

static plain_rank plain[SCORE_MAX_RANKS];

static const tsri_entry *head_of(int rank, int stream)
{
    const plain_rank *p = &plain[rank];

    return p->done[stream] < p->issued[stream]
               ? &world.ranks[rank].entries[p->queue[stream][p->done[stream]]]
               : NULL;
}

static bool host_is_held(int rank, bool inline_compute)
{
    const plain_rank *p = &plain[rank];
    const tsri_entry *last = p->host > 0 ? &world.ranks[rank].entries[p->host - 1] : NULL;

    if (last == NULL) {
        return false;
    }
    const bool waits = (last->kind == TSRI_ENTRY_COPY && last->op == TSRI_COPY_READ) ||
                       (inline_compute && last->stream == TSRI_STREAM_COMPUTE);

    return waits && p->done[last->stream] < p->issued[last->stream];
}

/* All members stand before a call over the same group. */
static bool all_have_come(int stream, const tsri_entry *e, bool *differs)
{
    bool alike = true;

    for (int i = 0; i < e->group_size; i++) {
        const tsri_entry *other = head_of(e->members[i], stream);

        if (other == NULL || other->kind != TSRI_ENTRY_COLLECTIVE ||
            other->axis_mask != e->axis_mask) {
            return false;
        }
    }
    for (int i = 0; i < e->group_size; i++) {
        const tsri_entry *other = head_of(e->members[i], stream);

        alike = alike && other->call == e->call && strcmp(other->label, e->label) == 0;
    }
    *differs = *differs || !alike;
    return alike;
}

static void finish(int rank, int stream)
{
    const tsri_entry *e = head_of(rank, stream);

    if (e->kind != TSRI_ENTRY_WAIT) {
        plain[rank].seq[stream] = e->seq;
    }
    plain[rank].done[stream]++;
}

static bool move(int rank, int stream, bool *differs)
{
    const tsri_entry *e = head_of(rank, stream);

    if (e == NULL || (e->kind == TSRI_ENTRY_WAIT && plain[rank].seq[e->op] < e->seq)) {
        return false;
    }
    if (e->kind != TSRI_ENTRY_COLLECTIVE) {
        finish(rank, stream);
        return true;
    }
    if (!all_have_come(stream, e, differs)) {
        return false;
    }
    for (int i = 0; i < e->group_size; i++) {
        finish(e->members[i], stream);
    }
    return true;
}

/* Two heads that differ are a difference even where a third member has not come. */
static bool head_differs(int stream, const tsri_entry *e)
{
    for (int i = 0; i < e->group_size; i++) {
        const tsri_entry *other = head_of(e->members[i], stream);

        if (other != NULL && other->kind == TSRI_ENTRY_COLLECTIVE &&
            other->axis_mask == e->axis_mask &&
            (other->call != e->call || strcmp(other->label, e->label) != 0)) {
            return true;
        }
    }
    return false;
}

static bool some_heads_differ(int ranks)
{
    for (int i = 0; i < ranks * TSRI_STREAM_COUNT; i++) {
        const tsri_entry *e = head_of(i / TSRI_STREAM_COUNT, i % TSRI_STREAM_COUNT);

        if (e != NULL && e->kind == TSRI_ENTRY_COLLECTIVE &&
            head_differs(i % TSRI_STREAM_COUNT, e)) {
            return true;
        }
    }
    return false;
}

static bool plain_turn(int ranks, bool inline_compute, bool *differs)
{
    bool moved = false;

    for (int r = 0; r < ranks; r++) {
        plain_rank *p = &plain[r];

        while (p->host < world.ranks[r].count && !host_is_held(r, inline_compute)) {
            const int s = (int)world.ranks[r].entries[p->host].stream;

            p->queue[s][p->issued[s]++] = p->host++;
            moved = true;
        }
        for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
            while (move(r, s, differs)) {
                moved = true;
            }
        }
    }
    return moved;
}

typedef enum verdict {
    FITS,
    DIFFERS,
    HANGS
} verdict;

static verdict play_plainly(bool inline_compute)
{
    const int ranks = world.rows * world.cols;
    bool differs = false;

    memset(plain, 0, sizeof(plain));
    while (plain_turn(ranks, inline_compute, &differs)) {
    }
    if (differs || some_heads_differ(ranks)) {
        return DIFFERS;
    }
    for (int r = 0; r < ranks; r++) {
        for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
            if (plain[r].host < world.ranks[r].count || plain[r].done[s] < plain[r].issued[s]) {
                return HANGS;
            }
        }
    }
    return FITS;
}

/* ---- random programs ---- */

static uint64_t state;

static int draw(int below)
{
    state = tsri_rng_key(state, 1, 0, 0);
    return (int)((state >> 11U) % (uint64_t)below);
}

/* One line of a program. */
typedef struct line {
    int what, axis, count;
    tsri_stream_kind stream, other;
    const char *label;
} line;

static void write_line(int rank, const line *l)
{
    if (l->what < 4) {
        score_call(&world, rank, l->axis, l->stream, TSRI_ALL_REDUCE, l->label, l->count);
    } else if (l->what < 6) {
        if (l->stream != l->other && world.ranks[rank].seq[l->other] > 0) {
            score_wait(&world, rank, l->stream, l->other);
        }
    } else if (l->what < 7) {
        score_kernel(&world, rank, l->stream);
    } else {
        score_read(&world, rank, l->stream);
    }
}

static void write_program(void)
{
    static const char *const labels[] = {"", "layers.0", "layers.1", "norm"};
    const int length = 1 + draw(MAX_LENGTH);
    const int rows = 1 + draw(4);

    score_begin(&world, rows, 1 + draw(4));
    for (int i = 0; i < length; i++) {
        const line l = {.what = draw(8),
                        .axis = draw(2),
                        .count = 1 + draw(2),
                        .stream = (tsri_stream_kind)draw(3),
                        .other = (tsri_stream_kind)draw(3),
                        .label = labels[draw(4)]};

        for (int r = 0; r < world.rows * world.cols; r++) {
            write_line(r, &l);
        }
    }
}

static int draw_call(const score *s)
{
    for (int tries = 0; tries < 50; tries++) {
        const int i = draw(s->count);

        if (s->entries[i].kind == TSRI_ENTRY_COLLECTIVE) {
            return i;
        }
    }
    return -1;
}

/* Keep what is not the edited call where it was: an entry that only computes takes its place. */
static void drop(tsri_entry *e)
{
    *e = (tsri_entry){
        .kind = TSRI_ENTRY_KERNEL, .stream = e->stream, .label = "kernel", .seq = e->seq};
}

static void swap_calls(tsri_entry *a, tsri_entry *b)
{
    const tsri_entry keep = *a;

    *a = *b;
    *b = keep;
}

/* Sequence numbers follow the order of the streams' operations; waits keep theirs. */
static void renumber(score *s)
{
    uint64_t seq[TSRI_STREAM_COUNT] = {0};

    for (int i = 0; i < s->count; i++) {
        tsri_entry *e = &s->entries[i];

        if (e->kind == TSRI_ENTRY_WAIT) {
            e->seq = e->seq < seq[e->op] ? e->seq : seq[e->op];
        } else {
            e->seq = ++seq[e->stream];
        }
    }
}

/* Returns whether there was something to edit. */
static bool edit(void)
{
    score *s = &world.ranks[draw(world.rows * world.cols)];
    const int a = s->count > 0 ? draw_call(s) : -1;
    const int b = s->count > 0 ? draw_call(s) : -1;

    if (a < 0 || b < 0) {
        return false;
    }
    switch (draw(4)) {
    case 0:
        drop(&s->entries[a]);
        break;
    case 1:
        s->entries[a].call++;
        break;
    case 2:
        s->entries[a].label = "elsewhere";
        break;
    default:
        swap_calls(&s->entries[a], &s->entries[b]);
        renumber(s);
        break;
    }
    return true;
}

static void check_alike(int program, bool edited)
{
    tsri_match_report report;

    for (int i = 0; i < 2; i++) {
        const verdict plainly = play_plainly(i == 1);

        REQUIRE_OK(score_match(&world, i == 1, &report));
        const verdict found = report.cause == TSRI_MATCH_FITS
                                  ? FITS
                                  : (report.cause == TSRI_MATCH_DIFFERS ? DIFFERS : HANGS);

        if (found != plainly || (!edited && found != FITS)) {
            (void)fprintf(stderr, "program %d, %dx%d: %s\n", program, world.rows, world.cols,
                          report.text);
        }
        REQUIRE_EQ(found, plainly);
        CHECK_EQ(report.text[0] == '\0', found == FITS);
        if (!edited) {
            REQUIRE_EQ(found, FITS);
        }
    }
}

static void test_edits_are_found(void)
{
    int found[3] = {0};

    for (int i = 0; i < PROGRAMS; i++) {
        state = (uint64_t)i + 1;
        write_program();
        check_alike(i, false);
        if (edit()) {
            check_alike(i, true);
            found[play_plainly(false)]++;
        }
    }
    (void)printf("edits: %d harmless, %d make calls differ, %d hang\n", found[FITS], found[DIFFERS],
                 found[HANGS]);
    for (int i = 0; i < 3; i++) {
        CHECK(found[i] > PROGRAMS / 20);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"edits_are_found", test_edits_are_found},
    {NULL, NULL},
};
