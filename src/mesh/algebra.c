/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file algebra.c
 * Slice, flatten, split, join: new lists of factors over the same root.
 *
 * No rank is looked at but the one through which a slice goes. An axis that came from several is a
 * list of factors; neighbours whose strides follow each other become one, so that a flattened axis
 * of adjacent ranks can be split anywhere.
 */
#include "mesh_priv.h"

#include "tessera/mesh_algebra.h"

#include <limits.h>
#include <string.h>

#define AXES_TEXT_BYTES (TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 12))

static tsr_status find_axis(const tsr_mesh *mesh, const char *name, const char *what, int *out)
{
    char text[AXES_TEXT_BYTES];

    *out = tsr_mesh_axis_find(mesh, name);
    if (*out < 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s names axis \"%s\", the mesh has %s", what,
                         name != NULL ? name : "(null)", tsr_mesh_format(mesh, text, sizeof(text)));
    }
    return TSR_OK;
}

/* The axes called names[count], each once, as indices and as a mask. */
static tsr_status find_named_axes(const tsr_mesh *mesh, const char *const *names, int count,
                                  const char *what, int *axes, unsigned *mask_out)
{
    unsigned mask = 0;

    if (names == NULL || count < 1 || count > mesh->axis_count) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s of %d axes, wants 1..%d", what, count,
                         mesh->axis_count);
    }
    for (int i = 0; i < count; i++) {
        TSR_TRY(find_axis(mesh, names[i], what, &axes[i]));
        if ((mask >> axes[i] & 1U) != 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "%s names axis \"%s\" twice", what, names[i]);
        }
        mask |= 1U << axes[i];
    }
    *mask_out = mask;
    return TSR_OK;
}

static void append_axis(tsr_mesh *mesh, const tsr_mesh *from, int axis)
{
    tsri_mesh_append(mesh, from->name[axis], &from->factor[from->first[axis]],
                     from->first[axis + 1] - from->first[axis]);
}

tsr_status tsr_mesh_slice(const tsr_mesh *mesh, const char *const *names, int count, int rank,
                          tsr_mesh **out)
{
    TSRI_WANT(mesh, out);
    TSRI_WANT_EACH(names, count);

    int axes[TSR_MESH_MAX_AXES];
    int coord[TSR_MESH_MAX_AXES];
    int digit[TSRI_MESH_MAX_FACTORS];
    tsr_mesh *slice = NULL;
    unsigned mask = 0;

    TSR_TRY(find_named_axes(mesh, names, count, "slice", axes, &mask));
    TSR_TRY(tsr_mesh_coord(mesh, rank, coord));
    TSR_TRY(tsri_mesh_new(mesh->root, &slice));
    slice->base = mesh->root->cell_of[rank];
    (void)tsri_mesh_digits(mesh, slice->base, digit);
    for (int i = 0; i < count; i++) {
        for (int f = mesh->first[axes[i]]; f < mesh->first[axes[i] + 1]; f++) {
            slice->base -= digit[f] * mesh->factor[f].stride;
        }
        append_axis(slice, mesh, axes[i]);
    }
    *out = slice;
    return TSR_OK;
}

/* Names and sizes of the mesh that is to come out, before anything is made. */
static tsr_status check_result(const tsr_mesh_axis *axes, int count, const char *what)
{
    int cells = 0;

    if (count > TSR_MESH_MAX_AXES) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s gives a mesh of %d axes, at most %d", what, count,
                         TSR_MESH_MAX_AXES);
    }
    TSR_TRY(tsri_mesh_check_axes(axes, count, &cells));
    return TSR_OK;
}

/* Append factors to list[count], neighbours that follow each other as one; the new count. */
static int append_factors(tsri_mesh_factor *list, int count, const tsri_mesh_factor *factors,
                          int more)
{
    for (int i = 0; i < more; i++) {
        tsri_mesh_factor *last = count > 0 ? &list[count - 1] : NULL;

        if (last != NULL && last->stride == factors[i].size * factors[i].stride) {
            last->size *= factors[i].size;
            last->stride = factors[i].stride;
        } else {
            list[count++] = factors[i];
        }
    }
    return count;
}

/* The axes of mesh with one in place of those of mask. */
static tsr_status check_flat(const tsr_mesh *mesh, unsigned mask, tsr_mesh_axis one)
{
    tsr_mesh_axis result[TSR_MESH_MAX_AXES];
    int count = 0;
    bool placed = false;

    for (int i = 0; i < mesh->axis_count; i++) {
        if ((mask >> i & 1U) == 0) {
            result[count++] = (tsr_mesh_axis){mesh->name[i], mesh->size[i]};
        } else if (!placed) {
            placed = true;
            result[count++] = one;
        }
    }
    TSR_TRY(check_result(result, count, "flatten"));
    return TSR_OK;
}

