/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file layers.h
 * Ready-made modules: linear, embedding, norms, and modules in sequence.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/module.h"

TSR_BEGIN_DECLS

/** Zero-initialise for defaults. */
typedef struct tsr_linear_options {
    int64_t in, out;        /**< y [..., out] = x [..., in] weight^T + bias. */
    bool bias;              /**< Default: none. */
    double init_std;        /**< Of the weight; 0: 0.02. */
    int64_t group_rows;     /**< Rows that tensor parallel keeps together: a head's; 0: 1. */
    const char *group_name; /**< Static; for messages. */
    bool replicate_groups;  /**< Fewer groups than tp ranks: replicate (kv heads). */
} tsr_linear_options;

/** Local. A linear layer with parameters weight [out, in] and bias [out]. */
TSR_CHECKED tsr_status tsr_linear_create(tsr_comm *comm, const tsr_linear_options *options,
                                         tsr_module **out);

/** Local. A lookup with parameter weight [rows, dim]; its input are ids I32. init_std 0: 0.02. */
TSR_CHECKED tsr_status tsr_embedding_create(tsr_comm *comm, int64_t rows, int64_t dim,
                                            double init_std, tsr_module **out);

/** Local. Learned positions, parameter weight [rows, dim]: adds row t to position t. */
TSR_CHECKED tsr_status tsr_position_create(tsr_comm *comm, int64_t rows, int64_t dim,
                                           double init_std, tsr_module **out);

/** Local. Parameters weight [dim] of ones and bias [dim] of zeros. */
TSR_CHECKED tsr_status tsr_layernorm_create(tsr_comm *comm, int64_t dim, double eps,
                                            tsr_module **out);

/** Local. Parameter weight [dim] of ones. */
TSR_CHECKED tsr_status tsr_rmsnorm_create(tsr_comm *comm, int64_t dim, double eps,
                                          tsr_module **out);

/** Local. A module that runs its children in the order in which they are added: the first gets the
 *  inputs, each other one the output of that before it. */
TSR_CHECKED tsr_status tsr_sequential_create(tsr_comm *comm, tsr_module **out);

TSR_END_DECLS
