/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file clock.h
 * Virtual time of a ledger: when each operation would run on a machine.
 *
 * The ledger says all that the order of a step depends on: streams are queues, a WAIT holds its
 * stream until the awaited operation is over, a read holds the host until its stream has come to
 * it. Operations begin in the order in which they become ready. Collectives that keep the same tier
 * of links busy run one after the other, in that order; different tiers, and compute, run at the
 * same time; kernels are slowed down beside collectives as the machine says. Every rank is taken to
 * be as fast as this one.
 */
#pragma once

#include "backend/recorder.h"

#include "plan/machine.h"

enum {
    TSRI_CLOCK_MAX_AXES = 32
};

/** Communication over one set of axes. */
typedef struct tsri_clock_axes {
    const char *group;                       /* axes' names, borrowed from the ledger */
    int size;                                /* of the group */
    int tier;                                /* slowest tier crossed */
    double sent;                             /* bytes that this rank sends */
    double busy_s;                           /* collectives' seconds */
    double exposed_s;                        /* of those, what compute waited for */
    double crossing[TSRI_MACHINE_MAX_TIERS]; /* bytes out of this rank's block through each tier, of
                                                all groups that lie alike */
} tsri_clock_axes;

typedef struct tsri_clock_result {
    double step_s;    /* from the first operation to the last one's end */
    double compute_s; /* kernels on the compute stream */
    double flops;
    double busy_s;    /* collectives, all streams */
    double exposed_s; /* of those, what compute waited for or ran itself */
    double copy_s;    /* host copies and kernels off the compute stream */
    double copy_exposed_s;
    tsri_clock_axes axes[TSRI_CLOCK_MAX_AXES];
    int axes_count;
} tsri_clock_result;

/**
 * Give begin_s and end_s to entries[count], a whole step's in host order, from time 0, and sum up.
 *
 * TSR_ERR_INVALID: an entry waits for an operation that is neither in the ledger nor before it.
 */
tsr_status tsri_clock_run(const tsri_machine *machine, tsri_entry *entries, int count,
                          tsri_clock_result *out);
