/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file checkpoint.c
 * Activation checkpointing: a part of the forward pass that backward runs again.
 *
 * The first run records one node for the whole part, which keeps the inputs. When backward reaches
 * it, the part's nodes are recorded on top of the tape, behind one leaf per input that collects the
 * input's gradient; they are played down to the leaves, whose gradients then go on as those of the
 * node's inputs. Parts nest. Counters of dropout calls are put back for the second run.
 */
#include "autograd_priv.h"

#include <string.h>

/* Neither is ever applied: they name nodes in messages. */
static const tsri_op_def op_checkpoint = {.name = "checkpoint"};
static const tsri_op_def op_leaf = {.name = "checkpoint input"};

void tsri_checkpoint_free(tsri_checkpoint **checkpoint)
{
    if (*checkpoint != NULL) {
        tsri_offload_forget(*checkpoint);
        tsri_keep_forget(*checkpoint);
        tsri_free(&(*checkpoint)->counters);
        tsri_free(checkpoint);
    }
}

bool tsri_tape_in_recompute(const tsr_tape *tape)
{
    return tape->frame->recomputing;
}

/* ---- first run ---- */

static tsr_status copy_counters(const tsr_tape *tape, tsri_checkpoint *checkpoint)
{
    TSR_TRY(tsri_alloc((size_t)tape->frame->counter_count, sizeof(tape->frame->counters[0]),
                       &checkpoint->counters));
    checkpoint->counter_count = tape->frame->counter_count;
    if (tape->frame->counter_count > 0) {
        memcpy(checkpoint->counters, tape->frame->counters,
               (size_t)tape->frame->counter_count * sizeof(tape->frame->counters[0]));
    }
    return TSR_OK;
}

/* The part's result as a value that the node made: a view where it was there before. */
static tsr_status own_result(tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                             tsr_dtensor *result, tsr_dtensor **out)
{
    bool is_old = result->node >= 0 || result->param != NULL;

    for (int i = 0; i < in_count; i++) {
        is_old = is_old || in[i] == result;
    }
    if (is_old) {
        TSR_TRY(tsri_dtensor_view(result, &result->layout, 0, out));
        TSR_TRY(tsri_tape_hold(tape, *out, NULL, tape->frame->depth));
        return TSR_OK;
    }
    *out = result;
    return TSR_OK;
}

static void fill_call(tsr_tape *tape, const tsri_op_def *def, const char *path,
                      const tsr_dtensor *out, tsri_op_call *call)
{
    *call = (tsri_op_call){.def = def,
                           .tape = tape,
                           .comm = tape->comm,
                           .path = path,
                           .out_layout = out->layout,
                           .out_dtype = out->dtype,
                           .grad_want = tsri_rule_whole(&out->layout)};
}

/* Make out the result of a new node at the end of the tape. */
static tsr_status push_node(tsr_tape *tape, const tsri_op_def *def, const char *path,
                            tsr_dtensor *out, tsri_node **node_out)
{
    tsri_node *node = NULL;
    int index = 0;

    TSR_TRY(tsri_tape_node(tape, &node, &index));
    fill_call(tape, def, path, out, &node->call);
    node->out = out;
    out->node = index;
    out->node_output = 0;
    out->tape_epoch = tape->frame->epoch;
    out->needs_grad = true;
    *node_out = node;
    return TSR_OK;
}

static tsr_status record_part(tsr_tape *tape, tsri_checkpoint **checkpoint, tsr_dtensor *const *in,
                              int in_count, tsr_dtensor *out)
{
    tsri_node *node = NULL;

    TSR_TRY(push_node(tape, &op_checkpoint, tsri_tape_path(tape), out, &node));
    node->call.in_count = in_count;
    node->of_params = tsri_tape_is_of_params(tape, in, in_count);
    for (int i = 0; i < in_count; i++) {
        node->call.in[i] = tsr_dtensor_retain(in[i]);
        node->call.needs_grad[i] = in[i]->needs_grad;
        node->source[i] = in[i]->needs_grad && in[i]->param == NULL ? in[i]->node : -1;
        node->param[i] = in[i]->param != NULL ? tsri_param_retain(in[i]->param) : NULL;
    }
    node->checkpoint = *checkpoint;
    *checkpoint = NULL;
    return TSR_OK;
}

