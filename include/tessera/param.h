/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file param.h
 * Parameters: what they are called, how they are shaped, initialised and placed.
 *
 * A parameter exists by shape alone until tsr_module_materialize() gives each rank its own piece.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/dtensor.h"

TSR_BEGIN_DECLS

typedef struct tsr_param tsr_param;

/** Most dims of a parameter. */
#define TSR_PARAM_MAX_DIMS 4

/** Zero-initialise for defaults. */
typedef struct tsr_param_spec {
    int64_t shape[TSR_MAX_DIMS]; /**< Global; [out, in] for a linear weight. */
    int ndim;                    /**< 1 to TSR_PARAM_MAX_DIMS; dims 0 and 1 can be split. */
    double init_mean;            /**< Every element, or the mean of a normal. */
    double init_std;             /**< 0: constant init_mean. */
    bool frozen;                 /**< Not trained: no gradient, no optimizer state. */
    int64_t group_rows;          /**< Rows that tensor parallel keeps together (a head); 0: 1. */
    const char *group_name;      /**< What such a group is called in messages; static. */
    bool replicate_groups;       /**< Where fewer groups than tp ranks: replicate (kv heads). */
} tsr_param_spec;

/** Local. Full name, "layers.0.attn.q.weight"; borrowed. */
TSR_API const char *tsr_param_name(const tsr_param *param);

/** Local. The value that operations take: a dtensor in the compute layout; borrowed. */
TSR_API tsr_dtensor *tsr_param_value(const tsr_param *param);

/** Local. Global elements. */
TSR_API int64_t tsr_param_count(const tsr_param *param);

/** Local. As created. */
TSR_API const tsr_param_spec *tsr_param_get_spec(const tsr_param *param);

TSR_END_DECLS
