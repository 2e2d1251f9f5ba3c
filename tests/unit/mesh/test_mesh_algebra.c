/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_mesh_algebra.c
 * Slice, flatten, split and join by example, and every error with its message.
 */
#include "base/base.h"

#include "tessera/mesh_algebra.h"

#include <string.h>

#include "support/tsr_test.h"

#define NAMES(...) \
    (const char *const[]) \
    { \
        __VA_ARGS__ \
    }

/* 24 ranks as a=2 b=3 c=4, in order. */
static tsr_mesh *root(void)
{
    static const tsr_mesh_axis axes[] = {{"a", 2}, {"b", 3}, {"c", 4}};
    tsr_mesh *mesh = NULL;

    CHECK_OK(tsr_mesh_create(24, axes, 3, NULL, &mesh));
    return mesh;
}

/* mesh reads as text, its cells hold ranks[]; takes over the mesh. */
static void check_mesh(tsr_mesh *mesh, const char *text, const int *ranks)
{
    char got[128];
    int coord[TSR_MESH_MAX_AXES];
    int back[TSR_MESH_MAX_AXES];

    REQUIRE(mesh != NULL);
    CHECK_STR(tsr_mesh_format(mesh, got, sizeof(got)), text);
    for (int cell = 0; cell < tsr_mesh_cell_count(mesh); cell++) {
        int rest = cell;
        int rank = -1;

        for (int i = tsr_mesh_axis_count(mesh) - 1; i >= 0; i--) {
            coord[i] = rest % tsr_mesh_axis_size(mesh, i);
            rest /= tsr_mesh_axis_size(mesh, i);
        }
        CHECK_OK(tsr_mesh_rank(mesh, coord, &rank));
        CHECK_EQ(rank, ranks[cell]);
        CHECK_OK(tsr_mesh_coord(mesh, rank, back));
        CHECK(memcmp(coord, back, sizeof(int) * (size_t)tsr_mesh_axis_count(mesh)) == 0);
    }
    tsr_mesh_release(&mesh);
}

static void slices_hold_the_rank_that_was_named(void)
{
    tsr_mesh *mesh = root();
    tsr_mesh *slice = NULL;

    CHECK_OK(tsr_mesh_slice(mesh, NAMES("c"), 1, 21, &slice));
    check_mesh(slice, "c=4", (int[]){20, 21, 22, 23});
    CHECK_OK(tsr_mesh_slice(mesh, NAMES("c", "a"), 2, 5, &slice));
    check_mesh(slice, "c=4 a=2", (int[]){4, 16, 5, 17, 6, 18, 7, 19});
    tsr_mesh_release(&mesh);
}

static void ranks_outside_a_slice_are_refused(void)
{
    tsr_mesh *mesh = root();
    tsr_mesh *slice = NULL;
    int coord[TSR_MESH_MAX_AXES];

    REQUIRE_OK(tsr_mesh_slice(mesh, NAMES("a", "c"), 2, 5, &slice));
    for (int rank = 0; rank < 24; rank++) {
        const bool inside = rank / 4 % 3 == 1;

        CHECK_STATUS(inside ? TSR_OK : TSR_ERR_INVALID, tsr_mesh_coord(slice, rank, coord));
    }
    /* The root may go first. */
    tsr_mesh_release(&mesh);
    CHECK_EQ(tsr_mesh_cell_count(slice), 8);
    tsr_mesh_release(&slice);
}

static void flat_axes_are_row_major_in_the_order_named(void)
{
    static const tsr_mesh_axis axes[] = {{"x", 2}, {"y", 1}, {"z", 3}};
    tsr_mesh *mesh = NULL;
    tsr_mesh *flat = NULL;

    REQUIRE_OK(tsr_mesh_create(6, axes, 3, NULL, &mesh));
    CHECK_OK(tsr_mesh_flatten(mesh, NAMES("z", "x"), 2, "zx", &flat));
    check_mesh(flat, "zx=6 y=1", (int[]){0, 3, 1, 4, 2, 5});
    CHECK_OK(tsr_mesh_flatten(mesh, NAMES("y", "z"), 2, "z", &flat));
    check_mesh(flat, "x=2 z=3", (int[]){0, 1, 2, 3, 4, 5});
    CHECK_OK(tsr_mesh_flatten(mesh, NAMES("y"), 1, "y", &flat));
    check_mesh(flat, "x=2 y=1 z=3", (int[]){0, 1, 2, 3, 4, 5});
    tsr_mesh_release(&mesh);
}

