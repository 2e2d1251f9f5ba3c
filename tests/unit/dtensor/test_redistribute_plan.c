/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_redistribute_route.c
 * Which moves a redistribution makes, and what a simulated rank of it calls.
 *
 * Layouts are written as placements of the axes a, b, c: "S0 R P"; a trailing "/ba" is the order.
 * Plans are written as moves of axes: >a0 slice dim 0, +a0 reduce-scatter, a0-1 all-to-all from dim
 * 0 to 1, *ab all-reduce, <a0 gather.
 */
#include "dtensor/dtensor_priv.h"

#include "base/base.h"

#include <string.h>

#include "dtensor/dtensor.h"
#include "support/tsr_test.h"

static tsr_mesh *make_mesh(const int *sizes, int count)
{
    static const char *const names[] = {"a", "b", "c"};
    tsr_mesh_axis axes[3];
    tsr_mesh *mesh = NULL;
    int world = 1;

    for (int i = 0; i < count; i++) {
        axes[i] = (tsr_mesh_axis){names[i], sizes[i]};
        world *= sizes[i];
    }
    CHECK_OK(tsr_mesh_create(world, axes, count, NULL, &mesh));
    return mesh;
}

static tsr_layout parse(const tsr_mesh *mesh, const int64_t *shape, int ndim, const char *text)
{
    tsr_layout layout;
    int axis = 0;
    int placed = 0;

    CHECK_OK(tsr_layout_init(mesh, shape, ndim, &layout));
    for (; *text != '\0' && *text != '/'; text++) {
        if (*text == 'S') {
            layout.place[axis++] = (tsr_placement){.kind = TSR_SHARD, .dim = text[1] - '0'};
        } else if (*text == 'P' || *text == 'R') {
            layout.place[axis++].kind = *text == 'P' ? TSR_PARTIAL : TSR_REPLICATE;
        }
    }
    CHECK_EQ(axis, tsr_mesh_axis_count(mesh));
    while (*text != '\0' && *++text != '\0') {
        layout.order[placed++] = (signed char)(*text - 'a');
    }
    return layout;
}

static void write_plan(const tsri_route *route, char *text, size_t size)
{
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < route->step_count; i++) {
        static const char marks[] = {[TSRI_STEP_SLICE] = '>',
                                     [TSRI_STEP_REDUCE_SCATTER] = '+',
                                     [TSRI_STEP_ALL_TO_ALL] = '=',
                                     [TSRI_STEP_ALL_REDUCE] = '*',
                                     [TSRI_STEP_GATHER] = '<'};
        const tsri_step *step = &route->step[i];
        char mark = marks[step->kind];

        used += (size_t)snprintf(text + used, size - used, "%s", i > 0 ? " " : "");
        if (mark != '=') {
            used += (size_t)snprintf(text + used, size - used, "%c", mark);
        }
        for (int axis = 0; axis < 3; axis++) {
            if ((step->mask >> axis & 1U) != 0) {
                used += (size_t)snprintf(text + used, size - used, "%c", 'a' + axis);
            }
        }
        if (step->from_dim >= 0) {
            used += (size_t)snprintf(text + used, size - used, "%d", step->from_dim);
        }
        if (mark == '=') {
            used += (size_t)snprintf(text + used, size - used, "-");
        }
        if (step->to_dim >= 0) {
            used += (size_t)snprintf(text + used, size - used, "%d", step->to_dim);
        }
    }
}

typedef struct pair {
    const char *from, *to, *moves;
    int cost;
} pair;

static void check_pairs(const int *sizes, int axis_count, const int64_t *shape, int ndim,
                        const pair *pairs)
{
    tsr_mesh *mesh = make_mesh(sizes, axis_count);

    for (; pairs->from != NULL; pairs++) {
        tsr_layout from = parse(mesh, shape, ndim, pairs->from);
        tsr_layout to = parse(mesh, shape, ndim, pairs->to);
        tsri_route route;
        char text[128];

        CHECK_OK(tsri_route_find(&from, &to, &route));
        write_plan(&route, text, sizeof(text));
        CHECK_STR(text, pairs->moves);
        CHECK_EQ(tsri_redistribute_cost(&from, &to), pairs->cost);
        if (route.step_count > 0) {
            CHECK(tsr_layout_equal(&route.step[route.step_count - 1].after, &to));
        }
    }
    tsr_mesh_release(&mesh);
}

