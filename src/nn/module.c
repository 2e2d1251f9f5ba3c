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

static tsr_status join_path(const char *parent, const char *name, char *out)
{
    const int n = snprintf(out, PATH_BYTES, "%s%s%s", parent, parent[0] != '\0' ? "." : "", name);

    if (n < 0 || n >= PATH_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID, "path \"%s.%s\" is longer than %d", parent, name,
                         PATH_BYTES - 1);
    }
    return TSR_OK;
}

/* Recursion follows the module tree, whose depth is the program's own nesting of modules. */
tsr_status tsri_module_repath(tsr_module *module) // NOLINT(misc-no-recursion)
{
    char text[PATH_BYTES];
    char *path = NULL;

    TSR_TRY(join_path(module->parent != NULL ? module->parent->path : "", module->name, text));
    TSR_TRY(tsri_strdup(text, &path));
    tsri_free(&module->path);
    module->path = path;
    for (int i = 0; i < module->param_count; i++) {
        TSR_TRY(join_path(module->path, module->param_names[i], text));
        TSR_TRY(tsri_param_rename(module->params[i], text));
    }
    for (int i = 0; i < module->child_count; i++) {
        TSR_TRY(tsri_module_repath(module->children[i]));
    }
    return TSR_OK;
}

void tsri_module_forget_params(tsr_module *module)
{
    for (tsr_module *m = module; m != NULL; m = m->parent) {
        tsri_free(&m->all_params.items);
        m->all_params = (tsri_param_list){0};
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

void tsri_module_forget_keep(tsr_module *module)
{
    for (int i = 0; i < module->recompute.keep_count; i++) {
        tsri_free(&module->recompute.keep[i]);
    }
    tsri_free(&module->recompute.keep);
    module->recompute.keep_count = 0;
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
    if (module->replaced != NULL) {
        module->replaced->in_place = NULL;
        tsr_module_release(&module->replaced);
    }
    if (module->destroy != NULL) {
        module->destroy(module->self);
    }
    tsri_module_forget_keep(module);
    tsri_free(&module->params);
    tsri_free(&module->param_names);
    tsri_free(&module->children);
    tsri_free(&module->all_params.items);
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

    TSR_TRY(join_path("", name, text));
    for (tsr_module *m = module; m != NULL; m = m->parent) {
        if (tsr_module_find(m, text) != NULL) {
            return TSR_RAISE(TSR_ERR_INVALID, "child \"%s\" of module \"%s\": that path is taken",
                             name, module->path);
        }
        TSR_TRY(join_path(m->name, text, longer));
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
    TSR_TRY(join_path(module->path, name, text));
    TSR_TRY(
        tsri_grow(&module->param_names, &names_capacity, module->param_count + 1, sizeof(char *)));
    TSR_TRY(tsri_grow(&module->params, &module->param_capacity, module->param_count + 1,
                      sizeof(tsr_param *)));
    TSR_TRY(tsri_strdup(name, &copy));
    TSR_TRY_GOTO(status, tsri_param_create(module->comm, text, spec, &param), free_copy);
    module->param_names[module->param_count] = copy;
    module->params[module->param_count++] = param;
    tsri_module_forget_params(module);
    if (out != NULL) {
        *out = param;
    }
    return TSR_OK;
free_copy:
    tsri_free(&copy);
    return status;
}

/* What is true of no tree. The child is then not the parent's to release either. */
tsr_status tsri_module_check_parent(const tsr_module *module, const char *name,
                                    const tsr_module *child)
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
    TSR_TRY(tsri_module_check_parent(module, name, child));
    TSR_TRY_GOTO(status, add_child(module, name, child), release_child);
    child->parent = module;
    module->children[module->child_count++] = child;
    tsri_module_forget_params(module);
    return tsri_module_repath(child);
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

static tsr_status collect_params(tsr_module *module, void *context)
{
    tsri_param_list *list = context;

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
    if (module->all_params.items == NULL) {
        tsri_param_list list = {0};
        const tsr_status status = tsri_module_walk(module, collect_params, &list);

        if (status != TSR_OK) {
            tsri_free(&list.items);
            return tsr_error_pass(status, __FILE__, __LINE__, __func__);
        }
        module->all_params = list;
    }
    *out = module->all_params.items;
    *count_out = module->all_params.count;
    return TSR_OK;
}
