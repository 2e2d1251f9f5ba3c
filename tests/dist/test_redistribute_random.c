/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 5 6 8 */
/* labels: property */
/**
 * @file test_redistribute_random.c
 * Random meshes, shapes, placements and orders on real ranks: each redistribution gives the defined
 * pieces, there and back is the identity bit for bit, and the step arena gives the same as buffers.
 */
#include "base/base.h"
#include "base/rng.h"

#include "dtensor/dtensor.h"
#include "support/pieces.h"
#include "support/tsr_test.h"

enum {
    ROUNDS = 60,
    MESHES = 4
};

typedef struct chance {
    uint64_t key, index;
} chance;

/* The same on every rank. */
static int pick(chance *c, int count)
{
    return (int)(tsri_rng_word(c->key, c->index++) % (uint32_t)count);
}

/* Factor the ranks in up to three axes. */
static int random_mesh(chance *c, int *sizes)
{
    int count = 1 + pick(c, 3);
    int left = tsr_test_size();

    for (int i = 0; i < count; i++) {
        int size = 1 + pick(c, left);
        while (left % size != 0) {
            size--;
        }
        sizes[i] = i == count - 1 ? left : size;
        left /= sizes[i];
    }
    return count;
}

/* All axes alike, so that moves of several axes join: the order is left to chance. */
static void place_alike(chance *c, tsr_layout *layout, tsr_placement_kind kind)
{
    int dim = kind == TSR_SHARD ? pick(c, layout->ndim) : 0;

    for (int axis = 0; axis < tsr_mesh_axis_count(layout->mesh); axis++) {
        layout->place[axis] = (tsr_placement){.kind = kind, .dim = dim};
    }
}

/* kinds: 2 without Partial, 3 with. */
static void place_randomly(chance *c, tsr_layout *layout, int kinds)
{
    int axis_count = tsr_mesh_axis_count(layout->mesh);

    for (int axis = 0; axis < axis_count; axis++) {
        static const tsr_placement_kind known[] = {TSR_REPLICATE, TSR_SHARD, TSR_PARTIAL};
        int other = axis + pick(c, axis_count - axis);
        signed char swapped = layout->order[axis];
        tsr_placement_kind kind = pick(c, 2) == 0 ? TSR_SHARD : known[pick(c, kinds)];

        if (kind == TSR_SHARD && layout->ndim == 0) {
            kind = TSR_REPLICATE;
        }
        layout->place[axis].kind = kind;
        layout->place[axis].dim = kind == TSR_SHARD ? pick(c, layout->ndim) : 0;
        layout->order[axis] = layout->order[other];
        layout->order[other] = swapped;
    }
}

static tsr_layout random_layout(chance *c, const tsr_mesh *mesh, int kinds)
{
    static const int64_t extents[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24};
    int64_t shape[TSR_MAX_DIMS];
    int ndim = pick(c, 5);
    tsr_layout layout;

    for (int d = 0; d < ndim; d++) {
        shape[d] = extents[pick(c, 20) == 0 ? 0 : 1 + pick(c, ndim > 2 ? 8 : 14)];
    }
    CHECK_OK(tsr_layout_init(mesh, shape, ndim, &layout));
    place_randomly(c, &layout, kinds);
    return layout;
}

/* Another layout of the same tensor that a redistribution may reach. */
static tsr_layout random_target(chance *c, const tsr_layout *from)
{
    tsr_layout to = *from;

    place_randomly(c, &to, 3);
    for (int axis = 0; axis < tsr_mesh_axis_count(from->mesh); axis++) {
        if (to.place[axis].kind == TSR_PARTIAL && from->place[axis].kind != TSR_PARTIAL) {
            to.place[axis].kind = TSR_REPLICATE;
        }
    }
    return to;
}

