/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The module tree: names, ownership, calls.
 *
 * Invariant: a module's path is its parent's path and its own name joined by a dot, and every
 * parameter's full name is its module's path and its short name; both are redone for a whole
 * subtree when it gets a parent. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "nn/nn.h"

enum {
    PATH_BYTES = 256
};

static tsr_status join(const char *parent, const char *name, char *out)
{
    const int n = snprintf(out, PATH_BYTES, "%s%s%s", parent, parent[0] != '\0' ? "." : "", name);

    if (n < 0 || n >= PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "path \"%s.%s\" is longer than %d", parent, name,
                         PATH_BYTES - 1);
    }
    return TSR_OK;
}

/* Recursion follows the module tree, whose depth is the program's own nesting of modules. */
static tsr_status repath(tsr_module *module) // NOLINT(misc-no-recursion)
{
    char text[PATH_BYTES];
    char *path = NULL;

    TSR_TRY(join(module->parent != NULL ? module->parent->path : "", module->name, text));
    TSR_TRY(tsri_strdup(text, &path));
    tsri_free(&module->path);
    module->path = path;
    for (int i = 0; i < module->param_count; i++) {
        TSR_TRY(join(module->path, module->param_names[i], text));
        TSR_TRY(tsri_param_rename(module->params[i], text));
    }
    for (int i = 0; i < module->child_count; i++) {
        TSR_TRY(repath(module->children[i]));
    }
    return TSR_OK;
}

static void forget_all_params(tsr_module *module)
{
    for (tsr_module *m = module; m != NULL; m = m->parent) {
        tsri_free(&m->all_params);
        m->all_count = 0;
    }
}

tsr_status tsr_module_create(tsr_comm *comm, tsr_forward_fn forward, void *self,
                             void (*destroy)(void *self), tsr_module **out)
{
    TSRI_WANT(comm, out);

    tsr_module *module = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*module), &module));
    module->owners = 1;
    TSR_TRY_GOTO(status, tsri_strdup("", &module->name), free_module);
    TSR_TRY_GOTO(status, tsri_strdup("", &module->path), free_name);
    module->comm = tsr_comm_retain(comm);
    module->forward = forward;
    module->self = self;
    module->destroy = destroy;
    *out = module;
    return TSR_OK;
free_name:
    tsri_free(&module->name);
free_module:
    tsri_free(&module);
    return status;
}

tsr_module *tsr_module_retain(tsr_module *module)
{
    TSRI_WANT_OR(module, NULL);
    module->owners++;
    return module;
}

static void forget_keep(tsr_module *module)
{
    for (int i = 0; i < module->checkpoint_keep_count; i++) {
        tsri_free(&module->checkpoint_keep[i]);
    }
    tsri_free(&module->checkpoint_keep);
    module->checkpoint_keep_count = 0;
}

void tsr_module_release(tsr_module **pointer) // NOLINT(misc-no-recursion): the module tree
{
    TSRI_WANT_VOID(pointer);

    tsr_module *module = *pointer;

    *pointer = NULL;
    if (module == NULL || --module->owners > 0) {
        return;
    }
    if (module->hooks != NULL) {
        module->hooks->release(module->hook_context);
    }
    for (int i = 0; i < module->child_count; i++) {
        module->children[i]->parent = NULL;
        tsr_module_release(&module->children[i]);
    }
    for (int i = 0; i < module->param_count; i++) {
        tsri_param_release(&module->params[i]);
        tsri_free(&module->param_names[i]);
    }
    if (module->destroy != NULL) {
        module->destroy(module->self);
    }
    forget_keep(module);
    tsri_free(&module->params);
    tsri_free(&module->param_names);
    tsri_free(&module->children);
    tsri_free(&module->all_params);
    tsri_free(&module->name);
    tsri_free(&module->path);
    tsr_comm_release(&module->comm);
    tsri_free(&module);
}

/* Patterns and paths give these a meaning of their own. */
static bool is_name(const char *name, bool dots)
{
    bool begins = true;

    for (const char *c = name; *c != '\0'; c++) {
        if (*c == '.' ? !dots || begins : strchr("*{},", *c) != NULL || *c <= ' ' || *c == 0x7f) {
            return false;
        }
        begins = *c == '.';
    }
    return !begins;
}

/* Nothing in the tree above has the path that name would get. */
static tsr_status check_path(tsr_module *module, const char *name)
{
    char text[PATH_BYTES];
    char longer[PATH_BYTES];

    TSR_TRY(join("", name, text));
    for (tsr_module *m = module; m != NULL; m = m->parent) {
        if (tsr_module_find(m, text) != NULL) {
            return TSR_RAISE(TSR_ERR_INVALID, "child \"%s\" of module \"%s\": that path is taken",
                             name, module->path);
        }
        TSR_TRY(join(m->name, text, longer));
        memcpy(text, longer, sizeof(text));
    }
    return TSR_OK;
}

