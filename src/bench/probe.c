/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The whole probe, its cluster file, and how far two of them are apart. */
#include "probe_priv.h"

#include "backend/boot/boot.h"
#include "base/base.h"

#include "plan/cluster.h"
#include "plan/host_memory.h"

static const double default_seconds = 2.0;
static const double matters = 0.02;      /* of the kernels' time */
static const double kernels_share = 0.5; /* of the time, where there are links */

/* A unit of the model is about a block; its parameters travel in f32 at the most. */
static double unit_bytes(const tsri_job_options *job)
{
    return 4.0 * (double)tsri_model_param_count(&job->model) / (job->model.layers + 1.0);
}

tsr_status tsri_probe(tsr_world *world, const tsri_job_options *job, double seconds,
                      tsri_probe_report *out)
{
    const double begin = tsri_now_s();
    const double all = seconds > 0.0 ? seconds : default_seconds;

    *out = (tsri_probe_report){.ranks = tsr_world_size(world)};
    (void)snprintf(out->machine.name, sizeof(out->machine.name), "measured");
    out->machine.inline_compute = true;
    out->machine.native_bf16 = tsri_here_computes_bf16();
    TSR_TRY(tsri_probe_kernels(world, job, all * kernels_share, out));
    TSR_TRY(tsri_probe_links(world, unit_bytes(job), all * (1.0 - kernels_share), out));
    out->machine.memory_bytes =
        (double)tsri_host_memory_available() * out->hosts / out->ranks; /* equal hosts */
    if (out->ranks > 1) {
        TSR_TRY(tsri_team_broadcast(tsri_boot_job(), "sharing what was measured", TSR_OK,
                                    &out->machine, sizeof(out->machine), 0));
    }
    out->seconds = tsri_now_s() - begin;
    return TSR_OK;
}

void tsri_probe_text(const tsri_probe_report *r, const char *host, tsri_text *text)
{
    tsri_text sources = {0};

    tsri_text_add(
        &sources,
        "  - measured on %s and its like by tessera bench probe, %d ranks of %d threads "
        "on %d hosts, all at once\n"
        "  - kernels, %d steps of %d layers, %lld sequences of %lld tokens on each rank\n",
        host, r->ranks, r->threads, r->hosts, r->steps, r->layers, (long long)r->rows,
        (long long)r->seq);
    if (tsri_text_status(&sources) != TSR_OK) {
        text->status = sources.status;
    } else {
        tsri_cluster_print(&r->machine, sources.data, text);
    }
    tsri_text_free(&sources);
}

typedef struct factor {
    double most;
    const char *what;
} factor;

static void compare_rates(factor *f, double a, double b, const char *what)
{
    const double ratio = a > b ? a / b : b / a;

    if (a > 0.0 && b > 0.0 && ratio > f->most) {
        f->most = ratio;
        f->what = what;
    }
}

double tsri_probe_factor(const tsri_probe_report *a, const tsri_probe_report *b, const char **what)
{
    const tsri_machine *x = &a->machine;
    const tsri_machine *y = &b->machine;
    factor f = {1.0, "none"};
    double all_s = 0.0;

    for (int id = 0; id < TSRK_COUNT; id++) {
        all_s += a->kernel_s[id];
    }
    for (int id = 0; id < TSRK_COUNT; id++) {
        if (a->kernel_s[id] >= matters * all_s) {
            compare_rates(&f, x->kernel_rate[id], y->kernel_rate[id], tsrk_name((tsrk_id)id));
        }
    }
    for (int tier = 0; a->row_count > 0 && tier < x->tier_count; tier++) {
        compare_rates(&f, x->tiers[tier].bytes_per_s, y->tiers[tier].bytes_per_s,
                      x->tiers[tier].name);
    }
    *what = f.what;
    return f.most;
}
