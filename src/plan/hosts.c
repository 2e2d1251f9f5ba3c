/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Bytes between hosts: first the sum per set of axes, then what of it each rank of the host sends
 * out. */
#include "plan/hosts.h"

#include "base/base.h"

enum {
    MASKS = 1 << TSR_MESH_MAX_AXES
};

typedef struct sums {
    double ring[MASKS], all_to_all[MASKS]; /* sent by a rank, by axis mask */
} sums;

static void add_up(const tsri_entry *entries, int count, sums *out)
{
    *out = (sums){0};
    for (int i = 0; i < count; i++) {
        const tsri_entry *e = &entries[i];

        if (e->kind == TSRI_ENTRY_COLLECTIVE && e->axis_mask < MASKS) {
            double *row = e->op == (int)TSRI_ALL_TO_ALL ? out->all_to_all : out->ring;

            row[e->axis_mask] += (double)e->sent_bytes;
        }
    }
}

/* Bytes out of its host that rank sends over the axes of mask. members: room for all ranks. */
static tsr_status count_mask(const sums *s, unsigned mask, const tsr_mesh *mesh, const int *node_of,
                             int rank, int *members, double *sum)
{
    int size = 0;
    int index = 0;
    int away = 0;

    TSR_TRY(tsr_mesh_flat_ranks(mesh, mask, rank, members, &size, &index));
    if (size < 2) {
        return TSR_OK;
    }
    for (int m = 0; m < size; m++) {
        away += node_of[members[m]] != node_of[rank] ? 1 : 0;
    }
    *sum += s->all_to_all[mask] * away / (size - 1);
    if (node_of[members[(index + 1) % size]] != node_of[rank]) {
        *sum += s->ring[mask];
    }
    return TSR_OK;
}

static tsr_status count_rank(const sums *s, const tsr_mesh *mesh, const int *node_of, int rank,
                             int *members, double *out)
{
    const unsigned end = 1U << tsr_mesh_axis_count(mesh);

    *out = 0.0;
    for (unsigned mask = 1; mask < end; mask++) {
        if (s->ring[mask] > 0.0 || s->all_to_all[mask] > 0.0) {
            TSR_TRY(count_mask(s, mask, mesh, node_of, rank, members, out));
        }
    }
    return TSR_OK;
}

tsr_status tsri_host_bytes_count(const tsri_entry *entries, int count, const tsr_mesh *mesh,
                                 const int *node_of, int rank, tsri_host_bytes *out)
{
    const int cells = tsr_mesh_cell_count(mesh);
    tsri_host_bytes found = {0};
    sums s;
    int *members = NULL;
    tsr_status status = TSR_OK;

    if (node_of == NULL) {
        *out = found;
        return TSR_OK;
    }
    add_up(entries, count, &s);
    TSR_TRY(tsri_alloc((size_t)cells, sizeof(*members), &members));
    for (int r = 0; r < cells; r++) {
        double sent = 0.0;

        if (node_of[r] != node_of[rank]) {
            continue;
        }
        TSR_TRY_GOTO(status, count_rank(&s, mesh, node_of, r, members, &sent), free_members);
        found.host += sent;
        found.rank += r == rank ? sent : 0.0;
    }
    *out = found;
free_members:
    tsri_free(&members);
    return status;
}
