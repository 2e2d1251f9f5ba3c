/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Optimizers on this rank's own elements, and the global gradient norm.
 *
 * One buffer holds the state of all parameters: for each, m then v of its owned elements. The norm
 * counts every element once: where owned elements are replicated over mesh axes (copy_mask), only
 * the ranks at coordinate 0 of those axes add theirs. All scalars stay on the device. */
#include "base/base.h"

#include <math.h>

#include "optim/optim.h"

/* The scalars' buffer. */
typedef struct scalars {
    double total, norm;
    float scale;
    int32_t skip;
    int64_t skipped; /* steps so far */
    int32_t good;    /* steps since the loss scale changed */
} scalars;

typedef struct slot {
    tsr_param *param; /* retained */
    size_t m_offset, v_offset;
    double lr_scale, weight_decay;
} slot;

struct tsr_optimizer {
    tsr_comm *comm;
    tsr_optimizer_options options; /* defaults filled in; groups not kept */
    slot *slots;
    int count;
    tsr_buffer *state;   /* NULL where nothing is kept */
    tsr_buffer *scalars; /* struct scalars */
    int64_t steps;
    bool clipped;                      /* the scalars are those of this step */
    bool scaling;                      /* gradients carry a loss scale */
    tsr_loss_scale_options loss_scale; /* defaults filled in */
};

static int64_t own_count(const tsr_param *param)
{
    return param->spec.frozen ? 0 : param->own_end - param->own_begin;
}

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
    if (params[i]->data == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "parameter %s has no memory yet: call tsr_module_materialize first",
                         params[i]->name);
    }
    return TSR_OK;
}

static tsr_status fill_slots(tsr_optimizer *opt, tsr_param *const *params, int *matches)
{
    const size_t states = (size_t)states_per_element(&opt->options);
    size_t bytes = 0;

    for (int i = 0; i < opt->count; i++) {
        slot *s = &opt->slots[i];
        const size_t n = (size_t)own_count(params[i]) * sizeof(float);

        TSR_TRY(check_param(opt, params, i));
        s->param = tsri_param_retain(params[i]);
        s->m_offset = bytes;
        s->v_offset = bytes + n;
        bytes += states * n;
        choose_group(&opt->options, s, matches);
    }
    for (int i = 0; i < opt->options.group_count; i++) {
        if (matches[i] == 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "optimizer group \"%s\" matches no parameter",
                             opt->options.groups[i].match);
        }
    }
    if (bytes > 0) {
        TSR_TRY(
            opt->options.offload
                ? tsri_comm_host_buffer(opt->comm, bytes, TSRI_MEM_OPTIM, "optimizer", &opt->state)
                : tsri_comm_buffer(opt->comm, bytes, TSRI_MEM_OPTIM, "optimizer", &opt->state));
    }
    return TSR_OK;
}

tsr_status tsr_optimizer_create(tsr_comm *comm, tsr_param *const *params, int count,
                                const tsr_optimizer_options *options, tsr_optimizer **out)
{
    TSRI_WANT(comm, out);
    TSRI_WANT_EACH(params, count);

    tsr_optimizer *opt = NULL;
    int *matches = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*opt), &opt));
    opt->comm = tsr_comm_retain(comm);
    TSR_TRY_GOTO(status, fill_defaults(options, &opt->options), destroy);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)count, sizeof(slot), &opt->slots), destroy);
    opt->count = count;
    TSR_TRY_GOTO(status, tsri_alloc((size_t)opt->options.group_count, sizeof(int), &matches),
                 destroy);
    TSR_TRY_GOTO(status, fill_slots(opt, params, matches), destroy);
    TSR_TRY_GOTO(
        status,
        tsri_comm_buffer(comm, sizeof(scalars), TSRI_MEM_OTHER, "optimizer scalars", &opt->scalars),
        destroy);
    tsri_free(&matches);
    opt->options.groups = NULL;
    *out = opt;
    return TSR_OK;
