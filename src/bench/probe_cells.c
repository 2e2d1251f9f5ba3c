/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file probe_cells.c
 * Times of collectives that all groups of a kind make at once.
 *
 * A cell is one kind of collective, over one set of axes, of one size. Its calls follow each other,
 * each waited for. A sample is the time of some calls, on the slowest rank; the cell's time is the
 * median of its samples. Sizes are a small one, for the latency, and that of a unit of the job, for
 * the rate, or as much of it as the time allows. In a step a collective begins when compute goes on
 * with what the one before it brought, and the thread that moves it has to get a core first: so
 * small calls are made once more while the rank multiplies matrices.
 */
#include "bench/bench_priv.h"
#include "probe_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include <math.h>

enum {
    ROUNDS = 5,
    MOST_CALLS = 64,
    TRIES = 2,
    GROWTH = 4,
    WORK_SIDE = 192 /* of a matmul of some 0.1 ms */
};

static const double small_bytes = 1 << 10, middle_bytes = 256 << 10;
static const tsri_coll_kind kinds[TSRI_PROBE_KINDS] = {TSRI_ALL_GATHER, TSRI_REDUCE_SCATTER,
                                                       TSRI_ALL_REDUCE};

typedef struct link_probe {
    tsr_world *world;
    tsr_comm *comm;
    tsr_stream *stream;
    tsr_group *group; /* of the row being measured */
    tsr_buffer *in, *out;
    bench_matmul work; /* what compute does meanwhile */
    const tsri_probe_scope *plan;
} link_probe;

static tsr_status work_until(link_probe *p, tsr_event event)
{
    bench_rate ignored;

    while (!tsri_event_done(event)) {
        TSR_TRY(tsri_bench_matmul_run(&p->work, &ignored));
    }
    return TSR_OK;
}

static tsr_status make_calls(link_probe *p, const tsri_probe_row *row, int calls)
{
    const int64_t whole = (int64_t)(row->bytes / sizeof(float));
    const tsri_coll_item item = {.in = p->in,
                                 .out = p->out,
                                 .count =
                                     row->kind == TSRI_ALL_REDUCE ? whole : whole / row->ranks};
    const tsri_coll coll = {.kind = row->kind,
                            .dtype = TSR_F32,
                            .op = TSRI_SUM,
                            .items = &item,
                            .item_count = 1,
                            .label = "probe"};

    for (int i = 0; i < calls; i++) {
        TSR_TRY(tsri_collective(p->group, &coll, p->stream));
        if (row->busy) {
            TSR_TRY(work_until(p, tsri_event_record(p->stream)));
        }
        TSR_TRY(tsri_stream_sync(p->stream));
    }
    return TSR_OK;
}

/* Seconds of a call, on the slowest rank. */
static tsr_status sample(link_probe *p, const tsri_probe_row *row, int calls, double *out)
{
    const int ranks = tsr_world_size(p->world);
    double *all = NULL;
    double mine = 0.0;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)ranks, sizeof(*all), &all));
    TSR_TRY_GOTO(status, tsri_team_barrier(tsri_boot_job(), "measuring links"), out);
    mine = tsri_now_s();
    TSR_TRY_GOTO(status, make_calls(p, row, calls), out);
    mine = (tsri_now_s() - mine) / calls;
    TSR_TRY_GOTO(
        status,
        tsri_team_all_gather(tsri_boot_job(), "measuring links", TSR_OK, &mine, sizeof(mine), all),
        out);
    for (int r = 0; r < ranks; r++) {
        mine = all[r] > mine ? all[r] : mine;
    }
    *out = mine;
out:
    tsri_free(&all);
    return status;
}

static double round_bytes(double bytes, int ranks)
{
    const double unit = (double)sizeof(float) * ranks;

    return ceil(bytes / unit) * unit;
}

/* The median of some samples that take budget_s together, where calls are fast enough for it. */
static tsr_status measure_row(link_probe *p, tsri_probe_row *row, double budget_s)
{
    double values[ROUNDS] = {0.0};
    double once = 0.0;

    for (int i = 0; i < TRIES; i++) { /* the first call opens connections and touches memory */
        TSR_TRY(sample(p, row, 1, &once));
    }
    const double fit = budget_s / ROUNDS / once;
    const int calls = fit < 1.0 ? 1 : fit > MOST_CALLS ? MOST_CALLS : (int)fit;

    for (int i = 0; i < ROUNDS; i++) {
        TSR_TRY(sample(p, row, calls, &values[i]));
    }
    row->s = tsri_bench_median(values, ROUNDS);
    return TSR_OK;
}

