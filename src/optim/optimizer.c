/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* An optimizer's life: whose parameters, with which settings, and where its state lies.
 *
 * One buffer holds the state of all parameters: for each, m then v of its owned elements. */
#include "optim_priv.h"

#include "base/base.h"

#include <math.h>

static int states_per_element(const tsr_optimizer_options *o)
{
    if (o->kind == TSR_SGD) {
        return o->momentum > 0.0 ? 1 : 0;
    }
    return 2;
}

static tsr_status check_number(const char *what, double value, double below)
{
    if (!(value >= 0.0 && value < below)) {
        return TSR_RAISE(TSR_ERR_INVALID, "optimizer with %s %g, wants 0 %s", what, value,
                         isinf(below) ? "or a finite number above" : "(default) or less than 1");
    }
    return TSR_OK;
}

static tsr_status check_groups(const tsr_optimizer_options *o)
{
    if (o->group_count < 0 || (o->group_count > 0 && o->groups == NULL)) {
        return TSR_RAISE(TSR_ERR_INVALID, "optimizer with %d groups%s", o->group_count,
                         o->groups == NULL ? " at NULL" : "");
    }
    for (int i = 0; i < o->group_count; i++) {
        const tsr_optimizer_group *g = &o->groups[i];

        if (g->match == NULL) {
            return TSR_RAISE(TSR_ERR_INVALID, "optimizer group %d has no pattern", i);
        }
        TSR_TRY(check_number("a group's lr_scale", g->lr_scale, INFINITY));
        TSR_TRY(check_number("a group's weight_decay", g->weight_decay, INFINITY));
    }
    return TSR_OK;
}

static tsr_status check_options(const tsr_optimizer_options *o)
{
    if ((unsigned)o->kind > TSR_SGD) {
        return TSR_RAISE(TSR_ERR_INVALID, "optimizer of kind %d, wants TSR_ADAMW or TSR_SGD",
                         (int)o->kind);
    }
    TSR_TRY(check_number("beta1", o->beta1, 1.0));
    TSR_TRY(check_number("beta2", o->beta2, 1.0));
    TSR_TRY(check_number("eps", o->eps, INFINITY));
    TSR_TRY(check_number("weight_decay", o->weight_decay, INFINITY));
    TSR_TRY(check_number("momentum", o->momentum, INFINITY));
    TSR_TRY(check_groups(o));
    return TSR_OK;
}

static tsr_status fill_defaults(const tsr_optimizer_options *given, tsr_optimizer_options *out)
{
    static const tsr_optimizer_options none = {0};

    *out = given != NULL ? *given : none;
    TSR_TRY(check_options(out));
    out->kind = out->kind == TSR_OPTIMIZER_DEFAULT ? TSR_ADAMW : out->kind;
    out->beta1 = out->beta1 > 0.0 ? out->beta1 : 0.9;
    out->beta2 = out->beta2 > 0.0 ? out->beta2 : 0.95;
    out->eps = out->eps > 0.0 ? out->eps : 1e-8;
    return TSR_OK;
}

/* Settings of one parameter: those of the first group that matches, else the optimizer's. */
static void choose_group(const tsr_optimizer_options *o, slot *s, int *matches)
{
    s->lr_scale = 1.0;
    s->weight_decay = s->param->spec.ndim >= 2 ? o->weight_decay : 0.0;
    for (int i = 0; i < o->group_count; i++) {
        const tsr_optimizer_group *g = &o->groups[i];

        if (tsri_pattern_match(g->match, s->param->name)) {
            s->lr_scale = g->lr_scale > 0.0 ? g->lr_scale : 1.0;
            s->weight_decay = g->set_weight_decay ? g->weight_decay : s->weight_decay;
            matches[i]++;
            return;
        }
    }
}

/* A parameter of this comm that comes once: twice would update it twice. */
static tsr_status check_param(const tsr_optimizer *opt, tsr_param *const *params, int i)
{
    for (int k = 0; k < i; k++) {
        if (params[k] == params[i]) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "parameter %s is given to the optimizer twice, at %d "
                             "and %d",
                             params[i]->name, k, i);
        }
    }
    if (params[i]->value->comm != opt->comm) {
        return TSR_RAISE(TSR_ERR_INVALID, "parameter %s lies on another comm than the optimizer",
                         params[i]->name);
    }
    if (params[i]->master.buffer == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "parameter %s has no memory yet: call tsr_module_materialize first",
                         params[i]->name);
    }
    return TSR_OK;
}

static tsr_status fill_slots(tsr_optimizer *opt, tsr_param *const *params, int *matches)
{
    for (int i = 0; i < opt->count; i++) {
        TSR_TRY(check_param(opt, params, i));
        opt->slots[i].param = tsri_param_retain(params[i]);
        choose_group(&opt->options, &opt->slots[i], matches);
    }
    for (int i = 0; i < opt->options.group_count; i++) {
        if (matches[i] == 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "optimizer group \"%s\" matches no parameter",
                             opt->options.groups[i].match);
        }
    }
    TSR_TRY(tsri_params_check_same(opt->comm, "the optimizer's list of parameters", params,
                                   opt->count));
    return TSR_OK;
}