destroy:
    tsri_free(&matches);
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
    for (int i = 0; i < opt->count; i++) {
        tsri_param_release(&opt->slots[i].param);
    }
    tsri_buffer_release(&opt->state);
    tsri_buffer_release(&opt->scalars);
    tsri_free(&opt->slots);
    tsr_comm_release(&opt->comm);
    tsri_free(&opt);
}

static bool counts_here(const tsr_optimizer *opt, const tsr_param *param)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(tsr_comm_mesh(opt->comm)); axis++) {
        if ((param->copy_mask >> axis & 1u) != 0 && tsr_comm_coord(opt->comm, axis) != 0) {
            return false;
        }
    }
    return true;
}

static size_t own_bytes(const tsr_param *param)
{
    return (size_t)own_count(param) * sizeof(float);
}

static tsr_status zero_total(const tsr_optimizer *opt, tsr_stream *stream)
{
    tsri_call call = {.stream = stream, .label = "grad norm"};
    tsrk_zero args = {.bytes = sizeof(double)};

    args.out = tsri_arg_out(&call, opt->scalars, offsetof(scalars, total), sizeof(double));
    TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    return TSR_OK;
}

/* On all ranks alike, also where one owns nothing: fail before the first message. */
static tsr_status check_gradients(const tsr_optimizer *opt)
{
    tsr_buffer *buffer = NULL;
    size_t offset = 0;

    for (int i = 0; i < opt->count; i++) {
        if (!opt->slots[i].param->spec.frozen) {
            TSR_TRY(tsri_param_get_grad(opt->slots[i].param, &buffer, &offset));
        }
    }
    return TSR_OK;
}

static const void *grad_arg(tsri_call *call, const tsr_param *param)
{
    return tsri_arg_in(call, param->grad, param->grad_offset, own_bytes(param));
}

static tsr_status add_squares(const tsr_optimizer *opt, const tsr_param *param, tsrk_norm norm,
                              tsr_stream *stream)
{
    tsri_call call = {.stream = stream, .label = param->name};
    tsrk_sum_squares args = {.n = own_count(param), .accumulate = true, .norm = norm};

    args.x = grad_arg(&call, param);
    args.out = tsri_arg_inout(&call, opt->scalars, offsetof(scalars, total), sizeof(double));
    TSR_TRY(TSRI_LAUNCH(&call, SUM_SQUARES, &args));
    return TSR_OK;
}

/* The next backward's scale. */
static tsr_status adapt_loss_scale(const tsr_optimizer *opt, const tsr_tape *tape,
                                   tsr_stream *stream)
{
    const tsr_loss_scale_options *o = &opt->loss_scale;
    tsri_call call = {.stream = stream, .label = "loss scale"};
    tsrk_loss_scale args = {.growth = o->growth,
                            .backoff = o->backoff,
                            .min = o->min,
                            .max = o->max,
                            .interval = o->interval};

    args.norm = tsri_arg_in(&call, opt->scalars, offsetof(scalars, norm), sizeof(double));
    args.skip = tsri_arg_in(&call, opt->scalars, offsetof(scalars, skip), sizeof(int32_t));
    args.good = tsri_arg_inout(&call, opt->scalars, offsetof(scalars, good), sizeof(int32_t));
    args.scale = tsri_arg_inout(&call, tsri_tape_loss_scale(tape), 0, sizeof(float));
    TSR_TRY(TSRI_LAUNCH(&call, LOSS_SCALE, &args));
    return TSR_OK;
}

