/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_layout_tiles.c
 * Over random meshes, shapes, placements and orders: every element of a tensor lies on exactly one
 * rank of each set of ranks that differ only along sharding axes, and pieces follow the ceil rule.
 */
#include "base/base.h"
#include "base/rng.h"

#include "tessera/layout.h"

#include <string.h>

#include "support/tsr_test.h"

enum {
    ROUNDS = 400,
    MAX_RANKS = 48,
    MAX_ELEMENTS = 7 * 7 * 7
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
    static const int sizes[] = {1, 2, 3, 4, 5};
    tsr_mesh_axis axes[4];
    tsr_mesh *mesh = NULL;
    int count = 1 + pick(c, 4);
    int world = 1;

    for (int i = 0; i < count; i++) {
        int size = sizes[pick(c, 5)];
        if (world * size > MAX_RANKS) {
            size = 1;
        }
        axes[i] = (tsr_mesh_axis){names[i], size};
        world *= size;
    }
    CHECK_OK(tsr_mesh_create(world, axes, count, NULL, &mesh));
    return mesh;
}

static tsr_layout random_layout(chance *c, const tsr_mesh *mesh)
{
    int64_t shape[3];
    int ndim = pick(c, 4);
    int axis_count = tsr_mesh_axis_count(mesh);
    tsr_layout layout = {0};

    for (int d = 0; d < ndim; d++) {
        shape[d] = pick(c, 8);
    }
    CHECK_OK(tsr_layout_init(mesh, shape, ndim, &layout));
    for (int axis = 0; axis < axis_count; axis++) {
        tsr_placement_kind kind = (tsr_placement_kind)pick(c, 3);
        int other = axis + pick(c, axis_count - axis);
        signed char swapped = layout.order[axis];

        if (ndim > 0 && pick(c, 3) > 0) {
            kind = TSR_SHARD;
        }
        if (ndim == 0 && kind == TSR_SHARD) {
            kind = TSR_REPLICATE;
        }
        layout.place[axis].kind = kind;
        layout.place[axis].dim = kind == TSR_SHARD ? pick(c, ndim) : 0;
        layout.order[axis] = layout.order[other];
        layout.order[other] = swapped;
    }
    return layout;
}

/* Number of the set of ranks to which rank belongs: its coordinates on axes that do not shard. */
static int set_of(const tsr_layout *layout, const int *coord)
{
    int set = 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        if (layout->place[axis].kind != TSR_SHARD) {
            set = set * tsr_mesh_axis_size(layout->mesh, axis) + coord[axis];
        }
    }
    return set;
}

static void mark(const tsr_layout *layout, const int64_t *shape, const int64_t *offset,
                 unsigned char *seen)
{
    int64_t extent[3] = {1, 1, 1};
    int64_t local[3] = {1, 1, 1};
    int64_t start[3] = {0, 0, 0};

    for (int d = 0; d < layout->ndim; d++) {
        extent[d] = layout->shape[d];
        local[d] = shape[d];
        start[d] = offset[d];
        CHECK(local[d] >= 0 && start[d] >= 0 && start[d] + local[d] <= extent[d]);
        CHECK(local[d] > 0 || start[d] == extent[d]);
    }
    for (int64_t i = 0; i < local[0]; i++) {
        for (int64_t j = 0; j < local[1]; j++) {
            for (int64_t k = 0; k < local[2]; k++) {
                seen[((start[0] + i) * extent[1] + start[1] + j) * extent[2] + start[2] + k]++;
            }
        }
    }
}

static void tiles_exactly_once(void)
{
    static unsigned char seen[MAX_RANKS][MAX_ELEMENTS];
    chance c = {.key = 2024};

    for (int round = 0; round < ROUNDS; round++) {
        tsr_mesh *mesh = random_mesh(&c);
        tsr_layout layout = random_layout(&c, mesh);
        int64_t count = 1;
        int sets = 0;

        memset(seen, 0, sizeof(seen));
        for (int rank = 0; rank < tsr_mesh_cell_count(mesh); rank++) {
            int64_t shape[TSR_MAX_DIMS];
            int64_t offset[TSR_MAX_DIMS];
            int coord[TSR_MESH_MAX_AXES];
            int set = 0;

            CHECK_OK(tsr_mesh_coord(mesh, rank, coord));
            CHECK_OK(tsr_layout_local(&layout, rank, shape, offset));
            set = set_of(&layout, coord);
            sets = set >= sets ? set + 1 : sets;
            mark(&layout, shape, offset, seen[set]);
        }
        for (int d = 0; d < layout.ndim; d++) {
            count *= layout.shape[d];
        }
        for (int set = 0; set < sets; set++) {
            int64_t wrong = 0;
            for (int64_t i = 0; i < MAX_ELEMENTS; i++) {
                wrong += seen[set][i] != (i < count ? 1 : 0);
            }
            CHECK_EQ(wrong, 0);
        }
        tsr_mesh_release(&mesh);
    }
}

/* The piece along one axis alone is what the rule says, written out once more. */
static void ceil_rule(void)
{
    for (int ranks = 1; ranks <= 5; ranks++) {
        for (int64_t n = 0; n <= 16; n++) {
            const tsr_mesh_axis axis = {"a", ranks};
            tsr_mesh *mesh = NULL;
            tsr_layout layout;
            int64_t left = n;

            CHECK_OK(tsr_mesh_create(ranks, &axis, 1, NULL, &mesh));
            CHECK_OK(tsr_layout_init(mesh, &n, 1, &layout));
            CHECK_OK(tsr_layout_place(&layout, "a", (tsr_placement){.kind = TSR_SHARD}));
            for (int rank = 0; rank < ranks; rank++) {
                int64_t most = n / ranks + (n % ranks != 0);
                int64_t shape = -1;
                int64_t offset = -1;

                CHECK_OK(tsr_layout_local(&layout, rank, &shape, &offset));
                CHECK_EQ(shape, left < most ? left : most);
                CHECK_EQ(offset, shape > 0 ? n - left : n);
                left -= shape;
            }
            CHECK_EQ(left, 0);
            tsr_mesh_release(&mesh);
        }
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"tiles_exactly_once", tiles_exactly_once},
    {"ceil_rule", ceil_rule},
    {NULL, NULL},
};
