/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program.c
 * Walking a module's forward, names, and the data of a program.
 */
#include "support/program.h"

#include "base/base.h"
#include "base/rng.h"

#include <stdio.h>

enum {
    PATH_COUNT = 8,
    PATH_BYTES = 128
};

static const char *const kind_names[PROGRAM_KIND_COUNT] = {
    "same",     "linear",  "embedding", "add_position", "layernorm",     "rmsnorm",      "gelu",
    "silu_mul", "split",   "merge",     "rope",         "attention",     "add",          "tanh",
    "sigmoid",  "softmax", "multiply",  "mean",         "slice",         "concat",       "matmul",
    "scale",    "dropout", "cap",       "square_sum",   "cross_entropy", "redistribute", "call"};

const char *program_kind_name(program_kind kind)
{
    return kind_names[kind];
}

int64_t program_param_elements(const program_param *param)
{
    return param->shape[0] * (param->ndim == 2 ? param->shape[1] : 1);
}

int program_unit_of(const program *p, int module)
{
    while (module > 0 && !p->modules[module].is_unit) {
        module = p->modules[module].parent;
    }
    return module;
}

/* ---- a forward ---- */

static tsr_status load_arg(const program_machine *machine, const program_value *registers,
                           const program_arg *arg, program_value *out)
{
    if (arg->is_param) {
        TSR_TRY(machine->param(machine->context, arg->index, out));
    } else {
        *out = registers[arg->index];
    }
    return TSR_OK;
}

tsr_status program_body(const program *p, int module, int micro, const program_machine *machine,
                        const program_value *in, program_value *out)
{
    const program_module *m = &p->modules[module];
    program_value registers[PROGRAM_REGISTERS];

    for (int i = 0; i < m->input_count; i++) {
        registers[i] = in[i];
    }
    for (int i = 0; i < m->op_count; i++) {
        const program_op *op = &m->ops[i];
        program_value *result = &registers[m->input_count + i];
        program_value args[PROGRAM_MAX_IN];

        for (int k = 0; k < op->in_count; k++) {
            TSR_TRY(load_arg(machine, registers, &op->in[k], &args[k]));
        }
        if (op->kind == PROGRAM_SAME || (op->micros >> micro & 1U) == 0) {
            *result = args[0];
        } else if (op->kind == PROGRAM_CALL) {
            TSR_TRY(machine->call(machine->context, op, args, result));
        } else {
            TSR_TRY(machine->op(machine->context, module, op, args, result));
        }
    }
    *out = registers[m->result];
    return TSR_OK;
}

/* ---- names ---- */

static char *next_path(void)
{
    static char paths[PATH_COUNT][PATH_BYTES];
    static int next = 0;

    next = (next + 1) % PATH_COUNT;
    return paths[next];
}

const char *program_module_path(const program *p, int module)
{
    int chain[PROGRAM_MAX_MODULES];
    int depth = 0;
    size_t used = 0;
    char *path = next_path();

    path[0] = '\0';
    for (; p->modules[module].parent >= 0; module = p->modules[module].parent) {
        chain[depth++] = module;
    }
    while (depth > 0 && used < PATH_BYTES) {
        used += (size_t)snprintf(path + used, PATH_BYTES - used, "%sm%d", used > 0 ? "." : "",
                                 chain[--depth]);
    }
    return path;
}

const char *program_param_path(const program *p, int param)
{
    const char *module = program_module_path(p, p->params[param].module);
    char *path = next_path();

    (void)snprintf(path, PATH_BYTES, "%s%sp%d", module, module[0] != '\0' ? "." : "", param);
    return path;
}

/* ---- ranks ---- */

int program_data_ranks(const program *p)
{
    int ranks = 1;

    for (int axis = 0; axis < p->axis_count; axis++) {
        ranks *= axis == p->tp_axis ? 1 : p->axes[axis].size;
    }
    return ranks;
}

int program_data_index(const program *p, const int *coord)
{
    int index = 0;

    for (int axis = 0; axis < p->axis_count; axis++) {
        if (axis != p->tp_axis) {
            index = index * p->axes[axis].size + coord[axis];
        }
    }
    return index;
}

/* ---- data ---- */

static uint64_t data_key(const program *p, int what, int step, int micro)
{
    return tsri_rng_key(p->seed, (uint64_t)what, (uint64_t)step, (uint64_t)micro);
}

void program_ids(const program *p, int step, int micro, int forward, int32_t *out)
{
    const uint64_t key = data_key(p, 1 + forward, step, micro);

    for (int64_t i = 0; i < p->batch * p->seq; i++) {
        out[i] = (int32_t)(tsri_rng_word(key, (uint64_t)i) % (uint32_t)p->vocab);
    }
}

/* One label at least counts. */
void program_labels(const program *p, int step, int micro, int32_t *out)
{
    const uint64_t key = data_key(p, 17, step, micro);

    for (int64_t i = 0; i < p->batch * p->seq; i++) {
        const uint32_t word = tsri_rng_word(key, (uint64_t)i);

        out[i] = i > 0 && word % 4 == 0 ? TSR_IGNORE_INDEX
                                        : (int32_t)((word / 4) % (uint32_t)p->labels_below);
    }
}

void program_floats(const program *p, int step, int micro, float *out)
{
    const uint64_t key = data_key(p, 33, step, micro);

    for (int64_t i = 0; i < p->batch * p->seq * p->dim; i++) {
        out[i] = 2.0F * tsri_rng_uniform(key, (uint64_t)i) - 1.0F;
    }
}
