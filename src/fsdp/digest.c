/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file digest.c
 * Each rank sums up what it holds of each tensor, and all ranks exchange their sums.
 *
 * A sum does not know in what order or in which pieces it was taken, so the total over the ranks
 * that speak is the same on every mesh; and sums of ranks that hold the same elements are equal.
 */
#include "fsdp/digest.h"

#include "base/base.h"

#include "tessera/fsdp.h"

#include <string.h>

#include "nn/nn.h"

enum {
    CHUNK_ELEMENTS = 1 << 16
};

/* The finaliser of splitmix64: every bit of x moves every bit of the result. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

static uint64_t sum_run(uint64_t key, int64_t position, const unsigned char *values, size_t size,
                        int64_t count)
{
    uint64_t sum = 0;

    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0;

        memcpy(&bits, values + (size_t)i * size, size);
        sum += mix(mix(key + (uint64_t)(position + i) * 0x9e3779b97f4a7c15U) + bits);
    }
    return sum;
}

/* The sum over [begin, end) of the block, which packed holds. */
static uint64_t sum_part(const tsri_rest *rest, int64_t begin, int64_t end, uint64_t key,
                         const unsigned char *packed)
{
    const tsri_piece part = {.block = rest->piece.block, .begin = begin, .end = end};
    const size_t size = tsr_dtype_size(rest->dtype);
    const int64_t runs = tsri_piece_runs(&part);
    uint64_t sum = 0;

    for (int64_t i = 0; i < runs; i++) {
        tsri_run run;

        tsri_piece_run(&part, i, &run);
        sum +=
            sum_run(key, run.global, packed + (size_t)(run.local - begin) * size, size, run.count);
    }
    return sum;
}

static tsr_status sum_item(tsr_comm *comm, const tsri_digest_item *item, unsigned char *packed,
                           uint64_t *out)
{
    const tsri_rest *rest = &item->rest;
    const uint64_t key = tsri_hash_text(item->name);

    *out = 0;
    for (int64_t at = rest->piece.begin; at < rest->piece.end; at += CHUNK_ELEMENTS) {
        const int64_t end = tsri_min64(rest->piece.end, at + CHUNK_ELEMENTS);

        TSR_TRY(tsri_rest_get(rest, at, end, packed, tsri_comm_stream(comm, TSRI_STREAM_COMPUTE)));
        *out += sum_part(rest, at, end, key, packed);
    }
    return TSR_OK;
}

/* Compare item i of the rank at coord, whose sums are mine, with the one that speaks for it. */
static tsr_status compare_digests(const tsri_digest_item *item, int i, int count,
                                  const uint64_t *all, int rank, const int *coord)
{
    const tsr_mesh *mesh = item->rest.layout.outer.mesh;
    const unsigned copies = tsri_rest_copies(&item->rest.layout);
    int first_coord[TSR_MESH_MAX_AXES] = {0};
    int first = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        first_coord[axis] = (copies >> axis & 1U) != 0 ? 0 : coord[axis];
    }
    TSR_TRY(tsr_mesh_rank(mesh, first_coord, &first));
    if (all[rank * count + i] != all[first * count + i]) {
        return TSR_RAISE(TSR_ERR_DISAGREE,
                         "%s differs between replicas: rank %d holds other bytes than rank %d",
                         item->name, rank, first);
    }
    return TSR_OK;
}

static tsr_status add_up(tsr_comm *comm, const tsri_digest_item *items, int count,
                         const uint64_t *all, uint64_t *out)
{
    const tsr_mesh *mesh = tsr_comm_mesh(comm);
    uint64_t sum = 0;

    for (int rank = 0; rank < tsr_mesh_cell_count(mesh); rank++) {
        int coord[TSR_MESH_MAX_AXES] = {0};

        TSR_TRY(tsr_mesh_coord(mesh, rank, coord));
        for (int i = 0; i < count; i++) {
            TSR_TRY(compare_digests(&items[i], i, count, all, rank, coord));
            if (tsri_rest_speaks(&items[i].rest.layout, coord)) {
                sum += all[rank * count + i];
            }
        }
    }
    *out = mix(sum);
    return TSR_OK;
}

tsr_status tsri_digest(tsr_comm *comm, const tsri_digest_item *items, int count, uint64_t *out)
{
    const size_t ranks = (size_t)tsr_world_size(tsr_comm_world(comm));
    const tsr_backend *backend = tsri_comm_device(comm)->backend;
    unsigned char *packed = NULL;
    uint64_t *mine = NULL;
    uint64_t *all = NULL;
    uint64_t sum = 0;
    tsr_status status = TSR_OK;

    if ((backend->caps & TSR_CAP_EXECUTES) == 0) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED, "digest: backend %s holds no bytes", backend->name);
    }
    TSR_TRY_GOTO(status, tsri_alloc(CHUNK_ELEMENTS, sizeof(uint64_t), &packed), out);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)count, sizeof(uint64_t), &mine), out);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)count * ranks, sizeof(uint64_t), &all), out);
    for (int i = 0; i < count; i++) {
        TSR_TRY_GOTO(status, sum_item(comm, &items[i], packed, &mine[i]), out);
    }
    TSR_TRY_GOTO(status,
                 tsri_comm_exchange(comm, "digests", mine, (size_t)count * sizeof(uint64_t), all),
                 out);
    TSR_TRY_GOTO(status, add_up(comm, items, count, all, &sum), out);
    if (out != NULL) {
        *out = sum;
    }
out:
    tsri_free(&all);
    tsri_free(&mine);
    tsri_free(&packed);
    return status;
}

tsr_status tsr_params_digest(tsr_module *model, uint64_t *digest_out)
{
    TSRI_WANT(model);

    tsr_param *const *params = NULL;
    tsri_digest_item *items = NULL;
    int count = 0;
    tsr_status status = TSR_OK;

    if (!model->materialized) {
        return TSR_RAISE(TSR_ERR_STATE,
                         "model \"%s\" has no units yet: call tsr_module_materialize first",
                         model->path);
    }
    TSR_TRY(tsr_module_params(tsri_module_root(model), &params, &count));
    TSR_TRY(tsri_alloc((size_t)count, sizeof(*items), &items));
    for (int i = 0; i < count; i++) {
        items[i] = (tsri_digest_item){params[i]->name, params[i]->master};
    }
    TSR_TRY_GOTO(status, tsri_digest(model->comm, items, count, digest_out), free_items);
free_items:
    tsri_free(&items);
    return status;
}
