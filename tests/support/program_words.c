/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_words.c
 * Prints what differs from defaults alone.
 */
#include "support/program_words.h"

#include <string.h>

#include "support/program.h"

static const char *const levels[] = {"default", "0", "1", "2", "3"};

static void print_place(FILE *out, const tsr_placement *place)
{
    if (place->kind == TSR_SHARD) {
        (void)fprintf(out, "S%d", place->dim);
    } else {
        (void)fputs(place->kind == TSR_PARTIAL ? "P" : "R", out);
    }
}

static void print_places(const program *p, FILE *out, const char *what, const tsr_placement *place)
{
    (void)fprintf(out, " %s", what);
    for (int axis = 0; axis < p->axis_count; axis++) {
        (void)fputc(axis == 0 ? ' ' : ',', out);
        print_place(out, &place[axis]);
    }
}

static void print_arg(const program *p, FILE *out, int module, const program_arg *arg)
{
    if (!arg->is_param) {
        (void)fprintf(out, "r%d", arg->index);
    } else if (p->params[arg->index].module == module) {
        (void)fprintf(out, "p%d", arg->index);
    } else {
        (void)fprintf(out, "%s", program_param_path(p, arg->index));
    }
}

static void print_op(const program *p, FILE *out, int module, int index)
{
    const program_module *m = &p->modules[module];
    const program_op *op = &m->ops[index];

    (void)fprintf(out, "    r%d = %s", m->input_count + index, program_kind_name(op->kind));
    if (op->kind == PROGRAM_CALL) {
        (void)fprintf(out, " m%d", op->number);
    }
    (void)fputc('(', out);
    for (int i = 0; i < op->in_count; i++) {
        (void)fputs(i > 0 ? ", " : "", out);
        print_arg(p, out, module, &op->in[i]);
    }
    if (op->kind == PROGRAM_REDISTRIBUTE) {
        (void)fprintf(out, ", %s ", p->axes[op->axis].name);
        print_place(out, &op->place);
    } else if (op->number != 0 && op->kind != PROGRAM_CALL) {
        (void)fprintf(out, ", %d", op->number);
    }
    if (op->span != 0) {
        (void)fprintf(out, " + %d", op->span);
    }
    if (op->value != 0.0) {
        (void)fprintf(out, ", %g", op->value);
    }
    (void)fputc(')', out);
    if (op->micros != PROGRAM_ALWAYS) {
        (void)fprintf(out, "  in micro-batches of mask %#x alone", op->micros);
    }
    if (op->passed != 0) {
        (void)fprintf(out, "  passed over by data ranks of mask %#x", op->passed);
    }
    (void)fputc('\n', out);
}

static void print_params(const program *p, FILE *out, int module)
{
    static const char *const tp[] = {"", " column", " row", "", ""};

    for (int i = 0; i < p->param_count; i++) {
        const program_param *q = &p->params[i];

        if (q->module == module && !q->absent) {
            (void)fprintf(out, "    p%d [%lld", i, (long long)q->shape[0]);
            if (q->ndim == 2) {
                (void)fprintf(out, ", %lld", (long long)q->shape[1]);
            }
            (void)fprintf(out, "]%s%s%s%s\n", p->tp_axis >= 0 ? tp[q->tp] : "",
                          q->frozen ? " frozen" : "", q->cols ? " split by columns" : "",
                          p->optimizer_count == 2 && q->second ? " of the second optimizer" : "");
        }
    }
}

static void print_unit(FILE *out, const program_module *m)
{
    const tsr_fsdp_options *o = &m->unit;

    (void)fprintf(out, ", unit %s", m->preset != NULL ? m->preset : "");
    for (int i = 0; m->preset == NULL && o->levels[i].axis != NULL; i++) {
        (void)fprintf(out, " %s:%s", o->levels[i].axis, levels[o->levels[i].level]);
    }
    if (o->reshard_after_forward != TSR_RESHARD_DEFAULT) {
        (void)fprintf(out, " reshard %d", (int)o->reshard_after_forward);
    }
    if (o->prefetch_depth != 0 || o->backward_prefetch != TSR_PREFETCH_DEFAULT) {
        (void)fprintf(out, " prefetch %d/%d", o->prefetch_depth, (int)o->backward_prefetch);
    }
    if (o->reshard_group > 0) {
        (void)fprintf(out, " groups of %d", o->reshard_group);
    }
    if (o->gradient_divisor > 0.0) {
        (void)fprintf(out, " divisor %g", o->gradient_divisor);
    }
    (void)fprintf(out, "%s%s", o->offload_params ? " offload_params" : "",
                  o->offload_grads ? " offload_grads" : "");
}

