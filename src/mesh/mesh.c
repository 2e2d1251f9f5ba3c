/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file mesh.c
 * Grid arithmetic: coordinates to cells of the root by strides, cells to ranks by two tables.
 *
 * Every query goes rank -> root cell -> coordinate and back, so a rank order costs nothing and no
 * function but the root's two tables knows of it. Immutable after creation.
 */
#include "mesh_priv.h"

#include <limits.h>
#include <string.h>

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

static tsr_status check_name(const tsr_mesh_axis *axes, int i)
{
    const char *name = axes[i].name;
    size_t length = 0;

    if (name == NULL || name[0] == '\0') {
        return TSR_RAISE(TSR_ERR_INVALID, "mesh axis %d has no name", i);
    }
    length = strlen(name);
    if (length >= TSR_MESH_NAME_BYTES) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "mesh axis name \"%.40s\" has %zu characters, wants 1..%d", name, length,
                         TSR_MESH_NAME_BYTES - 1);
    }
    for (const char *c = name; *c != '\0'; c++) {
        if (!is_name_char(*c)) {
            return TSR_RAISE(TSR_ERR_INVALID,
                             "mesh axis name \"%s\" holds '%c', wants a..z, 0..9 and _", name, *c);
        }
    }
    for (int k = 0; k < i; k++) {
        if (strcmp(axes[k].name, name) == 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "mesh axes %d and %d are both called \"%s\"", k, i,
                             name);
        }
    }
    return TSR_OK;
}

tsr_status tsri_mesh_check_axes(const tsr_mesh_axis *axes, int axis_count, int *cells_out)
{
    int64_t cells = 1;

    if (axes == NULL || axis_count < 1 || axis_count > TSR_MESH_MAX_AXES) {
        return TSR_RAISE(TSR_ERR_INVALID, "a mesh of %d axes, wants 1..%d", axis_count,
                         TSR_MESH_MAX_AXES);
    }
    for (int i = 0; i < axis_count; i++) {
        TSR_TRY(check_name(axes, i));
        if (axes[i].size < 1) {
            return TSR_RAISE(TSR_ERR_INVALID, "mesh axis \"%s\" has size %d, wants at least 1",
                             axes[i].name, axes[i].size);
        }
        cells *= axes[i].size;
        if (cells > INT_MAX) {
            return TSR_RAISE(TSR_ERR_INVALID, "a mesh of more than %d ranks", INT_MAX);
        }
    }
    *cells_out = (int)cells;
    return TSR_OK;
}

void tsri_mesh_format_axes(const tsr_mesh_axis *axes, int axis_count, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < axis_count && used < size; i++) {
        int wrote = snprintf(text + used, size - used, "%s%s=%d", i > 0 ? " " : "", axes[i].name,
                             axes[i].size);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

static tsr_status check_fit(int world_size, const tsr_mesh_axis *axes, int axis_count, int cells,
                            bool allow_remainder)
{
    char text[TSR_MESH_MAX_AXES * (TSR_MESH_NAME_BYTES + 12)];

    if (world_size < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "a mesh over %d ranks, wants at least 1", world_size);
    }
    if (cells > world_size || (cells < world_size && !allow_remainder)) {
        tsri_mesh_format_axes(axes, axis_count, text, sizeof(text));
        return TSR_RAISE(TSR_ERR_INVALID, "mesh %s has %d ranks, the job has %d", text, cells,
                         world_size);
    }
    return TSR_OK;
}

static void release_root(tsri_mesh_root **root)
{
    tsri_mesh_root *old = *root;

    *root = NULL;
    if (old != NULL && atomic_fetch_sub_explicit(&old->owners, 1, memory_order_acq_rel) == 1) {
        tsri_free(&old->cell_of);
        tsri_free(&old->rank_of);
        tsri_free(&old);
    }
}

static tsr_status fill_order(tsri_mesh_root *root, const int *rank_order)
{
    for (int r = 0; r < root->world_size; r++) {
        root->cell_of[r] = -1;
    }
    for (int cell = 0; cell < root->cell_count; cell++) {
        int rank = rank_order != NULL ? rank_order[cell] : cell;

        if (rank < 0 || rank >= root->world_size) {
            return TSR_RAISE(TSR_ERR_INVALID, "rank order puts rank %d at cell %d, wants 0..%d",
                             rank, cell, root->world_size - 1);
        }
        if (root->cell_of[rank] >= 0) {
            return TSR_RAISE(TSR_ERR_INVALID, "rank order puts rank %d at cells %d and %d", rank,
                             root->cell_of[rank], cell);
        }
        root->cell_of[rank] = cell;
        root->rank_of[cell] = rank;
    }
    return TSR_OK;
}

