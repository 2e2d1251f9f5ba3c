/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_draw.c
 * Mesh, modules, units and steps of a drawn program.
 *
 * A residual stream [batch, seq, dim] goes through pieces, some of them modules of their own, from
 * an embedding to a head. What a piece needs of parameters is drawn by program_build.c.
 */
#include "support/program_draw.h"

#include "base/rng.h"

#include "tessera/tp.h"

#include <string.h>

#include "support/program.h"
#include "support/program_build.h"

#define KIND_NAME(name, text) text,
static const char *const names[PROGRAM_ON_COUNT] = {PROGRAM_KINDS(KIND_NAME)};

const char *program_on_name(program_on kind)
{
    return names[kind];
}

uint64_t program_on_parse(const char *text)
{
    uint64_t bits = 0;

    for (int i = 0; text != NULL && i < PROGRAM_ON_COUNT; i++) {
        const size_t size = strlen(names[i]);

        for (const char *at = text; (at = strstr(at, names[i])) != NULL; at += size) {
            if ((at == text || at[-1] == ',') && (at[size] == ',' || at[size] == '\0')) {
                bits |= (uint64_t)1 << i;
            }
        }
    }
    return text != NULL ? bits : ~(uint64_t)0;
}

/* ---- mesh ---- */

static int random_factor(program_chance *c, int n)
{
    int factor = 0;

    do {
        factor = program_between(c, 1, n);
    } while (n % factor != 0);
    return factor;
}

static void draw_mesh(program_builder *b, int world_size)
{
    static const char *const orders[][3] = {{"replicate", "shard", "tp"},
                                            {"shard", "tp", "replicate"},
                                            {"tp", "shard", "more"},
                                            {"data", "model", "shard"},
                                            {"nodes", "x", "y"}};
    program *p = b->p;
    const char *const *order = orders[program_pick(&b->chance, 5)];
    int rest = world_size;

    p->axis_count = program_between(&b->chance, 1, 3);
    p->tp_axis = -1;
    for (int i = 0; i < p->axis_count; i++) {
        const int size = i + 1 == p->axis_count ? rest : random_factor(&b->chance, rest);

        p->axes[i] = (tsr_mesh_axis){order[i], size};
        rest /= size;
    }
    b->tp_size = 1;
    if (program_is_on(b, PROGRAM_ON_TP) || program_is_on(b, PROGRAM_ON_MOVES)) {
        p->tp_axis = program_pick(&b->chance, p->axis_count);
        b->tp_size = p->axes[p->tp_axis].size;
    }
}

/* ---- pieces of the stream ---- */

static program_arg residual(program_builder *b, int module, program_arg h, program_arg t)
{
    const program_arg in[] = {h, t};

    return program_once(&b->chance, 3) ? t : program_emit(b, module, PROGRAM_ADD, 0.0, in, 2);
}

static program_arg draw_linear(program_builder *b, int module, program_arg x, int64_t out,
                               int64_t in, bool plain)
{
    program_arg args[3] = {x};
    const bool bias = program_once(&b->chance, 3);

    args[1] = program_matrix(b, module, out, in, plain);
    if (bias) {
        args[2] = plain ? (program_arg){true, program_add_param(b, module, out, 0, 0.0, 0.25)}
                        : program_vector(b, module, out, 0.0);
    }
    return program_emit(b, module, PROGRAM_LINEAR, 0.0, args, bias ? 3 : 2);
}

static program_arg draw_mlp(program_builder *b, int module, program_arg h)
{
    const int64_t dim = b->p->dim;
    const int64_t hidden = program_between(&b->chance, 2, 9);
    program_arg t[2];

    t[0] = draw_linear(b, module, h, hidden, dim, false);
    if (program_once(&b->chance, 2)) {
        t[1] = draw_linear(b, module, h, hidden, dim, false);
        t[0] = program_emit(b, module, PROGRAM_SILU_MUL, 0.0, t, 2);
    } else {
        t[0] = program_emit(b, module, PROGRAM_GELU, 0.0, t, 1);
    }
    return residual(b, module, h, draw_linear(b, module, t[0], dim, hidden, false));
}

static program_arg draw_norm(program_builder *b, int module, program_arg h)
{
    const bool layernorm = program_once(&b->chance, 2);
    program_arg in[3] = {h};

    in[1] = program_vector(b, module, b->p->dim, 1.0);
    if (layernorm) {
        in[2] = program_vector(b, module, b->p->dim, 0.0);
    }
    return program_emit(b, module, layernorm ? PROGRAM_LAYERNORM : PROGRAM_RMSNORM, 0x1p-6, in,
                        layernorm ? 3 : 2);
}

