/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tape_backward.c
 * Playing gradients backward.
 *
 * Nodes are visited in reverse order; when one is reached, all contributions to its output's
 * gradient have arrived. They wait in the layouts in which they came (one accumulator per layout),
 * so that Partial contributions are added up before the one reduction that the node may need. A
 * gradient's memory may be shared (an addition hands the same bytes to both inputs), hence nothing
 * is written in place that has a second owner. What a node holds goes as soon as it has run.
 */
#include "autograd_priv.h"

/* Where the kernel's result for one input goes. */
typedef enum target_kind {
    TARGET_NONE,   /* no gradient wanted */
    TARGET_DIRECT, /* written or added where it belongs */
    TARGET_OWNED   /* a dtensor of its own, to be delivered */
} target_kind;

static bool is_unique(const tsr_dtensor *tensor)
{
    return tensor->owners == 1 && tensor->storage != NULL && tensor->storage->owners == 1 &&
           tensor->storage->arena != NULL;
}

/* sum (+)= more, both of one layout: takes over both owners and gives one. */
static tsr_status add_owned(tsri_op_call *call, tsr_dtensor *sum, tsr_dtensor *more,
                            tsr_dtensor **out)
{
    tsr_status status = TSR_OK;
    tsr_dtensor *target = NULL;

    if (is_unique(sum)) {
        TSR_TRY_GOTO(status, tsri_op_scale_into(call->comm, call->path, more, 1.0F, true, sum),
                     release_both);
        tsr_dtensor_release(&more);
        *out = sum;
        return TSR_OK;
    }
    if (is_unique(more)) {
        TSR_TRY_GOTO(status, tsri_op_scale_into(call->comm, call->path, sum, 1.0F, true, more),
                     release_both);
        tsr_dtensor_release(&sum);
        *out = more;
        return TSR_OK;
    }
    TSR_TRY_GOTO(status,
                 tsri_op_acquire(call, &sum->layout, sum->dtype, TSRI_MEM_ACTIVATION, &target),
                 release_both);
    {
        tsri_call launch = tsri_op_call_begin(call);
        const tsrk_add args = {.a = tsri_in(&launch, sum),
                               .b = tsri_in(&launch, more),
                               .y = tsri_out(&launch, target),
                               .n = sum->local_count,
                               .a_type = sum->dtype,
                               .b_type = more->dtype,
                               .y_type = target->dtype};

        TSR_TRY_GOTO(status, TSRI_LAUNCH(&launch, ADD, &args), release_target);
    }
    tsr_dtensor_release(&sum);
    tsr_dtensor_release(&more);
    *out = target;
    return TSR_OK;
release_target:
    tsr_dtensor_release(&target);
release_both:
    tsr_dtensor_release(&sum);
    tsr_dtensor_release(&more);
    return status;
}

/* grad in layout to; takes over the owner of grad. */
static tsr_status convert_owned(tsri_op_call *call, tsr_dtensor *grad, const tsr_layout *to,
                                tsr_dtensor **out)
{
    tsr_status status = TSR_OK;

    if (tsr_layout_equal(&grad->layout, to)) {
        *out = grad;
        return TSR_OK;
    }
    TSR_TRY_GOTO(status, tsri_tape_insert(call->tape, call->path, call->def->name, true, grad, to),
                 release_grad);
    TSR_TRY_GOTO(
        status, tsri_redistribute(grad, to, &(tsri_redistribute_options){.label = call->path}, out),
        release_grad);
release_grad:
    tsr_dtensor_release(&grad);
    return status;
}

