/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file comm_group.c
 * Groups over any set of mesh axes, opened once per set and stream, before they are needed: what
 * some ranks alone come to need in a step is there, and costs no set-up time in it.
 *
 * A set is known by its axes of size > 1 alone, so that asking for "shard" and for "shard+tp" with
 * tp of size 1 gives one group and one row in the ledger. How long each took is in the log at level
 * info.
 */
#include "comm_priv.h"

#include <string.h>

enum {
    NAME_BYTES = TSR_MESH_MAX_AXES * TSR_MESH_NAME_BYTES,
    MOST_SETS_OF = 5 /* axes, all sets of which get a group */
};

static unsigned used_axes(const tsr_comm *comm, unsigned axis_mask)
{
    unsigned used = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(comm->mesh); axis++) {
        if (tsr_mesh_axis_size(comm->mesh, axis) > 1) {
            used |= axis_mask & 1U << axis;
        }
    }
    return used;
}

static tsr_group *find_open(const tsr_comm *comm, unsigned axis_mask, tsri_stream_kind kind)
{
    for (int i = 0; i < comm->group_count; i++) {
        if (comm->groups[i].axis_mask == axis_mask && comm->groups[i].kind == kind) {
            return comm->groups[i].group;
        }
    }
    return NULL;
}

static tsr_status open_group(tsr_comm *comm, unsigned axis_mask, tsri_stream_kind kind, int *ranks)
{
    char name[NAME_BYTES];
    comm_group *entry = NULL;
    const double begin_s = tsri_now_s();
    int size = 0;
    int index = 0;

    TSR_TRY(tsri_grow(&comm->groups, &comm->group_capacity, comm->group_count + 1,
                      sizeof(*comm->groups)));
    TSR_TRY(tsr_mesh_flat_ranks(comm->mesh, axis_mask, comm->world->rank, ranks, &size, &index));
    entry = &comm->groups[comm->group_count];
    *entry = (comm_group){.axis_mask = axis_mask, .kind = kind};
    TSR_TRY(tsri_group_open(comm->device, ranks, size, index, axis_mask,
                            tsri_comm_mask_name(comm, axis_mask, name, sizeof(name)),
                            comm->stream[kind], &entry->group));
    comm->group_count++;
    tsri_log(TSRI_LOG_INFO, "group %s of %d ranks on stream %s opened in %.3f ms", name, size,
             tsri_stream_name(kind), (tsri_now_s() - begin_s) * 1e3);
    return TSR_OK;
}

static tsr_status check_mask(const tsr_comm *comm, unsigned axis_mask)
{
    const int count = tsr_mesh_axis_count(comm->mesh);
    char text[192];
    int axis = count;

    if (axis_mask >> count == 0) {
        return TSR_OK;
    }
    while ((axis_mask >> axis & 1U) == 0) {
        axis++;
    }
    return TSR_RAISE(TSR_ERR_INVALID, "a group over axis %d of mesh %s, whose axes are 0 to %d",
                     axis, tsr_mesh_format(comm->mesh, text, sizeof(text)), count - 1);
}

tsr_status tsri_comm_open_group(tsr_comm *comm, unsigned axis_mask, tsri_stream_kind kind,
                                tsr_group **out)
{
    tsr_status status = TSR_OK;
    unsigned used = used_axes(comm, axis_mask);
    int *ranks = NULL;

    TSR_TRY(check_mask(comm, axis_mask));
    *out = find_open(comm, used, kind);
    if (*out != NULL) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc((size_t)comm->world->size, sizeof(*ranks), &ranks));
    TSR_TRY_GOTO(status, open_group(comm, used, kind, ranks), free_ranks);
    *out = find_open(comm, used, kind);

free_ranks:
    tsri_free(&ranks);
    return status;
}

