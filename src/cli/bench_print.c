/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reports of `tessera bench` for people. Shares are percentages of what is measured beside. */
#include "cli/bench_print.h"

#include "base/base.h"

#include <stdio.h>
#include <string.h>

#define GIGA 1e9

static void print_share(double share, bool known)
{
    if (known) {
        (void)printf("  %6.1f %%", 100.0 * share);
    } else {
        (void)printf("  %8s", "-");
    }
}

/* Whose own calls are measured beside ours. */
static void print_libraries(const tsri_bench_gemm_report *report)
{
    (void)printf("\nlibraries in f32:");
    for (int i = 0; i < TSRI_BENCH_LIBRARIES; i++) {
        (void)printf("%s %s%s", i > 0 ? "," : "", report->library_name[i],
                     report->library_found[i] ? "" : " not installed");
    }
    (void)printf("; ours by the best of them %s\n",
                 report->threads == 1 ? "by processor time" : "on the wall's clock");
}

tsr_status tsri_bench_print_gemm(const tsri_bench_gemm_report *report)
{
    (void)printf("matrix products of %s, %lld tokens, %d thread%s; shares by processor time\n\n",
                 report->model, (long long)report->tokens, report->threads,
                 report->threads == 1 ? "" : "s");
    (void)printf("%-6s %-22s %10s\n", "dtype", "ceiling", "GFLOP/s");
    for (int i = 0; i < report->ceiling_count; i++) {
        const tsri_bench_ceiling *c = &report->ceiling[i];

        if (c->instructions != NULL) {
            (void)printf("%-6s registers (%s)%*s %10.1f\n", tsr_dtype_name(c->dtype),
                         c->instructions, (int)(10 - strlen(c->instructions)), "", c->peak / GIGA);
        }
        (void)printf("%-6s square %-15lld %10.1f", tsr_dtype_name(c->dtype), (long long)c->side,
                     c->square / GIGA);
        if (c->instructions != NULL) {
            print_share(c->square_of_peak, true);
            (void)printf(" of registers");
        }
        (void)printf("\n");
    }
    print_libraries(report);
    (void)printf("\n%-12s %-8s %-6s %6s %6s %6s %9s  %9s  %9s %-8s  %8s\n", "weight", "pass",
                 "dtype", "m", "n", "k", "GFLOP/s", "registers", "best", "", "ours/best");
    for (int i = 0; i < report->row_count; i++) {
        const tsri_bench_gemm_row *row = &report->rows[i];
        const tsri_bench_ceiling *c = &report->ceiling[row->dtype == TSR_F32 ? 0 : 1];

        (void)printf("%-12s %-8s %-6s %6lld %6lld %6lld %9.1f ", row->weights, row->pass,
                     tsr_dtype_name(row->dtype), (long long)row->m, (long long)row->n,
                     (long long)row->k, row->rate / GIGA);
        print_share(row->of_peak, c->instructions != NULL);
        if (row->best >= 0) {
            (void)printf("  %9.1f %-8s  %9.2f\n", row->library[row->best].rate / GIGA,
                         report->library_name[row->best], row->library[row->best].ours);
        } else {
            (void)printf("  %9s %-8s  %9s\n", "-", "", "-");
        }
    }
    return TSR_OK;
}

tsr_status tsri_bench_print_coll(const tsri_bench_coll_report *report)
{
    char text[32];

    (void)printf("collectives over %d ranks, f32 sums; GB/s\n\n", report->ranks);
    (void)printf("copy, one rank      %8.2f\n", report->copy_one / GIGA);
    (void)printf("copy, each of all   %8.2f\n\n", report->copy_all / GIGA);
    (void)printf("%-15s %11s  %10s %8s %8s  %10s %8s %8s  %8s  %8s\n", "collective", "bytes",
                 "ours us", "algo", "bus", "mpi us", "algo", "bus", "mpi/ours", "of copy");
    for (int i = 0; i < report->row_count; i++) {
        const tsri_bench_coll_row *row = &report->rows[i];

        (void)printf("%-15s %11s  %10.1f %8.3f %8.3f  %10.1f %8.3f %8.3f  %8.2f",
                     tsri_coll_name(row->kind),
                     tsri_format_bytes((double)row->bytes, text, sizeof(text)), 1e6 * row->ours.s,
                     row->ours.algorithm / GIGA, row->ours.bus / GIGA, 1e6 * row->mpi.s,
                     row->mpi.algorithm / GIGA, row->mpi.bus / GIGA, row->speedup);
        print_share(row->of_copy, true);
        (void)printf("\n");
    }
    return TSR_OK;
}

