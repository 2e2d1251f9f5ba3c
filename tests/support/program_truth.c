/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_truth.c
 * The steps of a program on whole tensors: forwards, backward, clip, update.
 */
#include "support/program_truth.h"

#include "base/base.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

#include "support/program.h"
#include "support/program_formulas.h"

enum {
    MAX_PATHS = PROGRAM_MAX_MODULES
};

typedef struct runner {
    const program *p;
    truth_tape tape;
    double rounding, sum_rounding, tokens;
    double *value[PROGRAM_MAX_PARAMS], *grad[PROGRAM_MAX_PARAMS];
    double *m[PROGRAM_MAX_PARAMS], *v[PROGRAM_MAX_PARAMS];
    int step, micro, updates[2];
    uint64_t calls[MAX_PATHS]; /* of dropout in each module, in this micro-batch */
    bool finite;
} runner;

/* ---- nodes ---- */

static tsr_status data_node(runner *r, const int32_t *ids, const float *floats, int *out)
{
    const int64_t shape[] = {r->p->batch, r->p->seq, r->p->dim};
    truth_node *node = NULL;

    TSR_TRY(truth_node_add(&r->tape, shape, ids != NULL ? 2 : 3, out));
    node = &r->tape.nodes[*out];
    node->leaf = TRUTH_DATA;
    for (int64_t i = 0; i < node->count; i++) {
        node->value[i] = ids != NULL ? (double)ids[i] : (double)floats[i];
    }
    return TSR_OK;
}

/* ---- a forward ---- */

static tsr_status use_param(void *context, int param, program_value *out)
{
    runner *r = context;
    const program_param *p = &r->p->params[param];
    truth_node *node = NULL;

    TSR_TRY(truth_node_add(&r->tape, p->shape, p->ndim, &out->node));
    node = &r->tape.nodes[out->node];
    node->leaf = TRUTH_PARAM;
    node->param = param;
    for (int64_t i = 0; i < node->count; i++) {
        node->value[i] = truth_round(r->value[param][i], r->rounding);
    }
    return TSR_OK;
}

static void set_dropout(runner *r, int module, truth_node *node)
{
    node->key = tsri_rng_key(r->p->seed, (uint64_t)r->step,
                             tsri_hash_text(program_module_path(r->p, module)), r->calls[module]++);
    node->first_row = r->micro * node->shape[0];
}

static tsr_status run_op(void *context, int module, const program_op *op, const program_value *in,
                         program_value *out)
{
    runner *r = context;
    int nodes[PROGRAM_MAX_IN] = {0};

    for (int i = 0; i < op->in_count; i++) {
        nodes[i] = in[i].node;
    }
    TSR_TRY(truth_forward(&r->tape, op, nodes, &out->node));
    r->tape.nodes[out->node].tokens = r->tokens;
    if (op->kind == PROGRAM_DROPOUT) {
        set_dropout(r, module, &r->tape.nodes[out->node]);
    }
    truth_compute(&r->tape, out->node);
    return TSR_OK;
}

/* Which rows of the batch belong to ranks that pass over op. */
static tsr_status passing_rows(const program *p, const program_op *op, bool *rows)
{
    const int64_t shape[] = {p->batch};
    tsr_layout layout;
    tsr_mesh *mesh = NULL;
    int world = 1;
    tsr_status status = TSR_OK;

    for (int axis = 0; axis < p->axis_count; axis++) {
        world *= p->axes[axis].size;
    }
    TSR_TRY(tsr_mesh_create(world, p->axes, p->axis_count, NULL, &mesh));
    TSR_TRY_GOTO(status, tsr_layout_init(mesh, shape, 1, &layout), release_mesh);
    for (int axis = 0; axis < p->axis_count; axis++) {
        if (axis != p->tp_axis) {
            TSR_TRY_GOTO(
                status,
                tsr_layout_place(&layout, p->axes[axis].name, (tsr_placement){TSR_SHARD, 0}),
                release_mesh);
        }
    }
    for (int rank = 0; rank < world; rank++) {
        int coord[PROGRAM_MAX_AXES] = {0};
        int64_t count[TSR_MAX_DIMS];
        int64_t first[TSR_MAX_DIMS];

        TSR_TRY_GOTO(status, tsr_mesh_coord(mesh, rank, coord), release_mesh);
        TSR_TRY_GOTO(status, tsr_layout_local(&layout, rank, count, first), release_mesh);
        for (int64_t row = first[0]; row < first[0] + count[0]; row++) {
            rows[row] = (op->passed >> program_data_index(p, coord) & 1U) != 0;
        }
    }
release_mesh:
    tsr_mesh_release(&mesh);
    return status;
}

