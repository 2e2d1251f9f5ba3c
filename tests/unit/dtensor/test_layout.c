/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_layout.c
 * Layouts: the golden pieces, order, equality, duals, text, and every error.
 */
#include "base/base.h"

#include "tessera/layout.h"

#include <stdlib.h>
#include <string.h>

#include "support/golden.h"
#include "support/tsr_test.h"

#define S(d) ((tsr_placement){.kind = TSR_SHARD, .dim = (d)})
#define R    ((tsr_placement){.kind = TSR_REPLICATE})
#define P    ((tsr_placement){.kind = TSR_PARTIAL})

/* A mesh of axes a, b, c, ... of these sizes. */
static tsr_mesh *make_mesh(const int *sizes, int count)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    tsr_mesh_axis axes[TSR_MESH_MAX_AXES];
    tsr_mesh *mesh = NULL;
    int world = 1;

    for (int i = 0; i < count; i++) {
        axes[i] = (tsr_mesh_axis){names[i], sizes[i]};
        world *= sizes[i];
    }
    CHECK_OK(tsr_mesh_create(world, axes, count, NULL, &mesh));
    return mesh;
}

/* ---- golden ---- */

static int number(const tsr_golden *golden, int row, const char *key, int i, int j)
{
    char path[96];

    if (j < 0) {
        (void)snprintf(path, sizeof(path), "cases/%d/%s/%d", row, key, i);
    } else {
        (void)snprintf(path, sizeof(path), "cases/%d/%s/%d/%d", row, key, i, j);
    }
    return (int)tsr_golden_number(golden, path);
}

static int length(const tsr_golden *golden, int row, const char *key)
{
    char path[96];

    (void)snprintf(path, sizeof(path), "cases/%d/%s", row, key);
    return tsr_golden_length(golden, path);
}

static void read_layout(const tsr_golden *golden, int row, const tsr_mesh *mesh, tsr_layout *out)
{
    int64_t shape[TSR_MAX_DIMS];
    int ndim = length(golden, row, "global_shape");

    for (int d = 0; d < ndim; d++) {
        shape[d] = number(golden, row, "global_shape", d, -1);
    }
    CHECK_OK(tsr_layout_init(mesh, shape, ndim, out));
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        char path[96];
        const char *text = NULL;
        tsr_placement place = R;

        (void)snprintf(path, sizeof(path), "cases/%d/placements/%d", row, axis);
        text = tsr_golden_text(golden, path);
        REQUIRE(text != NULL);
        if (text[0] == 'S') {
            place = S((int)strtol(text + 2, NULL, 10));
        } else if (text[0] == 'P') {
            place = P;
        }
        CHECK_OK(tsr_layout_place(out, tsr_mesh_axis_name(mesh, axis), place));
    }
}

static void golden_pieces(void)
{
    tsr_golden *golden = tsr_golden_open("layout/chunks.json");
    int rows = 0;

    REQUIRE(golden != NULL);
    rows = tsr_golden_length(golden, "cases");
    CHECK_EQ(rows, 150);
    for (int row = 0; row < rows; row++) {
        int sizes[TSR_MESH_MAX_AXES];
        int axis_count = length(golden, row, "mesh_shape");
        tsr_mesh *mesh = NULL;
        tsr_layout layout;

        for (int i = 0; i < axis_count; i++) {
            sizes[i] = number(golden, row, "mesh_shape", i, -1);
        }
        mesh = make_mesh(sizes, axis_count);
        read_layout(golden, row, mesh, &layout);
        CHECK_EQ(length(golden, row, "local_shape"), tsr_mesh_cell_count(mesh));
        for (int rank = 0; rank < tsr_mesh_cell_count(mesh); rank++) {
            int64_t shape[TSR_MAX_DIMS];
            int64_t offset[TSR_MAX_DIMS];

            CHECK_OK(tsr_layout_local(&layout, rank, shape, offset));
            for (int d = 0; d < layout.ndim; d++) {
                CHECK_EQ(shape[d], number(golden, row, "local_shape", rank, d));
                CHECK_EQ(offset[d], number(golden, row, "global_offset", rank, d));
            }
        }
        tsr_mesh_release(&mesh);
    }
    tsr_golden_close(golden);
}

/* ---- order ---- */

/* 10 rows over a (2) and b (4): a first gives 5 and 5, then 2, 2, 1, 0 of each; b first gives 3, 3,
 * 3, 1, then 2, 1 of each, and 1, 0 of the last. */