tsr_status tsri_node_contribute(tsri_node *node, tsr_dtensor *grad)
{
    tsri_op_call *call = &node->call;

    for (int i = 0; i < node->grad_count; i++) {
        if (tsr_layout_equal(&node->grad[i]->layout, &grad->layout)) {
            tsr_dtensor *sum = node->grad[i];

            node->grad[i] = node->grad[--node->grad_count];
            TSR_TRY(add_owned(call, sum, grad, &sum));
            node->grad[node->grad_count++] = sum;
            return TSR_OK;
        }
    }
    if (node->grad_count == TSRI_NODE_MAX_GRADS) {
        tsr_dtensor *sum = node->grad[0];

        TSR_TRY(convert_owned(call, grad, &call->grad_want, &grad));
        node->grad[0] = node->grad[--node->grad_count];
        {
            const tsr_status status = convert_owned(call, sum, &call->grad_want, &sum);

            if (status != TSR_OK) {
                tsr_dtensor_release(&grad);
                return tsr_error_pass(status, __FILE__, __LINE__, __func__);
            }
        }
        TSR_TRY(add_owned(call, sum, grad, &grad));
        TSR_TRY(tsri_node_contribute(node, grad));
        return TSR_OK;
    }
    node->grad[node->grad_count++] = grad;
    return TSR_OK;
}

/* ---- parameters ---- */

/* The layout and type in which param's sum takes what arrives in layout. */
static tsr_status param_layout(tsr_param *param, const tsr_layout *layout, tsr_layout *out,
                               tsr_dtype *dtype_out)
{
    *out = *layout;
    *dtype_out = TSR_F32;
    if (param->sink != NULL && param->sink->place != NULL) {
        TSR_TRY(param->sink->place(param->sink_context, param, layout, out, dtype_out));
    }
    return TSR_OK;
}

static tsr_status param_target(tsri_op_call *call, tsr_param *param, const tsr_layout *layout,
                               tsr_dtensor **out, bool *accumulate_out)
{
    char where[TSRI_WHERE_BYTES];

    if (param->sink == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "%s: nothing takes the gradient of parameter %s",
                         tsri_op_where(call, where, sizeof(where)), param->name);
    }
    TSR_TRY(param->sink->destination(param->sink_context, param, layout, out, accumulate_out));
    if (*out != NULL && (*out)->local_count != param->value->local_count) {
        return TSR_RAISE(TSR_ERR_INTERNAL,
                         "%s: gradient of parameter %s has %lld elements, not %lld",
                         tsri_op_where(call, where, sizeof(where)), param->name,
                         (long long)(*out)->local_count, (long long)param->value->local_count);
    }
    return TSR_OK;
}

/* ---- one operation ---- */

static tsr_dtensor *find_grad(tsri_node *node, const tsr_layout *layout)
{
    for (int i = 0; i < node->grad_count; i++) {
        if (tsr_layout_equal(&node->grad[i]->layout, layout) && is_unique(node->grad[i])) {
            return node->grad[i];
        }
    }
    return NULL;
}

/* Another input of this call comes from the same node: each then writes memory of its own. */
static bool source_repeats(const tsri_node *node, int i)
{
    for (int j = 0; j < node->call.in_count; j++) {
        if (j != i && node->source[j] == node->source[i] && node->call.needs_grad[j]) {
            return true;
        }
    }
    return false;
}

/* tensor's memory as the gradient of input i: the type fits, and nobody else looks at it. */
static bool can_write_over(const tsri_op_call *call, int i, const tsr_dtensor *tensor)
{
    return tensor != NULL && is_unique(tensor) && tensor->dtype == call->in_dtype[i] &&
           tsr_layout_equal(&tensor->layout, &call->grad_layout[i]);
}

static tsr_status choose_target(tsr_tape *tape, tsri_node *node, int i, target_kind *kind)
{
    tsri_op_call *call = &node->call;
    const unsigned bit = 1U << i;
    const tsr_layout *layout = &call->grad_layout[i];
    tsr_dtensor *reuse = NULL;

    if (node->param[i] != NULL && (call->def->no_accumulate & bit) == 0) {
        tsr_dtype dtype = TSR_F32;
        tsr_layout sum;

        TSR_TRY(param_layout(node->param[i], layout, &sum, &dtype));
        if (tsr_layout_equal(layout, &sum) &&
            (dtype == call->in_dtype[i] || (call->def->typed_grad & bit) != 0)) {
            TSR_TRY(
                param_target(call, node->param[i], layout, &call->din[i], &call->accumulate[i]));
            *kind = call->din[i] != NULL ? TARGET_DIRECT : TARGET_NONE;
            return TSR_OK;
        }
    }
    if (node->param[i] == NULL && (call->def->no_accumulate & bit) == 0 &&
        !source_repeats(node, i)) {
        reuse = find_grad(tape->frame->nodes[node->source[i]], layout);
    }
    if (reuse != NULL) {
        call->din[i] = reuse;
        call->accumulate[i] = true;
        *kind = TARGET_DIRECT;
        return TSR_OK;
    }
    *kind = TARGET_OWNED;
    if ((call->def->over_grad & bit) != 0 && can_write_over(call, i, call->dout)) {
        call->din[i] = tsr_dtensor_retain(call->dout);
    } else if ((call->def->over_in & bit) != 0 && can_write_over(call, i, call->in[i])) {
        call->din[i] = tsr_dtensor_retain(call->in[i]);
    } else {
        TSR_TRY(
            tsri_op_acquire(call, layout, call->in_dtype[i], TSRI_MEM_ACTIVATION, &call->din[i]));
    }
    return TSR_OK;
}

