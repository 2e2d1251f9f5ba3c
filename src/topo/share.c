/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Whole cores for every rank: those of its GPU's NUMA node, divided among the ranks there. Where
 * that cannot be (a node that is unknown, or has fewer allowed cores than ranks) the machine's
 * cores are divided among all; where the machine has fewer cores than ranks nobody is bound. */
#include "plan_priv.h"

#include "base/base.h"

static bool is_in(const tsri_topo *t, int core, int numa)
{
    return numa < 0 || t->cores[core].numa == numa;
}

/* Divide the cores of numa (-1: all) among the places there, in order. */
static void divide(const tsri_topo *t, int numa, tsri_topo_plan *plan)
{
    int places = 0;
    int cores = 0;
    int done = 0;
    int next = 0;

    for (int i = 0; i < plan->place_count; i++) {
        places += numa < 0 || plan->places[i].numa == numa;
    }
    for (int i = 0; i < t->core_count; i++) {
        cores += is_in(t, i, numa);
    }
    for (int i = 0; i < plan->place_count; i++) {
        tsri_topo_place *p = &plan->places[i];

        if (numa >= 0 && p->numa != numa) {
            continue;
        }
        p->core_first = plan->core_count;
        p->core_count = cores / places + (done < cores % places ? 1 : 0);
        done++;
        for (int k = 0; k < p->core_count; next++) {
            if (is_in(t, next, numa)) {
                plan->cores[plan->core_count++] = next;
                k++;
            }
        }
    }
}

static bool fits_by_numa(const tsri_topo *t, const tsri_topo_plan *plan)
{
    for (int i = 0; i < plan->place_count; i++) {
        const int numa = plan->places[i].numa;
        int places = 0;

        for (int k = 0; k < plan->place_count; k++) {
            places += plan->places[k].numa == numa;
        }
        if (numa < 0 || t->numas[numa].core_count < places) {
            return false;
        }
    }
    return true;
}

/* Ranks on cores get the NUMA node in which their cores lie. */
static int straddling(const tsri_topo *t, tsri_topo_plan *plan)
{
    int count = 0;

    for (int i = 0; i < plan->place_count; i++) {
        tsri_topo_place *p = &plan->places[i];
        const int *cores = plan->cores + p->core_first;
        int numa = t->cores[cores[0]].numa;

        for (int k = 1; k < p->core_count; k++) {
            numa = t->cores[cores[k]].numa == numa ? numa : -1;
        }
        count += numa < 0;
        p->numa = p->gpu < 0 ? numa : p->numa;
    }
    return count;
}

static tsr_status note_shares(const tsri_topo *t, const char *where, tsri_topo_plan *plan)
{
    int least = t->core_count;
    int most = 0;
    int threads = 1;
    char range[32];

    for (int i = 0; i < plan->place_count; i++) {
        const int count = plan->places[i].core_count;

        least = count < least ? count : least;
        most = count > most ? count : most;
    }
    for (int i = 0; i < t->core_count; i++) {
        threads = t->cores[i].pu_count > threads ? t->cores[i].pu_count : threads;
    }
    (void)snprintf(range, sizeof(range), least < most ? "%d or %d" : "%d", least, most);
    TSR_TRY(tsri_topo_note_add(
        &plan->notes, false, "cores", "%s whole core%s%s for each rank, of %s", range,
        most == 1 ? "" : "s", threads > 1 ? ", with all their threads," : "", where));
    return TSR_OK;
}

tsr_status tsri_topo_share_cores(const tsri_topo *t, tsri_topo_plan *plan)
{
    const bool gpus = plan->place_count > 0 && plan->places[0].gpu >= 0;
    const bool by_numa = gpus && fits_by_numa(t, plan);

    if (t->core_count < plan->place_count) {
        TSR_TRY(tsri_topo_note_add(&plan->notes, false, "cores",
                                   "%d rank%s on %d core%s: nobody is bound", plan->place_count,
                                   plan->place_count == 1 ? "" : "s", t->core_count,
                                   t->core_count == 1 ? "" : "s"));
        return TSR_OK;
    }
    if (by_numa) {
        for (int i = 0; i < t->numa_count; i++) {
            divide(t, i, plan);
        }
        TSR_TRY(note_shares(t, "its GPU's NUMA node", plan));
        return TSR_OK;
    }
    divide(t, -1, plan);
    if (gpus) {
        TSR_TRY(tsri_topo_note_add(&plan->notes, true, "cores",
                                   "a GPU's NUMA node is unknown or has fewer cores than ranks: "
                                   "the machine's cores are divided among all"));
    }
    const int across = straddling(t, plan);

    TSR_TRY(note_shares(t, "the machine", plan));
    if (across > 0) {
        TSR_TRY(tsri_topo_note_add(&plan->notes, true, "cores",
                                   "%d of %d ranks have cores of more than one NUMA node", across,
                                   plan->place_count));
    }
    return TSR_OK;
}
