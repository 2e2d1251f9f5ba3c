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
static int inner_axis(const tsr_mesh *mesh, unsigned data)
{
    const int named = tsr_mesh_axis_find(mesh, "shard");
    int axis = tsr_mesh_axis_count(mesh) - 1;

    if (named >= 0 && (data >> named & 1u) != 0) {
        return named;
    }
    while (axis >= 0 && (data >> axis & 1u) == 0) {
        axis--;
    }
    return axis;
}

/* A level for each data axis that is not named. */
static void complete_levels(unit *u)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    const unsigned data = tsri_comm_data_mask(u->comm);
    const int inner = inner_axis(mesh, data);

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((data >> axis & 1u) == 0 || u->level[axis] != TSR_LEVEL_DEFAULT) {
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
    int *ranks = NULL;
    tsr_status status = TSR_OK;

    complete_levels(u);
    TSR_TRY(tsri_legal_check_unit(u));
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if (u->level[axis] != TSR_LEVEL_DEFAULT && tsr_mesh_axis_size(mesh, axis) > 1) {
            u->mask[u->level[axis] - TSR_LEVEL_REPLICATE] |= 1u << axis;
        }
    }
    TSR_TRY(tsri_alloc((size_t)tsr_mesh_cell_count(mesh), sizeof(int), &ranks));
    for (int level = 0; level < 4 && status == TSR_OK; level++) {
        TSR_TRY_GOTO(status,
                     tsr_mesh_flat_ranks(mesh, u->mask[level], tsr_comm_rank(u->comm), ranks,
                                         &u->ranks[level], &u->index[level]),
                     free_ranks);
    }
free_ranks:
    tsri_free(&ranks);
    return status;
}

/* The last level-3 axes whose sizes multiply to at least k. */
static unsigned kept_mask(const unit *u, int k)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    unsigned mask = 0;
    int size = 1;

    for (int axis = tsr_mesh_axis_count(mesh) - 1; axis >= 0 && size < k; axis--) {
        if ((u->mask[3] >> axis & 1u) != 0) {
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

    TSR_TRY(tsri_comm_open_group(comm, u->mask[3], TSRI_STREAM_GATHER, &u->gather_group));
    TSR_TRY(tsri_comm_open_group(comm, u->mask[3], TSRI_STREAM_REDUCE, &u->reduce_group));
    for (int level = 1; level <= 2; level++) {
        if (u->mask[level] != 0) {
            TSR_TRY(tsri_comm_open_group(comm, u->mask[level], TSRI_STREAM_REPLICATE,
                                         &u->flat_gather[level]));
            TSR_TRY(tsri_comm_open_group(comm, u->mask[level],
                                         level == 1 ? TSRI_STREAM_REPLICATE : TSRI_STREAM_REDUCE,
                                         &u->flat_reduce[level]));
        }
    }
    if (u->mask[0] != 0) {
        TSR_TRY(tsri_comm_open_group(comm, u->mask[0], TSRI_STREAM_REPLICATE, &u->replicate_group));
    }
    if (k > 0) {
        TSR_TRY(tsri_comm_open_group(comm, kept_mask(u, k), TSRI_STREAM_GATHER, &u->kept_group));
    }
    return TSR_OK;
}

/* The largest extent of dim that any rank of the axes without data has. */
static int64_t largest_extent(const tsr_layout *layout, int dim)
{
    int64_t n = dim < layout->ndim ? layout->shape[dim] : 1;

    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        if (layout->place[axis].kind == TSR_SHARD && layout->place[axis].dim == dim) {
            n = tsri_ceil_div(n, tsr_mesh_axis_size(layout->mesh, axis));
        }
    }
    return n;
}

int64_t tsri_unit_chunk(const unit *u, const unit_param *p, int64_t rows, int64_t cols)
{
    const int ranks = p->whole ? 1 : u->ranks[3];

    return p->by_cols ? rows * tsri_ceil_div(cols, ranks) : tsri_ceil_div(rows, ranks) * cols;
}

/* Place of p in the flat shard, after those placed before. The room is that of the largest piece
 * over tensor parallel, so that flat intervals are the same on all its ranks: what is replicated
 * there is owned alike. */
static void place(unit *u, unit_param *p)
{
    const tsr_layout *layout = &p->param->value->layout;
    const int ranks = p->whole ? 1 : u->ranks[3];
    const int64_t room =
        tsri_unit_chunk(u, p, largest_extent(layout, 0), largest_extent(layout, 1));

    p->chunk = tsri_unit_chunk(u, p, p->rows, p->cols);
    p->shard_offset = u->shard_count;
    u->shard_count += tsri_ceil_div(room, ALIGN) * ALIGN;
    if (p->by_cols) {
        p->fold_offset = u->fold_count;
        u->fold_count += tsri_ceil_div(p->chunk, ALIGN) * ALIGN * ranks;
    }
}

