/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Making units: which parameters, which axes, which bytes; and filling them for the first time.
 *
 * tsr_fully_shard only takes parameters and notes options, so that tp plans may come before or
 * after it; sizes, groups and memory are settled by tsr_module_materialize. */
#include "fsdp_priv.h"

#include "base/base.h"
#include "base/rng.h"

#include <string.h>

enum {
    F32 = (int)sizeof(float),
    ALIGN = 16 /* elements: 64 bytes of f32 */
};

tsr_stream *tsri_unit_stream(const unit *u, tsri_stream_kind kind)
{
    return tsri_comm_stream(u->comm, kind);
}

void tsri_unit_release(void *context)
{
    unit *u = context;

    for (int i = 0; i < u->param_count; i++) {
        tsr_dtensor_release(&u->params[i].grad_value);
        u->params[i].param->sink = NULL;
        u->params[i].param->sink_context = NULL;
        u->params[i].param->data = NULL;
        u->params[i].param->grad = NULL;
        (void)tsri_dtensor_attach(u->params[i].param->value, NULL, 0);
        tsri_param_release(&u->params[i].param);
    }
    tsri_buffer_release(&u->shard);
    tsri_buffer_release(&u->grad);
    if (u->engine != NULL && --u->engine->owners == 0) {
        tsri_free(&u->engine->units);
        tsri_free(&u->engine->seen);
        tsri_free(&u->engine);
    }
    tsri_free(&u->params);
    tsri_free(&u->items);
    tsr_comm_release(&u->comm);
    tsri_free(&u);
}

static tsr_status read_levels(unit *u, const tsr_fsdp_options *options)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    char text[128];

    for (int i = 0; i < TSR_MESH_MAX_AXES && options->levels[i].axis != NULL; i++) {
        const tsr_axis_level *l = &options->levels[i];
        const int axis = tsr_mesh_axis_find(mesh, l->axis);

        if (axis < 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "unit \"%s\": no axis \"%s\" in mesh %s",
                             u->module->path, l->axis, tsr_mesh_format(mesh, text, sizeof(text)));
        }
        if (u->level[axis] != TSR_LEVEL_DEFAULT) {
            return TSR_RAISE(TSR_ERR_INVALID, "unit \"%s\": axis \"%s\" is named twice",
                             u->module->path, l->axis);
        }
        if (l->level < TSR_LEVEL_REPLICATE || l->level > TSR_LEVEL_PARAMS) {
            return TSR_RAISE(TSR_ERR_INVALID, "unit \"%s\": axis \"%s\" has level %d, wants 0 to 3",
                             u->module->path, l->axis, (int)l->level - 1);
        }
        u->level[axis] = l->level;
    }
    return TSR_OK;
}

static tsr_status check_options(const tsr_module *module, const tsr_fsdp_options *o)
{
    const tsr_dtype dtypes[2] = {o->param_dtype, o->reduce_dtype};

    for (int i = 0; i < 2; i++) {
        if (dtypes[i] != TSR_DTYPE_DEFAULT && dtypes[i] != TSR_F32 && dtypes[i] != TSR_BF16) {
            return TSR_RAISE(TSR_ERR_UNSUPPORTED, "unit \"%s\": %s dtype %s, wants f32 or bf16",
                             module->path, i == 0 ? "param" : "reduce", tsr_dtype_name(dtypes[i]));
        }
    }
    if (o->prefetch_depth < 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "unit \"%s\": prefetch depth %d", module->path,
                         o->prefetch_depth - 1);
    }
    return TSR_OK;
}

static tsr_status take_params(unit *u)
{
    tsr_param *const *all = NULL;
    int count = 0;

    TSR_TRY(tsr_module_params(u->module, &all, &count));
    TSR_TRY(tsri_alloc((size_t)count, sizeof(unit_param), &u->params));
    TSR_TRY(tsri_alloc((size_t)count, sizeof(tsri_coll_item), &u->items));
    for (int i = 0; i < count; i++) {
        if (all[i]->sink != NULL) {
            continue; /* a unit inside has it */
        }
        all[i]->sink = &tsri_unit_sink;
        all[i]->sink_context = u;
        all[i]->unit_index = u->param_count;
        u->params[u->param_count++].param = tsri_param_retain(all[i]);
    }
    return TSR_OK;
}

