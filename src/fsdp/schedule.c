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
 * How the row is learnt, and what happens out of its order, is in learn.c. Once it is, no rank asks
 * another.
 */
#include "base/base.h"

#include "marks.h"

void tsri_schedule_free(engine *e)
{
    tsri_free(&e->order.expected.marks);
    tsri_free(&e->order.log.marks);
    tsri_free(&e->order.open.marks);
    tsri_free(&e->modules);
}

/* ---- before anything ran: the tree in order of creation ---- */

static tsr_status expect_tree(engine *e, tsr_module *module) // NOLINT(misc-no-recursion): the tree
{
    const bool is_unit = tsri_unit_of(module) != NULL;
    mark m = {.module = module, .kind = MARK_ENTER};

    if (is_unit) {
        TSR_TRY(tsri_row_append(&e->order.expected, &m));
    }
    for (int i = 0; i < module->child_count; i++) {
        TSR_TRY(expect_tree(e, module->children[i]));
    }
    if (is_unit) {
        m.kind = MARK_LEAVE;
        TSR_TRY(tsri_row_append(&e->order.expected, &m));
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
    e->order.last_entered = e->unit_count - 1;
    return TSR_OK;
}

/* Note a mark that this rank comes to or passes over. */
tsr_status tsri_schedule_note(engine *e, const mark *m)
{
    if (!e->order.learnt && !e->order.learns) {
        TSR_TRY(tsri_row_append(&e->order.log, m));
    }
    if (m->kind == MARK_USE || m->kind == MARK_MEET) {
        return TSR_OK;
    }
    if (tsri_mark_opens(m->kind)) {
        TSR_TRY(tsri_row_append(&e->order.open, m));
    } else if (e->order.open.count > 0) {
        e->order.open.count--;
    }
    return TSR_OK;
}

tsr_status tsri_schedule_pass(engine *e, const mark *m, tsr_tape *tape)
{
    mark passed = *m;

    passed.passed = true;
    TSR_TRY(tsri_schedule_note(e, &passed));
    TSR_TRY(tsri_engine_pass(m, tape, false));
    return TSR_OK;
}

/* ---- a forward ---- */

tsr_status tsri_schedule_begin(engine *e, tsr_module *outermost)
{
    const mark begin = {.module = outermost, .kind = MARK_ENTER};
    const mark end = tsri_mark_end(&begin);

    e->order.log.count = 0;
    e->order.open.count = 0;
    e->order.cursor = tsri_row_find_up(&e->order.expected, &begin, 0, e->order.expected.count) + 1;
    e->order.outermost_end =
        tsri_row_find_up(&e->order.expected, &end, e->order.cursor, e->order.expected.count) + 1;
    e->order.beside = 0;
    e->order.learns = !e->order.learnt && tsri_learn_may_differ(e);
    e->order.news = false;
    if (e->order.learns && outermost->parent == NULL) {
        e->order.news = !tsri_unit_of(outermost)->run.seen;
        tsri_unit_of(outermost)->run.seen = true;
    }
    TSR_TRY(tsri_schedule_note(e, &begin));
    return TSR_OK;
}

/* Where m is expected; inside a bracket that is not, nothing is. beside: how many of these are
 * open.
 */
static int expect(const engine *e, const mark *m, int from, int to, int *beside)
{
    const int at = *beside == 0 ? tsri_row_find_inside(&e->order.expected, m, from, to) : -1;

    if (at < 0 && m->kind == MARK_ENTER) {
        ++*beside;
    } else if (at < 0 && m->kind == MARK_LEAVE && *beside > 0) {
        --*beside;
    }
    return at;
}

/* Ranks that can do different things in a forward come to m, which is not expected. */
static bool departs(const engine *e, const mark *m, int at)
{
    return at < 0 && (m->kind == MARK_ENTER || m->kind == MARK_USE) && tsri_learn_may_differ(e);
}

tsr_status tsri_schedule_reach(engine *e, tsr_module *module, mark_kind kind, tsr_tape *tape)
{
    const mark m = {.module = module, .kind = kind};
    int at = 0;

    if (!e->order.learns) {
        at = expect(e, &m, e->order.cursor, e->order.outermost_end, &e->order.beside);
        if (departs(e, &m, at)) {
            TSR_TRY(tsri_learn_depart(e, &m));
        }
    }
    if (e->order.learns) {
        TSR_TRY(tsri_learn_reach(e, &m, tape));
        TSR_TRY(tsri_schedule_note(e, &m));
        return TSR_OK;
    }
    while (at >= 0 && e->order.cursor < at) {
        e->order.cursor++;
        TSR_TRY(tsri_schedule_pass(e, &e->order.expected.marks[e->order.cursor - 1], tape));
    }
    e->order.cursor = at >= 0 ? at + 1 : e->order.cursor;
    TSR_TRY(tsri_schedule_note(e, &m));
    return TSR_OK;
}

tsr_status tsri_schedule_end(engine *e)
{
    if (!e->order.learnt || e->order.learns) {
        TSR_TRY(tsri_learn_end(e));
    }
    e->order.learns = false;
    e->order.back = e->order.expected.count;
    return TSR_OK;
}

/* ---- backward ---- */

void tsri_schedule_back(engine *e, tsr_module *module, mark_kind kind)
{
    const mark m = {.module = module, .kind = kind};
    int at = 0;

    if (kind == MARK_LEAVE && module->parent == NULL) {
        e->order.back = e->order.expected.count;
    }
    at = tsri_row_find_down(&e->order.expected, &m, e->order.back - 1);
    if (at < 0 && kind == MARK_LEAVE) { /* a unit that ran alone, before */
        at = tsri_row_find_down(&e->order.expected, &m, e->order.expected.count - 1);
    }
    e->order.back = at >= 0 ? at : e->order.back;
}

/* The end of the part that the mark at begin opens. */
static int part_end(const engine *e, int begin)
{
    const mark end = {.module = e->order.expected.marks[begin].module, .kind = MARK_PART_LEAVE};
    const int at = tsri_row_find_up(&e->order.expected, &end, begin + 1, e->order.expected.count);

    return at >= 0 ? at : begin;
}

static int part_begin(const engine *e, int end)
{
    const mark begin = {.module = e->order.expected.marks[end].module, .kind = MARK_PART_ENTER};
    const int at = tsri_row_find_down(&e->order.expected, &begin, end - 1);

    return at >= 0 ? at : end;
}

tsr_status tsri_schedule_again(engine *e, tsr_module *module, mark_kind kind, tsr_tape *tape)
{
    const mark m = {.module = module, .kind = kind};
    int at = 0;

    if (kind == MARK_PART_ENTER && e->order.again < 0) {
        const int begin = tsri_row_find_down(&e->order.expected, &m, e->order.back - 1);

        e->order.again = begin >= 0 ? begin + 1 : -1;
        e->order.again_end = begin >= 0 ? part_end(e, begin) : -1;
        e->order.again_beside = 0;
        return TSR_OK;
    }
    if (e->order.again < 0) {
        return TSR_OK;
    }
    at = expect(e, &m, e->order.again, e->order.again_end + 1, &e->order.again_beside);
    while (at >= 0 && e->order.again < at) {
        const mark *passed = &e->order.expected.marks[e->order.again++];

        if (!tsri_mark_is_guess(passed)) {
            TSR_TRY(tsri_engine_pass(passed, tape, true));
        }
    }
    e->order.again = at >= 0 ? at + 1 : e->order.again;
    if (at >= 0 && at == e->order.again_end) {
        e->order.back = e->order.again_end;
        e->order.again = -1;
    }
    return TSR_OK;
}

tsr_status tsri_schedule_part_again(engine *e, tsr_module *module)
{
    const mark m = {.module = module, .kind = MARK_PART_LEAVE};
    const int end = tsri_row_find_down(&e->order.expected, &m, e->order.back - 1);

    if (end < 0) {
        return TSR_OK;
    }
    e->order.back = end;
    for (int i = part_begin(e, end) + 1; i < end; i++) {
        if (e->order.expected.marks[i].kind == MARK_ENTER &&
            !tsri_mark_is_guess(&e->order.expected.marks[i])) {
            TSR_TRY(
                tsri_engine_gather_again(tsri_unit_of(e->order.expected.marks[i].module), i, end));
        }
    }
    return TSR_OK;
}

/* ---- what comes next ---- */

static unit *unit_at(const engine *e, int i)
{
    return e->order.expected.marks[i].kind == MARK_ENTER ||
                   e->order.expected.marks[i].kind == MARK_LEAVE
               ? tsri_unit_of(e->order.expected.marks[i].module)
               : NULL;
}

int tsri_schedule_after(const engine *e, int from, int to, unit **out, int capacity)
{
    int count = 0;

    for (int i = from; i < to && count < capacity; i++) {
        if (e->order.expected.marks[i].kind == MARK_ENTER) {
            out[count++] = unit_at(e, i);
        }
    }
    return count;
}

int tsri_schedule_before(const engine *e, int from, unit **out, int capacity)
{
    int count = 0;

    for (int i = from; i >= 0 && count < capacity; i--) {
        if (e->order.expected.marks[i].kind == MARK_LEAVE) {
            out[count++] = unit_at(e, i);
        } else if (e->order.expected.marks[i].kind == MARK_PART_LEAVE) {
            /* Run again first, from its beginning. */
            const int begin = part_begin(e, i);

            count += tsri_schedule_after(e, begin, i, out + count, capacity - count);
            i = begin;
        }
    }
    return count;
}
