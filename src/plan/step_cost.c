/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* plan.txt: memory, units and collectives of one step, as a dry run found them. */
#include "plan/step_cost.h"

#include "base/base.h"

#include <string.h>

enum {
    MANY_RANKS = 64,
    BYTES_TEXT = 32
};

/* ---- traffic ---- */

static tsri_traffic_row *find_row(tsri_traffic *traffic, const tsri_entry *entry)
{
    for (int i = 0; i < traffic->count; i++) {
        tsri_traffic_row *row = &traffic->rows[i];

        if ((int)row->kind == entry->op && strcmp(row->axes, entry->group) == 0) {
            return row;
        }
    }
    if (traffic->count == TSRI_TRAFFIC_MAX_ROWS) {
        return NULL;
    }
    tsri_traffic_row *row = &traffic->rows[traffic->count++];

    *row = (tsri_traffic_row){.kind = (tsri_coll_kind)entry->op};
    (void)snprintf(row->axes, sizeof(row->axes), "%s", entry->group);
    return row;
}

void tsri_traffic_count(const tsr_device *device, tsri_traffic *out)
{
    int count = 0;
    const tsri_entry *entries = tsri_recorder_entries(device, &count);

    out->count = 0;
    for (int i = 0; i < count; i++) {
        tsri_traffic_row *row = NULL;

        if (entries[i].kind != TSRI_ENTRY_COLLECTIVE) {
            continue;
        }
        row = find_row(out, &entries[i]);
        if (row != NULL) {
            row->calls++;
            row->bytes += (double)entries[i].bytes;
            row->sent += (double)entries[i].sent_bytes;
        }
    }
}

/* ---- memory ---- */

void tsri_rank_memory_of(const tsri_job *job, tsri_rank_memory *out)
{
    tsri_step_memory summary;

    tsri_job_summarize(job, &summary);
    for (int kind = 0; kind < TSRI_MEM_COUNT; kind++) {
        out->kind_most[kind] = summary.kind_most[kind];
    }
    out->fixed_bytes = summary.fixed_bytes;
    out->arena_bytes = summary.arena_bytes;
    out->total_bytes = summary.total_bytes;
}

static void write_rank(const tsri_rank_memory *ranks, int rank, FILE *stream)
{
    const tsri_rank_memory *r = &ranks[rank];

    (void)fprintf(
        stream, "  %6d %14llu %14llu %14llu %14llu %14llu\n", rank,
        (unsigned long long)r->kind_most[TSRI_MEM_PARAM],
        (unsigned long long)r->kind_most[TSRI_MEM_OPTIM], (unsigned long long)r->arena_bytes,
        (unsigned long long)r->kind_most[TSRI_MEM_GRAD], (unsigned long long)r->total_bytes);
}

void tsri_write_rank_memory(const tsri_rank_memory *ranks, int count, FILE *stream)
{
    int least = 0;
    int most = 0;

    for (int i = 0; i < count; i++) {
        least = ranks[i].total_bytes < ranks[least].total_bytes ? i : least;
        most = ranks[i].total_bytes > ranks[most].total_bytes ? i : most;
    }
    (void)fprintf(stream, "\nmemory of the ranks, bytes\n  %6s %14s %14s %14s %14s %14s\n", "rank",
                  "parameters", "optimizer", "step arena", "of it grads", "total");
    if (count > MANY_RANKS) {
        write_rank(ranks, least, stream);
        write_rank(ranks, most, stream);
        (void)fprintf(stream, "  of %d ranks these have the least and the most\n", count);
        return;
    }
    for (int i = 0; i < count; i++) {
        write_rank(ranks, i, stream);
    }
}

/* ---- the page ---- */

static void write_row(FILE *stream, const char *name, size_t bytes)
{
    char text[BYTES_TEXT];

    (void)fprintf(stream, "  %-22s %14zu  %10s\n", name, bytes,
                  tsri_format_bytes((double)bytes, text, sizeof(text)));
}

/* The host pool, where anything lies in it. */
static void write_host(const tsr_device *device, FILE *stream)
{
    if (device->host_peak == 0) {
        return;
    }
    (void)fprintf(stream, "in host memory, bytes\n");
    for (int kind = 0; kind < TSRI_MEM_COUNT; kind++) {
        if (device->host_kind[kind] > 0) {
            write_row(stream, tsri_mem_name((tsri_mem_kind)kind), device->host_kind[kind]);
        }
    }
    write_row(stream, "most at once", device->host_peak);
}

