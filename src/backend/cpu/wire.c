/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file wire.c
 * Collectives through MPI, for groups whose members do not share memory.
 *
 * First the members send each other a letter: what they call, and their input if it is small. Only
 * when the letters of all have come, and agree, do other data move or outputs change. So a scalar
 * costs one message to each member, in no order, and who does not come is known by name.
 *
 * Large all-gathers, reduce-scatters and all-reduces are ring.c's. All-to-all and broadcast are
 * calls of MPI, one per item; a piece above the device's message size goes in rounds: a round moves
 * elements [at, at + n) of every piece.
 */
#include "backend/cpu/wire_priv.h"

#include "backend/boot/boot.h"

#include <stddef.h>
#include <string.h>

#define MPI_TAG_BASE 7000
#define LETTER_TAG   0

tsr_status tsri_cpu_mpi_check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;

    if (code == MPI_SUCCESS) {
        return TSR_OK;
    }
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        length = 0;
    }
    return TSR_RAISE(TSR_ERR_COMM, "%s failed: %.*s", what, length, text);
}

/* ---- open and close ---- */

static tsr_status allocate(tsri_cpu_group *group)
{
    size_t size = (size_t)group->head.size;
    size_t most =
        TSRI_COLL_MAX_ITEMS > 2 * TSRI_CPU_LANES ? TSRI_COLL_MAX_ITEMS : 2 * TSRI_CPU_LANES;
    struct tsri_cpu_mpi *mpi = NULL;

    TSR_TRY(tsri_alloc(1, sizeof *mpi, &mpi));
    mpi->comm = MPI_COMM_NULL;
    group->mpi = mpi;
    most = most > 2 * size ? most : 2 * size;
    TSR_TRY(tsri_alloc(most, sizeof *mpi->request, &mpi->request));
    TSR_TRY(tsri_alloc(size, sizeof *mpi->inbox, &mpi->inbox));
    TSR_TRY(tsri_alloc(size, sizeof *mpi->outbox, &mpi->outbox));
    return TSR_OK;
}

tsr_status tsri_cpu_mpi_open(tsri_cpu_group *group)
{
    tsr_status status = TSR_OK;
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;

    const MPI_Comm *of = tsri_team_mpi(((tsri_cpu_device *)group->head.device)->team);

    TSR_TRY(allocate(group));
    MPI_Comm *comm = &group->mpi->comm;
    TSR_TRY(tsri_cpu_mpi_check(MPI_Comm_group(*of, &world), "MPI_Comm_group"));
    TSR_TRY_GOTO(status,
                 tsri_cpu_mpi_check(MPI_Group_incl(world, group->head.size, group->ranks, &members),
                                    "MPI_Group_incl"),
                 free_world);
    TSR_TRY_GOTO(
        status,
        tsri_cpu_mpi_check(MPI_Comm_create_group(*of, members, MPI_TAG_BASE + group->cell, comm),
                           "MPI_Comm_create_group"),
        free_members);
    TSR_TRY_GOTO(status,
                 tsri_cpu_mpi_check(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN),
                                    "MPI_Comm_set_errhandler"),
                 free_members);

free_members:
    (void)MPI_Group_free(&members);
free_world:
    (void)MPI_Group_free(&world);
    return status;
}

/* What a failed call left under way: letters are not waited for any more; and nothing else? */
static bool settled(struct tsri_cpu_mpi *mpi)
{
    int letters = mpi->phase == TSRI_CPU_LETTERS ? mpi->request_count / 2 : 0;
    int done = 1;

    for (int m = 0; m < letters; m++) {
        if (mpi->request[m] != MPI_REQUEST_NULL) {
            (void)MPI_Cancel(&mpi->request[m]);
        }
    }
    return MPI_Testall(mpi->request_count, mpi->request, &done, MPI_STATUSES_IGNORE) ==
               MPI_SUCCESS &&
           done;
}

void tsri_cpu_mpi_close(tsri_cpu_group *group)
{
    struct tsri_cpu_mpi *mpi = group->mpi;

    /* Memory of messages that will never end must not be freed. */
    if (mpi == NULL || !settled(mpi)) {
        return;
    }
    if (mpi->comm != MPI_COMM_NULL) {
        (void)MPI_Comm_free(&mpi->comm);
    }
    tsri_free(&mpi->request);
    tsri_free(&mpi->inbox);
    tsri_free(&mpi->outbox);
    tsri_free(&mpi->chunks);
    tsri_free(&group->mpi);
}

/* ---- letters ---- */

static tsri_cpu_span whole_piece(const tsri_cpu_op *op, int piece)
{
    return (tsri_cpu_span){0, tsri_cpu_stream_count(op), piece};
}

