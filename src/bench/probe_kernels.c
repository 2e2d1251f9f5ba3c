/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file probe_kernels.c
 * Rates of kernels, from the ledger of a small job's steps.
 *
 * The job has the model's widths and a rank's share of the batch, of heads, ffn and vocabulary, but
 * few layers, and a world of its own. Per kernel a rate is all of its bytes (or flops) by all of
 * its seconds, so that calls count by what they take. What lies between two kernels of the compute
 * stream is the host's work for a kernel; its mean is the launch time, and then the kernels of a
 * step add up to the step.
 */
#include "bench/bench_priv.h"
#include "probe_priv.h"

#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <string.h>

#include "plan/host_memory.h"

enum {
    MOST_LAYERS = 2,
    LEAST_STEPS = 3,
    MOST_STEPS = 15,
    COPY_ROUNDS = 5
};

static const double least_bytes = 128 << 10; /* a call's, for a rate: some 10 us */
static const size_t copy_bytes = (size_t)8 << 20;

/* What a step says. Doubles alone: it is exchanged as such. */
typedef struct step_figures {
    double kernel_s[TSRK_COUNT];
    double gap_s; /* between operations of the compute stream, all of them */
    double step_s;
} step_figures;

enum {
    FIGURES = (int)(sizeof(step_figures) / sizeof(double))
};

typedef struct kernel_probe {
    tsr_world *world, *alone;
    tsri_job *job;
    step_figures *steps; /* [MOST_STEPS] */
    double bytes[TSRK_COUNT], flops[TSRK_COUNT], calls[TSRK_COUNT];
    double operations;  /* of the compute stream in a step */
    double block_count; /* of the model, for one of the small job's */
    double copy_rate;
} kernel_probe;

int tsri_probe_threads(const tsr_world *world, const tsri_job_options *job)
{
    const int local = tsr_world_size(world) > 1 ? tsri_boot_get_info()->local_size : 1;

    return job->dry_threads > 0 ? job->dry_threads : tsri_cpu_default_threads(local);
}

/* ---- the small job ---- */

static int axis_size(const tsri_job_options *o, const char *name)
{
    for (int i = 0; i < o->axis_count; i++) {
        if (strcmp(o->axes[i].name, name) == 0) {
            return o->axes[i].size;
        }
    }
    return 1;
}

static int64_t share_of(int64_t whole, int ranks)
{
    return whole > ranks ? tsri_ceil_div(whole, ranks) : 1;
}

/* Heads that are as wide as dim says stay. */
static void shrink_model(tsri_model_spec *spec, int tp)
{
    spec->layers = spec->layers < MOST_LAYERS ? spec->layers : MOST_LAYERS;
    spec->ffn = share_of(spec->ffn, tp);
    spec->vocab = share_of(spec->vocab, tp);
    if (tsri_model_has(spec, TSRI_SIZE_HEAD_DIM)) {
        spec->head_dim = tsri_model_head_dim(spec);
        spec->kv_heads = (int)share_of(tsri_model_kv_heads(spec), tp);
        spec->heads = (int)share_of(spec->heads, tp);
    }
}

static void shrink(const tsri_job_options *job, int ranks, int threads, tsri_job_options *out)
{
    const int tp = job->no_tp ? 1 : axis_size(job, job->tp_axis != NULL ? job->tp_axis : "tp");

    *out = *job;
    shrink_model(&out->model, tp);
    out->batch = share_of(job->batch, ranks / tp);
    out->micro_batches = job->micro_batches > 1 ? 2 : 1; /* the second one adds to gradients */
    out->axis_count = 1;
    out->axes[0] = (tsr_mesh_axis){"shard", 1};
    out->data_axis_count = 0;
    out->tp_axis = NULL;
    out->sequence_parallel = false;
    out->fsdp.offload_params = false;
    out->fsdp.offload_grads = false;
    out->optim.offload = false;
    out->recompute.offload = false;
    out->dry_threads = threads;
    out->comm.record = true;
}

