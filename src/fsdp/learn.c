/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The order of units, learnt by all ranks from what they run.
 *
 * In a forward from which is learnt all ranks say at each mark what they come to next, and what
 * some rank inside the innermost open bracket enters comes before that bracket's end. So all ranks
 * see one row, and put what is missing of it into the expected one, which so becomes a row that
 * holds all forwards seen: where one runs A B and another B A, that is A B A. A unit that stands in
 * it more than once holds the same each time.
 *
 * Learning goes on until a forward brings nothing new and every unit has been run by some rank;
 * units that none runs are expected behind those created before them, and after some forwards
 * without news that has to do. A rank that comes to a unit out of the order learnt asks whether all
 * do: if so, there is more to learn; if not, it is an error on all of them.
 */
#include "base/base.h"

#include "marks.h"

/* Forwards without news, after which units that no rank has run are not waited for. */
enum {
    QUIET_FORWARDS = 16
};

/* ---- all ranks say what comes next ---- */

/* What a rank comes to; valid: there is such a rank; within: it runs the innermost bracket; place:
 * in the expected row. */
typedef struct announcement {
    int32_t valid, within, kind, order, place;
} announcement;

static const char *mark_text(const engine *e, const announcement *a, char *text, size_t size)
{
    static const char *const verbs[] = {
        "runs", "ends", "runs", "ends", "uses a parameter of", "communicates over data axes in"};
    const bool known = a->order >= 0 && a->order < e->module_count;

    (void)snprintf(text, size, "%s \"%s\"", known ? verbs[a->kind] : "is in another model than",
                   e->modules[known ? a->order : 0]->path);
    return text;
}

/* Ranks that differ on axes without data alone compute together: they come to the same mark. */
static tsr_status check_groups(const engine *e, const announcement *all)
{
    const tsr_mesh *mesh = tsr_comm_mesh(e->comm);
    char text[TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 1)];
    char ours[192];
    char theirs[192];

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((tsri_comm_batch_axes(e->comm) >> axis & 1u) != 0) {
            continue;
        }
        for (int rank = 0; rank < tsr_mesh_cell_count(mesh); rank++) {
            int coord[TSR_MESH_MAX_AXES] = {0};
            int first = 0;

            TSR_TRY(tsr_mesh_coord(mesh, rank, coord));
            coord[axis] = 0;
            TSR_TRY(tsr_mesh_rank(mesh, coord, &first));
            if (all[rank].order != all[first].order || all[rank].kind != all[first].kind) {
                return TSR_RAISE(TSR_ERR_DISAGREE,
                                 "rank %d %s, rank %d %s: ranks of one group over \"%s\" pass over "
                                 "a unit together or not at all",
                                 first, mark_text(e, &all[first], ours, sizeof(ours)), rank,
                                 mark_text(e, &all[rank], theirs, sizeof(theirs)),
                                 tsri_comm_mask_name(e->comm, 1u << axis, text, sizeof(text)));
            }
        }
    }
    return TSR_OK;
}

/* Of the marks that ranks inside the innermost bracket come to: one that enters before the
 * bracket's end, and what more ranks come to first, since it is the others that leave something
 * out. NULL: there is none. */
static const announcement *choose(const announcement *all, int ranks)
{
    const announcement *best = NULL;
    int most = 0;

    for (int r = 0; r < ranks; r++) {
        int count = tsri_mark_ends((mark_kind)all[r].kind) ? 0
                    : all[r].kind == MARK_MEET             ? ranks
                                                           : 2 * ranks;

        if (all[r].valid == 0 || all[r].within == 0) {
            continue;
        }
        for (int other = 0; other < ranks; other++) {
            count += all[other].valid != 0 && all[other].kind == all[r].kind &&
                     all[other].order == all[r].order;
        }
        if (count > most || (count == most && all[r].order < best->order)) {
            most = count;
            best = &all[r];
        }
    }
    return best;
}

