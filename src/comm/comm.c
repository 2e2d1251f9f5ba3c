/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file comm.c
 * A mesh on a device: opened in steps, each agreed on by all ranks before the next begins.
 *
 * Order of opening: device, recorder, streams, arena, groups on the compute stream. Closing
 * goes backwards, after every stream has finished, because work in flight uses the groups.
 */
#include "comm_priv.h"

#include <stdlib.h>
#include <string.h>

static tsr_status sum_order(const tsr_mesh *mesh, uint64_t *sum)
{
    int coord[TSR_MESH_MAX_AXES];

    for (int r = 0; r < tsr_mesh_cell_count(mesh); r++) {
        TSR_TRY(tsr_mesh_coord(mesh, r, coord));
        *sum = tsri_hash(coord, sizeof(int) * (size_t)tsr_mesh_axis_count(mesh), *sum);
    }
    return TSR_OK;
}

/* Same axes, sizes, names and rank order everywhere. */
static tsr_status check_mesh(tsr_world *world, const tsr_mesh *mesh)
{
    char text[TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 12)];
    int cells = tsr_mesh_cell_count(mesh);
    uint64_t sum = 0;
    tsr_status mine = TSR_OK;

    (void)tsr_mesh_format(mesh, text, sizeof(text));
    TSR_TRY(tsr_world_check_same(world, "the mesh", text, strlen(text)));
    if (cells != world->size) {
        mine = TSR_RAISE(TSR_ERR_INVALID, "mesh %s has %d ranks, the job has %d", text, cells,
                         world->size);
    } else {
        mine = sum_order(mesh, &sum);
    }
    TSR_TRY(tsri_world_agree(world, "opening a comm", mine));
    TSR_TRY(tsr_world_check_same(world, "the mesh's rank order", &sum, sizeof(sum)));
    return TSR_OK;
}

static tsr_status open_device(tsr_comm *comm)
{
    const tsr_world *world = comm->world;
    tsri_device_options options = {
        .world_rank = world->rank,
        .world_size = world->size,
        .team = world->team,
        .local_rank = tsri_boot_get_info()->local_rank,
        .threads = world->threads,
        .timeout_s = world->timeout_s,
    };

    TSR_TRY(tsri_device_open(world->backend, &options, &comm->device));
    return TSR_OK;
}

static bool race_check_asked(void)
{
    const char *asked = getenv("TSR_RACE_CHECK");

    return asked != NULL && strcmp(asked, "1") == 0;
}

static tsr_status open_local(tsr_comm *comm, const tsr_comm_options *options)
{
    tsri_comm_ledgers *kept = comm->world->kept;
    tsri_recorder_options record = {
        .ledger = options->record || kept != NULL,
        .own = kept != NULL,
        .race_check = options->race_check || race_check_asked(),
    };

    comm->records = record.ledger;
    if (kept != NULL) {
        tsri_keep_open(kept, comm);
    }
    if (record.ledger || record.race_check) {
        TSR_TRY(tsri_recorder_attach(comm->device, &record));
    }
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        TSR_TRY(tsri_stream_open(comm->device, (tsri_stream_kind)kind, &comm->stream[kind]));
    }
    TSR_TRY(tsri_arena_create(comm->device, &comm->arena));
    return TSR_OK;
}

static void close_device(tsr_comm *comm)
{
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        if (comm->stream[kind] != NULL) {
            (void)tsri_stream_sync(comm->stream[kind]);
        }
    }
    tsri_comm_groups_close(comm);
    if (comm->arena != NULL) {
        tsri_arena_destroy(&comm->arena);
    }
    for (int kind = TSRI_STREAM_COUNT - 1; kind >= 0; kind--) {
        if (comm->stream[kind] != NULL) {
            tsri_stream_close(&comm->stream[kind]);
        }
    }
    if (comm->device != NULL) {
        tsri_recorder_detach(comm->device);
        tsri_device_close(&comm->device);
    }
}

static void destroy_comm(tsr_comm *comm)
{
    tsr_world *world = comm->world;

    tsri_error_hold();
    if (world->kept != NULL) {
        tsri_keep_ledger(world->kept, comm);
    }
    close_device(comm);
    tsr_mesh_release(&comm->mesh);
    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        tsri_free(&comm->claimant[axis]);
    }
    tsri_world_detach(world, comm);
    tsri_free(&comm);
    tsri_error_release();
}

