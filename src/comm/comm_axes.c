/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file comm_axes.c
 * What each mesh axis is for: it carries data, or somebody claimed it. Never both.
 *
 * Until data axes are named, every axis that nobody claimed is one.
 */
#include "comm_priv.h"

#include <string.h>

static void list_axes(const tsr_mesh *mesh, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh) && used < size; axis++) {
        int wrote = snprintf(text + used, size - used, "%s%s", axis > 0 ? ", " : "",
                             tsr_mesh_axis_name(mesh, axis));
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static tsr_status find_axis(const tsr_comm *comm, const char *name, const char *who, int *out)
{
    char text[TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 2)];
    const char *names[TSR_MESH_MAX_AXES];
    const char *near = NULL;
    int count = tsr_mesh_axis_count(comm->mesh);

    *out = tsr_mesh_axis_find(comm->mesh, name);
    if (*out >= 0) {
        return TSR_OK;
    }
    for (int axis = 0; axis < count; axis++) {
        names[axis] = tsr_mesh_axis_name(comm->mesh, axis);
    }
    near = tsri_nearest(name, names, count);
    list_axes(comm->mesh, text, sizeof(text));
    return TSR_RAISE(TSR_ERR_INVALID, "%s names axis \"%s\", the mesh has: %s%s%s", who, name, text,
                     near != NULL ? "; nearest: " : "", near != NULL ? near : "");
}

/* An axis that carries data does both: rows are split over it, and each rank's gradient is a term
 * of the sum. One that splits the input otherwise would do one of them. */
void tsri_comm_carry_data(tsr_comm *comm, unsigned mask)
{
    comm->batch_axes = mask;
    comm->sum_axes = mask;
}

unsigned tsri_comm_batch_axes(const tsr_comm *comm)
{
    return comm->batch_axes;
}

unsigned tsri_comm_sum_axes(const tsr_comm *comm)
{
    return comm->sum_axes;
}

bool tsri_comm_splits_data(const tsr_comm *comm)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(comm->mesh); axis++) {
        if ((comm->batch_axes >> axis & 1U) != 0 && tsr_mesh_axis_size(comm->mesh, axis) > 1) {
            return true;
        }
    }
    return false;
}

tsr_status tsri_comm_claim_axis(tsr_comm *comm, const char *axis, const char *claimant)
{
    int at = -1;

    TSR_TRY(find_axis(comm, axis, claimant, &at));
    if (comm->claimant[at] != NULL) {
        if (strcmp(comm->claimant[at], claimant) == 0) {
            return TSR_OK;
        }
        return TSR_RAISE(TSR_ERR_INVALID, "axis \"%s\" is claimed by %s, %s cannot have it", axis,
                         comm->claimant[at], claimant);
    }
    if (comm->data_named && (comm->batch_axes >> at & 1U) != 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "axis \"%s\" is named as a data axis, %s cannot have it",
                         axis, claimant);
    }
    TSR_TRY(tsri_strdup(claimant, &comm->claimant[at]));
    tsri_comm_carry_data(comm, comm->batch_axes & ~(1U << at));
    return TSR_OK;
}

tsr_status tsri_comm_set_data_axes(tsr_comm *comm, const char *const *names, int count)
{
    unsigned mask = 0;

    for (int i = 0; i < count; i++) {
        int at = -1;

        TSR_TRY(find_axis(comm, names[i], "data_axes", &at));
        if ((mask >> at & 1U) != 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "data_axes names axis \"%s\" twice", names[i]);
        }
        if (comm->claimant[at] != NULL) {
            return TSR_RAISE(TSR_ERR_INVALID, "data_axes names axis \"%s\", which %s claimed",
                             names[i], comm->claimant[at]);
        }
        mask |= 1U << at;
    }
    tsri_comm_carry_data(comm, mask);
    comm->data_named = true;
    return TSR_OK;
}

tsr_status tsri_comm_check_axes(const tsr_comm *comm)
{
    char text[TSR_MESH_MAX_AXES * TSR_MESH_NAME_BYTES];
    unsigned idle = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(comm->mesh); axis++) {
        bool used =
            ((comm->batch_axes | comm->sum_axes) >> axis & 1U) != 0 || comm->claimant[axis] != NULL;

        if (!used && tsr_mesh_axis_size(comm->mesh, axis) > 1) {
            idle |= 1U << axis;
        }
    }
    if (idle != 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "axes %s are neither data axes nor claimed: their ranks would all do the "
                         "same",
                         tsri_comm_mask_name(comm, idle, text, sizeof(text)));
    }
    return TSR_OK;
}
