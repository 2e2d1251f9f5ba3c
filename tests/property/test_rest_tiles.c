/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_rest_tiles.c
 * Over random meshes, shapes, roles of axes and neighbours in the flat shard: the ranks that speak
 * for a tensor have each of its elements exactly once, ranks along axes of copies have the same,
 * and runs, positions and intervals say the same of a piece.
 */
#include "base/base.h"
#include "base/rng.h"

#include <string.h>

#include "dtensor/rest.h"
#include "support/tsr_test.h"

enum {
    ROUNDS = 600,
    MAX_RANKS = 48,
    TENSORS = 3,
    MAX_ELEMENTS = 9 * 7 * 3 * 2
};

typedef struct chance {
    uint64_t key, index;
} chance;

static int pick(chance *c, int count)
{
    return (int)(tsri_rng_word(c->key, c->index++) % (uint32_t)count);
}

static tsr_mesh *random_mesh(chance *c)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    tsr_mesh_axis axes[4];
    tsr_mesh *mesh = NULL;
    int count = 1 + pick(c, 4);
    int world = 1;

    for (int i = 0; i < count; i++) {
        int size = 1 + pick(c, 4);

        size = world * size > MAX_RANKS ? 1 : size;
        axes[i] = (tsr_mesh_axis){names[i], size};
        world *= size;
    }
    CHECK_OK(tsr_mesh_create(world, axes, count, NULL, &mesh));
    return mesh;
}

/* What an axis does: 0 to 3 are the levels, 4 tensor parallel. */
static void random_roles(chance *c, const tsr_mesh *mesh, int *roles)
{
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        roles[axis] = pick(c, 5);
    }
}

static unsigned axes_of(const tsr_mesh *mesh, const int *roles, int role)
{
    unsigned mask = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        mask |= roles[axis] == role && tsr_mesh_axis_size(mesh, axis) > 1 ? 1U << axis : 0;
    }
    return mask;
}

static tsri_rest_layout random_tensor(chance *c, const tsr_mesh *mesh, const int *roles)
{
    static const int most[] = {9, 7, 3, 2};
    tsri_rest_layout rest = {.shard_axes = axes_of(mesh, roles, 3)};
    int64_t shape[4];
    const int ndim = 1 + pick(c, 4);
    const int kind = pick(c, 3);

    for (int d = 0; d < ndim; d++) {
        shape[d] = 1 + pick(c, most[d]);
    }
    CHECK_OK(tsr_layout_init(mesh, shape, ndim, &rest.outer));
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if (roles[axis] == 4 && kind > 0) {
            rest.outer.place[axis] =
                (tsr_placement){.kind = TSR_SHARD, .dim = ndim > 1 ? kind - 1 : 0};
        }
    }
    rest.shard_dim = ndim > 1 && pick(c, 3) == 0 ? 1 : 0;
    return rest;
}

/* One after the other in a flat shard, each in a room for the largest piece of any rank. */
static void place(const tsr_mesh *mesh, const int *roles, tsri_rest_layout *rest)
{
    const tsri_flat flat = {{axes_of(mesh, roles, 2), axes_of(mesh, roles, 1)}, 0};
    const int64_t split =
        (int64_t)tsri_flat_ranks(mesh, flat.axes[0]) * tsri_flat_ranks(mesh, flat.axes[1]);
    int64_t count = 0;

    for (int i = 0; i < TENSORS; i++) {
        rest[i].flat_at = count;
        count += tsri_rest_room(&rest[i]);
    }
    for (int i = 0; i < TENSORS; i++) {
        rest[i].flat = flat;
        rest[i].flat.count = tsri_ceil_div(count, split) * split;
    }
}

static int64_t count_of(const tsri_rest_layout *rest)
{
    int64_t count = 1;

    for (int d = 0; d < rest->outer.ndim; d++) {
        count *= rest->outer.shape[d];
    }
    return count;
}

/* Runs rise, do not touch, and find counts their elements. */
static void check_runs(const tsri_piece *piece, int64_t count, unsigned char *seen)
{
    const int64_t runs = tsri_piece_runs(piece);
    int64_t local = piece->begin;
    int64_t global = -1;

    for (int64_t i = 0; i < runs; i++) {
        tsri_run run;

        tsri_piece_run(piece, i, &run);
        REQUIRE(run.count > 0 && run.local == local && run.global > global &&
                run.global + run.count <= count);
        for (int64_t e = 0; e < run.count; e++) {
            seen[run.global + e]++;
            CHECK_EQ(tsri_piece_find(piece, run.global + e), run.local + e);
        }
        local += run.count;
        global = run.global + run.count; /* the next does not follow at once */
    }
    CHECK_EQ(local, piece->end);
    CHECK_EQ(tsri_piece_find(piece, 0), piece->begin);
    CHECK_EQ(tsri_piece_find(piece, count), piece->end);
}

