/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_mesh_algebra_random.c
 * Chains of slice, flatten, split and join against a table of ranks that is permuted by hand.
 *
 * The table knows no strides: it is the ranks in row-major order beside names and sizes. Random
 * rank orders, sizes 1 and those that are not powers of two included.
 */
#include "base/base.h"
#include "base/rng.h"

#include "tessera/mesh_algebra.h"

#include <string.h>

#include "support/tsr_test.h"

enum {
    ROUNDS = 600,
    STEPS = 5,
    MAX_RANKS = 120
};

typedef struct chance {
    uint64_t key, index;
} chance;

typedef struct table {
    int count;
    int size[TSR_MESH_MAX_AXES];
    char name[TSR_MESH_MAX_AXES][TSR_MESH_NAME_BYTES];
    int rank[MAX_RANKS];
} table;

/* What all rounds did, so that no kind of step is silently left out. */
typedef struct tally {
    int slices, flattens, splits, refused, joins;
} tally;

static int pick(chance *c, int count)
{
    return (int)(tsri_rng_word(c->key, c->index++) % (uint32_t)count);
}

static int cells_of(const table *t)
{
    int cells = 1;

    for (int i = 0; i < t->count; i++) {
        cells *= t->size[i];
    }
    return cells;
}

static void coord_of(const table *t, int cell, int *coord)
{
    for (int i = t->count - 1; i >= 0; i--) {
        coord[i] = cell % t->size[i];
        cell /= t->size[i];
    }
}

static int cell_at(const table *t, const int *coord)
{
    int cell = 0;

    for (int i = 0; i < t->count; i++) {
        cell = cell * t->size[i] + coord[i];
    }
    return cell;
}

static void random_order(chance *c, int *order, int count)
{
    for (int i = 0; i < count; i++) {
        order[i] = i;
    }
    for (int i = count - 1; i > 0; i--) {
        const int j = pick(c, i + 1);
        const int other = order[j];

        order[j] = order[i];
        order[i] = other;
    }
}

static tsr_mesh *random_root(chance *c, table *t)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 6};
    tsr_mesh_axis axes[4];
    tsr_mesh *mesh = NULL;
    int world = 1;

    t->count = 1 + pick(c, 4);
    for (int i = 0; i < t->count; i++) {
        int size = sizes[pick(c, 6)];

        if (world * size > MAX_RANKS) {
            size = 1;
        }
        world *= size;
        t->size[i] = size;
        (void)snprintf(t->name[i], sizeof(t->name[i]), "r%d", i);
        axes[i] = (tsr_mesh_axis){t->name[i], size};
    }
    random_order(c, t->rank, world);
    CHECK_OK(
        tsr_mesh_create(world, axes, t->count, &(tsr_mesh_options){.rank_order = t->rank}, &mesh));
    return mesh;
}

static void check_same(const tsr_mesh *mesh, const table *t)
{
    int coord[TSR_MESH_MAX_AXES];
    int back[TSR_MESH_MAX_AXES];

    REQUIRE_EQ(tsr_mesh_axis_count(mesh), t->count);
    REQUIRE_EQ(tsr_mesh_cell_count(mesh), cells_of(t));
    for (int i = 0; i < t->count; i++) {
        CHECK_EQ(tsr_mesh_axis_size(mesh, i), t->size[i]);
        CHECK_STR(tsr_mesh_axis_name(mesh, i), t->name[i]);
    }
    for (int cell = 0; cell < cells_of(t); cell++) {
        int rank = -1;

        coord_of(t, cell, coord);
        REQUIRE_OK(tsr_mesh_rank(mesh, coord, &rank));
        REQUIRE_EQ(rank, t->rank[cell]);
        REQUIRE_OK(tsr_mesh_coord(mesh, rank, back));
        REQUIRE_EQ(memcmp(coord, back, sizeof(int) * (size_t)t->count), 0);
    }
}

/* Some axes of t in a random order. */
static int random_axes(chance *c, const table *t, int *axes, const char **names)
{
    int count = 1 + pick(c, t->count);

    random_order(c, axes, t->count);
    for (int i = 0; i < count; i++) {
        names[i] = t->name[axes[i]];
    }
    return count;
}