static void one_axis(void)
{
    static const pair pairs[] = {
        {"R", "R", "", 0},       {"R", "S0", ">a0", 0}, {"R", "S1", ">a1", 0},
        {"S0", "S0", "", 0},     {"S0", "R", "<a0", 1}, {"S0", "S1", "a0-1", 1},
        {"S1", "S0", "a1-0", 1}, {"P", "P", "", 0},     {"P", "R", "*a", 1},
        {"P", "S0", "+a0", 1},   {"P", "S1", "+a1", 1}, {NULL, NULL, NULL, 0},
    };

    check_pairs((int[]){3}, 1, (int64_t[]){7, 5}, 2, pairs);
}

/* Sizes that divide: gathers and reduce-scatters in a row are one. */
static void even_axes(void)
{
    static const pair pairs[] = {
        {"S0 S0 R", "R R R", "<ab0", 1},
        {"S0 S0 S0", "R R R", "<abc0", 1},
        {"S0 S0 S0", "S0 R R", "<bc0", 1},
        {"S0 S0 R/bac", "R R R", "<a0 <b0", 2}, /* a is inside b: ranks are numbered otherwise */
        {"S0 S0 R", "S0 S0 R/bac", "<ab0 >b0 >a0", 1},
        {"S0 S0 R", "R S0 R", "<ab0 >b0", 1},
        {"P P R", "R R R", "*ab", 1},
        {"P P P", "R R R", "*abc", 1},
        {"P R P", "R R R", "*ac", 1},
        {"P P R", "S0 S0 R", "+ab0", 1},
        {"P P P", "S0 S0 R", "+ab0 *c", 2},
        {"P P R", "S0 S0 R/bac", "+b0 +a0", 2},
        {"P P R", "S0 S1 R", "+a0 +b1", 2},
        {"P S0 R", "R S0 R", "*a", 1},
        {"P S0 R", "R R R", "*a <b0", 2}, /* reduce the smaller piece */
        {"P R R", "R S0 R", ">b0 *a", 1},
        {"S0 R R", "S0 S0 S1", ">b0 >c1", 0},
        {"S0 S0 R", "S0 S1 R", "b0-1", 1},
        {"S0 S0 R", "S1 S0 R", "<b0 a0-1 >b0", 2}, /* what a left, b has to cut anew */
        {"S0 S1 R", "S1 S0 R", "<a0 b1-0 >a1", 2},
        {"S0 S1 R", "S1 R R", "<b1 a0-1", 2},
        {"P P P", "P P P", "", 0},
        {"P P R", "P S0 R", "+b0", 1},
        {NULL, NULL, NULL, 0},
    };

    check_pairs((int[]){2, 3, 2}, 3, (int64_t[]){24, 12}, 2, pairs);
}

/* Sizes that do not divide, and axes of size 1. */
static void uneven_and_single_axes(void)
{
    static const pair uneven[] = {
        {"S0 S0", "R R", "<b0 <a0", 2},
        {"P P", "S0 S0", "+a0 +b0", 2},
        {"P P", "R R", "*ab", 1},
        {NULL, NULL, NULL, 0},
    };
    static const pair single[] = {
        {"S0 S0", "R S0", "", 0}, {"S0 R", "P R", "", 0},        {"R S0", "P S0/ba", "", 0},
        {"P P", "R R", "*b", 1},  {"S0 S0", "S1 S1", "b0-1", 1}, {NULL, NULL, NULL, 0},
    };

    check_pairs((int[]){2, 3}, 2, (int64_t[]){20, 9}, 2, uneven);
    check_pairs((int[]){1, 3}, 2, (int64_t[]){20, 9}, 2, single);
}