/* Local. Does this host hold the small jobs of its ranks? */
static tsr_status check_memory(const tsri_job_options *options)
{
    tsr_world *world = NULL;
    tsri_job *dry = NULL;
    tsri_step_memory need;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_job_dry_run(options, 0, 1, &world, &dry));
    tsri_job_summarize(dry, &need);
    tsri_job_close(&dry);
    tsr_world_close(&world);
    status = tsri_host_memory_check(need.total_bytes, tsri_boot_get_info()->local_size);
    if (status == TSR_ERR_NOMEM) {
        return TSR_RAISE(TSR_ERR_NOMEM,
                         "measuring kernels of this model's width, with %d layers on each rank: %s",
                         options->model.layers, tsr_error_message());
    }
    TSR_TRY(status);
    return TSR_OK;
}

static tsr_status write_ids(tsri_job *job)
{
    const int64_t count = job->row_count * job->options.seq;
    const uint64_t vocab = (uint64_t)job->options.model.vocab;
    int32_t *ids = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)count + 1, sizeof(*ids), &ids));
    for (int64_t i = 0; i <= count; i++) {
        ids[i] = (int32_t)(tsri_hash(&i, sizeof(i), 0) % vocab);
    }
    for (int micro = 0; micro < job->options.micro_batches; micro++) {
        TSR_TRY_GOTO(status, tsri_job_write_batch(job, micro, ids, ids + 1), out);
    }
out:
    tsri_free(&ids);
    return status;
}

static tsr_status open_small_job(kernel_probe *p, const tsri_job_options *options)
{
    TSR_TRY(check_memory(options));
    TSR_TRY(tsri_world_open_alone(p->world, options->dry_threads, &p->alone));
    TSR_TRY(tsri_job_open(p->alone, options, &p->job));
    TSR_TRY(write_ids(p->job));
    return TSR_OK;
}

/* ---- a step ---- */

static bool on_compute(const tsri_entry *e)
{
    return e->stream == TSRI_STREAM_COMPUTE && e->end_s > 0.0 &&
           (e->kind == TSRI_ENTRY_KERNEL || e->kind == TSRI_ENTRY_COPY);
}

static bool in_block(const tsri_entry *e)
{
    return e->label != NULL && strncmp(e->label, "layers.", strlen("layers.")) == 0;
}

/* A gap with a wait in it is not the host's. */
static void read_ledger(kernel_probe *p, double begin_s, double end_s, step_figures *out)
{
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(p->job->comm), &count);
    double at = begin_s;
    bool waited = false;

    memset(p->bytes, 0, sizeof(p->bytes));
    memset(p->flops, 0, sizeof(p->flops));
    memset(p->calls, 0, sizeof(p->calls));
    p->operations = 0.0;
    for (int i = 0; i < count; i++) {
        const tsri_entry *e = &entries[i];

        if (e->kind == TSRI_ENTRY_KERNEL && e->end_s > 0.0) {
            const double times = in_block(e) ? p->block_count : 1.0;

            p->bytes[e->op] += times * (double)e->bytes;
            p->flops[e->op] += times * e->flops;
            p->calls[e->op] += times;
            out->kernel_s[e->op] += times * (e->end_s - e->begin_s);
        }
        waited = waited || (e->kind == TSRI_ENTRY_WAIT && e->stream == TSRI_STREAM_COMPUTE);
        if (on_compute(e)) {
            out->gap_s += waited ? 0.0 : e->begin_s - at;
            out->gap_s += e->kind == TSRI_ENTRY_COPY ? e->end_s - e->begin_s : 0.0;
            at = e->end_s;
            waited = false;
            p->operations += 1.0;
        }
    }
    out->gap_s += end_s - at;
    out->step_s = end_s - begin_s;
}

static tsr_status run_small_step(kernel_probe *p, int64_t step, step_figures *out)
{
    tsri_step_result result;

    *out = (step_figures){0};
    if (tsr_world_size(p->world) > 1) {
        TSR_TRY(tsri_team_barrier(tsri_boot_job(), "measuring kernels"));
    }
    tsri_recorder_clear(tsri_comm_device(p->job->comm));
    const double begin = tsri_now_s();
    TSR_TRY(tsri_job_step(p->job, step, 1e-6, 1.0, NULL, &result));
    const double end = tsri_now_s();

    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        TSR_TRY(tsri_stream_sync(tsri_comm_stream(p->job->comm, (tsri_stream_kind)kind)));
    }
    read_ledger(p, begin, end, out);
    return TSR_OK;
}

