/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Making units: which parameters, which options.
 *
 * tsr_fully_shard only takes parameters and notes options, so that tp plans may come before or
 * after it; sizes, groups and memory are settled by tsr_module_materialize (settle.c). */
#include "fsdp_priv.h"

#include "base/base.h"

#include <string.h>

tsr_stream *tsri_unit_stream(const unit *u, tsri_stream_kind kind)
{
    return tsri_comm_stream(u->comm, kind);
}

unit *tsri_unit_of(const tsr_module *module)
{
    return module->hooks == &tsri_unit_hooks ? module->hook_context : NULL;
}

engine *tsri_engine_of(tsr_module *module)
{
    const unit *root = tsri_unit_of(tsri_module_root(module));

    return root != NULL ? root->engine : NULL;
}

void tsri_unit_release(void *context)
{
    unit *u = context;

    /* What was enqueued may still use the memory. */
    for (int kind = 0; u->rest.shard != NULL && kind < TSRI_STREAM_COUNT; kind++) {
        (void)tsri_stream_sync(tsri_unit_stream(u, (tsri_stream_kind)kind));
    }
    tsri_unit_drop_sums(u);
    for (int i = 0; i < u->param_count; i++) {
        tsr_dtensor_release(&u->params[i].grad_value);
        u->params[i].param->sink = NULL;
        u->params[i].param->sink_context = NULL;
        u->params[i].param->master.buffer = NULL;
        u->params[i].param->grad.buffer = NULL;
        (void)tsri_dtensor_attach(u->params[i].param->value, NULL, 0);
        tsri_param_release(&u->params[i].param);
    }
    tsri_buffer_release(&u->rest.shard);
    tsri_buffer_release(&u->rest.halves);
    tsri_buffer_release(&u->rest.sums);
    if (u->engine != NULL && --u->engine->owners == 0) {
        tsri_tape_unwatch(&u->engine->step.watch);
        tsri_free(&u->engine->units);
        tsri_schedule_free(u->engine);
        tsri_free(&u->engine);
    }
    tsri_free(&u->prefetch[0].units);
    tsri_free(&u->prefetch[1].units);
    tsri_free(&u->params);
    tsri_free(&u->items);
    tsr_comm_release(&u->comm);
    tsri_free(&u);
}

static bool is_ignored(const tsr_fsdp_options *options, const tsr_param *param)
{
    for (int i = 0; i < options->ignored_count; i++) {
        if (tsri_pattern_match(options->ignored[i], param->name)) {
            return true;
        }
    }
    return false;
}

/* The first pattern that matches counts. */
static bool splits_cols(const tsr_fsdp_options *options, const tsr_param *param)
{
    for (int i = 0; i < options->shard_dim_count; i++) {
        if (tsri_pattern_match(options->shard_dims[i].match, param->name)) {
            return options->shard_dims[i].dim == 1;
        }
    }
    return false;
}

tsr_status tsri_unit_take(unit *u, tsr_param *param)
{
    int capacity = u->param_count;
    int items = u->param_count;

    TSR_TRY(tsri_grow(&u->params, &capacity, u->param_count + 1, sizeof(unit_param)));
    TSR_TRY(tsri_grow(&u->items, &items, u->param_count + 1, sizeof(tsri_coll_item)));
    param->sink = &tsri_unit_sink;
    param->sink_context = u;
    param->unit_index = u->param_count;
    u->params[u->param_count++] = (unit_param){.param = tsri_param_retain(param)};
    return TSR_OK;
}

static tsr_status take_params(unit *u)
{
    tsr_param *const *all = NULL;
    int count = 0;

    TSR_TRY(tsr_module_params(u->module, &all, &count));
    for (int i = 0; i < count; i++) {
        if (all[i]->sink == NULL && !is_ignored(&u->options, all[i])) {
            TSR_TRY(tsri_unit_take(u, all[i]));
            u->params[u->param_count - 1].by_cols = splits_cols(&u->options, all[i]);
        }
    }
    return TSR_OK;
}

static void read_levels(unit *u, const tsr_fsdp_options *options)
{
    for (int i = 0; i < TSR_MESH_MAX_AXES && options->levels[i].axis != NULL; i++) {
        const tsr_axis_level *l = &options->levels[i];

        if (strcmp(l->axis, TSR_AXIS_INNER) == 0) {
            u->inner_level = l->level;
        } else if (strcmp(l->axis, TSR_AXIS_OTHERS) == 0) {
            u->other_level = l->level;
        } else {
            u->level[tsr_mesh_axis_find(tsr_comm_mesh(u->comm), l->axis)] = l->level;
        }
    }
}

tsr_status tsr_fully_shard(tsr_module *module, const tsr_fsdp_options *options)
{
    TSRI_WANT(module);

    static const tsr_fsdp_options defaults = {0};
    const tsr_fsdp_options *o = options != NULL ? options : &defaults;
    unit *u = NULL;
    tsr_status status = TSR_OK;

    TSRI_WANT_LIST(o->ignored, o->ignored_count);
    TSRI_WANT_LIST(o->shard_dims, o->shard_dim_count);
    TSR_TRY(tsri_legal_check_options(module, o));
    TSR_TRY(tsri_alloc(1, sizeof(*u), &u));
    u->module = module;
    u->comm = tsr_comm_retain(module->comm);
    u->options = *o;
    u->param_dtype = o->param_dtype == TSR_DTYPE_DEFAULT ? TSR_F32 : o->param_dtype;
    u->reduce_dtype = o->reduce_dtype == TSR_DTYPE_DEFAULT ? TSR_F32 : o->reduce_dtype;
    u->run.ran_forward = -1;
    u->run.used_forward = -1;
    u->gradient_sync = true;
    u->all_reduce = true;
    read_levels(u, o);
    TSR_TRY_GOTO(status, take_params(u), release);
    /* The lists are the caller's and used up. */
    u->options.ignored = NULL;
    u->options.ignored_count = 0;
    u->options.shard_dims = NULL;
    u->options.shard_dim_count = 0;
    module->hooks = &tsri_unit_hooks;
    module->hook_context = u;
    return TSR_OK;
release:
    tsri_unit_release(u);
    return status;
}