static void settle_sizes(unit *u)
{
    const int64_t split = (int64_t)u->ranks[1] * u->ranks[2];

    for (int i = 0; i < u->param_count; i++) {
        unit_param *p = &u->params[i];
        tsr_dtensor *value = p->param->value;

        value->dtype = u->param_dtype;
        p->rows = value->local_shape[0];
        p->cols = value->layout.ndim == 2 ? value->local_shape[1] : 1;
        p->by_cols = p->by_cols && u->ranks[3] > 1;
    }
    for (int i = 0; i < u->param_count; i++) {
        if (tsri_unit_trains(&u->params[i])) {
            place(u, &u->params[i]);
        }
    }
    u->shard_count = tsri_ceil_div(u->shard_count, ALIGN * split) * ALIGN * split;
    u->train_count = u->shard_count;
    for (int i = 0; i < u->param_count; i++) {
        if (!tsri_unit_trains(&u->params[i]) && !u->params[i].whole) {
            place(u, &u->params[i]);
        }
    }
    u->sharded_count = u->shard_count;
    for (int i = 0; i < u->param_count; i++) {
        if (u->params[i].whole) {
            place(u, &u->params[i]);
            u->has_whole = true;
        }
    }
    u->grad_count = u->train_count / u->ranks[2];
    u->grad_begin = u->index[2] * u->grad_count;
    u->own_count = u->grad_count / u->ranks[1];
    u->own_begin = u->grad_begin + u->index[1] * u->own_count;
    /* A refresh of offloaded parameters takes step memory: the first step makes one too, so that
     * the plan has it. */
    u->stale = u->options.offload_params && u->own_count < u->train_count;
    u->lean = u->param_dtype != TSR_F32 && u->own_count < u->train_count &&
              u->train_count == u->shard_count && !u->options.offload_params;
    u->shard_begin = u->lean ? u->own_begin : 0;
    u->has_slot =
        u->param_count > 0 &&
        (u->ranks[3] > 1 || (u->param_dtype != TSR_F32 && !u->lean) || u->options.offload_params);
    u->has_grad_slot =
        u->train_count > 0 && (u->ranks[3] > 1 || u->ranks[2] > 1 || u->reduce_dtype != TSR_F32 ||
                               u->options.offload_grads);
}

/* Axes on which what this rank owns of p is replicated. */
static unsigned copy_mask(const unit *u, const unit_param *p)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    unsigned mask = u->mask[0];

    if (!tsri_unit_trains(p)) {
        mask |= u->mask[1] | u->mask[2] | (p->whole ? u->mask[3] : 0);
    }
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((tsri_comm_data_mask(u->comm) >> axis & 1u) == 0 &&
            tsr_mesh_axis_size(mesh, axis) > 1 &&
            p->param->value->layout.place[axis].kind == TSR_REPLICATE) {
            mask |= 1u << axis;
        }
    }
    return mask;
}

/* This rank's part of n elements or rows in chunks of each. */
static void part(int64_t n, int64_t each, int index, int64_t *begin, int64_t *count)
{
    *begin = tsri_min64(n, index * each);
    *count = tsri_min64(each, n - *begin);
}

void tsri_unit_get_piece(const unit *u, const unit_param *p, int64_t rows, int64_t cols,
                         const int index[4], unit_piece *out)
{
    const int ranks = p->whole ? 1 : u->ranks[3];
    const int at = p->whole ? 0 : index[3];
    const int64_t grad = index[2] * u->grad_count;
    const int64_t own = grad + index[1] * u->own_count;
    int64_t piece = 0;
    int64_t begin = 0;
    int64_t end = 0;

    *out = (unit_piece){.row_count = rows, .col_count = cols};
    if (p->by_cols) {
        part(cols, tsri_ceil_div(cols, ranks), at, &out->col_begin, &out->col_count);
    } else {
        part(rows, tsri_ceil_div(rows, ranks), at, &out->row_begin, &out->row_count);
    }
    piece = out->row_count * out->col_count;
    if (!tsri_unit_trains(p)) {
        out->own_end = piece;
        return;
    }
    tsri_intersect(own, own + u->own_count, p->shard_offset, p->shard_offset + piece, &begin, &end);
    if (begin < end) {
        out->own_begin = begin - p->shard_offset;
        out->own_end = end - p->shard_offset;
    }
    tsri_intersect(grad, grad + u->grad_count, p->shard_offset,
                   p->shard_offset + tsri_unit_chunk(u, p, rows, cols), &out->grad_begin,
                   &out->grad_end);
}

static void settle_piece(const unit *u, const unit_param *p)
{
    tsr_param *param = p->param;
    unit_piece piece;

    tsri_unit_get_piece(u, p, p->rows, p->cols, u->index, &piece);
    param->by_cols = p->by_cols;
    param->row_begin = piece.row_begin;
    param->row_count = piece.row_count;
    param->col_begin = piece.col_begin;
    param->col_count = piece.col_count;
    param->own_begin = piece.own_begin;
    param->own_end = piece.own_end;
    param->data = u->shard;
    param->data_offset = piece.own_begin < piece.own_end
                             ? (size_t)(p->shard_offset + piece.own_begin - u->shard_begin) * F32
                             : 0;
    param->copy_mask = copy_mask(u, p);
}