/* Heads that tp divides, kv heads that it divides or that are whole. */
static program_arg draw_attention(program_builder *b, int module, program_arg h)
{
    program_chance *c = &b->chance;
    const int heads = b->tp_size * program_between(c, 1, 2);
    const int kv = program_once(c, 2) ? heads : program_once(c, 2) ? b->tp_size : 1;
    const int64_t d = (int64_t)2 * program_between(c, 1, 2);
    const bool more = program_is_on(b, PROGRAM_ON_MORE);
    program_arg qkv[3];

    for (int i = 0; i < 3; i++) {
        const int count = i == 0 ? heads : kv;

        qkv[i] = draw_linear(b, module, h, count * d, b->p->dim, count % b->tp_size != 0);
        qkv[i] = program_emit(b, module, PROGRAM_SPLIT_HEADS, 0.0, &qkv[i], 1);
        program_last_op(b, module)->number = count;
    }
    for (int i = 0; i < 2 && program_once(c, 2); i++) {
        qkv[i] = program_emit(b, module, PROGRAM_ROPE, 100.0, &qkv[i], 1);
        program_last_op(b, module)->number = more ? program_between(c, 0, 3) : 0;
    }
    qkv[0] = program_emit(b, module, PROGRAM_ATTENTION, 0.0, qkv, 3);
    program_last_op(b, module)->number = more && program_once(c, 2) ? 1 : 0;
    qkv[0] = program_emit(b, module, PROGRAM_MERGE_HEADS, 0.0, qkv, 1);
    return residual(b, module, h, draw_linear(b, module, qkv[0], b->p->dim, heads * d, false));
}

static unsigned some_micros(program_builder *b, bool on)
{
    return on && program_once(&b->chance, 2) ? (unsigned)program_between(&b->chance, 1, 14)
                                             : PROGRAM_ALWAYS;
}

/* tp: an activation there and back; a data axis: made whole, or split again. */
static program_arg draw_move(program_builder *b, int module, program_arg h)
{
    program_chance *c = &b->chance;
    const bool tp = program_is_on(b, PROGRAM_ON_MOVES) &&
                    (!program_is_on(b, PROGRAM_ON_DATA_MOVES) || program_once(c, 2));
    int axis = b->p->tp_axis;
    program_op *op = NULL;
    program_arg out;

    if (!tp) {
        axis = program_pick(c, b->p->axis_count);
    }
    out = program_emit(b, module, PROGRAM_REDISTRIBUTE, 0.0, &h, 1);
    op = program_last_op(b, module);
    op->axis = axis;
    op->micros = some_micros(b, true);
    if (tp ? !program_once(c, 4) : program_once(c, 3)) {
        op->place = (tsr_placement){TSR_SHARD, tp ? program_between(c, 1, 2) : program_pick(c, 2)};
    }
    return out;
}

static program_arg draw_small(program_builder *b, int module, program_arg h)
{
    program_chance *c = &b->chance;
    program_arg in[2] = {h};

    switch (program_pick(c, 5)) {
    case 0:
        return program_emit(b, module, PROGRAM_GELU, 0.0, in, 1);
    case 1:
        return program_emit(b, module, PROGRAM_SCALE, -1.25, in, 1);
    case 2:
        in[1] = (program_arg){true, program_add_param(b, module, b->p->seq + program_pick(c, 2),
                                                      b->p->dim, 0.0, 0.5)};
        return program_emit(b, module, PROGRAM_POSITION, 0.0, in, 2);
    case 3:
        in[1] = h;
        return program_emit(b, module, PROGRAM_SILU_MUL, 0.0, in, 2);
    default:
        if (program_is_on(b, PROGRAM_ON_CUSTOM)) {
            return program_emit(b, module, PROGRAM_CAP, 1.5, in, 1);
        }
        return draw_norm(b, module, h);
    }
}

static program_arg draw_child(program_builder *b, int module, program_arg h, int depth);

