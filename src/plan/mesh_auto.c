/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Choosing a mesh from hosts, ranks and memory. */
#include "plan/mesh_auto.h"

#include "base/base.h"

#include <string.h>

int tsri_mesh_hosts(const int *node_of, int ranks)
{
    int hosts = 1;

    for (int r = 1; r < ranks && node_of != NULL; r++) {
        hosts = node_of[r] >= hosts ? node_of[r] + 1 : hosts;
    }
    if (ranks % hosts != 0) {
        return 0;
    }
    for (int r = 0; r < ranks && node_of != NULL; r++) {
        if (node_of[r] != r / (ranks / hosts)) {
            return 0;
        }
    }
    return hosts;
}

static tsr_status add_axis(tsri_mesh_text *mesh, const char *name, int size)
{
    TSR_TRY(tsri_mesh_text_add(mesh, name, strlen(name), size));
    return TSR_OK;
}

tsr_status tsri_mesh_auto(const tsri_mesh_facts *facts, tsri_mesh_text *out, char *reason,
                          size_t size)
{
    const int hosts = facts->hosts;

    if (hosts == 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "mesh auto wants hosts with equal numbers of ranks, numbered host by host "
                         "(run.rank_order=host): start as many on each, or say the mesh, such as "
                         "mesh=shard=%d",
                         facts->ranks);
    }
    const int local = facts->ranks / hosts;
    const int tp = facts->tp > 0 ? facts->tp : 1;
    size_t used = 0;

    if (facts->ranks % hosts != 0 || local % tp != 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%d ranks on %d hosts, with tp of %d", facts->ranks,
                         hosts, tp);
    }
    if (hosts > 1) {
        TSR_TRY(add_axis(out, "replicate", hosts));
    }
    TSR_TRY(add_axis(out, "shard", local / tp));
    if (tp > 1) {
        TSR_TRY(add_axis(out, "tp", tp));
    }
    if (hosts > 1) {
        used = (size_t)snprintf(reason, size,
                                "replicate over the %d hosts, shard over the %d ranks of each: "
                                "gathers stay inside a host",
                                hosts, local);
    } else {
        used = (size_t)snprintf(reason, size, "one host: shard over its %d rank%s", local,
                                local == 1 ? "" : "s");
    }
    if (tp > 1 && used < size) {
        (void)snprintf(reason + used, size - used, "; tp %d, because a rank's memory asks for it",
                       tp);
    }
    return TSR_OK;
}
