/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What a program may ask of single units. */
#include "fsdp_priv.h"

#include "base/base.h"

static tsr_status find_unit(tsr_module *module, unit **out)
{
    *out = tsri_unit_of(module);
    if (*out == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "module \"%s\" is not a unit: call tsr_fully_shard on it",
                         module->path);
    }
    return TSR_OK;
}

tsr_status tsr_unit_unshard(tsr_module *module)
{
    TSRI_WANT(module);

    unit *u = NULL;

    TSR_TRY(find_unit(module, &u));
    if (u->engine == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "unit \"%s\" has no memory yet: call tsr_module_materialize first",
                         module->path);
    }
    if (u->values.state == SLOT_EMPTY) {
        u->engine->step.params_ready = tsri_event_record(tsri_unit_stream(u, TSRI_STREAM_COMPUTE));
    }
    TSR_TRY(tsri_unit_unshard(u));
    TSR_TRY(tsri_unit_await(u));
    return TSR_OK;
}

tsr_status tsr_unit_reshard(tsr_module *module)
{
    TSRI_WANT(module);

    unit *u = NULL;

    TSR_TRY(find_unit(module, &u));
    if (u->run.inside > 0) {
        return TSR_RAISE(TSR_ERR_STATE, "unit \"%s\" is running", module->path);
    }
    TSR_TRY(tsri_unit_reshard(u));
    return TSR_OK;
}

/* ---- settings ---- */

typedef struct setting {
    void (*set)(unit *u, int value);
    int value;
    int count;
} setting;

static tsr_status visit(tsr_module *module, void *context)
{
    setting *s = context;
    unit *u = tsri_unit_of(module);

    if (u != NULL) {
        s->set(u, s->value);
        s->count++;
    }
    return TSR_OK;
}

static tsr_status apply(tsr_module *module, bool recurse, setting *s)
{
    unit *u = NULL;

    if (!recurse) {
        TSR_TRY(find_unit(module, &u));
        s->set(u, s->value);
        return TSR_OK;
    }
    TSR_TRY(tsri_module_walk(module, visit, s));
    if (s->count == 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "no unit at or below module \"%s\"", module->path);
    }
    return TSR_OK;
}

/* Backward reads the switches of units as it goes. */
static tsr_status check_moment(tsr_module *module, const char *what)
{
    const engine *e = tsri_engine_of(module);

    if (e != NULL && e->step.watch.tape != NULL) {
        TSR_TRY(tsri_step_check_setting(e->step.watch.tape, what));
    }
    return TSR_OK;
}

static void set_sync(unit *u, int value)
{
    u->gradient_sync = value != 0;
}

static void set_all_reduce(unit *u, int value)
{
    u->all_reduce = value != 0;
}

static void set_reshard(unit *u, int value)
{
    u->options.reshard_after_forward = (tsr_reshard)value;
}

tsr_status tsr_unit_set_gradient_sync(tsr_module *module, bool on, bool recurse)
{
    TSRI_WANT(module);

    setting s = {.set = set_sync, .value = on};

    TSR_TRY(check_moment(module, "tsr_unit_set_gradient_sync"));
    TSR_TRY(apply(module, recurse, &s));
    return TSR_OK;
}

tsr_status tsr_unit_set_all_reduce(tsr_module *module, bool on, bool recurse)
{
    TSRI_WANT(module);

    setting s = {.set = set_all_reduce, .value = on};

    TSR_TRY(check_moment(module, "tsr_unit_set_all_reduce"));
    TSR_TRY(apply(module, recurse, &s));
    return TSR_OK;
}

tsr_status tsr_unit_set_reshard_after_forward(tsr_module *module, tsr_reshard reshard, bool recurse)
{
    TSRI_WANT(module);

    setting s = {.set = set_reshard, .value = (int)reshard};

    if (reshard < TSR_RESHARD_DEFAULT || reshard > TSR_RESHARD_NEVER) {
        return TSR_RAISE(TSR_ERR_INVALID, "reshard after forward is %d", (int)reshard);
    }
    TSR_TRY(apply(module, recurse, &s));
    return TSR_OK;
}

tsr_status tsr_fsdp_set_last_backward(tsr_module *model, tsr_last_backward last)
{
    TSRI_WANT(model);
    TSRI_WANT_ENUM(last, TSR_LAST_NO);

    engine *e = tsri_engine_of(model);

    if (e == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "model \"%s\" has no units yet: call tsr_module_materialize first",
                         model->path);
    }
    TSR_TRY(check_moment(model, "tsr_fsdp_set_last_backward"));
    if (last < TSR_LAST_AUTO || last > TSR_LAST_NO) {
        return TSR_RAISE(TSR_ERR_INVALID, "last backward is %d, wants %d to %d", (int)last,
                         (int)TSR_LAST_AUTO, (int)TSR_LAST_NO);
    }
    e->step.last_mark = last == TSR_LAST_AUTO ? -1 : last == TSR_LAST_YES;
    return TSR_OK;
}

/* ---- prefetch lists ---- */

static tsr_status set_list(tsr_module *module, tsr_module *const *modules, int count, int which)
{
    unit **units = NULL;
    unit *u = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(find_unit(module, &u));
    if (modules != NULL) {
        TSR_TRY(tsri_alloc((size_t)count, sizeof(*units), &units));
    }
    for (int i = 0; modules != NULL && i < count; i++) {
        TSR_TRY_GOTO(status, find_unit(modules[i], &units[i]), free_units);
        if (tsri_module_root(modules[i]) != tsri_module_root(module)) {
            status = TSR_RAISE(TSR_ERR_INVALID, "unit \"%s\" is of another model than \"%s\"",
                               modules[i]->path, module->path);
            goto free_units;
        }
    }
    tsri_free(&u->prefetch[which].units);
    u->prefetch[which] = (prefetch_list){units, modules != NULL ? count : 0};
    return TSR_OK;
free_units:
    tsri_free(&units);
    return status;
}

tsr_status tsr_unit_set_forward_prefetch(tsr_module *module, tsr_module *const *units, int count)
{
    TSRI_WANT(module);
    TSRI_WANT_COUNT(count);
    TSRI_WANT_EACH(units, units != NULL ? count : 0);
    TSR_TRY(set_list(module, units, count, 0));
    return TSR_OK;
}

tsr_status tsr_unit_set_backward_prefetch(tsr_module *module, tsr_module *const *units, int count)
{
    TSRI_WANT(module);
    TSRI_WANT_COUNT(count);
    TSRI_WANT_EACH(units, units != NULL ? count : 0);
    TSR_TRY(set_list(module, units, count, 1));
    return TSR_OK;
}
