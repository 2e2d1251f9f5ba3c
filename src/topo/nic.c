/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* NICs for every GPU.
 *
 * Only NICs that are as near to a GPU as any are its candidates. Among them load is spread by a
 * semi-matching: each GPU in turn is given the least loaded NIC that an alternating path reaches,
 * which moves earlier GPUs along the path. That leaves the loads as even as they can be, where
 * nearest-first would put neighbours on one NIC and leave another idle. A NIC that is left over
 * goes to a GPU that has fewest: some machines have four for each. */
#include "mapping_priv.h"

#include "base/base.h"

#include <string.h>

typedef struct matching {
    const tsri_topo *topo;
    tsri_topo_mapping *mapping;
    tsri_topo_nic_kind kind; /* NICs of this kind count */
    double least_gb_s;       /* if their PCI link is not known to be slower */
    int *load;               /* [nic_count] GPUs on each */
    int *from;               /* [nic_count] place that leads here on the path; -1: not reached */
    int *queue;
} matching;

static const tsri_topo_device *gpu_of(const matching *m, int place)
{
    return &m->topo->gpus[m->mapping->places[place].gpu].at;
}

/* A slow interface beside fast ones is for management. */
static bool counts(const matching *m, int nic)
{
    const tsri_topo_nic *n = &m->topo->nics[nic];

    return n->kind == m->kind && (n->at.pci_gb_s <= 0.0 || n->at.pci_gb_s >= m->least_gb_s);
}

static bool is_candidate(const matching *m, int place, int nic)
{
    return counts(m, nic) && tsri_topo_near(gpu_of(m, place), &m->topo->nics[nic].at) ==
                                 m->mapping->places[place].nic_near;
}

static void find_nearest(const matching *m, int place)
{
    tsri_topo_place *p = &m->mapping->places[place];

    p->nic_near = -1;
    for (int i = 0; i < m->topo->nic_count; i++) {
        const int near = tsri_topo_near(gpu_of(m, place), &m->topo->nics[i].at);

        if (counts(m, i) && near > p->nic_near) {
            p->nic_near = near;
        }
    }
}

/* Reach every candidate of place that was not reached before. */
static void reach(matching *m, int place, int *tail)
{
    for (int nic = 0; nic < m->topo->nic_count; nic++) {
        if (m->from[nic] < 0 && is_candidate(m, place, nic)) {
            m->from[nic] = place;
            m->queue[(*tail)++] = nic;
        }
    }
}

static void assign(matching *m, int place)
{
    int head = 0;
    int tail = 0;
    int best = -1;

    for (int i = 0; i < m->topo->nic_count; i++) {
        m->from[i] = -1;
    }
    reach(m, place, &tail);
    while (head < tail) {
        const int nic = m->queue[head++];

        best = best < 0 || m->load[nic] < m->load[best] ? nic : best;
        for (int other = 0; other < place; other++) {
            if (m->mapping->places[other].nic == nic) {
                reach(m, other, &tail);
            }
        }
    }
    if (best >= 0) {
        m->load[best]++;
    }
    /* Walk back: each place on the path moves on to the NIC it led to. */
    for (int nic = best; nic >= 0;) {
        const int mover = m->from[nic];
        const int left = m->mapping->places[mover].nic;

        m->mapping->places[mover].nic = nic;
        nic = mover == place ? -1 : left;
    }
}

/* Give NICs without a GPU to candidates; owner[nic] is the place that a NIC is given to, or -1. */
static void give_rest(matching *m, int *owner)
{
    for (int nic = 0; nic < m->topo->nic_count; nic++) {
        int best = -1;

        owner[nic] = -1;
        for (int i = 0; i < m->mapping->place_count && m->load[nic] == 0; i++) {
            const tsri_topo_place *p = &m->mapping->places[i];

            if (is_candidate(m, i, nic) &&
                (best < 0 || p->nic_count < m->mapping->places[best].nic_count)) {
                best = i;
            }
        }
        if (best >= 0) {
            owner[nic] = best;
            m->load[nic] = 1;
            m->mapping->places[best].nic_count++;
        }
    }
}

/* The list of each place: what the matching gave it, then the rest. */
static tsr_status list_nics(matching *m)
{
    tsri_topo_mapping *mapping = m->mapping;
    int *owner = m->from; /* no longer in use */
    int count = 0;

    for (int i = 0; i < mapping->place_count; i++) {
        mapping->places[i].nic_count = mapping->places[i].nic >= 0;
    }
    give_rest(m, owner);
    TSR_TRY(tsri_alloc((size_t)mapping->place_count + (size_t)m->topo->nic_count, sizeof(int),
                       &mapping->nics));
    for (int i = 0; i < mapping->place_count; i++) {
        tsri_topo_place *p = &mapping->places[i];

        p->nic_first = count;
        if (p->nic >= 0) {
            mapping->nics[count++] = p->nic;
        }
        for (int nic = 0; nic < m->topo->nic_count; nic++) {
            if (owner[nic] == i) {
                mapping->nics[count++] = nic;
            }
        }
    }
    return TSR_OK;
}