/* values[count] of every rank become their means. */
static tsr_status average(const tsr_world *world, double *values, int count)
{
    const int ranks = tsr_world_size(world);
    double *all = NULL;
    tsr_status status = TSR_OK;

    if (ranks == 1) {
        return TSR_OK;
    }
    status = tsri_alloc((size_t)ranks * (size_t)count, sizeof(*all), &all);
    TSR_TRY_GOTO(status,
                 tsri_team_all_gather(tsri_boot_job(), "comparing the kernels' times", status,
                                      values, sizeof(*values) * (size_t)count, all),
                 out);
    memset(values, 0, sizeof(*values) * (size_t)count);
    for (int i = 0; i < ranks * count; i++) {
        values[i % count] += all[i] / ranks;
    }
out:
    tsri_free(&all);
    return status;
}

/* values[count] of every rank become those of the slowest host: ranks of a host share its cores, so
 * one is late where another was early, but hosts wait for each other. */
static tsr_status take_slowest_host(const tsr_world *world, double *values, int count)
{
    const int ranks = tsr_world_size(world);
    const int *nodes = tsri_world_nodes(world);
    double *all = NULL;
    tsr_status status = TSR_OK;

    if (ranks == 1) {
        return TSR_OK;
    }
    status = tsri_alloc((size_t)ranks * (size_t)count, sizeof(*all), &all);
    TSR_TRY_GOTO(status,
                 tsri_team_all_gather(tsri_boot_job(), "comparing the kernels' times", status,
                                      values, sizeof(*values) * (size_t)count, all),
                 out);
    memset(values, 0, sizeof(*values) * (size_t)count);
    for (int i = 0; i < ranks * count; i++) { /* rank i / count stands for its host */
        double sum = 0.0;
        int members = 0;

        for (int r = 0; r < ranks; r++) {
            const bool same = nodes[r] == nodes[i / count];

            sum += same ? all[r * count + i % count] : 0.0;
            members += same ? 1 : 0;
        }
        values[i % count] = sum / members > values[i % count] ? sum / members : values[i % count];
    }
out:
    tsri_free(&all);
    return status;
}

/* Mean of steps and ranks, as a whole stretched to the median step of the slowest host: preemptions
 * hit now this kernel, now that, and medians of each would leave them out. */
static tsr_status sum_up(const kernel_probe *p, int steps, step_figures *out)
{
    double mean[FIGURES] = {0.0};
    double last[MOST_STEPS];

    for (int i = 0; i < steps; i++) {
        double one[FIGURES];

        memcpy(one, &p->steps[i], sizeof(one));
        for (int f = 0; f < FIGURES; f++) {
            mean[f] += one[f] / steps;
        }
        last[i] = p->steps[i].step_s;
    }
    TSR_TRY(average(p->world, mean, FIGURES));
    TSR_TRY(take_slowest_host(p->world, last, steps));
    memcpy(out, mean, sizeof(*out));
    const double stretch = tsri_bench_median(last, steps) / out->step_s;

    for (int f = 0; f < FIGURES; f++) {
        mean[f] *= stretch;
    }
    memcpy(out, mean, sizeof(*out));
    return TSR_OK;
}

static tsr_status run_small_steps(kernel_probe *p, double seconds, step_figures *out,
                                  int *steps_out)
{
    step_figures first;
    int steps = LEAST_STEPS;

    /* The first step records its memory, the second plans it. */
    TSR_TRY(run_small_step(p, 0, &first));
    TSR_TRY(run_small_step(p, 1, &first));
    TSR_TRY(average(p->world, &first.step_s, 1));
    while (steps < MOST_STEPS && (steps + 1) * first.step_s < seconds) {
        steps++;
    }
    for (int i = 0; i < steps; i++) {
        TSR_TRY(run_small_step(p, 2 + i, &p->steps[i]));
    }
    TSR_TRY(sum_up(p, steps, out));
    *steps_out = steps;
    return TSR_OK;
}

