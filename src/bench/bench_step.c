/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bench_step.c
 * A training step, and where its time goes.
 *
 * The recorder knows when each operation ran. On the compute stream, whose operations follow each
 * other on the calling thread, a gap between two of them is either a wait for another stream (it
 * lasts until the awaited operation ended) or host work. What a stream other than compute does
 * while compute goes on costs cores, but no time of its own.
 */
#include "bench_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "config/mesh_text.h"

#define DEFAULT_BATCH  8
#define DEFAULT_SEQ    256
#define DEFAULT_STEPS  10
#define WARMUP         2 /* the first step plans memory, the second is the first to use it */
#define CEILING_ROUNDS 3 /* before the steps, and again after */
#define LEARNING_RATE  3e-4

typedef struct step_bench {
    tsri_mesh_text mesh;
    tsri_job *job;
    bench_matmul square;
    double ceilings[2 * CEILING_ROUNDS], cpu_ceilings[2 * CEILING_ROUNDS];
    int ceiling_count;
    double *steps; /* [steps] seconds */
    int step_count;
    tsri_bench_step_report sum; /* this rank's, over steps */
} step_bench;

tsr_status tsri_bench_step_job(const tsri_bench_step_options *options, int ranks,
                               tsri_mesh_text *mesh, tsri_job_options *out)
{
    TSR_TRY(tsri_mesh_parse(options->mesh != NULL ? options->mesh : "shard=-1", mesh));
    TSR_TRY(tsri_mesh_fit(mesh, ranks));
    *out = (tsri_job_options){
        .axis_count = mesh->count,
        .preset = options->preset,
        .fsdp = {.param_dtype = options->dtype != TSR_DTYPE_DEFAULT ? options->dtype : TSR_F32,
                 .reduce_dtype = TSR_F32},
        .seed = 1,
        .optim = {.weight_decay = 0.1},
        .batch = options->batch > 0 ? options->batch : DEFAULT_BATCH,
        .seq = options->seq > 0 ? options->seq : DEFAULT_SEQ,
        .comm = {.record = true},
    };
    memcpy(out->axes, mesh->axes, sizeof(out->axes));
    TSR_TRY(tsri_model_preset(options->model != NULL ? options->model : "llama-25m", &out->model));
    return TSR_OK;
}

tsr_status tsri_bench_step_check(const tsri_bench_step_options *options, int ranks)
{
    tsri_mesh_text mesh;
    tsri_job_options job_options;
    tsr_world *world = NULL;
    tsri_job *job = NULL;

    if (options->steps < 0 || options->steps > TSRI_BENCH_MAX_STEPS) {
        return TSR_RAISE(TSR_ERR_INVALID, "%d steps, wants 1 to %d", options->steps,
                         TSRI_BENCH_MAX_STEPS);
    }
    TSR_TRY(tsri_bench_step_job(options, ranks, &mesh, &job_options));
    TSR_TRY(tsri_job_dry_run(&job_options, 0, ranks, &world, &job));
    tsri_job_close(&job);
    tsr_world_close(&world);
    return TSR_OK;
}

/* ---- the ledger of one step ---- */

/* When operations of a stream ended; those of earlier steps are not kept, and are over. */
typedef struct stream_ends {
    const tsri_entry **entry; /* [count] in order of seq */
    int count;
} stream_ends;

static bool has_times(const tsri_entry *e)
{
    return (e->kind == TSRI_ENTRY_KERNEL || e->kind == TSRI_ENTRY_COLLECTIVE ||
            e->kind == TSRI_ENTRY_COPY) &&
           e->end_s > 0.0;
}

static double end_of(const stream_ends *ends, uint64_t seq)
{
    const uint64_t first = ends->count > 0 ? ends->entry[0]->seq : 0;

    return ends->count > 0 && seq >= first && seq - first < (uint64_t)ends->count
               ? ends->entry[seq - first]->end_s
               : 0.0;
}

static void note_kernel(tsri_bench_step_report *sum, const tsri_entry *e)
{
    const double s = e->end_s - e->begin_s;

    sum->kernels[e->op].s += s;
    sum->kernels[e->op].calls += 1.0;
    sum->kernel_s += s;
    sum->matmul_s += e->op == TSRK_MATMUL ? s : 0.0;
}

