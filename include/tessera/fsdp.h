/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fsdp.h
 * Fully sharded data parallelism: units, levels per axis, materialisation.
 *
 * A unit is a module whose parameters are gathered and reduced together. For each data axis a level
 * says what is sharded over it: nothing, the optimizer state, also gradients, also parameters.
 *
 * What single units can be told later: unit.h.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/module.h"

TSR_BEGIN_DECLS

/** What is sharded over an axis. Printed as 0 to 3. */
typedef enum tsr_level {
    TSR_LEVEL_DEFAULT = 0,   /**< Parameters on the axis "shard", else replicate. */
    TSR_LEVEL_REPLICATE = 1, /**< 0: nothing. */
    TSR_LEVEL_OPTIM = 2,     /**< 1: optimizer state. */
    TSR_LEVEL_GRADS = 3,     /**< 2: and gradients. */
    TSR_LEVEL_PARAMS = 4     /**< 3: and parameters. */
} tsr_level;

/**
 * In place of an axis's name: which one it is becomes known with the axes that carry data, in
 * tsr_module_materialize. An axis that is named itself is not meant.
 */
#define TSR_AXIS_INNER  "*inner"  /**< "shard" if it carries data, else the last axis that does. */
#define TSR_AXIS_OTHERS "*others" /**< All other axes that carry data. */

typedef struct tsr_axis_level {
    const char *axis; /**< Name, TSR_AXIS_INNER or TSR_AXIS_OTHERS. */
    tsr_level level;
} tsr_axis_level;

/** When a unit's gathered parameters go after its forward. */
typedef enum tsr_reshard {
    TSR_RESHARD_DEFAULT = 0, /**< Always, but not for the last unit: backward needs it next. */
    TSR_RESHARD_ALWAYS = 1,
    TSR_RESHARD_NEVER = 2 /**< Kept until its backward is over. */
} tsr_reshard;

/** When backward gathers the unit that comes next. */
typedef enum tsr_prefetch {
    TSR_PREFETCH_DEFAULT = 0, /**< TSR_PREFETCH_PRE */
    TSR_PREFETCH_PRE = 1,     /**< Before the gradients of the running unit. */
    TSR_PREFETCH_POST = 2,    /**< After them: one unit less is held, less is hidden. */
    TSR_PREFETCH_NONE = 3     /**< When its turn comes. */
} tsr_prefetch;

/** Parameters that match a pattern are split along another dim than 0. */
typedef struct tsr_shard_dim {
    const char *match; /**< Pattern over full names. */
    int dim;           /**< 0 or 1. Along 1 gathers and reductions copy once more. */
} tsr_shard_dim;

/** Zero-initialise for defaults. */
typedef struct tsr_fsdp_options {
    tsr_axis_level levels[TSR_MESH_MAX_AXES]; /**< Up to the first NULL axis; others default. */
    tsr_dtype param_dtype; /**< Gathered and computed in: f32 (default), bf16 or f16. Inputs of
                                the module that are of another of these types are cast to it. */
    tsr_dtype
        reduce_dtype; /**< Gradients reduced in, likewise; summed up over micro-batches in f32. */
    tsr_dtype output_dtype; /**< The module's output is cast to it; default: as it comes. */
    bool offload_params;    /**< Parameters rest in host memory, and are copied to the device for
                                 each gather. */
    bool offload_grads;     /**< Reduced gradients are copied to host memory. */
    tsr_reshard reshard_after_forward;
    int prefetch_depth; /**< Units gathered ahead, stored plus one: 0 default (1 ahead), 1: none. */
    tsr_prefetch backward_prefetch;
    /** k > 0: after forward keep the parameters split over groups of k ranks, so that backward
     *  gathers within these. k is the product of the last level-3 axes' sizes. */
    int reshard_group;
    /** Patterns over full names of parameters that this unit does not take. A unit around it may
     *  (one of level 0 on all axes trains them as data parallel does); what no unit takes is whole
     *  on every rank and frozen. Borrowed until tsr_fully_shard returns, like shard_dims. */
    const char *const *ignored;
    int ignored_count;
    const tsr_shard_dim *shard_dims;
    int shard_dim_count;
    double gradient_divisor; /**< Gradients are divided by it after the last reduction; 0: by 1. */
} tsr_fsdp_options;

/**
 * Fill options->levels for a preset: "ddp", "zero1", "zero2", "fsdp", "hsdp" or "hfsdp". Local.
 *
 * hsdp and hfsdp take the axis "shard" (or the last data axis) as level 3 and the other data axes
 * as level 0 (hsdp) or 1 (hfsdp). Written are TSR_AXIS_INNER and TSR_AXIS_OTHERS, so tsr_tp_apply,
 * after which an axis carries no data, may come before or after.
 *
 * @retval TSR_ERR_INVALID  unknown preset; the message names the nearest.
 */
TSR_CHECKED tsr_status tsr_fsdp_preset(const tsr_comm *comm, const char *preset,
                                       tsr_fsdp_options *options);

/**
 * Make @p module a unit of its parameters that no unit inside it has taken. Apply bottom-up.
 *
 * Local; options are logically collective.
 *
 * What is legal, and why the rest is not: docs/legal-combinations.md.
 *
 * @param options  NULL for defaults.
 * @retval TSR_ERR_INVALID  an axis that does not exist or is named twice, a pattern without match.
 * @retval TSR_ERR_STATE    the module, or one above it, is a unit already; or it is materialised.
 */
