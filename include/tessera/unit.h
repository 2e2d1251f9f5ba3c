/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file unit.h
 * What single FSDP units can be told while they run.
 *
 * Each function takes the module that was made a unit (TSR_ERR_INVALID otherwise); with recurse, or
 * where so said, all units at and below it. Logically collective over the mesh.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/fsdp.h"

TSR_BEGIN_DECLS

/**
 * Gather the unit's parameters now. Collective over its sharded axes.
 *
 * They stay until tsr_unit_reshard or the end of the unit's next pass. What was gathered before an
 * optimizer step is not what the step makes of it.
 */
TSR_CHECKED tsr_status tsr_unit_unshard(tsr_module *module);

/** Let go of the unit's gathered parameters; those of its children stay. Local. */
TSR_CHECKED tsr_status tsr_unit_reshard(tsr_module *module);

/**
 * Without gradient sync, gradients add up unreduced, in reduce dtype, over micro-batches: less
 * traffic, more memory. The step's last backward, or whoever needs them, reduces them in any case.
 * Local. TSR_ERR_STATE during backward.
 */
TSR_CHECKED tsr_status tsr_unit_set_gradient_sync(tsr_module *module, bool on, bool recurse);

/**
 * Without it, the step ends with gradients that are sums over the axes of levels 2 and 3 alone;
 * they stay, and the next step adds to them: memory of gradients that is kept between steps. What a
 * failed step has added does not count. Clip and update refuse such gradients (TSR_ERR_STATE); once
 * it is on again they reduce them. Local. TSR_ERR_STATE during backward.
 */
TSR_CHECKED tsr_status tsr_unit_set_all_reduce(tsr_module *module, bool on, bool recurse);

/** Change when gathered parameters go after forward. Local. */
TSR_CHECKED tsr_status tsr_unit_set_reshard_after_forward(tsr_module *module, tsr_reshard reshard,
                                                          bool recurse);

/** Which backward of @p model makes the last reductions. */
typedef enum tsr_last_backward {
    TSR_LAST_AUTO = 0, /**< That of the step's last micro-batch. */
    TSR_LAST_YES = 1,  /**< The next ones: the step may end before its last micro-batch. Where more
                            than one of a step is, or another follows, each is reduced again. */
    TSR_LAST_NO = 2    /**< Not the next ones: gradients go on adding up, over steps too, until an
                            update takes them, which makes the reductions then. */
} tsr_last_backward;

/**
 * Say which backward is the last of a step: it reduces while it runs. Local; of the whole model.
 *
 * @retval TSR_ERR_STATE    during backward, and before tsr_module_materialize.
 * @retval TSR_ERR_INVALID  another value.
 */
TSR_CHECKED tsr_status tsr_fsdp_set_last_backward(tsr_module *model, tsr_last_backward last);

/**
 * Gather these units when the forward of @p module begins, in place of the next ones. Local.
 *
 * @param units  count modules that are units of the same model; NULL: the next ones again.
 */
TSR_CHECKED tsr_status tsr_unit_set_forward_prefetch(tsr_module *module, tsr_module *const *units,
                                                     int count);

/** The same when its backward begins (or is over, with TSR_PREFETCH_POST). Local. */
TSR_CHECKED tsr_status tsr_unit_set_backward_prefetch(tsr_module *module, tsr_module *const *units,
                                                      int count);

TSR_END_DECLS
