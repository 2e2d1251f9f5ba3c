/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tp.h
 * Tensor parallelism: placements of weights on one mesh axis, by module pattern.
 *
 * A plan changes nothing but layouts; the operations' placement rules do the rest. Patterns
 * (module.h) match paths that count from the module which the plan is applied to. The path of a
 * module ("layers.0.attn.q") stands for its own weight and bias, that of a parameter for itself.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/module.h"

TSR_BEGIN_DECLS

typedef enum tsr_tp_kind {
    TSR_TP_DEFAULT = 0,  /**< Column. */
    TSR_TP_COLUMN = 1,   /**< weight Shard(0), bias Shard(0): output features are split. */
    TSR_TP_ROW = 2,      /**< weight Shard(1), bias replicated: input features are split. */
    TSR_TP_VOCAB = 3,    /**< An embedding's weight Shard(0): the vocabulary is split. */
    TSR_TP_REPLICATE = 4 /**< Said to be replicated, so that it is not reported as missed. */
} tsr_tp_kind;

/** How activations lie on the axis where they enter or leave a module. */
typedef enum tsr_tp_border {
    TSR_TP_AS_IS = 0,      /**< As the operations' rules leave them. */
    TSR_TP_REPLICATED = 1, /**< Whole on every rank. */
    TSR_TP_SEQUENCE = 2,   /**< Shard(1): sequence parallel. */
    TSR_TP_FEATURES = 3    /**< Shard of the last dim. */
} tsr_tp_border;

/**
 * What a rule asks of its modules. Sequence parallelism is one border: let the module that begins
 * the residual stream (the embedding, or learned positions) put out TSR_TP_SEQUENCE. Norms and
 * residual sums then work on their part of the sequence, linear layers gather it once and scatter
 * their sums.
 */
typedef struct tsr_tp_style {
    tsr_tp_kind kind;
    tsr_tp_border input; /**< Of the module's first input. */
    tsr_tp_border output;
} tsr_tp_style;

typedef struct tsr_tp_rule {
    const char *pattern;
    tsr_tp_style style;
} tsr_tp_rule;

/**
 * Apply rules[count] to the modules under @p model on the axis called @p axis, which then carries
 * no data. Before tsr_module_materialize and before batches are laid out (tsr_layout_data); before
 * or after units are made. Local; arguments are logically collective. A plan that is refused has
 * changed nothing.
 *
 * @param model  A root, or a module below one: patterns then begin there, so that "attn.q" of a
 *               plan for "layers.0" is "layers.0.attn.q".
 * @retval TSR_ERR_INVALID    no such axis; a pattern that matches nothing (the message names the
 *                            nearest path); a module without parameters; two rules for one thing.
 * @retval TSR_ERR_PLACEMENT  heads that the axis does not divide: the legal sizes are listed.
 * @retval TSR_ERR_STATE      the model is materialised.
 */
TSR_CHECKED tsr_status tsr_tp_apply(tsr_module *model, const char *axis, const tsr_tp_rule *rules,
                                    int count);

TSR_END_DECLS