static program_arg draw_piece(program_builder *b, // NOLINT(misc-no-recursion): the module tree
                              int module, program_arg h, int depth)
{
    program_chance *c = &b->chance;
    const bool moves =
        program_is_on(b, PROGRAM_ON_MOVES) || program_is_on(b, PROGRAM_ON_DATA_MOVES);

    if (!program_has_room(b, module, 24)) {
        return h;
    }
    if (depth < 2 && (depth == 0 || program_is_on(b, PROGRAM_ON_NESTED)) &&
        b->p->module_count < PROGRAM_MAX_MODULES && program_once(c, 2)) {
        return draw_child(b, module, h, depth + 1);
    }
    if (moves && program_once(c, 3)) {
        h = draw_move(b, module, h);
    }
    if (program_is_on(b, PROGRAM_ON_DROPOUT) && program_once(c, 3)) {
        h = program_emit(b, module, PROGRAM_DROPOUT, 0.25, &h, 1);
    }
    if (program_is_on(b, PROGRAM_ON_ATTENTION) && program_once(c, 3)) {
        return draw_attention(b, module, h);
    }
    if (program_is_on(b, PROGRAM_ON_MORE) && program_once(c, 2)) {
        return program_more(b, module, h);
    }
    switch (program_pick(c, 5)) {
    case 0:
        return draw_mlp(b, module, h);
    case 1:
        return draw_norm(b, module, h);
    case 2:
        return draw_small(b, module, h);
    default:
        return residual(b, module, h, draw_linear(b, module, h, b->p->dim, b->p->dim, false));
    }
}

/* ---- modules ---- */

static const char *const kept[] = {"linear",    "gelu",     "attention",    "rmsnorm",
                                   "layernorm", "silu_mul", "redistribute", "softmax",
                                   "matmul",    "multiply", "slice"};

/* An operation by name that every call of the module runs. */
static bool always_runs(const program_module *m, const char *name)
{
    for (int i = 0; i < m->op_count; i++) {
        if (m->ops[i].micros == PROGRAM_ALWAYS && m->ops[i].kind != PROGRAM_REDISTRIBUTE &&
            strcmp(program_kind_name(m->ops[i].kind), name) == 0) {
            return true;
        }
    }
    return false;
}

static void draw_checkpoint(program_builder *b, int module)
{
    program_chance *c = &b->chance;
    program_module *m = &b->p->modules[module];

    if (!program_is_on(b, PROGRAM_ON_CHECKPOINT) || m->input_count == 0 || program_once(c, 2)) {
        return;
    }
    m->checkpoint = true;
    m->offload = program_is_on(b, PROGRAM_ON_OFFLOAD) && program_once(c, 2);
    for (int i = 0; program_is_on(b, PROGRAM_ON_KEEP) && i < PROGRAM_MAX_KEEP; i++) {
        const char *name = kept[program_pick(c, 11)];

        if (always_runs(m, name) && (m->keep_count == 0 || strcmp(m->keep[0], name) != 0)) {
            m->keep[m->keep_count++] = name;
        }
    }
}

static void draw_levels(program_builder *b, program_module *m)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};
    program_chance *c = &b->chance;
    int count = 0;

    if (!program_is_on(b, PROGRAM_ON_LEVELS) || program_once(c, 4)) {
        m->preset = presets[program_pick(c, 6)];
        return;
    }
    for (int axis = 0; axis < b->p->axis_count; axis++) {
        if (axis != b->p->tp_axis && !program_once(c, 4)) {
            m->unit.levels[count++] =
                (tsr_axis_level){b->p->axes[axis].name, (tsr_level)program_between(c, 1, 4)};
        }
    }
}

/* Parameters kept within groups: of the last of several axes that split them all. */
static void draw_group(program_builder *b, program_module *m)
{
    int axes = 0;
    int last = 0;

    for (int axis = 0; axis < b->p->axis_count; axis++) {
        if (axis != b->p->tp_axis && b->p->axes[axis].size > 1) {
            last = b->p->axes[axis].size;
            axes++;
        }
    }
    if (program_is_on(b, PROGRAM_ON_OPTIONS) && m->preset != NULL &&
        strcmp(m->preset, "fsdp") == 0 && axes > 1 &&
        m->unit.reshard_after_forward != TSR_RESHARD_NEVER && program_once(&b->chance, 2)) {
        m->unit.reshard_group = last;
    }
}

