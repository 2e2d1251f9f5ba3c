/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The order in which a model's units run, known to all ranks.
 *
 * A forward is a row of marks: a unit or a checkpointed part is entered and left, and between them
 * what it runs inside; a parameter is used outside its unit. Backward is the same row from its end.
 *
 *   root( A( A1( ) A2( ) ) part( B( ) ) use A1 )
 *
 * Whatever a rank does not run has its place in the row all the same, and there the rank issues
 * what others issue for it: gathers, and in backward reductions of zeros. So before a rank's own
 * next mark everything between it and the one before is passed over (engine.c says how).
 *
 * The row is learnt in the first forward: at each mark all ranks say what they come to next, and
 * what some rank inside the innermost open bracket enters comes before that bracket's end. From
 * then on it is the expected row, and no rank asks another. A rank that departs from it alone is
 * found out by the collectives; where all depart alike the new row is expected from the next
 * forward on.
 */
#include "fsdp_priv.h"

#include "base/base.h"

#include <string.h>

static bool enters(mark_kind kind)
{
    return kind == MARK_ENTER || kind == MARK_PART_ENTER || kind == MARK_USE || kind == MARK_MEET;
}

static bool same(const mark *a, const mark *b)
{
    return a->kind == b->kind && a->module == b->module;
}

static int find_up(const engine *e, const mark *m, int from, int to)
{
    for (int i = from; i < to; i++) {
        if (same(&e->expected.marks[i], m)) {
            return i;
        }
    }
    return -1;
}

static tsr_status append(mark_row *row, const mark *m)
{
    TSR_TRY(tsri_grow(&row->marks, &row->capacity, row->count + 1, sizeof(mark)));
    row->marks[row->count++] = *m;
    return TSR_OK;
}

void tsri_schedule_free(engine *e)
{
    tsri_free(&e->expected.marks);
    tsri_free(&e->log.marks);
    tsri_free(&e->open.marks);
    tsri_free(&e->modules);
}

/* ---- before anything ran: the tree in order of creation ---- */

static tsr_status expect_tree(engine *e, tsr_module *module) // NOLINT(misc-no-recursion): the tree
{
    const bool is_unit = tsri_unit_of(module) != NULL;
    mark m = {.module = module, .kind = MARK_ENTER};

    if (is_unit) {
        TSR_TRY(append(&e->expected, &m));
    }
    for (int i = 0; i < module->child_count; i++) {
        TSR_TRY(expect_tree(e, module->children[i]));
    }
    if (is_unit) {
        m.kind = MARK_LEAVE;
        TSR_TRY(append(&e->expected, &m));
    }
    return TSR_OK;
}

typedef struct numbering {
    engine *engine;
    int capacity;
} numbering;

static tsr_status number(tsr_module *module, void *context)
{
    numbering *n = context;

    TSR_TRY(tsri_grow(&n->engine->modules, &n->capacity, n->engine->module_count + 1,
                      sizeof(tsr_module *))); // NOLINT(bugprone-sizeof-expression): pointers
    module->order = n->engine->module_count;
    n->engine->modules[n->engine->module_count++] = module;
    return TSR_OK;
}

tsr_status tsri_schedule_open(engine *e, tsr_module *model)
{
    numbering n = {.engine = e};

    TSR_TRY(tsri_module_walk(model, number, &n));
    TSR_TRY(expect_tree(e, model));
    e->last_entered = e->unit_count - 1;
    return TSR_OK;
}

/* ---- learning: all ranks say what comes next ---- */

