/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Settling a unit: which axes, which groups, which bytes; and filling them for the first time. */
#include "fsdp_priv.h"

#include "base/base.h"
#include "base/rng.h"

#include <string.h>

enum {
    F32 = (int)sizeof(float),
    ALIGN = 16 /* elements: 64 bytes of f32 */
};

/* The axis called "shard" if it carries data, else the last data axis; -1: none. */
static int inner_axis(const tsr_mesh *mesh, unsigned sums)
{
    const int named = tsr_mesh_axis_find(mesh, "shard");
    int axis = tsr_mesh_axis_count(mesh) - 1;

    if (named >= 0 && (sums >> named & 1u) != 0) {
        return named;
    }
    while (axis >= 0 && (sums >> axis & 1u) == 0) {
        axis--;
    }
    return axis;
}

/* A level for each data axis that is not named. */
static void complete_levels(unit *u)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    const unsigned sums = tsri_comm_sum_axes(u->comm);
    const int inner = inner_axis(mesh, sums);

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((sums >> axis & 1u) == 0 || u->level[axis] != TSR_LEVEL_DEFAULT) {
            continue;
        }
        u->level[axis] = axis == inner ? u->inner_level : u->other_level;
        if (u->level[axis] == TSR_LEVEL_DEFAULT) {
            u->level[axis] = strcmp(tsr_mesh_axis_name(mesh, axis), "shard") == 0
                                 ? TSR_LEVEL_PARAMS
                                 : TSR_LEVEL_REPLICATE;
        }
    }
}

/* Masks, sizes and this rank's index of each level's axes. */
static tsr_status settle_levels(unit *u)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    int coord[TSR_MESH_MAX_AXES] = {0};

    complete_levels(u);
    TSR_TRY(tsri_legal_check_unit(u));
    TSR_TRY(tsr_mesh_coord(mesh, tsr_comm_rank(u->comm), coord));
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if (u->level[axis] != TSR_LEVEL_DEFAULT && tsr_mesh_axis_size(mesh, axis) > 1) {
            u->levels.mask[u->level[axis] - TSR_LEVEL_REPLICATE] |= 1u << axis;
        }
    }
    for (int level = 0; level < 4; level++) {
        u->levels.ranks[level] = tsri_flat_ranks(mesh, u->levels.mask[level]);
        u->levels.index[level] = tsri_flat_index(mesh, u->levels.mask[level], coord);
    }
    return TSR_OK;
}

/* The last level-3 axes whose sizes multiply to at least k. */
static unsigned kept_mask(const unit *u, int k)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    unsigned mask = 0;
    int size = 1;

    for (int axis = tsr_mesh_axis_count(mesh) - 1; axis >= 0 && size < k; axis--) {
        if ((u->levels.mask[3] >> axis & 1u) != 0) {
            mask |= 1u << axis;
            size *= tsr_mesh_axis_size(mesh, axis);
        }
    }
    return mask;
}

static tsr_status open_groups(unit *u)
{
    tsr_comm *comm = u->comm;
    const int k = u->options.reshard_group;

    TSR_TRY(tsri_comm_open_group(comm, u->levels.mask[3], TSRI_STREAM_GATHER, &u->levels.gather));
    TSR_TRY(tsri_comm_open_group(comm, u->levels.mask[3], TSRI_STREAM_REDUCE, &u->levels.reduce));
    for (int level = 1; level <= 2; level++) {
        if (u->levels.mask[level] != 0) {
            TSR_TRY(tsri_comm_open_group(comm, u->levels.mask[level], TSRI_STREAM_REPLICATE,
                                         &u->levels.flat_gather[level]));
            TSR_TRY(tsri_comm_open_group(comm, u->levels.mask[level],
                                         level == 1 ? TSRI_STREAM_REPLICATE : TSRI_STREAM_REDUCE,
                                         &u->levels.flat_reduce[level]));
        }
    }
    if (u->levels.mask[0] != 0) {
        TSR_TRY(tsri_comm_open_group(comm, u->levels.mask[0], TSRI_STREAM_REPLICATE,
                                     &u->levels.replicate));
    }
    if (k > 0) {
        TSR_TRY(tsri_comm_open_group(comm, kept_mask(u, k), TSRI_STREAM_GATHER, &u->levels.kept));
    }
    return TSR_OK;
}

/* Place of p in the flat shard, after those placed before. The room is that of the largest piece
 * over tensor parallel, so that flat intervals are the same on all its ranks: what is replicated
 * there is owned alike. */
static void place(unit *u, unit_param *p)
{
    const tsri_rest_layout *layout = &p->param->master.layout;
    const int64_t room = tsri_rest_room(layout);

    p->shard_offset = u->flat.shard_count;
    u->flat.shard_count += tsri_ceil_div(room, ALIGN) * ALIGN;
    if (p->by_cols) {
        p->fold_offset = u->flat.fold_count;
        u->flat.fold_count += tsri_ceil_div(p->chunk, ALIGN) * ALIGN * u->levels.ranks[3];
    }
}

