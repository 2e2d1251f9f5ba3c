/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* In what a rank's share of the units differs from another's, by arithmetic. */
#include "fsdp_priv.h"

#include "base/base.h"

#include "fsdp/fsdp.h"

/* Elements of the room of p's chunk whose gradients the rank at coord keeps. */
static int64_t kept_count(const unit *u, const unit_param *p, int64_t chunk, const int *coord)
{
    const tsri_flat flat = {{u->levels.mask[2], 0}, u->flat.train_count};
    int64_t begin = 0;
    int64_t count = 0;
    int64_t end = 0;

    if (!tsri_unit_trains(p)) {
        return 0;
    }
    tsri_flat_interval(&flat, tsr_comm_mesh(u->comm), coord, &begin, &count);
    tsri_intersect(begin, begin + count, p->shard_offset, p->shard_offset + chunk, &begin, &end);
    return end - begin;
}

static tsr_status add_param(const unit *u, const unit_param *p, int rank, const int *coord,
                            uint64_t *hash)
{
    const tsri_rest_layout *layout = &p->param->master.layout;
    tsri_block block;
    tsri_piece own;

    TSR_TRY(tsri_rest_outer(&layout->outer, rank, &block));
    TSR_TRY(tsri_rest_locate(layout, rank, &own));

    const int64_t facts[] = {block.rows,
                             block.cols,
                             own.block.rows,
                             own.block.cols,
                             own.end - own.begin,
                             kept_count(u, p, tsri_rest_chunk(layout, &block), coord),
                             tsri_rest_speaks(layout, coord)};

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

        for (int k = 0; k < u->param_count; k++) {
            TSR_TRY(add_param(u, &u->params[k], rank, coord, &hash));
        }
    }
    *out = hash;
    return TSR_OK;
}
