/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Which of a machine's GPUs ranks can have, and what is to be said of the others and of the
 * numbers.
 *
 * Ranks have GPUs of one maker: those that its library numbers, else those that the bus calls GPUs;
 * what OpenCL alone names comes last, because a processor's own graphics is of that kind. */
#include "mapping_priv.h"
#include "topo_priv.h"

#include "base/base.h"

#include <string.h>

/* What a maker's programs are told by. */
typedef struct maker {
    int vendor;
    const char *hides;   /* the setting that hides GPUs */
    const char *numbers; /* how devices are numbered where the record does not say */
    const char *order;   /* what numbers them in PCI order */
} maker;

static const maker makers[] = {
    {TSRI_TOPO_NVIDIA, "CUDA_VISIBLE_DEVICES",
     "with CUDA_DEVICE_ORDER=PCI_BUS_ID devices are numbered in the order of GPUs that are not "
     "hidden",
     "set CUDA_DEVICE_ORDER=PCI_BUS_ID"},
    {TSRI_TOPO_AMD, "ROCR_VISIBLE_DEVICES",
     "devices are numbered in the order in which ROCR_VISIBLE_DEVICES lists them",
     "list them in that order in ROCR_VISIBLE_DEVICES"},
    {TSRI_TOPO_INTEL, "ZE_AFFINITY_MASK",
     "ZE_AFFINITY_MASK chooses devices, and with ZE_ENABLE_PCI_ID_DEVICE_ORDER=1 they are numbered "
     "in the order of GPUs that are not hidden",
     "set ZE_ENABLE_PCI_ID_DEVICE_ORDER=1"},
    {0, "that of the GPUs' library", "their library says how it numbers them",
     "have their library number them in PCI order"},
};

static const maker *maker_of(int vendor)
{
    const maker *m = makers;

    while (m->vendor != 0 && m->vendor != vendor) {
        m++;
    }
    return m;
}

/* ---- which GPUs ranks can have ---- */

/* How much is known of a maker's best GPU. */
static int knowledge(const tsri_topo *topo, int vendor)
{
    int most = 0;

    for (int i = 0; i < topo->gpu_count; i++) {
        const tsri_topo_gpu *g = &topo->gpus[i];
        const int known = g->device >= 0 ? 4 : g->nvml >= 0 ? 3 : !g->opencl_alone ? 2 : 1;

        most = g->vendor == vendor && known > most ? known : most;
    }
    return most;
}

static int count_of(const tsri_topo *topo, int vendor)
{
    int count = 0;

    for (int i = 0; i < topo->gpu_count; i++) {
        count += topo->gpus[i].vendor == vendor;
    }
    return count;
}

/* The maker of whose GPUs most is known; of equals the one with more, else the first. */
static int choose_maker(const tsri_topo *topo)
{
    int best = topo->gpu_count > 0 ? topo->gpus[0].vendor : 0;

    for (int i = 1; i < topo->gpu_count; i++) {
        const int vendor = topo->gpus[i].vendor;
        const int more = knowledge(topo, vendor) - knowledge(topo, best);

        if (more > 0 || (more == 0 && count_of(topo, vendor) > count_of(topo, best))) {
            best = vendor;
        }
    }
    return best;
}

void tsri_topo_find_hidden(tsri_topo *topo)
{
    const int vendor = choose_maker(topo);
    int devices = 0;
    int nvml = 0;
    int opencl = 0;

    for (int i = 0; i < topo->gpu_count; i++) {
        const tsri_topo_gpu *g = &topo->gpus[i];

        devices += g->vendor == vendor && g->device >= 0;
        nvml += g->vendor == vendor && g->nvml >= 0;
        opencl += g->vendor == vendor && g->opencl;
    }
    for (int i = 0; i < topo->gpu_count; i++) {
        tsri_topo_gpu *g = &topo->gpus[i];

        g->visible = g->vendor == vendor && (devices > 0  ? g->device >= 0
                                             : nvml > 0   ? g->nvml >= 0
                                             : opencl > 0 ? g->opencl
                                                          : true);
    }
}

/* ---- words ---- */

static tsr_status note_others(const tsri_topo *topo, tsri_topo_mapping *mapping)
{
    const int vendor = tsri_topo_maker(topo);
    int hidden[TSRI_TOPO_MAX_GPUS];
    int foreign[TSRI_TOPO_MAX_GPUS];
    int hidden_count = 0;
    int foreign_count = 0;
    char text[256];

    for (int i = 0; i < topo->gpu_count; i++) {
        if (topo->gpus[i].vendor != vendor) {
            foreign[foreign_count++] = i;
        } else if (!topo->gpus[i].visible) {
            hidden[hidden_count++] = i;
        }
    }
    if (hidden_count > 0) {
        TSR_TRY(tsri_topo_note_add(
            &mapping->notes, true, "gpus",
            "%d of %d GPUs on the bus (GPU %s) cannot be opened here: a control group or a "
            "setting such as %s hides them; direct traffic to them fails, so ask the batch system "
            "for GPUs per node, not per task",
            hidden_count, topo->gpu_count,
            tsri_topo_ranges(hidden, hidden_count, text, sizeof(text)), maker_of(vendor)->hides));
    }
    if (foreign_count > 0) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "gpus",
                                   "%d of %d GPUs (GPU %s) without a rank: of another maker than "
                                   "those of which the record "
                                   "knows most",
                                   foreign_count, topo->gpu_count,
                                   tsri_topo_ranges(foreign, foreign_count, text, sizeof(text))));
    }
    return TSR_OK;
}

static tsr_status note_numbers(const tsri_topo *topo, tsri_topo_mapping *mapping)
{
    const maker *m = maker_of(tsri_topo_maker(topo));
    int last = -1;
    bool differ = false;
    bool unknown = false;

    for (int i = 0; i < topo->gpu_count; i++) {
        const tsri_topo_gpu *g = &topo->gpus[i];

        unknown = unknown || (g->visible && g->device < 0);
        differ = differ || (g->visible && g->device >= 0 && g->device < last);
        last = g->visible && g->device > last ? g->device : last;
    }
    if (unknown) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, false, "gpus",
                                   "the record has no device numbers; %s", m->numbers));
    }
    if (differ) {
        TSR_TRY(tsri_topo_note_add(&mapping->notes, true, "gpus",
                                   "devices are not numbered in PCI order: open the number shown "
                                   "beside each GPU, or %s",
                                   m->order));
    }
    return TSR_OK;
}

tsr_status tsri_topo_note_gpus(const tsri_topo *topo, tsri_topo_mapping *mapping)
{
    TSR_TRY(note_others(topo, mapping));
    TSR_TRY(note_numbers(topo, mapping));
    return TSR_OK;
}