/* How p's pieces are cut, but for Flat, which wants the unit's sizes. */
static tsr_status settle_chunk(const unit *u, unit_param *p)
{
    tsr_param *param = p->param;
    tsri_block block;
    const tsri_rest_layout layout = {.outer = param->value->layout,
                                     .shard_axes = p->whole ? 0 : u->levels.mask[3],
                                     .shard_dim = p->by_cols && u->levels.ranks[3] > 1 ? 1 : 0};

    TSR_TRY(tsri_rest_check(&layout, param->name));
    TSR_TRY(tsri_rest_outer(&layout.outer, tsr_comm_rank(u->comm), &block));
    param->master.layout = layout;
    param->value->dtype = u->param_dtype;
    p->rows = block.rows;
    p->cols = block.cols;
    p->by_cols = layout.shard_dim == 1;
    p->chunk = tsri_rest_chunk(&layout, &block);
    return TSR_OK;
}

/* The intervals of the flat shard that this rank owns, and keeps gradients of. */
static tsr_status settle_flat(unit *u)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    const tsri_flat own = {{u->levels.mask[2], u->levels.mask[1]}, u->flat.train_count};
    const tsri_flat grad = {{u->levels.mask[2], 0}, u->flat.train_count};
    int coord[TSR_MESH_MAX_AXES] = {0};

    TSR_TRY(tsr_mesh_coord(mesh, tsr_comm_rank(u->comm), coord));
    tsri_flat_interval(&own, mesh, coord, &u->flat.own_begin, &u->flat.own_count);
    tsri_flat_interval(&grad, mesh, coord, &u->flat.grad_begin, &u->flat.grad_count);
    return TSR_OK;
}

static tsr_status settle_sizes(unit *u)
{
    const int64_t split = (int64_t)u->levels.ranks[1] * u->levels.ranks[2];

    for (int i = 0; i < u->param_count; i++) {
        TSR_TRY(settle_chunk(u, &u->params[i]));
    }
    for (int i = 0; i < u->param_count; i++) {
        if (tsri_unit_trains(&u->params[i])) {
            place(u, &u->params[i]);
        }
    }
    u->flat.shard_count = tsri_ceil_div(u->flat.shard_count, ALIGN * split) * ALIGN * split;
    u->flat.train_count = u->flat.shard_count;
    for (int i = 0; i < u->param_count; i++) {
        if (!tsri_unit_trains(&u->params[i]) && !u->params[i].whole) {
            place(u, &u->params[i]);
        }
    }
    u->flat.sharded_count = u->flat.shard_count;
    for (int i = 0; i < u->param_count; i++) {
        if (u->params[i].whole) {
            place(u, &u->params[i]);
        }
    }
    TSR_TRY(settle_flat(u));
    /* A refresh of offloaded parameters takes step memory: the first step makes one too, so that
     * the plan has it. */
    u->rest.stale = u->options.offload_params && u->flat.own_count < u->flat.train_count;
    u->flat.lean = u->param_dtype != TSR_F32 && u->flat.own_count < u->flat.train_count &&
                   u->flat.train_count == u->flat.shard_count && !u->options.offload_params;
    u->flat.shard_begin = u->flat.lean ? u->flat.own_begin : 0;
    u->flat.has_slot = u->param_count > 0 &&
                       (u->levels.ranks[3] > 1 || (u->param_dtype != TSR_F32 && !u->flat.lean) ||
                        u->options.offload_params);
    u->flat.has_grad_slot =
        u->flat.train_count > 0 && (u->levels.ranks[3] > 1 || u->levels.ranks[2] > 1 ||
                                    u->reduce_dtype != TSR_F32 || u->options.offload_grads);
    return TSR_OK;
}

/* What this rank owns of p, once there is memory. */
static tsr_status settle_piece(const unit *u, const unit_param *p)
{
    tsr_param *param = p->param;
    tsri_rest_layout layout = param->master.layout;

    if (tsri_unit_trains(p)) {
        layout.flat = (tsri_flat){{u->levels.mask[2], u->levels.mask[1]}, u->flat.train_count};
        layout.flat_at = p->shard_offset;
    }
    TSR_TRY(tsri_rest_init(&layout, TSR_F32, tsr_comm_rank(u->comm), &param->master));
    param->grad = param->master;
    param->master.buffer = u->rest.shard;
    if (tsri_rest_count(&param->master) > 0) {
        param->master.offset =
            (size_t)(p->shard_offset + param->master.piece.begin - u->flat.shard_begin) * F32;
    }
    return TSR_OK;
}

