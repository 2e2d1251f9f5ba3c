/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file redistribute_route.c
 * Which moves lead from one layout to another.
 *
 * The chain of a dim is a stack: an axis can leave only when it is innermost, and comes in as the
 * innermost, because pieces of the others would be cut differently otherwise. What the present
 * chain and the wanted one have in common from the outside stays where it is; the rest is taken off
 * and the wanted axes are put on. An axis is put on only where everything below it is already as
 * wanted, so no axis moves more than twice, and each move is one collective of one axis, or none.
 *
 * At every point the first legal move of this order is taken: slice, reduce-scatter, all-to-all,
 * all-reduce (of all axes that want one, at once), gather; that is, moves that shrink the piece
 * before those that enlarge it. Gathers of one dim in a row, and reduce-scatters likewise, are one
 * collective of the flattened axes when the dim divides evenly and the axes nest in their order in
 * the mesh, for then flattened ranks and nested pieces are numbered alike.
 *
 * The route depends on the two layouts alone, never on a rank's piece: all ranks make the same one.
 */
#include "dtensor_priv.h"

#include "base/base.h"

typedef struct chain {
    int length;
    int axis[TSR_MESH_MAX_AXES];
} chain;

typedef struct router {
    const tsr_layout *to;
    tsr_layout now;
    int axis_count;
    chain have[TSR_MAX_DIMS];
    chain want[TSR_MAX_DIMS];
    tsri_route *route;
} router;

/* Number of axes, from the outside, that stay. */
static int common_length(const router *p, int dim)
{
    int n = 0;

    while (n < p->have[dim].length && n < p->want[dim].length &&
           p->have[dim].axis[n] == p->want[dim].axis[n]) {
        n++;
    }
    return n;
}

/* The axis to take off dim next, or -1. */
static int leaving_axis(const router *p, int dim)
{
    const chain *have = &p->have[dim];

    return have->length > common_length(p, dim) ? have->axis[have->length - 1] : -1;
}

/* The axis to put on dim next, or -1 while something is still in its way. */
static int coming_axis(const router *p, int dim)
{
    int n = common_length(p, dim);

    return p->have[dim].length == n && n < p->want[dim].length ? p->want[dim].axis[n] : -1;
}

static void take_off(router *p, int dim)
{
    int axis = p->have[dim].axis[--p->have[dim].length];

    p->now.place[axis] = (tsr_placement){.kind = TSR_REPLICATE};
}

static void put_on(router *p, int axis, int dim)
{
    p->have[dim].axis[p->have[dim].length++] = axis;
    p->now.place[axis] = (tsr_placement){.kind = TSR_SHARD, .dim = dim};
}

/* Any order is right that keeps each chain's. */
static void write_order(router *p)
{
    unsigned placed = 0;
    int n = 0;

    for (int d = 0; d < p->now.ndim; d++) {
        for (int i = 0; i < p->have[d].length; i++) {
            p->now.order[n++] = (signed char)p->have[d].axis[i];
            placed |= 1U << p->have[d].axis[i];
        }
    }
    for (int axis = 0; axis < p->axis_count; axis++) {
        if ((placed & (1U << axis)) == 0) {
            p->now.order[n++] = (signed char)axis;
        }
    }
}

/* True if the axes of dim's chain and of mask together cut the dim in equal parts. */
static bool divides_evenly(const router *p, int dim, unsigned mask)
{
    int64_t parts = 1;

    for (int i = 0; i < p->have[dim].length; i++) {
        mask |= 1U << p->have[dim].axis[i];
    }
    for (int axis = 0; axis < p->axis_count; axis++) {
        parts *= (mask & (1U << axis)) != 0 ? tsr_mesh_axis_size(p->now.mesh, axis) : 1;
    }
    return p->now.shape[dim] % parts == 0;
}

/* Can a move of axis be part of the last step? Called with the move already made. */
static bool joins_last(const router *p, const tsri_step *step)
{
    const tsri_step *last = p->route->step;

    if (p->route->step_count == 0) {
        return false;
    }
    last += p->route->step_count - 1;
    if (last->kind != step->kind || last->from_dim != step->from_dim ||
        last->to_dim != step->to_dim) {
        return false;
    }
    if (step->kind == TSRI_STEP_GATHER) { /* outer axes leave later */
        return step->mask < (last->mask & -last->mask) &&
               divides_evenly(p, step->from_dim, step->mask | last->mask);
    }
    return step->kind == TSRI_STEP_REDUCE_SCATTER && step->mask > last->mask &&
           divides_evenly(p, step->to_dim, last->mask);
}

static void add_step(router *p, tsri_step_kind kind, unsigned mask, int from_dim, int to_dim)
{
    tsri_step step = {.kind = kind, .mask = mask, .from_dim = from_dim, .to_dim = to_dim};

    write_order(p);
    step.after = p->now;
    if (joins_last(p, &step)) {
        tsri_step *last = &p->route->step[p->route->step_count - 1];
        last->mask |= mask;
        last->after = step.after;
        return;
    }
    TSRI_ASSERT(p->route->step_count < TSRI_PLAN_MAX_STEPS);
    p->route->step[p->route->step_count++] = step;
    p->route->collective_count += kind != TSRI_STEP_SLICE;
}

/* Put on an axis that is replicated (a slice) or partial (a reduce-scatter). */
static bool step_onto(router *p, tsr_placement_kind kind)
{
    for (int d = 0; d < p->now.ndim; d++) {
        int axis = coming_axis(p, d);

        if (axis >= 0 && p->now.place[axis].kind == kind) {
            put_on(p, axis, d);
            add_step(p, kind == TSR_PARTIAL ? TSRI_STEP_REDUCE_SCATTER : TSRI_STEP_SLICE,
                     1U << axis, -1, d);
            return true;
        }
    }
    return false;
}