static void order_of_splits(void)
{
    static const int64_t a_first[8] = {2, 2, 1, 0, 2, 2, 1, 0};
    static const int64_t b_first[8] = {2, 2, 2, 1, 1, 1, 1, 0};
    static const int64_t a_offset[8] = {0, 2, 4, 10, 5, 7, 9, 10};
    static const int64_t b_offset[8] = {0, 3, 6, 9, 2, 5, 8, 10};
    tsr_mesh *mesh = make_mesh((int[]){2, 4}, 2);
    tsr_layout layout;

    CHECK_OK(tsr_layout_init(mesh, (int64_t[]){10}, 1, &layout));
    CHECK_OK(tsr_layout_place(&layout, "a", S(0)));
    CHECK_OK(tsr_layout_place(&layout, "b", S(0)));
    for (int swapped = 0; swapped < 2; swapped++) {
        layout.order[0] = (signed char)swapped;
        layout.order[1] = (signed char)!swapped;
        for (int rank = 0; rank < 8; rank++) {
            int64_t shape = -1;
            int64_t offset = -1;
            CHECK_OK(tsr_layout_local(&layout, rank, &shape, &offset));
            CHECK_EQ(shape, swapped ? b_first[rank] : a_first[rank]);
            CHECK_EQ(offset, swapped ? b_offset[rank] : a_offset[rank]);
        }
    }
    tsr_mesh_release(&mesh);
}

/* Swap the order of axes i and j. */
static tsr_layout reordered(const tsr_layout *layout, int i, int j)
{
    tsr_layout other = *layout;
    int at_i = 0;
    int at_j = 0;

    for (int k = 0; k < TSR_MESH_MAX_AXES; k++) {
        at_i = layout->order[k] == i ? k : at_i;
        at_j = layout->order[k] == j ? k : at_j;
    }
    other.order[at_i] = (signed char)j;
    other.order[at_j] = (signed char)i;
    return other;
}

static void equality(void)
{
    tsr_mesh *mesh = make_mesh((int[]){2, 3, 1, 2}, 4);
    tsr_mesh *twin = make_mesh((int[]){2, 3, 1, 2}, 4);
    tsr_layout one;
    tsr_layout two;

    CHECK_OK(tsr_layout_init(mesh, (int64_t[]){6, 8}, 2, &one));
    CHECK_OK(tsr_layout_place(&one, "a", S(0)));
    CHECK_OK(tsr_layout_place(&one, "b", S(0)));
    CHECK_OK(tsr_layout_place(&one, "d", S(1)));
    CHECK(tsr_layout_equal(&one, &one));
    two = reordered(&one, 0, 1); /* both split dim 0 */
    CHECK(!tsr_layout_equal(&one, &two));
    two = reordered(&one, 0, 3); /* another dim, but b stays in the middle */
    CHECK(!tsr_layout_equal(&one, &two));
    two = reordered(&one, 1, 3);
    CHECK(tsr_layout_equal(&one, &two));
    two = reordered(&one, 0, 2); /* c has size 1, but a now comes after b */
    CHECK(!tsr_layout_equal(&one, &two));
    two = one;
    CHECK_OK(tsr_layout_place(&two, "c", S(0))); /* size 1 */
    CHECK(tsr_layout_equal(&one, &two));
    CHECK_OK(tsr_layout_place(&two, "c", P));
    CHECK(tsr_layout_equal(&one, &two));
    CHECK_OK(tsr_layout_place(&two, "d", S(0)));
    CHECK(!tsr_layout_equal(&one, &two));
    CHECK_OK(tsr_layout_place(&two, "d", P));
    CHECK(!tsr_layout_equal(&one, &two));
    two = one;
    two.shape[1] = 9;
    CHECK(!tsr_layout_equal(&one, &two));
    two = one;
    two.ndim = 1;
    CHECK(!tsr_layout_equal(&one, &two));
    two = one;
    two.mesh = twin;
    CHECK(!tsr_layout_equal(&one, &two));
    tsr_mesh_release(&mesh);
    tsr_mesh_release(&twin);
}