/* All ranks come to an operation that communicates over data axes. */
static tsr_status check_meeting(const engine *e, const announcement *next, const announcement *all)
{
    char text[192];

    for (int r = 0; next->kind == MARK_MEET && r < tsr_world_size(tsr_comm_world(e->comm)); r++) {
        if (all[r].kind != MARK_MEET) {
            return TSR_RAISE(TSR_ERR_DISAGREE,
                             "an operation communicates over data axes, but rank %d, which passes "
                             "over it, %s: what ranks pass over must not",
                             r, mark_text(e, &all[r], text, sizeof(text)));
        }
    }
    return TSR_OK;
}

static tsr_status announce(const engine *e, const mark *mine, const char *purpose,
                           announcement *all)
{
    const announcement own = {.valid = 1,
                              .within = e->order.open.marks[e->order.open.count - 1].passed ? 0 : 1,
                              .kind = (int32_t)mine->kind,
                              .order = mine->module->order,
                              .place = e->order.cursor};
    char ours[192];
    char theirs[192];

    TSR_TRY(tsri_comm_exchange(e->comm, purpose, &own, sizeof(own), all));
    for (int r = 0; r < tsr_world_size(tsr_comm_world(e->comm)); r++) {
        if (all[r].place != all[0].place) {
            return TSR_RAISE(TSR_ERR_DISAGREE,
                             "rank 0 %s, rank %d %s, out of the order of earlier forwards: ranks "
                             "may leave units out, but run them in one order",
                             mark_text(e, &all[0], ours, sizeof(ours)), r,
                             mark_text(e, &all[r], theirs, sizeof(theirs)));
        }
    }
    return TSR_OK;
}

/* The mark that all ranks come to now. */
static tsr_status agree(engine *e, const mark *mine, announcement *all, mark *out)
{
    const announcement *next = NULL;

    TSR_TRY(announce(e, mine, "the order of units", all));
    TSR_TRY(check_groups(e, all));
    next = choose(all, tsr_world_size(tsr_comm_world(e->comm)));
    if (next == NULL || next->order < 0 || next->order >= e->module_count) {
        return TSR_RAISE(TSR_ERR_DISAGREE, "ranks run the units of model \"%s\" in different ways",
                         e->modules[0]->path);
    }
    TSR_TRY(check_meeting(e, next, all));
    *out = (mark){.module = e->modules[next->order], .kind = (mark_kind)next->kind};
    return TSR_OK;
}

/* ---- the expected row grows ---- */

static tsr_status insert(engine *e, int at, const mark *m)
{
    TSR_TRY(tsri_row_insert(&e->order.expected, at, m));
    e->order.cursor += at < e->order.cursor ? 1 : 0;
    e->order.outermost_end += at < e->order.outermost_end ? 1 : 0;
    return TSR_OK;
}

/* What another bracket of the same module holds, into the empty one that m opens at at. */
static tsr_status copy_content(engine *e, int at, const mark *m)
{
    const mark_row *row = &e->order.expected;
    const mark end = tsri_mark_end(m);
    int from = tsri_row_find_down(row, m, at - 1);
    int count = 0;

    from = from >= 0 ? from : tsri_row_find_up(row, m, at + 1, row->count);
    if (from < 0) {
        return TSR_OK;
    }
    count = tsri_row_find_up(row, &end, from + 1, row->count) - from - 1;
    for (int i = 0; i < count; i++) {
        const mark inner = row->marks[from + 1 + i];

        if (!tsri_mark_is_guess(&inner)) {
            TSR_TRY(insert(e, ++at, &inner));
            from += from > at ? 1 : 0;
        }
    }
    return TSR_OK;
}

static tsr_status add(engine *e, int at, const mark *m)
{
    const mark fresh = {.module = m->module, .kind = m->kind};
    const mark end = tsri_mark_end(m);

    TSR_TRY(insert(e, at, &fresh));
    if (tsri_mark_opens(m->kind)) {
        TSR_TRY(insert(e, at + 1, &end));
        TSR_TRY(copy_content(e, at, &fresh));
    }
    return TSR_OK;
}

/* The bracket that lies around at; -1: none. */
static int bracket_around(const mark_row *row, int at)
{
    int depth = 0;

    for (int i = at - 1; i >= 0; i--) {
        if (tsri_mark_opens(row->marks[i].kind) && depth-- == 0) {
            return i;
        }
        depth += tsri_mark_ends(row->marks[i].kind) ? 1 : 0;
    }
    return -1;
}

