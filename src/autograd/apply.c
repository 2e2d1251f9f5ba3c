/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file apply.c
 * Running one operation: rule, redistribution of inputs, forward, node.
 *
 * The rule alone decides layouts; here they are made true. A redistribution is itself an operation
 * on the tape, so its gradient needs no special case: backward of a gather is a reduce-scatter
 * because the rules say so.
 */
#include "autograd_priv.h"

#include <string.h>

const char *tsri_where(const char *op, const char *path, char *text, size_t size)
{
    const bool root = path == NULL || path[0] == '\0';

    (void)snprintf(text, size, "%s%s%s", op, root ? "" : " in ", root ? "" : path);
    return text;
}

const char *tsri_op_where(const tsri_op_call *call, char *text, size_t size)
{
    return tsri_where(call->def->name, call->path, text, size);
}

int tsri_tape_node_of(const tsr_tape *tape, const tsr_dtensor *value)
{
    if (value->node < 0 || value->tape_epoch != tape->frame->epoch ||
        value->node >= tape->frame->node_count || tape->frame->nodes[value->node]->out != value) {
        return -1;
    }
    return value->node;
}

tsr_status tsri_op_check_params(const tsri_op_call *call, unsigned mask)
{
    char where[TSRI_WHERE_BYTES];

    for (int i = 0; i < call->in_count; i++) {
        const tsr_dtensor *in = call->in[i];

        if ((mask & (1U << i)) == 0 || in == NULL || in->local_count == 0 ||
            tsri_dtensor_buffer(in) != NULL) {
            continue;
        }
        if (in->param != NULL) {
            return TSR_RAISE(TSR_ERR_STATE,
                             "%s: parameter %s is not gathered: its unit is not running",
                             tsri_op_where(call, where, sizeof(where)), in->param->name);
        }
        return TSR_RAISE(TSR_ERR_STATE, "%s: input %d has no memory",
                         tsri_op_where(call, where, sizeof(where)), i);
    }
    return TSR_OK;
}

/* "gain" of "x, gain, bias", or "input 1". */
static const char *input_name(const tsri_op_def *def, int i, char *text, size_t size)
{
    const char *at = def->inputs;

    if (at == NULL) {
        (void)snprintf(text, size, "input %d", i);
        return text;
    }
    for (; i > 0; i--) {
        at += strcspn(at, ",");
        at += strspn(at, ", ");
    }
    (void)snprintf(text, size, "%.*s", (int)strcspn(at, ","), at);
    return text;
}

static tsr_status check_alive(const tsri_op_call *call, int i)
{
    char where[TSRI_WHERE_BYTES];
    char name[32];
    char text[TSRI_WHERE_BYTES + 40];

    if (!tsri_dtensor_is_stale(call->in[i])) {
        return TSR_OK;
    }
    (void)snprintf(text, sizeof(text), "%s: %s", tsri_op_where(call, where, sizeof(where)),
                   input_name(call->def, i, name, sizeof(name)));
    return tsri_dtensor_check(call->in[i], text);
}

static tsr_status check_inputs(tsri_op_call *call)
{
    tsr_tape *tape = call->tape;
    char where[TSRI_WHERE_BYTES];

    for (int i = 0; i < call->in_count; i++) {
        const tsr_dtensor *in = call->in[i];

        if (in == NULL) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s: input %d is NULL",
                             tsri_op_where(call, where, sizeof(where)), i);
        }
        TSR_TRY(check_alive(call, i));
        if (in->comm != tape->comm) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s: input %d lies on another comm than the tape",
                             tsri_op_where(call, where, sizeof(where)), i);
        }
        if (in->needs_grad && in->param == NULL && !tape->frame->no_grad &&
            tsri_tape_node_of(tape, in) < 0) {
            return TSR_RAISE(TSR_ERR_STATE,
                             "%s: input %d was made before this micro-batch began, its gradient "
                             "is gone",
                             tsri_op_where(call, where, sizeof(where)), i);
        }
        TSR_TRY(tsri_offload_use(tape, in));
    }
    return TSR_OK;
}

/* "f32, bf16 or f16". */
static const char *type_names(unsigned set, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (unsigned t = TSR_F32; t <= TSR_U8; t++) {
        if ((set & TSR_DTYPE_BIT(t)) == 0) {
            continue;
        }
        set &= ~TSR_DTYPE_BIT(t);
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 used == 0                     ? ""
                                 : (set & TSR_DTYPES_ANY) == 0 ? " or "
                                                               : ", ",
                                 tsr_dtype_name((tsr_dtype)t));
    }
    return text;
}