static bool name_taken(const tsr_module *module, const char *name)
{
    for (int i = 0; i < module->param_count; i++) {
        if (strcmp(module->param_names[i], name) == 0) {
            return true;
        }
    }
    for (int i = 0; i < module->child_count; i++) {
        if (strcmp(module->children[i]->name, name) == 0) {
            return true;
        }
    }
    return false;
}

tsr_status tsr_module_add_param(tsr_module *module, const char *name, const tsr_param_spec *spec,
                                tsr_param **out)
{
    TSRI_WANT(module, name, spec);

    char text[PATH_BYTES];
    tsr_param *param = NULL;
    char *copy = NULL;
    tsr_status status = TSR_OK;
    int names_capacity = module->param_capacity;

    if (!is_name(name, false) || name_taken(module, name)) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "parameter \"%s\" of module \"%s\": wants a new name without any of "
                         "\".*{},\" and spaces",
                         name, module->path);
    }
    if (module->materialized) {
        return TSR_RAISE(TSR_ERR_STATE, "parameter \"%s\": module \"%s\" is materialised already",
                         name, module->path);
    }
    TSR_TRY(join(module->path, name, text));
    TSR_TRY(
        tsri_grow(&module->param_names, &names_capacity, module->param_count + 1, sizeof(char *)));
    TSR_TRY(tsri_grow(&module->params, &module->param_capacity, module->param_count + 1,
                      sizeof(tsr_param *)));
    TSR_TRY(tsri_strdup(name, &copy));
    TSR_TRY_GOTO(status, tsri_param_create(module->comm, text, spec, &param), free_copy);
    module->param_names[module->param_count] = copy;
    module->params[module->param_count++] = param;
    forget_all_params(module);
    if (out != NULL) {
        *out = param;
    }
    return TSR_OK;
free_copy:
    tsri_free(&copy);
    return status;
}

/* What is true of no tree. The child is then not the parent's to release either. */
static tsr_status check_tree(const tsr_module *module, const char *name, const tsr_module *child)
{
    for (const tsr_module *m = module; m != NULL; m = m->parent) {
        if (m == child) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "child \"%s\" of module \"%s\" is that module%s: a module cannot be "
                             "below itself",
                             name, module->path, m == module ? "" : ", or holds it");
        }
    }
    if (child->parent != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "child \"%s\" of module \"%s\" is already \"%s\" elsewhere: a module has "
                         "one parent; call it twice instead",
                         name, module->path, child->path);
    }
    return TSR_OK;
}

static tsr_status check_child(tsr_module *module, const char *name, const tsr_module *child)
{
    if (!is_name(name, true) || name_taken(module, name)) {
        return TSR_RAISE(
            TSR_ERR_INVALID,
            "child \"%s\" of module \"%s\": wants a new name of words joined by single "
            "dots, without any of \"*{},\" and spaces",
            name, module->path);
    }
    TSR_TRY(check_path(module, name));
    if (child->comm != module->comm) {
        return TSR_RAISE(TSR_ERR_INVALID, "child \"%s\" lies on another comm than module \"%s\"",
                         name, module->path);
    }
    if (module->materialized || child->materialized) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "child \"%s\" of module \"%s\": %s is materialised already; put the tree "
                         "together first",
                         name, module->path, module->materialized ? "the module" : "the child");
    }
    return TSR_OK;
}

static tsr_status add_child(tsr_module *module, const char *name, tsr_module *child)
{
    char *copy = NULL;

    TSR_TRY(check_child(module, name, child));
    TSR_TRY(tsri_grow(&module->children, &module->child_capacity, module->child_count + 1,
                      sizeof(tsr_module *)));
    TSR_TRY(tsri_strdup(name, &copy));
    tsri_free(&child->name);
    child->name = copy;
    return TSR_OK;
}

tsr_status tsr_module_add_child(tsr_module *module, const char *name, tsr_module *child)
{
    TSRI_WANT(child);

    tsr_status status = TSR_OK;

    if (module == NULL || name == NULL) {
        status = TSR_RAISE(TSR_ERR_INVALID, "%s: %s is NULL", __func__,
                           module == NULL ? "module" : "name");
        goto release_child;
    }
    TSR_TRY(check_tree(module, name, child));
    TSR_TRY_GOTO(status, add_child(module, name, child), release_child);
    child->parent = module;
    module->children[module->child_count++] = child;
    forget_all_params(module);
    return repath(child);
release_child:
    tsr_module_release(&child);
    return status;
}

tsr_module *tsr_module_find(tsr_module *module, const char *path) // NOLINT(misc-no-recursion)
{
    TSRI_WANT_OR(module, NULL);
    TSRI_WANT_OR(path, NULL);
    if (path[0] == '\0') {
        return module;
    }
    for (int i = 0; i < module->child_count; i++) {
        tsr_module *child = module->children[i];
        const size_t n = strlen(child->name);

        if (strncmp(path, child->name, n) == 0 && (path[n] == '.' || path[n] == '\0')) {
            tsr_module *found = tsr_module_find(child, path + n + (path[n] == '.' ? 1 : 0));

            if (found != NULL) {
                return found;
            }
        }
    }
    return NULL;
}