static tsr_status make_root(int world_size, int cells, const int *rank_order, tsri_mesh_root **out)
{
    tsr_status status = TSR_OK;
    tsri_mesh_root *root = NULL;

    TSR_TRY(tsri_alloc(1, sizeof(*root), &root));
    atomic_init(&root->owners, 1);
    root->world_size = world_size;
    root->cell_count = cells;
    TSR_TRY_GOTO(status, tsri_alloc((size_t)cells, sizeof(int), &root->rank_of), release);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)world_size, sizeof(int), &root->cell_of), release);
    TSR_TRY_GOTO(status, fill_order(root, rank_order), release);
    *out = root;
    return TSR_OK;

release:
    release_root(&root);
    return status;
}

tsr_status tsri_mesh_new(tsri_mesh_root *root, tsr_mesh **out)
{
    TSR_TRY(tsri_alloc(1, sizeof(**out), out));
    atomic_init(&(*out)->owners, 1);
    (*out)->cell_count = 1;
    (void)atomic_fetch_add_explicit(&root->owners, 1, memory_order_relaxed);
    (*out)->root = root;
    return TSR_OK;
}

void tsri_mesh_append(tsr_mesh *mesh, const char *name, const tsri_mesh_factor *factors, int count)
{
    const int axis = mesh->axis_count++;
    int end = mesh->first[axis];

    mesh->size[axis] = 1;
    memcpy(mesh->name[axis], name, strlen(name) + 1);
    for (int i = 0; i < count; i++) {
        mesh->factor[end++] = factors[i];
        mesh->size[axis] *= factors[i].size;
    }
    mesh->first[axis + 1] = end;
    mesh->cell_count *= mesh->size[axis];
}

tsr_status tsr_mesh_create(int world_size, const tsr_mesh_axis *axes, int axis_count,
                           const tsr_mesh_options *options, tsr_mesh **out)
{
    TSRI_WANT(out);
    TSRI_WANT_LIST(axes, axis_count);

    static const tsr_mesh_options defaults = {0};
    const tsr_mesh_options *opt = options != NULL ? options : &defaults;
    tsr_status status = TSR_OK;
    tsri_mesh_root *root = NULL;
    tsr_mesh *mesh = NULL;
    int cells = 0;
    int stride = 0;

    TSR_TRY(tsri_mesh_check_axes(axes, axis_count, &cells));
    TSR_TRY(check_fit(world_size, axes, axis_count, cells, opt->allow_remainder));
    TSR_TRY(make_root(world_size, cells, opt->rank_order, &root));
    TSR_TRY_GOTO(status, tsri_mesh_new(root, &mesh), release_root);
    stride = cells;
    for (int i = 0; i < axis_count; i++) {
        const tsri_mesh_factor factor = {axes[i].size, stride / axes[i].size};

        stride = factor.stride;
        tsri_mesh_append(mesh, axes[i].name, &factor, factor.size > 1 ? 1 : 0);
    }
    *out = mesh;

release_root:
    release_root(&root);
    return status;
}

tsr_mesh *tsr_mesh_retain(tsr_mesh *mesh)
{
    TSRI_WANT_OR(mesh, NULL);
    (void)atomic_fetch_add_explicit(&mesh->owners, 1, memory_order_relaxed);
    return mesh;
}

void tsr_mesh_release(tsr_mesh **mesh)
{
    TSRI_WANT_VOID(mesh);

    tsr_mesh *old = *mesh;

    *mesh = NULL;
    if (old != NULL && atomic_fetch_sub_explicit(&old->owners, 1, memory_order_acq_rel) == 1) {
        release_root(&old->root);
        tsri_free(&old);
    }
}

int tsr_mesh_axis_count(const tsr_mesh *mesh)
{
    TSRI_WANT_OR(mesh, 0);
    return mesh->axis_count;
}

int tsr_mesh_axis_size(const tsr_mesh *mesh, int axis)
{
    TSRI_WANT_OR(mesh, 1);
    return axis < 0 || axis >= mesh->axis_count ? 1 : mesh->size[axis];
}

const char *tsr_mesh_axis_name(const tsr_mesh *mesh, int axis)
{
    TSRI_WANT_OR(mesh, "");
    return axis < 0 || axis >= mesh->axis_count ? "?" : mesh->name[axis];
}

int tsr_mesh_cell_count(const tsr_mesh *mesh)
{
    TSRI_WANT_OR(mesh, 0);
    return mesh->cell_count;
}

