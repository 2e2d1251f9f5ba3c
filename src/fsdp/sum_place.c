/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* How the sum of a parameter's gradient lies on each axis.
 *
 * Where the parameter is Shard its gradient is that Shard. Elsewhere a contribution arrives Partial
 * (each rank has a term) or Replicate (each has the whole, as where a parameter meets parameters
 * alone, or the whole batch is on every rank):
 *
 *   axes that carry data   the sum is Partial: it is reduced over them in any case
 *   other axes             the sum is Partial if the first contributions are: it is reduced over
 *                          them once a step; else Replicate, and nothing is reduced
 *
 * What arrives otherwise is brought there before it is added: a whole one counts on the ranks of
 * index 0 of the axes where the sum is Partial and as zero on the others, so that it is taken once;
 * a Partial one is reduced where the sum is Replicate.
 *
 * Ranks that differ on data axes may see different contributions, or none where they pass over the
 * unit, yet their reduced pieces must be summed over the same axes. So before the unit's first
 * reduction all ranks tell each other which axes they found Partial; the union holds from then on.
 */
#include "fsdp_priv.h"

#include "base/base.h"

/* Axes of more than one rank that carry no data. */
static unsigned other_axes(const unit *u)
{
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    unsigned mask = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if (tsr_mesh_axis_size(mesh, axis) > 1) {
            mask |= 1u << axis;
        }
    }
    return mask & ~tsri_comm_sum_axes(u->comm);
}

/* Of these those on which layout is Partial. */
static unsigned partial_axes(const unit *u, const tsr_layout *layout)
{
    const unsigned others = other_axes(u);
    unsigned mask = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        if (layout->place[axis].kind == TSR_PARTIAL) {
            mask |= others & 1u << axis;
        }
    }
    return mask;
}

/* The sum so far, whole on the axes of mask, as a sum of terms over them. */
static tsr_status make_partial(const unit *u, const unit_param *p, unsigned mask)
{
    tsr_dtype dtype = TSR_F32;
    const tsri_mem range = tsri_unit_grad_range(u, p, &dtype);
    tsri_call call = {.stream = tsri_unit_stream(u, TSRI_STREAM_COMPUTE), .label = p->param->name};
    tsrk_scale args = {.n = p->rows * p->cols, .factor = 1.0F, .x_type = dtype, .y_type = dtype};

    for (int axis = 0; axis < tsr_mesh_axis_count(tsr_comm_mesh(u->comm)); axis++) {
        if ((mask >> axis & 1u) != 0 && tsr_comm_coord(u->comm, axis) != 0) {
            args.factor = 0.0F;
        }
    }
    if (args.n == 0) {
        return TSR_OK;
    }
    args.y = tsri_arg_inout(&call, range.buffer, range.offset, range.bytes);
    args.x = tsri_arg_in(&call, range.buffer, range.offset, range.bytes);
    TSR_TRY(TSRI_LAUNCH(&call, SCALE, &args));
    return TSR_OK;
}

/* Let p's sum be Partial on the axes of mask as well. */
static tsr_status widen(const unit *u, unit_param *p, unsigned mask)
{
    const unsigned more = mask & ~p->partial_mask;
    const bool open = u->flat.has_grad_slot ? u->grads.slot.buffer != NULL
                                            : tsri_unit_has_sums(u) && u->grads.sums.buffer != NULL;

    if (more != 0 && open && p->written) {
        TSR_TRY(make_partial(u, p, more));
    }
    p->partial_mask |= more;
    return TSR_OK;
}

tsr_status tsri_unit_sum_place(void *context, tsr_param *param, const tsr_layout *arrives,
                               tsr_layout *sum_out, tsr_dtype *dtype_out)
{
    unit *u = context;
    unit_param *p = &u->params[param->unit_index];
    const tsr_layout *value = &param->value->layout;
    const unsigned sums = tsri_comm_sum_axes(u->comm);

    if (!u->grads.placed) {
        TSR_TRY(widen(u, p, partial_axes(u, arrives)));
    }
    *dtype_out = u->flat.has_grad_slot ? u->reduce_dtype : TSR_F32;
    *sum_out = *value;
    for (int axis = 0; axis < tsr_mesh_axis_count(value->mesh); axis++) {
        const bool partial = ((sums | p->partial_mask) >> axis & 1u) != 0 &&
                             tsr_mesh_axis_size(value->mesh, axis) > 1;

        if (value->place[axis].kind != TSR_SHARD) {
            sum_out->place[axis] = (tsr_placement){.kind = partial ? TSR_PARTIAL : TSR_REPLICATE};
        }
    }
    return TSR_OK;
}

/* Whether ranks that differ on data axes could place a sum of u differently. */
static bool may_differ(const unit *u)
{
    const unsigned others = other_axes(u);
    const tsr_mesh *mesh = tsr_comm_mesh(u->comm);
    bool data = false;
    bool free = false;

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        data = data || ((tsri_comm_batch_axes(u->comm) >> axis & 1u) != 0 &&
                        tsr_mesh_axis_size(mesh, axis) > 1);
        for (int i = 0; i < u->param_count; i++) {
            free = free || ((others >> axis & 1u) != 0 && tsri_unit_trains(&u->params[i]) &&
                            u->params[i].param->value->layout.place[axis].kind == TSR_REPLICATE);
        }
    }
    return data && free;
}

tsr_status tsri_unit_settle_sums(unit *u)
{
    const int ranks = tsr_world_size(tsr_comm_world(u->comm));
    const size_t n = (size_t)u->param_count;
    unsigned *mine = NULL;
    unsigned *all = NULL;
    tsr_status status = TSR_OK;

    if (u->grads.placed) {
        return TSR_OK;
    }
    u->grads.placed = true;
    if (!may_differ(u)) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc(n, sizeof(*mine), &mine));
    TSR_TRY_GOTO(status, tsri_alloc(n * (size_t)ranks, sizeof(*all), &all), free_masks);
    for (size_t i = 0; i < n; i++) {
        mine[i] = u->params[i].partial_mask;
    }
    TSR_TRY_GOTO(
        status,
        tsri_comm_exchange(u->comm, "placements of gradients", mine, n * sizeof(*mine), all),
        free_masks);
    for (size_t i = 0; i < n * (size_t)ranks; i++) {
        TSR_TRY_GOTO(status, widen(u, &u->params[i % n], all[i]), free_masks);
    }
free_masks:
    tsri_free(&all);
    tsri_free(&mine);
    return status;
}

tsr_status tsri_unit_open_axes(const unit *u)
{
    TSR_TRY(tsri_comm_open_sets(u->comm, other_axes(u), TSRI_STREAM_REPLICATE));
    return TSR_OK;
}
