/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tp.h
 * Tensor parallelism: placements of weights on one mesh axis, by module pattern.
 *
 * A plan changes nothing but layouts; the operations' placement rules do the rest. Patterns match
 * paths: '*' is one component, '{a,b}' alternatives. The path of a module ("layers.0.attn.q") stands
 * for its own weight and bias, that of a parameter for itself.
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

typedef struct tsr_tp_style {
    tsr_tp_kind kind;
} tsr_tp_style;

typedef struct tsr_tp_rule {
    const char *pattern;
    tsr_tp_style style;
} tsr_tp_rule;

/**
 * Apply rules[count] to the modules under @p model on the axis called @p axis, which then carries
 * no data. Local; arguments are logically collective.
 *
 * @retval TSR_ERR_INVALID    no such axis; a pattern that matches nothing (the message names the
 *                            nearest path); a module without parameters; two rules for one thing.
 * @retval TSR_ERR_PLACEMENT  heads that the axis does not divide: the legal sizes are listed.
 */
TSR_CHECKED tsr_status tsr_tp_apply(tsr_module *model, const char *axis, const tsr_tp_rule *rules,
                                    int count);

TSR_END_DECLS