/* Where a moment of param lies: as its master does, behind those before it. */
static void place_state(const tsr_optimizer *opt, const tsr_param *param, size_t *bytes,
                        tsri_rest *out)
{
    *out = param->master;
    out->buffer = opt->state;
    out->offset = *bytes;
    *bytes += (size_t)tsri_optim_own_count(param) * sizeof(float);
}

static tsr_status open_state(tsr_optimizer *opt)
{
    const int states = states_per_element(&opt->options);
    size_t bytes = 0;

    for (int i = 0; i < opt->count; i++) {
        bytes += (size_t)(states * tsri_optim_own_count(opt->slots[i].param)) * sizeof(float);
    }
    if (states > 0) {
        TSR_TRY(
            opt->options.offload
                ? tsri_comm_host_buffer(opt->comm, bytes, TSRI_MEM_OPTIM, "optimizer", &opt->state)
                : tsri_comm_buffer(opt->comm, bytes, TSRI_MEM_OPTIM, "optimizer", &opt->state));
    }
    bytes = 0;
    for (int i = 0; i < opt->count; i++) {
        slot *s = &opt->slots[i];

        if (states >= 1 && !s->param->spec.frozen) {
            place_state(opt, s->param, &bytes, &s->state.m);
        }
        if (states == 2 && !s->param->spec.frozen) {
            place_state(opt, s->param, &bytes, &s->state.v);
        }
    }
    return TSR_OK;
}

/* Nothing of a step outlives it. */
static tsr_status forget_step(void *context, bool failed)
{
    tsr_optimizer *opt = context;

    (void)failed;
    opt->measured = false;
    return TSR_OK;
}

/* Slots of params and their memory; the options' groups are used up. */
static tsr_status take_params(tsr_optimizer *opt, tsr_param *const *params)
{
    int *matches = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc((size_t)opt->options.group_count, sizeof(int), &matches));
    TSR_TRY_GOTO(status, fill_slots(opt, params, matches), free_matches);
    TSR_TRY_GOTO(status, open_state(opt), free_matches);
    opt->options.groups = NULL;
free_matches:
    tsri_free(&matches);
    return status;
}

tsr_status tsr_optimizer_create(tsr_comm *comm, tsr_param *const *params, int count,
                                const tsr_optimizer_options *options, tsr_optimizer **out)
{
    TSRI_WANT(comm, out);
    TSRI_WANT_EACH(params, count);

    tsr_optimizer *opt = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*opt), &opt));
    opt->comm = tsr_comm_retain(comm);
    opt->lr = (double)NAN;
    opt->watch = (tsri_step_watch){.end = forget_step, .context = opt};
    TSR_TRY_GOTO(status, fill_defaults(options, &opt->options), destroy);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)count, sizeof(slot), &opt->slots), destroy);
    opt->count = count;
    TSR_TRY_GOTO(status, take_params(opt, params), destroy);
    TSR_TRY_GOTO(
        status,
        tsri_comm_buffer(comm, sizeof(scalars), TSRI_MEM_OTHER, "optimizer scalars", &opt->scalars),
        destroy);
    *out = opt;
    return TSR_OK;
destroy:
    tsr_optimizer_destroy(&opt);
    return status;
}

void tsr_optimizer_destroy(tsr_optimizer **pointer)
{
    TSRI_WANT_VOID(pointer);

    tsr_optimizer *opt = *pointer;

    *pointer = NULL;
    if (opt == NULL) {
        return;
    }
    tsri_tape_unwatch(&opt->watch);
    for (int i = 0; i < opt->count; i++) {
        tsri_param_release(&opt->slots[i].param);
    }
    tsri_buffer_release(&opt->state);
    tsri_buffer_release(&opt->scalars);
    tsri_free(&opt->slots);
    tsr_comm_release(&opt->comm);
    tsri_free(&opt);
}

const tsri_optimizer_state *tsri_optimizer_get_state(const tsr_optimizer *opt, int index)
{
    return &opt->slots[index].state;
}

int tsri_optimizer_count(const tsr_optimizer *opt)
{
    return opt->count;
}

tsr_param *tsri_optimizer_param(const tsr_optimizer *opt, int index)
{
    return opt->slots[index].param;
}

tsr_comm *tsri_optimizer_comm(const tsr_optimizer *opt)
{
    return opt->comm;
}

void tsri_optimizer_get_counter(const tsr_optimizer *opt, bool skipped, tsr_buffer **buffer_out,
                                size_t *offset_out)
{
    *buffer_out = opt->scalars;
    *offset_out = skipped ? offsetof(scalars, skipped) : offsetof(scalars, updates);
}

tsr_status tsri_optimizer_get_steps(const tsr_optimizer *opt, int64_t *out)
{
    TSR_TRY(tsri_read(opt->scalars, offsetof(scalars, updates), out, sizeof(*out),
                      tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}

tsr_status tsri_optimizer_set_lr(tsr_optimizer *opt, double lr)
{
    if (opt->lr == lr) {
        return TSR_OK;
    }
    TSR_TRY(tsri_write(opt->scalars, offsetof(scalars, lr), &lr, sizeof(lr),
                       tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    opt->lr = lr;
    return TSR_OK;
}

tsr_status tsri_optimizer_set_steps(tsr_optimizer *opt, int64_t steps)
{
    TSR_TRY(tsri_write(opt->scalars, offsetof(scalars, updates), &steps, sizeof(steps),
                       tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    return TSR_OK;
}