/* What a whole gradient that is to be a term of the sum counts for on this rank: it is taken from
 * the ranks of index 0 on the axes where the sum is Partial. */
static float term_factor(const tsri_op_call *call, const tsr_layout *whole, const tsr_layout *sum)
{
    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (sum->place[axis].kind == TSR_PARTIAL && whole->place[axis].kind != TSR_PARTIAL &&
            tsr_comm_coord(call->comm, axis) != 0) {
            return 0.0F;
        }
    }
    return 1.0F;
}

/* grad (its owner is taken over) as the sum of layout sum takes it, but for the axes on which the
 * sum is Partial and grad is whole. A reduction is made in the sum's type. */
static tsr_status bring_owned(tsri_op_call *call, tsr_dtensor *grad, const tsr_layout *sum,
                              tsr_dtype dtype, tsr_dtensor **out)
{
    tsr_layout to = *sum;
    tsr_dtensor *typed = NULL;
    tsr_status status = TSR_OK;

    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        if (sum->place[axis].kind == TSR_PARTIAL && grad->layout.place[axis].kind != TSR_PARTIAL) {
            to.place[axis] = tsri_replicate();
        }
    }
    if (!tsr_layout_equal(&grad->layout, &to) && grad->dtype != dtype) {
        TSR_TRY_GOTO(
            status, tsri_op_acquire(call, &grad->layout, dtype, TSRI_MEM_ACTIVATION, &typed), fail);
        TSR_TRY_GOTO(status, tsri_op_scale_into(call->comm, call->path, grad, 1.0F, false, typed),
                     fail);
        tsr_dtensor_release(&grad);
        grad = typed;
    }
    TSR_TRY(convert_owned(call, grad, &to, out));
    return TSR_OK;
fail:
    tsr_dtensor_release(&typed);
    tsr_dtensor_release(&grad);
    return status;
}

