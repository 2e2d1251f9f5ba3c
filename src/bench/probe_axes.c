/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Axes of a job's mesh: where their groups lie, what their links do, what was declared of them. */
#include "probe_priv.h"

#include "base/base.h"

#include <math.h>

/* What a rank of a ring can expect of a machine: its slowest tier's share, its mean hop. */
static void expect_of_machine(const tsri_machine *machine, const int *members,
                              tsri_probe_axis *axis)
{
    tsri_reach reach;
    double hops_s = 0.0;
    double slowest = INFINITY;

    tsri_machine_reach(machine, members, axis->ranks, &reach);
    for (int tier = 0; tier <= reach.top; tier++) {
        const tsri_tier *t = &machine->tiers[tier];

        hops_s += reach.hops[tier] * t->hop_s;
        if (reach.shared[tier] > 0.0 && t->bytes_per_s / reach.shared[tier] < slowest) {
            slowest = t->bytes_per_s / reach.shared[tier];
        }
    }
    axis->declared_hop_s = hops_s / axis->ranks;
    axis->declared_bytes_per_s = slowest;
}

/* Hosts under members[size], which lie in order. */
static int hosts_below(const tsr_world *world, const int *members, int size)
{
    const int *nodes = tsri_world_nodes(world);
    int count = 0;

    for (int m = 0; m < size; m++) {
        int before = 0;

        while (before < m && nodes[members[before]] != nodes[members[m]]) {
            before++;
        }
        count += before == m ? 1 : 0;
    }
    return count;
}

/* Which axes have ranks, and on how many hosts their groups lie. members has room for all ranks. */
static tsr_status list_axes(const tsr_world *world, const tsr_mesh *mesh,
                            const tsri_machine *declared, int *members, tsri_probe_axis *axes,
                            unsigned *masks, int *count_out)
{
    *count_out = 0;
    for (int a = 0; a < tsr_mesh_axis_count(mesh); a++) {
        tsri_probe_axis *axis = &axes[*count_out];

        *axis = (tsri_probe_axis){.ranks = tsr_mesh_axis_size(mesh, a)};
        if (axis->ranks == 1) {
            continue;
        }
        (void)snprintf(axis->name, sizeof(axis->name), "%s", tsr_mesh_axis_name(mesh, a));
        for (int rank = tsr_world_size(world) - 1; rank >= 0; rank--) {
            TSR_TRY(tsr_mesh_axis_ranks(mesh, a, rank, members));
            const int hosts = hosts_below(world, members, axis->ranks);

            axis->hosts = hosts > axis->hosts ? hosts : axis->hosts;
        }
        if (declared != NULL) {
            expect_of_machine(declared, members, axis); /* those of rank 0 */
        }
        masks[*count_out] = 1U << a;
        ++*count_out;
    }
    return TSR_OK;
}

tsr_status tsri_probe_axes(tsr_world *world, tsr_mesh *mesh, const tsri_machine *declared,
                           double seconds, tsri_probe_axis *axes, int *count_out)
{
    tsri_probe_scope plan = {
        .kind_count = 1, .large_bytes = tsri_probe_enough_bytes, .seconds = seconds};
    tsri_probe_row rows[TSRI_PROBE_MAX_ROWS];
    int row_count = 0;
    int *members = NULL;
    tsr_status status = TSR_OK;

    *count_out = 0;
    TSR_TRY(tsri_alloc((size_t)tsr_world_size(world), sizeof(*members), &members));
    TSR_TRY_GOTO(status,
                 list_axes(world, mesh, declared, members, axes, plan.masks, &plan.mask_count),
                 free_members);
    if (plan.mask_count > 0 && seconds > 0.0) {
        TSR_TRY_GOTO(status, tsri_probe_measure(world, mesh, &plan, rows, &row_count),
                     free_members);
    }
    for (int a = 0; a * TSRI_PROBE_CELLS < row_count; a++) {
        tsri_probe_fit_axis(rows + (ptrdiff_t)(a * TSRI_PROBE_CELLS), TSRI_PROBE_CELLS, &axes[a]);
    }
    *count_out = plan.mask_count;
free_members:
    tsri_free(&members);
    return status;
}
