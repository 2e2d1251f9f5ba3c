/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bench_collectives.c
 * Collectives over all ranks: through memory, by messages, and the copies that bound both.
 *
 * Two devices are open at a time, alike but for their transport. A sample runs one collective a few
 * times on one of them after every rank has met on ours, where waiting ranks sleep; it lasts as
 * long as on the slowest rank. Inputs and outputs are apart, which suits both. Samples of the two
 * sides alternate, round by round.
 */
#include "bench_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_ROUNDS 7
#define COPY_BYTES     ((size_t)32 << 20) /* beyond the caches of a core */
#define SAMPLE_BYTES   ((size_t)4 << 20)  /* small collectives are repeated up to so much */
#define MAX_REPEATS    64

typedef enum side_kind {
    OURS = 0,
    MPI,
    SIDES
} side_kind;

typedef struct side {
    tsr_device *device;
    tsr_stream *stream;
    tsr_group *group;
    tsr_buffer *in, *out;
} side;

typedef struct coll_bench {
    tsr_world *world;
    int ranks, rounds;
    side sides[SIDES];
    tsr_buffer *scalar;
    tsri_bench_coll_report *report;
    double *samples;                         /* [row][side][round] seconds */
    double copies[2][TSRI_BENCH_MAX_ROUNDS]; /* one rank alone; this rank among all */
} coll_bench;

static double *sample_of(const coll_bench *b, int row, int which)
{
    return b->samples + ((ptrdiff_t)(row * SIDES + which) * b->rounds);
}

static tsr_status open_side(coll_bench *b, const char *transport, size_t bytes, side *out)
{
    tsri_device_options options = {.world_rank = tsr_world_rank(b->world),
                                   .world_size = b->ranks,
                                   .threads = 1,
                                   .transport = transport};
    int *members = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_device_open(tsri_world_backend(b->world), &options, &out->device));
    TSR_TRY(tsri_stream_open(out->device, TSRI_STREAM_COMPUTE, &out->stream));
    TSR_TRY(tsri_alloc((size_t)b->ranks, sizeof(*members), &members));
    for (int r = 0; r < b->ranks; r++) {
        members[r] = r;
    }
    TSR_TRY_GOTO(status,
                 tsri_group_open(out->device, members, b->ranks, options.world_rank, 1, "shard",
                                 out->stream, &out->group),
                 out);
    TSR_TRY_GOTO(status, tsri_buffer_alloc(out->device, bytes, TSRI_MEM_OTHER, "in", &out->in),
                 out);
    TSR_TRY_GOTO(status, tsri_buffer_alloc(out->device, bytes, TSRI_MEM_OTHER, "out", &out->out),
                 out);
out:
    tsri_free(&members);
    return status;
}

static void close_side(side *s)
{
    tsri_buffer_release(&s->in);
    tsri_buffer_release(&s->out);
    tsri_group_close(&s->group);
    tsri_stream_close(&s->stream);
    tsri_device_close(&s->device);
}

/* Every rank comes here; who waits sleeps. */
static tsr_status meet_all(coll_bench *b)
{
    side *ours = &b->sides[OURS];
    const tsri_coll_item item = {.in = b->scalar, .out = b->scalar, .count = 1};
    const tsri_coll call = {.kind = TSRI_ALL_REDUCE,
                            .dtype = TSR_F64,
                            .op = TSRI_MAX,
                            .items = &item,
                            .item_count = 1,
                            .label = "meet"};

    TSR_TRY(tsri_collective(ours->group, &call, ours->stream));
    TSR_TRY(tsri_stream_sync(ours->stream));
    return TSR_OK;
}

static tsr_status run_once(side *s, const tsri_bench_coll_row *row, int ranks)
{
    const int64_t whole = (int64_t)(row->bytes / sizeof(float));
    const tsri_coll_item item = {
        .in = s->in, .out = s->out, .count = row->kind == TSRI_ALL_REDUCE ? whole : whole / ranks};
    const tsri_coll call = {.kind = row->kind,
                            .dtype = TSR_F32,
                            .op = TSRI_SUM,
                            .items = &item,
                            .item_count = 1,
                            .label = "bench"};

    TSR_TRY(tsri_collective(s->group, &call, s->stream));
    TSR_TRY(tsri_stream_sync(s->stream));
    return TSR_OK;
}

