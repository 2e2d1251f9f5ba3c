/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Groups and collectives of the hostile backend.
 *
 * Every kind is one gather of all that the members put in, from which each member makes its part,
 * so sums have cpu's bits on all of them. Outputs are poisoned some time before inputs are read,
 * and what a reduce-scatter in place leaves of its input is poisoned at its end. */
#include "support/hostile_coll.h"

#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"
#include "backend/dispatch.h"
#include "base/base.h"

#include <mpi.h>

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct hostile_group {
    tsr_group head;
    char *name;
    int *world_ranks;
    MPI_Comm comm; /* MPI_COMM_NULL: a group of one */
    tsr_status broken;
    char text[400];
    bool abandoned; /* a call ended that others may still be in */
} hostile_group;

typedef enum phase {
    BEGIN,
    SEND,
    UNDER_WAY,
    OVER
} phase;

/* Addresses, since buffers may be gone before work that should have been waited for. */
typedef struct hostile_item {
    unsigned char *in, *out;
    int64_t count;
} hostile_item;

struct hostile_coll {
    tsri_coll head; /* without its items */
    hostile_item items[TSRI_COLL_MAX_ITEMS];
    hostile_group *group;
    phase at;
    unsigned char *mine, *all; /* [bytes], [size * bytes]: the members' inputs, packed */
    size_t bytes;
    MPI_Request request;
    double begin_s;
};

/* ---- ranges ---- */

typedef struct range {
    unsigned char *data;
    size_t bytes;
} range;

static int in_pieces(const hostile_coll *coll)
{
    return coll->head.kind == TSRI_REDUCE_SCATTER || coll->head.kind == TSRI_ALL_TO_ALL
               ? coll->group->head.size
               : 1;
}

static int out_pieces(const hostile_coll *coll)
{
    return coll->head.kind == TSRI_ALL_GATHER || coll->head.kind == TSRI_ALL_TO_ALL
               ? coll->group->head.size
               : 1;
}

static size_t piece_bytes(const hostile_coll *coll, int item)
{
    return (size_t)coll->items[item].count * tsr_dtype_size(coll->head.dtype);
}

static bool has_input(const hostile_coll *coll)
{
    return coll->head.kind != TSRI_BROADCAST || coll->head.root == coll->group->head.index;
}

static range input(const hostile_coll *coll, int item)
{
    if (!has_input(coll)) {
        return (range){NULL, 0};
    }
    return (range){coll->items[item].in, piece_bytes(coll, item) * (size_t)in_pieces(coll)};
}

static range output(const hostile_coll *coll, int item)
{
    return (range){coll->items[item].out, piece_bytes(coll, item) * (size_t)out_pieces(coll)};
}

static bool is_within(range part, range whole)
{
    return whole.data != NULL && part.data >= whole.data && part.data < whole.data + whole.bytes;
}

/* All of what but kept. */
static void poison(range what, range kept)
{
    for (size_t b = 0; b < what.bytes; b++) {
        unsigned char *at = what.data + b;

        if (kept.data == NULL || at < kept.data || at >= kept.data + kept.bytes) {
            *at = HOSTILE_POISON;
        }
    }
}

/* ---- the phases ---- */

static tsr_status send_inputs(hostile_coll *coll)
{
    unsigned char *to = coll->mine;

    for (int i = 0; i < coll->head.item_count; i++) {
        const range in = input(coll, i);

        if (in.bytes > 0) {
            memcpy(to, in.data, in.bytes);
        }
        to += piece_bytes(coll, i) * (size_t)in_pieces(coll);
    }
    if (MPI_Iallgather(coll->mine, (int)coll->bytes, MPI_BYTE, coll->all, (int)coll->bytes,
                       MPI_BYTE, coll->group->comm, &coll->request) != MPI_SUCCESS) {
        return TSR_RAISE(TSR_ERR_COMM, "MPI refuses %s", tsri_coll_name(coll->head.kind));
    }
    return TSR_OK;
}

/* What member gave of the item that begins at `at` in everyone's input. */
static const unsigned char *given(const hostile_coll *coll, int member, size_t at)
{
    return coll->all + (size_t)member * coll->bytes + at;
}

static tsr_status reduce(const hostile_coll *coll, int item, size_t at, unsigned char *to)
{
    const int size = coll->group->head.size;
    const void **sources = NULL;

    TSR_TRY(tsri_alloc((size_t)size, sizeof(*sources), &sources));
    for (int m = 0; m < size; m++) {
        sources[m] = given(coll, m, at);
    }
    tsri_cpu_reduce(coll->head.dtype, coll->head.op, sources, size, to, coll->items[item].count);
    tsri_free(&sources);
    return TSR_OK;
}

