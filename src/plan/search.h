/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file search.h
 * Layouts of a job on a cluster, tried one after the other by forecasts.
 *
 * Tried are: tensor parallel sizes that divide a node and the model's heads; shard groups of a part
 * of a node, of the node, of some nodes and of all ranks; each with fsdp, hsdp and hfsdp (ddp where
 * nothing is sharded); sequence parallelism where there is tensor parallelism, because it sends as
 * much and holds less; activation checkpointing of no block, of every second and of every one; and
 * the fewest micro-batches with which that fits. What needs more of both than another is left out.
 */
#pragma once

#include "plan/forecast.h"

typedef struct tsri_candidate {
    tsri_job_options options; /* axes' names are static */
    tsri_forecast forecast;
    bool full; /* else a sketch */
} tsri_candidate;

enum {
    TSRI_SEARCH_KEPT = 64,
    TSRI_SEARCH_SHOWN = 10
};

typedef struct tsri_search {
    tsri_candidate best[TSRI_SEARCH_KEPT]; /* that may run: those as fast as the fastest by memory,
                                              then the others by time */
    int count;                             /* of them */
    int tied;                              /* of those, as fast as the fastest */
    int tried;
} tsri_search;

/** Called before each trial. */
typedef void (*tsri_search_progress)(void *context, const tsri_search *so_far);

/**
 * Local. Try layouts of options (whose axes, preset, batch and checkpointing are replaced) on size
 * ranks. progress: NULL, nobody is told.
 */
tsr_status tsri_search_run(const tsri_job_options *options, int size, const tsri_cluster *cluster,
                           tsri_search_progress progress, void *context, tsri_search *out);

/** The search as a table, with the words that choose each layout in a configuration. */
void tsri_search_print(const tsri_search *found, FILE *stream);