static void refusals(void)
{
    tsr_mesh *mesh = make_mesh((int[]){2, 2}, 2);
    tsr_mesh *twin = make_mesh((int[]){2, 2}, 2);
    const int64_t shape[] = {4, 6};
    tsr_layout from = parse(mesh, shape, 2, "S0 R");
    tsr_layout to = parse(mesh, shape, 2, "P R");
    tsri_route route;

    CHECK_EQ(tsri_route_find(&from, &to, &route), TSR_ERR_PLACEMENT);
    CHECK_STR(tsr_error_message(), "to partial on axis \"a\" from shard, wants partial");
    to = parse(mesh, shape, 2, "S0 P");
    CHECK_EQ(tsri_route_find(&from, &to, &route), TSR_ERR_PLACEMENT);
    CHECK_STR(tsr_error_message(), "to partial on axis \"b\" from replicate, wants partial");
    CHECK_EQ(tsri_redistribute_cost(&from, &to), -1);
    to = parse(mesh, (int64_t[]){4, 7}, 2, "S0 R");
    CHECK_EQ(tsri_route_find(&from, &to, &route), TSR_ERR_SHAPE);
    CHECK_STR(tsr_error_message(), "redistribution of [4, 6] to [4, 7]");
    to = parse(mesh, shape, 1, "S0 R");
    CHECK_STATUS(TSR_ERR_SHAPE, tsri_route_find(&from, &to, &route));
    to = parse(twin, shape, 2, "S0 R");
    CHECK_STATUS(TSR_ERR_INVALID, tsri_route_find(&from, &to, &route));
    to = parse(mesh, shape, 2, "S0 R");
    to.place[1] = (tsr_placement){.kind = TSR_SHARD, .dim = 2};
    CHECK_STATUS(TSR_ERR_PLACEMENT, tsri_route_find(&from, &to, &route));
    to = parse(mesh, (int64_t[]){0, 6}, 2, "R R");
    from = parse(mesh, (int64_t[]){0, 6}, 2, "S0 S1");
    CHECK_EQ(tsri_redistribute_cost(&from, &to), 0); /* nothing to move */
    tsr_mesh_release(&mesh);
    tsr_mesh_release(&twin);
}

/* ---- on a simulated rank ---- */

typedef struct job {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
} job;

static job job_open(int rank, const int *sizes, int axis_count)
{
    job j = {.mesh = make_mesh(sizes, axis_count)};
    const tsr_world_options options = {
        .backend = "sim", .sim_rank = rank, .sim_size = tsr_mesh_cell_count(j.mesh)};

    CHECK_OK(tsr_world_open(NULL, NULL, &options, &j.world));
    CHECK_OK(tsr_comm_open(j.world, j.mesh, &(tsr_comm_options){.record = true, .race_check = true},
                           &j.comm));
    return j;
}

static void job_close(job *j)
{
    tsr_comm_release(&j->comm);
    tsr_mesh_release(&j->mesh);
    tsr_world_close(&j->world);
}

static int count_entries(const job *j, tsri_entry_kind kind)
{
    int count = 0;
    int found = 0;
    const tsri_entry *entries = tsri_recorder_entries(tsri_comm_device(j->comm), &count);

    for (int i = 0; i < count; i++) {
        found += entries[i].kind == kind;
    }
    return found;
}

/* Where the piece is what travels, nothing is copied. */
static void pieces_travel_directly(void)
{
    static const struct {
        const char *from, *to;
        int64_t rows;
        int copies;
    } cases[] = {
        {"S0 R", "R R", 8, 0}, /* outermost dim, even */
        {"S0 R", "R R", 7, 0}, /* rank 0 has a full chunk, and slack lies behind */
        {"S1 R", "R R", 8, 1}, /* blocks to columns */
        {"P R", "S0 R", 8, 0},
        {"P R", "S0 R", 7, 3}, /* copied to have slack: full parts, the rest, zeros */
        {"P R", "R R", 7, 0},
        {"S0 R", "S1 R", 8, 1}, /* columns packed, rows received in place */
        {"S1 R", "S0 R", 8, 1}, /* rows sent in place, columns unpacked */
        {"R R", "S0 R", 8, 1},
        {"P R", "R S0", 8, 0}, /* the slice is read where it is */
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        job j = job_open(0, (int[]){2, 2}, 2);
        const int64_t shape[] = {cases[i].rows, 6};
        tsr_layout from = parse(j.mesh, shape, 2, cases[i].from);
        tsr_layout to = parse(j.mesh, shape, 2, cases[i].to);
        tsr_dtensor *tensor = NULL;
        tsr_dtensor *moved = NULL;

        CHECK_OK(tsr_dtensor_create(j.comm, &from, TSR_BF16, "x", &tensor));
        tsri_recorder_clear(tsri_comm_device(j.comm));
        CHECK_OK(tsr_dtensor_redistribute(tensor, &to, &moved));
        CHECK_EQ(count_entries(&j, TSRI_ENTRY_KERNEL), cases[i].copies);
        CHECK_EQ(count_entries(&j, TSRI_ENTRY_COLLECTIVE), tsri_redistribute_cost(&from, &to));
        tsr_dtensor_release(&moved);
        tsr_dtensor_release(&tensor);
        job_close(&j);
    }
}