tsr_dtensor *tsr_module_value(tsr_module *module, const char *name)
{
    TSRI_WANT_OR(module, NULL);
    TSRI_WANT_OR(name, NULL);
    for (int i = 0; i < module->param_count; i++) {
        if (strcmp(module->param_names[i], name) == 0) {
            return module->params[i]->value;
        }
    }
    return NULL;
}

const char *tsr_module_path(const tsr_module *module)
{
    TSRI_WANT_OR(module, "");
    return module->path;
}

void *tsr_module_self(const tsr_module *module)
{
    TSRI_WANT_OR(module, NULL);
    return module->self;
}

tsr_comm *tsr_module_comm(const tsr_module *module)
{
    TSRI_WANT_OR(module, NULL);
    return module->comm;
}

tsr_status tsri_module_walk(tsr_module *module, // NOLINT(misc-no-recursion): the module tree
                            tsr_status (*visit)(tsr_module *module, void *context), void *context)
{
    TSR_TRY(visit(module, context));
    for (int i = 0; i < module->child_count; i++) {
        TSR_TRY(tsri_module_walk(module->children[i], visit, context));
    }
    return TSR_OK;
}

tsr_module *tsri_module_root(tsr_module *module)
{
    while (module->parent != NULL) {
        module = module->parent;
    }
    return module;
}

typedef struct param_list {
    tsr_param **items;
    int count, capacity;
} param_list;

static tsr_status collect_params(tsr_module *module, void *context)
{
    param_list *list = context;

    TSR_TRY(tsri_grow(&list->items, &list->capacity, list->count + module->param_count,
                      sizeof(tsr_param *)));
    for (int i = 0; i < module->param_count; i++) {
        list->items[list->count++] = module->params[i];
    }
    return TSR_OK;
}

tsr_status tsr_module_params(tsr_module *module, tsr_param *const **out, int *count_out)
{
    TSRI_WANT(module, out, count_out);
    if (module->all_params == NULL) {
        param_list list = {0};
        const tsr_status status = tsri_module_walk(module, collect_params, &list);

        if (status != TSR_OK) {
            tsri_free(&list.items);
            return tsr_error_pass(status, __FILE__, __LINE__, __func__);
        }
        module->all_params = list.items;
        module->all_count = list.count;
    }
    *out = module->all_params;
    *count_out = module->all_count;
    return TSR_OK;
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

    for (int i = 0; i < in_count; i++) {
        inputs[i] = in[i];
        TSR_TRY(cast(module->in_dtype, tape, &inputs[i]));
    }
    if (in_count > 0) {
        TSR_TRY(cross(&module->in_border, tape, &inputs[0]));
    }
    *out = NULL;
    TSR_TRY(
        module->forward(module->self != NULL ? module->self : module, tape, inputs, in_count, out));
    if (*out == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "the forward of module \"%s\" returned without an output",
                         module->path);
    }
    TSR_TRY(cast(module->out_dtype, tape, out));
    TSR_TRY(cross(&module->out_border, tape, out));
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
    if (module->checkpoint) {
        const tsri_part_options options = {.offload = module->checkpoint_offload,
                                           .keep = (const char *const *)module->checkpoint_keep,
                                           .keep_count = module->checkpoint_keep_count};

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
    module->checkpoint = on;
}

void tsr_module_set_checkpoint_offload(tsr_module *module, bool on)
{
    TSRI_WANT_VOID(module);
    module->checkpoint_offload = on;
}

tsr_status tsr_module_set_checkpoint_keep(tsr_module *module, const char *const *ops, int count)
{
    TSRI_WANT(module);
    TSRI_WANT_EACH(ops, count);

    tsr_status status = TSR_OK;

    forget_keep(module);
    TSR_TRY(tsri_alloc((size_t)count, sizeof(char *), &module->checkpoint_keep));
    for (int i = 0; i < count; i++) {
        TSR_TRY_GOTO(status, tsri_strdup(ops[i], &module->checkpoint_keep[i]), forget);
        module->checkpoint_keep_count = i + 1;
    }
    return TSR_OK;
forget:
    forget_keep(module);
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

    TSR_TRY(check_call(module, tape, in_count));
    TSR_TRY(keep_tree(module, tape));
    TSR_TRY(check_step(module, tape));
    TSR_TRY(tsri_tape_enter(tape, module->path));
    module->running = true;
    status = call_hooked(module, tape, in, in_count, &result);
    module->running = false;
    tsri_tape_leave(tape, result);
    if (status != TSR_OK) {
        tsri_step_fail(tape); /* it is half recorded, and its units are half way */
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    *out = result;
    return TSR_OK;
}