/* The table with these axes only, others as in the cell of coordinate fixed[]. */
static void take_axes(const table *t, const int *axes, int count, const int *fixed, table *out)
{
    int coord[TSR_MESH_MAX_AXES];
    int at[TSR_MESH_MAX_AXES];

    *out = (table){.count = count};
    for (int i = 0; i < count; i++) {
        out->size[i] = t->size[axes[i]];
        memcpy(out->name[i], t->name[axes[i]], sizeof(out->name[i]));
    }
    for (int cell = 0; cell < cells_of(out); cell++) {
        memcpy(at, fixed, sizeof(at));
        coord_of(out, cell, coord);
        for (int i = 0; i < count; i++) {
            at[axes[i]] = coord[i];
        }
        out->rank[cell] = t->rank[cell_at(t, at)];
    }
}

static void slice(chance *c, tsr_mesh **mesh, table *t)
{
    const char *names[TSR_MESH_MAX_AXES];
    int axes[TSR_MESH_MAX_AXES] = {0};
    int fixed[TSR_MESH_MAX_AXES] = {0};
    const int count = random_axes(c, t, axes, names);
    const int cell = pick(c, cells_of(t));
    tsr_mesh *next = NULL;
    table want;

    coord_of(t, cell, fixed);
    take_axes(t, axes, count, fixed, &want);
    REQUIRE_OK(tsr_mesh_slice(*mesh, names, count, t->rank[cell], &next));
    tsr_mesh_release(mesh);
    *mesh = next;
    *t = want;
}

/* Transpose so that the flattened axes stand together where the first of them was, then merge. */
static void flatten(chance *c, tsr_mesh **mesh, table *t, int number)
{
    const char *names[TSR_MESH_MAX_AXES];
    int axes[TSR_MESH_MAX_AXES] = {0};
    int order[TSR_MESH_MAX_AXES] = {0};
    int fixed[TSR_MESH_MAX_AXES] = {0};
    bool in[TSR_MESH_MAX_AXES] = {false};
    const int count = random_axes(c, t, axes, names);
    char name[TSR_MESH_NAME_BYTES];
    tsr_mesh *next = NULL;
    table moved;
    table want = {.count = 0};
    int moved_count = 0;
    bool placed = false;

    (void)snprintf(name, sizeof(name), "f%d", number);
    for (int i = 0; i < count; i++) {
        in[axes[i]] = true;
    }
    for (int i = 0; i < t->count; i++) {
        if (!in[i]) {
            order[moved_count++] = i;
            want.size[want.count] = t->size[i];
            memcpy(want.name[want.count++], t->name[i], sizeof(name));
        } else if (!placed) {
            placed = true;
            want.size[want.count] = 1;
            for (int k = 0; k < count; k++) {
                order[moved_count++] = axes[k];
                want.size[want.count] *= t->size[axes[k]];
            }
            memcpy(want.name[want.count++], name, sizeof(name));
        }
    }
    take_axes(t, order, moved_count, fixed, &moved);
    memcpy(want.rank, moved.rank, sizeof(want.rank));
    REQUIRE_OK(tsr_mesh_flatten(*mesh, names, count, name, &next));
    tsr_mesh_release(mesh);
    *mesh = next;
    *t = want;
}

/* By strides a cell is a sum over its coordinates; whether the cells of t's ranks are. */
static bool is_sum(const table *t, const int *cell_of)
{
    const int base = cell_of[t->rank[0]];
    int coord[TSR_MESH_MAX_AXES];

    for (int cell = 0; cell < cells_of(t); cell++) {
        int sum = base;

        coord_of(t, cell, coord);
        for (int i = 0; i < t->count; i++) {
            int alone[TSR_MESH_MAX_AXES] = {0};

            alone[i] = coord[i];
            sum += cell_of[t->rank[cell_at(t, alone)]] - base;
        }
        if (sum != cell_of[t->rank[cell]]) {
            return false;
        }
    }
    return true;
}

static int random_divisor(chance *c, int n)
{
    int d = 1 + pick(c, n);

    while (n % d != 0) {
        d--;
    }
    return d;
}

