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
} scalars;

typedef struct slot {
    tsr_param *param; /* retained */
    size_t m_offset, v_offset;
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
};

static inline int64_t tsri_optim_own_count(const tsr_param *param)
{
    return param->spec.frozen ? 0 : param->own_end - param->own_begin;
}

static inline size_t tsri_optim_own_bytes(const tsr_param *param)
{
    return (size_t)tsri_optim_own_count(param) * sizeof(float);
}

static inline const void *tsri_optim_grad(tsri_call *call, const tsr_param *param)
{
    return tsri_arg_in(call, param->grad, param->grad_offset, tsri_optim_own_bytes(param));
}

/* clip.c */
/** True on the one rank that speaks for what it owns of param. */
bool tsri_optim_counts_here(const tsr_optimizer *opt, const tsr_param *param);
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
