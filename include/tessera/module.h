/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file module.h
 * Modules: named trees of parameters with a forward function written with tsr_op_* calls.
 *
 * A module of your own is a struct with whatever its forward needs, a tsr_module made with
 * tsr_module_create, parameters and children. It gets sharding, tensor parallelism and parity for
 * free, and no backward is to be written. A name is the path from the root: "layers.0.attn.q".
 *
 * Patterns over names, wherever one is taken: '*' stands for one component or a part of one, '**'
 * for any number of components, also none ("layers.**" is "layers" and all below it, "**.bias" each
 * bias), '{a,b}' for alternatives; all else for itself.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/op.h"
#include "tessera/param.h"

TSR_BEGIN_DECLS

typedef struct tsr_module tsr_module;

/** Most inputs of a module call. */
#define TSR_MODULE_MAX_IN 4

/**
 * The forward of a module: inputs to one output, by tsr_op_* and tsr_module_call on children.
 *
 * @param self  As given to tsr_module_create; the tsr_module itself where that was NULL.
 * @param in    in_count dtensors, borrowed.
 * @param out   A value of the tape.
 */
typedef tsr_status (*tsr_forward_fn)(void *self, tsr_tape *tape, tsr_dtensor *const *in,
                                     int in_count, tsr_dtensor **out);

/**
 * Create a module on @p comm. Local.
 *
 * @param forward  NULL for a mere container.
 * @param self     Handed to forward and destroy; NULL: forward gets the module itself.
 * @param destroy  Called with self when the last owner goes; may be NULL.
 */
TSR_CHECKED tsr_status tsr_module_create(tsr_comm *comm, tsr_forward_fn forward, void *self,
                                         void (*destroy)(void *self), tsr_module **out);

/** Local. Add an owner; returns @p module. */
TSR_API tsr_module *tsr_module_retain(tsr_module *module);

/** Local. Drop one owner and set *module to NULL; it may be NULL. Children are released with it. */
TSR_API void tsr_module_release(tsr_module **module);

/**
 * Local. Create a parameter of @p module. The module owns it; *out is borrowed and may be NULL.
 *
 * @retval TSR_ERR_INVALID  name empty, taken, or with one of ".*{}," or a space; a shape that is
 *                          not 1 to 4 dims; a mean or deviation that cannot be meant.
 * @retval TSR_ERR_STATE    the module is materialised.
 */
TSR_CHECKED tsr_status tsr_module_add_param(tsr_module *module, const char *name,
                                            const tsr_param_spec *spec, tsr_param **out);

/**
 * Local. Make @p child a child called @p name ("attn", or "layers.0" for the member of a list). The
 * parent takes over the caller's ownership, also on failure; but a child that has a parent, or that
 * is or holds @p module, stays as it is.
 *
 * @retval TSR_ERR_INVALID  name taken, no words joined by single dots, or with one of "*{}," or a
 *                          space; a child that has a parent, holds @p module, or lies on another
 *                          comm.
 * @retval TSR_ERR_STATE    one of the two is materialised.
 */
TSR_CHECKED tsr_status tsr_module_add_child(tsr_module *module, const char *name,
                                            tsr_module *child);

/**
 * Local. Put @p child in the place of the child of @p module called @p name: an adapter, say,
 * around a linear layer. Before tp plans, units and materialisation, which know names and
 * parameters of the tree as it then is.
 *
 * Whoever calls the child that was there (the parent's forward, through a pointer of its own) calls
 * @p child from now on; but within the forward of @p child it is itself. So a wrapper takes it as a
 * child of its own and calls it:
 *
 *     tsr_module_replace_child(attn, "q", adapter, &q);
 *     tsr_module_add_child(adapter, "base", q);         now layers.0.attn.q.base
 *
 * @param child    Taken over from the caller, also on failure, as by tsr_module_add_child.
 * @param old_out  Receives the child that was there, with the parent's ownership; NULL: it is
 *                 released.
 * @retval TSR_ERR_INVALID  no child of that name (the message names the nearest); a @p child that
 *                          has a parent, holds @p module, stands for another one already, or lies
 *                          on another comm.
 * @retval TSR_ERR_STATE    one of the two is materialised, or what was there is a unit or holds
 *                          one.
 */
TSR_CHECKED tsr_status tsr_module_replace_child(tsr_module *module, const char *name,
                                                tsr_module *child, tsr_module **old_out);

/** Local. The descendant at the relative path @p path, or NULL. Borrowed. */
TSR_API tsr_module *tsr_module_find(tsr_module *module, const char *path);

/** Local. The value of the module's own parameter called @p name, or NULL. Borrowed. */
TSR_API tsr_dtensor *tsr_module_value(tsr_module *module, const char *name);

/** Local. Path from the root; "" for the root. Borrowed. */
TSR_API const char *tsr_module_path(const tsr_module *module);

/** Local. The self pointer given at creation. */
TSR_API void *tsr_module_self(const tsr_module *module);

/** Local. The comm; borrowed. */
TSR_API tsr_comm *tsr_module_comm(const tsr_module *module);

/** Local. All parameters of the tree in order of creation, each once; borrowed until it changes. */
TSR_CHECKED tsr_status tsr_module_params(tsr_module *module, tsr_param *const **out,
                                         int *count_out);

/**
 * Local. Activation checkpointing: keep the inputs of each call of @p module alone and run its
 * forward again in backward, with the same dropout masks. A unit's parameters are not gathered
 * again for it.
 *
 * Chen et al., "Training deep nets with sublinear memory cost", 2016.
 */
TSR_API void tsr_module_set_checkpoint(tsr_module *module, bool on);

/**
 * Local. Where @p module is checkpointed, let the inputs that it keeps wait for backward in host
 * memory: they are copied there behind its forward, and back while backward is in the checkpointed
 * module that comes before it in backward. An input that something else keeps (an operation's
 * backward, a caller's own handle) stays where it is. An input that was moved has no memory until
 * then: an operation that reads it again brings it back, but tsr_dtensor_read does not.
 */
TSR_API void tsr_module_set_checkpoint_offload(tsr_module *module, bool on);

/**
 * Local. Where @p module is checkpointed, keep the results of the operations of these names
 * ("linear", "attention", "redistribute" where the program itself asks for it, or a custom
 * operation's) instead of running them again; memory for time. Replaces what was named before;
 * 0: none. Names are copied.
 *
 * TSR_ERR_INVALID at the first call: the module runs no operation of that name.
 */
TSR_CHECKED tsr_status tsr_module_set_checkpoint_keep(tsr_module *module, const char *const *ops,
                                                      int count);

/**
 * Run the module's forward. Collective over the mesh.
 *
 * The step keeps the module's tree alive until it ends. A forward that fails fails the step:
 * nothing but tsr_step_end is legal then.
 *
 * @param in   in_count (<= TSR_MODULE_MAX_IN) dtensors.
 * @param out  A value of the tape.
 * @retval TSR_ERR_INVALID  another number of inputs than a ready-made module takes; a forward that
 *                          returns without an output; a tape of another comm; a mere container.
 * @retval TSR_ERR_STATE    the module's own forward is under way.
 */
TSR_CHECKED tsr_status tsr_module_call(tsr_module *module, tsr_tape *tape, tsr_dtensor *const *in,
                                       int in_count, tsr_dtensor **out);

TSR_END_DECLS