static tsr_status select_rows(runner *r, const program_op *op, int passed, int done, int *out)
{
    const truth_node like = r->tape.nodes[done]; /* nodes move when there are more */
    truth_node *node = NULL;
    bool *rows = NULL;

    TSR_TRY(tsri_alloc((size_t)r->p->batch, sizeof(bool), &rows));
    TSR_TRY(passing_rows(r->p, op, rows));
    TSR_TRY(truth_node_add(&r->tape, like.shape, like.ndim, out));
    node = &r->tape.nodes[*out];
    node->leaf = TRUTH_SELECT;
    node->in_count = 2;
    node->in[0] = passed;
    node->in[1] = done;
    node->rows = rows;
    truth_compute(&r->tape, *out);
    return TSR_OK;
}

static program_machine machine_of(runner *r);

static tsr_status call_module(void *context, // NOLINT(misc-no-recursion): the module tree
                              const program_op *op, const program_value *in, program_value *out)
{
    runner *r = context;
    const program_machine machine = machine_of(r);

    TSR_TRY(program_body(r->p, op->number, r->micro, &machine, in, out));
    if (op->passed != 0) {
        TSR_TRY(select_rows(r, op, in[0].node, out->node, &out->node));
    }
    return TSR_OK;
}

static program_machine machine_of(runner *r)
{
    return (program_machine){.context = r, .param = use_param, .op = run_op, .call = call_module};
}

/* ---- a micro-batch ---- */

static tsr_status add_losses(runner *r, int *sum, int more)
{
    const program_op op = {.kind = PROGRAM_ADD, .in_count = 2};
    const program_value in[] = {{.node = *sum}, {.node = more}};
    program_value out;

    if (*sum < 0) {
        *sum = more;
        return TSR_OK;
    }
    TSR_TRY(run_op(r, 0, &op, in, &out));
    *sum = out.node;
    return TSR_OK;
}

static tsr_status loss_of(runner *r, int module, const program_value *in, bool is_loss, int *sum)
{
    const program_op entropy = {.kind = PROGRAM_CROSS_ENTROPY, .in_count = 2};
    const program_machine machine = machine_of(r);
    program_value out[2];

    TSR_TRY(program_body(r->p, module, r->micro, &machine, in, &out[0]));
    if (!is_loss) {
        out[1] = in[1];
        TSR_TRY(run_op(r, 0, &entropy, out, &out[0]));
    }
    TSR_TRY(add_losses(r, sum, out[0].node));
    return TSR_OK;
}

static void play(runner *r, int loss)
{
    r->tape.nodes[loss].grad[0] = 1.0;
    for (int i = r->tape.count - 1; i >= 0; i--) {
        truth_node *node = &r->tape.nodes[i];

        if (node->leaf == TRUTH_PARAM) {
            for (int64_t e = 0; e < node->count; e++) {
                r->grad[node->param][e] =
                    r->grad[node->param][e] + truth_round(node->grad[e], r->sum_rounding);
            }
        } else if (node->leaf != TRUTH_DATA) {
            truth_backward(&r->tape, i);
        }
    }
}

/* Nothing may come near the largest number, in f16 with the loss scale, nor grow out of all bounds.
 */
static bool fits(const runner *r)
{
    const double most = r->p->param_dtype == TSR_F16 ? 1e4 : 1e9;

    for (int i = 0; i < r->tape.count; i++) {
        const truth_node *node = &r->tape.nodes[i];

        for (int64_t e = 0; e < node->count; e++) {
            if (!(fabs(node->value[e]) <= most) || !(fabs(node->grad[e]) * 1024.0 <= most)) {
                return false;
            }
        }
    }
    return true;
}

