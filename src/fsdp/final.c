/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* When a step's gradients are final.
 *
 * The backward that is known to be the step's last makes the last reductions while it runs
 * (engine.c). What it has not made, since a program ran no backward there, marked another one as
 * the last, or called a unit without its root, is made when a clip or an update asks. Which units
 * are done is one fact on all ranks, so all make the same reductions then.
 *
 * A backward after the last reductions takes them back: what is final becomes a term of a sum
 * again, that of one rank, and is reduced once more together with what is added. */
#include "fsdp_priv.h"

#include "base/base.h"

enum {
    F32 = (int)sizeof(float)
};

tsr_status tsri_unit_finish(unit *u)
{
    if (tsri_unit_has_pending(u)) {
        TSR_TRY(tsri_unit_reduce(u, true, true));
        return TSR_OK;
    }
    if (!tsri_unit_has_sums(u)) {
        TSR_TRY(tsri_unit_zero_grads(u));
        tsri_log(TSRI_LOG_WARN, "unit \"%s\" got no gradient in this step: taken as zero",
                 u->module->path);
    }
    TSR_TRY(tsri_unit_reduce_last(u));
    return TSR_OK;
}

/* ---- another backward ---- */

/* The last reduction gave the same to all ranks along mask: those of index 0 keep it. */
static bool keeps_term(const unit *u, unsigned mask)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(tsr_comm_mesh(u->comm)); axis++) {
        if ((mask >> axis & 1u) != 0 && tsr_comm_coord(u->comm, axis) != 0) {
            return false;
        }
    }
    return true;
}

/* sums[begin, end), elements of the flat shard, times factor. */
static tsr_status scale_sums(const unit *u, int64_t begin, int64_t end, float factor)
{
    const size_t at = u->grads.sums.offset + (size_t)(begin - u->flat.grad_begin) * F32;
    const size_t bytes = (size_t)(end - begin) * F32;
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_COMPUTE), .label = u->module->path};
    tsrk_scale args = {.n = end - begin, .factor = factor, .x_type = TSR_F32, .y_type = TSR_F32};

    if (factor == 0.0F) {
        TSR_TRY(tsri_unit_zero(u, u->grads.sums.buffer, at, bytes)); /* also what is not finite */
        return TSR_OK;
    }
    if (factor == 1.0F || begin == end) {
        return TSR_OK;
    }
    args.y = tsri_arg_inout(&call, u->grads.sums.buffer, at, bytes);
    args.x = tsri_arg_in(&call, u->grads.sums.buffer, at, bytes);
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

static tsr_status reopen_param(const unit *u, const unit_param *p)
{
    const double divisor = u->options.gradient_divisor;
    const bool keeps = keeps_term(u, u->levels.mask[0] | p->partial_mask);
    int64_t begin = 0;
    int64_t end = 0;
    int64_t own_begin = 0;
    int64_t own_end = 0;

    tsri_intersect(u->flat.grad_begin, u->flat.grad_begin + u->flat.grad_count, p->shard_offset,
                   p->shard_offset + p->chunk, &begin, &end);
    tsri_intersect(u->flat.own_begin, u->flat.own_begin + u->flat.own_count, begin, end, &own_begin,
                   &own_end);
    if (own_begin == own_end) {
        own_begin = end;
        own_end = end;
    }
    TSR_TRY(scale_sums(u, begin, own_begin, 0.0F));
    TSR_TRY(scale_sums(u, own_begin, own_end,
                       !keeps           ? 0.0F
                       : divisor != 0.0 ? (float)divisor
                                        : 1.0F));
    TSR_TRY(scale_sums(u, own_end, end, 0.0F));
    return TSR_OK;
}

tsr_status tsri_unit_reopen(unit *u)
{
    if (u->grads.state != SUMS_FINAL) {
        return TSR_OK;
    }
    TSR_TRY(tsri_unit_open_sums(u, TSRI_STREAM_COMPUTE));
    TSR_TRY(tsri_unit_await_sums(u));
    for (int i = 0; i < u->param_count; i++) {
        if (tsri_unit_trains(&u->params[i])) {
            TSR_TRY(reopen_param(u, &u->params[i]));
        }
    }
    tsri_unit_note_reduced(u, tsri_unit_stream(u, TSRI_STREAM_COMPUTE));
    u->grads.state = SUMS_TERMS;
    return TSR_OK;
}

tsr_status tsri_engine_begin_backward(engine *e)
{
    if (e->step.backward_epoch == e->step.epoch) {
        return TSR_OK;
    }
    e->step.backward_epoch = e->step.epoch;
    e->step.played = true;
    for (int i = 0; i < e->unit_count; i++) {
        TSR_TRY(tsri_unit_reopen(e->units[i]));
    }
    return TSR_OK;
}

/* ---- a clip or an update ---- */

static bool has_gradients(const engine *e)
{
    for (int i = 0; i < e->unit_count; i++) {
        if (tsri_unit_has_sums(e->units[i])) {
            return true;
        }
    }
    return e->step.played;
}

/* The last reductions that are still to come. */
static tsr_status finish_all(engine *e)
{
    TSR_TRY(tsri_engine_forget_forward(e, false));
    for (int i = 0; i < e->unit_count; i++) {
        unit *u = e->units[i];

        if (u->flat.train_count == 0) {
            continue;
        }
        if (u->grads.state == SUMS_FINAL || !u->all_reduce) {
            continue;
        }
        u->grads.keep =
            u->grads.keep && e->step.last_mark == 0; /* unless an update takes it (engine.c) */
        TSR_TRY(tsri_unit_finish(u));
        TSR_TRY(tsri_unit_await_sums(u));
    }
    tsri_engine_release_draining(e);
    return TSR_OK;
}

static tsr_status check_done(const unit *u, const char *what)
{
    const unsigned summed = u->levels.mask[2] | u->levels.mask[3];
    char axes[64];

    if (u->grads.state != SUMS_FINAL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "%s: unit \"%s\": all-reduce is off (tsr_unit_set_all_reduce), its "
                         "gradients are %s%s alone",
                         what, u->module->path, summed != 0 ? "sums over " : "this rank's",
                         summed != 0 ? tsri_comm_mask_name(u->comm, summed, axes, sizeof(axes))
                                     : "");
    }
    return TSR_OK;
}

tsr_status tsri_unit_finalize(void *context, tsr_param *param, const char *what,
                              tsr_tape **tape_out)
{
    unit *u = context;
    engine *e = u->engine;
    tsr_tape *tape = e != NULL ? e->step.watch.tape : NULL;

    if (tape == NULL || !has_gradients(e)) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "%s: parameter %s has no gradient now: backward makes it and "
                         "tsr_step_end gives its memory back",
                         what, param->name);
    }
    if (e->step.last_mark == 1) {
        tsri_step_mark_last(tape);
    }
    TSR_TRY(tsri_step_check_final(tape, what));
    TSR_TRY(finish_all(e));
    TSR_TRY(check_done(u, what));
    tsri_step_final(tape);
    *tape_out = tape;
    return TSR_OK;
}
