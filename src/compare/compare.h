/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file compare.h
 * Presets side by side: what each was planned to cost on this machine, and what it did.
 *
 * The machine is measured (or given) before any preset runs, and its file's hash told; so a plan
 * knows nothing of the steps it is compared with. Then each preset is planned, and runs for some
 * steps on random tokens in the same processes; its memory is released before the next.
 *
 * Threads: one thread at a time.
 */
#pragma once

#include "bench/probe.h"
#include "config/config.h"
#include "plan/cluster.h"
#include "plan/forecast.h"

enum {
    TSRI_COMPARE_MAX_PRESETS = 16,
    TSRI_COMPARE_MAX_STEPS = 1000,
    TSRI_COMPARE_CLUSTER_BYTES = 8192
};

typedef struct tsri_compare_options {
    int presets[TSRI_COMPARE_MAX_PRESETS]; /* as config.parallel.preset */
    int preset_count;
    int steps;           /* measured ones; 0: 5 */
    const char *cluster; /* a name or a file; NULL: measure the machine */
    double seconds;      /* for measuring it, before and after; 0: 6 */
} tsri_compare_options;

/** Bytes that a rank sends over one set of axes in a step. */
typedef struct tsri_compare_axes {
    char axes[TSRI_FORECAST_NAME_BYTES];
    double planned, measured;
} tsri_compare_axes;

typedef struct tsri_compare_row {
    tsri_forecast plan;
    bool ran; /* else why says what forbade it */
    char why[TSRI_FORECAST_WHY_BYTES];
    uint64_t planned_bytes, peak_bytes; /* of the rank with the most */
    double step_s, min_s, max_s;        /* on the slowest rank: median, least, most */
    double tokens_per_s;
    double compute_s, comm_s, hideable_s, exposed_s; /* means over ranks, medians over steps:
                                            kernels of the compute stream; any collective under way;
                                            of that what compute could hide; waits */
    double host_bytes; /* that a host sends to others in a step, counted from collectives */
    double nic_bytes;  /* the same by its interfaces' counters; 0: one host, or unreadable */
    tsri_compare_axes axes[TSRI_CLOCK_MAX_AXES];
    int axes_count;
} tsri_compare_row;

typedef struct tsri_compare_report {
    int ranks, hosts, threads, steps;
    const char *arch; /* "llama", "gpt2" */
    char mesh[192];
    int64_t params, batch, seq, micro_batches;
    bool probed;
    tsri_probe_report probe; /* if so */
    double apart; /* if so: the largest factor by which a preset's planned step differs from that on
                     the machine as it is after all steps */
    char cluster[TSRI_COMPARE_CLUSTER_BYTES]; /* its file, if so */
    tsri_cluster machine;                     /* as the file says, with its hash */
    tsri_compare_row rows[TSRI_COMPARE_MAX_PRESETS];
    int row_count;
} tsri_compare_report;

/** Told on the rank that speaks for the job; any may be NULL. */
typedef struct tsri_compare_observer {
    void (*machine)(void *context, const tsri_compare_report *report); /* before any step */
    void (*row)(void *context, const tsri_compare_report *report);     /* the last of its rows */
    void *context;                                                     /* the observer's own */
} tsri_compare_observer;

/**
 * Compare. Collective over the world; config (not yet fitted) is compared. Blocks. What a preset
 * cannot do is a row; any other failure ends the job, see tsri_world_settle.
 *
 * @param loaded  TSR_OK, or the failure that this rank met before it had a config (then NULL).
 */
tsr_status tsri_compare_run(tsr_world *world, tsri_config *config, tsr_status loaded,
                            const tsri_compare_options *options,
                            const tsri_compare_observer *observer, tsri_compare_report *out);

/** Rows that ran, by planned (or measured) step time, the fastest first; returns how many. */
int tsri_compare_order(const tsri_compare_report *report, bool planned, int *order);

/* ---- pages (compare_print.c) ---- */

/** What is compared, and on what machine. */
void tsri_compare_print_head(const tsri_compare_report *report, bool markdown, FILE *stream);
/** The experiment table, bytes by axes, and both orders. */
void tsri_compare_print_table(const tsri_compare_report *report, bool markdown, FILE *stream);
/** All of it as one JSON object. */
tsr_status tsri_compare_print_json(const tsri_compare_report *report, FILE *stream);