static tsr_status micro_batch(runner *r, const program_micro *micro, double *loss)
{
    int32_t ids[1024];
    float floats[4096];
    program_value in[2];
    int sum = -1;

    memset(r->calls, 0, sizeof(r->calls));
    program_labels(r->p, r->step, r->micro, ids);
    TSR_TRY(data_node(r, ids, NULL, &in[1].node));
    for (int i = 0; i < micro->forwards; i++) {
        program_ids(r->p, r->step, r->micro, i, ids);
        TSR_TRY(data_node(r, ids, NULL, &in[0].node));
        TSR_TRY(loss_of(r, 0, in, r->p->loss_inside, &sum));
    }
    if (micro->alone > 0) {
        program_floats(r->p, r->step, r->micro, floats);
        TSR_TRY(data_node(r, NULL, floats, &in[0].node));
        TSR_TRY(loss_of(r, micro->alone, in, false, &sum));
    }
    r->finite = r->finite && isfinite(r->tape.nodes[sum].value[0]);
    if (micro->backward) {
        *loss += r->tape.nodes[sum].value[0];
        play(r, sum);
    }
    r->finite = r->finite && fits(r);
    truth_tape_clear(&r->tape);
    return TSR_OK;
}

/* ---- a step ---- */

static double count_tokens(const runner *r, const program_step *step)
{
    int32_t labels[1024];
    double tokens = 0.0;

    for (int i = 0; i < step->micro_count; i++) {
        program_labels(r->p, r->step, i, labels);
        for (int64_t e = 0; e < r->p->batch * r->p->seq; e++) {
            tokens += labels[e] != TSR_IGNORE_INDEX ? 1.0 : 0.0;
        }
    }
    return tokens;
}

static double divisor_of(const program *p, int param)
{
    const double divisor =
        p->modules[program_unit_of(p, p->params[param].module)].unit.gradient_divisor;

    return divisor > 0.0 ? divisor : 1.0;
}

static tsr_status keep(const program *p, double *const *from, double **to)
{
    for (int i = 0; i < p->param_count; i++) {
        const int64_t count = program_param_elements(&p->params[i]);

        if (!p->params[i].frozen) {
            TSR_TRY(tsri_alloc((size_t)count, sizeof(double), &to[i]));
            memcpy(to[i], from[i], (size_t)count * sizeof(double));
        }
    }
    return TSR_OK;
}

static bool belongs(const program *p, int param, int optimizer)
{
    return !p->params[param].frozen &&
           (p->optimizer_count == 1 || p->params[param].second == (optimizer == 1));
}

static double norm_of(const runner *r, double *const *grad, int optimizer, double power)
{
    double total = 0.0;

    for (int i = 0; i < r->p->param_count; i++) {
        for (int64_t e = 0;
             belongs(r->p, i, optimizer) && e < program_param_elements(&r->p->params[i]); e++) {
            const double x = fabs(grad[i][e]);

            total = isinf(power) ? fmax(total, x) : total + (power == 1.0 ? x : x * x);
        }
    }
    return isinf(power) || power == 1.0 ? total : sqrt(total);
}

static double adamw(const tsr_optimizer_options *o, double g, double t, double *m, double *v)
{
    *m = o->beta1 * *m + (1.0 - o->beta1) * g;
    *v = o->beta2 * *v + (1.0 - o->beta2) * g * g;
    return *m / (1.0 - pow(o->beta1, t)) / (sqrt(*v / (1.0 - pow(o->beta2, t))) + o->eps);
}

static double sgd(const tsr_optimizer_options *o, double g, double t, double *m)
{
    if (o->momentum <= 0.0) {
        return g;
    }
    *m = t == 1.0 ? g : o->momentum * *m + g;
    return o->nesterov ? g + o->momentum * *m : *m;
}

static void update(runner *r, double *const *grad, int optimizer, double factor)
{
    const tsr_optimizer_options *o = &r->p->optimizers[optimizer];
    const double t = (double)++r->updates[optimizer];

    for (int i = 0; i < r->p->param_count; i++) {
        const double decay = r->p->params[i].ndim == 2 ? o->weight_decay : 0.0;

        for (int64_t e = 0;
             belongs(r->p, i, optimizer) && e < program_param_elements(&r->p->params[i]); e++) {
            double *x = &r->value[i][e];
            const double g = grad[i][e] * factor;

            if (o->kind == TSR_SGD) {
                *x -= r->p->lr * sgd(o, g + decay * *x, t, &r->m[i][e]);
            } else {
                *x -= r->p->lr * (decay * *x + adamw(o, g, t, &r->m[i][e], &r->v[i][e]));
            }
            *x = truth_round(*x, r->rounding > 0.0 ? 0x1p-24 : 0.0);
        }
    }
}

