/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reports of `tessera bench` as JSON: seconds, bytes, bytes per second, flops per second. What was
 * not measured has no key. */
#include "base/base.h"
#include "base/json.h"

#include <stdio.h>

#include "cli/bench_print.h"

static tsr_status print_tree(json_t *tree)
{
    if (tree == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the report");
    }
    (void)json_dumpf(tree, stdout, JSON_INDENT(2));
    (void)printf("\n");
    json_decref(tree);
    return TSR_OK;
}

static json_t *ceiling_json(const tsri_bench_ceiling *c)
{
    json_t *tree = json_pack("{s:s, s:f, s:I}", "dtype", tsr_dtype_name(c->dtype),
                             "square_flops_per_s", c->square, "side", (json_int_t)c->side);

    if (c->instructions != NULL) {
        (void)json_object_set_new(tree, "register_flops_per_s", json_real(c->peak));
        (void)json_object_set_new(tree, "square_of_registers", json_real(c->square_of_peak));
        (void)json_object_set_new(tree, "instructions", json_string(c->instructions));
    }
    return tree;
}

/* Of those that this machine has. */
static json_t *libraries_json(const tsri_bench_gemm_report *report, const tsri_bench_gemm_row *row)
{
    json_t *list = json_array();

    for (int i = 0; i < TSRI_BENCH_LIBRARIES; i++) {
        if (row->library[i].rate > 0.0) {
            (void)json_array_append_new(list, json_pack("{s:s, s:f, s:f}", "library",
                                                        report->library_name[i], "flops_per_s",
                                                        row->library[i].rate, "ours_by_it",
                                                        row->library[i].ours));
        }
    }
    return list;
}

tsr_status tsri_bench_json_gemm(const tsri_bench_gemm_report *report)
{
    json_t *ceilings = json_array();
    json_t *rows = json_array();

    for (int i = 0; i < report->ceiling_count; i++) {
        (void)json_array_append_new(ceilings, ceiling_json(&report->ceiling[i]));
    }
    for (int i = 0; i < report->row_count; i++) {
        const tsri_bench_gemm_row *row = &report->rows[i];
        json_t *one = json_pack(
            "{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f}", "weights", row->weights, "pass", row->pass,
            "dtype", tsr_dtype_name(row->dtype), "m", (json_int_t)row->m, "n", (json_int_t)row->n,
            "k", (json_int_t)row->k, "flops_per_s", row->rate, "of_square", row->of_square);

        if (report->ceiling[row->dtype == TSR_F32 ? 0 : 1].instructions != NULL) {
            (void)json_object_set_new(one, "of_registers", json_real(row->of_peak));
        }
        if (row->best >= 0) {
            (void)json_object_set_new(one, "libraries", libraries_json(report, row));
            (void)json_object_set_new(one, "best", json_string(report->library_name[row->best]));
            (void)json_object_set_new(one, "ours_by_best", json_real(row->library[row->best].ours));
        }
        (void)json_array_append_new(rows, one);
    }
    TSR_TRY(print_tree(json_pack("{s:s, s:I, s:i, s:o, s:o}", "model", report->model, "tokens",
                                 (json_int_t)report->tokens, "threads", report->threads, "ceilings",
                                 ceilings, "products", rows)));
    return TSR_OK;
}

static json_t *side_json(const tsri_bench_coll_side *side)
{
    return json_pack("{s:f, s:f, s:f}", "s", side->s, "algorithm_bytes_per_s", side->algorithm,
                     "bus_bytes_per_s", side->bus);
}

tsr_status tsri_bench_json_coll(const tsri_bench_coll_report *report)
{
    json_t *rows = json_array();

    for (int i = 0; i < report->row_count; i++) {
        const tsri_bench_coll_row *row = &report->rows[i];

        (void)json_array_append_new(
            rows,
            json_pack("{s:s, s:I, s:o, s:o, s:f, s:f}", "collective", tsri_coll_name(row->kind),
                      "bytes", (json_int_t)row->bytes, "ours", side_json(&row->ours), "mpi",
                      side_json(&row->mpi), "mpi_by_ours", row->speedup, "of_copy", row->of_copy));
    }
    TSR_TRY(print_tree(json_pack("{s:i, s:f, s:f, s:o}", "ranks", report->ranks,
                                 "copy_one_bytes_per_s", report->copy_one, "copy_all_bytes_per_s",
                                 report->copy_all, "collectives", rows)));
    return TSR_OK;
}

