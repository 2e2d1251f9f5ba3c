/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file world_settle.c
 * How a job ends when a rank failed: told once, soon, on every rank.
 *
 * A failed rank cannot know where the others are. If they come here too, the first that failed
 * speaks; ranks that only heard of it never do. If they do not come within seconds they wait inside
 * collectives for us, and will forever; then the failed rank speaks and takes the job down. Of
 * several in that position the lowest is first, because each waits a little longer than the one
 * before.
 */
#include "comm_priv.h"

static const double patience_s = 2.0;
static const double step_s = 0.25;
static const double longest_s = 8.0;

static double limit_of(int rank)
{
    double limit = patience_s + step_s * rank;

    return limit < longest_s ? limit : longest_s;
}

tsr_status tsri_world_settle(tsr_world *world, tsr_status mine)
{
    tsr_status verdict = mine;
    bool came = true;

    if (mine == TSR_OK) {
        verdict = tsr_world_agree(world, TSR_OK);
    } else {
        came = tsri_world_agree_within(world, mine, limit_of(world->rank), &verdict);
    }
    if (verdict == TSR_OK || world->size == 1 || world->simulated) {
        return verdict;
    }
    if (mine != TSR_OK && mine != TSR_ERR_REMOTE && (!came || world->first_failed == world->rank)) {
        tsr_error_print(stderr);
    }
    if (came) {
        /* Nobody ends the job before the speaker has spoken. */
        (void)tsri_world_agree_within(world, TSR_OK, patience_s, &verdict);
    }
    tsr_world_abort(world, 1);
}
