/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_mesh.c
 * Grid arithmetic against brute force, and every error of tsr_mesh_create.
 */
#include "base/base.h"

#include "tessera/mesh.h"

#include <string.h>

#include "support/tsr_test.h"

enum {
    MAX_CELLS = 64
};

static tsr_mesh *make(int world, const tsr_mesh_axis *axes, int count, const int *order)
{
    tsr_mesh *mesh = NULL;

    CHECK_OK(tsr_mesh_create(world, axes, count, &(tsr_mesh_options){.rank_order = order}, &mesh));
    return mesh;
}

/* Says whether two ranks agree on every axis outside the mask. */
static bool same_outside(int axis_count, const int *a, const int *b, unsigned mask)
{
    for (int i = 0; i < axis_count; i++) {
        if ((mask >> i & 1U) == 0 && a[i] != b[i]) {
            return false;
        }
    }
    return true;
}

/* The group by definition: scan cells in row-major order, keep those that agree outside the mask.
 */
static int brute_group(const tsr_mesh *mesh, const int *order, unsigned mask, int rank, int *ranks)
{
    int axis_count = tsr_mesh_axis_count(mesh);
    int mine[TSR_MESH_MAX_AXES];
    int other[TSR_MESH_MAX_AXES];
    int count = 0;

    CHECK_OK(tsr_mesh_coord(mesh, rank, mine));
    for (int cell = 0; cell < tsr_mesh_cell_count(mesh); cell++) {
        int at = order != NULL ? order[cell] : cell;

        CHECK_OK(tsr_mesh_coord(mesh, at, other));
        if (same_outside(axis_count, mine, other, mask)) {
            ranks[count++] = at;
        }
    }
    return count;
}

static void check_group(const tsr_mesh *mesh, const int *order, unsigned mask, int rank)
{
    int want[MAX_CELLS];
    int got[MAX_CELLS];
    int count = 0;
    int index = -1;
    int expect = brute_group(mesh, order, mask, rank, want);

    REQUIRE_OK(tsr_mesh_flat_ranks(mesh, mask, rank, got, &count, &index));
    REQUIRE_EQ(count, expect);
    CHECK(memcmp(got, want, sizeof(int) * (size_t)count) == 0);
    CHECK_EQ(got[index], rank);
}

static void check_axis(const tsr_mesh *mesh, const int *order, int axis, int rank)
{
    int want[MAX_CELLS];
    int got[MAX_CELLS];
    int expect = brute_group(mesh, order, 1U << axis, rank, want);

    REQUIRE_OK(tsr_mesh_axis_ranks(mesh, axis, rank, got));
    REQUIRE_EQ(expect, tsr_mesh_axis_size(mesh, axis));
    CHECK(memcmp(got, want, sizeof(int) * (size_t)expect) == 0);
}

static void check_groups(const tsr_mesh *mesh, const int *order)
{
    for (int cell = 0; cell < tsr_mesh_cell_count(mesh); cell++) {
        int rank = order != NULL ? order[cell] : cell;

        for (unsigned mask = 0; mask < 1U << tsr_mesh_axis_count(mesh); mask++) {
            check_group(mesh, order, mask, rank);
        }
        for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
            check_axis(mesh, order, axis, rank);
        }
    }
}

static void test_row_major(void)
{
    static const tsr_mesh_axis axes[] = {{"replicate", 2}, {"shard", 3}, {"tp", 5}};
    tsr_mesh *mesh = make(30, axes, 3, NULL);
    int coord[TSR_MESH_MAX_AXES];
    int rank = -1;

    REQUIRE(mesh != NULL);
    CHECK_EQ(tsr_mesh_axis_count(mesh), 3);
    CHECK_EQ(tsr_mesh_cell_count(mesh), 30);
    for (int expect = 0; expect < 30; expect++) {
        REQUIRE_OK(tsr_mesh_coord(mesh, expect, coord));
        CHECK_EQ((coord[0] * 3 + coord[1]) * 5 + coord[2], expect);
        CHECK(coord[1] >= 0 && coord[1] < 3 && coord[2] >= 0 && coord[2] < 5);
        REQUIRE_OK(tsr_mesh_rank(mesh, coord, &rank));
        CHECK_EQ(rank, expect);
    }
    tsr_mesh_release(&mesh);
    CHECK(mesh == NULL);
    tsr_mesh_release(&mesh);
    CHECK_EQ(tsri_alloc_live(), 0);
}