/* The piece of p, drawn into (buffer, offset). */
static tsr_status draw(const unit *u, const unit_param *p, uint64_t seed, tsr_buffer *buffer,
                       size_t offset)
{
    const tsri_block block = p->param->master.piece.block;
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_COMPUTE), .label = p->param->name};
    tsrk_init_normal args = {
        .mean = (float)p->param->spec.init_mean,
        .std = (float)p->param->spec.init_std,
        .key = tsri_rng_key(seed, tsri_hash_text(p->param->name), 0, 0),
    };

    args.rows = block.rows;
    args.cols = block.cols;
    args.first_row = block.first_row;
    args.first_col = block.first_col;
    args.global_cols = block.global_cols;
    if (block.rows == 0 || block.cols == 0) {
        return TSR_OK;
    }
    args.out = tsri_arg_out(&call, buffer, offset, (size_t)(block.rows * block.cols) * F32);
    TSR_TRY(TSRI_LAUNCH(&call, INIT_NORMAL, &args));
    return TSR_OK;
}

/* A lean unit keeps what it owns of the piece; the first refresh brings the rest. */
static tsr_status fill_own(const unit *u, const unit_param *p, uint64_t seed)
{
    tsr_stream *stream = tsri_unit_stream(u, TSRI_STREAM_COMPUTE);
    const tsr_param *param = p->param;
    const int64_t own = tsri_param_own_count(param);
    tsri_mem drawn = {0};

    if (own == 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), (size_t)p->chunk * F32,
                               TSRI_MEM_SLOT_PARAM, u->module->path, stream, &drawn));
    TSR_TRY(draw(u, p, seed, drawn.buffer, drawn.offset));
    const tsri_mem from = {.buffer = drawn.buffer,
                           .offset = drawn.offset + (size_t)param->master.piece.begin * F32};
    const tsri_mem to = {.buffer = u->rest.shard, .offset = param->master.offset};

    TSR_TRY(tsri_unit_copy(u, TSRI_STREAM_COMPUTE, &from, &to, own));
    tsri_arena_release(tsri_comm_arena(u->comm), &drawn, tsri_event_record(stream));
    return TSR_OK;
}

static tsr_status fill(const unit *u, const unit_param *p, uint64_t seed)
{
    if (u->flat.lean) {
        TSR_TRY(fill_own(u, p, seed));
    } else {
        TSR_TRY(draw(u, p, seed, u->rest.shard, (size_t)p->shard_offset * F32));
    }
    return TSR_OK;
}

tsr_status tsri_unit_overwrite(void *context, tsr_param *param, tsri_overwrite how)
{
    unit *u = context;
    engine_step *step = &u->engine->step;

    if (step->watch.tape != NULL && tsri_tape_in_step(step->watch.tape)) {
        return TSR_RAISE(TSR_ERR_STATE, "write of parameter %s within a step: end the step first",
                         param->name);
    }
    if (how != TSRI_OVERWRITE_ALIKE) {
        param->written = how == TSRI_OVERWRITE_ALONE;
        step->overwritten = param->written;
    }
    if (how == TSRI_OVERWRITE_TOLD) { /* gathered by hand: of what was there before */
        TSR_TRY(tsri_unit_reshard(u));
    }
    if (how != TSRI_OVERWRITE_ALONE && tsri_unit_trains(&u->params[param->unit_index])) {
        u->rest.stale = u->rest.stale || u->flat.own_count < u->flat.train_count;
    }
    return TSR_OK;
}

/* What rests: parameters, on the device or in the host pool, and offloaded gradients. */
static tsr_status open_rest(unit *u)
{
    const char *path = u->module->path;
    const size_t bytes = (size_t)u->flat.shard_count * F32;

    if (u->flat.lean) {
        TSR_TRY(tsri_comm_buffer(u->comm, (size_t)u->flat.own_count * F32, TSRI_MEM_PARAM, path,
                                 &u->rest.shard));
        TSR_TRY(tsri_comm_buffer(u->comm,
                                 (size_t)u->flat.shard_count * tsr_dtype_size(u->param_dtype),
                                 TSRI_MEM_PARAM, path, &u->rest.halves));
        u->rest.stale = true;
    } else if (u->options.offload_params) {
        TSR_TRY(tsri_comm_host_buffer(u->comm, bytes, TSRI_MEM_PARAM, path, &u->rest.shard));
    } else {
        TSR_TRY(tsri_comm_buffer(u->comm, bytes, TSRI_MEM_PARAM, path, &u->rest.shard));
    }
    if (u->options.offload_grads && u->flat.train_count > 0) {
        TSR_TRY(tsri_comm_host_buffer(u->comm, (size_t)u->flat.grad_count * F32, TSRI_MEM_GRAD,
                                      path, &u->rest.sums));
    }
    return TSR_OK;
}

tsr_status tsri_unit_settle(unit *u, uint64_t seed)
{
    TSR_TRY(settle_levels(u));
    TSR_TRY(open_groups(u));
    TSR_TRY(settle_sizes(u));
    u->module->out.dtype = u->options.output_dtype;
    if (u->param_count == 0) {
        return TSR_OK;
    }
    u->module->in.dtype = u->param_dtype;
    TSR_TRY(open_rest(u));
    for (int i = 0; i < u->param_count; i++) {
        TSR_TRY(settle_piece(u, &u->params[i]));
        TSR_TRY(fill(u, &u->params[i], seed));
    }
    return TSR_OK;
}
