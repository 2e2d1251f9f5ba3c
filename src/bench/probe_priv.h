/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Between the files of the probe: kernels, links. */
#pragma once

#include "bench/probe.h"
#include "comm/comm.h"

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

/* ---- probe_cells.c ---- */

enum {
    TSRI_PROBE_CELLS = 3, /* of a kind: small, small beside compute, large */
    TSRI_PROBE_KINDS = 3,
    TSRI_PROBE_MASKS = TSRI_PROBE_MAX_ROWS / TSRI_PROBE_CELLS / TSRI_PROBE_KINDS
};

/** Of a large cell: beyond what a network lets pass at once. */
static const double tsri_probe_enough_bytes = 1 << 20;

/** What is measured, and with how much patience. */
typedef struct tsri_probe_scope {
    unsigned masks[TSRI_PROBE_MASKS];
    int mask_count;
    int kind_count;     /* all-gather, reduce-scatter, all-reduce, from the first on */
    double large_bytes; /* of the large cells, at most */
    double longest_s;   /* that one may take to get to enough bytes */
    double seconds;     /* of all, about */
} tsri_probe_scope;

/** Rows of all groups of plan's masks on mesh, TSRI_PROBE_CELLS for each kind. Collective over the
 *  world. */
tsr_status tsri_probe_measure(tsr_world *world, tsr_mesh *mesh, const tsri_probe_scope *plan,
                              tsri_probe_row *rows, int *row_count);

/* ---- probe_fit.c ---- */

/** Fit tier of m to the rows[count] whose slowest tier it is; those before it are known. */
void tsri_probe_fit_tier(tsri_machine *m, int tier, const tsri_probe_row *rows, int count,
                         const tsri_reach *reach);
/** Bandwidth and latency of an axis from its rows[count]. */
void tsri_probe_fit_axis(const tsri_probe_row *rows, int count, tsri_probe_axis *axis);

/** One value per unknown, none below 0, that makes the relative errors of rows[count] least in
 *  square: rows[i][0..unknowns) times x is wanted[i]. */
enum {
    TSRI_PROBE_UNKNOWNS = 3
};
void tsri_probe_fit(const double (*rows)[TSRI_PROBE_UNKNOWNS], const double *wanted, int count,
                    int unknowns, double *x);
