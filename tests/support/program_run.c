/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_run.c
 * A program by the library: mesh, modules, units, optimizers, steps.
 */
#include "support/program_run.h"

#include "fsdp/fsdp_priv.h"

#include "base/base.h"

#include "tessera/tp.h"
#include "tessera/world.h"

#include <stdio.h>
#include <string.h>

#include "support/program.h"
#include "support/program_compare.h"
#include "support/program_ops.h"

_Static_assert((int)PROGRAM_DROP == (int)TSRI_SABOTAGE_DROP &&
                   (int)PROGRAM_DOUBLE == (int)TSRI_SABOTAGE_DOUBLE,
               "the library's kinds");

typedef struct runner runner;

/** What a module's forward is given. */
typedef struct seat {
    runner *r;
    int module;
} seat;

struct runner {
    const program *p;
    const program_run_options *o;
    program_report *report;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *modules[PROGRAM_MAX_MODULES];
    tsr_param *params[PROGRAM_MAX_PARAMS];
    seat seats[PROGRAM_MAX_MODULES];
    tsr_optimizer *optimizers[2];
    tsr_tape *tape;
    tsr_dtensor *labels[PROGRAM_MAX_MICRO], *ids[PROGRAM_MAX_MICRO][PROGRAM_MAX_FORWARDS];
    tsr_dtensor *floats[PROGRAM_MAX_MICRO];
    char names[PROGRAM_MAX_PARAMS][96];
    int step, micro, data_index;
};

/* ---- the modules ---- */

static tsr_status use_param(void *context, int param, program_value *out)
{
    const runner *r = context;

    out->tensor = tsr_param_value(r->params[param]);
    return TSR_OK;
}

static void tensors_of(const program_value *in, int count, tsr_dtensor **out)
{
    for (int i = 0; i < count; i++) {
        out[i] = in[i].tensor;
    }
}

static tsr_status run_op(void *context, int module, const program_op *op, const program_value *in,
                         program_value *out)
{
    const runner *r = context;
    tsr_dtensor *tensors[PROGRAM_MAX_IN] = {NULL};

    (void)module;
    tensors_of(in, op->in_count, tensors);
    TSR_TRY(program_op_run(r->tape, op, tensors, &out->tensor));
    return TSR_OK;
}

static tsr_status call_module(void *context, const program_op *op, const program_value *in,
                              program_value *out)
{
    const runner *r = context;
    tsr_dtensor *tensors[PROGRAM_MAX_IN] = {NULL};

    if ((op->passed >> r->data_index & 1U) != 0) {
        *out = in[0];
        return TSR_OK;
    }
    tensors_of(in, op->in_count, tensors);
    TSR_TRY(tsr_module_call(r->modules[op->number], r->tape, tensors, op->in_count, &out->tensor));
    return TSR_OK;
}

static tsr_status forward(void *self, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                          tsr_dtensor **out)
{
    const seat *s = self;
    runner *r = s->r;
    const program_machine machine = {
        .context = r, .param = use_param, .op = run_op, .call = call_module};
    program_value values[PROGRAM_MAX_IN];
    program_value result = {0};

    (void)tape;
    for (int i = 0; i < in_count; i++) {
        values[i].tensor = in[i];
    }
    TSR_TRY(program_body(r->p, s->module, r->micro, &machine, values, &result));
    *out = result.tensor;
    return TSR_OK;
}

static tsr_status add_params(runner *r, int module)
{
    for (int i = 0; i < r->p->param_count; i++) {
        const program_param *p = &r->p->params[i];
        const tsr_param_spec spec = {.shape = {p->shape[0], p->ndim == 2 ? p->shape[1] : 0},
                                     .ndim = p->ndim,
                                     .init_mean = p->mean,
                                     .init_std = p->std,
                                     .frozen = p->frozen};
        char name[16];

        if (p->module == module && !p->absent) {
            (void)snprintf(name, sizeof(name), "p%d", i);
            TSR_TRY(tsr_module_add_param(r->modules[module], name, &spec, &r->params[i]));
        }
    }
    return TSR_OK;
}

static tsr_status make_module(runner *r, int module)
{
    const program_module *m = &r->p->modules[module];

    r->seats[module] = (seat){r, module};
    TSR_TRY(tsr_module_create(r->comm, forward, &r->seats[module], NULL, &r->modules[module]));
    TSR_TRY(add_params(r, module));
    tsr_module_set_checkpoint(r->modules[module], m->checkpoint);
    tsr_module_set_checkpoint_offload(r->modules[module], m->offload);
    TSR_TRY(tsr_module_set_checkpoint_keep(r->modules[module], m->keep, m->keep_count));
    return TSR_OK;
}

