/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file stragglers.h
 * Which rank the others wait for.
 *
 * Collectives end on all ranks at about the same time, so a step takes equally long on all of them.
 * What tells a slow rank is its *own time*: the step's less what it waited for or spent in
 * collectives.
 */
#pragma once

#include "comm/comm.h"

/** Own times of one step, over the ranks. */
typedef struct tsri_spread {
    double min_s, max_s;
    double others_s; /* mean of all ranks but the slowest; max_s where there is one rank */
    int slowest;     /* world rank; the lowest of those that are equal */
} tsri_spread;

/** Local. Spread of own_s[count], whose i-th is of rank ranks[i]. */
tsri_spread tsri_spread_of(const double *own_s, const int *ranks, int count);

enum {
    TSRI_STRAGGLER_ROWS = 10
};
#define TSRI_STRAGGLER_SHARE 0.2

/** A rank that is slowest again and again. Zero-initialise. */
typedef struct tsri_straggler {
    int rank;
    int64_t rows; /* in a row, in which rank took more than 20 % longer than the others */
} tsri_straggler;

/** Local. Take the next row in; true where it completes the tenth in a row: once per period. */
bool tsri_straggler_follow(tsri_straggler *straggler, const tsri_spread *spread);

/** Exchanges own times. */
typedef struct tsri_own_times tsri_own_times;

/** Collective over comm. */
tsr_status tsri_own_times_open(tsr_comm *comm, tsri_own_times **out);
/** Local. *times may be NULL. Before the comm is released. */
void tsri_own_times_close(tsri_own_times **times);
/** Collective over comm. Blocks. Everyone's own time of a step from everyone's. */
tsr_status tsri_own_times_gather(tsri_own_times *times, double own_s, tsri_spread *out);
