/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 6 8 */
/* hostile: 4 */
/**
 * @file test_redistribute.c
 * Every pair of placements on real ranks: the bytes, the collectives, and the source left alone.
 */
#include "base/base.h"

#include "dtensor/dtensor.h"
#include "support/pieces.h"
#include "support/tsr_test.h"

#define S(d) \
    { \
        .kind = TSR_SHARD, .dim = (d) \
    }
#define R \
    { \
        .kind = TSR_REPLICATE \
    }
#define P \
    { \
        .kind = TSR_PARTIAL \
    }

typedef struct pair {
    tsr_placement from, to;
    int collective; /* tsri_coll_kind, or -1 for none */
} pair;

static const pair pairs[] = {
    {R, R, -1},
    {R, S(0), -1},
    {R, S(1), -1},
    {R, S(2), -1},
    {S(0), S(0), -1},
    {S(1), S(1), -1},
    {P, P, -1},
    {S(0), R, TSRI_ALL_GATHER},
    {S(1), R, TSRI_ALL_GATHER},
    {S(2), R, TSRI_ALL_GATHER},
    {S(0), S(1), TSRI_ALL_TO_ALL},
    {S(1), S(0), TSRI_ALL_TO_ALL},
    {S(0), S(2), TSRI_ALL_TO_ALL},
    {S(2), S(1), TSRI_ALL_TO_ALL},
    {P, R, TSRI_ALL_REDUCE},
    {P, S(0), TSRI_REDUCE_SCATTER},
    {P, S(1), TSRI_REDUCE_SCATTER},
    {P, S(2), TSRI_REDUCE_SCATTER},
};

/* Sizes that divide, that do not, that leave ranks without a row, 1, and 0. */
static const int64_t shapes[][3] = {{24, 24, 24}, {7, 5, 9}, {9, 3, 2}, {1, 1, 1}, {3, 0, 2}};

static bool can_sum(tsr_dtype dtype)
{
    return dtype == TSR_F32 || dtype == TSR_BF16 || dtype == TSR_F64 || dtype == TSR_I32;
}

/* One pair on the one axis of all ranks. */
static void check_pair(const tsr_pieces_job *job, const pair *p, const int64_t *shape,
                       tsr_dtype dtype)
{
    tsr_layout from;
    tsr_layout to;
    tsr_dtensor *source = NULL;
    tsr_dtensor *moved = NULL;
    int cost = 0;

    CHECK_OK(tsr_layout_init(job->mesh, shape, 3, &from));
    to = from;
    from.place[0] = p->from;
    to.place[0] = p->to;
    cost = tsri_redistribute_cost(&from, &to);
    source = tsr_pieces_make(job, &from, dtype);
    REQUIRE(source != NULL);
    tsri_recorder_clear(tsri_comm_device(job->comm));
    CHECK_OK(tsr_dtensor_redistribute(source, &to, &moved));
    CHECK_EQ(cost, p->collective >= 0 && tsr_test_size() > 1 && shape[1] > 0);
    CHECK_EQ(tsr_pieces_collectives(job, -1), cost);
    CHECK_EQ(tsr_pieces_collectives(job, p->collective), cost);
    if (moved != NULL) {
        CHECK(tsr_layout_equal(tsr_dtensor_layout(moved), &to));
        CHECK_EQ(moved->layout.place[0].kind, p->to.kind);
        CHECK_EQ(tsr_dtensor_dtype(moved), dtype);
        CHECK_EQ(tsr_pieces_wrong(moved, &from), 0);
    }
    CHECK_EQ(tsr_pieces_wrong(source, &from), 0);
    tsr_dtensor_release(&moved);
    tsr_dtensor_release(&source);
}

static void check_pairs(tsr_dtype dtype)
{
    tsr_pieces_job job = tsr_pieces_open((int[]){tsr_test_size()}, 1);

    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]) && job.comm != NULL; i++) {
        for (size_t j = 0; j < sizeof(shapes) / sizeof(shapes[0]); j++) {
            if (pairs[i].from.kind != TSR_PARTIAL || can_sum(dtype)) {
                check_pair(&job, &pairs[i], shapes[j], dtype);
            }
        }
    }
    tsr_pieces_close(&job);
}

static void pairs_in_f32(void)
{
    check_pairs(TSR_F32);
}

static void pairs_in_bf16(void)
{
    check_pairs(TSR_BF16);
}

static void pairs_in_f64(void)
{
    check_pairs(TSR_F64);
}

static void pairs_of_integers(void)
{
    check_pairs(TSR_I32);
    check_pairs(TSR_I64);
    check_pairs(TSR_U8);
}

/* The values are right in either type, so what travelled is seen by its bytes. */
static void reduction_in_another_type(void)
{
    tsr_pieces_job job = tsr_pieces_open((int[]){tsr_test_size()}, 1);
    const tsri_redistribute_options options = {.persistent = true, .reduce_dtype = TSR_F32};
    const int64_t shape[3] = {7, 5, 9};

    for (int dim = -1; dim < 3 && job.comm != NULL; dim++) {
        tsr_layout from;
        tsr_layout to;
        tsr_dtensor *source = NULL;
        tsr_dtensor *moved = NULL;
        int count = 0;
        const tsri_entry *entries = NULL;

        CHECK_OK(tsr_layout_init(job.mesh, shape, 3, &from));
        to = from;
        from.place[0].kind = TSR_PARTIAL;
        if (dim >= 0) {
            to.place[0] = (tsr_placement)S(dim);
        }
        source = tsr_pieces_make(&job, &from, TSR_BF16);
        REQUIRE(source != NULL);
        tsri_recorder_clear(tsri_comm_device(job.comm));
        CHECK_OK(tsri_redistribute(source, &to, &options, &moved));
        entries = tsri_recorder_entries(tsri_comm_device(job.comm), &count);
        for (int i = 0; i < count; i++) {
            if (entries[i].kind == TSRI_ENTRY_COLLECTIVE) { /* at least all elements, in f32 */
                CHECK(entries[i].bytes >= sizeof(float[7 * 5 * 9]));
            }
        }
        REQUIRE(moved != NULL);
        CHECK_EQ(tsr_dtensor_dtype(moved), TSR_BF16);
        CHECK_EQ(tsr_pieces_wrong(moved, &from), 0);
        CHECK_EQ(tsr_pieces_wrong(source, &from), 0);
        tsr_dtensor_release(&moved);
        tsr_dtensor_release(&source);
    }
    tsr_pieces_close(&job);
}

const tsr_test_case tsr_test_cases[] = {
    {"pairs_in_f32", pairs_in_f32},
    {"pairs_in_bf16", pairs_in_bf16},
    {"pairs_in_f64", pairs_in_f64},
    {"pairs_of_integers", pairs_of_integers},
    {"reduction_in_another_type", reduction_in_another_type},
    {NULL, NULL},
};