TSR_CHECKED tsr_status tsr_fully_shard(tsr_module *module, const tsr_fsdp_options *options);

/**
 * Freeze the parameters of @p module whose full names match @p pattern: no gradient, no optimizer
 * state; a unit of frozen parameters alone has no gradient memory and no reduction. Local;
 * logically collective.
 *
 * @retval TSR_ERR_INVALID  nothing matches.
 * @retval TSR_ERR_STATE    materialised already.
 */
TSR_CHECKED tsr_status tsr_module_freeze(tsr_module *module, const char *pattern);

/**
 * Allocate this rank's pieces and fill them from @p seed. Parameters that no unit took form a unit
 * of the root with default levels.
 *
 * Collective over the world (communicators are created); @p seed and parameters are compared.
 * Blocks. Each rank computes its own elements alone; every mesh gives the same bits.
 *
 * @retval TSR_ERR_DISAGREE  ranks passed another seed or model.
 * @retval TSR_ERR_INVALID   a unit's levels or groups that the mesh does not have:
 *                           docs/legal-combinations.md.
 * @retval TSR_ERR_REMOTE    another rank failed; the message is its own.
 */
TSR_CHECKED tsr_status tsr_module_materialize(tsr_module *model, uint64_t seed);

/** Which modules become units by themselves. Zero-initialise for defaults. */
typedef struct tsr_auto_wrap_options {
    int64_t min_params;     /**< Elements that no unit below has taken; 0: 1e8. */
    const char *pattern;    /**< Paths that become units, whatever their size; NULL: by size. */
    tsr_fsdp_options units; /**< Of each; its pattern lists must match in every unit. */
} tsr_auto_wrap_options;

/**
 * Make modules under @p model units, bottom-up, as FSDP1's size policy did: each with a forward
 * that holds at least min_params not yet taken; and @p model itself. Local.
 *
 * @param options  NULL for defaults.
 * @param stream  Where units and their sizes are written; NULL: nowhere. One giant unit is warned
 *                about there.
 * @retval TSR_ERR_INVALID  the pattern matches no module.
 */
TSR_CHECKED tsr_status tsr_fsdp_auto_wrap(tsr_module *model, const tsr_auto_wrap_options *options,
                                          FILE *stream);

/* ---- looking ---- */

/** Facts of one unit, for people. */
typedef struct tsr_unit_info {
    const char *path;      /**< Borrowed; "" for the root. */
    int64_t element_count; /**< Global elements. */
    size_t shard_bytes;    /**< f32 at rest on this rank. */
    size_t gathered_bytes; /**< Its slot while it runs; 0: computes from the shard itself. */
    size_t grad_bytes;     /**< f32 gradients on this rank; 0: all frozen. */
    int64_t passed_over;   /**< Forwards in which this rank ran the root but not this unit. */
    int param_count;       /**< Parameters in it. */
    bool shared;           /**< Found in use outside its module: gathered until the root is over. */
} tsr_unit_info;

/** Local. Number of units under @p model; fills infos[capacity], which may be NULL, in order of
 *  creation. */
TSR_API int tsr_fsdp_units(tsr_module *model, tsr_unit_info *infos, int capacity);

/** Local. Write per parameter its placements, per unit its sizes, and every redistribution that
 *  placement rules inserted in the last micro-batch of @p tape, which may be NULL.
 *  TSR_ERR_INVALID: a tape of another comm. */
TSR_CHECKED tsr_status tsr_plan_print(tsr_module *model, tsr_tape *tape, FILE *stream);

/**
 * Local. Write the collectives of the newest recorded step in order: stream, operation, axes, bytes
 * sent, whose data, and why; then counts and bytes by axes.
 *
 * @retval TSR_ERR_STATE  the comm was opened without record.
 */
TSR_CHECKED tsr_status tsr_collectives_print(tsr_module *model, FILE *stream);

/** Traffic of one set of axes in one step. */
typedef struct tsr_traffic {
    const char *axes; /**< "shard", "replicate+shard"; borrowed until the comm is released. */
    int collectives;
    size_t bytes; /**< Sent by this rank at least. */
} tsr_traffic;

/** Local. The same by axes alone: fills out[capacity], which may be NULL, returns how many there
 *  are; 0 without record. */
TSR_API int tsr_collectives_count(tsr_module *model, tsr_traffic *out, int capacity);

/**
 * Compare replicas: hash what each rank owns of every parameter, and fail where ranks that should
 * hold the same do not. Collective over the mesh. Blocks.
 *
 * @param digest_out  Depends on names, positions and bits of all parameters alone: the same on any
 *                    mesh. May be NULL. state.h has one of the whole state.
 * @retval TSR_ERR_DISAGREE     names the first parameter and the ranks that differ.
 * @retval TSR_ERR_UNSUPPORTED  the backend holds no bytes.
 */
TSR_CHECKED tsr_status tsr_params_digest(tsr_module *model, uint64_t *digest_out);

/**
 * Local. Trained parameters that have got no gradient since materialisation, in order of units:
 * fills names[capacity], which may be NULL, returns how many there are. After the first step some
 * are a slip in the model; the log says so too.
 */
TSR_API int tsr_params_without_gradient(tsr_module *model, const char **names, int capacity);

TSR_END_DECLS
