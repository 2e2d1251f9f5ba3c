/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Calling a module.
 *
 *   hooks (fsdp's unit) | checkpointing | casts and borders | the module's own forward
 *
 * each around the next; backward meets them in the opposite order, by markers on the tape. What has
 * replaced a module is called in its place. */
#include "base/base.h"

#include <stdio.h>

#include "nn/nn.h"

/* What a call of module runs: what has replaced it, but within that it is itself. */
static tsr_module *called(tsr_module *module)
{
    while (module->in_place != NULL && !module->in_place->running) {
        module = module->in_place;
    }
    return module;
}

static tsr_status backward_enters(void *context, tsr_tape *tape)
{
    const tsr_module *module = context;

    TSR_TRY(module->hooks->before_backward(module->hook_context, tape));
    return TSR_OK;
}

static tsr_status backward_leaves(void *context, tsr_tape *tape)
{
    const tsr_module *module = context;

    TSR_TRY(module->hooks->after_backward(module->hook_context, tape));
    return TSR_OK;
}

/* x in the placement that border asks for. */
static tsr_status cross(const tsri_border *border, tsr_tape *tape, tsr_dtensor **x)
{
    tsr_layout layout;

    if (!border->set) {
        return TSR_OK;
    }
    layout = *tsr_dtensor_layout(*x);
    layout.place[border->axis] = (tsr_placement){
        border->kind,
        border->dim >= 0 || border->kind != TSR_SHARD ? border->dim : layout.ndim - 1};
    TSR_TRY(tsr_op_redistribute(tape, *x, &layout, x));
    return TSR_OK;
}

/* x in the type that the module asks for; token ids stay. */
static tsr_status cast(tsr_dtype dtype, tsr_tape *tape, tsr_dtensor **x)
{
    const tsr_dtype has = tsr_dtensor_dtype(*x);

    if (dtype != TSR_DTYPE_DEFAULT && (has == TSR_F32 || has == TSR_BF16 || has == TSR_F16)) {
        TSR_TRY(tsr_op_cast(tape, *x, dtype, x));
    }
    return TSR_OK;
}

/* The module's forward between its borders; what checkpointing runs twice. */
static tsr_status run_forward(void *context, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                              tsr_dtensor **out)
{
    tsr_module *module = context;
    tsr_dtensor *inputs[TSR_MODULE_MAX_IN];
    tsr_status status = TSR_OK;

    for (int i = 0; i < in_count; i++) {
        inputs[i] = in[i];
        TSR_TRY(cast(module->in.dtype, tape, &inputs[i]));
    }
    if (in_count > 0) {
        TSR_TRY(cross(&module->in, tape, &inputs[0]));
    }
    *out = NULL;
    module->running = true;
    status =
        module->forward(module->self != NULL ? module->self : module, tape, inputs, in_count, out);
    module->running = false;
    TSR_TRY(status);
    if (*out == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "the forward of module \"%s\" returned without an output",
                         module->path);
    }
    TSR_TRY(cast(module->out.dtype, tape, out));
    TSR_TRY(cross(&module->out, tape, out));
    return TSR_OK;
}

static tsr_status tell_root(tsr_module *module, tsr_tape *tape, bool leaves)
{
    const tsr_module *root = tsri_module_root(module);

    if (root->hooks != NULL) {
        TSR_TRY(root->hooks->part(root->hook_context, module, tape, leaves));
    }
    return TSR_OK;
}

static tsr_status run_part(void *context, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                           tsr_dtensor **out)
{
    if (tsri_tape_in_recompute(tape) && !tsri_tape_no_grad(tape)) {
        TSR_TRY(tell_root(context, tape, false)); /* again */
    }
    TSR_TRY(run_forward(context, tape, in, in_count, out));
    TSR_TRY(tell_root(context, tape, true));
    return TSR_OK;
}

/* Why module may not run now. */
static tsr_status check_step(const tsr_module *module, const tsr_tape *tape)
{
    char where[192];

    (void)snprintf(where, sizeof(where), "module \"%s\"", module->path);
    TSR_TRY(tsri_step_check_forward(tape, where));
    return TSR_OK;
}