static tsr_status check_types(const tsri_op_call *call)
{
    char where[TSRI_WHERE_BYTES];
    char name[32];
    char first[32];
    char types[64];

    for (int i = 0; i < call->in_count; i++) {
        const tsri_op_def *def = call->def;

        if ((def->takes[i] & TSR_DTYPE_BIT(call->in_dtype[i])) == 0) {
            return TSR_RAISE(
                TSR_ERR_INVALID, "%s: %s is %s, wants %s",
                tsri_op_where(call, where, sizeof(where)), input_name(def, i, name, sizeof(name)),
                tsr_dtype_name(call->in_dtype[i]), type_names(def->takes[i], types, sizeof(types)));
        }
        if ((def->alike & (1U << i)) != 0 && call->in_dtype[i] != call->in_dtype[0]) {
            return TSR_RAISE(
                TSR_ERR_INVALID, "%s: %s is %s, wants %s as %s: tsr_op_cast makes it so",
                tsri_op_where(call, where, sizeof(where)), input_name(def, i, name, sizeof(name)),
                tsr_dtype_name(call->in_dtype[i]), tsr_dtype_name(call->in_dtype[0]),
                input_name(def, 0, first, sizeof(first)));
        }
    }
    return TSR_OK;
}

/* Axes of one rank: inputs as they lie, results plain. */
static void settle_single_axes(tsri_op_call *call)
{
    const tsr_mesh *mesh = tsr_comm_mesh(call->comm);

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if (tsr_mesh_axis_size(mesh, axis) > 1) {
            continue;
        }
        for (int i = 0; i < call->in_count; i++) {
            call->want[i].place[axis] = call->in_layout[i].place[axis];
            call->grad_layout[i].place[axis] = tsri_replicate();
        }
        call->out_layout.place[axis] = tsri_replicate();
        call->grad_want.place[axis] = tsri_replicate();
    }
}

static tsr_status decide(tsri_op_call *call)
{
    for (int i = 0; i < call->in_count; i++) {
        call->in_layout[i] = call->in[i]->layout;
        call->in_dtype[i] = call->in[i]->dtype;
        call->want[i] = call->in_layout[i];
        call->needs_grad[i] = !call->tape->frame->no_grad && call->def->backward != NULL &&
                              call->in[i]->needs_grad &&
                              (TSR_DTYPES_FLOAT & TSR_DTYPE_BIT(call->in_dtype[i])) != 0;
    }
    TSR_TRY(check_types(call));
    call->keep_in = call->def->keep_in;
    TSR_TRY(call->def->rule(call));
    if (call->out_dtype == TSR_DTYPE_DEFAULT) {
        call->out_dtype = call->in_dtype[0];
    }
    if (!call->grad_want_set) {
        call->grad_want = tsri_rule_whole(&call->out_layout);
    }
    for (int i = 0; i < call->in_count; i++) {
        if (call->grad_layout[i].mesh == NULL) {
            call->grad_layout[i] = tsri_rule_whole(&call->want[i]);
        }
    }
    settle_single_axes(call);
    return TSR_OK;
}

/* in[i] in the layout that the rule wants, from what the tape has already if it can be. */
static tsr_status place_input(tsri_op_call *call, int i)
{
    tsr_tape *tape = call->tape;
    tsr_dtensor *copy = NULL;

    if (!tsr_layout_equal(&call->in_layout[i], &call->want[i])) {
        copy = tsri_tape_find_copy(tape, call->in[i], &call->want[i]);
        /* A copy made while nothing was recorded has no gradient. */
        if (copy == NULL || (call->needs_grad[i] && tsri_tape_node_of(tape, copy) < 0)) {
            TSR_TRY(tsri_op_move(tape, call->in[i], &call->want[i], call->def->name, &copy));
        }
        call->in[i] = copy;
    }
    call->in_layout[i] = call->in[i]->layout;
    return TSR_OK;
}

bool tsri_tape_is_of_params(const tsr_tape *tape, tsr_dtensor *const *in, int in_count)
{
    for (int i = 0; i < in_count; i++) {
        const int node = in[i]->param == NULL ? tsri_tape_node_of(tape, in[i]) : -1;

        if (in[i]->param == NULL && (node < 0 || !tape->frame->nodes[node]->of_params)) {
            return false;
        }
    }
    return true;
}

static tsr_status record(tsri_op_call *call)
{
    tsr_tape *tape = call->tape;
    tsri_node *node = NULL;
    int index = 0;

    TSR_TRY(tsri_tape_node(tape, &node, &index));
    node->call = *call;
    node->out = call->out;
    node->of_params = tsri_tape_is_of_params(tape, call->in, call->in_count);
    for (int i = 0; i < call->in_count; i++) {
        tsr_dtensor *in = call->in[i];

        node->source[i] = in->param == NULL && call->needs_grad[i] ? in->node : -1;
        if (in->param != NULL) {
            node->param[i] = tsri_param_retain(in->param);
        }
        node->call.in[i] = (call->keep_in & (1U << i)) != 0 ? tsr_dtensor_retain(in) : NULL;
    }
    node->call.out = call->def->keep_out ? tsr_dtensor_retain(call->out) : NULL;
    call->saved_count = 0; /* the node's now */
    call->out->node = index;
    call->out->node_output = 0;
    call->out->tape_epoch = tape->frame->epoch;
    call->out->needs_grad = true;
    return TSR_OK;
}