/* Of how many GPUs is the nearest NIC in another package, and of how many is that unknown? */
static void count_far(const matching *m, int *other_node, int *far, int *unknown)
{
    for (int i = 0; i < m->mapping->place_count; i++) {
        const tsri_topo_place *p = &m->mapping->places[i];
        const tsri_topo_device *gpu = gpu_of(m, i);
        const tsri_topo_device *nic = &m->topo->nics[p->nic].at;
        const bool known = gpu->package >= 0 && nic->package >= 0;

        *other_node += p->nic_near == TSRI_TOPO_SAME_PACKAGE && gpu->numa >= 0 && nic->numa >= 0;
        *far += p->nic_near == TSRI_TOPO_APART && known;
        *unknown += p->nic_near == TSRI_TOPO_APART && !known;
    }
}

static tsr_status note_far(const matching *m)
{
    tsri_topo_notes *notes = &m->mapping->notes;
    const int count = m->mapping->place_count;
    int other_node = 0;
    int far = 0;
    int unknown = 0;

    count_far(m, &other_node, &far, &unknown);
    if (other_node > 0) {
        TSR_TRY(
            tsri_topo_note_add(notes, false, "nic",
                               "%d of %d GPUs have the nearest NIC on another NUMA node of their "
                               "package",
                               other_node, count));
    }
    if (far > 0) {
        TSR_TRY(tsri_topo_note_add(notes, true, "nic",
                                   "%d of %d GPUs have no NIC in their package: their traffic to "
                                   "other hosts crosses the processors' link",
                                   far, count));
    }
    if (unknown > 0) {
        TSR_TRY(tsri_topo_note_add(notes, true, "nic",
                                   "of %d of %d GPUs the record does not say whether a NIC is in "
                                   "their package",
                                   unknown, count));
    }
    return TSR_OK;
}

static tsr_status note_nics(const matching *m)
{
    const tsri_topo_mapping *mapping = m->mapping;
    static const char *const kinds[] = {"network controllers", "network interfaces",
                                        "OpenFabrics devices"};
    int used = 0;
    int most = 0;
    int count = 0;
    int fewest_own = mapping->places[0].nic_count;
    int most_own = 0;
    char own[48] = "";

    for (int i = 0; i < m->topo->nic_count; i++) {
        used += m->load[i] > 0;
        most = m->load[i] > most ? m->load[i] : most;
        count += counts(m, i);
    }
    for (int i = 0; i < mapping->place_count; i++) {
        const int has = mapping->places[i].nic_count;

        fewest_own = has < fewest_own ? has : fewest_own;
        most_own = has > most_own ? has : most_own;
    }
    if (most_own > 1) {
        (void)snprintf(own, sizeof(own),
                       fewest_own < most_own ? ", %d to %d for each GPU" : ", %d for each GPU",
                       fewest_own, most_own);
    }
    TSR_TRY(tsri_topo_note_add(&m->mapping->notes, false, "nic",
                               "each GPU has the NIC of the deepest common PCI ancestor, ties "
                               "spread by a matching: %d of %d %s used%s, at most %d GPU%s on one",
                               used, count, kinds[m->kind], own, most, most == 1 ? "" : "s"));
    TSR_TRY(note_far(m));
    return TSR_OK;
}

/* The best kind that there is, and no management interface beside it. */
static void choose_kind(matching *m)
{
    const tsri_topo *t = m->topo;

    for (int i = 0; i < t->nic_count; i++) {
        m->kind = t->nics[i].kind > m->kind ? t->nics[i].kind : m->kind;
    }
    for (int i = 0; i < t->nic_count; i++) {
        const double share = TSRI_TOPO_LINK_SHARE * t->nics[i].at.pci_gb_s;

        m->least_gb_s = t->nics[i].kind == m->kind && share > m->least_gb_s ? share : m->least_gb_s;
    }
}

tsr_status tsri_topo_match_nics(const tsri_topo *topo, tsri_topo_mapping *mapping)
{
    const size_t nics = (size_t)topo->nic_count;
    matching m = {.topo = topo, .mapping = mapping};
    tsr_status status = TSR_OK;

    if (topo->nic_count == 0) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "nic", "the record has no NIC"));
        return TSR_OK;
    }
    if (mapping->place_count == 0 || mapping->places[0].gpu < 0) {
        return TSR_OK;
    }
    choose_kind(&m);
    TSR_TRY(tsri_alloc(nics, sizeof(int), &m.load));
    TSR_TRY_GOTO(status, tsri_alloc(nics, sizeof(int), &m.from), out);
    TSR_TRY_GOTO(status, tsri_alloc(nics, sizeof(int), &m.queue), out);
    for (int i = 0; i < mapping->place_count; i++) {
        find_nearest(&m, i);
        assign(&m, i);
    }
    TSR_TRY_GOTO(status, list_nics(&m), out);
    TSR_TRY_GOTO(status, note_nics(&m), out);
out:
    tsri_free(&m.load);
    tsri_free(&m.from);
    tsri_free(&m.queue);
    return status;
}