/* Send op's call, with the piece that is for him, to every member. */
static tsr_status send_letters(tsri_cpu_op *op)
{
    const tsr_group *group = &op->group->head;
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    size_t bytes = (size_t)tsri_cpu_stream_count(op) * tsr_dtype_size(op->dtype);
    bool has_input = op->kind != TSRI_BROADCAST || op->root == group->index;
    tsri_cpu_call call;

    tsri_cpu_describe(op, &call);
    op->in_cell = bytes <= TSRI_CPU_LETTER_BYTES;
    bytes = offsetof(tsri_cpu_letter, data) + (op->in_cell && has_input ? bytes : 0);
    mpi->request_count = 2 * group->size;
    mpi->phase = TSRI_CPU_LETTERS;
    for (int i = 0; i < mpi->request_count; i++) {
        mpi->request[i] = MPI_REQUEST_NULL;
    }
    for (int k = 1; k <= group->size; k++) { /* this rank last: to itself it writes directly */
        int m = (group->index + k) % group->size;
        tsri_cpu_letter *letter = m == group->index ? &mpi->inbox[m] : &mpi->outbox[m];
        letter->call = call;
        if (op->in_cell && has_input) {
            tsri_cpu_stream_gather(op, whole_piece(op, m), letter->data);
        }
        if (m == group->index) {
            break;
        }
        TSR_TRY(tsri_cpu_mpi_check(MPI_Irecv(&mpi->inbox[m], (int)sizeof *letter, MPI_BYTE, m,
                                             LETTER_TAG, mpi->comm, &mpi->request[m]),
                                   "MPI_Irecv"));
        TSR_TRY(tsri_cpu_mpi_check(MPI_Isend(letter, (int)bytes, MPI_BYTE, m, LETTER_TAG, mpi->comm,
                                             &mpi->request[group->size + m]),
                                   "MPI_Isend"));
    }
    return TSR_OK;
}

/* The collective itself, where every input came by letter. Sums are in the order of members. */
static void read_letters(tsri_cpu_op *op)
{
    tsri_cpu_group *group = op->group;
    tsri_cpu_letter *inbox = group->mpi->inbox;
    int size = group->head.size;

    switch (op->kind) {
    case TSRI_BROADCAST:
        tsri_cpu_stream_scatter(op, whole_piece(op, 0), inbox[op->root].data);
        break;
    case TSRI_ALL_GATHER:
    case TSRI_ALL_TO_ALL:
        for (int m = 0; m < size; m++) {
            tsri_cpu_stream_scatter(op, whole_piece(op, m), inbox[m].data);
        }
        break;
    case TSRI_REDUCE_SCATTER:
    case TSRI_ALL_REDUCE:
    case TSRI_COLL_COUNT:
        for (int m = 0; m < size; m++) {
            group->sources[m] = inbox[m].data;
        }
        tsri_cpu_reduce(op->dtype, op->reduce, group->sources, size, inbox[0].data,
                        tsri_cpu_stream_count(op));
        tsri_cpu_stream_scatter(op, whole_piece(op, 0), inbox[0].data);
        break;
    }
}

/* In a ring that is a neighbour: the left, which has not sent, or the right, which has not taken.
 */
bool tsri_cpu_mpi_absent(const tsri_cpu_op *op, int member)
{
    const tsr_group *group = &op->group->head;
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    bool left = member == (group->index + group->size - 1) % group->size;
    bool right = member == (group->index + 1) % group->size;
    int here = 1;

    /* A test of many leaves requests as they are; one that is through is null after its own. */
    if (mpi->phase == TSRI_CPU_LETTERS) {
        (void)MPI_Test(&mpi->request[member], &here, MPI_STATUS_IGNORE);
    }
    for (int i = 0; mpi->phase == TSRI_CPU_RING && i < mpi->request_count && here; i++) {
        if (i % 2 == 0 ? left : right) {
            (void)MPI_Test(&mpi->request[i], &here, MPI_STATUS_IGNORE);
        }
    }
    return !here;
}

/* ---- calls of MPI: all-to-all and broadcast ---- */

static int64_t round_count(const tsri_cpu_op *op)
{
    const tsri_cpu_device *device = (const tsri_cpu_device *)op->group->head.device;
    size_t pieces = (size_t)tsri_cpu_out_pieces(op);

    return tsri_max64(1, (int64_t)(device->mpi_bytes / tsr_dtype_size(op->dtype) / pieces));
}

/* A part of a piece, with the whole piece as extent: pieces then lie where they belong. */
static tsr_status piece_type(size_t bytes, size_t piece_bytes, MPI_Datatype *out)
{
    MPI_Datatype part_type = MPI_DATATYPE_NULL;

    TSR_TRY(tsri_cpu_mpi_check(MPI_Type_contiguous((int)bytes, MPI_BYTE, &part_type),
                               "MPI_Type_contiguous"));
    tsr_status status =
        tsri_cpu_mpi_check(MPI_Type_create_resized(part_type, 0, (MPI_Aint)piece_bytes, out),
                           "MPI_Type_create_resized");
    (void)MPI_Type_free(&part_type);
    TSR_TRY(status);
    return tsri_cpu_mpi_check(MPI_Type_commit(out), "MPI_Type_commit");
}