static int repeats_of(const tsri_bench_coll_row *row)
{
    const size_t fit = SAMPLE_BYTES / row->bytes;

    return fit < 1 ? 1 : fit > MAX_REPEATS ? MAX_REPEATS : (int)fit;
}

static tsr_status sample(coll_bench *b, int row_index, int which, double *out)
{
    const tsri_bench_coll_row *row = &b->report->rows[row_index];
    const int repeats = repeats_of(row);

    TSR_TRY(meet_all(b));
    const double begin = tsri_now_s();
    for (int i = 0; i < repeats; i++) {
        TSR_TRY(run_once(&b->sides[which], row, b->ranks));
    }
    *out = (tsri_now_s() - begin) / repeats;
    return TSR_OK;
}

/* Bytes per second that memcpy copies; to and from lie in our buffers. */
static double copy_rate(const coll_bench *b)
{
    const side *s = &b->sides[OURS];
    const double begin = tsri_now_s();

    memcpy(s->out->address, s->in->address, COPY_BYTES);
    return (double)COPY_BYTES / (tsri_now_s() - begin);
}

static tsr_status sample_copies(coll_bench *b, int round)
{
    TSR_TRY(meet_all(b));
    if (tsr_world_is_speaker(b->world)) {
        b->copies[0][round] = copy_rate(b);
    }
    TSR_TRY(meet_all(b));
    b->copies[1][round] = copy_rate(b);
    TSR_TRY(meet_all(b));
    return TSR_OK;
}

static tsr_status run_rounds(coll_bench *b)
{
    const int rows = b->report->row_count;
    double ignored = 0.0;

    /* Memory is touched, and both sides have met everyone, before the clock runs. */
    for (int i = 0; i < rows * SIDES; i++) {
        TSR_TRY(sample(b, i / SIDES, i % SIDES, &ignored));
    }
    for (int round = 0; round < b->rounds; round++) {
        TSR_TRY(sample_copies(b, round));
        for (int i = 0; i < rows * SIDES; i++) {
            TSR_TRY(sample(b, i / SIDES, i % SIDES, &sample_of(b, i / SIDES, i % SIDES)[round]));
        }
    }
    return TSR_OK;
}

/* ---- the report ---- */

/* values [count] of every rank become their largest (or, of rates, least) on all ranks. */
static tsr_status take_slowest(const coll_bench *b, double *values, int count, bool rates)
{
    double *all = NULL;
    tsr_status status = TSR_OK;

    status = tsri_alloc((size_t)count * (size_t)b->ranks, sizeof(*all), &all);
    TSR_TRY_GOTO(status,
                 tsri_team_all_gather(tsri_boot_job(), "comparing the ranks' times", status, values,
                                      sizeof(*values) * (size_t)count, all),
                 out);
    for (int r = 0; r < b->ranks; r++) {
        for (int i = 0; i < count; i++) {
            const double other = all[r * count + i];

            values[i] = (other > values[i]) != rates ? other : values[i];
        }
    }
out:
    tsri_free(&all);
    return status;
}

static tsri_bench_coll_side make_side(const tsri_bench_coll_row *row, double s, int ranks)
{
    const double passes = row->kind == TSRI_ALL_REDUCE ? 2.0 : 1.0;

    return (tsri_bench_coll_side){
        .s = s,
        .algorithm = (double)row->bytes / s,
        .bus = (double)row->bytes / s * passes * (ranks - 1) / ranks,
    };
}

/* What a rank has to move, in bytes of copies, each of which is read and written: a gather writes
 * the whole tensor; a reduction of a slice reads the slice of every rank and writes one; all_reduce
 * then copies the other slices. */
static double moved_bytes(const tsri_bench_coll_row *row, int ranks)
{
    const double slice = (double)row->bytes / ranks;
    const double reduced = (slice * ranks + slice) / 2;

    if (row->kind == TSRI_ALL_GATHER) {
        return (double)row->bytes;
    }
    return row->kind == TSRI_ALL_REDUCE ? reduced + slice * (ranks - 1) : reduced;
}