/* Add what the entries of a step that lasted from begin_s to end_s say. */
static void add_compute(const tsri_entry *entries, int count, const stream_ends *ends,
                        double begin_s, double end_s, tsri_bench_step_report *sum)
{
    double at = begin_s;

    for (int i = 0; i < count; i++) {
        const tsri_entry *e = &entries[i];

        if (e->stream != TSRI_STREAM_COMPUTE) {
            continue;
        }
        if (e->kind == TSRI_ENTRY_WAIT) {
            const double until = end_of(&ends[e->op], e->seq);

            sum->exposed_s[e->op] += until > at ? until - at : 0.0;
            at = until > at ? until : at;
        } else if (has_times(e)) {
            sum->other_s += e->begin_s > at ? e->begin_s - at : 0.0;
            at = e->end_s;
            if (e->kind == TSRI_ENTRY_KERNEL) {
                note_kernel(sum, e);
            } else if (e->kind == TSRI_ENTRY_COLLECTIVE) {
                sum->coll_s += e->end_s - e->begin_s;
            } else {
                sum->other_s += e->end_s - e->begin_s;
            }
        }
    }
    sum->other_s += end_s > at ? end_s - at : 0.0;
}

static tsr_status add_ledger(tsr_device *device, double begin_s, double end_s,
                             tsri_bench_step_report *sum)
{
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(device, &count);
    stream_ends ends[TSRI_STREAM_COUNT] = {{0}};
    const tsri_entry **pointers = NULL;

    TSR_TRY(tsri_alloc((size_t)count * TSRI_STREAM_COUNT, sizeof(tsri_entry *), &pointers));
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        ends[kind].entry = pointers + (ptrdiff_t)kind * count;
    }
    for (int i = 0; i < count; i++) {
        const tsri_entry *e = &entries[i];

        if (has_times(e)) {
            stream_ends *s = &ends[e->stream];

            s->entry[s->count++] = e;
            sum->busy_s[e->stream] += e->end_s - e->begin_s;
        }
    }
    add_compute(entries, count, ends, begin_s, end_s, sum);
    tsri_free(&pointers);
    return TSR_OK;
}

/* ---- measuring ---- */

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

/* All ranks multiply at once; the slowest counts, as in a step. */
static tsr_status measure_ceiling(step_bench *b)
{
    const int ranks = tsr_world_size(b->job->world);
    const int threads = tsri_comm_device(b->job->comm)->threads;
    bench_rate rate;
    double *rates = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)ranks, sizeof(*rates), &rates));
    for (int i = 0; i < CEILING_ROUNDS; i++) {
        TSR_TRY_GOTO(status, tsri_team_barrier(tsri_boot_job(), "measuring products"), out);
        TSR_TRY_GOTO(status, tsri_bench_matmul_run(&b->square, &rate), out);
        TSR_TRY_GOTO(status,
                     tsri_team_all_gather(tsri_boot_job(), "measuring products", TSR_OK, &rate.wall,
                                          sizeof(rate.wall), rates),
                     out);
        for (int r = 0; r < ranks; r++) {
            rate.wall = rates[r] < rate.wall ? rates[r] : rate.wall;
        }
        b->ceilings[b->ceiling_count] = rate.wall * ranks;
        b->cpu_ceilings[b->ceiling_count++] = rate.cpu / threads;
    }
out:
    tsri_free(&rates);
    return status;
}

static tsr_status fill_batch(tsri_job *job, int64_t step)
{
    const int64_t count = job->row_count * job->options.seq;
    const int64_t vocab = job->options.model.vocab;
    int32_t *ids = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)count + 1, sizeof(*ids), &ids));
    for (int64_t i = 0; i <= count; i++) {
        const int64_t key[2] = {step, job->row_begin * job->options.seq + i};

        ids[i] = (int32_t)(tsri_hash(key, sizeof(key), 0) % (uint64_t)vocab);
    }
    TSR_TRY_GOTO(status, tsri_job_write_batch(job, 0, ids, ids + 1), out);
out:
    tsri_free(&ids);
    return status;
}

