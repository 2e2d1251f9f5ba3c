/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file ranks.h
 * All ranks of a job, by classes.
 *
 * Most ranks of a large job do the same work on other elements: their ledgers are equal entry by
 * entry (but for the members of groups). What can differ is known beforehand: extents of pieces,
 * rows of the batch, positions, and for what a rank speaks in sums. Ranks that agree in these form
 * a class; one of them is simulated for all. Then the ledgers of all ranks are matched.
 */
#pragma once

#include "job/job.h"
#include "plan/match.h"

enum {
    TSRI_RANK_LABEL_BYTES = 64
};

/** What one rank does: the job's opening and two steps; the second is the first in which parameters
 *  are gathered that the step before updated. */
typedef struct tsri_rank_run {
    tsri_ledger *ledger;      /* owned */
    int begin[2], end;        /* entries of step i: begin[i] up to begin[i + 1], or end */
    tsri_step_memory summary; /* of the second step; peak_label is label */
    char label[TSRI_RANK_LABEL_BYTES];
} tsri_rank_run;

typedef struct tsri_rank_class {
    int representative; /* the first of its ranks */
    int rank_count;
    tsri_rank_run run;
} tsri_rank_class;

typedef struct tsri_ranks {
    int size;
    int *class_of; /* [size] */
    tsri_rank_class *classes;
    int class_count;
    tsri_match_report match; /* all ranks against each other */
} tsri_ranks;

/** Local. Two steps of options as rank of size, on a sim world. *out is to be destroyed.
 *  plans: of other ranks of the same options, or NULL. */
tsr_status tsri_rank_simulate(const tsri_job_options *options, int rank, int size,
                              tsri_arena_plans *plans, tsri_rank_run *out);
void tsri_rank_run_destroy(tsri_rank_run *run);

/** Local. A number for each rank of job's mesh, in numbers_out[ranks]: equal numbers, equal
 *  ledgers. */
tsr_status tsri_ranks_number(const tsri_job *job, uint64_t *numbers_out);

/**
 * Local. Classes of the ranks of options on size ranks, one rank of each simulated, all matched
 * (*out)->match says how; that ranks would hang is no failure of the call.
 */
tsr_status tsri_ranks_check(const tsri_job_options *options, int size, tsri_ranks **out);
void tsri_ranks_destroy(tsri_ranks **pointer);
/** Write the classes as a table, with the memory of a rank of each, and whether all calls meet. */
void tsri_ranks_print(const tsri_ranks *ranks, FILE *stream);