static tsr_status add_children(runner *r, int order)
{
    for (int i = 1; i < r->p->module_count; i++) {
        const program_module *m = &r->p->modules[i];
        char name[16];

        if (m->created == order && !m->absent) {
            (void)snprintf(name, sizeof(name), "m%d", i);
            TSR_TRY(tsr_module_add_child(r->modules[m->parent], name, r->modules[i]));
        }
    }
    return TSR_OK;
}

/* In the order of "created", which is that of the units. */
static tsr_status make_tree(runner *r)
{
    for (int i = 0; i < r->p->module_count; i++) {
        if (!r->p->modules[i].absent) {
            TSR_TRY(make_module(r, i));
        }
    }
    for (int order = 0; order < PROGRAM_MAX_MODULES; order++) {
        TSR_TRY(add_children(r, order));
    }
    for (int i = 0; i < r->p->param_count; i++) {
        if (!r->p->params[i].absent) {
            (void)snprintf(r->names[i], sizeof(r->names[i]), "%s", tsr_param_name(r->params[i]));
        }
    }
    return TSR_OK;
}

static tsr_status apply_tp(runner *r)
{
    tsr_tp_rule rules[PROGRAM_MAX_PARAMS];
    int count = 0;

    if (r->p->tp_axis < 0) {
        return TSR_OK;
    }
    for (int i = 0; i < r->p->param_count; i++) {
        if (!r->p->params[i].absent) {
            rules[count++] = (tsr_tp_rule){r->names[i], {.kind = (tsr_tp_kind)r->p->params[i].tp}};
        }
    }
    TSR_TRY(tsr_tp_apply(r->modules[0], r->p->axes[r->p->tp_axis].name, rules, count));
    return TSR_OK;
}

static tsr_status make_unit(runner *r, int module)
{
    const program_module *m = &r->p->modules[module];
    tsr_fsdp_options options = m->unit;
    tsr_shard_dim dims[PROGRAM_MAX_PARAMS];

    if (!m->is_unit) {
        return TSR_OK;
    }
    options.shard_dims = dims;
    for (int i = 0; i < r->p->param_count; i++) {
        if (r->p->params[i].cols && !r->p->params[i].absent &&
            program_unit_of(r->p, r->p->params[i].module) == module) {
            dims[options.shard_dim_count++] = (tsr_shard_dim){r->names[i], 1};
        }
    }
    if (m->preset != NULL) {
        TSR_TRY(tsr_fsdp_preset(r->comm, m->preset, &options));
    }
    TSR_TRY(tsr_fully_shard(r->modules[module], &options));
    return TSR_OK;
}

static tsr_status make_optimizers(runner *r)
{
    for (int k = 0; k < r->p->optimizer_count; k++) {
        tsr_param *list[PROGRAM_MAX_PARAMS];
        int count = 0;

        for (int i = 0; i < r->p->param_count; i++) {
            if (!r->p->params[i].absent &&
                (r->p->optimizer_count == 1 || r->p->params[i].second == (k == 1))) {
                list[count++] = r->params[i];
            }
        }
        TSR_TRY(
            tsr_optimizer_create(r->comm, list, count, &r->p->optimizers[k], &r->optimizers[k]));
    }
    return TSR_OK;
}

static tsr_status open_runner(runner *r, tsr_world *world)
{
    const tsr_loss_scale_options scale = {.init = r->p->scale_init, .interval = 2};
    int coord[PROGRAM_MAX_AXES] = {0};

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), r->p->axes, r->p->axis_count, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(world, r->mesh, &(tsr_comm_options){.race_check = true}, &r->comm));
    TSR_TRY(tsr_mesh_coord(r->mesh, tsr_comm_rank(r->comm), coord));
    r->data_index = program_data_index(r->p, coord);
    TSR_TRY(make_tree(r));
    TSR_TRY(apply_tp(r));
    for (int i = r->p->module_count - 1; i >= 0; i--) {
        TSR_TRY(make_unit(r, i));
    }
    TSR_TRY(tsr_module_materialize(r->modules[0], r->p->seed));
    tsri_sabotage_set(r->modules[0], (tsri_sabotage_kind)r->o->sabotage, r->o->nth);
    TSR_TRY(make_optimizers(r));
    TSR_TRY(tsr_tape_create(r->comm, &r->tape));
    tsri_tape_set_seed(r->tape, r->p->seed);
    for (int k = 0; r->p->scaled && k < r->p->optimizer_count; k++) {
        TSR_TRY(tsr_loss_scale_begin(r->optimizers[k], r->tape, &scale));
    }
    return TSR_OK;
}

static void drop_data(runner *r)
{
    for (int i = 0; i < PROGRAM_MAX_MICRO; i++) {
        tsr_dtensor_release(&r->labels[i]);
        tsr_dtensor_release(&r->floats[i]);
        for (int k = 0; k < PROGRAM_MAX_FORWARDS; k++) {
            tsr_dtensor_release(&r->ids[i][k]);
        }
    }
}