static void split(chance *c, tsr_mesh **mesh, table *t, const int *cell_of, int number, tally *seen)
{
    const int axis = pick(c, t->count);
    tsr_mesh_axis parts[2];
    char name[2][TSR_MESH_NAME_BYTES];
    tsr_mesh *next = NULL;
    table want = *t;
    tsr_status status = TSR_OK;

    if (t->count == TSR_MESH_MAX_AXES) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        (void)snprintf(name[i], sizeof(name[i]), "s%d_%d", number, i);
        parts[i] = (tsr_mesh_axis){name[i], i == 0 ? random_divisor(c, t->size[axis])
                                                   : t->size[axis] / parts[0].size};
    }
    want.count++;
    for (int i = axis + 2; i < want.count; i++) {
        want.size[i] = t->size[i - 1];
        memcpy(want.name[i], t->name[i - 1], sizeof(want.name[i]));
    }
    for (int i = 0; i < 2; i++) {
        want.size[axis + i] = parts[i].size;
        memcpy(want.name[axis + i], name[i], sizeof(name[i]));
    }
    status = tsr_mesh_split(*mesh, t->name[axis], parts, 2, &next);
    CHECK_EQ(status, is_sum(&want, cell_of) ? TSR_OK : TSR_ERR_INVALID);
    if (status != TSR_OK) {
        seen->refused++;
        tsr_error_clear();
        return;
    }
    seen->splits++;
    tsr_mesh_release(mesh);
    *mesh = next;
    *t = want;
}

/* Cut a slice's axes into two groups, slice each through ranks of its own, join. */
static void join(chance *c, const tsr_mesh *mesh, const table *t)
{
    const char *names[TSR_MESH_MAX_AXES];
    int axes[TSR_MESH_MAX_AXES] = {0};
    int fixed[TSR_MESH_MAX_AXES] = {0};
    const int count = random_axes(c, t, axes, names);
    const int first = pick(c, count + 1);
    tsr_mesh *part[2] = {NULL};
    tsr_mesh *both = NULL;
    table want;

    if (first == 0 || first == count) {
        return;
    }
    coord_of(t, pick(c, cells_of(t)), fixed);
    take_axes(t, axes, count, fixed, &want);
    for (int i = 0; i < 2; i++) {
        int through[TSR_MESH_MAX_AXES];

        /* The same line, named by another of its ranks. */
        memcpy(through, fixed, sizeof(through));
        for (int k = i == 0 ? 0 : first; k < (i == 0 ? first : count); k++) {
            through[axes[k]] = pick(c, t->size[axes[k]]);
        }
        REQUIRE_OK(tsr_mesh_slice(mesh, i == 0 ? names : names + first,
                                  i == 0 ? first : count - first, t->rank[cell_at(t, through)],
                                  &part[i]));
    }
    REQUIRE_OK(tsr_mesh_join((const tsr_mesh *const[]){part[0], part[1]}, 2, &both));
    check_same(both, &want);
    tsr_mesh_release(&both);
    tsr_mesh_release(&part[0]);
    tsr_mesh_release(&part[1]);
}

static void chains_agree_with_a_table(void)
{
    tally seen = {0};

    for (int round = 0; round < ROUNDS; round++) {
        chance c = {.key = tsri_rng_key(7, (uint64_t)round, 0, 0)};
        int cell_of[MAX_RANKS] = {0};
        table t = {.count = 0};
        tsr_mesh *mesh = random_root(&c, &t);

        for (int cell = 0; cell < cells_of(&t); cell++) {
            cell_of[t.rank[cell]] = cell;
        }
        check_same(mesh, &t);
        for (int step = 0; step < STEPS; step++) {
            const int kind = pick(&c, 4);

            if (kind == 0) {
                slice(&c, &mesh, &t);
                seen.slices++;
            } else if (kind == 1) {
                flatten(&c, &mesh, &t, step);
                seen.flattens++;
            } else if (kind == 2) {
                split(&c, &mesh, &t, cell_of, step, &seen);
            } else {
                join(&c, mesh, &t);
                seen.joins++;
            }
            check_same(mesh, &t);
        }
        tsr_mesh_release(&mesh);
    }
    CHECK(seen.slices > 0 && seen.flattens > 0 && seen.splits > 0 && seen.refused > 0 &&
          seen.joins > 0);
}

const tsr_test_case tsr_test_cases[] = {
    {"chains_agree_with_a_table", chains_agree_with_a_table},
    {NULL, NULL},
};
