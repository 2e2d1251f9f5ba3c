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
    (void)printf("\n%-12s %-8s %-6s %6s %6s %6s %9s  %8s  %8s\n", "weight", "pass", "dtype", "m",
                 "n", "k", "GFLOP/s", "square", "registers");
    for (int i = 0; i < report->row_count; i++) {
        const tsri_bench_gemm_row *row = &report->rows[i];
        const tsri_bench_ceiling *c = &report->ceiling[row->dtype == TSR_F32 ? 0 : 1];

        (void)printf("%-12s %-8s %-6s %6lld %6lld %6lld %9.1f", row->weights, row->pass,
                     tsr_dtype_name(row->dtype), (long long)row->m, (long long)row->n,
                     (long long)row->k, row->rate / GIGA);
        print_share(row->of_square, true);
        print_share(row->of_peak, c->instructions != NULL);
        (void)printf("\n");
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