static void close_runner(runner *r)
{
    drop_data(r);
    tsr_tape_destroy(&r->tape);
    for (int k = 0; k < 2; k++) {
        tsr_optimizer_destroy(&r->optimizers[k]);
    }
    tsr_module_release(&r->modules[0]);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
}

/* ---- data ---- */

/* A tensor of 4-byte elements placed as told, its piece cut out of whole. */
static tsr_status make_data(runner *r, const int64_t *shape, int ndim, tsr_dtype dtype,
                            const tsr_placement *place, const void *whole, tsr_dtensor **out)
{
    int64_t local[TSR_MAX_DIMS];
    int64_t first[TSR_MAX_DIMS];
    tsr_layout layout;
    uint32_t piece[4096];
    int64_t count = 0;

    TSR_TRY(tsr_layout_init(r->mesh, shape, ndim, &layout));
    for (int axis = 0; axis < r->p->axis_count; axis++) {
        TSR_TRY(tsr_layout_place(&layout, r->p->axes[axis].name, place[axis]));
    }
    TSR_TRY(tsr_layout_local(&layout, tsr_comm_rank(r->comm), local, first));
    TSR_TRY(tsr_dtensor_create(r->comm, &layout, dtype, "data", out));
    for (int64_t b = first[0]; b < first[0] + local[0]; b++) {
        for (int64_t s = first[1]; s < first[1] + local[1]; s++) {
            for (int64_t c = 0; c < (ndim > 2 ? shape[2] : 1); c++) {
                const int64_t at = (b * shape[1] + s) * (ndim > 2 ? shape[2] : 1) + c;

                memcpy(&piece[count++], (const char *)whole + at * 4, 4);
            }
        }
    }
    TSR_TRY(tsr_dtensor_write(*out, piece));
    return TSR_OK;
}

static tsr_status make_micro_data(runner *r, int micro)
{
    const program *p = r->p;
    const program_micro *m = &p->steps[r->step].micro[micro];
    const int64_t shape[] = {p->batch, p->seq, p->dim};
    int32_t ids[1024];
    float floats[4096];

    program_labels(p, r->step, micro, ids);
    TSR_TRY(make_data(r, shape, 2, TSR_I32, p->labels, ids, &r->labels[micro]));
    for (int k = 0; k < m->forwards; k++) {
        program_ids(p, r->step, micro, k, ids);
        TSR_TRY(make_data(r, shape, 2, TSR_I32, m->ids, ids, &r->ids[micro][k]));
    }
    if (m->alone > 0) {
        program_floats(p, r->step, micro, floats);
        TSR_TRY(make_data(r, shape, 3, TSR_F32, m->ids, floats, &r->floats[micro]));
    }
    return TSR_OK;
}

/* ---- a step ---- */

static tsr_status add_loss(runner *r, int module, tsr_dtensor *x, bool is_loss, tsr_dtensor **sum)
{
    tsr_dtensor *in[] = {x, r->labels[r->micro]};
    tsr_dtensor *loss = NULL;

    TSR_TRY(tsr_module_call(r->modules[module], r->tape, in, is_loss ? 2 : 1, &loss));
    if (!is_loss) {
        TSR_TRY(tsr_op_cross_entropy(r->tape, loss, r->labels[r->micro], &loss));
    }
    if (*sum != NULL) {
        TSR_TRY(tsr_op_add(r->tape, *sum, loss, &loss));
    }
    *sum = loss;
    return TSR_OK;
}

static tsr_status set_units(const runner *r, const program_micro *m)
{
    const program_step *step = &r->p->steps[r->step];

    TSR_TRY(tsr_fsdp_set_last_backward(r->modules[0], m->last));
    TSR_TRY(tsr_unit_set_all_reduce(r->modules[0], step->all_reduce, true));
    for (int i = 0; i < r->p->module_count; i++) {
        if (r->p->modules[i].is_unit) {
            TSR_TRY(tsr_unit_set_gradient_sync(r->modules[i], (m->unsynced >> i & 1U) == 0, false));
        }
    }
    return TSR_OK;
}

static tsr_status micro_batch(runner *r)
{
    const program_micro *m = &r->p->steps[r->step].micro[r->micro];
    tsr_dtensor *loss = NULL;
    double unused = 0.0;

    TSR_TRY(set_units(r, m));
    TSR_TRY(tsr_tape_begin(r->tape, r->micro));
    for (int k = 0; k < m->forwards; k++) {
        TSR_TRY(add_loss(r, 0, r->ids[r->micro][k], r->p->loss_inside, &loss));
    }
    if (m->alone > 0) {
        TSR_TRY(add_loss(r, m->alone, r->floats[r->micro], false, &loss));
    }
    if (m->backward) {
        TSR_TRY(tsr_backward(r->tape, loss));
    }
    if (m->reads_loss) {
        TSR_TRY(tsr_step_loss(r->tape, &unused));
    }
    return TSR_OK;
}