/* Takes over the owner of grad. */
static tsr_status deliver_to_param(tsri_op_call *call, tsr_param *param, tsr_dtensor *grad)
{
    tsr_dtensor *dest = NULL;
    bool accumulate = false;
    tsr_dtype dtype = TSR_F32;
    tsr_layout sum;
    tsr_status status = TSR_OK;

    TSR_TRY_GOTO(status, param_layout(param, &grad->layout, &sum, &dtype), release_grad);
    TSR_TRY_GOTO(status, param_target(call, param, &sum, &dest, &accumulate), release_grad);
    if (dest == NULL) {
        goto release_grad;
    }
    status = bring_owned(call, grad, &sum, dest->dtype, &grad);
    if (status != TSR_OK) {
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    TSR_TRY_GOTO(status,
                 tsri_op_scale_into(call->comm, call->path, grad,
                                    term_factor(call, &grad->layout, &sum), accumulate, dest),
                 release_grad);
release_grad:
    tsr_dtensor_release(&grad);
    return status;
}

tsr_status tsri_node_deliver(tsr_tape *tape, tsri_node *node, int i, tsr_dtensor *grad)
{
    if (node->param[i] == NULL) {
        TSR_TRY(tsri_node_contribute(tape->frame->nodes[node->source[i]], grad));
    } else {
        TSR_TRY(deliver_to_param(&node->call, node->param[i], grad));
    }
    return TSR_OK;
}

/* The operation's backward for call->dout; the results go where they belong. */
static tsr_status run_backward(tsr_tape *tape, tsri_node *node)
{
    tsri_op_call *call = &node->call;
    target_kind kind[TSRI_OP_MAX_IN] = {TARGET_NONE};
    tsr_status status = TSR_OK;

    for (int i = 0; i < call->in_count; i++) {
        call->din[i] = NULL;
        call->accumulate[i] = false;
    }
    for (int i = 0; i < call->in_count; i++) {
        if (!call->needs_grad[i]) {
            continue;
        }
        if ((call->def->makes_grad & (1U << i)) != 0) {
            kind[i] = TARGET_OWNED;
        } else {
            TSR_TRY_GOTO(status, choose_target(tape, node, i, &kind[i]), release_owned);
        }
    }
    TSR_TRY_GOTO(status, tsri_op_check_params(call, call->keep_in), release_owned);
    TSR_TRY_GOTO(status, call->def->backward(call), release_owned);
    for (int i = 0; i < call->in_count; i++) {
        if (kind[i] == TARGET_OWNED && call->din[i] != NULL) {
            tsr_dtensor *grad = call->din[i];

            kind[i] = TARGET_NONE;
            TSR_TRY_GOTO(status, tsri_node_deliver(tape, node, i, grad), release_owned);
        }
    }
release_owned:
    for (int i = 0; i < call->in_count; i++) {
        if (kind[i] == TARGET_OWNED) {
            tsr_dtensor_release(&call->din[i]);
        }
        call->din[i] = NULL;
    }
    return status;
}

/* Backward of node is the same linear map on all ranks of axis: it takes terms of a gradient as
 * well as the whole. Between parameters alone terms are handed on, so that they are reduced once,
 * with the parameters' other gradients, and ranks to which no gradient came are not waited for. */
static bool takes_terms(const tsri_node *node, int axis)
{
    const tsri_op_call *call = &node->call;
    bool alike = node->of_params && (tsri_comm_sum_axes(call->comm) >> axis & 1U) != 0;

    for (int i = 0; i < call->in_count; i++) {
        alike = alike && call->in_layout[i].place[axis].kind == TSR_REPLICATE;
    }
    return call->out_layout.place[axis].kind == TSR_REPLICATE && (call->def->linear || alike);
}

/* What node wants of one gradient: Partial may stay where it takes terms. */
static tsr_layout want_of(const tsri_node *node, const tsr_dtensor *grad)
{
    tsr_layout want = node->call.grad_want;

    for (int axis = 0; axis < tsri_rule_axes(&node->call); axis++) {
        if (grad->layout.place[axis].kind == TSR_PARTIAL && takes_terms(node, axis)) {
            want.place[axis] = tsri_partial();
        }
    }
    return want;
}

/* The next gradient to play through node: where terms are handed on each as it came, else the sum
 * of all in the layout that the operation wants. */
static tsr_status take_grad(tsri_node *node, tsr_dtensor **out)
{
    tsri_op_call *call = &node->call;
    const bool one_by_one = call->def->linear || node->of_params;
    tsr_dtensor *sum = node->grad[--node->grad_count];
    const tsr_layout want = one_by_one ? want_of(node, sum) : call->grad_want;

    TSR_TRY(convert_owned(call, sum, &want, &sum));
    while (!one_by_one && node->grad_count > 0) {
        tsr_dtensor *more = node->grad[--node->grad_count];
        const tsr_status status = convert_owned(call, more, &want, &more);

        if (status != TSR_OK) {
            tsr_dtensor_release(&sum);
            return tsr_error_pass(status, __FILE__, __LINE__, __func__);
        }
        TSR_TRY(add_owned(call, sum, more, &sum));
    }
    *out = sum;
    return TSR_OK;
}

/* Of terms come terms. */
static void let_terms_pass(tsri_node *node)
{
    tsri_op_call *call = &node->call;

    for (int axis = 0; axis < tsri_rule_axes(call); axis++) {
        const bool terms = call->dout->layout.place[axis].kind == TSR_PARTIAL;

        for (int i = 0; node->of_params && i < call->in_count; i++) {
            tsr_placement *place = &call->grad_layout[i].place[axis];

            if (takes_terms(node, axis) && !call->def->linear && place->kind != TSR_SHARD) {
                *place = terms ? tsri_partial() : tsri_replicate();
            }
        }
    }
}

static tsr_status play(tsr_tape *tape, tsri_node *node)
{
    if (node->marker != NULL) {
        TSR_TRY(node->marker(node->marker_context, tape));
        return TSR_OK;
    }
    if (node->checkpoint != NULL) {
        TSR_TRY(tsri_checkpoint_play(tape, node));
        return TSR_OK;
    }
    while (node->grad_count > 0) {
        TSR_TRY(take_grad(node, &node->call.dout));
        let_terms_pass(node);
        TSR_TRY(run_backward(tape, node));
        tsr_dtensor_release(&node->call.dout);
    }
    return TSR_OK;
}

tsr_status tsri_tape_play(tsr_tape *tape, int floor)
{
    while (tape->frame->node_count > floor) {
        tsri_node *node = tape->frame->nodes[tape->frame->node_count - 1];

        TSR_TRY(play(tape, node));
        tsri_node_clear(node);
        tsri_free(&node);
        tape->frame->node_count--;
    }
    return TSR_OK;
}

/* ---- the loss ---- */

/* Whether this rank may have left out all that has a gradient, where others have not. */
static bool may_lack_gradient(const tsr_tape *tape)
{
    return tape->frame->passed_over ||
           (tsri_comm_splits_data(tape->comm) && tape->frame->node_count > 0);
}

/* Goes to the frame of loss. */
static tsr_status check_loss(tsr_tape *tape, const tsr_dtensor *loss)
{
    TSR_TRY(tsri_dtensor_check(loss, "backward"));
    TSR_TRY(tsri_step_check_backward(tape));
    if (!tsri_frame_of(tape, loss) && loss->needs_grad && loss->param == NULL) {
        return TSR_RAISE(
            TSR_ERR_STATE,
            "backward of a loss whose micro-batch is not in flight: it has been played, "
            "or another one took its place (tsr_tape_set_in_flight)");
    }
    if (loss->layout.ndim != 0 || loss->dtype != TSR_F32) {
        return TSR_RAISE(TSR_ERR_SHAPE, "backward of %d dims of %s, wants an f32 scalar",
                         loss->layout.ndim, tsr_dtype_name(loss->dtype));
    }
    if (tsri_tape_node_of(tape, loss) < 0 && !may_lack_gradient(tape)) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "backward of a loss that this micro-batch did not make from anything "
                         "that has a gradient");
    }
    return TSR_OK;
}