tsr_status tsr_module_freeze(tsr_module *module, const char *pattern)
{
    TSRI_WANT(module, pattern);

    tsr_param *const *all = NULL;
    int count = 0;
    int found = 0;

    if (module->materialized) {
        return TSR_RAISE(TSR_ERR_STATE, "module \"%s\" is materialised already", module->path);
    }
    TSR_TRY(tsr_module_params(module, &all, &count));
    for (int i = 0; i < count; i++) {
        if (tsri_pattern_match(pattern, all[i]->name)) {
            all[i]->spec.frozen = true;
            all[i]->value->needs_grad = false;
            found++;
        }
    }
    if (found == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "no parameter of module \"%s\" matches \"%s\"",
                         module->path, pattern);
    }
    return TSR_OK;
}

/* What no unit took: whole on every rank, and frozen, since nothing would reduce its gradient. */
static tsr_status take_rest(unit *root)
{
    tsr_param *const *all = NULL;
    int count = 0;

    TSR_TRY(tsr_module_params(root->module, &all, &count));
    for (int i = 0; i < count; i++) {
        if (all[i]->sink == NULL) {
            TSR_TRY(tsri_unit_take(root, all[i]));
            root->params[root->param_count - 1].whole = true;
            if (!all[i]->spec.frozen) {
                tsri_log(TSRI_LOG_WARN, "parameter %s is ignored by every unit: frozen",
                         all[i]->name);
            }
            all[i]->spec.frozen = true;
            all[i]->value->needs_grad = false;
        }
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
    unit *u = tsri_unit_of(module);

    module->materialized = true;
    if (u != NULL) {
        TSR_TRY(tsri_grow(&e->units, &list->capacity, e->unit_count + 1, sizeof(unit *)));
        u->engine = e;
        u->run.position = e->unit_count;
        e->units[e->unit_count++] = u;
        e->owners++;
    }
    return TSR_OK;
}

/* With most of the parameters in one unit, nothing is hidden and little is saved. */
static void warn_of_giant(const engine *e)
{
    double total = 0.0;
    double most = 0.0;
    const unit *giant = NULL;

    for (int i = 0; i < e->unit_count; i++) {
        double own = 0.0;

        for (int k = 0; k < e->units[i]->param_count; k++) {
            own += (double)tsr_param_count(e->units[i]->params[k].param);
        }
        total += own;
        if (own > most) {
            most = own;
            giant = e->units[i];
        }
    }
    if (giant != NULL && giant->levels.ranks[3] > 1 && most >= 1e6 && most > 0.75 * total) {
        tsri_log(TSRI_LOG_WARN,
                 "unit \"%s\" holds %.0f %% of the parameters: gathered as one, it hides no "
                 "traffic and saves little memory; make its blocks units",
                 giant->module->path, 100.0 * most / total);
    }
}

static tsr_status open_engine(tsr_module *model, engine **out)
{
    unit_list list = {0};
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(engine), &list.engine));
    list.engine->comm = model->comm;
    list.engine->step.last_mark = -1;
    TSR_TRY_GOTO(status, tsri_module_walk(model, collect_unit, &list), free_unowned);
    TSR_TRY(tsri_schedule_open(list.engine, model));
    *out = list.engine;
    return TSR_OK;
free_unowned:
    if (list.engine->owners == 0) {
        tsri_free(&list.engine);
    }
    return status;
}

/* Ranks fill pieces of the same tensors from the same seed, or replicas part at once. */
static tsr_status check_same(tsr_module *model, uint64_t seed)
{
    tsr_param *const *all = NULL;
    char text[32];
    int count = 0;

    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)seed);
    TSR_TRY(tsr_module_params(model, &all, &count));
    TSR_TRY(tsr_world_check_same(tsr_comm_world(model->comm), "the seed of tsr_module_materialize",
                                 text, strlen(text)));
    TSR_TRY(tsri_params_check_same(model->comm, "the model's list of parameters", all, count));
    return TSR_OK;
}

static tsr_status materialize(tsr_module *model, uint64_t seed)
{
    engine *e = NULL;

    TSR_TRY(tsri_comm_check_axes(model->comm));
    TSR_TRY(check_same(model, seed));
    if (model->hooks == NULL) {
        TSR_TRY(tsr_fully_shard(model, NULL));
    }
    TSR_TRY(take_rest(tsri_unit_of(model)));
    TSR_TRY(open_engine(model, &e));
    for (int i = 0; i < e->unit_count; i++) {
        TSR_TRY(tsri_unit_settle(e->units[i], seed));
    }
    TSR_TRY(tsri_unit_open_axes(e->units[0]));
    warn_of_giant(e);
    return TSR_OK;
}

/* Groups are opened between allocations, so a rank that fails alone must be heard by the others,
 * wherever they are. */
tsr_status tsr_module_materialize(tsr_module *model, uint64_t seed)
{
    TSRI_WANT(model);

    if (model->materialized) {
        return TSR_RAISE(TSR_ERR_STATE, "module \"%s\" is materialised already", model->path);
    }
    if (model->parent != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "module \"%s\" is not a root: materialise \"%s\"",
                         model->path, tsri_module_root(model)->path);
    }
    TSR_TRY(tsri_world_agree(tsr_comm_world(model->comm), "materialising the model",
                             materialize(model, seed)));
    return TSR_OK;
}