static tsr_status make_output(const hostile_coll *coll, int item, size_t at)
{
    const size_t piece = piece_bytes(coll, item);
    const size_t mine = piece * (size_t)coll->group->head.index;
    const range out = output(coll, item);

    switch (coll->head.kind) {
    case TSRI_ALL_GATHER:
    case TSRI_ALL_TO_ALL:
        for (int m = 0; m < coll->group->head.size; m++) {
            const size_t skip = coll->head.kind == TSRI_ALL_TO_ALL ? mine : 0;

            memcpy(out.data + (size_t)m * piece, given(coll, m, at + skip), piece);
        }
        return TSR_OK;
    case TSRI_BROADCAST:
        memcpy(out.data, given(coll, coll->head.root, at), piece);
        return TSR_OK;
    case TSRI_REDUCE_SCATTER:
        TSR_TRY(reduce(coll, item, at + mine, out.data));
        if (is_within(out, input(coll, item))) {
            poison(input(coll, item), out);
        }
        return TSR_OK;
    case TSRI_ALL_REDUCE:
    case TSRI_COLL_COUNT:
    default:
        TSR_TRY(reduce(coll, item, at, out.data));
        return TSR_OK;
    }
}

static tsr_status make_outputs(const hostile_coll *coll)
{
    size_t at = 0;

    for (int i = 0; i < coll->head.item_count; i++) {
        TSR_TRY(make_output(coll, i, at));
        at += piece_bytes(coll, i) * (size_t)in_pieces(coll);
    }
    return TSR_OK;
}

static void begin(hostile_coll *coll)
{
    for (int i = 0; i < coll->head.item_count; i++) {
        poison(output(coll, i), input(coll, i));
    }
}

static tsr_status look(hostile_coll *coll, bool *moved_out)
{
    const hostile_group *group = coll->group;
    int done = 0;

    if (MPI_Test(&coll->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        return TSR_RAISE(TSR_ERR_COMM, "MPI fails in %s over \"%s\"",
                         tsri_coll_name(coll->head.kind), group->name);
    }
    *moved_out = done != 0;
    return TSR_OK;
}

static tsr_status step(hostile_coll *coll, bool *moved_out)
{
    if (coll->group->broken != TSR_OK) {
        return TSR_RAISE(TSR_ERR_REMOTE, "group \"%s\" failed before: %s", coll->group->name,
                         coll->group->text);
    }
    *moved_out = true;
    switch (coll->at) {
    case BEGIN:
        begin(coll);
        coll->at = SEND;
        return TSR_OK;
    case SEND:
        TSR_TRY(send_inputs(coll));
        coll->begin_s = tsri_now_s();
        coll->at = UNDER_WAY;
        return TSR_OK;
    case UNDER_WAY:
    case OVER:
    default:
        TSR_TRY(look(coll, moved_out));
        if (*moved_out) {
            coll->at = OVER;
            TSR_TRY(make_outputs(coll));
        }
        return TSR_OK;
    }
}

tsr_status hostile_coll_step(hostile_coll *coll, bool *moved_out, bool *over_out)
{
    hostile_group *group = coll->group;
    const tsr_status status = step(coll, moved_out);

    // NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): look() completes the request
    *over_out = coll->at == OVER;
    if (status != TSR_OK) {
        group->broken = status;
        (void)snprintf(group->text, sizeof(group->text), "%s", tsr_error_message());
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return TSR_OK;
}

bool hostile_coll_has_begun(const hostile_coll *coll)
{
    return coll->at == SEND;
}

bool hostile_coll_is_late(const hostile_coll *coll, char *text, size_t size)
{
    const double limit_s = coll->group->head.device->timeout_s;

    if (coll->at != UNDER_WAY || tsri_now_s() - coll->begin_s <= limit_s) {
        return false;
    }
    (void)snprintf(text, size, "%s of %s over \"%s\": not every rank came within %g s",
                   tsri_coll_name(coll->head.kind),
                   coll->head.label == NULL ? "?" : coll->head.label, coll->group->name, limit_s);
    return true;
}

double hostile_coll_waits_s(const hostile_coll *coll)
{
    return coll->at == UNDER_WAY ? tsri_now_s() - coll->begin_s : (double)INFINITY;
}

void hostile_coll_free(hostile_coll **coll)
{
    if (*coll == NULL) {
        return;
    }
    (*coll)->group->abandoned = (*coll)->group->abandoned || (*coll)->at != OVER;
    if ((*coll)->at != UNDER_WAY) { /* what MPI may still write to is never freed */
        tsri_free(&(*coll)->mine);
        tsri_free(&(*coll)->all);
    }
    tsri_free(coll);
}

tsr_status hostile_collective(tsr_group *group, const tsri_coll *coll, tsr_stream *stream)
{
    hostile_device *device = (hostile_device *)group->device;
    hostile_coll *mine = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*mine), &mine));
    mine->head = *coll;
    mine->group = (hostile_group *)group;
    mine->head.items = NULL;
    for (int i = 0; i < coll->item_count; i++) {
        const tsri_coll_item *item = &coll->items[i];

        mine->items[i] = (hostile_item){
            .in = item->in == NULL ? NULL : (unsigned char *)item->in->address + item->in_offset,
            .out = (unsigned char *)item->out->address + item->out_offset,
            .count = item->count};
        mine->bytes += piece_bytes(mine, i) * (size_t)in_pieces(mine);
    }
    if (mine->bytes > INT_MAX) {
        status = TSR_RAISE(TSR_ERR_UNSUPPORTED, "a collective of %zu bytes", mine->bytes);
        goto free_coll;
    }
    TSR_TRY_GOTO(status, tsri_alloc(mine->bytes, 1, &mine->mine), free_coll);
    TSR_TRY_GOTO(status, tsri_alloc(mine->bytes * (size_t)group->size, 1, &mine->all), free_coll);
    const hostile_op op = {.kind = HOSTILE_COLLECTIVE, .seq = stream->enqueued, .coll = mine};
    hostile_enter(device);
    status = hostile_stream_check((hostile_stream *)stream);
    status = status == TSR_OK ? hostile_stream_push((hostile_stream *)stream, &op) : status;
    hostile_leave(device);
    if (status == TSR_OK) {
        return TSR_OK;
    }
