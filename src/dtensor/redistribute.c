/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file redistribute.c
 * Carries out a route: one dtensor per step, each made from the one before.
 *
 * The source is only read. Every collective moves equal counts; where a piece, with slack behind
 * it, already is what travels, the call works on it directly, and otherwise on blocks in scratch
 * memory. Results of steps have their slack behind them for that reason. Which way is taken is this
 * rank's own matter, the counts are not: they follow from extents that the whole group shares.
 */
#include "dtensor_priv.h"

#include "base/base.h"

static const char label[] = "redistribute";

typedef struct run {
    tsr_comm *comm;
    bool persistent;
    const char *label;  /* of collectives */
    tsri_mem_kind kind; /* of the memory of the dtensor being made */
    bool last;          /* that dtensor is the result: its bytes must be its own */
} run;

static tsri_place place_of(const tsr_dtensor *tensor)
{
    return (tsri_place){tsri_dtensor_buffer(tensor), tsri_dtensor_buffer_offset(tensor)};
}

static tsri_place place_behind(tsri_place place, size_t bytes)
{
    return (tsri_place){place.buffer, place.offset + bytes};
}

/* Room for the piece of a bare dtensor, and for at least room_bytes. */
static tsr_status give_memory(const run *r, tsr_dtensor *tensor, size_t room_bytes)
{
    size_t bytes = tsri_dtensor_bytes(tensor);

    TSR_TRY(tsri_storage_create(r->comm, bytes > room_bytes ? bytes : room_bytes, r->kind,
                                r->persistent, label, &tensor->storage));
    return TSR_OK;
}

static tsr_status make_scratch(const run *r, size_t bytes, tsri_storage **storage, tsri_place *out)
{
    TSR_TRY(tsri_storage_create(r->comm, bytes, TSRI_MEM_WORKSPACE, r->persistent, label, storage));
    *out = (tsri_place){(*storage)->mem.buffer, (*storage)->mem.offset};
    return TSR_OK;
}

/* count_bytes: of one rank's part. Where there is nothing, there is nothing on the whole group. */
static tsr_status call_collective(const run *r, tsri_coll_kind kind, tsr_group *group,
                                  tsr_dtype dtype, tsri_place in, tsri_place out,
                                  size_t count_bytes)
{
    tsri_coll_item item = {.in = in.buffer,
                           .in_offset = in.offset,
                           .out = out.buffer,
                           .out_offset = out.offset,
                           .count = (int64_t)(count_bytes / tsr_dtype_size(dtype))};
    tsri_coll coll = {.kind = kind,
                      .dtype = dtype,
                      .op = TSRI_SUM,
                      .items = &item,
                      .item_count = 1,
                      .label = r->label};

    if (item.count > 0) {
        TSR_TRY(tsri_collective(group, &coll, tsri_comm_stream(r->comm, TSRI_STREAM_COMPUTE)));
    }
    return TSR_OK;
}

/* ---- steps: out comes bare, with the step's layout ---- */

static tsr_status run_slice(const run *r, const tsri_step *step, tsr_group *group, tsr_dtensor *in,
                            tsr_dtensor *out)
{
    int dim = step->to_dim;
    tsri_blocks cut = tsri_blocks_make(in->local_shape, in->layout.ndim, dim, group->size,
                                       tsr_dtype_size(in->dtype));
    int64_t first = tsri_min64(cut.extent, group->index * cut.chunk);

    if (cut.outer == 1 && !r->last) { /* the next step reads it where it is */
        out->storage = in->storage;
        out->storage->owners++;
        out->offset = in->offset + (size_t)first * cut.inner_bytes;
        return TSR_OK;
    }
    TSR_TRY(give_memory(r, out, 0));
    TSR_TRY(
        tsri_blocks_cut(r->comm, &cut, place_of(in), first, out->local_shape[dim], place_of(out)));
    return TSR_OK;
}

