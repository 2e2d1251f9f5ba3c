/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* This machine's tiers of links, found from where ranks live. */
#include "probe_priv.h"

#include "base/base.h"

#include "plan/mesh_auto.h"

static const double most_bytes = 16 << 20;
static const double longest_s = 10.0;

/* Tiers without figures: within a host where it has several ranks, between hosts where there are
 * several. */
static void name_tiers(int ranks, int local, tsri_machine *m)
{
    m->tier_count = 0;
    if (local > 1 && local < ranks) {
        m->tiers[m->tier_count++] = (tsri_tier){.name = "host", .span = local};
    }
    tsri_tier *last = &m->tiers[m->tier_count++];

    *last = (tsri_tier){.span = 0};
    (void)snprintf(last->name, sizeof(last->name), "%s",
                   local == 0       ? "mixed"
                   : local == ranks ? "host"
                                    : "network");
}

/* Hosts, however many ranks each has: they are numbered from 0 on. */
static int hosts_of_world(const tsr_world *world)
{
    const int *nodes = tsri_world_nodes(world);
    int most = 0;

    for (int r = 0; r < tsr_world_size(world); r++) {
        most = nodes[r] > most ? nodes[r] : most;
    }
    return most + 1;
}

static tsr_status measure_tiers(tsr_world *world, int local, double large_bytes, double seconds,
                                tsri_probe_report *out)
{
    const int ranks = tsr_world_size(world);
    const int inner = local > 0 ? local : ranks;
    const tsr_mesh_axis axes[2] = {{"host", ranks / inner}, {"local", inner}};
    tsri_probe_scope plan = {.kind_count = TSRI_PROBE_KINDS,
                             .large_bytes = large_bytes,
                             .longest_s = longest_s,
                             .seconds = seconds};
    tsr_mesh *mesh = NULL;
    tsri_reach reach[TSRI_PROBE_MAX_ROWS];
    int *ring = NULL;
    int size = 0;
    int index = 0;
    tsr_status status = TSR_OK;

    if (inner > 1) {
        plan.masks[plan.mask_count++] = 2U;
    }
    if (inner < ranks) {
        plan.masks[plan.mask_count++] = 1U;
    }
    if (plan.mask_count == 2) {
        plan.masks[plan.mask_count++] = 3U;
    }
    TSR_TRY(tsri_alloc((size_t)ranks, sizeof(*ring), &ring));
    TSR_TRY_GOTO(status, tsr_mesh_create(ranks, axes, 2, NULL, &mesh), free_ring);
    TSR_TRY_GOTO(status, tsri_probe_measure(world, mesh, &plan, out->measured, &out->row_count),
                 release);
    for (int r = 0; r < out->row_count; r++) {
        TSR_TRY_GOTO(status,
                     tsr_mesh_flat_ranks(mesh, out->measured[r].mask, tsr_world_rank(world), ring,
                                         &size, &index),
                     release);
        tsri_machine_reach(&out->machine, ring, size, &reach[r]);
    }
    for (int tier = 0; tier < out->machine.tier_count; tier++) {
        tsri_probe_fit_tier(&out->machine, tier, out->measured, out->row_count, reach);
    }
release:
    tsr_mesh_release(&mesh);
free_ring:
    tsri_free(&ring);
    return status;
}

tsr_status tsri_probe_links(tsr_world *world, double unit_bytes, double seconds,
                            tsri_probe_report *out)
{
    const int ranks = tsr_world_size(world);
    const double large_bytes = unit_bytes > most_bytes                ? most_bytes
                               : unit_bytes > tsri_probe_enough_bytes ? unit_bytes
                                                                      : tsri_probe_enough_bytes;
    const int hosts = tsri_mesh_hosts(tsri_world_nodes(world), ranks);
    const int local = hosts > 0 ? ranks / hosts : 0;

    out->hosts = hosts_of_world(world);
    name_tiers(ranks, local, &out->machine);
    if (ranks == 1) { /* no link, but a cluster file has one */
        out->machine.tiers[0].bytes_per_s = out->machine.host_bytes_per_s;
        return TSR_OK;
    }
    TSR_TRY(measure_tiers(world, local, large_bytes, seconds, out));
    return TSR_OK;
}