/* What a rank comes to; valid: there is such a rank; within: it runs the innermost bracket. */
typedef struct announcement {
    int32_t valid, within, kind, order;
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
        int count = !enters((mark_kind)all[r].kind) ? 0
                    : all[r].kind == MARK_MEET      ? ranks
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

/* The mark that all ranks come to now. */
static tsr_status agree(engine *e, const mark *mine, announcement *all, mark *out)
{
    const announcement own = {.valid = 1,
                              .within = e->open.marks[e->open.count - 1].passed ? 0 : 1,
                              .kind = (int32_t)mine->kind,
                              .order = mine->module->order};
    const announcement *next = NULL;

    TSR_TRY(tsri_comm_exchange(e->comm, "the order of units", &own, sizeof(own), all));
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

/* Note a mark that this rank comes to or passes over. While it learns, what comes after it is a
 * guess: what is expected so far. */
static tsr_status note(engine *e, const mark *m)
{
    if (!e->learnt) {
        TSR_TRY(append(&e->log, m));
    }
    if (e->learns) {
        const int at = find_up(e, m, 0, e->expected.count);

        e->cursor = at >= 0 ? at + 1 : e->cursor;
    }
    if (!e->learns || m->kind == MARK_USE || m->kind == MARK_MEET) {
        return TSR_OK;
    }
    if (enters(m->kind)) {
        TSR_TRY(append(&e->open, m));
    } else if (e->open.count > 0) {
        e->open.count--;
    }
    return TSR_OK;
}

static tsr_status pass(engine *e, const mark *m, tsr_tape *tape)
{
    mark passed = *m;

    passed.passed = true;
    TSR_TRY(note(e, &passed));
    TSR_TRY(tsri_engine_pass(e, m, tape, false));
    return TSR_OK;
}

static tsr_status learn(engine *e, const mark *mine, tsr_tape *tape)
{
    announcement *all = NULL;
    tsr_status status = TSR_OK;
    mark next = {0};

    TSR_TRY(tsri_alloc((size_t)tsr_world_size(tsr_comm_world(e->comm)), sizeof(*all), &all));
    do {
        TSR_TRY_GOTO(status, agree(e, mine, all, &next), free_all);
        if (!same(&next, mine)) {
            TSR_TRY_GOTO(status, pass(e, &next, tape), free_all);
        }
    } while (!same(&next, mine));
free_all:
    tsri_free(&all);
    return status;
}

/* ---- a forward ---- */

/* Ranks of a mesh without data axes all do the same. */
static bool ranks_may_differ(const engine *e)
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

tsr_status tsri_schedule_begin(engine *e)
{
    const mark root = {.module = e->modules[0], .kind = MARK_ENTER};

    e->log.count = 0;
    e->open.count = 0;
    e->cursor = 1;
    e->beside = 0;
    e->learns = !e->learnt && ranks_may_differ(e);
    TSR_TRY(note(e, &root));
    return TSR_OK;
}

static int find_down(const engine *e, const mark *m, int from)
{
    for (int i = from; i >= 0; i--) {
        if (same(&e->expected.marks[i], m)) {
            return i;
        }
    }
    return -1;
}

static bool brackets(mark_kind kind)
{
    return kind != MARK_USE && kind != MARK_MEET;
}

/* The expected mark m from from on, before the bracket that from lies in ends; -1: none. Units may
 * be entered inside brackets that are passed over; all meet outside of such. */
static int find_inside(const engine *e, const mark *m, int from, int to)
{
    int depth = 0;

    for (int i = from; i < to; i++) {
        const mark *at = &e->expected.marks[i];
        const bool ends = brackets(at->kind) && !enters(at->kind);

        if (same(at, m) && (m->kind == MARK_ENTER || depth == 0)) {
            return i;
        }
        if (ends && depth == 0) {
            return -1;
        }
        depth += ends ? -1 : brackets(at->kind) ? 1 : 0;
    }
    return -1;
}

/* Where m is expected; inside a bracket that is not, nothing is. beside: how many of these are
 * open.
 */
static int expect(const engine *e, const mark *m, int from, int to, int *beside)
{
    const int at = *beside == 0 ? find_inside(e, m, from, to) : -1;

    if (at < 0 && m->kind == MARK_ENTER) {
        ++*beside;
    } else if (at < 0 && m->kind == MARK_LEAVE && *beside > 0) {
        --*beside;
    }
    return at;
}

tsr_status tsri_schedule_reach(engine *e, tsr_module *module, mark_kind kind, tsr_tape *tape)
{
    const mark m = {.module = module, .kind = kind};
    int at = 0;

    if (e->learns) {
        TSR_TRY(learn(e, &m, tape));
        TSR_TRY(note(e, &m));
        return TSR_OK;
    }
    at = expect(e, &m, e->cursor, e->expected.count, &e->beside);
    while (at >= 0 && e->cursor < at) {
        e->cursor++;
        TSR_TRY(pass(e, &e->expected.marks[e->cursor - 1], tape));
    }
    e->cursor = at >= 0 ? at + 1 : e->cursor;
    TSR_TRY(note(e, &m));
    return TSR_OK;
}

/* A simulated rank, which follows the tree at first, has passed over a bracket and then run it. */
static bool moved(const engine *e, const mark *m)
{
    for (int i = 0; m->passed && i < e->log.count; i++) {
        const mark *other = &e->log.marks[i];

        if (same(other, m) && !other->passed) {
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

static tsr_status insert(engine *e, int at, const mark *m)
{
    TSR_TRY(append(&e->expected, m));
    for (int i = e->expected.count - 1; i > at; i--) {
        e->expected.marks[i] = e->expected.marks[i - 1];
    }
    e->expected.marks[at] = *m;
    return TSR_OK;
}

/* Units that no rank has run so far are expected behind those created before them. */
static tsr_status expect_others(engine *e)
{
    for (int k = 1; k < e->unit_count; k++) {
        mark m = {.module = e->units[k]->module, .kind = MARK_ENTER};
        mark before = {.module = e->units[0]->module, .kind = MARK_ENTER};
        int at = 0;

        if (find_up(e, &m, 0, e->expected.count) >= 0) {
            continue;
        }
        for (int j = 0; j < k; j++) {
            if (e->units[j]->module == unit_around(m.module)) {
                before = (mark){.module = e->units[j]->module, .kind = MARK_ENTER};
            } else if (unit_around(e->units[j]->module) == unit_around(m.module)) {
                before = (mark){.module = e->units[j]->module, .kind = MARK_LEAVE};
            }
        }
        at = find_down(e, &before, e->expected.count - 1) + 1;
        TSR_TRY(insert(e, at, &m));
        m.kind = MARK_LEAVE;
        TSR_TRY(insert(e, at + 1, &m));
    }
    return TSR_OK;
}

static int last_unit_entered(const engine *e)
{
    for (int i = e->log.count - 1; i >= 0; i--) {
        if (e->log.marks[i].kind == MARK_ENTER) {
            return tsri_unit_of(e->log.marks[i].module)->position;
        }
    }
    return 0;
}

/* The forward under way is how forwards run from now on. */
static tsr_status expect_log(engine *e)
{
    e->expected.count = 0;
    for (int i = 0; i < e->log.count; i++) {
        mark m = e->log.marks[i];

        if (e->learns || !moved(e, &m)) {
            m.passed = false;
            TSR_TRY(append(&e->expected, &m));
        }
    }
    e->last_entered = last_unit_entered(e);
    TSR_TRY(expect_others(e));
    return TSR_OK;
}

tsr_status tsri_schedule_end(engine *e)
{
    if (!e->learnt) {
        TSR_TRY(expect_log(e));
    }
    e->learnt = true;
    e->learns = false;
    e->back = e->expected.count;
    return TSR_OK;
}

/* ---- backward ---- */

void tsri_schedule_back(engine *e, tsr_module *module, mark_kind kind)
{
    const mark m = {.module = module, .kind = kind};
    int at = 0;

    if (kind == MARK_LEAVE && module->parent == NULL) {
        e->back = e->expected.count;
    }
    at = find_down(e, &m, e->back - 1);
    e->back = at >= 0 ? at : e->back;
}

/* The end of the part that the mark at begin opens. */
static int part_end(const engine *e, int begin)
{
    const mark end = {.module = e->expected.marks[begin].module, .kind = MARK_PART_LEAVE};
    const int at = find_up(e, &end, begin + 1, e->expected.count);

    return at >= 0 ? at : begin;
}

static int part_begin(const engine *e, int end)
{
    const mark begin = {.module = e->expected.marks[end].module, .kind = MARK_PART_ENTER};
    const int at = find_down(e, &begin, end - 1);

    return at >= 0 ? at : end;
}

tsr_status tsri_schedule_again(engine *e, tsr_module *module, mark_kind kind, tsr_tape *tape)
{
    const mark m = {.module = module, .kind = kind};
    int at = 0;

    if (kind == MARK_PART_ENTER && e->again < 0) {
        const int begin = find_down(e, &m, e->back - 1);

        e->again = begin >= 0 ? begin + 1 : -1;
        e->again_end = begin >= 0 ? part_end(e, begin) : -1;
        e->again_beside = 0;
        return TSR_OK;
    }
    if (e->again < 0) {
        return TSR_OK;
    }
    at = expect(e, &m, e->again, e->again_end + 1, &e->again_beside);
    while (at >= 0 && e->again < at) {
        e->again++;
        TSR_TRY(tsri_engine_pass(e, &e->expected.marks[e->again - 1], tape, true));
    }
    e->again = at >= 0 ? at + 1 : e->again;
    if (at >= 0 && at == e->again_end) {
        e->back = e->again_end;
        e->again = -1;
    }
    return TSR_OK;
}

tsr_status tsri_schedule_part_again(engine *e, tsr_module *module, tsr_tape *tape)
{
    const mark m = {.module = module, .kind = MARK_PART_LEAVE};
    const int end = find_down(e, &m, e->back - 1);

    if (end < 0) {
        return TSR_OK;
    }
    e->back = end;
    for (int i = part_begin(e, end) + 1; i < end; i++) {
        if (e->expected.marks[i].kind == MARK_ENTER) {
            TSR_TRY(tsri_engine_gather_again(tsri_unit_of(e->expected.marks[i].module), i, end));
        }
    }
    (void)tape;
    return TSR_OK;
}

/* ---- what comes next ---- */

static unit *unit_at(const engine *e, int i)
{
    return e->expected.marks[i].kind == MARK_ENTER || e->expected.marks[i].kind == MARK_LEAVE
               ? tsri_unit_of(e->expected.marks[i].module)
               : NULL;
}

int tsri_schedule_after(const engine *e, int from, int to, unit **out, int capacity)
{
    int count = 0;

    for (int i = from; i < to && count < capacity; i++) {
        if (e->expected.marks[i].kind == MARK_ENTER) {
            out[count++] = unit_at(e, i);
        }
    }
    return count;
}

int tsri_schedule_before(const engine *e, int from, unit **out, int capacity)
{
    int count = 0;

    for (int i = from; i >= 0 && count < capacity; i--) {
        if (e->expected.marks[i].kind == MARK_LEAVE) {
            out[count++] = unit_at(e, i);
        } else if (e->expected.marks[i].kind == MARK_PART_LEAVE) {
            /* Run again first, from its beginning. */
            const int begin = part_begin(e, i);

            count += tsri_schedule_after(e, begin, i, out + count, capacity - count);
            i = begin;
        }
    }
    return count;
}