tsr_status tsr_mesh_flatten(const tsr_mesh *mesh, const char *const *names, int count,
                            const char *name, tsr_mesh **out)
{
    TSRI_WANT(mesh, name, out);
    TSRI_WANT_EACH(names, count);

    tsri_mesh_factor factors[TSRI_MESH_MAX_FACTORS];
    int axes[TSR_MESH_MAX_AXES];
    tsr_mesh *flat = NULL;
    unsigned mask = 0;
    int factor_count = 0;
    int size = 1;
    bool placed = false;

    TSR_TRY(find_named_axes(mesh, names, count, "flatten", axes, &mask));
    for (int i = 0; i < count; i++) {
        const int first = mesh->first[axes[i]];

        size *= mesh->size[axes[i]];
        factor_count = append_factors(factors, factor_count, &mesh->factor[first],
                                      mesh->first[axes[i] + 1] - first);
    }
    TSR_TRY(check_flat(mesh, mask, (tsr_mesh_axis){name, size}));
    TSR_TRY(tsri_mesh_new(mesh->root, &flat));
    flat->base = mesh->base;
    for (int i = 0; i < mesh->axis_count; i++) {
        if ((mask >> i & 1U) == 0) {
            append_axis(flat, mesh, i);
        } else if (!placed) {
            placed = true;
            tsri_mesh_append(flat, name, factors, factor_count);
        }
    }
    *out = flat;
    return TSR_OK;
}

/* ---- split ---- */

/* Take size ranks from the fast end of left[*left_count] into taken[], the slowest factor first.
 * false: a factor would have to be cut where it has no boundary. */
static bool take_factors(tsri_mesh_factor *left, int *left_count, int size, tsri_mesh_factor *taken,
                         int *taken_count)
{
    tsri_mesh_factor list[TSRI_MESH_MAX_FACTORS];
    int count = 0;

    while (size > 1) {
        tsri_mesh_factor *last = &left[*left_count - 1];

        if (size % last->size == 0) {
            size /= last->size;
            list[count++] = *last;
            (*left_count)--;
        } else if (last->size % size == 0) {
            list[count++] = (tsri_mesh_factor){size, last->stride};
            last->size /= size;
            last->stride *= size;
            size = 1;
        } else {
            return false;
        }
    }
    for (int i = 0; i < count; i++) {
        taken[i] = list[count - 1 - i];
    }
    *taken_count = count;
    return true;
}

static tsr_status check_parts(const tsr_mesh *mesh, int axis, const tsr_mesh_axis *parts, int count)
{
    tsr_mesh_axis result[2 * TSR_MESH_MAX_AXES];
    char text[AXES_TEXT_BYTES];
    int64_t product = 1;
    int result_count = 0;

    if (parts == NULL || count < 1 || count > TSR_MESH_MAX_AXES) {
        return TSR_RAISE(TSR_ERR_INVALID, "split of axis \"%s\" into %d, wants 1..%d",
                         mesh->name[axis], count, TSR_MESH_MAX_AXES);
    }
    for (int i = 0; i < mesh->axis_count; i++) {
        if (i != axis) {
            result[result_count++] = (tsr_mesh_axis){mesh->name[i], mesh->size[i]};
            continue;
        }
        memcpy(&result[result_count], parts, (size_t)count * sizeof(*parts));
        result_count += count;
    }
    TSR_TRY(check_result(result, result_count, "split"));
    for (int i = 0; i < count; i++) {
        product *= parts[i].size;
    }
    if (product != mesh->size[axis]) {
        tsri_mesh_format_axes(parts, count, text, sizeof(text));
        return TSR_RAISE(TSR_ERR_INVALID, "split of axis \"%s\" of %d ranks into %s, which is %lld",
                         mesh->name[axis], mesh->size[axis], text, (long long)product);
    }
    return TSR_OK;
}