static tsr_status run_all_reduce(const run *r, const tsri_step *step, tsr_group *group,
                                 tsr_dtensor *in, tsr_dtensor *out)
{
    (void)step;
    TSR_TRY(give_memory(r, out, 0));
    TSR_TRY(call_collective(r, TSRI_ALL_REDUCE, group, in->dtype, place_of(in), place_of(out),
                            tsri_dtensor_bytes(in)));
    return TSR_OK;
}

static tsr_status run_gather(const run *r, const tsri_step *step, tsr_group *group, tsr_dtensor *in,
                             tsr_dtensor *out)
{
    tsr_status status = TSR_OK;
    tsri_storage *scratch = NULL;
    tsri_blocks join = tsri_blocks_make(out->local_shape, out->layout.ndim, step->from_dim,
                                        group->size, tsr_dtype_size(in->dtype));
    bool in_line = tsri_blocks_in_line(&join);
    size_t bytes = tsri_dtensor_bytes(in);
    tsri_place part = place_of(in);
    tsri_place whole;

    TSR_TRY(give_memory(r, out, in_line ? tsri_blocks_bytes(&join) : 0));
    whole = place_of(out);
    if (!in_line) {
        TSR_TRY(make_scratch(r, tsri_blocks_bytes(&join), &scratch, &whole));
    }
    if (bytes < join.block_bytes) { /* the piece alone is too short to be sent */
        part = place_behind(whole, (size_t)group->index * join.block_bytes);
        TSR_TRY_GOTO(status, tsri_copy_bytes(r->comm, place_of(in), part, bytes), release_scratch);
    }
    TSR_TRY_GOTO(
        status,
        call_collective(r, TSRI_ALL_GATHER, group, in->dtype, part, whole, join.block_bytes),
        release_scratch);
    if (!in_line) {
        TSR_TRY_GOTO(status, tsri_blocks_unpack(r->comm, &join, whole, place_of(out)),
                     release_scratch);
    }
release_scratch:
    tsri_storage_release(&scratch);
    return status;
}

/* The blocks of in: in itself where that is the same, else packed in scratch. */
static tsr_status pack(const run *r, const tsri_blocks *split, tsr_dtensor *in,
                       tsri_storage **scratch, tsri_place *out)
{
    if (tsri_blocks_in_line(split) && tsri_blocks_bytes(split) == tsri_dtensor_bytes(in)) {
        *out = place_of(in);
        return TSR_OK;
    }
    TSR_TRY(make_scratch(r, tsri_blocks_bytes(split), scratch, out));
    TSR_TRY(tsri_blocks_pack(r->comm, split, place_of(in), *out));
    return TSR_OK;
}

static tsr_status run_reduce_scatter(const run *r, const tsri_step *step, tsr_group *group,
                                     tsr_dtensor *in, tsr_dtensor *out)
{
    tsr_status status = TSR_OK;
    tsri_storage *scratch = NULL;
    tsri_blocks split = tsri_blocks_make(in->local_shape, in->layout.ndim, step->to_dim,
                                         group->size, tsr_dtype_size(in->dtype));
    tsri_place whole = {0};

    TSR_TRY(give_memory(r, out, split.block_bytes));
    TSR_TRY_GOTO(status, pack(r, &split, in, &scratch, &whole), release_scratch);
    if (scratch != NULL) {
        TSR_TRY_GOTO(status, tsri_blocks_zero_slack(r->comm, &split, whole), release_scratch);
    }
    TSR_TRY_GOTO(status,
                 call_collective(r, TSRI_REDUCE_SCATTER, group, in->dtype, whole, place_of(out),
                                 split.block_bytes),
                 release_scratch);
release_scratch:
    tsri_storage_release(&scratch);
    return status;
}

/* How in is split and out is joined. Block j holds this rank's rows of from_dim and rank j's of
 * to_dim, so its length for all is that of the longest of both. */