/* Whoever holds the parameter's memory learns that it is about to be read. */
static tsr_status use_param(const tsri_op_call *call, int i)
{
    tsr_param *param = call->in[i]->param;

    if (param != NULL && param->sink != NULL && param->sink->use != NULL) {
        TSR_TRY(param->sink->use(param->sink_context, param, call->tape));
    }
    return TSR_OK;
}

static tsr_status run_forward(tsri_op_call *call)
{
    if (!call->def->makes_out) {
        TSR_TRY(tsri_op_acquire(call, &call->out_layout, call->out_dtype, TSRI_MEM_ACTIVATION,
                                &call->out));
    }
    TSR_TRY(call->def->forward(call));
    return TSR_OK;
}

static tsr_status run(tsri_op_call *call)
{
    bool needs_grad = false;
    bool is_kept = false;
    unsigned needed = 0;

    for (int i = 0; i < call->in_count; i++) {
        TSR_TRY(use_param(call, i));
        TSR_TRY(place_input(call, i));
        needs_grad = needs_grad || call->needs_grad[i];
    }
    TSR_TRY(tsri_op_check_params(call, ~0U));
    needed = call->keep_in;
    TSR_TRY(tsri_keep_take(call, &is_kept));
    if (!is_kept) {
        TSR_TRY(run_forward(call));
    }
    TSR_TRY(tsri_keep_result(call, needed));
    if (needs_grad) {
        TSR_TRY(record(call));
    }
    return TSR_OK;
}

static tsr_status apply(tsri_op_call *call, int depth, tsr_dtensor *source, tsr_dtensor **out)
{
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, run(call), release_made);
    for (int i = 0; i < call->saved_count; i++) {
        tsr_dtensor_release(&call->saved[i]);
    }
    *out = call->out;
    TSR_TRY(tsri_tape_hold(call->tape, call->out, source, depth));
    return TSR_OK;
release_made:
    for (int i = 0; i < call->saved_count; i++) {
        tsr_dtensor_release(&call->saved[i]);
    }
    tsr_dtensor_release(&call->out);
    return status;
}

static tsr_status begin_call(tsr_tape *tape, const tsri_op_def *def, tsr_dtensor *const *in,
                             int in_count, tsri_op_call *call)
{
    *call = (tsri_op_call){.def = def,
                           .tape = tape,
                           .comm = tape->comm,
                           .path = tsri_tape_path(tape),
                           .in_count = in_count};
    if (tsri_step_refuses_forward(tape) != NULL) {
        char where[TSRI_WHERE_BYTES];

        TSR_TRY(tsri_step_check_forward(tape, tsri_op_where(call, where, sizeof(where))));
    }
    for (int i = 0; i < in_count; i++) {
        call->in[i] = in[i];
    }
    TSR_TRY(check_inputs(call));
    return TSR_OK;
}

tsr_status tsri_op_apply(tsr_tape *tape, const tsri_op_def *def, tsr_dtensor *const *in,
                         int in_count, const void *attr, size_t attr_bytes, tsr_dtensor **out)
{
    tsri_op_call call;
    tsr_status status = TSR_OK;

    if (in_count < 1 || in_count > TSRI_OP_MAX_IN || attr_bytes > TSRI_OP_ATTR_BYTES) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "%s: %d inputs and %zu bytes of settings", def->name,
                         in_count, attr_bytes);
    }
    TSR_TRY(begin_call(tape, def, in, in_count, &call));
    if (attr_bytes > 0) {
        memcpy(call.attr, attr, attr_bytes);
    }
    TSR_TRY(decide(&call));
    TSR_TRY_GOTO(status, apply(&call, tape->frame->depth, NULL, out), mark_failed);
    return TSR_OK;
mark_failed:
    tsri_step_fail(tape);
    return status;
}

/* ---- redistribution ---- */

/* A layout without shape and mesh, small enough for an operation's settings. */
typedef struct move_attr {
    const char *asked_by;
    unsigned char kind[TSR_MESH_MAX_AXES], dim[TSR_MESH_MAX_AXES], order[TSR_MESH_MAX_AXES];
} move_attr;

