/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_redistribute_calls.c
 * Random redistributions as every rank of worlds up to 30, simulated one after the other: all
 * ranges lie within their buffers (dispatch refuses others), and the members of each group make the
 * same calls with the same counts in the same order, so none can wait for one that does not come.
 */
#include "base/base.h"
#include "base/rng.h"

#include <string.h>

#include "dtensor/dtensor.h"
#include "support/tsr_test.h"

enum {
    ROUNDS = 40,
    MAX_RANKS = 30,
    MAX_CALLS = 16
};

typedef struct calls {
    int count;
    struct {
        int op;
        unsigned mask;
        size_t bytes;
    } call[MAX_CALLS];
} calls;

typedef struct chance {
    uint64_t key, index;
} chance;

static int pick(chance *c, int count)
{
    return (int)(tsri_rng_word(c->key, c->index++) % (uint32_t)count);
}

static tsr_mesh *random_mesh(chance *c)
{
    static const int sizes[][3] = {{3, 5, 2}, {5, 1, 3}, {2, 2, 5},
                                   {3, 3, 3}, {2, 7, 2}, {1, 5, 5}};
    const int *size = sizes[pick(c, 6)];
    const tsr_mesh_axis axes[] = {{"a", size[0]}, {"b", size[1]}, {"c", size[2]}};
    tsr_mesh *mesh = NULL;

    CHECK_OK(tsr_mesh_create(size[0] * size[1] * size[2], axes, 3, NULL, &mesh));
    return mesh;
}

static void place_randomly(chance *c, tsr_layout *layout, const tsr_layout *from)
{
    for (int axis = 0; axis < 3; axis++) {
        int other = axis + pick(c, 3 - axis);
        signed char swapped = layout->order[axis];

        layout->order[axis] = layout->order[other];
        layout->order[other] = swapped;
        layout->place[axis] = (tsr_placement){.kind = TSR_SHARD, .dim = pick(c, 3)};
        if (pick(c, 3) == 0) {
            layout->place[axis] = (tsr_placement){.kind = TSR_REPLICATE};
        }
        if ((from == NULL || from->place[axis].kind == TSR_PARTIAL) && pick(c, 4) == 0) {
            layout->place[axis] = (tsr_placement){.kind = TSR_PARTIAL};
        }
    }
}

/* Redistribute as rank; its calls to out. */
static void run_rank(int rank, const tsr_layout *from, const tsr_layout *to, tsr_mesh *mesh,
                     calls *out)
{
    const tsr_world_options options = {
        .backend = "sim", .sim_rank = rank, .sim_size = tsr_mesh_cell_count(mesh)};
    tsr_world *world = NULL;
    tsr_comm *comm = NULL;
    tsr_dtensor *tensor = NULL;
    tsr_dtensor *moved = NULL;
    const tsri_entry *entries = NULL;
    int count = 0;

    out->count = 0;
    REQUIRE_OK(tsr_world_open(NULL, NULL, &options, &world));
    CHECK_OK(
        tsr_comm_open(world, mesh, &(tsr_comm_options){.record = true, .race_check = true}, &comm));
    CHECK_OK(tsr_dtensor_create(comm, from, TSR_BF16, "x", &tensor));
    tsri_recorder_clear(tsri_comm_device(comm));
    CHECK_OK(tsri_redistribute(
        tensor, to, &(tsri_redistribute_options){.persistent = true, .reduce_dtype = TSR_F32},
        &moved));
    entries = tsri_recorder_entries(tsri_comm_device(comm), &count);
    for (int i = 0; i < count; i++) {
        if (entries[i].kind == TSRI_ENTRY_COLLECTIVE && out->count < MAX_CALLS) {
            out->call[out->count].op = entries[i].op;
            out->call[out->count].mask = entries[i].axis_mask;
            out->call[out->count].bytes = entries[i].bytes;
            out->count++;
        }
    }
    CHECK(out->count <= tsri_redistribute_cost(from, to));
    tsr_dtensor_release(&moved);
    tsr_dtensor_release(&tensor);
    tsr_comm_release(&comm);
    tsr_world_close(&world);
}

/* The n-th call of one rank over mask, or -1. */
static int find_call(const calls *one, unsigned mask, int n)
{
    for (int i = 0; i < one->count; i++) {
        if (one->call[i].mask == mask && n-- == 0) {
            return i;
        }
    }
    return -1;
}

static bool call_alike(const calls *one, const calls *two, unsigned mask)
{
    for (int n = 0;; n++) {
        int i = find_call(one, mask, n);
        int j = find_call(two, mask, n);

        if (i < 0 || j < 0) {
            return i == j;
        }
        if (one->call[i].op != two->call[j].op || one->call[i].bytes != two->call[j].bytes) {
            return false;
        }
    }
}

/* Each rank against the first of its group, for every set of axes. Groups that overlap cannot wait
 * in a circle: plans are equal, so all ranks come to their groups in one order. */
static int64_t count_mismatches(const tsr_mesh *mesh, const calls *all)
{
    int64_t mismatches = 0;

    for (unsigned mask = 1; mask < 8; mask++) {
        for (int rank = 0; rank < tsr_mesh_cell_count(mesh); rank++) {
            int members[MAX_RANKS];
            int count = 0;
            int index = 0;

            CHECK_OK(tsr_mesh_flat_ranks(mesh, mask, rank, members, &count, &index));
            mismatches += !call_alike(&all[rank], &all[members[0]], mask);
        }
    }
    return mismatches;
}

static void members_call_alike(void)
{
    static calls all[MAX_RANKS];
    chance c = {.key = 4711};
    int64_t collectives = 0;

    for (int round = 0; round < ROUNDS; round++) {
        tsr_mesh *mesh = random_mesh(&c);
        const int64_t shape[] = {pick(&c, 40), 1 + pick(&c, 31), 30};
        tsr_layout from;
        tsr_layout to;

        CHECK_OK(tsr_layout_init(mesh, shape, 3, &from));
        to = from;
        place_randomly(&c, &from, NULL);
        place_randomly(&c, &to, &from);
        for (int rank = 0; rank < tsr_mesh_cell_count(mesh); rank++) {
            run_rank(rank, &from, &to, mesh, &all[rank]);
            collectives += all[rank].count;
        }
        CHECK_EQ(count_mismatches(mesh, all), 0);
        tsr_mesh_release(&mesh);
    }
    CHECK(collectives > ROUNDS);
}

const tsr_test_case tsr_test_cases[] = {
    {"members_call_alike", members_call_alike},
    {NULL, NULL},
};