static tsr_status start_call(tsri_cpu_op *op, const tsri_cpu_item *item, int64_t count,
                             MPI_Request *request)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    size_t unit = tsr_dtype_size(op->dtype);
    size_t skip = (size_t)mpi->at * unit;
    size_t bytes = (size_t)count * unit; /* at most a message */
    MPI_Datatype type = MPI_DATATYPE_NULL;

    if (op->kind == TSRI_BROADCAST) {
        if (op->root == op->group->head.index && item->in != item->out) {
            memcpy(item->out + skip, item->in + skip, bytes);
        }
        return tsri_cpu_mpi_check(
            MPI_Ibcast(item->out + skip, (int)bytes, MPI_BYTE, op->root, mpi->comm, request),
            "MPI_Ibcast");
    }
    TSR_TRY(piece_type(bytes, (size_t)item->count * unit, &type));
    tsr_status status = tsri_cpu_mpi_check(
        MPI_Ialltoall(item->in + skip, 1, type, item->out + skip, 1, type, mpi->comm, request),
        "MPI_Ialltoall");
    (void)MPI_Type_free(&type); /* the call under way keeps it */
    return status;
}

/* Begin the round at mpi->at; false if nothing is left. */
static tsr_status start_round(tsri_cpu_op *op, bool *begun_out)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;

    mpi->phase = TSRI_CPU_CALLS;
    mpi->request_count = 0;
    for (int i = 0; i < op->item_count; i++) {
        int64_t count = tsri_min64(round_count(op), op->items[i].count - mpi->at);
        if (count > 0) {
            TSR_TRY(start_call(op, &op->items[i], count, &mpi->request[mpi->request_count]));
            mpi->request_count++;
        }
    }
    *begun_out = mpi->request_count > 0;
    return TSR_OK;
}

/* ---- steps ---- */

static bool goes_round(const tsri_cpu_op *op)
{
    return op->kind != TSRI_ALL_TO_ALL && op->kind != TSRI_BROADCAST;
}

/* All letters are here. */
static tsr_status begin_move(tsri_cpu_op *op, bool *done_out)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    const tsri_cpu_letter *mine = &mpi->inbox[op->group->head.index];
    bool more = false;

    for (int m = 0; m < op->group->head.size; m++) {
        TSR_TRY(tsri_cpu_compare(op, &mine->call, &mpi->inbox[m].call, m));
    }
    op->state = TSRI_CPU_MOVE;
    if (op->in_cell) {
        read_letters(op);
    } else if (goes_round(op)) {
        more = true;
        TSR_TRY(tsri_cpu_ring_begin(op));
    } else {
        mpi->at = 0;
        TSR_TRY(start_round(op, &more));
    }
    *done_out = !more;
    return TSR_OK;
}

/* Look once: did anything move, is it the end? */
static tsr_status advance(tsri_cpu_op *op, bool *moved_out, bool *done_out)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    int through = 0;
    bool begun = false;

    if (op->state == TSRI_CPU_MOVE && goes_round(op)) {
        return tsri_cpu_ring_step(op, moved_out, done_out);
    }
    TSR_TRY(tsri_cpu_mpi_check(
        MPI_Testall(mpi->request_count, mpi->request, &through, MPI_STATUSES_IGNORE),
        "MPI_Testall"));
    *moved_out = through != 0;
    *done_out = false;
    if (!through) {
        return TSR_OK;
    }
    if (op->state == TSRI_CPU_ARRIVE) {
        return begin_move(op, done_out);
    }
    mpi->at += round_count(op);
    TSR_TRY(start_round(op, &begun));
    *done_out = !begun;
    return TSR_OK;
}

tsr_status tsri_cpu_mpi_step(tsri_cpu_op *op, tsri_cpu_activity *activity)
{
    bool moved = false;
    bool done = false;

    if (op->group->head.size == 1) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "a group of one has nothing to send");
    }
    if (op->state == TSRI_CPU_BEGIN) {
        op->state = TSRI_CPU_ARRIVE;
        activity->moved = true;
        return send_letters(op);
    }
    TSR_TRY(advance(op, &moved, &done));
    if (done) {
        op->group->mpi->phase = TSRI_CPU_IDLE;
        op->group->mpi->request_count = 0;
        op->state = TSRI_CPU_DONE;
    }
    if (moved || done) {
        op->wait_s = tsri_now_s();
        activity->moved = true;
        return TSR_OK;
    }
    activity->pending = true;
    activity->polls = true;
    return tsri_cpu_watch(op);
}