static void draw_unit(program_builder *b, int module)
{
    program_chance *c = &b->chance;
    program_module *m = &b->p->modules[module];

    m->is_unit = module == 0 || program_pick(c, 5) > 1;
    draw_levels(b, m);
    m->unit.param_dtype = b->p->param_dtype;
    m->unit.reduce_dtype = b->p->reduce_dtype;
    if (program_is_on(b, PROGRAM_ON_OPTIONS)) {
        m->unit.reshard_after_forward = (tsr_reshard)program_pick(c, 3);
        m->unit.prefetch_depth = program_pick(c, 4);
        m->unit.backward_prefetch = (tsr_prefetch)program_pick(c, 4);
        m->unit.gradient_divisor = program_once(c, 3) ? 4.0 : 0.0;
    }
    draw_group(b, m);
    if (program_is_on(b, PROGRAM_ON_OFFLOAD)) {
        m->unit.offload_params = program_once(c, 3);
        m->unit.offload_grads = program_once(c, 3);
    }
}

static int add_module(program_builder *b, int parent, int input_count)
{
    const int index = b->p->module_count++;
    program_module *m = &b->p->modules[index];

    *m = (program_module){.parent = parent, .input_count = input_count};
    m->created =
        program_is_on(b, PROGRAM_ON_ORDER) ? program_pick(&b->chance, PROGRAM_MAX_MODULES) : index;
    return index;
}

/* A module that makes a matrix [dim, dim] of parameters, by itself or of one that it is given. */
static program_arg draw_maker(program_builder *b, int module)
{
    const int64_t dim = b->p->dim;
    const bool given = program_is_on(b, PROGRAM_ON_PARAM_INPUT) && program_once(&b->chance, 2);
    program_arg in = given ? program_matrix(b, module, dim, dim, false) : (program_arg){0};
    const int child = add_module(b, module, given ? 1 : 0);
    program_arg args[2] = {{.index = 0}};
    program_arg out;

    b->p->modules[child].makes = true;
    args[given ? 1 : 0] = program_matrix(b, child, dim, dim, false);
    out = program_emit(b, child, given ? PROGRAM_ADD : PROGRAM_GELU, 0.0, args, given ? 2 : 1);
    (void)out;
    draw_unit(b, child);
    draw_checkpoint(b, child);
    out = program_emit(b, module, PROGRAM_CALL, 0.0, &in, given ? 1 : 0);
    program_last_op(b, module)->number = child;
    return out;
}

/* Whether ranks may pass over a module: nothing in it is exchanged over data axes, and no mask
 * depends on how often it was called. */
static bool is_local(const program *p, int module) // NOLINT(misc-no-recursion): the module tree
{
    const program_module *m = &p->modules[module];

    for (int i = 0; i < m->op_count; i++) {
        const program_op *op = &m->ops[i];
        const bool of_params = op->kind != PROGRAM_CALL && op->in[0].is_param;

        if (op->kind == PROGRAM_DROPOUT || of_params ||
            (op->kind == PROGRAM_REDISTRIBUTE && op->axis != p->tp_axis) ||
            (op->kind == PROGRAM_CALL && (op->in_count != 1 || !is_local(p, op->number)))) {
            return false;
        }
    }
    return true;
}

/* What the calls of a child leave out. */
static void draw_call(program_builder *b, int module, int child)
{
    program_op *op = program_last_op(b, module);

    op->number = child;
    op->micros = some_micros(b, program_is_on(b, PROGRAM_ON_SKIP));
    /* The gradient of a value made of parameters would come on some ranks alone; activations of a
     * table split over data axes may be exchanged over them in any module. */
    if (program_is_on(b, PROGRAM_ON_SKIP_RANKS) && !b->moved_table && is_local(b->p, child) &&
        (op->in_count == 1 || op->in[1].is_param) && program_once(&b->chance, 2)) {
        op->passed = (unsigned)program_pick(&b->chance, 256);
    }
}

static program_arg draw_child(program_builder *b, // NOLINT(misc-no-recursion): the module tree
                              int module, program_arg h, int depth)
{
    program_chance *c = &b->chance;
    const bool given = program_is_on(b, PROGRAM_ON_PARAM_INPUT) && program_once(c, 2);
    program_arg in[2] = {h};
    program_arg x = {.index = 0};
    int child = 0;

    if (given) {
        in[1] = program_matrix(b, module, b->p->dim, b->p->dim, false);
    }
    child = add_module(b, module, given ? 2 : 1);
    if (given) {
        const program_arg args[] = {{.index = 0}, {.index = 1}};

        x = program_emit(b, child, PROGRAM_LINEAR, 0.0, args, 2);
    }
    for (int pieces = program_between(c, 1, 3); pieces > 0; pieces--) {
        x = draw_piece(b, child, x, depth);
    }
    if (b->p->modules[child].op_count == 0) {
        (void)draw_norm(b, child, x);
    }
    draw_unit(b, child);
    draw_checkpoint(b, child);
    for (int calls = program_is_on(b, PROGRAM_ON_REUSE) && program_once(c, 2) ? 2 : 1; calls > 0;
         calls--) {
        in[0] = h;
        h = program_emit(b, module, PROGRAM_CALL, 0.0, in, given ? 2 : 1);
        draw_call(b, module, child);
    }
    return h;
}

