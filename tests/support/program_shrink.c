/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_shrink.c
 * A list of simplifications, tried in turn until none of them leaves a program that fails.
 */
#include "support/program_shrink.h"

#include "base/base.h"

#include "tessera/tp.h"

#include <string.h>

#include "support/program.h"

enum {
    PASSES = 4
};

/* Simplification number index of a kind; false: there are no more. Changes nothing where there is
 * nothing to change. */
typedef bool (*simplification)(program *p, int index);

static bool drop_step(program *p, int index)
{
    if (index >= p->step_count || p->step_count < 2) {
        return false;
    }
    memmove(&p->steps[index], &p->steps[index + 1],
            (size_t)(p->step_count - index - 1) * sizeof(p->steps[0]));
    p->step_count--;
    return true;
}

static bool drop_micro(program *p, int index)
{
    program_step *step = &p->steps[index / PROGRAM_MAX_MICRO];
    const int at = index % PROGRAM_MAX_MICRO;

    if (index / PROGRAM_MAX_MICRO >= p->step_count) {
        return false;
    }
    if (at < step->micro_count && step->micro_count > 1) {
        memmove(&step->micro[at], &step->micro[at + 1],
                (size_t)(step->micro_count - at - 1) * sizeof(step->micro[0]));
        step->micro_count--;
    }
    return true;
}

/* Whether an operation's result has the shape of its first input. */
static bool keeps_shape(const program *p, const program_op *op)
{
    switch ((int)op->kind) {
    case PROGRAM_LINEAR:
        return op->in[1].is_param && op->in_count > 0 &&
               p->params[op->in[1].index].shape[0] == p->params[op->in[1].index].shape[1];
    case PROGRAM_EMBEDDING:
    case PROGRAM_SPLIT_HEADS:
    case PROGRAM_MERGE_HEADS:
    case PROGRAM_MEAN:
    case PROGRAM_SLICE:
    case PROGRAM_CONCAT:
    case PROGRAM_MATMUL:
    case PROGRAM_SQUARE_SUM:
    case PROGRAM_CROSS_ENTROPY:
    case PROGRAM_SAME:
        return false;
    default:
        return op->in_count > 0;
    }
}

static bool drop_op(program *p, int index)
{
    program_module *m = &p->modules[index / PROGRAM_MAX_OPS];
    const int at = index % PROGRAM_MAX_OPS;

    if (index / PROGRAM_MAX_OPS >= p->module_count) {
        return false;
    }
    if (at < m->op_count && keeps_shape(p, &m->ops[at])) {
        m->ops[at].kind = PROGRAM_SAME;
        m->ops[at].in_count = 1;
        m->keep_count = 0;
    }
    return true;
}

static bool other_input(program *p, int index)
{
    program_module *m = &p->modules[index / PROGRAM_MAX_OPS];
    const int at = index % PROGRAM_MAX_OPS;

    if (index / PROGRAM_MAX_OPS >= p->module_count) {
        return false;
    }
    if (at < m->op_count &&
        (m->ops[at].kind == PROGRAM_ADD || m->ops[at].kind == PROGRAM_SILU_MUL)) {
        m->ops[at].kind = PROGRAM_SAME;
        m->ops[at].in[0] = m->ops[at].in[1];
        m->ops[at].in_count = 1;
        m->keep_count = 0;
    }
    return true;
}

static bool plain_op(program *p, int index)
{
    program_module *m = &p->modules[index / PROGRAM_MAX_OPS];
    const int at = index % PROGRAM_MAX_OPS;

    if (index / PROGRAM_MAX_OPS >= p->module_count) {
        return false;
    }
    if (at < m->op_count) {
        m->ops[at].micros = PROGRAM_ALWAYS;
        m->ops[at].passed = 0;
        if (m->ops[at].kind == PROGRAM_LINEAR && m->ops[at].in_count > 2) {
            m->ops[at].in_count = 2;
        }
    }
    return true;
}

static bool plain_module(program *p, int index)
{
    program_module *m = &p->modules[index / 8];
    static const tsr_fsdp_options none = {0};
    const tsr_fsdp_options old = m->unit;

    if (index / 8 >= p->module_count) {
        return false;
    }
    if (m->absent) {
        return true;
    }
    switch (index % 8) {
    case 0:
        m->is_unit = index / 8 == 0;
        break;
    case 1:
        m->checkpoint = false;
        break;
    case 2:
        m->offload = false;
        m->keep_count = 0;
        break;
    case 3:
        m->preset = "ddp";
        break;
    case 4:
        m->unit = none;
        memcpy(m->unit.levels, old.levels, sizeof(old.levels));
        m->unit.param_dtype = old.param_dtype;
        m->unit.reduce_dtype = old.reduce_dtype;
        break;
    case 5:
        m->created = index / 8;
        break;
    case 6:
        m->preset = "fsdp";
        break;
    default:
        m->unit.gradient_divisor = 0.0;
        m->unit.reshard_after_forward = TSR_RESHARD_DEFAULT;
        break;
    }
    return true;
}