static bool step_exchange(router *p)
{
    for (int d = 0; d < p->now.ndim; d++) {
        int axis = coming_axis(p, d);

        if (axis >= 0 && p->now.place[axis].kind == TSR_SHARD) {
            int from = p->now.place[axis].dim;
            if (leaving_axis(p, from) == axis) {
                take_off(p, from);
                put_on(p, axis, d);
                add_step(p, TSRI_STEP_ALL_TO_ALL, 1U << axis, from, d);
                return true;
            }
        }
    }
    return false;
}

static bool step_all_reduce(router *p)
{
    unsigned mask = 0;

    for (int axis = 0; axis < p->axis_count; axis++) {
        if (p->now.place[axis].kind == TSR_PARTIAL && p->to->place[axis].kind == TSR_REPLICATE) {
            mask |= 1U << axis;
            p->now.place[axis].kind = TSR_REPLICATE;
        }
    }
    if (mask != 0) {
        add_step(p, TSRI_STEP_ALL_REDUCE, mask, -1, -1);
    }
    return mask != 0;
}

/* First axes that end replicated, which cannot do without; then the dim gathered last, so that
 * gathers join; then the smaller axis, which enlarges the piece less. */
static bool step_gather(router *p)
{
    const tsri_route *route = p->route;
    int last_dim = route->step_count > 0 ? route->step[route->step_count - 1].from_dim : -1;
    int best_dim = -1;
    int best_axis = -1;
    int64_t best_key = 0;

    for (int d = 0; d < p->now.ndim; d++) {
        int axis = leaving_axis(p, d);

        if (axis >= 0) {
            int64_t rank = (p->to->place[axis].kind != TSR_REPLICATE ? 2 : 0) + (d != last_dim);
            int64_t key = rank * INT32_MAX + tsr_mesh_axis_size(p->now.mesh, axis);
            if (best_axis < 0 || key < best_key) {
                best_dim = d;
                best_axis = axis;
                best_key = key;
            }
        }
    }
    if (best_axis >= 0) {
        take_off(p, best_dim);
        add_step(p, TSRI_STEP_GATHER, 1U << best_axis, best_dim, -1);
    }
    return best_axis >= 0;
}

/* Nothing becomes Partial, on axes of at least ranks. */
static tsr_status check_partial(const tsr_layout *from, const tsr_layout *to, int ranks)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(from->mesh); axis++) {
        if (tsr_mesh_axis_size(from->mesh, axis) >= ranks && to->place[axis].kind == TSR_PARTIAL &&
            from->place[axis].kind != TSR_PARTIAL) {
            return TSR_RAISE(TSR_ERR_PLACEMENT, "to partial on axis \"%s\" from %s, wants partial",
                             tsr_mesh_axis_name(from->mesh, axis),
                             from->place[axis].kind == TSR_SHARD ? "shard" : "replicate");
        }
    }
    return TSR_OK;
}

static tsr_status check_pair(const tsr_layout *from, const tsr_layout *to)
{
    char a[64];
    char b[64];
    bool same = from->ndim == to->ndim;

    TSR_TRY(tsri_layout_check(from));
    TSR_TRY(tsri_layout_check(to));
    if (from->mesh != to->mesh) {
        return TSR_RAISE(TSR_ERR_INVALID, "redistribution between two meshes");
    }
    for (int d = 0; d < from->ndim && same; d++) {
        same = from->shape[d] == to->shape[d];
    }
    if (!same) {
        return TSR_RAISE(TSR_ERR_SHAPE, "redistribution of %s to %s",
                         tsri_format_shape(from->shape, from->ndim, a, sizeof(a)),
                         tsri_format_shape(to->shape, to->ndim, b, sizeof(b)));
    }
    TSR_TRY(check_partial(from, to, 2));
    return TSR_OK;
}

/* An operation's result lies plain on axes of one rank, whatever it would be on more. */
tsr_status tsri_dtensor_check_partial(const tsr_dtensor *tensor, const tsr_layout *to)
{
    const bool of_step = tensor->storage != NULL && tensor->storage->arena != NULL;

    TSR_TRY(check_partial(&tensor->layout, to, of_step ? 2 : 1));
    return TSR_OK;
}

tsr_status tsri_route_find(const tsr_layout *from, const tsr_layout *to, tsri_route *out)
{
    router p = {.to = to, .now = *from, .route = out};

    TSR_TRY(check_pair(from, to));
    p.axis_count = tsr_mesh_axis_count(from->mesh);
    for (int axis = 0; axis < p.axis_count; axis++) {
        if (tsr_mesh_axis_size(from->mesh, axis) == 1) {
            p.now.place[axis] = to->place[axis];
        }
    }
    for (int d = 0; d < from->ndim; d++) {
        p.have[d].length = tsri_layout_chain(from, d, p.have[d].axis);
        p.want[d].length = tsri_layout_chain(to, d, p.want[d].axis);
    }
    out->step_count = 0;
    out->collective_count = 0;
    while (step_onto(&p, TSR_REPLICATE) || step_onto(&p, TSR_PARTIAL) || step_exchange(&p) ||
           step_all_reduce(&p) || step_gather(&p)) {
    }
    TSRI_ASSERT(tsr_layout_equal(&p.now, to));
    return TSR_OK;
}

int tsri_redistribute_cost(const tsr_layout *from, const tsr_layout *to)
{
    tsri_route route;

    if (tsri_route_find(from, to, &route) != TSR_OK) {
        tsr_error_clear();
        return -1;
    }
    return tsri_layout_count(from) > 0 ? route.collective_count : 0;
}
