/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file layout.c
 * Which piece of a tensor each rank holds.
 *
 * One rule, applied along each dim's chain of axes from the outside in: what is left, n rows, is
 * cut in chunks of ceil(n / w), and coordinate i takes the i-th. Everything else about layouts is
 * built on chains, so axes of size 1 and orders that change no piece never make a difference.
 */
#include "dtensor_priv.h"

#include "base/base.h"

#include <string.h>

enum {
    NAMES_BYTES = TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 2),
    /* Bytes of a piece with slack, of the largest element type, must fit in 63 bits. */
    ELEMENT_BYTES_LIMIT = 64
};

/* The axis at place i of the order; not below 0, whatever was written there. */
static int order_at(const tsr_layout *layout, int i)
{
    return (unsigned char)layout->order[i];
}

static tsr_status check_shape(const int64_t *shape, int ndim)
{
    int64_t count = 1;

    if (ndim < 0 || ndim > TSR_MAX_DIMS) {
        return TSR_RAISE(TSR_ERR_SHAPE, "%d dims, wants 0 to %d", ndim, TSR_MAX_DIMS);
    }
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0) {
            return TSR_RAISE(TSR_ERR_SHAPE, "dim %d has extent %lld, wants 0 or more", d,
                             (long long)shape[d]);
        }
        if (shape[d] > INT64_MAX / ELEMENT_BYTES_LIMIT / count) {
            return TSR_RAISE(TSR_ERR_SHAPE, "dim %d of extent %lld makes too many elements", d,
                             (long long)shape[d]);
        }
        count *= tsri_max64(shape[d], 1);
    }
    return TSR_OK;
}

static tsr_status check_placement(const tsr_layout *layout, const char *axis,
                                  tsr_placement placement)
{
    if (placement.kind != TSR_REPLICATE && placement.kind != TSR_SHARD &&
        placement.kind != TSR_PARTIAL) {
        return TSR_RAISE(TSR_ERR_PLACEMENT, "axis \"%s\": unknown placement %d", axis,
                         (int)placement.kind);
    }
    if (placement.kind == TSR_SHARD && (placement.dim < 0 || placement.dim >= layout->ndim)) {
        return TSR_RAISE(TSR_ERR_PLACEMENT, "axis \"%s\": shard of dim %d, tensor has %d dims",
                         axis, placement.dim, layout->ndim);
    }
    return TSR_OK;
}

tsr_status tsri_layout_check(const tsr_layout *layout)
{
    int axis_count = 0;
    unsigned seen = 0;

    if (layout->mesh == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "layout without a mesh");
    }
    axis_count = tsr_mesh_axis_count(layout->mesh);
    TSR_TRY(check_shape(layout->shape, layout->ndim));
    for (int i = 0; i < axis_count; i++) {
        int axis = order_at(layout, i);
        if (axis >= axis_count || (seen & (1U << axis)) != 0) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "order names axis %d at place %d, wants each of 0 to %d once", axis, i,
                             axis_count - 1);
        }
        seen |= 1U << axis;
        TSR_TRY(check_placement(layout, tsr_mesh_axis_name(layout->mesh, i), layout->place[i]));
    }
    return TSR_OK;
}

tsr_status tsr_layout_init(const tsr_mesh *mesh, const int64_t *shape, int ndim, tsr_layout *out)
{
    TSRI_WANT(mesh, out);

    tsr_layout layout = {.mesh = mesh, .ndim = ndim};

    if (shape == NULL && ndim > 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s: shape is NULL, wants %d extents", __func__, ndim);
    }
    TSR_TRY(check_shape(shape, ndim));
    for (int d = 0; d < ndim; d++) {
        layout.shape[d] = shape[d];
    }
    for (int axis = 0; axis < TSR_MESH_MAX_AXES; axis++) {
        layout.order[axis] = (signed char)axis;
    }
    *out = layout;
    return TSR_OK;
}

/* "replicate, shard, tp". */
static const char *axis_names(const tsr_mesh *mesh, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        (void)snprintf(text + used, size - used, "%s%s", axis == 0 ? "" : ", ",
                       tsr_mesh_axis_name(mesh, axis));
        used += strlen(text + used);
    }
    return text;
}

tsr_status tsr_layout_place(tsr_layout *layout, const char *axis, tsr_placement placement)
{
    TSRI_WANT(layout, axis);

    int index = -1;
    char names[NAMES_BYTES];

    if (axis == NULL) {
        return TSR_RAISE(TSR_ERR_INVALID, "no name of an axis");
    }
    index = tsr_mesh_axis_find(layout->mesh, axis);
    if (index < 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "no axis \"%s\", mesh has: %s", axis,
                         axis_names(layout->mesh, names, sizeof(names)));
    }
    TSR_TRY(check_placement(layout, axis, placement));
    layout->place[index].kind = placement.kind;
    layout->place[index].dim = placement.kind == TSR_SHARD ? placement.dim : 0;
    return TSR_OK;
}

tsr_status tsr_layout_data(const tsr_comm *comm, const int64_t *shape, int ndim, tsr_layout *out)
{
    TSRI_WANT(comm, out);

    tsr_layout layout;
    unsigned mask = tsri_comm_batch_axes(comm);

    TSR_TRY(tsr_layout_init(tsr_comm_mesh(comm), shape, ndim, &layout));
    if (ndim == 0 && mask != 0) {
        return TSR_RAISE(TSR_ERR_SHAPE, "a batch wants a dim to split, a scalar has none");
    }
    for (int axis = 0; axis < tsr_mesh_axis_count(layout.mesh); axis++) {
        if ((mask & (1U << axis)) != 0) {
            layout.place[axis] = (tsr_placement){.kind = TSR_SHARD, .dim = 0};
        }
    }
    *out = layout;
    return TSR_OK;
}