static bool plain_param(program *p, int index)
{
    program_param *q = &p->params[index / 4];

    if (index / 4 >= p->param_count) {
        return false;
    }
    if (q->absent) {
        return true;
    }
    switch (index % 4) {
    case 0:
        q->tp = TSR_TP_REPLICATE;
        break;
    case 1:
        q->frozen = false;
        break;
    case 2:
        q->cols = false;
        break;
    default:
        q->frozen = true;
        break;
    }
    return true;
}

static bool plain_micro(program *p, int index)
{
    program_step *step = &p->steps[index / 8 / PROGRAM_MAX_MICRO];
    program_micro *m = &step->micro[index / 8 % PROGRAM_MAX_MICRO];

    if (index / 8 / PROGRAM_MAX_MICRO >= p->step_count) {
        return false;
    }
    switch (index % 8) {
    case 0:
        m->forwards = 1;
        break;
    case 1:
        m->alone = 0;
        m->forwards = m->forwards == 0 ? 1 : m->forwards;
        break;
    case 2:
        m->backward = true;
        break;
    case 3:
        m->unsynced = 0;
        break;
    case 4:
        m->reads_loss = false;
        break;
    case 5:
        m->last = m->last == TSR_LAST_NO ? TSR_LAST_YES : m->last;
        break;
    default:
        for (int axis = 0; axis < p->axis_count; axis++) {
            if (axis == index % 8 - 6) {
                m->ids[axis] =
                    axis == p->tp_axis ? (tsr_placement){0} : (tsr_placement){TSR_SHARD, 0};
            }
        }
        break;
    }
    return true;
}

static bool op_reads(const program_op *op, int param)
{
    for (int a = 0; a < op->in_count; a++) {
        if (op->in[a].is_param && op->in[a].index == param) {
            return true;
        }
    }
    return false;
}

static bool reads(const program *p, int param)
{
    for (int k = 0; k < p->module_count; k++) {
        for (int i = 0; i < p->modules[k].op_count; i++) {
            if (op_reads(&p->modules[k].ops[i], param)) {
                return true;
            }
        }
    }
    return false;
}

static bool drop_param(program *p, int index)
{
    if (index >= p->param_count) {
        return false;
    }
    if (!reads(p, index)) {
        p->params[index].absent = true;
        p->params[index].frozen = true;
    }
    return true;
}

static bool is_called(const program *p, int module)
{
    for (int k = 0; k < p->module_count; k++) {
        for (int i = 0; i < p->modules[k].op_count && !p->modules[k].absent; i++) {
            if (p->modules[k].ops[i].kind == PROGRAM_CALL &&
                p->modules[k].ops[i].number == module) {
                return true;
            }
        }
    }
    for (int s = 0; s < p->step_count; s++) {
        for (int i = 0; i < p->steps[s].micro_count; i++) {
            if (p->steps[s].micro[i].alone == module) {
                return true;
            }
        }
    }
    return false;
}

/* A module that is never called, with what is below it, where no parameter of them is read. */
static bool drop_module(program *p, int index)
{
    const int module = p->module_count - 1 - index;

    if (module < 1) {
        return false;
    }
    for (int i = 0; i < p->param_count; i++) {
        if (p->params[i].module == module && !p->params[i].absent) {
            return true;
        }
    }
    for (int i = 0; i < p->module_count; i++) {
        if (p->modules[i].parent == module && !p->modules[i].absent) {
            return true;
        }
    }
    if (!is_called(p, module)) {
        p->modules[module].absent = true;
        p->modules[module].is_unit = false;
        p->modules[module].op_count = 0;
    }
    return true;
}

static void plain_optimizer(program *p)
{
    p->optimizers[0] = (tsr_optimizer_options){.kind = TSR_SGD};
    p->optimizers[1] = p->optimizers[0];
}

static void plain_labels(program *p)
{
    for (int axis = 0; axis < p->axis_count; axis++) {
        p->labels[axis] = axis == p->tp_axis ? (tsr_placement){0} : (tsr_placement){TSR_SHARD, 0};
    }
}

static void plain_steps(program *p, bool deferral)
{
    for (int s = 0; s < p->step_count; s++) {
        if (deferral) {
            p->steps[s].all_reduce = true;
            p->steps[s].update = true;
            for (int i = 0; i < p->steps[s].micro_count; i++) {
                p->steps[s].micro[i].last = TSR_LAST_AUTO;
            }
        } else {
            p->steps[s].clips = p->scaled ? 1 : 0;
            p->steps[s].unshard = 0;
        }
    }
}