/* ---- the root ---- */

static program_arg draw_penalty(program_builder *b, program_arg loss, program_arg h)
{
    program_chance *c = &b->chance;
    program_arg in[2] = {loss};

    for (int i = program_between(c, 1, 2); i > 0; i--) {
        if (program_once(c, 4)) {
            in[1] = h;
        } else if (program_once(c, 2)) {
            in[1] = (program_arg){true, program_pick(c, b->p->param_count)};
        } else {
            in[1] = program_matrix(b, 0, b->p->dim, b->p->dim, false);
        }
        in[1] = program_emit(b, 0, PROGRAM_SQUARE_SUM, 0.0625, &in[1], 1);
        in[0] = program_emit(b, 0, PROGRAM_ADD, 0.0, in, 2);
    }
    return in[0];
}

/* Some parameter that every loss depends on is trained. */
static program_arg draw_head(program_builder *b, program_arg h, program_arg table)
{
    program_arg in[3] = {h, table};

    if (!program_is_on(b, PROGRAM_ON_TIED) || program_once(&b->chance, 3)) {
        h = draw_linear(b, 0, h, b->p->vocab, b->p->dim, false);
    } else {
        h = program_emit(b, 0, PROGRAM_LINEAR, 0.0, in, 2);
    }
    for (int i = 0; i < b->p->param_count; i++) {
        if (b->p->params[i].module == 0 && b->p->params[i].shape[0] == b->p->vocab) {
            b->p->params[i].frozen = b->p->params[i].frozen &&
                                     program_is_on(b, PROGRAM_ON_FROZEN) && i == 0 &&
                                     b->p->param_count > 1 && !program_is_on(b, PROGRAM_ON_TIED);
        }
    }
    return h;
}

static void draw_root(program_builder *b)
{
    program *p = b->p;
    const int root = add_module(b, -1, p->loss_inside ? 2 : 1);
    program_arg in[2] = {{.index = 0}};
    program_arg h;

    in[1] = program_matrix(b, root, p->vocab, p->dim, false);
    b->moved_table = !in[1].is_param;
    h = program_emit(b, root, PROGRAM_EMBEDDING, 0.0, in, 2);
    for (int pieces = program_between(&b->chance, 1, 4); pieces > 0; pieces--) {
        h = draw_piece(b, root, h, 0);
    }
    if (program_is_on(b, PROGRAM_ON_PARAM_OPS) && p->module_count < PROGRAM_MAX_MODULES &&
        program_once(&b->chance, 3)) {
        const program_arg args[] = {h, draw_maker(b, root)};

        h = program_emit(b, root, PROGRAM_LINEAR, 0.0, args, 2);
    }
    h = program_once(&b->chance, 4) ? h : draw_norm(b, root, h);
    in[0] = draw_head(b, h, in[1]);
    if (p->loss_inside) {
        in[1] = (program_arg){.index = 1};
        in[0] = program_emit(b, root, PROGRAM_CROSS_ENTROPY, 0.0, in, 2);
    }
    if (program_is_on(b, PROGRAM_ON_PENALTY)) {
        (void)draw_penalty(b, in[0], h);
    }
    draw_unit(b, root);
}

/* ---- steps ---- */

static void draw_places(program_builder *b, tsr_placement *out)
{
    program_chance *c = &b->chance;

    for (int axis = 0; axis < b->p->axis_count; axis++) {
        const bool tp = axis == b->p->tp_axis;

        out[axis] = tp ? (tsr_placement){0} : (tsr_placement){TSR_SHARD, 0};
        if (program_is_on(b, PROGRAM_ON_WHOLE) && !tp && program_once(c, 2)) {
            out[axis] = (tsr_placement){0};
        } else if (program_is_on(b, PROGRAM_ON_SEQ) && program_once(c, 2)) {
            out[axis] = (tsr_placement){TSR_SHARD, 1};
        }
    }
}