/* Marks in [from, to) that are no guesses; and behind how many marks count of them lie. */
static int count_known(const mark_row *row, int from, int to)
{
    int count = 0;

    for (int i = from; i < to; i++) {
        count += tsri_mark_is_guess(&row->marks[i]) ? 0 : 1;
    }
    return count;
}

static int behind_known(const mark_row *row, int from, int count)
{
    while (count > 0) {
        count -= tsri_mark_is_guess(&row->marks[from++]) ? 0 : 1;
    }
    return from;
}

/* m, which is not expected, is so from now on: at the cursor, and at the same place in other
 * brackets of the module that is open there. */
static tsr_status expect_here(engine *e, const mark *m)
{
    const mark_row *row = &e->order.expected;
    const int around = bracket_around(row, e->order.cursor);
    const int known = count_known(row, around + 1, e->order.cursor);
    const mark open = row->marks[around];

    TSR_TRY(add(e, e->order.cursor, m));
    for (int i = row->count - 1; i >= 0; i--) {
        const bool here = bracket_around(row, e->order.cursor) == i;

        if (!here && tsri_mark_same(&row->marks[i], &open)) {
            TSR_TRY(add(e, behind_known(row, i + 1, known), m));
        }
    }
    e->order.news = true;
    return TSR_OK;
}

/* Where unit m has been guessed to run, which it does for the first time: it is not expected there
 * any more, nor what was guessed inside. */
static void forget_guess(engine *e, const mark *m)
{
    unit *u = m->kind == MARK_ENTER ? tsri_unit_of(m->module) : NULL;
    const mark end = tsri_mark_end(m);
    int begin = 0;
    int count = 0;

    if (u == NULL || u->run.seen || m->module == e->order.outermost) {
        return; /* run alone, it has no place among the others */
    }
    u->run.seen = true;
    begin = tsri_row_find_up(&e->order.expected, m, 0, e->order.expected.count);
    if (begin < 0) {
        return;
    }
    count = tsri_row_find_up(&e->order.expected, &end, begin, e->order.expected.count) + 1 - begin;
    tsri_row_remove(&e->order.expected, begin, begin + count);
    e->order.cursor -= begin >= e->order.cursor          ? 0
                       : begin + count > e->order.cursor ? e->order.cursor - begin
                                                         : count;
    e->order.outermost_end -= begin < e->order.outermost_end ? count : 0;
}

/* All ranks go on to next: what else is expected before it, none of them runs now. */
static tsr_status follow(engine *e, const mark *next, tsr_tape *tape)
{
    mark_row *row = &e->order.expected;
    int at = 0;

    forget_guess(e, next);
    at = tsri_mark_ends(next->kind)
             ? tsri_row_find_up(row, next, e->order.cursor, row->count)
             : tsri_row_find_inside(row, next, e->order.cursor, e->order.outermost_end);
    if (at < 0) {
        TSR_TRY(expect_here(e, next));
        at = e->order.cursor;
    }
    while (e->order.cursor < at) {
        const mark *m = &row->marks[e->order.cursor++];

        if (!tsri_mark_is_guess(m)) {
            TSR_TRY(tsri_schedule_pass(e, m, tape));
        }
    }
    e->order.cursor = at + 1;
    return TSR_OK;
}

tsr_status tsri_learn_reach(engine *e, const mark *mine, tsr_tape *tape)
{
    announcement *all = NULL;
    tsr_status status = TSR_OK;
    mark next = {0};

    TSR_TRY(tsri_alloc((size_t)tsr_world_size(tsr_comm_world(e->comm)), sizeof(*all), &all));
    do {
        TSR_TRY_GOTO(status, agree(e, mine, all, &next), free_all);
        TSR_TRY_GOTO(status, follow(e, &next, tape), free_all);
        if (!tsri_mark_same(&next, mine)) {
            TSR_TRY_GOTO(status, tsri_schedule_pass(e, &next, tape), free_all);
        }
    } while (!tsri_mark_same(&next, mine));
free_all:
    tsri_free(&all);
    return status;
}

bool tsri_learn_may_differ(const engine *e)
{
    return tsri_comm_splits_data(e->comm) && !tsri_world_is_simulated(tsr_comm_world(e->comm));
}

