/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_build.c
 * Parameters and what is made of them; pieces of operations that no model of the library uses.
 */
#include "support/program_build.h"

#include "base/base.h"
#include "base/rng.h"

#include "tessera/tp.h"

#include <math.h>
#include <string.h>

#include "support/program.h"

int program_pick(program_chance *c, int count)
{
    return (int)(tsri_rng_word(c->key, c->index++) % (uint32_t)count);
}

int program_between(program_chance *c, int low, int high)
{
    return low + program_pick(c, high - low + 1);
}

bool program_once(program_chance *c, int n)
{
    return program_pick(c, n) == 0;
}

bool program_is_on(const program_builder *b, program_on kind)
{
    return (b->on >> kind & 1U) != 0;
}

/* ---- operations ---- */

program_op *program_last_op(program_builder *b, int module)
{
    return &b->p->modules[module].ops[b->p->modules[module].op_count - 1];
}

bool program_has_room(const program_builder *b, int module, int ops)
{
    return b->p->modules[module].op_count + ops <= PROGRAM_MAX_OPS &&
           b->p->param_count + ops <= PROGRAM_MAX_PARAMS;
}

program_arg program_emit(program_builder *b, int module, program_kind kind, double value,
                         const program_arg *in, int in_count)
{
    program_module *m = &b->p->modules[module];
    program_op *op = &m->ops[m->op_count];

    *op =
        (program_op){.kind = kind, .in_count = in_count, .value = value, .micros = PROGRAM_ALWAYS};
    memcpy(op->in, in, (size_t)in_count * sizeof(*in));
    m->result = m->input_count + m->op_count++;
    return (program_arg){.index = m->result};
}

/* ---- parameters ---- */

int program_add_param(program_builder *b, int module, int64_t rows, int64_t cols, double mean,
                      double std)
{
    const int index = b->p->param_count++;

    b->p->params[index] = (program_param){.module = module,
                                          .ndim = cols > 0 ? 2 : 1,
                                          .shape = {rows, cols > 0 ? cols : 1},
                                          .mean = mean,
                                          .std = std,
                                          .tp = TSR_TP_REPLICATE};
    return index;
}

/* One that is there and fits, or -1. */
static int find_param(program_builder *b, int64_t rows, int64_t cols, bool plain)
{
    const int first = program_pick(&b->chance, b->p->param_count + 1);

    for (int i = 0; i < b->p->param_count; i++) {
        const int at = (first + i) % b->p->param_count;
        const program_param *p = &b->p->params[at];

        if (p->shape[0] == rows && p->ndim == (cols > 0 ? 2 : 1) &&
            (cols == 0 || p->shape[1] == cols) && (!plain || p->tp == TSR_TP_REPLICATE)) {
            return at;
        }
    }
    return -1;
}

static program_arg leaf(program_builder *b, int module, int64_t rows, int64_t cols, double mean,
                        bool plain)
{
    program_chance *c = &b->chance;
    const double std = cols > 0 ? 0.75 / sqrt((double)cols) : 0.25;
    int index = -1;

    if (program_is_on(b, PROGRAM_ON_TIED) && program_once(c, 2)) {
        index = find_param(b, rows, cols, plain);
    }
    if (index < 0) {
        index = program_add_param(b, module, rows, cols, mean, std);
        if (program_is_on(b, PROGRAM_ON_TP) && !plain && !program_once(c, 3)) {
            b->p->params[index].tp = program_once(c, 2) ? TSR_TP_COLUMN : TSR_TP_ROW;
        }
        b->p->params[index].frozen = program_is_on(b, PROGRAM_ON_FROZEN) && program_once(c, 4);
    }
    return (program_arg){true, index};
}

static program_arg move_param(program_builder *b, int module, program_arg x, int ndim)
{
    program_chance *c = &b->chance;
    program_arg out = x;

    if (program_is_on(b, PROGRAM_ON_PARAM_MOVES) && program_once(c, 2)) {
        out = program_emit(b, module, PROGRAM_REDISTRIBUTE, 0.0, &x, 1);
        program_last_op(b, module)->axis = program_pick(c, b->p->axis_count);
        if (program_once(c, 2)) {
            program_last_op(b, module)->place = (tsr_placement){TSR_SHARD, program_pick(c, ndim)};
        }
    }
    return out;
}