static json_t *streams_json(const double *seconds)
{
    json_t *tree = json_object();

    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        if (seconds[kind] > 0.0) {
            (void)json_object_set_new(tree, tsri_stream_name((tsri_stream_kind)kind),
                                      json_real(seconds[kind]));
        }
    }
    return tree;
}

static json_t *kernels_json(const tsri_bench_step_report *r)
{
    json_t *list = json_array();

    for (int i = 0; i < r->kernel_count; i++) {
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:f, s:f}", "kernel", r->kernels[i].name,
                                              "calls", r->kernels[i].calls, "s", r->kernels[i].s));
    }
    return list;
}

tsr_status tsri_bench_json_step(const tsri_bench_step_report *r)
{
    json_t *tree =
        json_pack("{s:s, s:I, s:s, s:s, s:s, s:i, s:i, s:i, s:I, s:I}", "model", r->model,
                  "parameters", (json_int_t)r->params, "dtype", tsr_dtype_name(r->dtype), "mesh",
                  r->mesh, "parallel", r->preset, "ranks", r->ranks, "threads", r->threads, "steps",
                  r->steps, "batch", (json_int_t)r->batch, "seq", (json_int_t)r->seq);
    json_t *figures = json_pack(
        "{s:f, s:f, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "step_s", r->step_s, "min_step_s",
        r->min_s, "tokens_per_s", r->tokens_per_s, "flops_per_s_6n", r->rate, "ceiling_flops_per_s",
        r->ceiling, "ceiling_side", (json_int_t)r->side, "of_ceiling", r->rate / r->ceiling,
        "flops_per_cpu_s_6n", r->cpu_rate, "ceiling_flops_per_cpu_s", r->cpu_ceiling);
    json_t *times = json_pack(
        "{s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:f, s:f, s:f}", "kernels_s", r->kernel_s, "matmul_s",
        r->matmul_s, "compute_collectives_s", r->coll_s, "other_s", r->other_s, "exposed_s",
        streams_json(r->exposed_s), "busy_s", streams_json(r->busy_s), "user_s", r->user_s,
        "system_s", r->system_s, "page_faults", r->faults, "sleeps", r->switches);

    (void)json_object_update(tree, figures);
    json_decref(figures);
    (void)json_object_set_new(tree, "time", times);
    (void)json_object_set_new(tree, "kernels", kernels_json(r));
    TSR_TRY(print_tree(tree));
    return TSR_OK;
}

static json_t *machine_json(const tsri_machine *m)
{
    json_t *kernels = json_object();
    json_t *links = json_array();

    for (int id = 0; id < TSRK_COUNT; id++) {
        if (m->kernel_rate[id] > 0.0) {
            (void)json_object_set_new(kernels, tsrk_name((tsrk_id)id),
                                      json_real(m->kernel_rate[id]));
        }
    }
    for (int i = 0; i < m->tier_count; i++) {
        (void)json_array_append_new(
            links, json_pack("{s:s, s:i, s:f, s:f, s:f}", "name", m->tiers[i].name, "ranks",
                             m->tiers[i].span, "bytes_per_s", m->tiers[i].bytes_per_s, "hop_s",
                             m->tiers[i].hop_s, "busy_s", m->tiers[i].busy_s));
    }
    return json_pack("{s:o, s:o, s:f, s:f, s:f, s:f}", "kernels_per_s", kernels, "links", links,
                     "launch_s", m->launch_s, "collective_s", m->call_s, "host_bytes_per_s",
                     m->host_bytes_per_s, "memory_bytes", m->memory_bytes);
}

tsr_status tsri_bench_json_probe(const tsri_bench_probe_report *r)
{
    char hash[17];

    (void)snprintf(hash, sizeof(hash), "%016llx", (unsigned long long)r->hash);
    TSR_TRY(print_tree(json_pack("{s:i, s:i, s:i, s:o, s:o, s:f, s:s, s:s, s:s}", "ranks",
                                 r->first.ranks, "threads", r->first.threads, "hosts",
                                 r->first.hosts, "first", machine_json(&r->first.machine), "again",
                                 machine_json(&r->second.machine), "apart", r->factor, "apart_in",
                                 r->apart, "hash", hash, "cluster_file", r->text)));
    return TSR_OK;
}
