/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Links between GPUs, of the bandwidth matrices in a record.
 *
 * A matrix may also hold switch ports and packages. Ports are merged into one switch, and then, and
 * only then, the closure gives the bandwidth between GPUs through it: on a machine without switches
 * the closure would erase the direct links. */
#include "topo_priv.h"

#include "base/base.h"

#include <hwloc/distances.h>

#include <string.h>

#define MB_PER_GB 1000.0

static int gpu_of(const tsri_topo *topo, hwloc_obj_t object)
{
    for (hwloc_obj_t o = object; o != NULL; o = o->parent) {
        if (o->type == HWLOC_OBJ_PCI_DEVICE) {
            return tsri_topo_gpu_at(topo, o->attr->pcidev.domain, o->attr->pcidev.bus,
                                    o->attr->pcidev.dev);
        }
    }
    /* A GPU without an address is known by its number alone. */
    for (int i = 0; i < topo->gpu_count; i++) {
        const tsri_topo_gpu *g = &topo->gpus[i];
        char name[32];

        if (g->at.busid[0] != '\0' || object == NULL || object->name == NULL) {
            continue;
        }
        (void)snprintf(name, sizeof(name), "%s%d", g->device >= 0 ? "cuda" : "nvml",
                       g->device >= 0 ? g->device : g->nvml);
        if (strcmp(name, object->name) == 0) {
            return i;
        }
    }
    return -1;
}

tsr_status tsri_topo_need_links(tsri_topo *topo, const char *kind)
{
    const size_t n = (size_t)topo->gpu_count;

    if (topo->links == NULL) {
        TSR_TRY(tsri_alloc(n * n, sizeof(*topo->links), &topo->links));
        (void)snprintf(topo->link_kind, sizeof(topo->link_kind), "%s", kind);
    }
    return TSR_OK;
}

static void take_values(const struct hwloc_distances_s *d, tsri_topo *topo)
{
    const int n = topo->gpu_count;

    for (unsigned i = 0; i < d->nbobjs; i++) {
        const int a = gpu_of(topo, d->objs[i]);

        for (unsigned k = 0; k < d->nbobjs && a >= 0; k++) {
            const int b = gpu_of(topo, d->objs[k]);
            const double gb_s = (double)d->values[(size_t)i * d->nbobjs + k] / MB_PER_GB;

            if (b >= 0 && b != a && gb_s > topo->links[a * n + b] && gb_s < 1e6) {
                topo->links[a * n + b] = gb_s;
                topo->links[b * n + a] = gb_s;
            }
        }
    }
}

static tsr_status read_matrix(hwloc_topology_t h, const char *name, const char *kind,
                              tsri_topo *topo)
{
    struct hwloc_distances_s *d = NULL;
    unsigned count = 1;

    if (hwloc_distances_get_by_name(h, name, &count, &d, 0) != 0 || count == 0 || d == NULL) {
        return TSR_OK;
    }
    if (hwloc_distances_transform(h, d, HWLOC_DISTANCES_TRANSFORM_MERGE_SWITCH_PORTS, NULL, 0) ==
        0) {
        topo->link_switched = hwloc_distances_transform(
                                  h, d, HWLOC_DISTANCES_TRANSFORM_TRANSITIVE_CLOSURE, NULL, 0) == 0;
    }
    const tsr_status status = tsri_topo_need_links(topo, kind);

    if (status == TSR_OK) {
        take_values(d, topo);
    }
    hwloc_distances_release(h, d);
    TSR_TRY(status);
    return TSR_OK;
}

tsr_status tsri_topo_read_links(hwloc_topology_t h, tsri_topo *topo)
{
    static const struct {
        const char *name, *kind;
    } matrices[] = {
        {"NVLinkBandwidth", "NVLink"}, {"XGMIBandwidth", "XGMI"}, {"XeLinkBandwidth", "Xe Link"}};

    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]) && topo->gpu_count > 0; i++) {
        if (topo->links == NULL) {
            TSR_TRY(read_matrix(h, matrices[i].name, matrices[i].kind, topo));
        }
    }
    return TSR_OK;
}