static tsr_status end_step(runner *r, const program_step *step, program_truth *out)
{
    double **grad = out->grad[r->step];

    if (!step->update) {
        return TSR_OK; /* gradients go on adding up */
    }
    TSR_TRY(keep(r->p, r->grad, grad));
    for (int i = 0; i < r->p->param_count; i++) {
        for (int64_t e = 0; grad[i] != NULL && e < program_param_elements(&r->p->params[i]); e++) {
            grad[i][e] /= divisor_of(r->p, i);
            r->grad[i][e] = 0.0;
        }
    }
    for (int k = 0; k < r->p->optimizer_count; k++) {
        const double norm = norm_of(r, grad, k, step->clip.p);
        const double most = step->clip.max_norm;

        out->norm[r->step][k] = norm;
        update(r, grad, k, step->clips > 0 && most > 0.0 ? fmin(1.0, most / (norm + 1e-6)) : 1.0);
    }
    return TSR_OK;
}

static tsr_status run_step(runner *r, program_truth *out)
{
    const program_step *step = &r->p->steps[r->step];

    r->tokens = count_tokens(r, step);
    out->tokens[r->step] = r->tokens;
    for (r->micro = 0; r->micro < step->micro_count; r->micro++) {
        TSR_TRY(micro_batch(r, &step->micro[r->micro], &out->loss[r->step]));
    }
    TSR_TRY(end_step(r, step, out));
    TSR_TRY(keep(r->p, r->value, out->value[r->step]));
    return TSR_OK;
}

/* ---- a run ---- */

static tsr_status open_runner(runner *r)
{
    for (int i = 0; i < r->p->param_count; i++) {
        const program_param *p = &r->p->params[i];
        const size_t count = (size_t)program_param_elements(p);
        const uint64_t key =
            tsri_rng_key(r->p->seed, tsri_hash_text(program_param_path(r->p, i)), 0, 0);

        TSR_TRY(tsri_alloc(count, sizeof(double), &r->value[i]));
        TSR_TRY(tsri_alloc(count, sizeof(double), &r->grad[i]));
        TSR_TRY(tsri_alloc(count, sizeof(double), &r->m[i]));
        TSR_TRY(tsri_alloc(count, sizeof(double), &r->v[i]));
        for (size_t e = 0; e < count; e++) {
            const double z = p->std > 0.0 ? (double)tsri_rng_normal(key, e) : 0.0;

            r->value[i][e] = (double)(float)((double)(float)p->mean + (double)(float)p->std * z);
        }
    }
    return TSR_OK;
}

static void close_runner(runner *r)
{
    truth_tape_clear(&r->tape);
    for (int i = 0; i < r->p->param_count; i++) {
        tsri_free(&r->value[i]);
        tsri_free(&r->grad[i]);
        tsri_free(&r->m[i]);
        tsri_free(&r->v[i]);
    }
}

tsr_status program_truth_run(const program *p, double rounding, double sum_rounding,
                             program_truth *out)
{
    runner r = {.p = p,
                .tape = {.rounding = rounding},
                .rounding = rounding,
                .sum_rounding = sum_rounding,
                .finite = true};
    tsr_status status = TSR_OK;

    memset(out, 0, sizeof(*out));
    TSR_TRY_GOTO(status, open_runner(&r), close);
    for (r.step = 0; r.step < p->step_count; r.step++) {
        TSR_TRY_GOTO(status, run_step(&r, out), close);
    }
    out->finite = r.finite;
close:
    close_runner(&r);
    return status;
}

void program_truth_free(program_truth *truth)
{
    for (int s = 0; s < PROGRAM_MAX_STEPS; s++) {
        for (int i = 0; i < PROGRAM_MAX_PARAMS; i++) {
            tsri_free(&truth->grad[s][i]);
            tsri_free(&truth->value[s][i]);
        }
    }
}