static void release_loss(void *object)
{
    tsr_dtensor *loss = object;

    tsr_dtensor_release(&loss);
}

static tsr_status backward(tsr_tape *tape, tsr_dtensor *loss)
{
    const int at = tsri_tape_node_of(tape, loss); /* below 0: it is made of what has no gradient */

    /* Programs read it after backward. */
    TSR_TRY(tsri_tape_keep(tape, tsr_dtensor_retain(loss), release_loss));
    TSR_TRY(tsri_loss_add(tape, loss));
    if (at >= 0) {
        TSR_TRY(tsri_node_contribute(tape->frame->nodes[at], tsr_dtensor_retain(tape->one)));
    } else {
        TSR_TRY(tsri_facts_ungraded(tape));
    }
    tsri_tape_drop_holds(tape);
    TSR_TRY(tsri_tape_play(tape, 0));
    TSR_TRY(tsri_tape_tell_played(tape));
    if (tsri_tape_is_last(tape)) {
        TSR_TRY(tsri_facts_compare(tape));
    }
    return TSR_OK;
}

tsr_status tsr_backward(tsr_tape *tape, tsr_dtensor *loss)
{
    TSRI_WANT(tape, loss);

    tsr_status status = TSR_OK;

    TSR_TRY(check_loss(tape, loss));
    tsri_step_backward(tape);
    TSR_TRY_GOTO(status, backward(tape, loss), mark_failed);
    tsri_step_played(tape, tsri_frame_played(tape));
    return TSR_OK;
mark_failed:
    tsri_frame_drop(tape, tape->frame);
    tsri_step_fail(tape);
    return status;
}
