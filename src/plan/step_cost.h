/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file step_cost.h
 * What a step costs, from the ledger of a device: the collectives of a dry run or of a real step,
 * and the memory of every rank.
 */
#pragma once

#include "job/job.h"

enum {
    TSRI_TRAFFIC_MAX_ROWS = 48,
    TSRI_TRAFFIC_NAME_BYTES = 64
};

/** Collectives of one kind over one set of axes. */
typedef struct tsri_traffic_row {
    char axes[TSRI_TRAFFIC_NAME_BYTES]; /* "replicate+shard" */
    tsri_coll_kind kind;
    int64_t calls;
    double bytes; /* of the whole tensors */
    double sent;  /* what this rank sends at least */
} tsri_traffic_row;

typedef struct tsri_traffic {
    tsri_traffic_row rows[TSRI_TRAFFIC_MAX_ROWS]; /* in order of first use */
    int count;
} tsri_traffic;

/** Sum up the collectives that device recorded. */
void tsri_traffic_count(const tsr_device *device, tsri_traffic *out);

/** Numbers of a summary that ranks can send to each other. */
typedef struct tsri_rank_memory {
    uint64_t kind_most[TSRI_MEM_COUNT];
    uint64_t fixed_bytes, arena_bytes, total_bytes;
} tsri_rank_memory;

void tsri_rank_memory_of(const tsri_job *job, tsri_rank_memory *out);
/** Write the planned memory of ranks[count] as a table: all of few, the least and the most of many.
 */
void tsri_write_rank_memory(const tsri_rank_memory *ranks, int count, FILE *stream);
/** Write plan.txt: memory by kind, units, collectives by axis of a job that is a dry run. */
tsr_status tsri_write_plan(const tsri_job *job, FILE *stream);
