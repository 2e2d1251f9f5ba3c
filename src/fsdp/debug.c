/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Looking at a run: parameters without a gradient, and whether replicas still agree. */
#include "fsdp_priv.h"

#include "base/base.h"

#include "tessera/world.h"

int tsri_engine_unreached(const engine *e, const char **names, int capacity)
{
    int count = 0;

    for (int i = 0; i < e->unit_count; i++) {
        for (int k = 0; k < e->units[i]->param_count; k++) {
            const unit_param *p = &e->units[i]->params[k];

            if (!tsri_unit_trains(p) || p->reached) {
                continue;
            }
            if (names != NULL && count < capacity) {
                names[count] = p->param->name;
            }
            count++;
        }
    }
    return count;
}

int tsr_params_without_gradient(tsr_module *model, const char **names, int capacity)
{
    TSRI_WANT_OR(model, 0);

    const engine *e = tsri_engine_of(model);

    return e != NULL ? tsri_engine_unreached(e, names, capacity) : 0;
}

/* ---- digest ---- */

typedef struct digest {
    const engine *e;
    tsr_param *const *params;
    int count;
    uint64_t *mine; /* [count]: of what this rank owns */
    uint64_t *all;  /* [ranks][count], by position in the mesh */
    int ranks;
    int *order;    /* [ranks]: world rank at each position */
    int *position; /* [world ranks]: its inverse */
} digest;

static tsr_status hash_own(const digest *d, const tsr_param *p, uint64_t *out)
{
    const tsri_rest *master = &p->master;
    const size_t bytes = tsri_rest_bytes(master);
    void *host = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(bytes, 1, &host));
    TSR_TRY_GOTO(status,
                 tsri_rest_get(master, master->piece.begin, master->piece.end, host,
                               tsri_comm_stream(d->e->comm, TSRI_STREAM_COMPUTE)),
                 free_host);
    *out = tsri_hash(host, bytes, tsri_hash_text(p->name));
free_host:
    tsri_free(&host);
    return status;
}

/* Every rank's hashes to every rank, in order of positions in the mesh. */
static tsr_status exchange(digest *d)
{
    tsr_comm *comm = d->e->comm;
    const tsr_mesh *mesh = tsr_comm_mesh(comm);
    const size_t bytes = (size_t)d->count * sizeof(uint64_t);
    tsr_stream *stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE);
    tsr_group *group = NULL;
    tsr_buffer *buffer = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(
        tsri_comm_group(comm, (1u << tsr_mesh_axis_count(mesh)) - 1u, TSRI_STREAM_COMPUTE, &group));
    TSR_TRY(tsri_comm_buffer(comm, bytes * (size_t)d->ranks, TSRI_MEM_OTHER, "digest", &buffer));
    {
        const size_t own = (size_t)group->index * bytes;
        /* Hashes travel as pairs of integers: a gather moves bits. */
        const tsri_coll_item item = {
            .in = buffer, .in_offset = own, .out = buffer, .count = (int64_t)d->count * 2};
        const tsri_coll coll = {.kind = TSRI_ALL_GATHER,
                                .dtype = TSR_I32,
                                .items = &item,
                                .item_count = 1,
                                .label = "digest"};

        TSR_TRY_GOTO(status, tsri_write(buffer, own, d->mine, bytes, stream), release);
        TSR_TRY_GOTO(status, tsri_collective(group, &coll, stream), release);
        TSR_TRY_GOTO(status, tsri_read(buffer, 0, d->all, bytes * (size_t)d->ranks, stream),
                     release);
    }
release:
    tsri_buffer_release(&buffer);
    return status;
}

/* The rank at coordinate 0 of the axes on which p's owned elements are replicated, else as rank. */
static tsr_status first_replica(const digest *d, const tsr_param *p, int rank, int *out)
{
    const tsr_mesh *mesh = tsr_comm_mesh(d->e->comm);
    const unsigned copies = tsri_rest_copies(&p->master.layout);
    int coord[TSR_MESH_MAX_AXES];

    TSR_TRY(tsr_mesh_coord(mesh, rank, coord));
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        coord[axis] = (copies >> axis & 1u) != 0 ? 0 : coord[axis];
    }
    TSR_TRY(tsr_mesh_rank(mesh, coord, out));
    return TSR_OK;
}

static tsr_status compare(const digest *d)
{
    for (int i = 0; i < d->count; i++) {
        for (int k = 0; k < d->ranks; k++) {
            int first = 0;

            TSR_TRY(first_replica(d, d->params[i], d->order[k], &first));
            if (d->all[(size_t)k * (size_t)d->count + (size_t)i] !=
                d->all[(size_t)d->position[first] * (size_t)d->count + (size_t)i]) {
                return TSR_RAISE(TSR_ERR_DISAGREE,
                                 "parameter %s differs between replicas: rank %d holds other bytes "
                                 "than rank %d",
                                 d->params[i]->name, d->order[k], first);
            }
        }
    }
    return TSR_OK;
}

static tsr_status find_positions(digest *d)
{
    const tsr_mesh *mesh = tsr_comm_mesh(d->e->comm);
    int mine = 0;
    int count = 0;

    TSR_TRY(tsr_mesh_flat_ranks(mesh, (1u << tsr_mesh_axis_count(mesh)) - 1u,
                                tsr_comm_rank(d->e->comm), d->order, &count, &mine));
    for (int k = 0; k < count; k++) {
        d->position[d->order[k]] = k;
    }
    return TSR_OK;
}

static tsr_status run_digest(digest *d, uint64_t *out)
{
    const size_t world = (size_t)tsr_world_size(tsr_comm_world(d->e->comm));

    TSR_TRY(tsri_alloc((size_t)d->count, sizeof(uint64_t), &d->mine));
    TSR_TRY(tsri_alloc((size_t)d->count * (size_t)d->ranks, sizeof(uint64_t), &d->all));
    TSR_TRY(tsri_alloc((size_t)d->ranks, sizeof(int), &d->order));
    TSR_TRY(tsri_alloc(world, sizeof(int), &d->position));
    TSR_TRY(find_positions(d));
    for (int i = 0; i < d->count; i++) {
        TSR_TRY(hash_own(d, d->params[i], &d->mine[i]));
    }
    TSR_TRY(exchange(d));
    TSR_TRY(compare(d));
    if (out != NULL) {
        *out = tsri_hash(d->all, (size_t)d->ranks * (size_t)d->count * sizeof(uint64_t), 0);
    }
    return TSR_OK;
}

tsr_status tsr_params_digest(tsr_module *model, uint64_t *digest_out)
{
    TSRI_WANT(model);

    digest d = {.e = tsri_engine_of(model)};
    tsr_status status = TSR_OK;

    if (d.e == NULL) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "model \"%s\" has no units yet: call tsr_module_materialize first",
                         model->path);
    }
    if ((tsri_comm_device(d.e->comm)->backend->caps & TSR_CAP_EXECUTES) == 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "digest of parameters: backend %s holds no bytes",
                         tsri_comm_device(d.e->comm)->backend->name);
    }
    d.ranks = tsr_mesh_cell_count(tsr_comm_mesh(d.e->comm));
    TSR_TRY(tsr_module_params(tsri_module_root(model), &d.params, &d.count));
    status = run_digest(&d, digest_out);
    tsri_free(&d.mine);
    tsri_free(&d.all);
    tsri_free(&d.order);
    tsri_free(&d.position);
    TSR_TRY(status);
    return TSR_OK;
}