/* opt's scalar total: of all gradients, each element once. */
static tsr_status sum_gradients(const tsr_optimizer *opt, tsrk_norm norm, tsr_stream *stream)
{
    const int axes = tsr_mesh_axis_count(tsr_comm_mesh(opt->comm));

    TSR_TRY(zero_total(opt, stream));
    for (int i = 0; i < opt->count; i++) {
        const tsr_param *param = opt->slots[i].param;

        if (own_count(param) > 0 && counts_here(opt, param)) {
            TSR_TRY(add_squares(opt, param, norm, stream));
        }
    }
    TSR_TRY(tsri_comm_all_reduce(opt->comm, (1u << axes) - 1u, opt->scalars,
                                 offsetof(scalars, total), 1, TSR_F64,
                                 norm == TSRK_NORM_MAX ? TSRI_MAX : TSRI_SUM, "grad norm"));
    return TSR_OK;
}

static tsr_status launch_clip(tsr_optimizer *opt, tsr_tape *tape, double max_norm, tsrk_norm norm)
{
    tsr_stream *stream = tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE);
    tsri_call call = {.stream = stream, .label = "grad norm"};
    tsrk_clip args = {.max_norm = max_norm, .kind = norm};

    args.total = tsri_arg_in(&call, opt->scalars, offsetof(scalars, total), sizeof(double));
    args.count = tsri_arg_in(&call, tsri_tape_token_count(tape), 0, sizeof(double));
    args.norm = tsri_arg_out(&call, opt->scalars, offsetof(scalars, norm), sizeof(double));
    args.scale = tsri_arg_out(&call, opt->scalars, offsetof(scalars, scale), sizeof(float));
    args.skip = tsri_arg_out(&call, opt->scalars, offsetof(scalars, skip), sizeof(int32_t));
    args.skipped = tsri_arg_inout(&call, opt->scalars, offsetof(scalars, skipped), sizeof(int64_t));
    if (opt->scaling) {
        args.loss_scale = tsri_arg_in(&call, tsri_tape_loss_scale(tape), 0, sizeof(float));
    }
    TSR_TRY(TSRI_LAUNCH(&call, CLIP, &args));
    if (opt->scaling) {
        TSR_TRY(adapt_loss_scale(opt, tape, stream));
    }
    opt->clipped = true;
    return TSR_OK;
}

static tsr_status choose_norm(double p, tsrk_norm *out)
{
    if (p == 0.0 || p == 2.0) {
        *out = TSRK_NORM_2;
    } else if (p == 1.0) {
        *out = TSRK_NORM_1;
    } else if (isinf(p) && p > 0.0) {
        *out = TSRK_NORM_MAX;
    } else {
        return TSR_RAISE(TSR_ERR_INVALID, "gradient norm of p = %g, wants 1, 2 or infinity", p);
    }
    return TSR_OK;
}

