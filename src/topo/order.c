/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Which GPU has which rank.
 *
 * Islands stay together. In an island the next rank is the GPU that is nearest to the one before:
 * same NUMA node first, then the same package, then the largest link, then the lowest PCI branch,
 * then PCI order. So a pair, or any other run of consecutive ranks, is as near as the machine
 * allows. */
#include "mapping_priv.h"

#include "base/base.h"

#include <string.h>

static int island_size(const tsri_topo *t, const int *island, int which)
{
    int size = 0;

    for (int i = 0; i < t->gpu_count; i++) {
        size += island[i] == which;
    }
    return size;
}

/* The island to take next: the smallest that holds all the ranks left, else the largest; the first
 * of equals. */
static int next_island(const tsri_topo *t, const int *island, const bool *taken, int count,
                       int ranks)
{
    int best = -1;
    int best_size = 0;

    for (int i = 0; i < count; i++) {
        const int size = island_size(t, island, i);
        const bool fits = size >= ranks;
        const bool best_fits = best_size >= ranks;

        if (taken[i]) {
            continue;
        }
        if (best < 0 || (fits && (!best_fits || size < best_size)) ||
            (!fits && !best_fits && size > best_size)) {
            best = i;
            best_size = size;
        }
    }
    return best;
}

/* 2: the same NUMA node; 1: the same package. */
static int at_home(const tsri_topo_device *a, const tsri_topo_device *b)
{
    return a->numa >= 0 && a->numa == b->numa ? 2 : a->package == b->package ? 1 : 0;
}

static bool is_nearer(const tsri_topo *t, int from, int a, int b)
{
    const tsri_topo_device *d = &t->gpus[from].at;
    const tsri_topo_device *x = &t->gpus[a].at;
    const tsri_topo_device *y = &t->gpus[b].at;
    const int x_home = at_home(d, x);
    const int y_home = at_home(d, y);
    const double x_link = tsri_topo_link(t, from, a);
    const double y_link = tsri_topo_link(t, from, b);

    if (x_home != y_home) {
        return x_home > y_home;
    }
    if (x_link > y_link || x_link < y_link) {
        return x_link > y_link;
    }
    return tsri_topo_near(d, x) > tsri_topo_near(d, y);
}

static void take_island(const tsri_topo *t, const int *island, int which, bool *used,
                        tsri_topo_mapping *mapping, int *placed)
{
    int from = -1;

    while (*placed < mapping->place_count) {
        int best = -1;

        for (int i = 0; i < t->gpu_count; i++) {
            if (island[i] == which && !used[i] &&
                (best < 0 || (from >= 0 && is_nearer(t, from, i, best)))) {
                best = i;
            }
        }
        if (best < 0) {
            return;
        }
        used[best] = true;
        mapping->places[*placed] = (tsri_topo_place){
            .gpu = best, .island = mapping->island_count, .numa = t->gpus[best].at.numa, .nic = -1};
        *placed += 1;
        from = best;
    }
}

tsr_status tsri_topo_order_gpus(const tsri_topo *topo, const int *island,
                                tsri_topo_mapping *mapping)
{
    bool taken[TSRI_TOPO_MAX_GPUS] = {false};
    bool used[TSRI_TOPO_MAX_GPUS] = {false};
    const int islands = mapping->island_count;
    int placed = 0;

    mapping->island_count = 0;
    while (placed < mapping->place_count) {
        /* All GPUs: islands in PCI order. */
        const int next =
            mapping->place_count == tsri_topo_visible(topo)
                ? mapping->island_count
                : next_island(topo, island, taken, islands, mapping->place_count - placed);

        taken[next] = true;
        take_island(topo, island, next, used, mapping, &placed);
        mapping->island_count++;
    }
    if (mapping->place_count < tsri_topo_visible(topo)) {
        TSR_TRY(
            tsri_topo_note_add(&mapping->notes, false, "order",
                               "%d of %d GPUs are used: those of the smallest island that holds "
                               "them, else of the largest ones",
                               mapping->place_count, tsri_topo_visible(topo)));
    }
    return TSR_OK;
}