static void check_all_groups(const tsr_mesh_axis *axes, int count)
{
    tsr_mesh *mesh = NULL;
    int cells = 1;

    for (int k = 0; k < count; k++) {
        cells *= axes[k].size;
    }
    mesh = make(cells, axes, count, NULL);
    REQUIRE(mesh != NULL);
    check_groups(mesh, NULL);
    tsr_mesh_release(&mesh);
}

static void test_flat_ranks(void)
{
    static const tsr_mesh_axis cases[][4] = {
        {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}}, {{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}},
        {{"a", 3}, {"b", 1}, {"c", 5}, {"d", 1}}, {{"a", 1}, {"b", 7}, {"c", 1}, {"d", 3}},
        {{"a", 6}, {"b", 5}, {"c", 1}, {"d", 2}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int count = 1; count <= 4; count++) {
            check_all_groups(cases[i], count);
        }
    }
}

static void test_rank_order(void)
{
    static const tsr_mesh_axis axes[] = {{"replicate", 3}, {"tp", 4}};
    static const int order[] = {0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11};
    static const int twice[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 4};
    static const int outside[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12};
    tsr_mesh *mesh = make(12, axes, 2, order);
    tsr_mesh *none = NULL;
    int ranks[4];
    int rank = -1;

    REQUIRE(mesh != NULL);
    check_groups(mesh, order);
    REQUIRE_OK(tsr_mesh_axis_ranks(mesh, 1, 4, ranks));
    CHECK(memcmp(ranks, &order[4], sizeof(ranks)) == 0);
    REQUIRE_OK(tsr_mesh_rank(mesh, (const int[]){2, 1}, &rank));
    CHECK_EQ(rank, 5);
    tsr_mesh_release(&mesh);
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsr_mesh_create(12, axes, 2, &(tsr_mesh_options){.rank_order = twice}, &none));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsr_mesh_create(12, axes, 2, &(tsr_mesh_options){.rank_order = outside}, &none));
    CHECK(none == NULL);
    CHECK_EQ(tsri_alloc_live(), 0);
}

static void test_remainder(void)
{
    static const tsr_mesh_axis axes[] = {{"dp", 2}, {"tp", 3}};
    static const int order[] = {7, 6, 5, 4, 3, 2};
    tsr_mesh_options options = {.rank_order = order, .allow_remainder = true};
    tsr_mesh *mesh = NULL;
    int coord[TSR_MESH_MAX_AXES];

    REQUIRE_OK(tsr_mesh_create(8, axes, 2, &options, &mesh));
    REQUIRE_OK(tsr_mesh_coord(mesh, 7, coord));
    CHECK(coord[0] == 0 && coord[1] == 0);
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_coord(mesh, 0, coord));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_coord(mesh, 8, coord));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_coord(mesh, -1, coord));
    tsr_mesh_release(&mesh);
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_create(8, axes, 2, NULL, &mesh));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_create(5, axes, 2, &options, &mesh));
}

/* The creation fails and its message holds the given words. */
static void check_rejected(int world, const tsr_mesh_axis *axes, int count, const char *words)
{
    tsr_mesh *mesh = NULL;
    tsr_status status = tsr_mesh_create(world, axes, count, NULL, &mesh);

    CHECK_EQ(status, TSR_ERR_INVALID);
    CHECK(mesh == NULL);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

static void test_create_errors(void)
{
    static const tsr_mesh_axis nine[9] = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1},
                                          {"f", 1}, {"g", 1}, {"h", 1}, {"i", 1}};
    tsr_mesh *mesh = NULL;

    check_rejected(1, nine, 0, "a mesh of 0 axes, wants 1..8");
    check_rejected(1, nine, 9, "a mesh of 9 axes, wants 1..8");
    check_rejected(1, (tsr_mesh_axis[]){{"", 1}}, 1, "axis 0 has no name");
    check_rejected(1, (tsr_mesh_axis[]){{NULL, 1}}, 1, "axis 0 has no name");
    check_rejected(1, (tsr_mesh_axis[]){{"abcdefghijklmnop", 1}}, 1, "16 characters, wants 1..15");
    check_rejected(1, (tsr_mesh_axis[]){{"Tp", 1}}, 1, "holds 'T'");
    check_rejected(1, (tsr_mesh_axis[]){{"t p", 1}}, 1, "holds ' '");
    check_rejected(4, (tsr_mesh_axis[]){{"a", 2}, {"a", 2}}, 2, "0 and 1 are both called \"a\"");
    check_rejected(1, (tsr_mesh_axis[]){{"a", 0}}, 1, "\"a\" has size 0");
    check_rejected(0, (tsr_mesh_axis[]){{"a", 1}}, 1, "over 0 ranks");
    check_rejected(6, (tsr_mesh_axis[]){{"a", 2}, {"b", 2}}, 2,
                   "mesh a=2 b=2 has 4 ranks, the job has 6");
    check_rejected(2, (tsr_mesh_axis[]){{"a", 65536}, {"b", 65536}}, 2, "more than 2147483647");
    CHECK_OK(tsr_mesh_create(1, (tsr_mesh_axis[]){{"abcdefghijklmno", 1}}, 1, NULL, &mesh));
    tsr_mesh_release(&mesh);
}

