/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file nn.h
 * Inside of a module, for tp and fsdp: the tree, and the hooks around forward and backward.
 */
#pragma once

#include "tessera/module.h"

#include "autograd/autograd.h"

/** Called around a module's forward, and when backward enters and leaves it. Markers that
 *  after_forward leaves on the tape are played before backward enters the module. */
typedef struct tsri_module_hooks {
    tsr_status (*before_forward)(void *context, tsr_tape *tape);
    tsr_status (*after_forward)(void *context, tsr_tape *tape);
    tsr_status (*before_backward)(void *context, tsr_tape *tape);
    tsr_status (*after_backward)(void *context, tsr_tape *tape);
    /** Of the root: a checkpointed module below begins or has ended, in both its runs. */
    tsr_status (*part)(void *context, tsr_module *module, tsr_tape *tape, bool leaves);
    void (*release)(void *context); /* with the module */
} tsri_module_hooks;

/** What an activation gets where it enters or leaves a module: a placement on one axis, a type. */
typedef struct tsri_border {
    bool set;
    int axis, dim; /* dim of a Shard; -1: the last */
    tsr_placement_kind kind;
    tsr_dtype dtype; /* of what is floating; 0: as it is */
} tsri_border;

/** Activation checkpointing: backward runs the forward again. */
typedef struct tsri_module_recompute {
    bool on;
    char **keep; /* names of operations that it does not run again; owned */
    int keep_count;
    bool offload; /* the inputs wait for it in host memory */
} tsri_module_recompute;

/** Parameters of a module and of all below it. */
typedef struct tsri_param_list {
    tsr_param **items;
    int count, capacity;
} tsri_param_list;

struct tsr_module { /* lint: a node of the tree, and what runs at it */
    int owners;
    tsr_comm *comm;
    tsr_module *parent;   /* borrowed; NULL for a root */
    tsr_module *in_place; /* called in its place; borrowed; NULL: itself */
    tsr_module *replaced; /* the other way round; owned; NULL: none */
    char *name;           /* relative to the parent */
    char *path;           /* from the root */
    tsr_forward_fn forward;
    void *self;
    void (*destroy)(void *self);
    tsr_param **params;
    char **param_names;
    int param_count, param_capacity;
    tsr_module **children;
    int child_count, child_capacity;
    tsri_param_list all_params;     /* cache of tsr_module_params */
    tsri_border in, out;            /* of the first input (the type: of all), of the output */
    const tsri_module_hooks *hooks; /* NULL: none */
    void *hook_context;
    bool materialized;
    int order;    /* in the model, in order of creation; from materialisation on */
    bool running; /* its forward is under way */
    int in_count; /* inputs that its forward takes; 0: it does not say */
    tsri_module_recompute recompute;
};

/** Call visit(module, context) for module and all below it, parents first, in order of creation. */
tsr_status tsri_module_walk(tsr_module *module,
                            tsr_status (*visit)(tsr_module *module, void *context), void *context);
/** The root above module. */
tsr_module *tsri_module_root(tsr_module *module);

/* ---- what module.c, module_call.c and module_replace.c share ---- */

/** Paths and names of parameters of the subtree, from its parent's path on. */
tsr_status tsri_module_repath(tsr_module *module);
/** The lists of parameters of module and all above it are not what they were. */
void tsri_module_forget_params(tsr_module *module);
void tsri_module_forget_keep(tsr_module *module);
/** What is true of no tree: child, to be called name, is above module, or has a parent. */
tsr_status tsri_module_check_parent(const tsr_module *module, const char *name,
                                    const tsr_module *child);