int tsr_mesh_axis_find(const tsr_mesh *mesh, const char *name)
{
    TSRI_WANT_OR(mesh, -1);
    TSRI_WANT_OR(name, -1);
    for (int i = 0; name != NULL && i < mesh->axis_count; i++) {
        if (strcmp(mesh->name[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

/* The factor with the largest stride below limit; -1: none. */
static int next_factor(const tsr_mesh *mesh, int limit)
{
    int found = -1;

    for (int f = 0; f < mesh->first[mesh->axis_count]; f++) {
        if (mesh->factor[f].stride < limit &&
            (found < 0 || mesh->factor[f].stride > mesh->factor[found].stride)) {
            found = f;
        }
    }
    return found;
}

bool tsri_mesh_digits(const tsr_mesh *mesh, int cell, int *digit)
{
    int rest = cell - mesh->base;

    if (rest < 0) {
        return false;
    }
    for (int f = next_factor(mesh, INT_MAX); f >= 0;
         f = next_factor(mesh, mesh->factor[f].stride)) {
        digit[f] = rest / mesh->factor[f].stride;
        rest %= mesh->factor[f].stride;
        if (digit[f] >= mesh->factor[f].size) {
            return false;
        }
    }
    return rest == 0;
}

tsr_status tsr_mesh_coord(const tsr_mesh *mesh, int rank, int *coord)
{
    TSRI_WANT(mesh, coord);

    int cell = rank < 0 || rank >= mesh->root->world_size ? -1 : mesh->root->cell_of[rank];
    int digit[TSRI_MESH_MAX_FACTORS];

    if (cell < 0 || !tsri_mesh_digits(mesh, cell, digit)) {
        return TSR_RAISE(TSR_ERR_INVALID, "rank %d is outside the mesh of %d ranks", rank,
                         mesh->cell_count);
    }
    for (int i = 0; i < mesh->axis_count; i++) {
        coord[i] = 0;
        for (int f = mesh->first[i]; f < mesh->first[i + 1]; f++) {
            coord[i] = coord[i] * mesh->factor[f].size + digit[f];
        }
    }
    return TSR_OK;
}

tsr_status tsr_mesh_rank(const tsr_mesh *mesh, const int *coord, int *out)
{
    TSRI_WANT(mesh, coord, out);

    int cell = mesh->base;

    for (int i = 0; i < mesh->axis_count; i++) {
        int rest = coord[i];

        if (coord[i] < 0 || coord[i] >= mesh->size[i]) {
            return TSR_RAISE(TSR_ERR_INVALID, "coordinate %d on mesh axis \"%s\", wants 0..%d",
                             coord[i], mesh->name[i], mesh->size[i] - 1);
        }
        for (int f = mesh->first[i + 1] - 1; f >= mesh->first[i]; f--) {
            cell += rest % mesh->factor[f].size * mesh->factor[f].stride;
            rest /= mesh->factor[f].size;
        }
    }
    *out = mesh->root->rank_of[cell];
    return TSR_OK;
}

tsr_status tsr_mesh_axis_ranks(const tsr_mesh *mesh, int axis, int rank, int *ranks)
{
    TSRI_WANT(mesh, ranks);

    int count = 0;
    int index = 0;

    if (axis < 0 || axis >= mesh->axis_count) {
        return TSR_RAISE(TSR_ERR_INVALID, "mesh axis %d, the mesh has %d", axis, mesh->axis_count);
    }
    TSR_TRY(tsr_mesh_flat_ranks(mesh, 1U << axis, rank, ranks, &count, &index));
    return TSR_OK;
}

static tsr_status check_mask(const tsr_mesh *mesh, unsigned axis_mask)
{
    char text[192];
    int axis = mesh->axis_count;

    if (axis_mask >> axis == 0) {
        return TSR_OK;
    }
    while ((axis_mask >> axis & 1U) == 0) {
        axis++;
    }
    return TSR_RAISE(TSR_ERR_INVALID, "axis %d of mesh %s, whose axes are 0 to %d", axis,
                     tsr_mesh_format(mesh, text, sizeof(text)), mesh->axis_count - 1);
}

tsr_status tsr_mesh_flat_ranks(const tsr_mesh *mesh, unsigned axis_mask, int rank, int *ranks,
                               int *count_out, int *index_out)
{
    TSRI_WANT(mesh, ranks, count_out, index_out);

    int coord[TSR_MESH_MAX_AXES] = {0};
    int count = 1;
    int index = 0;

    TSR_TRY(check_mask(mesh, axis_mask));
    TSR_TRY(tsr_mesh_coord(mesh, rank, coord));
    for (int i = 0; i < mesh->axis_count; i++) {
        if ((axis_mask >> i & 1U) != 0) {
            count *= mesh->size[i];
            index = index * mesh->size[i] + coord[i];
        }
    }
    for (int k = 0; k < count; k++) {
        int rest = k;

        for (int i = mesh->axis_count - 1; i >= 0; i--) {
            if ((axis_mask >> i & 1U) != 0) {
                coord[i] = rest % mesh->size[i];
                rest /= mesh->size[i];
            }
        }
        TSR_TRY(tsr_mesh_rank(mesh, coord, &ranks[k]));
    }
    *count_out = count;
    *index_out = index;
    return TSR_OK;
}

const char *tsr_mesh_format(const tsr_mesh *mesh, char *buffer, size_t size)
{
    TSRI_WANT_OR(mesh, "");
    TSRI_WANT_OR(buffer, "");

    tsr_mesh_axis axes[TSR_MESH_MAX_AXES];

    if (size > 0) {
        for (int i = 0; i < mesh->axis_count; i++) {
            axes[i] = (tsr_mesh_axis){mesh->name[i], mesh->size[i]};
        }
        tsri_mesh_format_axes(axes, mesh->axis_count, buffer, size);
    }
    return buffer;
}