static void exchange_blocks(const tsri_step *step, const tsr_dtensor *in, const tsr_dtensor *out,
                            int ranks, tsri_blocks *split, tsri_blocks *join)
{
    size_t elem_bytes = tsr_dtype_size(in->dtype);

    *split = tsri_blocks_make(in->local_shape, in->layout.ndim, step->to_dim, ranks, elem_bytes);
    *join = tsri_blocks_make(out->local_shape, out->layout.ndim, step->from_dim, ranks, elem_bytes);
    split->block_bytes = (size_t)(split->chunk * join->chunk) * elem_bytes;
    for (int d = 0; d < in->layout.ndim; d++) {
        if (d != step->from_dim && d != step->to_dim) {
            split->block_bytes *= (size_t)in->local_shape[d];
        }
    }
    join->block_bytes = split->block_bytes;
}

static tsr_status run_all_to_all(const run *r, const tsri_step *step, tsr_group *group,
                                 tsr_dtensor *in, tsr_dtensor *out)
{
    tsr_status status = TSR_OK;
    tsri_storage *sent_scratch = NULL;
    tsri_storage *received_scratch = NULL;
    tsri_blocks split;
    tsri_blocks join;
    tsri_place sent = {0};
    tsri_place received = {0};
    bool in_line = false;

    exchange_blocks(step, in, out, group->size, &split, &join);
    in_line = tsri_blocks_in_line(&join);
    TSR_TRY(give_memory(r, out, in_line ? tsri_blocks_bytes(&join) : 0));
    received = place_of(out);
    TSR_TRY_GOTO(status, pack(r, &split, in, &sent_scratch, &sent), release_scratch);
    if (!in_line) {
        TSR_TRY_GOTO(status,
                     make_scratch(r, tsri_blocks_bytes(&join), &received_scratch, &received),
                     release_scratch);
    }
    TSR_TRY_GOTO(
        status,
        call_collective(r, TSRI_ALL_TO_ALL, group, in->dtype, sent, received, join.block_bytes),
        release_scratch);
    if (!in_line) {
        TSR_TRY_GOTO(status, tsri_blocks_unpack(r->comm, &join, received, place_of(out)),
                     release_scratch);
    }
release_scratch:
    tsri_storage_release(&received_scratch);
    tsri_storage_release(&sent_scratch);
    return status;
}

static tsr_status run_cast(const run *r, const tsr_dtensor *in, tsr_dtensor *out)
{
    tsri_call call = {.stream = tsri_comm_stream(r->comm, TSRI_STREAM_COMPUTE), .label = label};
    tsrk_scale args = {
        .n = in->local_count, .factor = 1.0F, .x_type = in->dtype, .y_type = out->dtype};

    TSR_TRY(give_memory(r, out, 0));
    if (args.n > 0) {
        args.x = tsri_in(&call, in);
        args.y = tsri_out(&call, out);
        TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    }
    return TSR_OK;
}

/* ---- the route ---- */

static tsr_status run_plan_step(const run *r, const tsri_step *step, tsr_dtensor *in,
                                tsr_dtensor *out)
{
    tsr_group *group = NULL;

    TSR_TRY(tsri_comm_group(r->comm, step->mask, TSRI_STREAM_COMPUTE, &group));
    switch (step->kind) {
    case TSRI_STEP_SLICE:
        TSR_TRY(run_slice(r, step, group, in, out));
        break;
    case TSRI_STEP_REDUCE_SCATTER:
        TSR_TRY(run_reduce_scatter(r, step, group, in, out));
        break;
    case TSRI_STEP_ALL_TO_ALL:
        TSR_TRY(run_all_to_all(r, step, group, in, out));
        break;
    case TSRI_STEP_ALL_REDUCE:
        TSR_TRY(run_all_reduce(r, step, group, in, out));
        break;
    case TSRI_STEP_GATHER:
        TSR_TRY(run_gather(r, step, group, in, out));
        break;
    default:
        return TSR_RAISE(TSR_ERR_INTERNAL, "step of kind %d", (int)step->kind);
    }
    return TSR_OK;
}