static tsr_status run_timed_step(step_bench *b, int64_t step, bool measured)
{
    tsr_device *device = tsri_comm_device(b->job->comm);
    tsri_bench_step_report *sum = &b->sum;
    struct rusage before;
    struct rusage after;
    tsri_step_result result;

    TSR_TRY(fill_batch(b->job, step));
    tsri_recorder_clear(device);
    (void)getrusage(RUSAGE_SELF, &before);
    const double begin = tsri_now_s();
    TSR_TRY(tsri_job_step(b->job, step, LEARNING_RATE, 1.0, NULL, &result));
    const double end = tsri_now_s();
    (void)getrusage(RUSAGE_SELF, &after);
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        TSR_TRY(tsri_stream_sync(tsri_comm_stream(b->job->comm, (tsri_stream_kind)kind)));
    }
    if (!measured) {
        return TSR_OK;
    }
    b->steps[b->step_count++] = end - begin;
    sum->user_s += seconds(after.ru_utime) - seconds(before.ru_utime);
    sum->system_s += seconds(after.ru_stime) - seconds(before.ru_stime);
    sum->faults += (double)(after.ru_minflt - before.ru_minflt);
    sum->switches += (double)(after.ru_nvcsw - before.ru_nvcsw);
    TSR_TRY(add_ledger(device, begin, end, sum));
    return TSR_OK;
}

/* ---- the report ---- */

/* The numbers of the report that are means over ranks and steps, as one array. */
typedef struct mean_fields {
    double user_s, system_s, faults, switches, cpu_ceiling;
    double kernel_s, matmul_s, coll_s, other_s;
    double exposed_s[TSRI_STREAM_COUNT], busy_s[TSRI_STREAM_COUNT];
} mean_fields;

static void take_fields(const tsri_bench_step_report *from, mean_fields *to)
{
    *to = (mean_fields){.user_s = from->user_s,
                        .system_s = from->system_s,
                        .faults = from->faults,
                        .switches = from->switches,
                        .cpu_ceiling = from->cpu_ceiling,
                        .kernel_s = from->kernel_s,
                        .matmul_s = from->matmul_s,
                        .coll_s = from->coll_s,
                        .other_s = from->other_s};
    memcpy(to->exposed_s, from->exposed_s, sizeof(to->exposed_s));
    memcpy(to->busy_s, from->busy_s, sizeof(to->busy_s));
}

static void put_fields(const mean_fields *from, tsri_bench_step_report *to)
{
    to->user_s = from->user_s;
    to->system_s = from->system_s;
    to->faults = from->faults;
    to->switches = from->switches;
    to->cpu_ceiling = from->cpu_ceiling;
    to->kernel_s = from->kernel_s;
    to->matmul_s = from->matmul_s;
    to->coll_s = from->coll_s;
    to->other_s = from->other_s;
    memcpy(to->exposed_s, from->exposed_s, sizeof(to->exposed_s));
    memcpy(to->busy_s, from->busy_s, sizeof(to->busy_s));
}

static tsr_status average(tsr_world *world, int steps, tsri_bench_step_report *report)
{
    enum {
        FIELDS = (int)(sizeof(mean_fields) / sizeof(double))
    };
    const int ranks = tsr_world_size(world);
    mean_fields mine;
    mean_fields *all = NULL;
    double mean[FIELDS] = {0.0};
    tsr_status status = TSR_OK;

    take_fields(report, &mine);
    status = tsri_alloc((size_t)ranks, sizeof(*all), &all);
    TSR_TRY_GOTO(status,
                 tsri_team_all_gather(tsri_boot_job(), "comparing the ranks' times", status, &mine,
                                      sizeof(mine), all),
                 out);
    for (int r = 0; r < ranks; r++) {
        double one[FIELDS];

        memcpy(one, &all[r], sizeof(one));
        for (int i = 0; i < FIELDS; i++) {
            mean[i] += one[i] / ranks / steps;
        }
    }
    memcpy(&mine, mean, sizeof(mine));
    put_fields(&mine, report);
out:
    tsri_free(&all);
    return status;
}