tsr_status tsr_layout_local(const tsr_layout *layout, int rank, int64_t *shape_out,
                            int64_t *offset_out)
{
    TSRI_WANT(layout, shape_out, offset_out);

    int coord[TSR_MESH_MAX_AXES] = {0};

    TSR_TRY(tsri_layout_check(layout));
    TSR_TRY(tsr_mesh_coord(layout->mesh, rank, coord));
    for (int d = 0; d < layout->ndim; d++) {
        int axes[TSR_MESH_MAX_AXES];
        int length = tsri_layout_chain(layout, d, axes);
        int64_t extent = layout->shape[d];
        int64_t offset = 0;

        for (int i = 0; i < length; i++) {
            int64_t chunk = tsri_ceil_div(extent, tsr_mesh_axis_size(layout->mesh, axes[i]));
            int64_t begin = tsri_min64(extent, coord[axes[i]] * chunk);
            extent = tsri_min64(chunk, extent - begin);
            offset += begin;
        }
        shape_out[d] = extent;
        offset_out[d] = extent > 0 ? offset : layout->shape[d];
    }
    return TSR_OK;
}

int tsri_layout_chain(const tsr_layout *layout, int dim, int axes[TSR_MESH_MAX_AXES])
{
    int length = 0;

    for (int i = 0; i < tsr_mesh_axis_count(layout->mesh); i++) {
        int axis = order_at(layout, i);
        if (layout->place[axis].kind == TSR_SHARD && layout->place[axis].dim == dim &&
            tsr_mesh_axis_size(layout->mesh, axis) > 1) {
            axes[length++] = axis;
        }
    }
    return length;
}

int64_t tsri_layout_count(const tsr_layout *layout)
{
    int64_t count = 1;

    for (int d = 0; d < layout->ndim; d++) {
        count *= layout->shape[d];
    }
    return count;
}

/* Placements alike on axes of at least min_size ranks. */
static bool places_agree(const tsr_layout *a, const tsr_layout *b, int min_size)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(a->mesh); axis++) {
        const tsr_placement *p = &a->place[axis];
        const tsr_placement *q = &b->place[axis];
        if (tsr_mesh_axis_size(a->mesh, axis) >= min_size &&
            (p->kind != q->kind || (p->kind == TSR_SHARD && p->dim != q->dim))) {
            return false;
        }
    }
    return true;
}

bool tsr_layout_equal(const tsr_layout *a, const tsr_layout *b)
{
    TSRI_WANT_OR(a, false);
    TSRI_WANT_OR(b, false);
    if (a->mesh != b->mesh || a->ndim != b->ndim || !places_agree(a, b, 2)) {
        return false;
    }
    for (int d = 0; d < a->ndim; d++) {
        int axes_a[TSR_MESH_MAX_AXES];
        int axes_b[TSR_MESH_MAX_AXES];
        int length = tsri_layout_chain(a, d, axes_a);

        if (a->shape[d] != b->shape[d] || tsri_layout_chain(b, d, axes_b) != length) {
            return false;
        }
        for (int i = 0; i < length; i++) {
            if (axes_a[i] != axes_b[i]) {
                return false;
            }
        }
    }
    return true;
}

bool tsri_layout_identical(const tsr_layout *a, const tsr_layout *b)
{
    return tsr_layout_equal(a, b) && places_agree(a, b, 1);
}

tsr_layout tsr_layout_dual(const tsr_layout *layout)
{
    TSRI_WANT_OR(layout, (tsr_layout){0});

    tsr_layout dual = *layout;

    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        tsr_placement *place = &dual.place[axis];
        if (place->kind == TSR_REPLICATE) {
            place->kind = TSR_PARTIAL;
        } else if (place->kind == TSR_PARTIAL) {
            place->kind = TSR_REPLICATE;
        }
    }
    return dual;
}

/* Append " order:tp,shard" for the dims whose chain is not in the order of the axes. */
static void format_order(const tsr_layout *layout, char *buffer, size_t size)
{
    for (int d = 0; d < layout->ndim; d++) {
        int axes[TSR_MESH_MAX_AXES];
        int length = tsri_layout_chain(layout, d, axes);
        bool plain = true;

        for (int i = 1; i < length; i++) {
            plain = plain && axes[i - 1] < axes[i];
        }
        for (int i = 0; i < length && !plain; i++) {
            size_t used = strlen(buffer);
            (void)snprintf(buffer + used, size - used, "%s%s", i == 0 ? " order:" : ",",
                           tsr_mesh_axis_name(layout->mesh, axes[i]));
        }
    }
}

const char *tsr_layout_format(const tsr_layout *layout, char *buffer, size_t size)
{
    TSRI_WANT_OR(layout, "");
    TSRI_WANT_OR(buffer, "");
    if (size == 0) {
        return buffer;
    }
    (void)tsri_format_shape(layout->shape, layout->ndim, buffer, size);
    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        const tsr_placement *place = &layout->place[axis];
        const char *name = tsr_mesh_axis_name(layout->mesh, axis);
        size_t used = strlen(buffer);

        if (place->kind == TSR_SHARD) {
            (void)snprintf(buffer + used, size - used, " %s:S(%d)", name, place->dim);
        } else {
            (void)snprintf(buffer + used, size - used, " %s:%s", name,
                           place->kind == TSR_PARTIAL ? "P" : "R");
        }
    }
    format_order(layout, buffer, size);
    return buffer;
}