static void draw_micros(program_builder *b, program_step *step)
{
    program_chance *c = &b->chance;
    tsr_placement places[PROGRAM_MAX_AXES];

    draw_places(b, places);
    step->micro_count = program_between(c, 1, PROGRAM_MAX_MICRO);
    for (int i = 0; i < step->micro_count; i++) {
        program_micro *m = &step->micro[i];

        m->forwards = program_is_on(b, PROGRAM_ON_TWO_FORWARDS) && program_once(c, 2) ? 2 : 1;
        m->backward = !program_is_on(b, PROGRAM_ON_FORWARD_ONLY) || program_once(c, 2);
        m->reads_loss = program_is_on(b, PROGRAM_ON_READ_LOSS) && program_once(c, 2);
        if (program_is_on(b, PROGRAM_ON_MICRO_PLACES)) {
            draw_places(b, places);
        }
        memcpy(m->ids, places, sizeof(places));
        if (program_is_on(b, PROGRAM_ON_SYNC)) {
            m->unsynced = (unsigned)program_pick(c, 256);
        }
    }
}

static bool trains(const program *p, int module)
{
    for (int i = 0; i < p->param_count; i++) {
        if (p->params[i].module == module && !p->params[i].frozen) {
            return true;
        }
    }
    return false;
}

/* Which modules can be called with activations alone. */
static int pick_alone(program_builder *b)
{
    for (int tries = 0; tries < 8 && b->p->module_count > 1; tries++) {
        const int module = program_between(&b->chance, 1, b->p->module_count - 1);

        if (b->p->modules[module].input_count == 1 && !b->p->modules[module].makes &&
            trains(b->p, module) && b->p->param_dtype == TSR_F32) {
            return module;
        }
    }
    return 0;
}

/* The last reductions: by the last micro-batch, or where the program says, the last with backward.
 */
static void draw_last(program_builder *b, program_step *step, bool defer)
{
    int last = step->micro_count - 1;
    bool explicit_last = program_is_on(b, PROGRAM_ON_LAST) && program_once(&b->chance, 2);

    while (last > 0 && !step->micro[last].backward) {
        last--;
    }
    step->micro[last].backward = true;
    explicit_last = explicit_last || last < step->micro_count - 1;
    for (int i = 0; i < step->micro_count; i++) {
        step->micro[i].last = !explicit_last        ? TSR_LAST_AUTO
                              : i == last && !defer ? TSR_LAST_YES
                                                    : TSR_LAST_NO;
    }
}

static void draw_step(program_builder *b, program_step *step, bool final)
{
    program_chance *c = &b->chance;
    const bool defer = !final && program_is_on(b, PROGRAM_ON_LAST) && program_once(c, 3);
    static const double powers[] = {2.0, 1.0, (double)__builtin_inff()};

    draw_micros(b, step);
    draw_last(b, step, defer);
    step->all_reduce =
        defer || final || !program_is_on(b, PROGRAM_ON_ALL_REDUCE) || program_once(c, 2);
    step->update = step->all_reduce && !defer;
    for (int i = 0; defer && i < step->micro_count; i++) {
        step->micro[i].last = TSR_LAST_NO;
    }
    step->clips = program_is_on(b, PROGRAM_ON_CLIP) ? program_between(c, 0, 2) : 1;
    if (program_is_on(b, PROGRAM_ON_SCALE)) {
        step->clips = program_is_on(b, PROGRAM_ON_TWICE) ? program_between(c, 1, 2) : 1;
    }
    if (program_is_on(b, PROGRAM_ON_UNSHARD) && !final) {
        step->unshard = (unsigned)program_pick(c, 1 << 16);
    }
    if (program_is_on(b, PROGRAM_ON_CLIP)) {
        step->clip.max_norm = program_once(c, 2) ? 0.5 : 0.0;
        step->clip.p = powers[program_pick(c, 3)];
        step->clip.nonfinite = (tsr_nonfinite)program_pick(c, 3);
    }
    if (program_is_on(b, PROGRAM_ON_ALONE)) {
        for (int i = 0; i < step->micro_count; i++) {
            program_micro *m = &step->micro[i];

            m->alone = program_once(c, 2) ? pick_alone(b) : 0;
            m->forwards = m->alone > 0 && program_once(c, 2) ? 0 : m->forwards;
        }
    }
}