static void nothing_to_do(void)
{
    job j = job_open(1, (int[]){1, 3}, 2);
    const int64_t shape[] = {4, 6};
    tsr_layout from = parse(j.mesh, shape, 2, "P S0");
    tsr_layout to = parse(j.mesh, shape, 2, "R S0");
    tsr_dtensor *tensor = NULL;
    tsr_dtensor *moved = NULL;

    CHECK_OK(tsr_dtensor_create(j.comm, &from, TSR_F32, "x", &tensor));
    CHECK_OK(tsr_dtensor_redistribute(tensor, &from, &moved));
    CHECK(moved == tensor);
    tsr_dtensor_release(&moved);
    /* Another name for the same piece, as the axis has one rank. */
    CHECK_OK(tsr_dtensor_redistribute(tensor, &to, &moved));
    CHECK(moved != tensor);
    CHECK_EQ(moved->layout.place[0].kind, TSR_REPLICATE);
    CHECK(tsri_dtensor_buffer(moved) == tsri_dtensor_buffer(tensor));
    tsr_dtensor_release(&moved);
    tsr_dtensor_release(&tensor);
    CHECK_OK(tsri_dtensor_bare(j.comm, &from, TSR_F32, "x", &tensor));
    to = parse(j.mesh, shape, 2, "R R");
    CHECK_STATUS(TSR_ERR_STATE, tsr_dtensor_redistribute(tensor, &to, &moved));
    tsr_dtensor_release(&tensor);
    job_close(&j);
}

/* source through four layouts in the arena, reducing in f32. */
static void walk(const job *j, tsr_dtensor *source)
{
    static const char *const path[] = {"S1 S0", "R S0", "S0 R", "R R"};
    const tsri_redistribute_options wide = {.reduce_dtype = TSR_F32};
    tsr_dtensor *now = tsr_dtensor_retain(source);

    for (int i = 0; i < 4; i++) {
        tsr_layout to = parse(j->mesh, source->layout.shape, 2, path[i]);
        tsr_dtensor *next = NULL;

        CHECK_OK(tsri_redistribute(now, &to, &wide, &next));
        tsr_dtensor_release(&now);
        REQUIRE(next != NULL);
        CHECK_EQ(next->dtype, TSR_BF16);
        CHECK(next->storage->mem.buffer->kind != TSRI_MEM_WORKSPACE);
        now = next;
    }
    tsr_dtensor_release(&now);
}

/* After the first step its memory is planned and nothing is allocated. */
static void step_memory(void)
{
    job j = job_open(5, (int[]){2, 3}, 2);
    tsri_arena *arena = tsri_comm_arena(j.comm);
    tsr_layout layout = parse(j.mesh, (int64_t[]){7, 5}, 2, "P S1");
    tsri_arena_stats stats;
    tsr_dtensor *source = NULL;

    CHECK_OK(tsr_dtensor_create(j.comm, &layout, TSR_BF16, "x", &source));
    for (int step = 0; step < 3; step++) {
        CHECK_OK(tsri_arena_step_begin(arena, "train", 0));
        tsri_recorder_clear(tsri_comm_device(j.comm));
        walk(&j, source);
        CHECK((count_entries(&j, TSRI_ENTRY_ALLOC) > 0) == (step == 0));
        CHECK_OK(tsri_arena_step_end(arena));
    }
    tsri_arena_get_stats(arena, &stats);
    CHECK_EQ(stats.departures, 0);
    CHECK(stats.interval_count > 4);
    tsr_dtensor_release(&source);
    job_close(&j);
}

const tsr_test_case tsr_test_cases[] = {
    {"one_axis", one_axis},
    {"even_axes", even_axes},
    {"uneven_and_single_axes", uneven_and_single_axes},
    {"refusals", refusals},
    {"pieces_travel_directly", pieces_travel_directly},
    {"nothing_to_do", nothing_to_do},
    {"step_memory", step_memory},
    {NULL, NULL},
};