tsr_status tsr_fully_shard(tsr_module *module, const tsr_fsdp_options *options)
{
    static const tsr_fsdp_options defaults = {0};
    const tsr_fsdp_options *o = options != NULL ? options : &defaults;
    unit *u = NULL;
    tsr_status status = TSR_OK;

    if (module->hooks != NULL || module->materialized) {
        return TSR_RAISE(TSR_ERR_STATE, "module \"%s\" is %s already", module->path,
                         module->hooks != NULL ? "a unit" : "materialised");
    }
    if (module->forward == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "module \"%s\" is a container without a forward and cannot be a unit",
                         module->path);
    }
    TSR_TRY(check_options(module, o));
    TSR_TRY(tsri_alloc(1, sizeof(*u), &u));
    u->module = module;
    u->comm = tsr_comm_retain(module->comm);
    u->options = *o;
    u->param_dtype = o->param_dtype == TSR_DTYPE_DEFAULT ? TSR_F32 : o->param_dtype;
    u->reduce_dtype = o->reduce_dtype == TSR_DTYPE_DEFAULT ? TSR_F32 : o->reduce_dtype;
    u->grad_step = -1;
    u->final_step = -1;
    u->ran_forward = -1;
    TSR_TRY_GOTO(status, read_levels(u, o), release);
    TSR_TRY_GOTO(status, take_params(u), release);
    module->hooks = &tsri_unit_hooks;
    module->hook_context = u;
    return TSR_OK;
release:
    tsri_unit_release(u);
    return status;
}

/* Masks, sizes and this rank's index of each level's axes. */
static tsr_status settle_levels(unit *u)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    const unsigned data = tsri_comm_data_mask(u->comm);
    int *ranks = NULL;
    tsr_status status = TSR_OK;

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        const bool is_data = (data >> axis & 1u) != 0;
        tsr_level level = u->level[axis];

        if (!is_data && level != TSR_LEVEL_DEFAULT) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "unit \"%s\": axis \"%s\" has level %d but carries no data",
                             u->module->path, tsr_mesh_axis_name(mesh, axis), (int)level - 1);
        }
        if (level == TSR_LEVEL_DEFAULT) {
            level = strcmp(tsr_mesh_axis_name(mesh, axis), "shard") == 0 ? TSR_LEVEL_PARAMS
                                                                         : TSR_LEVEL_REPLICATE;
        }
        if (is_data && tsr_mesh_axis_size(mesh, axis) > 1) {
            u->mask[level - TSR_LEVEL_REPLICATE] |= 1u << axis;
        }
        u->level[axis] = is_data ? level : TSR_LEVEL_DEFAULT;
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

static tsr_status open_groups(unit *u)
{
    tsr_comm *comm = u->comm;

    TSR_TRY(tsri_comm_group(comm, u->mask[3], TSRI_STREAM_GATHER, &u->gather_group));
    TSR_TRY(tsri_comm_group(comm, u->mask[3], TSRI_STREAM_REDUCE, &u->reduce_group));
    for (int level = 1; level <= 2; level++) {
        if (u->mask[level] != 0) {
            TSR_TRY(
                tsri_comm_group(comm, u->mask[level], TSRI_STREAM_GATHER, &u->flat_gather[level]));
            TSR_TRY(tsri_comm_group(comm, u->mask[level],
                                    level == 1 ? TSRI_STREAM_REPLICATE : TSRI_STREAM_REDUCE,
                                    &u->flat_reduce[level]));
        }
    }
    if (u->mask[0] != 0) {
        TSR_TRY(tsri_comm_group(comm, u->mask[0], TSRI_STREAM_REPLICATE, &u->replicate_group));
    }
    return TSR_OK;
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
        p->chunk = tsri_ceil_div(p->rows, u->ranks[3]) * p->cols;
        p->shard_offset = u->shard_count;
        u->shard_count += tsri_ceil_div(p->chunk, ALIGN) * ALIGN;
    }
    u->shard_count = tsri_ceil_div(u->shard_count, ALIGN * split) * ALIGN * split;
    u->grad_count = u->shard_count / u->ranks[2];
    u->grad_begin = u->index[2] * u->grad_count;
    u->own_count = u->grad_count / u->ranks[1];
    u->own_begin = u->grad_begin + u->index[1] * u->own_count;
    u->has_slot = u->param_count > 0 && (u->ranks[3] > 1 || u->param_dtype != TSR_F32);
    u->has_grad_slot =
        u->param_count > 0 && (u->ranks[3] > 1 || u->ranks[2] > 1 || u->reduce_dtype != TSR_F32);
}