static void draw_optimizers(program_builder *b)
{
    program_chance *c = &b->chance;
    program *p = b->p;

    p->lr = 0.03125;
    p->optimizer_count = program_is_on(b, PROGRAM_ON_OPTIMIZERS) && p->param_count > 1 ? 2 : 1;
    for (int k = 0; k < 2; k++) {
        tsr_optimizer_options *o = &p->optimizers[k];

        *o = (tsr_optimizer_options){.kind = program_once(c, 2) ? TSR_SGD : TSR_ADAMW,
                                     .beta1 = 0.75,
                                     .beta2 = 0.875,
                                     .eps = 0.0625,
                                     .weight_decay = program_once(c, 2) ? 0.125 : 0.0};
        if (o->kind == TSR_SGD && program_once(c, 2)) {
            o->momentum = 0.5;
            o->nesterov = program_once(c, 2);
        }
        o->offload = program_is_on(b, PROGRAM_ON_OFFLOAD) && program_once(c, 3);
    }
    for (int i = 0; i < p->param_count; i++) {
        p->params[i].second = i == 0 || program_once(c, 2);
        /* A unit that keeps groups splits rows alone. */
        p->params[i].cols =
            program_is_on(b, PROGRAM_ON_OPTIONS) && p->params[i].ndim == 2 &&
            p->modules[program_unit_of(p, p->params[i].module)].unit.reshard_group == 0 &&
            program_once(c, 4);
    }
    p->params[p->param_count - 1].second = p->param_count == 1;
    p->scaled = program_is_on(b, PROGRAM_ON_SCALE);
    p->scale_init = 64.0;
}

/* Kinds that do not go together. */
static void settle_kinds(program_builder *b)
{
    const uint64_t one = 1;

    if (program_is_on(b, PROGRAM_ON_SKIP_RANKS)) {
        b->on &= ~(one << PROGRAM_ON_WHOLE | one << PROGRAM_ON_SEQ | one << PROGRAM_ON_DATA_MOVES |
                   one << PROGRAM_ON_LABELS);
    }
    if (program_is_on(b, PROGRAM_ON_ATTENTION)) { /* its heads are split over tp alone */
        b->on &= ~(one << PROGRAM_ON_PARAM_MOVES);
    }
    if (program_is_on(b, PROGRAM_ON_SCALE) && !program_is_on(b, PROGRAM_ON_TWICE)) {
        b->on &= ~(one << PROGRAM_ON_OPTIMIZERS);
    }
}

void program_draw(uint64_t seed, int world_size, uint64_t allowed, program *out)
{
    program_builder b = {.p = out, .chance = {tsri_rng_key(seed, (uint64_t)world_size, 3, 0), 0}};
    program_chance *c = &b.chance;

    memset(out, 0, sizeof(*out));
    out->seed = seed;
    for (int i = 0; i < PROGRAM_ON_COUNT; i++) {
        b.on |= (uint64_t)(program_once(c, 3) ? 1 : 0) << i;
    }
    b.on &= allowed;
    settle_kinds(&b);
    draw_mesh(&b, world_size);
    out->batch = program_between(c, 1, 7);
    out->seq = program_between(c, 1, 4);
    out->dim = program_between(c, 3, 8);
    out->vocab = program_between(c, 3, 9);
    out->labels_below = out->vocab < out->dim ? out->vocab : out->dim;
    out->param_dtype = program_is_on(&b, PROGRAM_ON_BF16)  ? TSR_BF16
                       : program_is_on(&b, PROGRAM_ON_F16) ? TSR_F16
                                                           : TSR_F32;
    out->reduce_dtype = program_is_on(&b, PROGRAM_ON_REDUCE) ? TSR_BF16 : TSR_F32;
    out->loss_inside = program_is_on(&b, PROGRAM_ON_PENALTY) || program_once(c, 3);
    draw_root(&b);
    draw_optimizers(&b);
    for (int axis = 0; axis < out->axis_count; axis++) {
        out->labels[axis] =
            axis == out->tp_axis ? (tsr_placement){0} : (tsr_placement){TSR_SHARD, 0};
    }
    if (program_is_on(&b, PROGRAM_ON_LABELS)) {
        draw_places(&b, out->labels);
    }
    out->step_count = program_between(c, 1, PROGRAM_MAX_STEPS);
    for (int i = 0; i < out->step_count; i++) {
        draw_step(&b, &out->steps[i], i + 1 == out->step_count);
    }
}