free_coll:
    hostile_coll_free(&mine);
    return status;
}

/* ---- groups ---- */

static void free_group(hostile_group *group)
{
    if (group->comm != MPI_COMM_NULL && !group->abandoned) {
        (void)MPI_Comm_free(&group->comm);
    }
    tsri_free(&group->name);
    tsri_free(&group->world_ranks);
    tsri_free(&group);
}

static tsr_status open_comm(const hostile_device *device, hostile_group *group)
{
    const MPI_Comm *world = tsri_team_mpi(device->team);
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;

    int failed = MPI_Comm_group(*world, &all) != MPI_SUCCESS;
    failed += MPI_Group_incl(all, group->head.size, group->world_ranks, &members) != MPI_SUCCESS;
    failed += MPI_Comm_create_group(*world, members, 0, &group->comm) != MPI_SUCCESS;
    (void)MPI_Group_free(&all);
    (void)MPI_Group_free(&members);
    return failed == 0 ? TSR_OK : TSR_RAISE(TSR_ERR_COMM, "no communicator \"%s\"", group->name);
}

tsr_status hostile_group_open(tsr_device *device, const int *world_ranks, int size, int index,
                              tsr_stream *stream, const char *name, tsr_group **out)
{
    const size_t count = (size_t)size;
    hostile_group *group = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*group), &group));
    group->comm = MPI_COMM_NULL;
    TSR_TRY_GOTO(status, tsri_strdup(name, &group->name), free_group);
    TSR_TRY_GOTO(status, tsri_alloc(count, sizeof(int), &group->world_ranks), free_group);
    memcpy(group->world_ranks, world_ranks, count * sizeof(int));
    group->head = (tsr_group){.device = device,
                              .name = group->name,
                              .size = size,
                              .index = index,
                              .world_ranks = group->world_ranks,
                              .stream_kind = stream->kind};
    if (size > 1) {
        TSR_TRY_GOTO(status, open_comm((const hostile_device *)device, group), free_group);
    }
    *out = &group->head;
    return TSR_OK;
free_group:
    free_group(group);
    return status;
}

void hostile_group_close(tsr_group *group)
{
    hostile_device *device = (hostile_device *)group->device;

    hostile_enter(device);
    if (device->streams[group->stream_kind] != NULL) {
        hostile_stream_drain(device->streams[group->stream_kind]);
    }
    hostile_leave(device);
    free_group((hostile_group *)group);
}