static int by_time(const void *a, const void *b)
{
    const tsri_bench_kernel *x = a;
    const tsri_bench_kernel *y = b;

    return (x->s < y->s) - (x->s > y->s);
}

static void finish_kernels(tsri_bench_step_report *report, int steps)
{
    for (int i = 0; i < TSRK_COUNT; i++) {
        report->kernels[i].name = tsrk_name((tsrk_id)i);
        report->kernels[i].s /= steps;
        report->kernels[i].calls /= steps;
        report->kernel_count += report->kernels[i].calls > 0.0 ? 1 : 0;
    }
    qsort(report->kernels, TSRK_COUNT, sizeof(report->kernels[0]), by_time);
}

static tsr_status report_steps(step_bench *b, const tsri_bench_step_options *options,
                               tsri_bench_step_report *out)
{
    const tsri_job_options *o = &b->job->options;
    tsr_world *world = b->job->world;
    double tokens = 0.0;
    double times[2];

    *out = b->sum;
    out->model = options->model != NULL ? options->model : "llama-25m";
    out->preset = o->preset != NULL ? o->preset : TSRI_PRESET_DEFAULT;
    (void)tsr_mesh_format(b->job->mesh, out->mesh, sizeof(out->mesh));
    out->dtype = o->fsdp.param_dtype;
    out->ranks = tsr_world_size(world);
    out->threads = tsri_comm_device(b->job->comm)->threads;
    out->steps = b->step_count;
    out->params = tsri_model_param_count(&o->model);
    out->batch = o->batch;
    out->seq = o->seq;
    out->side = BENCH_SIDE;
    out->ceiling = tsri_bench_median(b->ceilings, b->ceiling_count);
    out->step_s = tsri_bench_median(b->steps, b->step_count);
    out->min_s = b->steps[0]; /* sorted now */
    times[0] = out->step_s;
    times[1] = out->min_s;
    TSR_TRY(tsri_team_broadcast(tsri_boot_job(), "sharing the step's times", TSR_OK, times,
                                sizeof(times), 0));
    out->step_s = times[0];
    out->min_s = times[1];
    tokens = (double)(o->batch * o->seq);
    out->tokens_per_s = tokens / out->step_s;
    out->rate = 6.0 * (double)out->params * tokens / out->step_s;
    finish_kernels(out, b->step_count);
    /* As a sum over steps, like the others. */
    out->cpu_ceiling = tsri_bench_median(b->cpu_ceilings, b->ceiling_count) * b->step_count;
    TSR_TRY(average(world, b->step_count, out));
    out->cpu_rate = 6.0 * (double)out->params * tokens / (out->user_s + out->system_s) / out->ranks;
    return TSR_OK;
}

static tsr_status measure_steps(step_bench *b, tsr_world *world,
                                const tsri_bench_step_options *options, tsri_bench_step_report *out)
{
    const int64_t cube[3] = {BENCH_SIDE, BENCH_SIDE, BENCH_SIDE};
    const int steps = options->steps > 0 ? options->steps : DEFAULT_STEPS;
    tsri_job_options job_options;

    TSR_TRY(tsri_bench_step_job(options, tsr_world_size(world), &b->mesh, &job_options));
    TSR_TRY(tsri_alloc((size_t)steps, sizeof(*b->steps), &b->steps));
    TSR_TRY(tsri_job_open(world, &job_options, &b->job));
    TSR_TRY(tsri_bench_matmul_open(b->job->comm, TSR_F32, cube, false, false, &b->square));
    TSR_TRY(measure_ceiling(b));
    for (int i = 0; i < WARMUP + steps; i++) {
        TSR_TRY(run_timed_step(b, i, i >= WARMUP));
    }
    TSR_TRY(measure_ceiling(b));
    TSR_TRY(report_steps(b, options, out));
    return TSR_OK;
}

tsr_status tsri_bench_step(tsr_world *world, const tsri_bench_step_options *options,
                           tsri_bench_step_report *out)
{
    step_bench *b = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*b), &b));
    status = tsri_world_settle(world, measure_steps(b, world, options, out));
    tsri_bench_matmul_close(&b->square);
    tsri_job_close(&b->job);
    tsri_free(&b->steps);
    tsri_free(&b);
    return status;
}