static void split_is_row_major_inside(void)
{
    tsr_mesh *mesh = NULL;
    tsr_mesh *split = NULL;

    REQUIRE_OK(tsr_mesh_create(6, &(tsr_mesh_axis){"x", 6}, 1, NULL, &mesh));
    CHECK_OK(tsr_mesh_split(mesh, "x", (tsr_mesh_axis[]){{"p", 3}, {"q", 1}, {"r", 2}}, 3, &split));
    check_mesh(split, "p=3 q=1 r=2", (int[]){0, 1, 2, 3, 4, 5});
    tsr_mesh_release(&mesh);
}

/* Axes that adjoin are one after flattening, so they can be cut elsewhere than before. */
static void flat_axis_splits_anywhere_if_its_ranks_adjoin(void)
{
    static const tsr_mesh_axis parts[] = {{"p", 4}, {"q", 3}};
    tsr_mesh *mesh = root();
    tsr_mesh *slice = NULL;
    tsr_mesh *flat = NULL;
    tsr_mesh *split = NULL;

    REQUIRE_OK(tsr_mesh_slice(mesh, NAMES("b", "c"), 2, 12, &slice));
    REQUIRE_OK(tsr_mesh_flatten(slice, NAMES("b", "c"), 2, "bc", &flat));
    CHECK_OK(tsr_mesh_split(flat, "bc", parts, 2, &split));
    check_mesh(split, "p=4 q=3", (int[]){12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
    tsr_mesh_release(&flat);
    tsr_mesh_release(&slice);
    tsr_mesh_release(&mesh);
}

static void join_puts_slices_together(void)
{
    tsr_mesh *mesh = root();
    tsr_mesh *a = NULL;
    tsr_mesh *c = NULL;
    tsr_mesh *both = NULL;

    REQUIRE_OK(tsr_mesh_slice(mesh, NAMES("a"), 1, 17, &a));
    REQUIRE_OK(tsr_mesh_slice(mesh, NAMES("c"), 1, 4, &c));
    CHECK_OK(tsr_mesh_join((const tsr_mesh *const[]){c, a}, 2, &both));
    check_mesh(both, "c=4 a=2", (int[]){4, 16, 5, 17, 6, 18, 7, 19});
    tsr_mesh_release(&a);
    tsr_mesh_release(&c);
    tsr_mesh_release(&mesh);
}

/* Two cuts of one axis, of which one part each is taken: 4 i + j with i, j < 3. */
static void join_takes_parts_of_different_cuts(void)
{
    tsr_mesh *mesh = NULL;
    tsr_mesh *cut[2] = {NULL};
    tsr_mesh *part[2] = {NULL};
    tsr_mesh *both = NULL;

    REQUIRE_OK(tsr_mesh_create(12, &(tsr_mesh_axis){"x", 12}, 1, NULL, &mesh));
    REQUIRE_OK(tsr_mesh_split(mesh, "x", (tsr_mesh_axis[]){{"i", 3}, {"k", 4}}, 2, &cut[0]));
    REQUIRE_OK(tsr_mesh_split(mesh, "x", (tsr_mesh_axis[]){{"k", 4}, {"j", 3}}, 2, &cut[1]));
    REQUIRE_OK(tsr_mesh_slice(cut[0], NAMES("i"), 1, 0, &part[0]));
    REQUIRE_OK(tsr_mesh_slice(cut[1], NAMES("j"), 1, 0, &part[1]));
    CHECK_OK(tsr_mesh_join((const tsr_mesh *const[]){part[0], part[1]}, 2, &both));
    check_mesh(both, "i=3 j=3", (int[]){0, 1, 2, 4, 5, 6, 8, 9, 10});
    for (int i = 0; i < 2; i++) {
        tsr_mesh_release(&part[i]);
        tsr_mesh_release(&cut[i]);
    }
    tsr_mesh_release(&mesh);
}

/* ---- errors ---- */

#define CHECK_REFUSED(message, call) \
    do { \
        CHECK_EQ((call), TSR_ERR_INVALID); \
        CHECK_STR(tsr_error_message(), (message)); \
        CHECK(made == NULL); \
        tsr_error_clear(); \
    } while (0)

static void slice_says_what_is_wrong(void)
{
    tsr_mesh *mesh = root();
    tsr_mesh *made = NULL;

    CHECK_REFUSED("slice of 0 axes, wants 1..3", tsr_mesh_slice(mesh, NULL, 0, 0, &made));
    CHECK_REFUSED("slice of 4 axes, wants 1..3",
                  tsr_mesh_slice(mesh, NAMES("a", "b", "c", "a"), 4, 0, &made));
    CHECK_REFUSED("slice names axis \"tp\", the mesh has a=2 b=3 c=4",
                  tsr_mesh_slice(mesh, NAMES("tp"), 1, 0, &made));
    CHECK_REFUSED("slice names axis \"a\" twice",
                  tsr_mesh_slice(mesh, NAMES("a", "a"), 2, 0, &made));
    CHECK_REFUSED("rank 24 is outside the mesh of 24 ranks",
                  tsr_mesh_slice(mesh, NAMES("a"), 1, 24, &made));
    tsr_mesh_release(&mesh);
}

static void flatten_says_what_is_wrong(void)
{
    tsr_mesh *mesh = root();
    tsr_mesh *made = NULL;

    CHECK_REFUSED("flatten of 0 axes, wants 1..3", tsr_mesh_flatten(mesh, NULL, 0, "x", &made));
    CHECK_REFUSED("flatten names axis \"d\", the mesh has a=2 b=3 c=4",
                  tsr_mesh_flatten(mesh, NAMES("a", "d"), 2, "x", &made));
    CHECK_REFUSED("flatten names axis \"b\" twice",
                  tsr_mesh_flatten(mesh, NAMES("b", "b"), 2, "x", &made));
    CHECK_REFUSED("mesh axes 0 and 1 are both called \"c\"",
                  tsr_mesh_flatten(mesh, NAMES("a", "b"), 2, "c", &made));
    CHECK_REFUSED("tsr_mesh_flatten: name is NULL",
                  tsr_mesh_flatten(mesh, NAMES("a", "b"), 2, NULL, &made));
    CHECK_REFUSED("mesh axis name \"A+B\" holds 'A', wants a..z, 0..9 and _",
                  tsr_mesh_flatten(mesh, NAMES("a", "b"), 2, "A+B", &made));
    tsr_mesh_release(&mesh);
}

static void split_says_what_is_wrong(void)
{
    tsr_mesh *mesh = root();
    tsr_mesh *flat = NULL;
    tsr_mesh *made = NULL;
    tsr_mesh_axis many[] = {{"s", 4}, {"t", 1}, {"u", 1}, {"v", 1}, {"w", 1}, {"x", 1}, {"y", 1}};

    CHECK_REFUSED("split names axis \"d\", the mesh has a=2 b=3 c=4",
                  tsr_mesh_split(mesh, "d", many, 1, &made));
    CHECK_REFUSED("split of axis \"c\" into 0, wants 1..8",
                  tsr_mesh_split(mesh, "c", many, 0, &made));
    CHECK_REFUSED("split of axis \"c\" of 4 ranks into p=3 q=2, which is 6",
                  tsr_mesh_split(mesh, "c", (tsr_mesh_axis[]){{"p", 3}, {"q", 2}}, 2, &made));
    CHECK_REFUSED("mesh axis \"p\" has size 0, wants at least 1",
                  tsr_mesh_split(mesh, "c", (tsr_mesh_axis[]){{"p", 0}, {"q", 4}}, 2, &made));
    CHECK_REFUSED("mesh axes 0 and 3 are both called \"a\"",
                  tsr_mesh_split(mesh, "c", (tsr_mesh_axis[]){{"c", 2}, {"a", 2}}, 2, &made));
    CHECK_REFUSED("split gives a mesh of 9 axes, at most 8",
                  tsr_mesh_split(mesh, "c", many, 7, &made));
    REQUIRE_OK(tsr_mesh_flatten(mesh, NAMES("c", "b"), 2, "cb", &flat));
    CHECK_REFUSED("split of axis \"cb\", flattened from axes that do not adjoin: \"q\" of 4 is not "
                  "cut between them",
                  tsr_mesh_split(flat, "cb", (tsr_mesh_axis[]){{"p", 3}, {"q", 4}}, 2, &made));
    tsr_mesh_release(&flat);
    tsr_mesh_release(&mesh);
}

static void join_says_what_is_wrong(void)
{
    tsr_mesh *mesh = root();
    tsr_mesh *other = root();
    tsr_mesh *split = NULL;
    tsr_mesh *made = NULL;
    tsr_mesh *s[6] = {NULL};

    REQUIRE_OK(tsr_mesh_slice(mesh, NAMES("a"), 1, 0, &s[0]));
    REQUIRE_OK(tsr_mesh_slice(mesh, NAMES("c"), 1, 4, &s[1]));
    REQUIRE_OK(tsr_mesh_slice(other, NAMES("c"), 1, 0, &s[2]));
    REQUIRE_OK(tsr_mesh_slice(mesh, NAMES("a", "c"), 2, 0, &s[3]));
    REQUIRE_OK(tsr_mesh_split(mesh, "a", (tsr_mesh_axis[]){{"a0", 2}, {"a1", 1}}, 2, &split));
    REQUIRE_OK(tsr_mesh_slice(split, NAMES("a0"), 1, 0, &s[4]));
    REQUIRE_OK(tsr_mesh_split(
        mesh, "a", (tsr_mesh_axis[]){{"t", 2}, {"u", 1}, {"v", 1}, {"w", 1}, {"x", 1}, {"y", 1}}, 6,
        &s[5]));
    CHECK_REFUSED("join of 0 meshes, wants at least 1", tsr_mesh_join(NULL, 0, &made));
    CHECK_REFUSED("join: mesh 1 has no rank in common with those before it",
                  tsr_mesh_join((const tsr_mesh *const[]){s[0], s[1]}, 2, &made));
    CHECK_REFUSED("join: mesh 1 is of another root than mesh 0",
                  tsr_mesh_join((const tsr_mesh *const[]){s[0], s[2]}, 2, &made));
    CHECK_REFUSED("mesh axes 0 and 2 are both called \"a\"",
                  tsr_mesh_join((const tsr_mesh *const[]){s[3], s[0]}, 2, &made));
    CHECK_REFUSED("join: axis \"a0\" of mesh 1 overlaps \"a\"",
                  tsr_mesh_join((const tsr_mesh *const[]){s[0], s[4]}, 2, &made));
    CHECK_REFUSED("join gives a mesh of 9 axes, at most 8",
                  tsr_mesh_join((const tsr_mesh *const[]){s[5], s[0]}, 2, &made));
    for (int i = 0; i < 6; i++) {
        tsr_mesh_release(&s[i]);
    }
    tsr_mesh_release(&split);
    tsr_mesh_release(&other);
    tsr_mesh_release(&mesh);
}

const tsr_test_case tsr_test_cases[] = {
    {"slices_hold_the_rank_that_was_named", slices_hold_the_rank_that_was_named},
    {"ranks_outside_a_slice_are_refused", ranks_outside_a_slice_are_refused},
    {"flat_axes_are_row_major_in_the_order_named", flat_axes_are_row_major_in_the_order_named},
    {"split_is_row_major_inside", split_is_row_major_inside},
    {"flat_axis_splits_anywhere_if_its_ranks_adjoin",
     flat_axis_splits_anywhere_if_its_ranks_adjoin},
    {"join_puts_slices_together", join_puts_slices_together},
    {"join_takes_parts_of_different_cuts", join_takes_parts_of_different_cuts},
    {"slice_says_what_is_wrong", slice_says_what_is_wrong},
    {"flatten_says_what_is_wrong", flatten_says_what_is_wrong},
    {"split_says_what_is_wrong", split_says_what_is_wrong},
    {"join_says_what_is_wrong", join_says_what_is_wrong},
    {NULL, NULL},
};