/* True if every rank has something of the tensor in both layouts, so no group is without work. */
static bool has_no_empty_piece(const tsr_layout *layout)
{
    int64_t shape[TSR_MAX_DIMS];
    int64_t offset[TSR_MAX_DIMS];

    for (int rank = 0; rank < tsr_mesh_cell_count(layout->mesh); rank++) {
        CHECK_OK(tsr_layout_local(layout, rank, shape, offset));
        for (int d = 0; d < layout->ndim; d++) {
            if (shape[d] == 0) {
                return false;
            }
        }
    }
    return true;
}

static void complain(const tsr_layout *from, const tsr_layout *to)
{
    char a[128];
    char b[128];

    (void)fprintf(stderr, "[rank %d] from %s to %s\n", tsr_test_rank(),
                  tsr_layout_format(from, a, sizeof(a)), tsr_layout_format(to, b, sizeof(b)));
}

/* There (and back, unless something was summed); both results checked. */
static bool round_trip(const tsr_pieces_job *job, const tsr_layout *from, const tsr_layout *to,
                       tsr_dtype dtype, bool persistent)
{
    const tsri_redistribute_options options = {.persistent = persistent};
    tsr_dtensor *source = tsr_pieces_make(job, from, dtype);
    tsr_dtensor *there = NULL;
    tsr_dtensor *back = NULL;
    int cost = tsri_redistribute_cost(from, to);
    int calls = 0;
    bool held = source != NULL;

    tsri_recorder_clear(tsri_comm_device(job->comm));
    held = held && tsri_redistribute(source, to, &options, &there) == TSR_OK;
    calls = tsr_pieces_collectives(job, -1);
    held = held && calls <= cost;
    held = held && (calls == cost || !has_no_empty_piece(from) || !has_no_empty_piece(to));
    held = held && tsr_pieces_wrong(there, from) == 0;
    if (held && tsri_redistribute_cost(to, from) >= 0) {
        held = tsri_redistribute(there, from, &options, &back) == TSR_OK;
        held = held && tsr_pieces_wrong(back, from) == 0;
        held = held && tsr_pieces_wrong(there, from) == 0;
    }
    held = held && tsr_pieces_wrong(source, from) == 0;
    tsr_dtensor_release(&back);
    tsr_dtensor_release(&there);
    tsr_dtensor_release(&source);
    return held;
}

static void check_rounds(chance *c, const tsr_pieces_job *job)
{
    static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F64, TSR_I32};
    tsri_arena *arena = tsri_comm_arena(job->comm);

    for (int round = 0; round < ROUNDS; round++) {
        tsr_layout from = random_layout(c, job->mesh, 2 + round % 2);
        tsr_layout to = random_target(c, &from);
        tsr_dtype dtype = types[pick(c, 4)];
        bool held = true;

        if (from.ndim > 0 && pick(c, 4) == 0) {
            place_alike(c, &from, round % 2 != 0 ? TSR_PARTIAL : TSR_SHARD);
            place_alike(c, &to, TSR_SHARD);
        }
        held = round_trip(job, &from, &to, dtype, true);

        /* Twice in the arena: recorded, then in planned memory that holds old bytes. */
        for (int step = 0; step < 2; step++) {
            CHECK_OK(tsri_arena_step_begin(arena, "train", 0));
            held = round_trip(job, &from, &to, dtype, false) && held;
            CHECK_OK(tsri_arena_step_end(arena));
        }
        CHECK(held);
        if (!held) {
            complain(&from, &to);
            tsr_error_print(stderr);
            return;
        }
    }
}

static void random_redistributions(void)
{
    chance c = {.key = tsri_rng_key(99, (uint64_t)tsr_test_size(), 0, 0)};

    for (int i = 0; i < MESHES; i++) {
        int sizes[3];
        int axis_count = random_mesh(&c, sizes);
        tsr_pieces_job job = tsr_pieces_open(sizes, axis_count);

        if (job.comm != NULL) {
            check_rounds(&c, &job);
        }
        tsr_pieces_close(&job);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"random_redistributions", random_redistributions},
    {NULL, NULL},
};
