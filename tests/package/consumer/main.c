/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file main.c
 * A program of somebody else's, in C and in C++: public headers and the installed library alone.
 */
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>
#include <tessera/version.h>

static tsr_status run(tsr_world *world)
{
    const tsr_mesh_axis axis = {"shard", 1};
    const int64_t shape[2] = {2, 3};
    const float in[6] = {1, 2, 3, 4, 5, 6};
    float out[6] = {0, 0, 0, 0, 0, 0};
    tsr_dtensor *x = NULL;
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;
    tsr_layout layout;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), &axis, 1, NULL, &mesh));
    TSR_TRY(tsr_comm_open(world, mesh, NULL, &comm));
    TSR_TRY(tsr_layout_data(comm, shape, 2, &layout));
    TSR_TRY(tsr_dtensor_create(comm, &layout, TSR_F32, "x", &x));
    TSR_TRY(tsr_dtensor_write(x, in));
    TSR_TRY(tsr_dtensor_read(x, out));
    tsr_dtensor_release(&x);
    tsr_comm_release(&comm);
    tsr_mesh_release(&mesh);
    if (memcmp(in, out, sizeof in) != 0 || strcmp(tsr_version(), TSR_VERSION_TEXT) != 0) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "version %s, expected %s", tsr_version(),
                         TSR_VERSION_TEXT);
    }
    printf("tessera %s\n", tsr_version());
    return TSR_OK;
}

int main(int argc, char **argv)
{
    tsr_world *world = NULL;

    if (tsr_world_open(&argc, &argv, NULL, &world) != TSR_OK || run(world) != TSR_OK) {
        tsr_error_print(stderr);
        return 1;
    }
    tsr_world_close(&world);
    return 0;
}