static tsr_status check_inputs(const tsr_tape *tape, tsr_dtensor *const *in, int in_count)
{
    TSR_TRY(tsri_step_check_forward(tape, "checkpoint"));
    if (in_count < 1 || in_count > TSRI_OP_MAX_IN) {
        return TSR_RAISE(TSR_ERR_INVALID, "checkpoint in \"%s\": %d inputs, wants 1 to %d",
                         tsri_tape_path(tape), in_count, TSRI_OP_MAX_IN);
    }
    for (int i = 0; i < in_count; i++) {
        if (in[i]->needs_grad && in[i]->param == NULL && tsri_tape_node_of(tape, in[i]) < 0) {
            return TSR_RAISE(TSR_ERR_STATE,
                             "checkpoint in \"%s\": input %d was made before this micro-batch",
                             tsri_tape_path(tape), i);
        }
    }
    return TSR_OK;
}

static tsr_status run_first(tsr_tape *tape, tsri_checkpoint *checkpoint, tsr_dtensor *const *in,
                            int in_count, tsr_dtensor **out)
{
    tsr_dtensor *result = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_tape_enter(tape, tsri_tape_path(tape)));
    checkpoint->depth = tape->frame->depth;
    tape->frame->no_grad = true;
    tape->frame->keeping = checkpoint;
    status = checkpoint->part(checkpoint->context, tape, in, in_count, &result);
    tape->frame->keeping = NULL;
    tape->frame->no_grad = false;
    tsri_tape_leave(tape, status == TSR_OK ? result : NULL);
    TSR_TRY(status);
    TSR_TRY(tsri_keep_check(checkpoint, tsri_tape_path(tape), false));
    TSR_TRY(own_result(tape, in, in_count, result, out));
    return TSR_OK;
}

tsr_status tsri_tape_checkpoint(tsr_tape *tape, tsri_part_fn part, void *context,
                                tsr_dtensor *const *in, int in_count,
                                const tsri_part_options *options, tsr_dtensor **out)
{
    tsri_checkpoint *checkpoint = NULL;
    tsr_dtensor *result = NULL;
    tsr_status status = TSR_OK;

    if (tape->frame->no_grad) {
        TSR_TRY(part(context, tape, in, in_count, out));
        return TSR_OK;
    }
    TSR_TRY(check_inputs(tape, in, in_count));
    TSR_TRY(tsri_alloc(1, sizeof(*checkpoint), &checkpoint));
    checkpoint->part = part;
    checkpoint->context = context;
    if (options != NULL) {
        checkpoint->options = *options;
    }
    TSR_TRY_GOTO(status, copy_counters(tape, checkpoint), fail);
    TSR_TRY_GOTO(status, run_first(tape, checkpoint, in, in_count, &result), fail);
    TSR_TRY_GOTO(status, record_part(tape, &checkpoint, in, in_count, result), fail);
    if (options != NULL && options->offload) {
        TSR_TRY_GOTO(status,
                     tsri_offload_inputs(tape, tape->frame->nodes[tape->frame->node_count - 1]),
                     fail);
    }
    *out = result;
    return TSR_OK;
fail:
    tsri_checkpoint_free(&checkpoint);
    tsri_step_fail(tape);
    return status;
}

/* ---- second run ---- */

/* The inputs as values of leaves on top of the tape, owned by the caller. Those without a gradient
 * have no node. */
static tsr_status push_leaves(tsr_tape *tape, const tsri_node *node, tsr_dtensor **leaf,
                              bool *has_node)
{
    for (int i = 0; i < node->call.in_count; i++) {
        tsri_node *leaf_node = NULL;
        tsr_dtensor *in = node->call.in[i];

        if (in->param != NULL) {
            leaf[i] = tsr_dtensor_retain(in);
            continue;
        }
        TSR_TRY(tsri_dtensor_view(in, &in->layout, 0, &leaf[i]));
        if (node->call.needs_grad[i]) {
            TSR_TRY(push_node(tape, &op_leaf, node->call.path, leaf[i], &leaf_node));
            leaf_node->of_params =
                node->source[i] >= 0 && tape->frame->nodes[node->source[i]]->of_params;
            has_node[i] = true;
        }
    }
    return TSR_OK;
}

