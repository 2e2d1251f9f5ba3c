/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file where.c
 * Prints, per rank of a mesh replicate=2 shard=2, where it runs and which way its groups go.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"

#include "tessera/comm.h"
#include "tessera/world.h"

#include "comm/comm.h"

static tsr_status find_way(tsr_comm *comm, unsigned mask, const char **out)
{
    tsr_group *group = NULL;

    TSR_TRY(tsri_comm_group(comm, mask, TSRI_STREAM_COMPUTE, &group));
    *out = ((const tsri_cpu_group *)group)->shared ? "memory" : "messages";
    return TSR_OK;
}

static tsr_status show(tsr_world *world)
{
    static const tsr_mesh_axis axes[] = {{"replicate", 2}, {"shard", 2}};
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;
    const char *replicate = NULL;
    const char *shard = NULL;
    const tsri_boot_info *info = tsri_boot_get_info();
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), axes, 2, NULL, &mesh));
    TSR_TRY_GOTO(status, tsr_comm_open(world, mesh, NULL, &comm), free_mesh);
    TSR_TRY_GOTO(status, find_way(comm, 1, &replicate), free_comm);
    TSR_TRY_GOTO(status, find_way(comm, 2, &shard), free_comm);
    (void)printf("rank %d: host %d of %d, local rank %d of %d, shard by %s, replicate by %s\n",
                 info->rank, info->node, info->node_count, info->local_rank, info->local_size,
                 shard, replicate);
free_comm:
    tsr_comm_release(&comm);
free_mesh:
    tsr_mesh_release(&mesh);
    return status;
}

int main(int argc, char **argv)
{
    tsr_world *world = NULL;
    tsr_status status = tsr_world_open(&argc, &argv, NULL, &world);

    if (status == TSR_OK) {
        status = show(world);
    }
    if (status != TSR_OK) {
        tsr_error_print(stderr);
        return 1;
    }
    tsr_world_close(&world);
    return 0;
}