tsr_status tsri_learn_depart(engine *e, const mark *m)
{
    char purpose[192];
    announcement *all = NULL;
    tsr_status status = TSR_OK;

    (void)snprintf(purpose, sizeof(purpose), "unit \"%s\" out of the order learnt so far",
                   m->module->path);
    TSR_TRY(tsri_alloc((size_t)tsr_world_size(tsr_comm_world(e->comm)), sizeof(*all), &all));
    status = announce(e, m, purpose, all);
    tsri_free(&all);
    e->order.learns = true;
    return status;
}

/* ---- what is expected from now on ---- */

/* A simulated rank, which follows the tree at first, has passed over a bracket and then run it. */
static bool moved(const engine *e, const mark *m)
{
    for (int i = 0; m->passed && i < e->order.log.count; i++) {
        const mark *other = &e->order.log.marks[i];

        if (tsri_mark_same(other, m) && !other->passed) {
            return true;
        }
    }
    return false;
}

static const tsr_module *unit_around(const tsr_module *module)
{
    const tsr_module *m = module->parent;

    while (m != NULL && tsri_unit_of(m) == NULL) {
        m = m->parent;
    }
    return m;
}

/* Units that no rank has run so far are expected behind those created before them. */
static tsr_status expect_others(engine *e)
{
    for (int k = 1; k < e->unit_count; k++) {
        mark m = {.module = e->units[k]->module, .kind = MARK_ENTER};
        mark before = {.module = e->units[0]->module, .kind = MARK_ENTER};
        int at = 0;

        if (tsri_row_find_up(&e->order.expected, &m, 0, e->order.expected.count) >= 0) {
            continue;
        }
        for (int j = 0; j < k; j++) {
            if (e->units[j]->module == unit_around(m.module)) {
                before = (mark){.module = e->units[j]->module, .kind = MARK_ENTER};
            } else if (unit_around(e->units[j]->module) == unit_around(m.module)) {
                before = (mark){.module = e->units[j]->module, .kind = MARK_LEAVE};
            }
        }
        at = tsri_row_find_down(&e->order.expected, &before, e->order.expected.count - 1) + 1;
        TSR_TRY(tsri_row_insert(&e->order.expected, at, &m));
        m.kind = MARK_LEAVE;
        TSR_TRY(tsri_row_insert(&e->order.expected, at + 1, &m));
    }
    return TSR_OK;
}

/* A rank that has nobody to ask: its first forward is what is expected. */
static tsr_status expect_log(engine *e)
{
    e->order.expected.count = 0;
    for (int i = 0; i < e->order.log.count; i++) {
        mark m = e->order.log.marks[i];

        if (!moved(e, &m)) {
            m.passed = false;
            TSR_TRY(tsri_row_append(&e->order.expected, &m));
        }
        if (m.kind == MARK_ENTER) {
            tsri_unit_of(m.module)->run.seen = true;
        }
    }
    return TSR_OK;
}

/* Position of the unit that is entered last, of those that some rank has run. */
static int last_entered(const engine *e)
{
    for (int i = e->order.expected.count - 1; i >= 0; i--) {
        const mark *m = &e->order.expected.marks[i];

        if (m->kind == MARK_ENTER && tsri_unit_of(m->module)->run.seen) {
            return tsri_unit_of(m->module)->run.position;
        }
    }
    return 0;
}

static bool all_seen(const engine *e)
{
    for (int i = 0; i < e->unit_count; i++) {
        if (!e->units[i]->run.seen) {
            return false;
        }
    }
    return true;
}

tsr_status tsri_learn_end(engine *e)
{
    if (!e->order.learns && e->order.outermost->parent == NULL) {
        TSR_TRY(expect_log(e));
    }
    TSR_TRY(expect_others(e));
    e->order.last_entered = last_entered(e);
    e->order.quiet = e->order.news ? 0 : e->order.quiet + 1;
    e->order.learnt = (!e->order.learns && e->order.outermost->parent == NULL) ||
                      (!e->order.news && all_seen(e)) || e->order.quiet >= QUIET_FORWARDS;
    for (int i = 0; e->order.learnt && i < e->unit_count; i++) {
        e->units[i]->run.seen = true; /* a guess has to do */
    }
    return TSR_OK;
}