static tsr_status time_copies(kernel_probe *p)
{
    tsr_stream *stream = tsri_comm_stream(p->job->comm, TSRI_STREAM_COPY);
    tsr_buffer *buffer = NULL;
    void *host = NULL;
    double rates[COPY_ROUNDS];
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(copy_bytes, 1, &host));
    TSR_TRY_GOTO(status,
                 tsri_comm_buffer(p->job->comm, copy_bytes, TSRI_MEM_OTHER, "probe", &buffer),
                 free_host);
    for (int i = 0; i < COPY_ROUNDS; i++) {
        const double begin = tsri_now_s();

        TSR_TRY_GOTO(status, tsri_write(buffer, 0, host, copy_bytes, stream), release);
        TSR_TRY_GOTO(status, tsri_read(buffer, 0, host, copy_bytes, stream), release);
        rates[i] = 2.0 * (double)copy_bytes / (tsri_now_s() - begin);
    }
    p->copy_rate = tsri_bench_median(rates, COPY_ROUNDS);
release:
    tsri_buffer_release(&buffer);
free_host:
    tsri_free(&host);
    return status;
}

/* ---- rates ---- */

/* Whether calls of a kernel are so short that its launch is what they take. */
static bool is_short(const kernel_probe *p, int id)
{
    return p->flops[id] <= 0.0 && p->bytes[id] < p->calls[id] * least_bytes;
}

/* Seconds beyond the bytes of short kernels belong to their launch, and so to everyone's. */
static double launch_s(const kernel_probe *p, const step_figures *mean, double bytes_per_s)
{
    double short_s = 0.0;
    double calls = 0.0;

    for (int id = 0; id < TSRK_COUNT; id++) {
        const double beyond = mean->kernel_s[id] - (p->bytes[id] / bytes_per_s);

        calls += p->calls[id];
        short_s += is_short(p, id) && beyond > 0.0 ? beyond : 0.0;
    }
    return (p->operations > 0.0 ? mean->gap_s / p->operations : 0.0) +
           (calls > 0.0 ? short_s / calls : 0.0);
}

static void fill_machine(const kernel_probe *p, const step_figures *mean, tsri_probe_report *out)
{
    tsri_machine *m = &out->machine;
    double moved = 0.0;
    double moving_s = 0.0;

    for (int id = 0; id < TSRK_COUNT; id++) {
        const double work = p->flops[id] > 0.0 ? p->flops[id] : p->bytes[id];

        out->kernel_s[id] = mean->kernel_s[id];
        out->kernel_calls[id] = p->calls[id];
        if (mean->kernel_s[id] <= 0.0 || work <= 0.0 || is_short(p, id)) {
            continue;
        }
        m->kernel_rate[id] = work / mean->kernel_s[id];
        moved += p->flops[id] > 0.0 ? 0.0 : p->bytes[id];
        moving_s += p->flops[id] > 0.0 ? 0.0 : mean->kernel_s[id];
    }
    m->bytes_per_s = moving_s > 0.0 ? moved / moving_s : p->copy_rate;
    m->flops[TSRI_MACHINE_F32] = m->kernel_rate[TSRK_MATMUL];
    m->flops[TSRI_MACHINE_HALF] = m->kernel_rate[TSRK_MATMUL];
    m->launch_s = launch_s(p, mean, m->bytes_per_s);
    m->host_bytes_per_s = p->copy_rate;
}

static tsr_status measure_kernels(kernel_probe *p, const tsri_job_options *options, double seconds,
                                  tsri_probe_report *out)
{
    step_figures mean = {0};

    TSR_TRY(tsr_world_agree(p->world, open_small_job(p, options)));
    TSR_TRY(tsri_alloc(MOST_STEPS, sizeof(*p->steps), &p->steps));
    TSR_TRY(run_small_steps(p, seconds, &mean, &out->steps));
    TSR_TRY(time_copies(p));
    TSR_TRY(average(p->world, &p->copy_rate, 1));
    fill_machine(p, &mean, out);
    out->step_s = mean.step_s;
    return TSR_OK;
}

tsr_status tsri_probe_kernels(tsr_world *world, const tsri_job_options *job, double seconds,
                              tsri_probe_report *out)
{
    kernel_probe p = {.world = world};
    tsri_job_options options;

    out->threads = tsri_probe_threads(world, job);
    shrink(job, tsr_world_size(world), out->threads, &options);
    out->layers = options.model.layers;
    p.block_count = (double)job->model.layers / out->layers;
    out->rows = options.batch;
    out->seq = options.seq;
    const tsr_status status = measure_kernels(&p, &options, seconds, out);

    tsri_free(&p.steps);
    tsri_job_close(&p.job);
    tsr_world_close(&p.alone);
    TSR_TRY(status);
    return TSR_OK;
}
