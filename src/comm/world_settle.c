/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file world_settle.c
 * How a job ends when a rank failed: told once, soon, on every rank.
 *
 * A failed rank cannot know where the others are. In an exchange they all learn of its failure; the
 * first that failed speaks, and ranks that only heard of it never do. If they do not come within
 * seconds they wait inside collectives for us, and will forever; then the failed rank speaks and
 * takes the job down. Of several in that position the lowest is first, because each waits a little
 * longer than the one before.
 */
#include "comm_priv.h"

#include <time.h>

static const double patience_s = 1.5;
static const double step_s = 0.25;
static const double longest_s = 5.0;

static double limit_of(int rank)
{
    double limit = patience_s + step_s * rank;

    return limit < longest_s ? limit : longest_s;
}

/* Nobody ends the job before the teller has spoken; and he ends it. */
static void leave_to_teller(int rank)
{
    const double s = limit_of(rank);
    const struct timespec nap = {.tv_sec = (time_t)s,
                                 .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};

    (void)nanosleep(&nap, NULL);
}

tsr_status tsri_world_settle(tsr_world *world, tsr_status mine)
{
    tsr_status verdict = mine;
    int teller = -1;

    if (world->size == 1 || world->simulated) {
        return mine;
    }
    verdict = mine == TSR_OK ? tsri_team_agree(world->team, "the end of the work", mine)
                             : tsri_team_agree_within(world->team, "the end of the work", mine,
                                                      limit_of(world->rank));
    if (verdict == TSR_OK) {
        return TSR_OK;
    }
    teller = tsri_error_teller(verdict);
    if (teller >= 0 && teller != tsri_team_id(world->team, world->rank)) {
        leave_to_teller(world->rank);
    } else {
        tsr_error_print(stderr);
    }
    tsr_world_abort(world, 1);
}
