/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file scores.h
 * Ledgers by hand: what ranks of a small world would have recorded.
 */
#pragma once

#include "plan/match.h"

enum {
    SCORE_MAX_RANKS = 16,
    SCORE_MAX_ENTRIES = 256
};

typedef struct score {
    tsri_entry entries[SCORE_MAX_ENTRIES];
    int count;
    uint64_t seq[TSRI_STREAM_COUNT];
} score;

/** Ranks in a grid of rows x cols: axis "replicate" (bit 0) goes over rows, "shard" (bit 1) over
 *  columns. */
typedef struct score_world {
    int rows, cols;
    score ranks[SCORE_MAX_RANKS];
    int row_members[SCORE_MAX_RANKS][SCORE_MAX_RANKS]; /* of shard, by row */
    int col_members[SCORE_MAX_RANKS][SCORE_MAX_RANKS]; /* of replicate, by column */
} score_world;

void score_begin(score_world *world, int rows, int cols);
/** One entry of rank; axis 0 is replicate, 1 is shard. */
void score_call(score_world *world, int rank, int axis, tsri_stream_kind stream,
                tsri_coll_kind kind, const char *label, int count);
void score_kernel(score_world *world, int rank, tsri_stream_kind stream);
void score_read(score_world *world, int rank, tsri_stream_kind stream);
void score_open_group(score_world *world, int rank, int axis, tsri_stream_kind stream);
/** stream waits for the newest operation of target. */
void score_wait(score_world *world, int rank, tsri_stream_kind stream, tsri_stream_kind target);
/** Play it; the status of tsri_match. */
tsr_status score_match(score_world *world, bool inline_compute, tsri_match_report *out);