static void print_time(const char *name, double s, double step_s)
{
    if (s > 0.0) {
        (void)printf("  %-28s %9.2f ms", name, 1e3 * s);
        print_share(s / step_s, true);
        (void)printf("\n");
    }
}

static void print_streams(const tsri_bench_step_report *r)
{
    char name[64];

    (void)printf("\ntime of a step, mean over ranks\n");
    print_time("matmul", r->matmul_s, r->step_s);
    print_time("other kernels", r->kernel_s - r->matmul_s, r->step_s);
    print_time("collectives of compute", r->coll_s, r->step_s);
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        (void)snprintf(name, sizeof(name), "exposed wait for %s",
                       tsri_stream_name((tsri_stream_kind)kind));
        print_time(name, r->exposed_s[kind], r->step_s);
    }
    print_time("host, copies, waking up", r->other_s, r->step_s);
    (void)printf("beside it\n");
    for (int kind = 1; kind < TSRI_STREAM_COUNT; kind++) {
        (void)snprintf(name, sizeof(name), "operations of %s",
                       tsri_stream_name((tsri_stream_kind)kind));
        print_time(name, r->busy_s[kind], r->step_s);
    }
}

tsr_status tsri_bench_print_step(const tsri_bench_step_report *r)
{
    (void)printf("%s, %lld parameters, %s; mesh %s, %s; %d rank%s of %d thread%s\n", r->model,
                 (long long)r->params, tsr_dtype_name(r->dtype), r->mesh, r->preset, r->ranks,
                 r->ranks == 1 ? "" : "s", r->threads, r->threads == 1 ? "" : "s");
    (void)printf("%d steps of %lld x %lld tokens\n\n", r->steps, (long long)r->batch,
                 (long long)r->seq);
    (void)printf("step         %10.2f ms median, %.2f ms least\n", 1e3 * r->step_s, 1e3 * r->min_s);
    (void)printf("tokens       %10.0f per second\n", r->tokens_per_s);
    (void)printf("6 N tokens   %10.1f GFLOP/s\n", r->rate / GIGA);
    (void)printf("ceiling      %10.1f GFLOP/s, f32 products of side %lld on all ranks\n",
                 r->ceiling / GIGA, (long long)r->side);
    (void)printf("share        %10.1f %% of it; %.1f %% by processor time (%.1f of %.1f GFLOP/s)\n",
                 100.0 * r->rate / r->ceiling, 100.0 * r->cpu_rate / r->cpu_ceiling,
                 r->cpu_rate / GIGA, r->cpu_ceiling / GIGA);
    (void)printf("of a rank    %10.2f ms user, %.2f ms system, %.0f page faults, %.0f sleeps\n",
                 1e3 * r->user_s, 1e3 * r->system_s, r->faults, r->switches);
    print_streams(r);
    (void)printf("\n%-18s %8s %10s  %8s   (this rank)\n", "kernel", "calls", "ms", "of step");
    for (int i = 0; i < r->kernel_count; i++) {
        (void)printf("%-18s %8.1f %10.3f", r->kernels[i].name, r->kernels[i].calls,
                     1e3 * r->kernels[i].s);
        print_share(r->kernels[i].s / r->step_s, true);
        (void)printf("\n");
    }
    return TSR_OK;
}

/* ---- probe ---- */

static bool is_product(int id)
{
    return id == TSRK_MATMUL || id == TSRK_ATTENTION || id == TSRK_ATTENTION_BWD;
}

static void print_again(double a, double b)
{
    (void)printf("  %10.3f %10.3f  %6.2f\n", a, b,
                 a > 0.0 && b > 0.0 ? (a > b ? a / b : b / a) : 1.0);
}

