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

/** A placement that an activation gets on one axis where it enters or leaves a module. */
typedef struct tsri_border {
    bool set;
    int axis, dim; /* dim of a Shard; -1: the last */
    tsr_placement_kind kind;
} tsri_border;

struct tsr_module {
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
    tsr_param **all_params; /* cache of tsr_module_params */
    int all_count;
    tsri_border in_border, out_border; /* of the first input; of the output */
    tsr_dtype in_dtype, out_dtype;  /* what floating inputs and the output are cast to; 0: as is */
    const tsri_module_hooks *hooks; /* NULL: none */
    void *hook_context;
    bool materialized;
    int order;              /* in the model, in order of creation; from materialisation on */
    bool running;           /* its forward is under way */
    int in_count;           /* inputs that its forward takes; 0: it does not say */
    bool checkpoint;        /* backward runs the forward again */
    char **checkpoint_keep; /* names of operations that it does not run again; owned */
    int checkpoint_keep_count;
    bool checkpoint_offload; /* and the inputs wait for it in host memory */
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