static void print_module(const program *p, FILE *out, int module)
{
    const program_module *m = &p->modules[module];

    if (m->absent) {
        return;
    }
    (void)fprintf(out, "  module \"%s\" (%d in, created %d)", program_module_path(p, module),
                  m->input_count, m->created);
    if (m->is_unit) {
        print_unit(out, m);
    }
    if (m->checkpoint) {
        (void)fprintf(out, ", checkpointed%s", m->offload ? " offloaded" : "");
        for (int i = 0; i < m->keep_count; i++) {
            (void)fprintf(out, " keep %s", m->keep[i]);
        }
    }
    (void)fputc('\n', out);
    print_params(p, out, module);
    for (int i = 0; i < m->op_count; i++) {
        print_op(p, out, module, i);
    }
    (void)fprintf(out, "    out r%d\n", m->result);
}

static void print_micro(const program *p, FILE *out, const program_micro *m)
{
    static const char *const last[] = {"", " last yes", " last no"};

    (void)fprintf(out, "    micro-batch: %d forwards", m->forwards);
    if (m->alone > 0) {
        (void)fprintf(out, ", m%d alone", m->alone);
    }
    (void)fputs(m->backward ? "" : ", no backward", out);
    print_places(p, out, "ids", m->ids);
    (void)fputs(last[m->last], out);
    if (m->unsynced != 0) {
        (void)fprintf(out, " unsynced %#x", m->unsynced);
    }
    (void)fputs(m->reads_loss ? " reads loss\n" : "\n", out);
}

static void print_steps(const program *p, FILE *out)
{
    for (int s = 0; s < p->step_count; s++) {
        const program_step *step = &p->steps[s];

        (void)fprintf(out, "  step %d:%s%s clips %d max %g p %g nonfinite %d\n", s,
                      step->all_reduce ? "" : " all-reduce off,", step->update ? "" : " no update,",
                      step->clips, step->clip.max_norm, step->clip.p, (int)step->clip.nonfinite);
        for (int i = 0; i < step->micro_count; i++) {
            print_micro(p, out, &step->micro[i]);
        }
    }
}

void program_print(const program *p, FILE *stream)
{
    (void)fprintf(stream, "program %llu:", (unsigned long long)p->seed);
    for (int axis = 0; axis < p->axis_count; axis++) {
        (void)fprintf(stream, " %s=%d%s", p->axes[axis].name, p->axes[axis].size,
                      axis == p->tp_axis ? "(tp)" : "");
    }
    (void)fprintf(stream, ", batch %lld seq %lld dim %lld vocab %lld, %s reduced in %s%s\n",
                  (long long)p->batch, (long long)p->seq, (long long)p->dim, (long long)p->vocab,
                  tsr_dtype_name(p->param_dtype), tsr_dtype_name(p->reduce_dtype),
                  p->loss_inside ? ", loss in the root" : "");
    for (int i = 0; i < p->module_count; i++) {
        print_module(p, stream, i);
    }
    print_places(p, stream, " labels", p->labels);
    for (int k = 0; k < p->optimizer_count; k++) {
        const tsr_optimizer_options *o = &p->optimizers[k];

        (void)fprintf(stream, "; %s decay %g momentum %g%s%s", o->kind == TSR_SGD ? "sgd" : "adamw",
                      o->weight_decay, o->momentum, o->nesterov ? " nesterov" : "",
                      o->offload ? " offloaded" : "");
    }
    (void)fprintf(stream, "%s\n", p->scaled ? "; loss scaled" : "");
    print_steps(p, stream);
}