tsr_status tsr_clip_grad_norm_with(tsr_optimizer *opt, tsr_tape *tape,
                                   const tsr_clip_options *options)
{
    TSRI_WANT_AS("optimizer, tape", opt, tape);

    static const tsr_clip_options defaults = {0};
    const tsr_clip_options *o = options != NULL ? options : &defaults;
    tsrk_norm norm = TSRK_NORM_2;
    double value = 0.0;

    if (!(o->max_norm >= 0.0)) {
        return TSR_RAISE(TSR_ERR_INVALID, "clip norm %g, wants at least 0", o->max_norm);
    }
    TSRI_WANT_ENUM(o->nonfinite, TSR_NONFINITE_ERROR);
    TSR_TRY(choose_norm(o->p, &norm));
    TSR_TRY(check_gradients(opt));
    TSR_TRY(sum_gradients(opt, norm, tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    TSR_TRY(launch_clip(opt, tape, o->max_norm, norm));
    if (o->nonfinite == TSR_NONFINITE_ERROR) {
        TSR_TRY(tsr_grad_norm_read(opt, &value, NULL));
        if (!isfinite(value)) {
            return TSR_RAISE(TSR_ERR_INVALID, "gradient norm is %g: the step was not made", value);
        }
    }
    return TSR_OK;
}

tsr_status tsr_clip_grad_norm(tsr_optimizer *opt, tsr_tape *tape, double max_norm)
{
    TSRI_WANT_AS("optimizer, tape", opt, tape);

    const tsr_clip_options options = {.max_norm = max_norm};

    TSR_TRY(tsr_clip_grad_norm_with(opt, tape, &options));
    return TSR_OK;
}

static tsr_status step_adamw(const tsr_optimizer *opt, const slot *s, double lr, tsri_call *call)
{
    const tsr_param *p = s->param;
    tsrk_adamw args = {.n = own_count(p),
                       .step = opt->steps,
                       .lr = lr * s->lr_scale,
                       .beta1 = opt->options.beta1,
                       .beta2 = opt->options.beta2,
                       .eps = opt->options.eps,
                       .weight_decay = s->weight_decay};

    args.p = tsri_arg_inout(call, p->data, p->data_offset, own_bytes(p));
    args.g = grad_arg(call, p);
    args.skipped = tsri_arg_in(call, opt->scalars, offsetof(scalars, skipped), sizeof(int64_t));
    args.m = tsri_arg_inout(call, opt->state, s->m_offset, own_bytes(p));
    args.v = tsri_arg_inout(call, opt->state, s->v_offset, own_bytes(p));
    if (opt->clipped) {
        args.scale = tsri_arg_in(call, opt->scalars, offsetof(scalars, scale), sizeof(float));
        args.skip = tsri_arg_in(call, opt->scalars, offsetof(scalars, skip), sizeof(int32_t));
    }
    TSR_TRY(TSRI_LAUNCH(call, ADAMW, &args));
    return TSR_OK;
}

static tsr_status step_sgd(const tsr_optimizer *opt, const slot *s, double lr, tsri_call *call)
{
    const tsr_param *p = s->param;
    tsrk_sgd args = {.n = own_count(p),
                     .lr = lr * s->lr_scale,
                     .momentum = opt->options.momentum,
                     .weight_decay = s->weight_decay,
                     .nesterov = opt->options.nesterov,
                     .first = opt->steps == 1};

    args.p = tsri_arg_inout(call, p->data, p->data_offset, own_bytes(p));
    args.g = grad_arg(call, p);
    if (opt->options.momentum > 0.0) {
        args.buffer = tsri_arg_inout(call, opt->state, s->m_offset, own_bytes(p));
    }
    if (opt->clipped) {
        args.scale = tsri_arg_in(call, opt->scalars, offsetof(scalars, scale), sizeof(float));
        args.skip = tsri_arg_in(call, opt->scalars, offsetof(scalars, skip), sizeof(int32_t));
    }
    TSR_TRY(TSRI_LAUNCH(call, SGD, &args));
    return TSR_OK;
}

tsr_status tsr_optimizer_step(tsr_optimizer *opt, double lr)
{
    TSRI_WANT_AS("optimizer", opt);
    TSRI_WANT_NUMBER(lr);
    if (opt->scaling && !opt->clipped) {
        return TSR_RAISE(TSR_ERR_STATE, "gradients carry a loss scale: call tsr_clip_grad_norm "
                                        "before tsr_optimizer_step (0 clips nothing)");
    }
    TSR_TRY(check_gradients(opt));
    opt->steps++;
    for (int i = 0; i < opt->count; i++) {
        const slot *s = &opt->slots[i];
        tsri_call call = {.stream = tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE),
                          .label = s->param->name};

        if (own_count(s->param) == 0) {
            continue;
        }
        if (opt->options.kind == TSR_SGD) {
            TSR_TRY(step_sgd(opt, s, lr, &call));
        } else {
            TSR_TRY(step_adamw(opt, s, lr, &call));
        }
    }
    opt->clipped = false;
    return TSR_OK;
}

static bool legal_loss_scale(const tsr_loss_scale_options *o)
{
    return o->growth >= 1.0 && o->backoff > 0.0 && o->backoff < 1.0 && o->min > 0.0 &&
           o->min <= o->init && o->init <= o->max && o->interval > 0 && isfinite(o->growth) &&
           isfinite(o->max);
}

tsr_status tsr_loss_scale_begin(tsr_optimizer *opt, tsr_tape *tape,
                                const tsr_loss_scale_options *options)
{
    TSRI_WANT_AS("optimizer, tape", opt, tape);

    static const tsr_loss_scale_options none = {0};
    tsr_loss_scale_options o = options != NULL ? *options : none;
    float first = 1.0F;

    o.init = o.init != 0.0 ? o.init : 0x1p16;
    o.growth = o.growth != 0.0 ? o.growth : 2.0;
    o.backoff = o.backoff != 0.0 ? o.backoff : 0.5;
    o.min = o.min != 0.0 ? o.min : 1.0;
    o.max = o.max != 0.0 ? o.max : 0x1p24;
    o.interval = o.interval != 0 ? o.interval : 2000;
    if (!legal_loss_scale(&o)) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "loss scale of init %g, growth %g, backoff %g, min %g, max %g, interval "
                         "%d: wants min <= init <= max, growth >= 1, 0 < backoff < 1",
                         o.init, o.growth, o.backoff, o.min, o.max, o.interval);
    }
    first = (float)o.init;
    TSR_TRY(tsri_write(tsri_tape_loss_scale(tape), 0, &first, sizeof(first),
                       tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    opt->loss_scale = o;
    opt->scaling = true;
    return TSR_OK;
}

tsr_status tsr_loss_scale_read(tsr_optimizer *opt, tsr_tape *tape, double *scale_out,
                               int64_t *skipped_out)
{
    TSRI_WANT_AS("optimizer, tape, scale_out", opt, tape, scale_out);

    tsr_stream *stream = tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE);
    float scale = 1.0F;

    if (skipped_out != NULL) {
        TSR_TRY(tsri_read(opt->scalars, offsetof(scalars, skipped), skipped_out,
                          sizeof(*skipped_out), stream));
    }
    TSR_TRY(tsri_read(tsri_tape_loss_scale(tape), 0, &scale, sizeof(scale), stream));
    *scale_out = (double)scale;
    return TSR_OK;
}

