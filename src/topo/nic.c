/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A NIC for every GPU.
 *
 * Only NICs that are as near to a GPU as any are its candidates. Among them load is spread by a
 * semi-matching: each GPU in turn is given the least loaded NIC that an alternating path reaches,
 * which moves earlier GPUs along the path. That leaves the loads as even as they can be, where
 * nearest-first would put neighbours on one NIC and leave another idle. */
#include "plan_priv.h"

#include "base/base.h"

#include <string.h>

typedef struct matching {
    const tsri_topo *topo;
    tsri_topo_plan *plan;
    tsri_topo_nic_kind kind; /* NICs of this kind count */
    double least_gb_s;       /* if their PCI link is not known to be slower */
    int *load;               /* [nic_count] GPUs on each */
    int *from;               /* [nic_count] place that leads here on the path; -1: not reached */
    int *queue;
} matching;

static const tsri_topo_device *gpu_of(const matching *m, int place)
{
    return &m->topo->gpus[m->plan->places[place].gpu].at;
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
                                 m->plan->places[place].nic_near;
}

static void find_nearest(const matching *m, int place)
{
    tsri_topo_place *p = &m->plan->places[place];

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
            if (m->plan->places[other].nic == nic) {
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
        const int left = m->plan->places[mover].nic;

        m->plan->places[mover].nic = nic;
        nic = mover == place ? -1 : left;
    }
}

static tsr_status note_nics(const matching *m)
{
    const tsri_topo_plan *plan = m->plan;
    static const char *const kinds[] = {"network controllers", "network interfaces",
                                        "OpenFabrics devices"};
    int used = 0;
    int most = 0;
    int far = 0;
    int count = 0;

    for (int i = 0; i < m->topo->nic_count; i++) {
        used += m->load[i] > 0;
        most = m->load[i] > most ? m->load[i] : most;
        count += counts(m, i);
    }
    for (int i = 0; i < plan->place_count; i++) {
        far += plan->places[i].nic_near < TSRI_TOPO_SAME_NUMA;
    }
    TSR_TRY(tsri_topo_note_add(&m->plan->notes, false, "nic",
                               "each GPU has the NIC of the deepest common PCI ancestor, ties "
                               "spread by a matching: %d of %d %s used, at most %d GPU%s on one",
                               used, count, kinds[m->kind], most, most == 1 ? "" : "s"));
    if (far > 0) {
        TSR_TRY(tsri_topo_note_add(&m->plan->notes, true, "nic",
                                   "%d of %d GPUs have no NIC on their NUMA node: their traffic "
                                   "to other hosts crosses the processors' link",
                                   far, plan->place_count));
    }
    return TSR_OK;
}

tsr_status tsri_topo_match_nics(const tsri_topo *topo, tsri_topo_plan *plan)
{
    const size_t nics = (size_t)topo->nic_count;
    matching m = {.topo = topo, .plan = plan};
    tsr_status status = TSR_OK;

    if (topo->nic_count == 0) {
        TSR_TRY(tsri_topo_note_add(&plan->notes, false, "nic", "the record has no NIC"));
        return TSR_OK;
    }
    if (plan->place_count == 0 || plan->places[0].gpu < 0) {
        return TSR_OK;
    }
    for (int i = 0; i < topo->nic_count; i++) {
        m.kind = topo->nics[i].kind > m.kind ? topo->nics[i].kind : m.kind;
    }
    for (int i = 0; i < topo->nic_count; i++) {
        const double share = TSRI_TOPO_LINK_SHARE * topo->nics[i].at.pci_gb_s;

        m.least_gb_s = topo->nics[i].kind == m.kind && share > m.least_gb_s ? share : m.least_gb_s;
    }
    TSR_TRY(tsri_alloc(nics, sizeof(int), &m.load));
    TSR_TRY_GOTO(status, tsri_alloc(nics, sizeof(int), &m.from), out);
    TSR_TRY_GOTO(status, tsri_alloc(nics, sizeof(int), &m.queue), out);
    for (int i = 0; i < plan->place_count; i++) {
        find_nearest(&m, i);
        assign(&m, i);
    }
    TSR_TRY_GOTO(status, note_nics(&m), out);
out:
    tsri_free(&m.load);
    tsri_free(&m.from);
    tsri_free(&m.queue);
    return status;
}
