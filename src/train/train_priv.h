/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Between the files of train: what a run is made of. */
#pragma once

#include "base/growing_text.h"

#include "plan/cluster.h"
#include "plan/step_cost.h"
#include "topo/bind.h"
#include "train/data.h"
#include "train/loop.h"
#include "train/run_folder.h"
#include "train/start_links.h"

/** This rank's rows of the data. */
typedef struct train_batches {
    tsri_data *data;
    int32_t *ids, *labels; /* [rows of this rank, seq] of one micro-batch */
    int64_t batch, seq;    /* of the whole job */
} train_batches;

/** This rank's step on a simulated world. */
typedef struct train_dry_run {
    tsr_world *world;
    tsri_job *job;
    tsri_rank_memory numbers;
} train_dry_run;

/** Where the ranks run. */
typedef struct train_place {
    tsri_topo_binding binding;
    tsri_cluster *declared; /* what run.cluster says; NULL: nothing */
    tsri_start_links links;
} train_place;

/** What is told of the run; folder, rows and trace by the rank that speaks. */
typedef struct train_journal {
    tsr_world *world; /* borrowed, as are config and job */
    const tsri_config *config;
    tsri_job *job; /* NULL until it is open */
    const tsri_train_observer *observer;
    bool speaks;
    tsri_run_folder folder;
    tsri_text line, trace;
    tsri_traffic traffic;
    tsri_own_times *own_times;
    tsri_straggler straggler;
    double begin_s, mean_step_s; /* of the newest steps */
    int departures;
} train_journal;

typedef struct training {
    tsr_world *world;
    tsri_config *config;
    tsri_text config_text;
    tsri_job_options options;
    train_place place;
    train_dry_run dry;
    train_batches batches;
    train_journal journal;
    tsri_job *job;
    tsr_schedule schedule;
    int64_t step;
    double counted_tokens, counted_s;
    int overflows; /* in a row */
    tsri_train_report report;
} training;

/** Collective over the world. Everything up to the first step.
 *  loaded: as in tsri_train_run. */
tsr_status tsri_train_set_up(training *t, tsr_status loaded);

/* ---- weights.c ---- */

/** Local. Do the weights of model.hf, where it is set, fit job's model? */
tsr_status tsri_weights_check(const tsri_config *config, const tsri_job *job);
/** Local. Read this rank's pieces of them. */
tsr_status tsri_weights_load(tsri_config *config, const tsri_job *job);

/* ---- batches.c ---- */

/** Local. Look at the configuration's data. Closing is needed also after a failure. */
tsr_status tsri_batches_open(const tsri_config *config, train_batches *batches);
/** Local. Room for this rank's rows of job. */
tsr_status tsri_batches_prepare(train_batches *batches, const tsri_job *job);
/** Local. Read this rank's rows of step, from 0, into job. */
tsr_status tsri_batches_write(train_batches *batches, tsri_job *job, int64_t step);
void tsri_batches_close(train_batches *batches);

/* ---- journal.c ---- */

/** Tell the observer something worth a line. */
void tsri_journal_note(const train_journal *j, const char *text);
/** Tell a step, whose row is complete but for what is compared over ranks. Collective over the
 *  world where the row is logged. */
tsr_status tsri_journal_step(train_journal *j, tsri_train_row *row);
/** Note what is unusual about step, counted from 1, but no failure. */
void tsri_journal_unusual(train_journal *j, int64_t step, const tsri_step_result *result,
                          bool overflows);
/** Write what is written when all steps are over. */
tsr_status tsri_journal_finish(train_journal *j);
void tsri_journal_close(train_journal *j);