tsr_status tsr_comm_open(tsr_world *world, tsr_mesh *mesh, const tsr_comm_options *options,
                         tsr_comm **out)
{
    TSRI_WANT(world, mesh, out);

    static const tsr_comm_options defaults = {0};
    tsr_status status = TSR_OK;
    tsr_comm *comm = NULL;

    TSR_TRY(check_mesh(world, mesh));
    status = tsri_world_agree(world, "opening a comm", tsri_alloc(1, sizeof(*comm), &comm));
    if (status != TSR_OK) { /* here, or on another rank */
        tsri_free(&comm);
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    atomic_init(&comm->owners, 1);
    comm->world = world;
    comm->mesh = tsr_mesh_retain(mesh);
    tsri_comm_carry_data(comm, (1U << tsr_mesh_axis_count(mesh)) - 1U);
    tsri_world_attach(world, comm);
    TSR_TRY_GOTO(status, tsr_mesh_coord(mesh, world->rank, comm->coord), fail);
    TSR_TRY_GOTO(status, tsri_world_agree(world, "opening a device", open_device(comm)), fail);
    TSR_TRY_GOTO(status,
                 tsri_world_agree(world, "opening streams",
                                  open_local(comm, options != NULL ? options : &defaults)),
                 fail);
    TSR_TRY_GOTO(status,
                 tsri_world_agree(world, "opening groups",
                                  tsri_comm_open_sets(comm, comm->batch_axes, TSRI_STREAM_COMPUTE)),
                 fail);
    *out = comm;
    return TSR_OK;

fail:
    destroy_comm(comm);
    return status;
}

tsr_comm *tsr_comm_retain(tsr_comm *comm)
{
    TSRI_WANT_OR(comm, NULL);
    (void)atomic_fetch_add_explicit(&comm->owners, 1, memory_order_relaxed);
    return comm;
}

void tsr_comm_release(tsr_comm **comm)
{
    TSRI_WANT_VOID(comm);

    tsr_comm *old = *comm;

    *comm = NULL;
    if (old != NULL && atomic_fetch_sub_explicit(&old->owners, 1, memory_order_acq_rel) == 1) {
        destroy_comm(old);
    }
}

tsr_mesh *tsr_comm_mesh(const tsr_comm *comm)
{
    TSRI_WANT_OR(comm, NULL);
    return comm->mesh;
}

tsr_world *tsr_comm_world(const tsr_comm *comm)
{
    TSRI_WANT_OR(comm, NULL);
    return comm->world;
}

int tsr_comm_rank(const tsr_comm *comm)
{
    TSRI_WANT_OR(comm, 0);
    return comm->world->rank;
}

int tsr_comm_coord(const tsr_comm *comm, int axis)
{
    TSRI_WANT_OR(comm, 0);
    return axis < 0 || axis >= tsr_mesh_axis_count(comm->mesh) ? 0 : comm->coord[axis];
}

void tsr_comm_memory(const tsr_comm *comm, size_t *now_out, size_t *peak_out)
{
    TSRI_WANT_VOID(comm);
    TSRI_WANT_VOID(now_out);
    TSRI_WANT_VOID(peak_out);
    *now_out = comm->device->bytes_now;
    *peak_out = comm->device->bytes_peak;
}

tsr_device *tsri_comm_device(const tsr_comm *comm)
{
    return comm->device;
}

tsr_stream *tsri_comm_stream(const tsr_comm *comm, tsri_stream_kind kind)
{
    return comm->stream[kind];
}

tsri_arena *tsri_comm_arena(const tsr_comm *comm)
{
    return comm->arena;
}

uint64_t tsri_comm_next_epoch(tsr_comm *comm)
{
    return ++comm->epoch;
}

tsr_status tsri_comm_buffer(tsr_comm *comm, size_t bytes, tsri_mem_kind kind, const char *label,
                            tsr_buffer **out)
{
    TSR_TRY(tsri_buffer_alloc(comm->device, bytes, kind, label, out));
    return TSR_OK;
}

tsr_status tsri_comm_host_buffer(tsr_comm *comm, size_t bytes, tsri_mem_kind kind,
                                 const char *label, tsr_buffer **out)
{
    TSR_TRY(tsri_buffer_alloc_host(comm->device, bytes, kind, label, out));
    return TSR_OK;
}

tsr_status tsri_comm_exchange(tsr_comm *comm, const char *purpose, const void *in, size_t bytes,
                              void *all)
{
    const tsr_world *world = comm->world;

    if (world->simulated || world->size == 1) {
        memcpy((unsigned char *)all + (size_t)world->rank * bytes, in, bytes);
        return TSR_OK;
    }
    TSR_TRY(tsri_team_all_gather(world->team, purpose, TSR_OK, in, bytes, all));
    return TSR_OK;
}
