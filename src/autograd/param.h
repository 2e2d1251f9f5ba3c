/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file param.h
 * Inside of a parameter: its compute value, its piece at rest, where its gradient goes.
 *
 * What this rank updates is its master: f32 elements at rest (dtensor/rest.h says which). The
 * gradient rests alike, from backward to the end of the step.
 */
#pragma once

#include "tessera/param.h"
#include "tessera/tape.h"

#include "dtensor/dtensor.h"
#include "dtensor/rest.h"

typedef struct tsri_grad_sink tsri_grad_sink;

/** Who knows that a parameter is written. */
typedef enum tsri_overwrite {
    TSRI_OVERWRITE_ALIKE, /* every rank, for all do it now */
    TSRI_OVERWRITE_ALONE, /* this rank: the model does not run until TSRI_OVERWRITE_TOLD */
    TSRI_OVERWRITE_TOLD   /* every rank, of what some have written alone */
} tsri_overwrite;

struct tsr_param {
    int owners;
    char *name;
    tsr_param_spec spec;
    tsr_dtensor *value; /* compute layout; param->value->param == param */
    /* Filled by fsdp: */
    const tsri_grad_sink *sink;
    void *sink_context; /* the unit */
    int unit_index;     /* index of this parameter within its unit */
    tsri_rest master;   /* buffer NULL: not materialised */
    tsri_rest grad;     /* of the same elements, f32; buffer NULL: there is none now */
    bool written;       /* by this rank alone, and not all ranks know of it */
    bool updated;       /* by an optimizer, in the step under way */
};

/** Where autograd puts the gradient of a parameter; implemented by fsdp. */
struct tsri_grad_sink {
    /**
     * The layout and type in which param's sum takes a contribution that arrives in layout arrives:
     * where the parameter is Shard that Shard, else Partial or Replicate, whichever the sum is on
     * that axis. The tape brings the contribution there. NULL: as it arrives, in f32.
     */
    tsr_status (*place)(void *context, tsr_param *param, const tsr_layout *arrives,
                        tsr_layout *sum_out, tsr_dtype *dtype_out);
    /**
     * Destination of one more contribution to param's gradient, of the layout that place said (the
     * tp-local block in the sink's choice of dtype).
     * @param dest_out        Borrowed dtensor to write; NULL: drop it (frozen).
     * @param accumulate_out  Add to what is there.
     */
    tsr_status (*destination)(void *context, tsr_param *param, const tsr_layout *layout,
                              tsr_dtensor **dest_out, bool *accumulate_out);
    /**
     * Param's gradient is to be final: make the reductions that are still to come. Collective over
     * the mesh. TSR_ERR_STATE, on all ranks alike, where it cannot be. NULL: it is as it is.
     * @param what      The call that asks, for messages.
     * @param tape_out  Borrowed: whose step made it.
     */
    tsr_status (*finalize)(void *context, tsr_param *param, const char *what, tsr_tape **tape_out);
    /** An operation of the forward pass is about to read param's value. NULL: nobody asks. */
    tsr_status (*use)(void *context, tsr_param *param, tsr_tape *tape);
    /** Param's master is written: TSR_ERR_STATE within a step. Once every rank knows, what others
     *  compute with comes from it at the next gather. */
    tsr_status (*overwrite)(void *context, tsr_param *param, tsri_overwrite how);
};

/** A parameter of comm with a compute value replicated on every axis. One owner. */
tsr_status tsri_param_create(tsr_comm *comm, const char *name, const tsr_param_spec *spec,
                             tsr_param **out);
tsr_param *tsri_param_retain(tsr_param *param);
void tsri_param_release(tsr_param **param);
tsr_status tsri_param_rename(tsr_param *param, const char *name);
/** Change the compute layout (tp plan). TSR_ERR_STATE once materialised. */
tsr_status tsri_param_place(tsr_param *param, const char *axis, tsr_placement placement);

/** Fail unless every rank passes the same parameters, by name and shape, in the same order.
 *  Collective over the world; what names them in the message. */
tsr_status tsri_params_check_same(tsr_comm *comm, const char *what, tsr_param *const *params,
                                  int count);

/** The gradient of the owned elements, for the compute stream. TSR_ERR_STATE, on all ranks alike,
 *  before backward and after the step's end. */
tsr_status tsri_param_get_grad(const tsr_param *param, const tsri_rest **out);

/** Outside a step, on all ranks: what this rank owns of elements [begin, end) of its block becomes
 *  host's, which begins with element begin. */
tsr_status tsri_param_put(tsr_param *param, int64_t begin, int64_t end, const float *host);
/** Elements of what this rank updates. */
static inline int64_t tsri_param_own_count(const tsr_param *param)
{
    return tsri_rest_count(&param->master);
}
