/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Another child in the place of one: adapters, quantised layers.
 *
 * The tree holds the successor; the child that was there is told of it (in_place) and kept alive by
 * it (replaced), since the parent's forward may call it by a pointer of its own. */
#include "base/base.h"

#include <string.h>

#include "nn/nn.h"

static int find_child(const tsr_module *module, const char *name)
{
    for (int i = 0; i < module->child_count; i++) {
        if (strcmp(module->children[i]->name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static tsr_status no_child(const tsr_module *module, const char *name)
{
    const char *nearest = NULL;
    int least = 0;

    for (int i = 0; i < module->child_count; i++) {
        const int distance = tsri_edit_distance(name, module->children[i]->name);

        if (nearest == NULL || distance < least) {
            nearest = module->children[i]->name;
            least = distance;
        }
    }
    return TSR_RAISE(TSR_ERR_INVALID, "module \"%s\" has no child \"%s\"%s%s%s", module->path, name,
                     nearest != NULL ? "; the nearest is \"" : " and no other",
                     nearest != NULL ? nearest : "", nearest != NULL ? "\"" : "");
}

static tsr_status refuse_unit(tsr_module *module, void *context)
{
    if (module->hooks != NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "child \"%s\" is to be replaced, but \"%s\" is a unit: replace children "
                         "before units are made",
                         (const char *)context, module->path);
    }
    return TSR_OK;
}

static tsr_status check_replace(tsr_module *module, const char *name, tsr_module *child, int at)
{
    tsr_module *old = at >= 0 ? module->children[at] : NULL;

    if (old == NULL) {
        return no_child(module, name);
    }
    if (child->comm != module->comm || child->replaced != NULL) {
        return TSR_RAISE(
            TSR_ERR_INVALID, "child \"%s\" of module \"%s\": its successor %s", name, module->path,
            child->replaced != NULL ? "has replaced another one already" : "lies on another comm");
    }
    if (module->materialized || child->materialized) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "child \"%s\" of module \"%s\" is to be replaced, but %s is materialised "
                         "already",
                         name, module->path, module->materialized ? "the module" : "its successor");
    }
    TSR_TRY(tsri_module_walk(old, refuse_unit, (void *)old->path));
    for (tsr_module *m = module; m != NULL; m = m->parent) {
        if (m->hooks != NULL) { /* it has taken the parameters below */
            TSR_TRY(refuse_unit(m, (void *)old->path));
        }
    }
    return TSR_OK;
}

/* The old child has no parent any more, and the parent's ownership goes to the caller. */
static tsr_status replace(tsr_module *module, int at, tsr_module *child, tsr_module **old_out)
{
    tsr_module *old = module->children[at];
    char *name = NULL;
    char *none = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_strdup(old->name, &name));
    TSR_TRY_GOTO(status, tsri_strdup("", &none), free_name);
    tsri_module_forget_params(module);
    tsri_free(&child->name);
    child->name = name;
    tsri_free(&old->name);
    old->name = none;
    old->parent = NULL;
    child->parent = module;
    child->replaced = tsr_module_retain(old);
    old->in_place = child;
    module->children[at] = child;
    *old_out = old;
    return TSR_OK;
free_name:
    tsri_free(&name);
    return status;
}

tsr_status tsr_module_replace_child(tsr_module *module, const char *name, tsr_module *child,
                                    tsr_module **old_out)
{
    TSRI_WANT(child);

    tsr_module *old = NULL;
    tsr_status status = TSR_OK;
    int at = -1;

    if (module == NULL || name == NULL) {
        status = TSR_RAISE(TSR_ERR_INVALID, "%s: %s is NULL", __func__,
                           module == NULL ? "module" : "name");
        goto release_child;
    }
    TSR_TRY(tsri_module_check_parent(module, name, child));
    at = find_child(module, name);
    TSR_TRY_GOTO(status, check_replace(module, name, child, at), release_child);
    TSR_TRY_GOTO(status, replace(module, at, child, &old), release_child);
    status = tsri_module_repath(old);
    if (old_out != NULL) {
        *old_out = old;
    } else {
        tsr_module_release(&old);
    }
    TSR_TRY(status);
    TSR_TRY(tsri_module_repath(child));
    return TSR_OK;
release_child:
    tsr_module_release(&child);
    return status;
}
