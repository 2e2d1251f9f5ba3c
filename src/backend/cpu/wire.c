/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file wire.c
 * Collectives through MPI, for groups whose members do not share memory.
 *
 * First the members exchange what they call (one small all-gather); only if all agree do data
 * move. All items of a list are under way together, one non-blocking call per item. A piece above
 * the device's message size goes in rounds, which is the one place where counts are cut to an int:
 * a round moves elements [at, at + n) of every piece. bf16 and f16 travel as f32 when they are
 * reduced, so that the sum is rounded once.
 *
 * Reductions need scratch: packed input where the call's own layout will not do (rounds, halves),
 * an output where MPI would write over the input. It is taken before the round's first message.
 */
#include "backend/cpu/cpu_priv.h"

#include <mpi.h>

#include <string.h>

#define MPI_TAG_BASE 7000

struct tsri_cpu_mpi {
    MPI_Comm comm;
    bool under_way; /* requests that will never end must not be freed */
    bool agreed;
    int request_count;
    int64_t at; /* first element of the round */
    MPI_Request request[TSRI_COLL_MAX_ITEMS];
    tsri_cpu_call mine;
    tsri_cpu_call *all; /* [size] */
    unsigned char *scratch;
    size_t scratch_bytes;
};

/* One item's share of a round. packed, result: in scratch, or NULL. */
typedef struct part {
    const tsri_cpu_item *item;
    int64_t count; /* elements of each piece */
    int64_t at;
    unsigned char *packed;
    unsigned char *result;
} part;

static tsr_status check(int code, const char *what)
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