static void swap_counters(tsr_tape *tape, tsri_checkpoint *checkpoint)
{
    tsri_call_counter *counters = tape->frame->counters;
    const int count = tape->frame->counter_count;

    tape->frame->counters = checkpoint->counters;
    tape->frame->counter_count = checkpoint->counter_count;
    tape->frame->counter_capacity = checkpoint->counter_count;
    checkpoint->counters = counters;
    checkpoint->counter_count = count;
}

static tsr_status run_again(tsr_tape *tape, tsri_node *node, tsr_dtensor *const *in,
                            tsr_dtensor **out)
{
    tsri_checkpoint *checkpoint = node->checkpoint;
    const bool nested = tape->frame->recomputing;
    tsri_checkpoint *outer = tape->frame->replaying;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_tape_enter(tape, node->call.path));
    swap_counters(tape, checkpoint);
    tape->frame->recomputing = true;
    tape->frame->replaying = checkpoint;
    status = checkpoint->part(checkpoint->context, tape, in, node->call.in_count, out);
    tape->frame->replaying = outer;
    tape->frame->recomputing = nested;
    swap_counters(tape, checkpoint);
    TSR_TRY(status);
    TSR_TRY(tsri_keep_check(checkpoint, node->call.path, true));
    return TSR_OK;
}

/* The node's gradients to the maker of the part's new result. */
static tsr_status hand_over(tsr_tape *tape, tsri_node *node, const tsr_dtensor *result)
{
    const int maker = tsri_tape_node_of(tape, result);

    while (node->grad_count > 0) {
        tsr_dtensor *grad = node->grad[--node->grad_count];

        if (maker < 0) {
            tsr_dtensor_release(&grad);
        } else {
            TSR_TRY(tsri_node_contribute(tape->frame->nodes[maker], grad));
        }
    }
    return TSR_OK;
}

/* What the leaves collected, to the node's own inputs. */
static tsr_status collect(tsr_tape *tape, tsri_node *node, const bool *has_node)
{
    for (int i = node->call.in_count - 1; i >= 0; i--) {
        tsri_node *top = tape->frame->nodes[tape->frame->node_count - 1];

        if (!has_node[i]) {
            continue;
        }
        while (top->grad_count > 0) {
            TSR_TRY(tsri_node_deliver(tape, node, i, top->grad[--top->grad_count]));
        }
        tsri_node_clear(top);
        tsri_free(&top);
        tape->frame->node_count--;
    }
    return TSR_OK;
}

tsr_status tsri_checkpoint_play(tsr_tape *tape, tsri_node *node)
{
    tsr_dtensor *leaf[TSRI_OP_MAX_IN] = {NULL};
    bool has_node[TSRI_OP_MAX_IN] = {false};
    tsr_dtensor *result = NULL;
    tsr_status status = TSR_OK;
    int floor = 0;

    TSR_TRY(tsri_offload_return(tape, node));
    if (node->grad_count == 0 && !node->checkpoint->has_markers) {
        return TSR_OK;
    }
    TSR_TRY_GOTO(status, push_leaves(tape, node, leaf, has_node), release_leaves);
    floor = tape->frame->node_count;
    TSR_TRY_GOTO(status, run_again(tape, node, leaf, &result), release_leaves);
    TSR_TRY_GOTO(status, hand_over(tape, node, result), release_leaves);
    tsri_tape_drop_holds(tape);
    TSR_TRY_GOTO(status, tsri_tape_play(tape, floor), release_leaves);
    TSR_TRY_GOTO(status, collect(tape, node, has_node), release_leaves);
release_leaves:
    for (int i = 0; i < node->call.in_count; i++) {
        tsr_dtensor_release(&leaf[i]);
    }
    return status;
}

bool tsri_tape_in_part(const tsr_tape *tape)
{
    return tape->frame->keeping != NULL;
}