/* As many bytes as rounds of calls can move in budget_s, but enough that what a network lets pass
 * at once does not count. */
static tsr_status find_large(link_probe *p, tsri_probe_row *row, double budget_s)
{
    const double most = p->plan->large_bytes;
    const double patience_s = budget_s > p->plan->longest_s ? budget_s : p->plan->longest_s;
    double once = 0.0;

    row->bytes = round_bytes(middle_bytes, row->ranks);
    TSR_TRY(sample(p, row, 1, &once));
    TSR_TRY(sample(p, row, 1, &once));
    while (row->bytes * GROWTH <= most &&
           once * GROWTH * (ROUNDS + TRIES) <
               (row->bytes < tsri_probe_enough_bytes ? patience_s : budget_s)) {
        row->bytes = round_bytes(row->bytes * GROWTH, row->ranks);
        TSR_TRY(sample(p, row, 1, &once));
    }
    return TSR_OK;
}

static tsr_status measure_kind(link_probe *p, const tsri_probe_row *like, double budget_s,
                               tsri_probe_row *rows)
{
    for (int i = 0; i < TSRI_PROBE_CELLS; i++) {
        const bool large = i == TSRI_PROBE_CELLS - 1;

        rows[i] = *like;
        rows[i].busy = i == 1;
        rows[i].large = large;
        rows[i].bytes = round_bytes(small_bytes, like->ranks);
        if (large) {
            TSR_TRY(find_large(p, &rows[i], budget_s));
        }
        TSR_TRY(measure_row(p, &rows[i], large ? 0.6 * budget_s : 0.2 * budget_s));
    }
    return TSR_OK;
}

static tsr_status measure_masks(link_probe *p, tsri_probe_row *rows, int *row_count)
{
    const tsri_probe_scope *plan = p->plan;
    const double budget_s = plan->seconds / (plan->mask_count * plan->kind_count);

    *row_count = 0;
    for (int m = 0; m < plan->mask_count; m++) {
        tsri_probe_row like = {.mask = plan->masks[m]};

        (void)tsri_comm_mask_name(p->comm, like.mask, like.axes, sizeof(like.axes));
        TSR_TRY(tsri_comm_open_group(p->comm, like.mask, p->stream->kind, &p->group));
        like.ranks = p->group->size;
        for (int k = 0; k < plan->kind_count && k < TSRI_PROBE_KINDS; k++) {
            like.kind = kinds[k];
            TSR_TRY(measure_kind(p, &like, budget_s, rows + *row_count));
            *row_count += TSRI_PROBE_CELLS;
        }
    }
    return TSR_OK;
}

tsr_status tsri_probe_measure(tsr_world *world, tsr_mesh *mesh, const tsri_probe_scope *plan,
                              tsri_probe_row *rows, int *row_count)
{
    const int64_t mnk[3] = {WORK_SIDE, WORK_SIDE, WORK_SIDE};
    const size_t bytes = (size_t)round_bytes(plan->large_bytes, tsr_world_size(world));
    link_probe p = {.world = world, .plan = plan};
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_comm_open(world, mesh, NULL, &p.comm));
    p.stream = tsri_comm_stream(p.comm, TSRI_STREAM_REDUCE);
    TSR_TRY_GOTO(status, tsri_comm_buffer(p.comm, bytes, TSRI_MEM_OTHER, "in", &p.in), close);
    TSR_TRY_GOTO(status, tsri_comm_buffer(p.comm, bytes, TSRI_MEM_OTHER, "out", &p.out), close);
    TSR_TRY_GOTO(status, tsri_bench_matmul_open(p.comm, TSR_F32, mnk, false, false, &p.work),
                 close);
    TSR_TRY_GOTO(status, measure_masks(&p, rows, row_count), close);
close:
    tsri_bench_matmul_close(&p.work);
    tsri_buffer_release(&p.in);
    tsri_buffer_release(&p.out);
    tsr_comm_release(&p.comm);
    return status;
}