/* Replace *now by what the step (NULL: a cast to dtype) makes of it. */
static tsr_status take_step(const run *r, const tsri_step *step, tsr_dtype dtype, tsr_dtensor **now)
{
    tsr_status status = TSR_OK;
    tsr_dtensor *in = *now;
    tsr_dtensor *out = NULL;

    TSR_TRY(tsri_dtensor_bare(r->comm, step != NULL ? &step->after : &in->layout, dtype, in->label,
                              &out));
    if (step != NULL) {
        TSR_TRY_GOTO(status, run_plan_step(r, step, in, out), release_out);
    } else {
        TSR_TRY_GOTO(status, run_cast(r, in, out), release_out);
    }
    tsr_dtensor_release(now);
    *now = out;
    return TSR_OK;
release_out:
    tsr_dtensor_release(&out);
    return status;
}

static bool reduces(const tsri_step *step)
{
    return step->kind == TSRI_STEP_REDUCE_SCATTER || step->kind == TSRI_STEP_ALL_REDUCE;
}

/* What is made next is the result, or serves to make it. */
static void set_purpose(run *r, bool last)
{
    r->last = last;
    r->kind = TSRI_MEM_WORKSPACE;
    if (last) {
        r->kind = r->persistent ? TSRI_MEM_OTHER : TSRI_MEM_ACTIVATION;
    }
}

/* The tensor travels in wide between the first reduction and the last. */
static tsr_status run_plan(run *r, const tsri_route *route, tsr_dtype wide, tsr_dtensor **now)
{
    tsr_dtype dtype = (*now)->dtype;
    int last_reduction = -1;

    for (int i = 0; i < route->step_count; i++) {
        last_reduction = reduces(&route->step[i]) ? i : last_reduction;
    }
    for (int i = 0; i < route->step_count; i++) {
        const tsri_step *step = &route->step[i];
        bool narrows = i == last_reduction && wide != dtype;
        bool last = i == route->step_count - 1;

        set_purpose(r, false);
        if (reduces(step) && (*now)->dtype != wide) {
            TSR_TRY(take_step(r, NULL, wide, now));
        }
        set_purpose(r, last && !narrows);
        TSR_TRY(take_step(r, step, (*now)->dtype, now));
        set_purpose(r, last);
        if (narrows) {
            TSR_TRY(take_step(r, NULL, dtype, now));
        }
    }
    return TSR_OK;
}

tsr_status tsri_redistribute(tsr_dtensor *tensor, const tsr_layout *to,
                             const tsri_redistribute_options *options, tsr_dtensor **out)
{
    tsr_status status = TSR_OK;
    tsri_route route;
    run r = {.comm = tensor->comm,
             .persistent = options != NULL && options->persistent,
             .label = options != NULL && options->label != NULL ? options->label : label};
    tsr_dtensor *now = NULL;
    tsr_dtype wide = options != NULL && options->reduce_dtype != TSR_DTYPE_DEFAULT
                         ? options->reduce_dtype
                         : tensor->dtype;

    TSR_TRY(tsri_route_find(&tensor->layout, to, &route));
    if (options != NULL && options->asked) {
        TSR_TRY(tsri_dtensor_check_partial(tensor, to));
    }
    if (route.step_count == 0 && tsri_layout_identical(&tensor->layout, to)) {
        *out = tsr_dtensor_retain(tensor);
        return TSR_OK;
    }
    if (tensor->storage == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "redistribution of \"%s\", which has no memory",
                         tensor->label);
    }
    if (route.step_count == 0) { /* other words for the same pieces */
        TSR_TRY(tsri_dtensor_view(tensor, to, 0, out));
        return TSR_OK;
    }
    now = tsr_dtensor_retain(tensor);
    TSR_TRY_GOTO(status, run_plan(&r, &route, wide, &now), release_now);
    now->layout = *to;
    *out = now;
    return TSR_OK;
release_now:
    tsr_dtensor_release(&now);
    return status;
}

tsr_status tsr_dtensor_redistribute(tsr_dtensor *tensor, const tsr_layout *to, tsr_dtensor **out)
{
    TSRI_WANT(tensor, to, out);

    const tsri_redistribute_options options = {.persistent = true, .asked = true};

    TSR_TRY(tsri_dtensor_check(tensor, "redistribute"));
    TSR_TRY(tsri_redistribute(tensor, to, &options, out));
    return TSR_OK;
}