static tsr_status report_collectives(coll_bench *b)
{
    tsri_bench_coll_report *out = b->report;

    TSR_TRY(take_slowest(b, b->samples, out->row_count * SIDES * b->rounds, false));
    TSR_TRY(take_slowest(b, b->copies[1], b->rounds, true));
    TSR_TRY(tsri_team_broadcast(tsri_boot_job(), "sharing the copies' times", TSR_OK, b->copies[0],
                                sizeof(b->copies[0]), 0));
    for (int i = 0; i < out->row_count; i++) {
        tsri_bench_coll_row *row = &out->rows[i];
        double speedups[TSRI_BENCH_MAX_ROUNDS];
        double shares[TSRI_BENCH_MAX_ROUNDS];

        for (int round = 0; round < b->rounds; round++) {
            const double ours = sample_of(b, i, OURS)[round];

            speedups[round] = sample_of(b, i, MPI)[round] / ours;
            shares[round] = moved_bytes(row, b->ranks) / ours / b->copies[1][round];
        }
        row->speedup = tsri_bench_median(speedups, b->rounds);
        row->of_copy = tsri_bench_median(shares, b->rounds);
        row->ours = make_side(row, tsri_bench_median(sample_of(b, i, OURS), b->rounds), b->ranks);
        row->mpi = make_side(row, tsri_bench_median(sample_of(b, i, MPI), b->rounds), b->ranks);
    }
    out->copy_one = tsri_bench_median(b->copies[0], b->rounds);
    out->copy_all = tsri_bench_median(b->copies[1], b->rounds);
    return TSR_OK;
}

static void list_rows(const tsri_bench_coll_options *options, int ranks,
                      tsri_bench_coll_report *out)
{
    static const tsri_coll_kind kinds[3] = {TSRI_ALL_GATHER, TSRI_REDUCE_SCATTER, TSRI_ALL_REDUCE};
    const size_t unit = sizeof(float) * (size_t)ranks;

    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < options->size_count; i++) {
            out->rows[out->row_count++] = (tsri_bench_coll_row){
                .kind = kinds[k], .bytes = (options->bytes[i] + unit - 1) / unit * unit};
        }
    }
}

static tsr_status measure_collectives(coll_bench *b, const tsri_bench_coll_options *options)
{
    size_t most = COPY_BYTES;

    b->ranks = tsr_world_size(b->world);
    b->rounds = options->rounds > 0 ? options->rounds : DEFAULT_ROUNDS;
    if (b->ranks < 2 || b->rounds > TSRI_BENCH_MAX_ROUNDS) {
        return TSR_RAISE(TSR_ERR_INVALID, "%d ranks, %d rounds; wants at least 2 and at most %d",
                         b->ranks, b->rounds, TSRI_BENCH_MAX_ROUNDS);
    }
    *b->report = (tsri_bench_coll_report){.ranks = b->ranks};
    list_rows(options, b->ranks, b->report);
    for (int i = 0; i < b->report->row_count; i++) {
        most = b->report->rows[i].bytes > most ? b->report->rows[i].bytes : most;
    }
    TSR_TRY(tsri_alloc((size_t)(b->report->row_count * SIDES * b->rounds), sizeof(*b->samples),
                       &b->samples));
    TSR_TRY(open_side(b, "auto", most, &b->sides[OURS]));
    TSR_TRY(open_side(b, "mpi", most, &b->sides[MPI]));
    TSR_TRY(tsri_buffer_alloc(b->sides[OURS].device, sizeof(double), TSRI_MEM_OTHER, "scalar",
                              &b->scalar));
    TSR_TRY(run_rounds(b));
    TSR_TRY(report_collectives(b));
    return TSR_OK;
}

tsr_status tsri_bench_collectives(tsr_world *world, const tsri_bench_coll_options *options,
                                  tsri_bench_coll_report *out)
{
    coll_bench *b = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*b), &b));
    b->world = world;
    b->report = out;
    status = tsri_world_settle(world, measure_collectives(b, options));
    tsri_buffer_release(&b->scalar);
    close_side(&b->sides[MPI]);
    close_side(&b->sides[OURS]);
    tsri_free(&b->samples);
    tsri_free(&b);
    return status;
}