static program_arg derive_matrix(program_builder *b, int module, int64_t rows, int64_t cols,
                                 bool plain)
{
    program_chance *c = &b->chance;
    const int64_t rank = program_between(c, 1, 4);
    program_arg in[3];

    switch (program_pick(c, 8)) {
    case 0:
        in[0] = leaf(b, module, rows, rank, 0.0, plain);
        in[1] = leaf(b, module, cols, rank, 0.0, plain);
        return program_emit(b, module, PROGRAM_LINEAR, 0.0, in, 2);
    case 1: /* a low-rank adapter */
        in[0] = leaf(b, module, rows, rank, 0.0, plain);
        in[1] = leaf(b, module, cols, rank, 0.0, plain);
        in[1] = program_emit(b, module, PROGRAM_LINEAR, 0.0, in, 2);
        in[0] = leaf(b, module, rows, cols, 0.0, plain);
        return program_emit(b, module, PROGRAM_ADD, 0.0, in, 2);
    case 2:
        in[0] = leaf(b, module, rows, cols, 0.0, plain);
        in[1] = leaf(b, module, rows, cols, 0.0, plain);
        return program_emit(b, module, PROGRAM_SILU_MUL, 0.0, in, 2);
    case 3:
        in[0] = leaf(b, module, rows, cols, 0.0, plain);
        in[1] = leaf(b, module, cols, 0, 1.0, plain);
        return program_emit(b, module, PROGRAM_RMSNORM, 0x1p-6, in, 2);
    case 4:
        in[0] = leaf(b, module, rows, cols, 0.0, plain);
        return program_emit(b, module, PROGRAM_SCALE, 0.75, in, 1);
    case 5:
        in[0] = leaf(b, module, rows, cols, 0.0, plain);
        in[1] = leaf(b, module, rows, cols, 0.0, plain);
        return program_emit(b, module, PROGRAM_ADD, 0.0, in, 2);
    default:
        in[0] = leaf(b, module, rows, cols, 0.0, plain);
        return program_emit(b, module, PROGRAM_GELU, 0.0, in, 1);
    }
}

program_arg program_matrix(program_builder *b, int module, int64_t rows, int64_t cols, bool plain)
{
    program_arg x;

    if (program_is_on(b, PROGRAM_ON_PARAM_OPS) && !plain && program_once(&b->chance, 2) &&
        program_has_room(b, module, 8)) {
        x = derive_matrix(b, module, rows, cols, plain);
    } else {
        x = leaf(b, module, rows, cols, 0.0, plain);
    }
    return plain ? x : move_param(b, module, x, 2);
}

program_arg program_vector(program_builder *b, int module, int64_t count, double mean)
{
    program_arg in[2] = {leaf(b, module, count, 0, mean, false)};

    if (program_is_on(b, PROGRAM_ON_PARAM_OPS) && program_once(&b->chance, 3) &&
        program_has_room(b, module, 8)) {
        in[1] = leaf(b, module, count, 0, mean, false);
        in[0] = program_emit(
            b, module, program_once(&b->chance, 2) ? PROGRAM_ADD : PROGRAM_SILU_MUL, 0.0, in, 2);
    }
    return move_param(b, module, in[0], 1);
}

/* ---- pieces of the stream ---- */

/* The last dim from somewhere in it on, then what is before. */
static program_arg draw_rotation(program_builder *b, int module, program_arg h)
{
    const int at = program_between(&b->chance, 1, (int)b->p->dim - 1);
    program_arg parts[2];

    parts[1] = program_emit(b, module, PROGRAM_SLICE, 0.0, &h, 1);
    program_last_op(b, module)->span = at;
    parts[0] = program_emit(b, module, PROGRAM_SLICE, 0.0, &h, 1);
    program_last_op(b, module)->number = at;
    program_last_op(b, module)->span = (int)b->p->dim - at;
    return program_emit(b, module, PROGRAM_CONCAT, 0.0, parts, 2);
}

/* Attention written out, of h to itself in both directions. */
static program_arg draw_mixing(program_builder *b, int module, program_arg h)
{
    program_arg in[2] = {h, h};

    in[0] = program_emit(b, module, PROGRAM_MATMUL, 0.0, in, 2);
    program_last_op(b, module)->number = 1;
    in[0] = program_emit(b, module, PROGRAM_SOFTMAX, 0.0, in, 1);
    in[0] = program_emit(b, module, PROGRAM_MATMUL, 0.0, in, 2);
    return program_emit(b, module, PROGRAM_ADD, 0.0, in, 2);
}

program_arg program_more(program_builder *b, int module, program_arg h)
{
    program_chance *c = &b->chance;
    program_arg in[2] = {h};

    switch (program_pick(c, 6)) {
    case 0:
        return program_emit(b, module, PROGRAM_TANH, 0.0, in, 1);
    case 1: /* a gate of the value's own */
        in[1] = program_emit(b, module, PROGRAM_SIGMOID, 0.0, in, 1);
        return program_emit(b, module, PROGRAM_MULTIPLY, 0.0, in, 2);
    case 2:
        in[1] = program_vector(b, module, b->p->dim, 1.0);
        return program_emit(b, module, PROGRAM_MULTIPLY, 0.0, in, 2);
    case 3: /* times a mean over the sequence or over what is in a position */
        in[1] = program_emit(b, module, PROGRAM_MEAN, 0.0, in, 1);
        program_last_op(b, module)->number = program_between(c, 1, 2);
        in[1] = program_emit(b, module, PROGRAM_MULTIPLY, 0.0, in, 2);
        return program_emit(b, module, PROGRAM_ADD, 0.0, in, 2);
    case 4:
        return draw_rotation(b, module, h);
    default:
        return draw_mixing(b, module, h);
    }
}