/* The rank that speaks for what rank has. */
static int speaker(const tsri_rest_layout *rest, int rank)
{
    const unsigned copies = tsri_rest_copies(rest);
    int coord[TSR_MESH_MAX_AXES];
    int out = -1;

    CHECK_OK(tsr_mesh_coord(rest->outer.mesh, rank, coord));
    for (int axis = 0; axis < tsr_mesh_axis_count(rest->outer.mesh); axis++) {
        coord[axis] = (copies >> axis & 1U) != 0 ? 0 : coord[axis];
    }
    CHECK_OK(tsr_mesh_rank(rest->outer.mesh, coord, &out));
    return out;
}

static void check_tensor(const tsri_rest_layout *rest)
{
    const tsr_mesh *mesh = rest->outer.mesh;
    const int64_t count = count_of(rest);
    unsigned char seen[MAX_ELEMENTS] = {0};
    int64_t wrong = 0;

    CHECK_OK(tsri_rest_check(rest, "tensor"));
    for (int rank = 0; rank < tsr_mesh_cell_count(mesh); rank++) {
        unsigned char other[MAX_ELEMENTS] = {0};
        int coord[TSR_MESH_MAX_AXES];
        tsri_piece piece;
        tsri_piece first;
        tsri_block block;

        CHECK_OK(tsr_mesh_coord(mesh, rank, coord));
        CHECK_OK(tsri_rest_locate(rest, rank, &piece));
        CHECK_OK(tsri_rest_locate(rest, speaker(rest, rank), &first));
        CHECK_OK(tsri_rest_outer(&rest->outer, rank, &block));
        CHECK_EQ(tsri_rest_speaks(rest, coord), speaker(rest, rank) == rank);
        CHECK(memcmp(&piece, &first, sizeof(piece)) == 0);
        CHECK(piece.block.rows * piece.block.cols <= tsri_rest_chunk(rest, &block));
        CHECK(tsri_rest_chunk(rest, &block) <= tsri_rest_room(rest));
        check_runs(&piece, count, tsri_rest_speaks(rest, coord) ? seen : other);
    }
    for (int64_t i = 0; i < MAX_ELEMENTS; i++) {
        wrong += seen[i] != (i < count ? 1 : 0);
    }
    CHECK_EQ(wrong, 0);
}

static void speakers_tile_each_tensor(void)
{
    chance c = {.key = 77};

    for (int round = 0; round < ROUNDS; round++) {
        tsr_mesh *mesh = random_mesh(&c);
        tsri_rest_layout rest[TENSORS];
        int roles[TSR_MESH_MAX_AXES] = {0};

        random_roles(&c, mesh, roles);
        for (int i = 0; i < TENSORS; i++) {
            rest[i] = random_tensor(&c, mesh, roles);
        }
        place(mesh, roles, rest);
        for (int i = 0; i < TENSORS; i++) {
            check_tensor(&rest[i]);
        }
        tsr_mesh_release(&mesh);
    }
}

/* Worked by hand: [5, 4] over shard 2 gives rows 0 to 2 and 3 to 4; of 12 elements each, flat over
 * zero 2 takes halves of the 12 that the flat shard has. */
static void a_small_case(void)
{
    const tsr_mesh_axis axes[] = {{"zero", 2}, {"shard", 2}};
    const int64_t shape[] = {5, 4};
    const tsri_piece want[] = {{{0, 0, 3, 4, 5, 4}, 0, 6},
                               {{3, 0, 2, 4, 5, 4}, 0, 6},
                               {{0, 0, 3, 4, 5, 4}, 6, 12},
                               {{3, 0, 2, 4, 5, 4}, 6, 8}};
    tsri_rest_layout rest = {.shard_axes = 2, .flat = {{1, 0}, 12}};
    tsr_mesh *mesh = NULL;

    CHECK_OK(tsr_mesh_create(4, axes, 2, NULL, &mesh));
    CHECK_OK(tsr_layout_init(mesh, shape, 2, &rest.outer));
    for (int rank = 0; rank < 4; rank++) {
        tsri_piece piece;

        CHECK_OK(tsri_rest_locate(&rest, rank, &piece));
        CHECK(memcmp(&piece, &want[rank], sizeof(piece)) == 0);
    }
    rest.outer.place[0] = (tsr_placement){.kind = TSR_PARTIAL};
    CHECK_STATUS(TSR_ERR_PLACEMENT, tsri_rest_check(&rest, "w"));
    tsr_mesh_release(&mesh);
}

const tsr_test_case tsr_test_cases[] = {
    {"speakers_tile_each_tensor", speakers_tile_each_tensor},
    {"a_small_case", a_small_case},
    {NULL, NULL},
};
