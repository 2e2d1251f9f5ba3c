/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Rows of marks: a forward as a sequence of brackets; see schedule.c. */
#include "marks.h"

#include "base/base.h"

bool tsri_mark_opens(mark_kind kind)
{
    return kind == MARK_ENTER || kind == MARK_PART_ENTER;
}

bool tsri_mark_ends(mark_kind kind)
{
    return kind == MARK_LEAVE || kind == MARK_PART_LEAVE;
}

bool tsri_mark_same(const mark *a, const mark *b)
{
    return a->kind == b->kind && a->module == b->module;
}

bool tsri_mark_is_guess(const mark *m)
{
    const bool is_unit = m->kind == MARK_ENTER || m->kind == MARK_LEAVE;

    return is_unit && !tsri_unit_of(m->module)->run.seen;
}

int tsri_row_find_up(const mark_row *row, const mark *m, int from, int to)
{
    for (int i = from; i < to; i++) {
        if (tsri_mark_same(&row->marks[i], m)) {
            return i;
        }
    }
    return -1;
}

int tsri_row_find_down(const mark_row *row, const mark *m, int from)
{
    for (int i = from; i >= 0; i--) {
        if (tsri_mark_same(&row->marks[i], m)) {
            return i;
        }
    }
    return -1;
}

int tsri_row_find_inside(const mark_row *row, const mark *m, int from, int to)
{
    int depth = 0;

    for (int i = from; i < to; i++) {
        const mark *at = &row->marks[i];

        if (tsri_mark_same(at, m) && (m->kind == MARK_ENTER || depth == 0)) {
            return i;
        }
        if (tsri_mark_ends(at->kind) && depth == 0) {
            return -1;
        }
        depth += tsri_mark_ends(at->kind) ? -1 : tsri_mark_opens(at->kind) ? 1 : 0;
    }
    return -1;
}

mark tsri_mark_end(const mark *m)
{
    return (mark){.module = m->module,
                  .kind = m->kind == MARK_ENTER ? MARK_LEAVE : MARK_PART_LEAVE};
}

tsr_status tsri_row_append(mark_row *row, const mark *m)
{
    TSR_TRY(tsri_grow(&row->marks, &row->capacity, row->count + 1, sizeof(mark)));
    row->marks[row->count++] = *m;
    return TSR_OK;
}

tsr_status tsri_row_insert(mark_row *row, int at, const mark *m)
{
    TSR_TRY(tsri_row_append(row, m));
    for (int i = row->count - 1; i > at; i--) {
        row->marks[i] = row->marks[i - 1];
    }
    row->marks[at] = *m;
    return TSR_OK;
}

void tsri_row_remove(mark_row *row, int from, int to)
{
    for (int i = to; i < row->count; i++) {
        row->marks[from + i - to] = row->marks[i];
    }
    row->count -= to - from;
}