static tsr_status call_hooked(tsr_module *module, tsr_tape *tape, tsr_dtensor *const *in,
                              int in_count, tsr_dtensor **out)
{
    const tsri_module_hooks *hooks = module->hooks;

    if (hooks != NULL) {
        TSR_TRY(hooks->before_forward(module->hook_context, tape));
        TSR_TRY(tsri_tape_marker(tape, backward_leaves, module));
    }
    if (module->recompute.on) {
        const tsri_part_options options = {.offload = module->recompute.offload,
                                           .keep = (const char *const *)module->recompute.keep,
                                           .keep_count = module->recompute.keep_count};

        /* Before nothing is recorded: what comes first may leave markers. */
        TSR_TRY(tell_root(module, tape, false));
        TSR_TRY(tsri_tape_checkpoint(tape, run_part, module, in, in_count, &options, out));
    } else {
        TSR_TRY(run_forward(module, tape, in, in_count, out));
    }
    if (hooks != NULL) {
        TSR_TRY(hooks->after_forward(module->hook_context, tape));
        TSR_TRY(tsri_tape_marker(tape, backward_enters, module));
    }
    return TSR_OK;
}

void tsr_module_set_checkpoint(tsr_module *module, bool on)
{
    TSRI_WANT_VOID(module);
    module->recompute.on = on;
}

void tsr_module_set_checkpoint_offload(tsr_module *module, bool on)
{
    TSRI_WANT_VOID(module);
    module->recompute.offload = on;
}

tsr_status tsr_module_set_checkpoint_keep(tsr_module *module, const char *const *ops, int count)
{
    TSRI_WANT(module);
    TSRI_WANT_EACH(ops, count);

    tsr_status status = TSR_OK;

    tsri_module_forget_keep(module);
    TSR_TRY(tsri_alloc((size_t)count, sizeof(char *), &module->recompute.keep));
    for (int i = 0; i < count; i++) {
        TSR_TRY_GOTO(status, tsri_strdup(ops[i], &module->recompute.keep[i]), forget);
        module->recompute.keep_count = i + 1;
    }
    return TSR_OK;
forget:
    tsri_module_forget_keep(module);
    return status;
}

static tsr_status check_call(const tsr_module *module, const tsr_tape *tape, int in_count)
{
    if (module->forward == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "module \"%s\" is a container without a forward",
                         module->path);
    }
    if (in_count > TSR_MODULE_MAX_IN) {
        return TSR_RAISE(TSR_ERR_INVALID, "module \"%s\" called with %d inputs, at most %d",
                         module->path, in_count, TSR_MODULE_MAX_IN);
    }
    if (module->in_count > 0 && in_count != module->in_count) {
        return TSR_RAISE(TSR_ERR_INVALID, "module \"%s\" called with %d inputs, wants %d",
                         module->path, in_count, module->in_count);
    }
    if (tsri_tape_comm(tape) != module->comm) {
        return TSR_RAISE(TSR_ERR_INVALID, "module \"%s\" lies on another comm than the tape",
                         module->path);
    }
    if (module->running) {
        return TSR_RAISE(TSR_ERR_STATE, "module \"%s\" is called while its own forward runs",
                         module->path);
    }
    return TSR_OK;
}

static void release_kept(void *object)
{
    tsr_module *module = object;

    tsr_module_release(&module);
}

/* Backward, and what ends the step, come back to the tree: it outlives the program's owner. */
static tsr_status keep_tree(tsr_module *module, tsr_tape *tape)
{
    tsr_module *root = tsri_module_root(module);

    if (tsri_tape_in_step(tape) && !tsri_tape_keeps(tape, root)) {
        TSR_TRY(tsri_tape_keep(tape, tsr_module_retain(root), release_kept));
    }
    return TSR_OK;
}

tsr_status tsr_module_call(tsr_module *module, tsr_tape *tape, tsr_dtensor *const *in, int in_count,
                           tsr_dtensor **out)
{
    TSRI_WANT(module, tape, out);
    TSRI_WANT_EACH(in, in_count);

    tsr_dtensor *result = NULL;
    tsr_status status = TSR_OK;

    module = called(module);
    TSR_TRY(check_call(module, tape, in_count));
    TSR_TRY(keep_tree(module, tape));
    TSR_TRY(check_step(module, tape));
    TSR_TRY(tsri_tape_enter(tape, module->path));
    status = call_hooked(module, tape, in, in_count, &result);
    tsri_tape_leave(tape, result);
    if (status != TSR_OK) {
        tsri_step_fail(tape); /* it is half recorded, and its units are half way */
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    *out = result;
    return TSR_OK;
}