tsr_status tsri_cpu_mpi_open(tsri_cpu_group *group)
{
    tsr_status status = TSR_OK;
    struct tsri_cpu_mpi *mpi = NULL;
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;

    TSR_TRY(tsri_alloc(1, sizeof *mpi, &mpi));
    mpi->comm = MPI_COMM_NULL;
    group->mpi = mpi;
    TSR_TRY(tsri_alloc((size_t)group->head.size, sizeof *mpi->all, &mpi->all));
    TSR_TRY(check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group"));
    TSR_TRY_GOTO(
        status,
        check(MPI_Group_incl(world, group->head.size, group->ranks, &members), "MPI_Group_incl"),
        free_world);
    TSR_TRY_GOTO(status,
                 check(MPI_Comm_create_group(MPI_COMM_WORLD, members, MPI_TAG_BASE + group->cell,
                                             &mpi->comm),
                       "MPI_Comm_create_group"),
                 free_members);
    TSR_TRY_GOTO(
        status,
        check(MPI_Comm_set_errhandler(mpi->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"),
        free_members);

free_members:
    (void)MPI_Group_free(&members);
free_world:
    (void)MPI_Group_free(&world);
    return status;
}

void tsri_cpu_mpi_close(tsri_cpu_group *group)
{
    struct tsri_cpu_mpi *mpi = group->mpi;

    if (mpi == NULL || mpi->under_way) {
        return;
    }
    if (mpi->comm != MPI_COMM_NULL) {
        (void)MPI_Comm_free(&mpi->comm);
    }
    tsri_free(&mpi->all);
    tsri_free(&mpi->scratch);
    tsri_free(&group->mpi);
}

static bool reduces(const tsri_cpu_op *op)
{
    return op->kind == TSRI_REDUCE_SCATTER || op->kind == TSRI_ALL_REDUCE;
}

static bool halves(const tsri_cpu_op *op)
{
    return reduces(op) && (op->dtype == TSR_BF16 || op->dtype == TSR_F16);
}

/* Bytes of an element under way. */
static size_t wire_unit(const tsri_cpu_op *op)
{
    return halves(op) ? sizeof(float) : tsr_dtype_size(op->dtype);
}

/* Elements of a piece per round, such that all pieces of one call stay below the limit. */
static int64_t round_count(const tsri_cpu_op *op)
{
    const tsri_cpu_device *device = (const tsri_cpu_device *)op->group->head.device;
    size_t pieces = op->kind == TSRI_ALL_REDUCE || op->kind == TSRI_BROADCAST
                        ? 1
                        : (size_t)op->group->head.size;

    return tsri_max64(1, (int64_t)(device->mpi_bytes / wire_unit(op) / pieces));
}

static MPI_Datatype element_type(const tsri_cpu_op *op)
{
    switch (op->dtype) {
    case TSR_F64:
        return MPI_DOUBLE;
    case TSR_I32:
        return MPI_INT32_T;
    case TSR_I64:
        return MPI_INT64_T;
    case TSR_U8:
        return MPI_UINT8_T;
    case TSR_F32:
    case TSR_BF16: /* widened */
    case TSR_F16:
    case TSR_DTYPE_DEFAULT:
        break;
    }
    return MPI_FLOAT;
}

static MPI_Op element_op(const tsri_cpu_op *op)
{
    return op->reduce == TSRI_MAX ? MPI_MAX : MPI_SUM;
}

static unsigned char *scratch_at(const struct tsri_cpu_mpi *mpi, size_t offset)
{
    return mpi->scratch == NULL ? NULL : mpi->scratch + offset;
}

/* Item i's part of the round, with its scratch from *need on; false if nothing is left of it. */
static bool find_part(const tsri_cpu_op *op, int i, size_t *need, part *out)
{
    const struct tsri_cpu_mpi *mpi = op->group->mpi;
    const tsri_cpu_item *item = &op->items[i];
    size_t pieces = (size_t)tsri_cpu_in_pieces(op);
    int64_t limit = round_count(op);
    bool scatter = op->kind == TSRI_REDUCE_SCATTER;

    *out = (part){.item = item, .at = mpi->at, .count = tsri_min64(limit, item->count - mpi->at)};
    if (out->count <= 0) {
        return false;
    }
    size_t bytes = (size_t)out->count * wire_unit(op);
    if (halves(op) || (scatter && item->count > limit)) {
        out->packed = scratch_at(mpi, *need);
        *need += pieces * bytes;
    }
    if (scatter) {
        out->result = scratch_at(mpi, *need);
        *need += bytes;
    }
    return true;
}

static tsr_status take_scratch(tsri_cpu_op *op)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    size_t need = 0;
    part ignored;

    for (int i = 0; i < op->item_count; i++) {
        (void)find_part(op, i, &need, &ignored);
    }
    if (need > mpi->scratch_bytes) {
        tsri_free(&mpi->scratch);
        mpi->scratch_bytes = 0;
        TSR_TRY(tsri_alloc(need, 1, &mpi->scratch));
        mpi->scratch_bytes = need;
    }
    return TSR_OK;
}

/* Bring the round's elements of every input piece together, in the type that travels. */
static void pack(const tsri_cpu_op *op, const part *my)
{
    int64_t pieces = tsri_cpu_in_pieces(op);
    size_t unit = tsr_dtype_size(op->dtype);

    for (int64_t p = 0; p < pieces; p++) {
        const unsigned char *from =
            my->item->in + ((size_t)((p * my->item->count) + my->at) * unit);
        unsigned char *to = my->packed + ((size_t)(p * my->count) * wire_unit(op));
        if (halves(op)) {
            tsri_cpu_widen(op->dtype, from, (float *)(void *)to, my->count);
        } else {
            memcpy(to, from, (size_t)my->count * unit);
        }
    }
}

static tsr_status start_reduction(tsri_cpu_op *op, const part *my, MPI_Request *request)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    size_t skip = (size_t)my->at * tsr_dtype_size(op->dtype);
    const void *from = my->packed != NULL ? my->packed : my->item->in;

    if (my->packed != NULL) {
        pack(op, my);
    }
    if (op->kind == TSRI_REDUCE_SCATTER) {
        return check(MPI_Ireduce_scatter_block(from, my->result, (int)my->count, element_type(op),
                                               element_op(op), mpi->comm, request),
                     "MPI_Ireduce_scatter_block");
    }
    void *to = my->packed != NULL ? my->packed : my->item->out + skip;
    if (my->packed != NULL || my->item->in == my->item->out) {
        from = MPI_IN_PLACE;
    } else {
        from = my->item->in + skip;
    }
    return check(MPI_Iallreduce(from, to, (int)my->count, element_type(op), element_op(op),
                                mpi->comm, request),
                 "MPI_Iallreduce");
}

/* A part of a piece, with the whole piece as extent: pieces then lie where they belong. */
static tsr_status piece_type(size_t bytes, size_t piece_bytes, MPI_Datatype *out)
{
    MPI_Datatype part_type = MPI_DATATYPE_NULL;

    TSR_TRY(check(MPI_Type_contiguous((int)bytes, MPI_BYTE, &part_type), "MPI_Type_contiguous"));
    tsr_status status = check(MPI_Type_create_resized(part_type, 0, (MPI_Aint)piece_bytes, out),
                              "MPI_Type_create_resized");
    (void)MPI_Type_free(&part_type);
    TSR_TRY(status);
    return check(MPI_Type_commit(out), "MPI_Type_commit");
}

static tsr_status start_copy(tsri_cpu_op *op, const part *my, MPI_Request *request)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    const tsri_cpu_item *item = my->item;
    size_t unit = tsr_dtype_size(op->dtype);
    size_t piece = (size_t)item->count * unit;
    size_t skip = (size_t)my->at * unit;
    int bytes = (int)((size_t)my->count * unit);
    MPI_Datatype type = MPI_DATATYPE_NULL;

    if (op->kind == TSRI_BROADCAST) {
        if (op->root == op->group->head.index && item->in != item->out) {
            memcpy(item->out + skip, item->in + skip, (size_t)bytes);
        }
        return check(MPI_Ibcast(item->out + skip, bytes, MPI_BYTE, op->root, mpi->comm, request),
                     "MPI_Ibcast");
    }
    TSR_TRY(piece_type((size_t)bytes, piece, &type));
    tsr_status status = TSR_OK;
    if (op->kind == TSRI_ALL_TO_ALL) {
        status = check(
            MPI_Ialltoall(item->in + skip, 1, type, item->out + skip, 1, type, mpi->comm, request),
            "MPI_Ialltoall");
    } else {
        bool in_place = item->in == item->out + ((size_t)op->group->head.index * piece);
        const void *from = in_place ? MPI_IN_PLACE : (const void *)(item->in + skip);
        status = check(MPI_Iallgather(from, 1, type, item->out + skip, 1, type, mpi->comm, request),
                       "MPI_Iallgather");
    }
    (void)MPI_Type_free(&type); /* the call under way keeps it */
    return status;
}

