/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Ledgers by hand. */
#include "support/scores.h"

#include <string.h>

#include "plan/match.h"

void score_begin(score_world *world, int rows, int cols)
{
    memset(world, 0, sizeof(*world));
    world->rows = rows;
    world->cols = cols;
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++) {
            world->row_members[r][c] = r * cols + c;
            world->col_members[c][r] = r * cols + c;
        }
    }
}

static tsri_entry *append(score_world *world, int rank)
{
    return &world->ranks[rank].entries[world->ranks[rank].count++];
}

static void name_group(const score_world *world, int rank, int axis, tsri_entry *e)
{
    e->group = axis == 0 ? "replicate" : "shard";
    e->group_size = axis == 0 ? world->rows : world->cols;
    e->members =
        axis == 0 ? world->col_members[rank % world->cols] : world->row_members[rank / world->cols];
    e->axis_mask = 1U << (unsigned)axis;
}

void score_call(score_world *world, int rank, int axis, tsri_stream_kind stream,
                tsri_coll_kind kind, const char *label, int count)
{
    tsri_entry *e = append(world, rank);

    *e = (tsri_entry){.kind = TSRI_ENTRY_COLLECTIVE,
                      .stream = stream,
                      .op = (int)kind,
                      .label = label,
                      .dtype = TSR_F32,
                      .bytes = (size_t)count * sizeof(float),
                      .call = (uint64_t)kind * 1000003U + (uint64_t)count,
                      .seq = ++world->ranks[rank].seq[stream]};
    name_group(world, rank, axis, e);
}

void score_kernel(score_world *world, int rank, tsri_stream_kind stream)
{
    *append(world, rank) = (tsri_entry){.kind = TSRI_ENTRY_KERNEL,
                                        .stream = stream,
                                        .label = "kernel",
                                        .seq = ++world->ranks[rank].seq[stream]};
}

void score_read(score_world *world, int rank, tsri_stream_kind stream)
{
    *append(world, rank) = (tsri_entry){.kind = TSRI_ENTRY_COPY,
                                        .stream = stream,
                                        .op = TSRI_COPY_READ,
                                        .label = "loss",
                                        .seq = ++world->ranks[rank].seq[stream]};
}

void score_open_group(score_world *world, int rank, int axis, tsri_stream_kind stream)
{
    tsri_entry *e = append(world, rank);

    *e = (tsri_entry){.kind = TSRI_ENTRY_GROUP, .stream = stream};
    name_group(world, rank, axis, e);
    e->call = (uint64_t)axis * 100 + (uint64_t)stream;
}

void score_wait(score_world *world, int rank, tsri_stream_kind stream, tsri_stream_kind target)
{
    *append(world, rank) = (tsri_entry){.kind = TSRI_ENTRY_WAIT,
                                        .stream = stream,
                                        .op = (int)target,
                                        .seq = world->ranks[rank].seq[target]};
}

tsr_status score_match(score_world *world, bool inline_compute, tsri_match_report *out)
{
    tsri_match_ledger ledgers[SCORE_MAX_RANKS];
    const tsri_match_input input = {.ledgers = ledgers,
                                    .rank_count = world->rows * world->cols,
                                    .inline_compute = inline_compute};

    for (int r = 0; r < input.rank_count; r++) {
        ledgers[r] = (tsri_match_ledger){world->ranks[r].entries, world->ranks[r].count};
    }
    TSR_TRY(tsri_match(&input, out));
    return TSR_OK;
}
