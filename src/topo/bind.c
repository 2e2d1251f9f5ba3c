/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Binding by hwloc. Every rank of a host reads the same machine and makes the same mapping, so
 * shares fit together without a word between ranks. */
#include "topo/bind.h"

#include "topo_priv.h"

#include "base/base.h"

#include <errno.h>
#include <string.h>

#include "topo/mapping.h"

/* A launcher that gave this process less than the machine has made the choice. */
static bool is_free(hwloc_topology_t h)
{
    hwloc_bitmap_t now = hwloc_bitmap_alloc();
    const bool result = now != NULL && hwloc_get_cpubind(h, now, HWLOC_CPUBIND_PROCESS) == 0 &&
                        hwloc_bitmap_isincluded(hwloc_topology_get_allowed_cpuset(h), now) != 0;

    hwloc_bitmap_free(now);
    return result;
}

static bool bind_cores(hwloc_topology_t h, const tsri_topo *topo, const tsri_topo_mapping *mapping,
                       const tsri_topo_place *place)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    bool result = set != NULL;

    for (int i = 0; i < place->core_count && result; i++) {
        const tsri_topo_core *core = &topo->cores[mapping->cores[place->core_first + i]];

        for (int k = 0; k < core->pu_count; k++) {
            result = result && hwloc_bitmap_set(set, (unsigned)topo->pus[core->pu_first + k]) == 0;
        }
    }
    result = result && hwloc_set_cpubind(h, set, HWLOC_CPUBIND_PROCESS) == 0;
    hwloc_bitmap_free(set);
    return result;
}

/* Not strict: a full node lends from its neighbours. Threads started later inherit it. */
static bool bind_memory(hwloc_topology_t h, const tsri_topo *topo, int numa)
{
    bool result = false;
    hwloc_bitmap_t set = NULL;

    if (numa < 0 || topo->numa_count < 2) {
        return false;
    }
    set = hwloc_bitmap_alloc();
    result = set != NULL && hwloc_bitmap_set(set, (unsigned)topo->numas[numa].os_index) == 0 &&
             hwloc_set_membind(h, set, HWLOC_MEMBIND_BIND,
                               HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) == 0;
    hwloc_bitmap_free(set);
    return result;
}

static void bind_place(hwloc_topology_t h, const tsri_topo *topo, const tsri_topo_mapping *mapping,
                       int local_rank, tsri_topo_binding *out)
{
    const tsri_topo_place *place = &mapping->places[local_rank];
    char numa[48] = "";

    if (place->core_count == 0) {
        (void)snprintf(out->text, sizeof(out->text), "ranks are not bound: %d ranks on %d core%s",
                       mapping->place_count, topo->core_count, topo->core_count == 1 ? "" : "s");
        return;
    }
    if (place->core_count == topo->core_count) {
        (void)snprintf(out->text, sizeof(out->text),
                       "ranks are not bound: a rank has the machine for itself");
        return;
    }
    if (!is_free(h)) {
        (void)snprintf(out->text, sizeof(out->text),
                       "ranks are not bound: the launcher has bound it already");
        return;
    }
    if (!bind_cores(h, topo, mapping, place)) {
        (void)snprintf(out->text, sizeof(out->text), "ranks are not bound: %s", strerror(errno));
        return;
    }
    if (bind_memory(h, topo, place->numa)) {
        (void)snprintf(numa, sizeof(numa), ", with memory of NUMA node %d",
                       topo->numas[place->numa].os_index);
    }
    out->bound = true;
    out->core_count = place->core_count;
    (void)snprintf(out->text, sizeof(out->text), "each rank has %d whole core%s of its own%s",
                   place->core_count, place->core_count == 1 ? "" : "s", numa);
}

tsr_status tsri_topo_bind(int local_rank, int local_size, bool cores_only, tsri_topo_binding *out)
{
    const tsri_topo_ask ask = {.ranks = local_size, .cores_only = cores_only};
    tsri_topo *topo = NULL;
    tsri_topo_mapping *mapping = NULL;
    hwloc_topology_t h = NULL;
    tsr_status status = TSR_OK;

    *out = (tsri_topo_binding){.bound = false};
    if (local_rank < 0 || local_rank >= local_size) {
        return TSR_RAISE(TSR_ERR_INVALID, "local rank %d of %d", local_rank, local_size);
    }
    TSR_TRY(tsri_topo_read(cores_only ? TSRI_TOPO_LIVE_CORES : TSRI_TOPO_LIVE, NULL, &topo));
    TSR_TRY_GOTO(status, tsri_topo_mapping_create(topo, &ask, &mapping), free_topo);
    if (hwloc_topology_init(&h) != 0) {
        status = TSR_RAISE(TSR_ERR_NOMEM, "hwloc has no memory");
        goto free_topo;
    }
    if (hwloc_topology_load(h) == 0 && hwloc_topology_is_thissystem(h) != 0) {
        bind_place(h, topo, mapping, local_rank, out);
    } else {
        (void)snprintf(out->text, sizeof(out->text),
                       "ranks are not bound: hwloc shows another machine");
    }
    hwloc_topology_destroy(h);
free_topo:
    tsri_topo_mapping_free(&mapping);
    tsri_topo_free(&topo);
    return status;
}