static bool plain_program(program *p, int index)
{
    switch (index) {
    case 0:
        p->param_dtype = TSR_F32;
        for (int i = 0; i < p->module_count; i++) {
            p->modules[i].unit.param_dtype = TSR_F32;
        }
        return true;
    case 1:
        p->reduce_dtype = TSR_F32;
        for (int i = 0; i < p->module_count; i++) {
            p->modules[i].unit.reduce_dtype = TSR_F32;
        }
        return true;
    case 2:
        p->optimizer_count = 1;
        return true;
    case 3:
        plain_optimizer(p);
        return true;
    case 4:
        p->scaled = false;
        return true;
    case 5:
        plain_labels(p);
        return true;
    case 6:
        plain_steps(p, true);
        return true;
    case 7:
        plain_steps(p, false);
        return true;
    case 8:
        p->seq = 1;
        return true;
    case 9:
        p->batch = p->batch > 2 ? 2 : 1;
        return true;
    case 10:
        p->batch = 4;
        return true;
    default:
        return false;
    }
}

static void mark_used(const program_module *m, bool *used)
{
    used[m->result] = true;
    for (int i = m->op_count - 1; i >= 0; i--) {
        const program_op *op = &m->ops[i];

        for (int a = 0; used[m->input_count + i] && a < op->in_count; a++) {
            if (!op->in[a].is_param) {
                used[op->in[a].index] = true;
            }
        }
    }
}

/* Operations whose results nobody reads go, and those that do nothing. */
static void sweep_module(program_module *m)
{
    bool used[PROGRAM_REGISTERS] = {false};
    int to[PROGRAM_REGISTERS] = {0};
    int count = 0;

    mark_used(m, used);
    for (int i = 0; i < m->input_count; i++) {
        to[i] = i;
    }
    for (int i = 0; i < m->op_count; i++) {
        program_op op = m->ops[i];
        const bool same = op.kind == PROGRAM_SAME && !op.in[0].is_param;

        for (int a = 0; a < op.in_count; a++) {
            op.in[a].index = op.in[a].is_param ? op.in[a].index : to[op.in[a].index];
        }
        to[m->input_count + i] = same ? op.in[0].index : m->input_count + count;
        if (used[m->input_count + i] && !same) {
            m->ops[count++] = op;
        }
    }
    m->result = to[m->result];
    m->op_count = count;
}

static bool sweep_once(program *p, int index)
{
    if (index >= p->module_count) {
        return false;
    }
    sweep_module(&p->modules[index]);
    return true;
}

/* An update comes after the step's last reductions, and nothing is left over at the end. */
static bool is_legal_step(const program_step *step, bool final)
{
    int last = step->micro_count - 1;
    bool automatic = true;

    while (last > 0 && !step->micro[last].backward) {
        last--;
    }
    for (int i = 0; i < step->micro_count; i++) {
        const tsr_last_backward want = i == last ? TSR_LAST_YES : TSR_LAST_NO;

        automatic = automatic && step->micro[i].last == TSR_LAST_AUTO;
        if (step->update && step->micro[i].last != want && step->micro[i].last != TSR_LAST_AUTO) {
            return false;
        }
    }
    if (!step->micro[last].backward || (final && !step->update)) {
        return false;
    }
    if (!step->update) {
        return !step->all_reduce || step->micro[last].last == TSR_LAST_NO;
    }
    return step->all_reduce &&
           (automatic ? last == step->micro_count - 1 : step->micro[last].last == TSR_LAST_YES);
}

static bool is_legal(const program *p)
{
    for (int s = 0; s < p->step_count; s++) {
        if (!is_legal_step(&p->steps[s], s + 1 == p->step_count)) {
            return false;
        }
    }
    return true;
}

static bool try_one(program *p, simplification simplify, int index,
                    bool (*fails)(const program *p, void *context), void *context, bool *more)
{
    static program copy;

    memcpy(&copy, p, sizeof(copy));
    *more = simplify(&copy, index);
    /* Copied bit by bit, so that what did not change is the same bit by bit. */
    if (!*more || tsri_hash(&copy, sizeof(copy), 0) == tsri_hash(p, sizeof(copy), 0) ||
        !is_legal(&copy) || !fails(&copy, context)) {
        return false;
    }
    memcpy(p, &copy, sizeof(copy));
    return true;
}

void program_shrink(program *p, bool (*fails)(const program *p, void *context), void *context)
{
    static const simplification all[] = {drop_step,     drop_micro,   drop_op,     other_input,
                                         plain_op,      plain_module, plain_param, plain_micro,
                                         plain_program, sweep_once,   drop_param,  drop_module};
    bool changed = true;

    for (int pass = 0; pass < PASSES && changed; pass++) {
        changed = false;
        for (size_t k = 0; k < sizeof(all) / sizeof(all[0]); k++) {
            bool more = true;

            for (int index = 0; more; index++) {
                changed = try_one(p, all[k], index, fails, context, &more) || changed;
            }
        }
    }
}
