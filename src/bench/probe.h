/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file probe.h
 * This machine as its ranks find it: rates of kernels and links, measured, as a cluster.
 *
 * All ranks measure at the same time, because that is how they will compute: four ranks on two
 * cores have half a core each. Kernels are timed in steps of a small job, one per rank and without
 * communication, of the sizes that a rank of the given job has. Links are timed by collectives
 * over all groups of a kind at once: within hosts, between hosts, over all ranks.
 *
 * Threads: one thread at a time.
 */
#pragma once

#include "base/growing_text.h"

#include "job/job.h"
#include "plan/machine.h"

enum {
    TSRI_PROBE_MAX_ROWS = 72,
    TSRI_PROBE_NAME_BYTES = 64
};

/** Collectives of one kind and size over one set of axes, all groups at once. */
typedef struct tsri_probe_row {
    double bytes; /* of the whole tensor */
    double s;     /* of one, on the slowest rank; median */
    char axes[TSRI_PROBE_NAME_BYTES];
    unsigned mask; /* of those axes */
    int ranks;     /* of a group */
    tsri_coll_kind kind;
    bool busy;  /* made while the rank multiplied matrices */
    bool large; /* tells the rate; others tell the latency */
} tsri_probe_row;

typedef struct tsri_probe_report {
    tsri_machine machine;
    int ranks, threads, hosts;
    int layers, steps;           /* of the small job */
    int64_t rows, seq;           /* sequences of a rank, tokens of a sequence */
    double step_s;               /* of the small job */
    double kernel_s[TSRK_COUNT]; /* in a step of it */
    double kernel_calls[TSRK_COUNT];
    double seconds; /* that all of it took */
    int row_count;
    tsri_probe_row measured[TSRI_PROBE_MAX_ROWS]; /* axes "local", "host", "host+local" */
} tsri_probe_report;

/**
 * Measure the machine for jobs like job. Collective over the world. Blocks for about as long as
 * asked, but for two steps of the small job, whatever they take.
 *
 * @param seconds  0: 2.
 */
tsr_status tsri_probe(tsr_world *world, const tsri_job_options *job, double seconds,
                      tsri_probe_report *out);

/** The machine as a cluster file; its hash is that of the text. */
void tsri_probe_text(const tsri_probe_report *report, const char *host, tsri_text *text);

/** The largest factor by which two probes of one machine differ in a figure that matters: links'
 *  rates, and rates of kernels that take 2 % of the kernels' time. *what names it. */
double tsri_probe_factor(const tsri_probe_report *a, const tsri_probe_report *b, const char **what);

/* ---- axes of a job ---- */

/** A mesh axis, measured and, where a machine was declared, expected. */
typedef struct tsri_probe_axis {
    char name[TSR_MESH_NAME_BYTES];
    int ranks;
    int hosts;                   /* that a group of it lies on, at most */
    double bytes_per_s, hop_s;   /* sent by a rank while all groups of the axis are busy; of a step
                                    of a ring */
    double declared_bytes_per_s; /* 0: nothing was declared */
    double declared_hop_s;
} tsri_probe_axis;

/**
 * List the axes of mesh that have more than one rank, and time all-gathers along each. Collective
 * over the world. Blocks for about seconds; 0: nothing is measured. declared may be NULL.
 */
tsr_status tsri_probe_axes(tsr_world *world, tsr_mesh *mesh, const tsri_machine *declared,
                           double seconds, tsri_probe_axis *axes, int *count_out);
