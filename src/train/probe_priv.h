/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Between the files of the probe: kernels, links. */
#pragma once

#include "comm/comm.h"
#include "train/probe.h"

/** Threads of a rank of world. */
int tsri_probe_threads(const tsr_world *world, const tsri_job_options *job);

/** Rates, launch time and host copies of out->machine, and the small job's figures. Collective over
 *  the world. */
tsr_status tsri_probe_kernels(tsr_world *world, const tsri_job_options *job, double seconds,
                              tsri_probe_report *out);

/** Tiers and the cost of a call of out->machine, and the rows. unit_bytes: what the job's
 *  collectives carry, about. Collective over the world. */
tsr_status tsri_probe_links(tsr_world *world, double unit_bytes, double seconds,
                            tsri_probe_report *out);

/** One value per unknown, none below 0, that makes the relative errors of rows[count] least in
 *  square: rows[i][0..unknowns) times x is wanted[i]. */
enum {
    TSRI_PROBE_UNKNOWNS = 3
};
void tsri_probe_fit(const double (*rows)[TSRI_PROBE_UNKNOWNS], const double *wanted, int count,
                    int unknowns, double *x);
