/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file optim_priv.h
 * What an optimizer holds: slots of parameters, and scalars that stay on the device.
 */
#pragma once

#include "optim/optim.h"

/* The scalars' buffer. */
typedef struct scalars {
    double total, norm;
    float scale;
    int32_t skip;
    int64_t skipped; /* steps so far */
    int64_t updates; /* made so far: AdamW's t */
    double lr;       /* before groups' factors */
} scalars;

typedef struct slot {
    tsr_param *param; /* retained */
    tsri_optimizer_state state;
    double lr_scale, weight_decay;
} slot;

struct tsr_optimizer {
    tsr_comm *comm;
    tsr_optimizer_options options; /* defaults filled in; groups not kept */
    slot *slots;
    int count;
    tsr_buffer *state;     /* NULL where nothing is kept */
    tsr_buffer *scalars;   /* struct scalars */
    tsri_step_watch watch; /* the step in which it measured */
    bool measured;         /* in that step: norm, scale and skip are of its gradients */
    bool has_norm;         /* of any step */
    double lr;             /* that the scalars have; NaN: none yet */
};

/** Elements that opt updates on this rank. */
static inline int64_t tsri_optim_own_count(const tsr_param *param)
{
    return param->spec.frozen ? 0 : tsri_param_own_count(param);
}

/** The whole of what rests, as an argument. */
static inline const void *tsri_optim_in(tsri_call *call, const tsri_rest *rest)
{
    return tsri_arg_in(call, rest->buffer, rest->offset, tsri_rest_bytes(rest));
}

static inline void *tsri_optim_inout(tsri_call *call, const tsri_rest *rest)
{
    return tsri_arg_inout(call, rest->buffer, rest->offset, tsri_rest_bytes(rest));
}

/* clip.c */
/**
 * Make every gradient final, and know of the end of their step from now on.
 *
 * @param what      The call that asks, for messages.
 * @param tape      The tape that the program names; NULL: it names none.
 * @param tape_out  Whose step it is; NULL where opt trains nothing.
 */
tsr_status tsri_optim_finalize(tsr_optimizer *opt, const char *what, tsr_tape *tape,
                               tsr_tape **tape_out);
/** Fail if tape lies on another comm. */
tsr_status tsri_optim_check_tape(const tsr_optimizer *opt, const char *what, const tsr_tape *tape);
/** Fail if an optimizer has updated one of opt's parameters in this step. */
tsr_status tsri_optim_check_updated(const tsr_optimizer *opt, const char *what);
/* scale.c */
/** From the norm that opt has just measured: the scale of tape's next step. */
tsr_status tsri_optim_adapt_scale(const tsr_optimizer *opt, tsr_tape *tape);