static void write_memory(const tsri_job *job, FILE *stream)
{
    tsri_step_memory s;
    size_t live = 0;

    tsri_job_summarize(job, &s);
    (void)fprintf(
        stream, "\nmemory of rank %d at the step's peak (\"%s\"), bytes; last, the most of each\n",
        tsr_comm_rank(job->comm), s.peak_label != NULL ? s.peak_label : "");
    for (int kind = 0; kind < TSRI_MEM_COUNT; kind++) {
        char at_peak[BYTES_TEXT];
        char most[BYTES_TEXT];

        (void)fprintf(stream, "  %-22s %14zu  %10s  %10s\n", tsri_mem_name((tsri_mem_kind)kind),
                      s.kind_bytes[kind],
                      tsri_format_bytes((double)s.kind_bytes[kind], at_peak, sizeof(at_peak)),
                      tsri_format_bytes((double)s.kind_most[kind], most, sizeof(most)));
        live += s.kind_bytes[kind];
    }
    write_row(stream, "live at the peak", live);
    (void)fprintf(stream, "planned, bytes\n");
    write_row(stream, "at rest", s.fixed_bytes);
    write_row(stream, "step arena", s.arena_bytes);
    write_row(stream, "total", s.total_bytes);
    write_host(tsri_comm_device(job->comm), stream);
}

static tsr_status write_units(const tsri_job *job, FILE *stream)
{
    const int count = tsr_fsdp_units(job->model, NULL, 0);
    tsr_unit_info *units = NULL;

    TSR_TRY(tsri_alloc((size_t)count, sizeof(*units), &units));
    (void)tsr_fsdp_units(job->model, units, count);
    (void)fprintf(stream, "\nunits\n  %-16s %10s %14s %14s %14s\n", "path", "parameters",
                  "elements", "bytes at rest", "gathered");
    for (int i = 0; i < count; i++) {
        const tsr_unit_info *u = &units[i];

        (void)fprintf(stream, "  %-16s %10d %14lld %14zu %14zu\n",
                      u->path[0] != '\0' ? u->path : "(root)", u->param_count,
                      (long long)u->element_count, u->shard_bytes, u->gathered_bytes);
    }
    tsri_free(&units);
    return TSR_OK;
}

static tsr_status write_traffic(const tsri_job *job, FILE *stream)
{
    tsri_traffic *traffic = NULL;

    TSR_TRY(tsri_alloc(1, sizeof(*traffic), &traffic));
    tsri_traffic_count(tsri_comm_device(job->comm), traffic);
    (void)fprintf(stream, "\ncollectives of a step, rank %d\n  %-18s %-15s %7s %16s %16s\n",
                  tsr_comm_rank(job->comm), "axes", "operation", "calls", "bytes", "bytes sent");
    for (int i = 0; i < traffic->count; i++) {
        const tsri_traffic_row *row = &traffic->rows[i];

        (void)fprintf(stream, "  %-18s %-15s %7lld %16.0f %16.0f\n", row->axes,
                      tsri_coll_name(row->kind), (long long)row->calls, row->bytes, row->sent);
    }
    if (traffic->count == 0) {
        (void)fprintf(stream, "  none\n");
    }
    tsri_free(&traffic);
    return TSR_OK;
}

static const char *dtype_name(tsr_dtype dtype)
{
    return tsr_dtype_name(dtype == TSR_DTYPE_DEFAULT ? TSR_F32 : dtype);
}

tsr_status tsri_write_plan(const tsri_job *job, FILE *stream)
{
    const tsri_job_options *o = &job->options;
    char mesh[192];

    (void)fprintf(stream,
                  "A step of this run, from a dry run of its schedule.\n\n"
                  "model   %s, %lld parameters\n"
                  "mesh    %s\n"
                  "preset  %s; parameters gathered in %s, gradients reduced in %s\n"
                  "step    %d x %lld sequences of %lld tokens\n",
                  tsri_model_arch_name(&o->model), (long long)tsri_model_param_count(&o->model),
                  tsr_mesh_format(job->mesh, mesh, sizeof(mesh)), tsri_job_preset(o),
                  dtype_name(o->fsdp.param_dtype), dtype_name(o->fsdp.reduce_dtype),
                  o->micro_batches, (long long)o->batch, (long long)o->seq);
    write_memory(job, stream);
    TSR_TRY(write_units(job, stream));
    TSR_TRY(write_traffic(job, stream));
    (void)fprintf(stream, "\n");
    TSR_TRY(tsr_plan_print(job->model, job->tape, stream));
    return TSR_OK;
}
