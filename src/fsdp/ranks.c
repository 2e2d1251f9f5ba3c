/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* In what a rank's share of the units differs from another's, by arithmetic. */
#include "fsdp_priv.h"

#include "base/base.h"

#include "fsdp/fsdp.h"

/* The rank at coord within the axes of mask, flattened. */
static int index_in(const tsr_mesh *mesh, unsigned mask, const int *coord)
{
    int index = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((mask >> axis & 1U) != 0) {
            index = index * tsr_mesh_axis_size(mesh, axis) + coord[axis];
        }
    }
    return index;
}

/* Sums over the mesh take what is replicated from one rank. */
static bool speaks(const tsr_mesh *mesh, unsigned copies, const int *coord)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((copies >> axis & 1U) != 0 && coord[axis] != 0) {
            return false;
        }
    }
    return true;
}

static tsr_status add_param(const unit *u, const unit_param *p, int rank, const int *coord,
                            const int index[4], uint64_t *hash)
{
    const tsr_layout *layout = &p->param->value->layout;
    int64_t shape[TSR_MAX_DIMS] = {0};
    int64_t offset[TSR_MAX_DIMS] = {0};
    unit_piece piece;

    TSR_TRY(tsr_layout_local(layout, rank, shape, offset));
    tsri_unit_get_piece(u, p, shape[0], layout->ndim == 2 ? shape[1] : 1, index, &piece);

    const int64_t facts[] = {shape[0],
                             shape[1],
                             piece.row_count,
                             piece.col_count,
                             piece.own_end - piece.own_begin,
                             piece.grad_end - piece.grad_begin,
                             speaks(layout->mesh, p->param->copy_mask, coord)};

    *hash = tsri_hash(facts, sizeof(facts), *hash);
    return TSR_OK;
}

tsr_status tsri_fsdp_rank_hash(tsr_module *model, int rank, uint64_t *out)
{
    const engine *e = tsri_engine_of(model);
    int coord[TSR_MESH_MAX_AXES] = {0};
    uint64_t hash = 0;

    if (e == NULL) {
        return TSR_RAISE(TSR_ERR_STATE, "ranks of module \"%s\", which is not materialised",
                         tsr_module_path(model));
    }
    TSR_TRY(tsr_mesh_coord(tsr_comm_mesh(e->comm), rank, coord));
    for (int i = 0; i < e->unit_count; i++) {
        const unit *u = e->units[i];
        int index[4];

        for (int level = 0; level < 4; level++) {
            index[level] = index_in(tsr_comm_mesh(e->comm), u->mask[level], coord);
        }
        for (int k = 0; k < u->param_count; k++) {
            TSR_TRY(add_param(u, &u->params[k], rank, coord, index, &hash));
        }
    }
    *out = hash;
    return TSR_OK;
}