tsr_status tsri_comm_group(tsr_comm *comm, unsigned axis_mask, tsri_stream_kind kind,
                           tsr_group **out)
{
    char name[NAME_BYTES];

    TSR_TRY(check_mask(comm, axis_mask));
    *out = find_open(comm, used_axes(comm, axis_mask), kind);
    if (*out == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "no group over \"%s\" is open on stream %s: groups are opened with the "
                         "comm (of each set of its axes, where at most %d have more than one rank, "
                         "else of each axis and of all) and with a model, not in a step",
                         tsri_comm_mask_name(comm, axis_mask, name, sizeof(name)),
                         tsri_stream_name(kind), MOST_SETS_OF);
    }
    return TSR_OK;
}

tsr_status tsri_comm_open_sets(tsr_comm *comm, unsigned axis_mask, tsri_stream_kind kind)
{
    const unsigned used = used_axes(comm, axis_mask);
    tsr_group *group = NULL;
    int count = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(comm->mesh); axis++) {
        count += (int)(used >> axis & 1U);
    }
    for (unsigned mask = 0; mask <= used; mask++) {
        const bool single = (mask & (mask - 1U)) == 0 || mask == used;

        if ((mask & ~used) == 0 && (single || count <= MOST_SETS_OF)) {
            TSR_TRY(tsri_comm_open_group(comm, mask, kind, &group));
        }
    }
    return TSR_OK;
}

void tsri_comm_groups_close(tsr_comm *comm)
{
    while (comm->group_count > 0) {
        comm->group_count--;
        tsri_group_close(&comm->groups[comm->group_count].group);
    }
    tsri_free(&comm->groups);
    comm->group_capacity = 0;
}

tsr_status tsri_comm_all_reduce(tsr_comm *comm, unsigned axis_mask, tsr_buffer *buffer,
                                size_t offset, int64_t n, tsr_dtype dtype, tsri_reduce_op op,
                                const char *label)
{
    tsri_coll_item item = {buffer, offset, buffer, offset, n};
    tsri_coll coll = {
        .kind = TSRI_ALL_REDUCE,
        .dtype = dtype,
        .op = op,
        .items = &item,
        .item_count = 1,
        .label = label,
    };
    tsr_group *group = NULL;

    TSR_TRY(tsri_comm_group(comm, axis_mask, TSRI_STREAM_COMPUTE, &group));
    TSR_TRY(tsri_collective(group, &coll, comm->stream[TSRI_STREAM_COMPUTE]));
    return TSR_OK;
}

const char *tsri_comm_mask_name(const tsr_comm *comm, unsigned axis_mask, char *text, size_t size)
{
    size_t used = 0;

    (void)snprintf(text, size, "%s", axis_mask == 0 ? "none" : "");
    for (int axis = 0; axis < tsr_mesh_axis_count(comm->mesh) && used < size; axis++) {
        if ((axis_mask >> axis & 1U) != 0) {
            int wrote = snprintf(text + used, size - used, "%s%s", used > 0 ? "+" : "",
                                 tsr_mesh_axis_name(comm->mesh, axis));
            used += wrote > 0 ? (size_t)wrote : 0;
        }
    }
    return text;
}

tsr_status tsr_comm_sent_bytes(const tsr_comm *comm, const char *axes, size_t *bytes_out)
{
    TSRI_WANT(comm, axes, bytes_out);

    const unsigned end = 1U << tsr_mesh_axis_count(comm->mesh);
    char name[NAME_BYTES];
    unsigned mask = 1;

    if (!comm->records) {
        return TSR_RAISE(TSR_ERR_STATE, "bytes over \"%s\" of a comm opened without record", axes);
    }
    while (mask < end && strcmp(tsri_comm_mask_name(comm, mask, name, sizeof(name)), axes) != 0) {
        mask++;
    }
    if (mask == end) {
        return TSR_RAISE(TSR_ERR_INVALID, "bytes over \"%s\", the mesh has %s", axes,
                         tsri_comm_mask_name(comm, end - 1, name, sizeof(name)));
    }
    *bytes_out = tsri_recorder_sent_bytes(comm->device, used_axes(comm, mask));
    return TSR_OK;
}