static void dual_and_text(void)
{
    tsr_mesh *mesh = make_mesh((int[]){2, 3, 2}, 3);
    tsr_layout layout;
    tsr_layout dual;
    char text[96];

    CHECK_OK(tsr_layout_init(mesh, (int64_t[]){4096, 11008}, 2, &layout));
    CHECK_STR(tsr_layout_format(&layout, text, sizeof(text)), "[4096, 11008] a:R b:R c:R");
    CHECK_OK(tsr_layout_place(&layout, "b", S(1)));
    CHECK_OK(tsr_layout_place(&layout, "c", (tsr_placement){.kind = TSR_PARTIAL, .dim = 7}));
    CHECK_EQ(layout.place[2].dim, 0);
    CHECK_STR(tsr_layout_format(&layout, text, sizeof(text)), "[4096, 11008] a:R b:S(1) c:P");
    dual = tsr_layout_dual(&layout);
    CHECK_STR(tsr_layout_format(&dual, text, sizeof(text)), "[4096, 11008] a:P b:S(1) c:R");
    dual = tsr_layout_dual(&dual);
    CHECK(tsr_layout_equal(&layout, &dual));
    CHECK_OK(tsr_layout_place(&layout, "c", S(1)));
    layout = reordered(&layout, 1, 2);
    CHECK_STR(tsr_layout_format(&layout, text, sizeof(text)),
              "[4096, 11008] a:R b:S(1) c:S(1) order:c,b");
    CHECK_STR(tsr_layout_format(&layout, text, 12), "[4096, 1100");
    text[0] = 'x';
    CHECK(tsr_layout_format(&layout, text, 0) == text);
    CHECK_EQ(text[0], 'x');
    CHECK_OK(tsr_layout_init(mesh, NULL, 0, &layout));
    CHECK_STR(tsr_layout_format(&layout, text, sizeof(text)), "[] a:R b:R c:R");
    tsr_mesh_release(&mesh);
}

/* ---- errors ---- */

static void errors_of_init_and_place(void)
{
    tsr_mesh *mesh = make_mesh((int[]){2, 2}, 2);
    tsr_layout layout;

    CHECK_STATUS(TSR_ERR_SHAPE, tsr_layout_init(mesh, (int64_t[]){1, 1, 1, 1, 1, 1}, 6, &layout));
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_layout_init(mesh, (int64_t[]){1}, -1, &layout));
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_layout_init(mesh, (int64_t[]){4, -1}, 2, &layout));
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_layout_init(mesh, (int64_t[]){INT64_MAX}, 1, &layout));
    CHECK_STATUS(
        TSR_ERR_SHAPE,
        tsr_layout_init(mesh, (int64_t[]){INT64_C(1) << 40, 0, INT64_C(1) << 40}, 3, &layout));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_layout_init(NULL, (int64_t[]){4}, 1, &layout));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_layout_init(mesh, NULL, 1, &layout));
    CHECK_OK(tsr_layout_init(mesh, (int64_t[]){4, 4}, 2, &layout));
    CHECK_STATUS(TSR_ERR_PLACEMENT, tsr_layout_place(&layout, "a", S(2)));
    CHECK_STATUS(TSR_ERR_PLACEMENT, tsr_layout_place(&layout, "a", S(-1)));
    CHECK_STATUS(TSR_ERR_PLACEMENT,
                 tsr_layout_place(&layout, "a", (tsr_placement){.kind = (tsr_placement_kind)3}));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_layout_place(&layout, NULL, R));
    CHECK_EQ(tsr_layout_place(&layout, "tp", R), TSR_ERR_INVALID);
    CHECK_STR(tsr_error_message(), "no axis \"tp\", mesh has: a, b");
    CHECK_EQ(layout.place[0].kind, TSR_REPLICATE);
    tsr_mesh_release(&mesh);
}

static void errors_of_local(void)
{
    tsr_mesh *mesh = make_mesh((int[]){2, 2}, 2);
    tsr_layout layout;
    tsr_layout bad;
    int64_t shape[TSR_MAX_DIMS];
    int64_t offset[TSR_MAX_DIMS];

    CHECK_OK(tsr_layout_init(mesh, (int64_t[]){4, 4}, 2, &layout));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_layout_local(&layout, 4, shape, offset));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_layout_local(&layout, -1, shape, offset));
    bad = layout;
    bad.order[1] = 0;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_layout_local(&bad, 0, shape, offset));
    bad.order[1] = 2;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_layout_local(&bad, 0, shape, offset));
    bad = layout;
    bad.place[1] = S(2);
    CHECK_STATUS(TSR_ERR_PLACEMENT, tsr_layout_local(&bad, 0, shape, offset));
    bad = layout;
    bad.mesh = NULL;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_layout_local(&bad, 0, shape, offset));
    tsr_mesh_release(&mesh);
}

const tsr_test_case tsr_test_cases[] = {
    {"golden_pieces", golden_pieces},
    {"order_of_splits", order_of_splits},
    {"equality", equality},
    {"dual_and_text", dual_and_text},
    {"errors_of_init_and_place", errors_of_init_and_place},
    {"errors_of_local", errors_of_local},
    {NULL, NULL},
};
