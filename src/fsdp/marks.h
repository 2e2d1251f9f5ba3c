/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#pragma once

#include "fsdp/fsdp_priv.h"

bool tsri_mark_opens(mark_kind kind);
bool tsri_mark_ends(mark_kind kind);
bool tsri_mark_same(const mark *a, const mark *b);
/** Of a unit that no rank has run so far: it is passed over by none. */
bool tsri_mark_is_guess(const mark *m);
/** The end of the bracket that m opens. */
mark tsri_mark_end(const mark *m);
/** Index of the first mark like m in [from, to), of the last one at or below from; -1: none. */
int tsri_row_find_up(const mark_row *row, const mark *m, int from, int to);
int tsri_row_find_down(const mark_row *row, const mark *m, int from);
/** The same upwards, before the bracket that from lies in ends. Units may be entered inside
 *  brackets that are passed over; all meet outside of such. */
int tsri_row_find_inside(const mark_row *row, const mark *m, int from, int to);
tsr_status tsri_row_append(mark_row *row, const mark *m);
tsr_status tsri_row_insert(mark_row *row, int at, const mark *m);
/** Take out [from, to). */
void tsri_row_remove(mark_row *row, int from, int to);

/* learn.c: see there. */
/** This rank comes to mine: let all ranks say what comes next, and pass over what is before. */
tsr_status tsri_learn_reach(engine *e, const mark *mine, tsr_tape *tape);
/** A rank comes to m out of the order learnt: learn from here on, with all ranks or none. */
tsr_status tsri_learn_depart(engine *e, const mark *m);
/** Whether ranks can do different things in one forward. */
bool tsri_learn_may_differ(const engine *e);
/** A forward has ended from which is learnt. */
tsr_status tsri_learn_end(engine *e);
/* schedule.c, for learn.c */
/** Note a mark that this rank comes to, or passes over. */
tsr_status tsri_schedule_note(engine *e, const mark *m);
tsr_status tsri_schedule_pass(engine *e, const mark *m, tsr_tape *tape);
