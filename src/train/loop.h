/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file loop.h
 * Training by a configuration: dry run, data, steps, metrics, run folder.
 *
 * Threads: one thread at a time.
 */
#pragma once

#include "tessera/world.h"

#include "config/config.h"
#include "train/stragglers.h"

/** Before the first step. Strings are borrowed for the call. */
typedef struct tsri_train_start {
    const char *run_dir;
    bool run_dir_taken; /* the folder asked for holds a run; run_dir is another */
    const char *arch, *mesh, *preset, *param_dtype;
    int64_t params, data_bytes, windows;
    int data_files;
    const char *weights;     /* files that they were read from, and how; "": drawn */
    const char *mesh_reason; /* of a mesh that was chosen; else "" */
    bool renumbered;         /* host by host, where the launcher did not */
    const char *binding;     /* of ranks to cores; "": was not asked for */
    const char *groups;      /* of the axes, by host and device; "": one rank */
    const char *links;       /* along the axes, as measured; "": they were not */
    double links_s;          /* that measuring took */
    size_t planned_bytes;    /* of this rank */
    double epochs;           /* passes over the data */
} tsri_train_start;

/** One step; a row of metrics.jsonl. */
typedef struct tsri_train_row {
    int64_t step, steps; /* steps done, of how many */
    double loss, grad_norm, lr, tokens, tokens_per_s, step_s, exposed_comm_s;
    size_t mem_peak_bytes;
    double eta_s;
    bool logged;            /* stands in metrics.jsonl; then also: */
    tsri_spread own;        /* times of the ranks less their exposed communication */
    double host_sent_bytes; /* that this rank's host sent to other hosts */
} tsri_train_row;

typedef struct tsri_train_report {
    double first_loss, last_loss;
    int64_t steps, params;
    double tokens_per_s; /* over all steps but the first, if there are others */
    double train_s;
    size_t peak_bytes, planned_bytes; /* tensor memory of this rank */
    char run_dir[4096];               /* of the speaking rank; "" elsewhere */
} tsri_train_report;

/** Told on the rank that speaks for the job; any may be NULL. */
typedef struct tsri_train_observer {
    void (*start)(void *context, const tsri_train_start *start);
    void (*row)(void *context, const tsri_train_row *row);
    void (*note)(void *context, const char *text); /* something worth a line */
    void *context;                                 /* the observer's own */
} tsri_train_observer;

/**
 * Local. Everything that can be seen before ranks start: fits config to ranks, looks at data, model
 * folder and run folder, and makes a dry run of the whole job as one of them.
 *
 * @param hosts     As tsri_mesh_hosts counts those of the job.
 * @param one_host  All ranks run on this machine, whose memory must then hold them: TSR_ERR_NOMEM.
 */
tsr_status tsri_train_check(tsri_config *config, int ranks, int hosts, bool one_host);

/**
 * Train. Collective over the world; config (not yet fitted) is compared. Blocks. A failure ends the
 * job, see tsri_world_settle.
 *
 * @param loaded  TSR_OK, or the failure that this rank met before it had a config (then NULL).
 * @retval TSR_ERR_STATE     loss or gradients are not finite; nothing was updated from them.
 * @retval TSR_ERR_DISAGREE  ranks have different configurations or data.
 */
tsr_status tsri_train_run(tsr_world *world, tsri_config *config, tsr_status loaded,
                          const tsri_train_observer *observer, tsri_train_report *out);