static tsr_status start_round(tsri_cpu_op *op)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    size_t need = 0;
    part my;

    TSR_TRY(take_scratch(op));
    mpi->request_count = 0;
    for (int i = 0; i < op->item_count; i++) {
        if (!find_part(op, i, &need, &my)) {
            continue;
        }
        MPI_Request *request = &mpi->request[mpi->request_count];
        TSR_TRY(reduces(op) ? start_reduction(op, &my, request) : start_copy(op, &my, request));
        mpi->request_count++;
        mpi->under_way = true;
    }
    return TSR_OK;
}

static void finish_round(tsri_cpu_op *op)
{
    size_t need = 0;
    part my;

    for (int i = 0; i < op->item_count; i++) {
        if (!find_part(op, i, &need, &my)) {
            continue;
        }
        size_t unit = tsr_dtype_size(op->dtype);
        unsigned char *to = my.item->out + ((size_t)my.at * unit);
        const unsigned char *from = my.result != NULL ? my.result : my.packed;
        if (halves(op)) {
            tsri_cpu_narrow(op->dtype, (const float *)(const void *)from, to, my.count);
        } else if (my.result != NULL) {
            memcpy(to, from, (size_t)my.count * unit);
        }
    }
}

static tsr_status begin(tsri_cpu_op *op)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    int bytes = (int)sizeof mpi->mine;

    tsri_cpu_describe(op, &mpi->mine);
    mpi->agreed = false;
    mpi->at = 0;
    TSR_TRY(check(MPI_Iallgather(&mpi->mine, bytes, MPI_BYTE, mpi->all, bytes, MPI_BYTE, mpi->comm,
                                 &mpi->request[0]),
                  "MPI_Iallgather"));
    mpi->request_count = 1;
    mpi->under_way = true;
    op->state = TSRI_CPU_ARRIVE;
    return TSR_OK;
}

/* What the finished requests brought; then the next round, or the end. */
static tsr_status carry_on(tsri_cpu_op *op)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    int64_t longest = 0;

    if (!mpi->agreed) {
        for (int m = 0; m < op->group->head.size; m++) {
            TSR_TRY(tsri_cpu_compare(op, &mpi->mine, &mpi->all[m], m));
        }
        mpi->agreed = true;
    } else {
        finish_round(op);
        mpi->at += round_count(op);
    }
    for (int i = 0; i < op->item_count; i++) {
        longest = tsri_max64(longest, op->items[i].count);
    }
    if (mpi->at >= longest) {
        op->state = TSRI_CPU_DONE;
        return TSR_OK;
    }
    op->state = TSRI_CPU_MOVE;
    return start_round(op);
}

tsr_status tsri_cpu_mpi_step(tsri_cpu_op *op, tsri_cpu_activity *activity)
{
    struct tsri_cpu_mpi *mpi = op->group->mpi;
    int done = 0;

    if (op->group->head.size == 1) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "a group of one has nothing to send");
    }
    if (op->state == TSRI_CPU_BEGIN) {
        activity->moved = true;
        /* NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): later steps test the request */
        return begin(op);
    }
    TSR_TRY(check(MPI_Testall(mpi->request_count, mpi->request, &done, MPI_STATUSES_IGNORE),
                  "MPI_Testall"));
    if (!done) {
        activity->pending = true;
        activity->polls = true;
        return tsri_cpu_watch(op);
    }
    mpi->under_way = false;
    op->wait_s = tsri_now_s();
    activity->moved = true;
    /* NOLINTNEXTLINE(clang-analyzer-optin.mpi.MPI-Checker): later steps test the requests */
    return carry_on(op);
}