static tsr_status compare_params(runner *r, bool is_grad)
{
    tsr_stream *stream = tsri_comm_stream(r->comm, TSRI_STREAM_COMPUTE);
    double scale = 1.0;

    if (is_grad && r->p->scaled) {
        TSR_TRY(tsr_loss_scale_read(r->optimizers[0], r->tape, &scale, NULL));
    }
    for (int i = 0; i < r->p->param_count; i++) {
        const tsr_param *p = r->params[i];
        const tsri_rest *rest = &p->master;
        int64_t count = 0;
        float have[1024];

        if (r->p->params[i].frozen) {
            continue;
        }
        count = tsri_param_own_count(p);
        if (is_grad) {
            TSR_TRY(tsri_param_get_grad(p, &rest));
        }
        TSR_TRY(tsri_rest_get(rest, rest->piece.begin, rest->piece.end, have, stream));
        for (int64_t e = 0; e < count; e++) {
            have[e] = (float)((double)have[e] / scale);
        }
        program_compare_piece(r->p, r->o, r->step, i, is_grad, p, have, r->report);
    }
    return TSR_OK;
}

static tsr_status update(runner *r)
{
    const program_step *step = &r->p->steps[r->step];
    const program_truth *t = r->o->exact;

    for (int k = 0; k < r->p->optimizer_count; k++) {
        for (int i = 0; i < step->clips; i++) {
            double norm = 0.0;

            TSR_TRY(tsr_clip_grad_norm_with(r->optimizers[k], r->tape, &step->clip));
            TSR_TRY(tsr_grad_norm_read(r->optimizers[k], &norm, NULL));
            program_compare_number(r->p, r->o, r->step, k == 0 ? "norm" : "second norm", norm,
                                   t->norm[r->step][k], r->o->rounded->norm[r->step][k], r->report);
        }
    }
    for (int k = 0; k < r->p->optimizer_count; k++) {
        TSR_TRY(tsr_optimizer_step(r->optimizers[k], r->p->lr));
    }
    return TSR_OK;
}

static tsr_status run_step(runner *r)
{
    const program_step *step = &r->p->steps[r->step];
    double loss = 0.0;

    for (int i = 0; i < step->micro_count; i++) {
        TSR_TRY(make_micro_data(r, i));
    }
    TSR_TRY(tsr_step_begin(r->tape, r->step, r->labels, step->micro_count));
    for (r->micro = 0; r->micro < step->micro_count; r->micro++) {
        TSR_TRY(micro_batch(r));
    }
    if (step->update) {
        TSR_TRY(compare_params(r, true));
        TSR_TRY(update(r));
    }
    TSR_TRY(tsr_step_loss(r->tape, &loss));
    program_compare_number(r->p, r->o, r->step, "loss", loss, r->o->exact->loss[r->step],
                           r->o->rounded->loss[r->step], r->report);
    TSR_TRY(tsr_step_end(r->tape));
    drop_data(r);
    TSR_TRY(compare_params(r, false));
    for (int i = 0; i < r->p->module_count; i++) {
        if (r->p->modules[i].is_unit && (step->unshard >> i & 1U) != 0) {
            TSR_TRY(tsr_unit_unshard(r->modules[i]));
        }
        if (r->p->modules[i].is_unit && (step->unshard >> (8 + i) & 1U) != 0) {
            TSR_TRY(tsr_unit_reshard(r->modules[i]));
        }
    }
    return TSR_OK;
}

static tsr_status run(runner *r, tsr_world *world)
{
    TSR_TRY(open_runner(r, world));
    for (r->step = 0; r->step < r->p->step_count; r->step++) {
        TSR_TRY(run_step(r));
    }
    TSR_TRY(tsr_params_digest(r->modules[0], NULL));
    return TSR_OK;
}

void program_run(tsr_world *world, const program *p, const program_run_options *options,
                 program_report *out)
{
    static runner r;

    memset(&r, 0, sizeof(r));
    *out = (program_report){.status = TSR_OK};
    r.p = p;
    r.o = options;
    r.report = out;
    out->status = run(&r, world);
    if (out->status != TSR_OK) {
        out->failed = true;
        (void)snprintf(out->text, sizeof(out->text), "step %d, micro-batch %d: %s: %s", r.step,
                       r.micro, tsr_status_name(out->status), tsr_error_message());
    }
    out->struck = r.modules[0] != NULL && tsri_sabotage_struck(r.modules[0]);
    close_runner(&r);
    tsr_error_clear();
}