static void print_rates(const tsri_bench_probe_report *r)
{
    const tsri_machine *a = &r->first.machine;
    const tsri_machine *b = &r->second.machine;
    double all_s = 0.0;

    for (int id = 0; id < TSRK_COUNT; id++) {
        all_s += r->first.kernel_s[id];
    }
    (void)printf("\n%-20s %-8s  %8s  %10s %10s  %6s\n", "kernel", "", "of time", "first", "again",
                 "apart");
    for (int id = 0; id < TSRK_COUNT; id++) {
        if (a->kernel_rate[id] > 0.0) {
            (void)printf("%-20s %-8s", tsrk_name((tsrk_id)id), is_product(id) ? "GFLOP/s" : "GB/s");
            print_share(r->first.kernel_s[id] / all_s, true);
            print_again(a->kernel_rate[id] / GIGA, b->kernel_rate[id] / GIGA);
        }
    }
    (void)printf("%-20s %-8s  %8s", "launch", "us", "");
    print_again(1e6 * a->launch_s, 1e6 * b->launch_s);
    (void)printf("%-20s %-8s  %8s", "host copies", "GB/s", "");
    print_again(a->host_bytes_per_s / GIGA, b->host_bytes_per_s / GIGA);
}

static void print_probe_links(const tsri_bench_probe_report *r)
{
    const tsri_machine *a = &r->first.machine;
    const tsri_machine *b = &r->second.machine;

    if (r->first.ranks == 1) {
        return;
    }
    (void)printf("\n%-20s %-8s  %8s  %10s %10s  %6s\n", "link", "", "", "first", "again", "apart");
    for (int i = 0; i < a->tier_count; i++) {
        (void)printf("%-20s %-8s  %8s", a->tiers[i].name, "GB/s", "");
        print_again(a->tiers[i].bytes_per_s / GIGA, b->tiers[i].bytes_per_s / GIGA);
        (void)printf("%-20s %-8s  %8s", "", "hop us", "");
        print_again(1e6 * a->tiers[i].hop_s, 1e6 * b->tiers[i].hop_s);
        (void)printf("%-20s %-8s  %8s", "", "busy us", "");
        print_again(1e6 * a->tiers[i].busy_s, 1e6 * b->tiers[i].busy_s);
    }
    (void)printf("%-20s %-8s  %8s", "call", "us", "");
    print_again(1e6 * a->call_s, 1e6 * b->call_s);
    (void)printf("\n%-15s %-12s %6s %11s %-4s  %10s %10s  %6s\n", "collective", "axes", "ranks",
                 "bytes", "", "first us", "again us", "apart");
    for (int i = 0; i < r->first.row_count; i++) {
        const tsri_probe_row *row = &r->first.measured[i];
        char text[32];

        (void)printf("%-15s %-12s %6d %11s %-4s", tsri_coll_name(row->kind), row->axes, row->ranks,
                     tsri_format_bytes(row->bytes, text, sizeof(text)), row->busy ? "busy" : "");
        if (row->bytes == r->second.measured[i].bytes) {
            print_again(1e6 * row->s, 1e6 * r->second.measured[i].s);
        } else { /* the time was enough for another size */
            (void)printf("  %10.3f %10s\n", 1e6 * row->s, "-");
        }
    }
}

tsr_status tsri_bench_print_probe(const tsri_bench_probe_report *r)
{
    const tsri_probe_report *f = &r->first;

    (void)printf("%d rank%s of %d thread%s on %d host%s, all measuring at once, twice: %.1f s and "
                 "%.1f s\n"
                 "kernels in %d steps of %d layers, %lld x %lld tokens on each rank\n",
                 f->ranks, f->ranks == 1 ? "" : "s", f->threads, f->threads == 1 ? "" : "s",
                 f->hosts, f->hosts == 1 ? "" : "s", f->seconds, r->second.seconds, f->steps,
                 f->layers, (long long)f->rows, (long long)f->seq);
    print_rates(r);
    print_probe_links(r);
    (void)printf("\nthe two are at most a factor %.2f apart (%s)\ncluster file %016llx\n",
                 r->factor, r->apart, (unsigned long long)r->hash);
    return TSR_OK;
}