tsr_status tsr_mesh_split(const tsr_mesh *mesh, const char *name, const tsr_mesh_axis *parts,
                          int count, tsr_mesh **out)
{
    TSRI_WANT(mesh, name, out);
    TSRI_WANT_LIST(parts, count);

    tsri_mesh_factor part[TSR_MESH_MAX_AXES][TSRI_MESH_MAX_FACTORS];
    tsri_mesh_factor left[TSRI_MESH_MAX_FACTORS];
    int part_count[TSR_MESH_MAX_AXES] = {0};
    tsr_mesh *split = NULL;
    int left_count = 0;
    int axis = 0;

    TSR_TRY(find_axis(mesh, name, "split", &axis));
    TSR_TRY(check_parts(mesh, axis, parts, count));
    left_count = mesh->first[axis + 1] - mesh->first[axis];
    memcpy(left, &mesh->factor[mesh->first[axis]], (size_t)left_count * sizeof(left[0]));
    for (int i = count - 1; i >= 0; i--) {
        if (!take_factors(left, &left_count, parts[i].size, part[i], &part_count[i])) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "split of axis \"%s\", flattened from axes that do not adjoin: \"%s\" "
                             "of %d is not cut between them",
                             name, parts[i].name, parts[i].size);
        }
    }
    TSR_TRY(tsri_mesh_new(mesh->root, &split));
    split->base = mesh->base;
    for (int i = 0; i < mesh->axis_count; i++) {
        if (i != axis) {
            append_axis(split, mesh, i);
        }
        for (int k = 0; i == axis && k < count; k++) {
            tsri_mesh_append(split, parts[k].name, part[k], part_count[k]);
        }
    }
    *out = split;
    return TSR_OK;
}

/* ---- join ---- */

static const char *find_overlap(const tsr_mesh *mesh, const tsri_mesh_factor *factor)
{
    for (int i = 0; i < mesh->axis_count; i++) {
        for (int f = mesh->first[i]; f < mesh->first[i + 1]; f++) {
            const tsri_mesh_factor *other = &mesh->factor[f];

            if (factor->stride < other->stride * other->size &&
                other->stride < factor->stride * factor->size) {
                return mesh->name[i];
            }
        }
    }
    return NULL;
}

/* The root cell that both have; -1: none. */
static int common_cell(const tsr_mesh *a, const tsr_mesh *b)
{
    int digit[TSRI_MESH_MAX_FACTORS];

    for (int cell = 0; cell < a->root->cell_count; cell++) {
        if (tsri_mesh_digits(a, cell, digit) && tsri_mesh_digits(b, cell, digit)) {
            return cell;
        }
    }
    return -1;
}

/* Append the axes of mesh, number index in the list, to sum. */
static tsr_status join_one(tsr_mesh *sum, const tsr_mesh *mesh, int index)
{
    int cell = -1;

    if (mesh->root != sum->root) {
        return TSR_RAISE(TSR_ERR_INVALID, "join: mesh %d is of another root than mesh 0", index);
    }
    for (int i = 0; i < mesh->axis_count; i++) {
        for (int f = mesh->first[i]; f < mesh->first[i + 1]; f++) {
            const char *name = find_overlap(sum, &mesh->factor[f]);

            if (name != NULL) {
                return TSR_RAISE(TSR_ERR_INVALID, "join: axis \"%s\" of mesh %d overlaps \"%s\"",
                                 mesh->name[i], index, name);
            }
        }
    }
    cell = common_cell(sum, mesh);
    if (cell < 0) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "join: mesh %d has no rank in common with those before it", index);
    }
    sum->base += mesh->base - cell;
    for (int i = 0; i < mesh->axis_count; i++) {
        append_axis(sum, mesh, i);
    }
    return TSR_OK;
}

static tsr_status check_joined(const tsr_mesh *const *meshes, int count)
{
    tsr_mesh_axis result[TSR_MESH_MAX_AXES];
    int result_count = 0;

    for (int k = 0; k < count; k++) {
        for (int i = 0; i < meshes[k]->axis_count; i++) {
            if (result_count < TSR_MESH_MAX_AXES) {
                result[result_count] = (tsr_mesh_axis){meshes[k]->name[i], meshes[k]->size[i]};
            }
            result_count++;
        }
    }
    TSR_TRY(check_result(result, result_count, "join"));
    return TSR_OK;
}

tsr_status tsr_mesh_join(const tsr_mesh *const *meshes, int count, tsr_mesh **out)
{
    TSRI_WANT(out);
    TSRI_WANT_EACH(meshes, count);

    tsr_status status = TSR_OK;
    tsr_mesh *sum = NULL;

    if (meshes == NULL || count < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "join of %d meshes, wants at least 1", count);
    }
    TSR_TRY(check_joined(meshes, count));
    TSR_TRY(tsri_mesh_new(meshes[0]->root, &sum));
    sum->base = meshes[0]->base;
    for (int i = 0; i < meshes[0]->axis_count; i++) {
        append_axis(sum, meshes[0], i);
    }
    for (int k = 1; k < count; k++) {
        TSR_TRY_GOTO(status, join_one(sum, meshes[k], k), release);
    }
    *out = sum;
    return TSR_OK;

release:
    tsr_mesh_release(&sum);
    return status;
}