static void test_query_errors(void)
{
    static const tsr_mesh_axis axes[] = {{"shard", 2}, {"tp", 2}};
    tsr_mesh *mesh = make(4, axes, 2, NULL);
    int ranks[4];
    int count = 0;
    int index = 0;

    REQUIRE(mesh != NULL);
    CHECK_EQ(tsr_mesh_axis_find(mesh, "tp"), 1);
    CHECK_EQ(tsr_mesh_axis_find(mesh, "t"), -1);
    CHECK_EQ(tsr_mesh_axis_find(mesh, NULL), -1);
    CHECK_EQ(tsr_mesh_axis_size(mesh, 2), 1);
    CHECK_EQ(tsr_mesh_axis_size(mesh, -1), 1);
    CHECK_STR(tsr_mesh_axis_name(mesh, 0), "shard");
    CHECK_STR(tsr_mesh_axis_name(mesh, 2), "?");
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_rank(mesh, (const int[]){2, 0}, &index));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_rank(mesh, (const int[]){0, -1}, &index));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_axis_ranks(mesh, 2, 0, ranks));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_axis_ranks(mesh, 0, 4, ranks));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_mesh_flat_ranks(mesh, 4U, 0, ranks, &count, &index));
    tsr_mesh_release(&mesh);
}

static void test_format(void)
{
    static const tsr_mesh_axis axes[] = {{"replicate", 2}, {"shard", 3}, {"tp", 1}};
    tsr_mesh *mesh = make(6, axes, 3, NULL);
    tsr_mesh *second = NULL;
    char text[64];
    char little[8];

    REQUIRE(mesh != NULL);
    CHECK_STR(tsr_mesh_format(mesh, text, sizeof(text)), "replicate=2 shard=3 tp=1");
    CHECK_STR(tsr_mesh_format(mesh, little, sizeof(little)), "replica");
    second = tsr_mesh_retain(mesh);
    tsr_mesh_release(&mesh);
    CHECK_STR(tsr_mesh_format(second, text, sizeof(text)), "replicate=2 shard=3 tp=1");
    tsr_mesh_release(&second);
    CHECK_EQ(tsri_alloc_live(), 0);
}

static void test_out_of_memory(void)
{
    static const tsr_mesh_axis axes[] = {{"a", 2}};
    tsr_mesh *mesh = NULL;
    tsr_status status = TSR_ERR_NOMEM;
    int failures = 0;

    for (int n = 1; status != TSR_OK && n < 10; n++) {
        tsri_alloc_fail_at(n);
        status = tsr_mesh_create(2, axes, 1, NULL, &mesh);
        if (status != TSR_OK) {
            CHECK_EQ(status, TSR_ERR_NOMEM);
            CHECK_EQ(tsri_alloc_live(), 0);
            failures++;
        }
    }
    tsri_alloc_fail_at(0);
    CHECK_EQ(status, TSR_OK);
    CHECK_EQ(failures, 4); /* root, its two tables, mesh */
    tsr_mesh_release(&mesh);
    tsr_error_clear();
}

const tsr_test_case tsr_test_cases[] = {
    {"row_major", test_row_major},
    {"flat_ranks", test_flat_ranks},
    {"rank_order", test_rank_order},
    {"remainder", test_remainder},
    {"create_errors", test_create_errors},
    {"query_errors", test_query_errors},
    {"format", test_format},
    {"out_of_memory", test_out_of_memory},
    {NULL, NULL},
};