/* Axes on which what this rank owns of param is replicated. */
static unsigned copy_mask(const unit *u, const tsr_param *param)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    unsigned mask = u->mask[0];

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((tsri_comm_data_mask(u->comm) >> axis & 1u) == 0 &&
            tsr_mesh_axis_size(mesh, axis) > 1 &&
            param->value->layout.place[axis].kind == TSR_REPLICATE) {
            mask |= 1u << axis;
        }
    }
    return mask;
}

static void settle_piece(const unit *u, const unit_param *p)
{
    tsr_param *param = p->param;
    const int64_t chunk_rows = p->cols > 0 ? p->chunk / p->cols : 0;
    int64_t begin = 0;
    int64_t end = 0;

    param->row_begin = tsri_min64(p->rows, u->index[3] * chunk_rows);
    param->row_count = tsri_min64(chunk_rows, p->rows - param->row_begin);
    tsri_intersect(u->own_begin, u->own_begin + u->own_count, p->shard_offset,
                   p->shard_offset + param->row_count * p->cols, &begin, &end);
    param->own_begin = begin < end ? begin - p->shard_offset : 0;
    param->own_end = begin < end ? end - p->shard_offset : 0;
    param->data = u->shard;
    param->data_offset = (size_t)p->shard_offset * F32;
    param->grad = u->grad;
    /* May wrap below zero where levels 1 and 2 start inside the piece; adding own_begin mends it.
     */
    param->grad_offset = (size_t)(p->shard_offset - u->grad_begin) * F32;
    param->copy_mask = copy_mask(u, param);
}

static tsr_status fill(const unit *u, const unit_param *p, uint64_t seed)
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
    args.out = tsri_arg_out(&call, u->shard, (size_t)p->shard_offset * F32,
                            (size_t)(block.rows * block.cols) * F32);
    TSR_TRY(TSRI_LAUNCH(&call, INIT_NORMAL, &args));
    return TSR_OK;
}

static tsr_status settle_unit(unit *u, uint64_t seed)
{
    TSR_TRY(settle_levels(u));
    TSR_TRY(open_groups(u));
    settle_sizes(u);
    if (u->param_count == 0) {
        return TSR_OK;
    }
    TSR_TRY(tsri_comm_buffer(u->comm, (size_t)u->shard_count * F32, TSRI_MEM_PARAM, u->module->path,
                             &u->shard));
    TSR_TRY(tsri_comm_buffer(u->comm, (size_t)u->grad_count * F32, TSRI_MEM_GRAD, u->module->path,
                             &u->grad));
    for (int i = 0; i < u->param_count; i++) {
        settle_piece(u, &u->params[i]);
        TSR_TRY(fill(u, &u->params[i], seed));
    }
    return TSR_OK;
}

typedef struct unit_list {
    engine *engine;
    int capacity;
} unit_list;

static tsr_status collect_unit(tsr_module *module, void *context)
{
    unit_list *list = context;
    engine *e = list->engine;

    module->materialized = true;
    if (module->hooks == &tsri_unit_hooks) {
        unit *u = module->hook_context;

        TSR_TRY(tsri_grow(&e->units, &list->capacity, e->unit_count + 1, sizeof(unit *)));
        u->engine = e;
        u->position = e->unit_count;
        e->units[e->unit_count++] = u;
        e->owners++;
    }
    return TSR_OK;
}

tsr_status tsr_module_materialize(tsr_module *model, uint64_t seed)
{
    unit_list list = {0};
    engine *e = NULL;

    if (model->materialized) {
        return TSR_RAISE(TSR_ERR_STATE, "module \"%s\" is materialised already", model->path);
    }
    if (model->parent != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "module \"%s\" is not a root: materialise \"%s\"",
                         model->path, tsri_module_root(model)->path);
    }
    TSR_TRY(tsri_comm_check_axes(model->comm));
    if (model->hooks == NULL) {
        TSR_TRY(tsr_fully_shard(model, NULL));
    }
    TSR_TRY(tsri_alloc(1, sizeof(*e), &e));
    e->comm = model->comm;
    e->step = -1;
    list.engine = e;
    TSR_TRY(tsri_module_walk(model, collect_unit, &list));
    TSR_TRY(tsri_alloc((size_t)e->unit_count, sizeof(unit *), &e->seen));
    for (int i = 0; i < e->unit_count; i++) {
        TSR_TRY(settle_unit(e->units[i], seed));
    }
    return TSR_OK;
}
