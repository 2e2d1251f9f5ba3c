/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The order of units, learnt by all ranks from what they run.
 *
 * In a forward from which is learnt all ranks say at each mark what they come to next, and what
 * some rank inside the innermost open bracket enters comes before that bracket's end. So all ranks
 * see one row, and what is expected becomes the shortest row that holds both it and what was
 * expected before: where one forward runs A and another B A, that is B A.
 *
 * Learning goes on until a forward brings nothing new and every unit has been run by some rank;
 * units that none runs are expected behind those created before them, and after some forwards
 * without news that has to do. A rank that comes to a unit out of the order learnt asks whether all
 * do: if so, there is more to learn; if not, it is an error on all of them.
 */
#include "base/base.h"

#include <string.h>

#include "marks.h"

/* Forwards without news, after which units that no rank has run are not waited for. */
enum {
    QUIET_FORWARDS = 16
};

/* ---- all ranks say what comes next ---- */

/* What a rank comes to; valid: there is such a rank; within: it runs the innermost bracket; place:
 * marks that it has come to or passed over in this forward. */
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
        if ((tsri_comm_data_mask(e->comm) >> axis & 1u) != 0) {
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
                              .within = e->open.marks[e->open.count - 1].passed ? 0 : 1,
                              .kind = (int32_t)mine->kind,
                              .order = mine->module->order,
                              .place = e->log.count};
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

tsr_status tsri_learn_reach(engine *e, const mark *mine, tsr_tape *tape)
{
    announcement *all = NULL;
    tsr_status status = TSR_OK;
    mark next = {0};

    TSR_TRY(tsri_alloc((size_t)tsr_world_size(tsr_comm_world(e->comm)), sizeof(*all), &all));
    do {
        TSR_TRY_GOTO(status, agree(e, mine, all, &next), free_all);
        if (!tsri_mark_same(&next, mine)) {
            TSR_TRY_GOTO(status, tsri_schedule_pass(e, &next, tape), free_all);
        }
    } while (!tsri_mark_same(&next, mine));
free_all:
    tsri_free(&all);
    return status;
}

/* Ranks of a mesh without data axes all do the same. */
bool tsri_learn_may_differ(const engine *e)
{
    const tsr_mesh *mesh = tsr_comm_mesh(e->comm);

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((tsri_comm_data_mask(e->comm) >> axis & 1u) != 0 &&
            tsr_mesh_axis_size(mesh, axis) > 1) {
            return !tsri_world_is_simulated(tsr_comm_world(e->comm));
        }
    }
    return false;
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
    e->learns = true;
    return status;
}

/* ---- what is expected from now on ---- */

/* A simulated rank, which follows the tree at first, has passed over a bracket and then run it. */
static bool moved(const engine *e, const mark *m)
{
    for (int i = 0; m->passed && i < e->log.count; i++) {
        const mark *other = &e->log.marks[i];

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

        if (tsri_row_find_up(&e->expected, &m, 0, e->expected.count) >= 0) {
            continue;
        }
        for (int j = 0; j < k; j++) {
            if (e->units[j]->module == unit_around(m.module)) {
                before = (mark){.module = e->units[j]->module, .kind = MARK_ENTER};
            } else if (unit_around(e->units[j]->module) == unit_around(m.module)) {
                before = (mark){.module = e->units[j]->module, .kind = MARK_LEAVE};
            }
        }
        at = tsri_row_find_down(&e->expected, &before, e->expected.count - 1) + 1;
        TSR_TRY(tsri_row_insert(&e->expected, at, &m));
        m.kind = MARK_LEAVE;
        TSR_TRY(tsri_row_insert(&e->expected, at + 1, &m));
    }
    return TSR_OK;
}

/* Where unit m has been guessed to run, which it does for the first time: it is not expected there
 * any more, nor what was guessed inside. */
static void forget_guess(engine *e, const mark *m)
{
    unit *u = m->kind == MARK_ENTER ? tsri_unit_of(m->module) : NULL;
    const mark end = tsri_mark_end(m);
    int begin = 0;

    if (u == NULL || u->seen || (m->module == e->frame && m->module->parent != NULL)) {
        return; /* run alone, it has no place among the others */
    }
    u->seen = true;
    begin = tsri_row_find_up(&e->expected, m, 0, e->expected.count);
    if (begin >= 0) {
        tsri_row_remove(&e->expected, begin,
                        tsri_row_find_up(&e->expected, &end, begin, e->expected.count) + 1);
    }
}

/* Put what is missing of the forward under way into the expected row. */
static tsr_status merge(engine *e, bool *news_out)
{
    mark_row *row = &e->expected;
    int at = tsri_row_find_up(row, &e->log.marks[0], 0, row->count);

    at = at < 0 ? 0 : at;
    for (int i = 0; i < e->log.count; i++) {
        const mark *m = &e->log.marks[i];
        const bool opens = tsri_mark_opens(m->kind);
        int found = 0;

        if (!e->learns && moved(e, m)) {
            continue;
        }
        found = tsri_mark_ends(m->kind) ? tsri_row_find_up(row, m, at, row->count)
                                        : tsri_row_find_inside(row, m, at, row->count);
        if (found < 0) {
            mark fresh = {.module = m->module, .kind = m->kind};

            TSR_TRY(tsri_row_insert(row, at, &fresh));
            fresh = tsri_mark_end(&fresh);
            if (opens) {
                TSR_TRY(tsri_row_insert(row, at + 1, &fresh));
            }
            found = at;
            *news_out = true;
        }
        at = found + 1;
    }
    return TSR_OK;
}

/* Position of the unit that is entered last, of those that some rank has run. */
static int last_entered(const engine *e)
{
    for (int i = e->expected.count - 1; i >= 0; i--) {
        const mark *m = &e->expected.marks[i];

        if (m->kind == MARK_ENTER && tsri_unit_of(m->module)->seen) {
            return tsri_unit_of(m->module)->position;
        }
    }
    return 0;
}

static bool all_seen(const engine *e)
{
    for (int i = 0; i < e->unit_count; i++) {
        if (!e->units[i]->seen) {
            return false;
        }
    }
    return true;
}

tsr_status tsri_learn_end(engine *e)
{
    bool news = false;

    for (int i = 0; i < e->log.count; i++) {
        forget_guess(e, &e->log.marks[i]);
    }
    TSR_TRY(merge(e, &news));
    TSR_TRY(expect_others(e));
    e->last_entered = last_entered(e);
    e->quiet = news ? 0 : e->quiet + 1;
    e->learnt = !e->learns || (!news && all_seen(e)) || e->quiet >= QUIET_FORWARDS;
    return TSR_OK;
}