tsr_status tsr_grad_norm_read(tsr_optimizer *opt, double *norm_out, bool *skipped_out)
{
    TSRI_WANT_AS("optimizer, norm_out", opt, norm_out);

    scalars host = {0};

    TSR_TRY(tsri_read(opt->scalars, 0, &host, sizeof(host),
                      tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    *norm_out = host.norm;
    if (skipped_out != NULL) {
        *skipped_out = host.skip != 0;
    }
    return TSR_OK;
}

void tsri_optimizer_get_state(const tsr_optimizer *opt, int index, tsri_optimizer_state *out)
{
    const slot *s = &opt->slots[index];
    const int states = states_per_element(&opt->options);

    *out = (tsri_optimizer_state){.buffer = states > 0 ? opt->state : NULL,
                                  .m_offset = s->m_offset,
                                  .v_offset = s->v_offset,
                                  .has_v = states == 2,
                                  .count = own_count(s->param)};
}

bool tsri_optimizer_counts_here(const tsr_optimizer *opt, int index)
{
    return counts_here(opt, opt->slots[index].param);
}

tsr_status tsri_optimizer_get_steps(const tsr_optimizer *opt, int64_t *out)
{
    int64_t skipped = 0;

    TSR_TRY(tsri_read(opt->scalars, offsetof(scalars, skipped), &skipped, sizeof(skipped),
                      tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    *out = opt->steps - skipped;
    return TSR_OK;
}

tsr_status tsri_optimizer_set_steps(tsr_optimizer *opt, int64_t steps)
{
    const int64_t skipped = 0;

    TSR_TRY(tsri_write(opt->scalars, offsetof(scalars, skipped), &skipped, sizeof(skipped),
                       tsri_comm_stream(opt->comm, TSRI_STREAM_COMPUTE)));
    opt->steps = steps;
    return TSR_OK;
}
