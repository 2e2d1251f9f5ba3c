/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Whole cores for every rank: those of its GPU's NUMA node, divided among the ranks there. Where
 * that cannot be (a node that is unknown, or has fewer allowed cores than ranks) those of its GPU's
 * package; else the machine's cores are divided among all; where the machine has fewer cores than
 * ranks nobody is bound. */
#include "mapping_priv.h"

#include "base/base.h"

/* What cores are divided by. */
typedef enum part {
    BY_NUMA,
    BY_PACKAGE,
    WHOLE
} part;

static int part_of_core(const tsri_topo *t, part by, int core)
{
    return by == BY_NUMA ? t->cores[core].numa : by == BY_PACKAGE ? t->cores[core].package : 0;
}

static int part_of_place(const tsri_topo *t, part by, const tsri_topo_place *p)
{
    return by == BY_NUMA ? p->numa : by == BY_PACKAGE ? t->gpus[p->gpu].at.package : 0;
}

static int count_cores(const tsri_topo *t, part by, int which)
{
    int cores = 0;

    for (int i = 0; i < t->core_count; i++) {
        cores += part_of_core(t, by, i) == which;
    }
    return cores;
}

static int count_places(const tsri_topo *t, const tsri_topo_mapping *mapping, part by, int which)
{
    int places = 0;

    for (int i = 0; i < mapping->place_count; i++) {
        places += part_of_place(t, by, &mapping->places[i]) == which;
    }
    return places;
}

/* Divide the cores of a part among the places there, in order. */
static void divide(const tsri_topo *t, part by, int which, tsri_topo_mapping *mapping)
{
    const int places = count_places(t, mapping, by, which);
    const int cores = count_cores(t, by, which);
    int done = 0;
    int next = 0;

    for (int i = 0; i < mapping->place_count; i++) {
        tsri_topo_place *p = &mapping->places[i];

        if (part_of_place(t, by, p) != which) {
            continue;
        }
        p->core_first = mapping->core_count;
        p->core_count = cores / places + (done < cores % places ? 1 : 0);
        done++;
        for (int k = 0; k < p->core_count; next++) {
            if (part_of_core(t, by, next) == which) {
                mapping->cores[mapping->core_count++] = next;
                k++;
            }
        }
    }
}

static bool fits(const tsri_topo *t, const tsri_topo_mapping *mapping, part by)
{
    for (int i = 0; i < mapping->place_count; i++) {
        const int which = part_of_place(t, by, &mapping->places[i]);

        if (which < 0 || count_cores(t, by, which) < count_places(t, mapping, by, which)) {
            return false;
        }
    }
    return true;
}

/* Ranks on cores get the NUMA node in which their cores lie. */
static int straddling(const tsri_topo *t, tsri_topo_mapping *mapping)
{
    int count = 0;

    for (int i = 0; i < mapping->place_count; i++) {
        tsri_topo_place *p = &mapping->places[i];
        const int *cores = mapping->cores + p->core_first;
        int numa = t->cores[cores[0]].numa;

        for (int k = 1; k < p->core_count; k++) {
            numa = t->cores[cores[k]].numa == numa ? numa : -1;
        }
        count += numa < 0;
        p->numa = p->gpu < 0 ? numa : p->numa;
    }
    return count;
}

static tsr_status note_shares(const tsri_topo *t, const char *where, tsri_topo_mapping *mapping)
{
    int least = t->core_count;
    int most = 0;
    int threads = 1;
    char range[32];

    for (int i = 0; i < mapping->place_count; i++) {
        const int count = mapping->places[i].core_count;

        least = count < least ? count : least;
        most = count > most ? count : most;
    }
    for (int i = 0; i < t->core_count; i++) {
        threads = t->cores[i].pu_count > threads ? t->cores[i].pu_count : threads;
    }
    (void)snprintf(range, sizeof(range), least < most ? "%d or %d" : "%d", least, most);
    TSR_TRY(tsri_topo_note_add(
        &mapping->notes, false, "cores", "%s whole core%s%s for each rank, of %s", range,
        most == 1 ? "" : "s", threads > 1 ? ", with all their threads," : "", where));
    return TSR_OK;
}

/* Divide all cores, or those of each NUMA node or package. */
static void divide_all(const tsri_topo *t, part by, tsri_topo_mapping *mapping)
{
    const int parts = by == BY_NUMA ? t->numa_count : by == BY_PACKAGE ? t->package_count : 1;

    for (int i = 0; i < parts; i++) {
        divide(t, by, i, mapping);
    }
}

tsr_status tsri_topo_share_cores(const tsri_topo *t, tsri_topo_mapping *mapping)
{
    const bool gpus = mapping->place_count > 0 && mapping->places[0].gpu >= 0;
    const part by = gpus && fits(t, mapping, BY_NUMA)      ? BY_NUMA
                    : gpus && fits(t, mapping, BY_PACKAGE) ? BY_PACKAGE
                                                           : WHOLE;

    if (t->core_count < mapping->place_count) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "cores",
                                   "%d rank%s on %d core%s: nobody is bound", mapping->place_count,
                                   mapping->place_count == 1 ? "" : "s", t->core_count,
                                   t->core_count == 1 ? "" : "s"));
        return TSR_OK;
    }
    divide_all(t, by, mapping);
    if (by == BY_NUMA) {
        TSR_TRY(note_shares(t, "its GPU's NUMA node", mapping));
        return TSR_OK;
    }
    if (gpus) {
        TSR_TRY(tsri_topo_note_add(
            &mapping->notes, true, "cores",
            "a GPU's NUMA node is unknown or has fewer cores than ranks: "
            "%s",
            by == BY_PACKAGE ? "the cores of each package are divided among the ranks there"
                             : "the machine's cores are divided among all"));
    }
    const int across = straddling(t, mapping);

    TSR_TRY(note_shares(t, by == BY_PACKAGE ? "its GPU's package" : "the machine", mapping));
    if (across > 0) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "cores",
                                   "%d of %d ranks have cores of more than one NUMA node", across,
                                   mapping->place_count));
    }
    return TSR_OK;
}