static void move_target(const tsri_op_call *call, const tsr_layout *like, tsr_layout *out)
{
    const move_attr *attr = (const move_attr *)(const void *)call->attr;

    *out = *like;
    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        out->place[axis].kind = (tsr_placement_kind)attr->kind[axis];
        out->place[axis].dim = attr->dim[axis];
        out->order[axis] = (signed char)attr->order[axis];
    }
}

static tsr_status move_rule(tsri_op_call *call)
{
    char where[TSRI_WHERE_BYTES];

    move_target(call, &call->want[0], &call->out_layout);
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (call->out_layout.place[axis].kind == TSR_PARTIAL &&
            call->want[0].place[axis].kind != TSR_PARTIAL &&
            tsr_mesh_axis_size(call->out_layout.mesh, axis) > 1) {
            return TSR_RAISE(TSR_ERR_PLACEMENT, "%s: to Partial on axis \"%s\", x is not Partial",
                             tsri_op_where(call, where, sizeof(where)),
                             tsr_mesh_axis_name(call->out_layout.mesh, axis));
        }
    }
    return TSR_OK;
}

static tsr_status move_forward(tsri_op_call *call)
{
    const tsri_redistribute_options options = {.label = call->path};

    TSR_TRY(tsri_redistribute(call->in[0], &call->out_layout, &options, &call->out));
    if (call->out == call->in[0]) {
        tsr_dtensor_release(&call->out);
        TSR_TRY(tsri_dtensor_view(call->in[0], &call->out_layout, 0, &call->out));
    }
    return TSR_OK;
}

/* Where x is Shard the gradient is too (from Partial: a reduce-scatter); where x is Partial it is
 * Replicate; where x is Replicate, Partial may stay. */
static tsr_status move_backward(tsri_op_call *call)
{
    const move_attr *attr = (const move_attr *)(const void *)call->attr;
    tsr_layout to = tsri_rule_whole(&call->in_layout[0]);

    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (call->in_layout[0].place[axis].kind == TSR_REPLICATE &&
            call->dout->layout.place[axis].kind == TSR_PARTIAL) {
            to.place[axis] = tsri_partial();
        }
    }
    if (tsr_layout_equal(&call->dout->layout, &to)) {
        call->din[0] = tsr_dtensor_retain(call->dout);
        return TSR_OK;
    }
    if (attr->asked_by != NULL) {
        TSR_TRY(tsri_tape_insert(call->tape, call->path, attr->asked_by, true, call->dout, &to));
    }
    TSR_TRY(tsri_redistribute(call->dout, &to, &(tsri_redistribute_options){.label = call->path},
                              &call->din[0]));
    return TSR_OK;
}

static const tsri_op_def op_move = {.name = "redistribute",
                                    .rule = move_rule,
                                    .forward = move_forward,
                                    .backward = move_backward,
                                    .takes = {TSR_DTYPES_ANY},
                                    .makes_out = true,
                                    .linear = true,
                                    .makes_grad = 1};

/* Axes on which a move to out_layout communicates: all that change, but from Replicate. */
static unsigned moving_axes(const tsri_op_call *call)
{
    unsigned mask = 0;

    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        const tsr_placement from = call->in_layout[0].place[axis];

        if (from.kind != TSR_REPLICATE && !tsri_place_equal(from, call->out_layout.place[axis]) &&
            tsr_mesh_axis_size(tsr_comm_mesh(call->comm), axis) > 1) {
            mask |= 1U << axis;
        }
    }
    return mask;
}

tsr_status tsri_op_move(tsr_tape *tape, tsr_dtensor *x, const tsr_layout *to, const char *asked_by,
                        tsr_dtensor **out)
{
    move_attr attr = {.asked_by = asked_by};
    tsri_op_call call;
    tsr_status status = TSR_OK;

    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        attr.kind[axis] = (unsigned char)to->place[axis].kind;
        attr.dim[axis] = (unsigned char)to->place[axis].dim;
        attr.order[axis] = (unsigned char)to->order[axis];
    }
    TSR_TRY(begin_call(tape, &op_move, &x, 1, &call));
    call.by_rule = asked_by != NULL;
    memcpy(call.attr, &attr, sizeof(attr));
    TSR_TRY(decide(&call));
    if (asked_by != NULL) {
        TSR_TRY(tsri_tape_insert(tape, call.path, asked_by, false, x, &call.out_layout));
    }
    TSR_TRY_GOTO(status, tsri_tape_meet(tape, moving_axes(&call)), mark_failed);
    /* A parameter's bytes may go away behind the tape's back: its copies are not for others. */
    TSR_TRY_GOTO(status,
                 apply(&call, x->param != NULL ? tape->frame->depth : tsri_tape_copy_depth(tape, x),
                       x->param != NULL ? NULL : x, out),
                 mark_failed);
    return TSR_OK;
mark_failed:
    tsri_step_fail(tape);
    return status;
}