/* The piece of p, drawn into (buffer, offset). */
static tsr_status draw(const unit *u, const unit_param *p, uint64_t seed, tsr_buffer *buffer,
                       size_t offset)
{
    tsri_param_block block;
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_COMPUTE), .label = p->param->name};
    tsrk_init_normal args = {
        .mean = (float)p->param->spec.init_mean,
        .std = (float)p->param->spec.init_std,
        .key = tsri_rng_key(seed, tsri_hash_text(p->param->name), 0, 0),
    };

    tsri_param_get_block(p->param, &block);
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
    const int64_t own = param->own_end - param->own_begin;
    tsri_mem drawn = {0};

    if (own == 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_arena_acquire(tsri_comm_arena(u->comm), (size_t)p->chunk * F32,
                               TSRI_MEM_SLOT_PARAM, u->module->path, stream, &drawn));
    TSR_TRY(draw(u, p, seed, drawn.buffer, drawn.offset));
    const tsri_mem from = {.buffer = drawn.buffer,
                           .offset = drawn.offset + (size_t)param->own_begin * F32};
    const tsri_mem to = {.buffer = u->shard, .offset = param->data_offset};

    TSR_TRY(tsri_unit_copy(u, TSRI_STREAM_COMPUTE, &from, &to, own));
    tsri_arena_release(tsri_comm_arena(u->comm), &drawn, tsri_event_record(stream));
    return TSR_OK;
}

static tsr_status fill(const unit *u, const unit_param *p, uint64_t seed)
{
    if (u->lean) {
        TSR_TRY(fill_own(u, p, seed));
    } else {
        TSR_TRY(draw(u, p, seed, u->shard, (size_t)p->shard_offset * F32));
    }
    return TSR_OK;
}

tsr_status tsri_unit_load(void *context, tsr_param *param, int64_t first, const float *host,
                          int64_t count)
{
    unit *u = context;
    const int64_t at = u->params[param->unit_index].shard_offset;
    const int64_t shard_end = u->shard_begin + (u->lean ? u->own_count : u->shard_count);
    int64_t begin = 0;
    int64_t end = 0;

    if (u->engine->watch.tape != NULL && tsri_tape_in_step(u->engine->watch.tape)) {
        return TSR_RAISE(TSR_ERR_STATE, "write of parameter %s within a step: end the step first",
                         param->name);
    }
    u->stale = u->stale || u->lean; /* the whole in half precision is older now */
    tsri_intersect(at + first, at + first + count, u->shard_begin, shard_end, &begin, &end);
    if (begin == end) {
        return TSR_OK;
    }
    TSR_TRY(tsri_write(u->shard, (size_t)(begin - u->shard_begin) * F32,
                       host + (begin - at - first), (size_t)(end - begin) * F32,
                       tsri_unit_stream(u, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

/* What rests: parameters, on the device or in the host pool, and offloaded gradients. */
static tsr_status open_rest(unit *u)
{
    const char *path = u->module->path;
    const size_t bytes = (size_t)u->shard_count * F32;

    if (u->lean) {
        TSR_TRY(
            tsri_comm_buffer(u->comm, (size_t)u->own_count * F32, TSRI_MEM_PARAM, path, &u->shard));
        TSR_TRY(tsri_comm_buffer(u->comm, (size_t)u->shard_count * tsr_dtype_size(u->param_dtype),
                                 TSRI_MEM_PARAM, path, &u->halves));
        u->stale = true;
    } else if (u->options.offload_params) {
        TSR_TRY(tsri_comm_host_buffer(u->comm, bytes, TSRI_MEM_PARAM, path, &u->shard));
    } else {
        TSR_TRY(tsri_comm_buffer(u->comm, bytes, TSRI_MEM_PARAM, path, &u->shard));
    }
    if (u->options.offload_grads && u->train_count > 0) {
        TSR_TRY(tsri_comm_host_buffer(u->comm, (size_t)u->grad_count * F32, TSRI_MEM_GRAD, path,
                                      &u->rest));
    }
    return TSR_OK;
}

tsr_status tsri_unit_settle(unit *u, uint64_t seed)
{
    TSR_TRY(settle_levels(u));
    TSR_TRY(open_groups(u));
    settle_sizes(u);
    u->module->out_dtype = u->options.output_dtype;
    if (u->param_count == 0) {
        return TSR_OK;
    }
    u->module->in_dtype = u->param_dtype;
    TSR_TRY(open_rest(u));
    for (int i = 0; i < u->param_count; i++) {
        settle_piece(u, &u->params[i]);
        TSR_TRY(fill(u, &u->params[i], seed));
    }
    return TSR_OK;
}
