/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 3 4 8 */
/**
 * @file test_cpu_collectives.c
 * Every collective of the cpu backend, by type, placement, list and transport, against its
 * definition.
 *
 * Inputs are small integers that depend on (rank, item, element) alone, so each rank computes what
 * it should find, and every sum is exact in every type, in whatever order it is taken. What rounds
 * is tested apart, bit by bit, against sums in the order of ranks.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"
#include "backend/dispatch.h"
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

#define MAX_RANKS 8
#define MAX_ITEMS 70

typedef struct rig {
    tsr_device *device;
    tsr_stream *compute, *gather;
    tsr_group *on_compute, *on_gather;
} rig;

static bool rig_open(rig *out, const char *transport)
{
    tsri_boot_info info = {0};
    int ranks[MAX_RANKS];
    const tsr_backend *backend = NULL;

    *out = (rig){0};
    for (int r = 0; r < MAX_RANKS; r++) {
        ranks[r] = r;
    }
    CHECK(setenv("TSR_CPU_TRANSPORT", transport, 1) == 0);
    CHECK_OK(tsri_boot_init(NULL, NULL, NULL, &info));
    CHECK_OK(tsri_backend_find("cpu", &backend));
    CHECK_OK(tsri_device_open(
        backend,
        &(tsri_device_options){.world_rank = info.rank, .world_size = info.size, .timeout_s = 60},
        &out->device));
    CHECK_OK(tsri_stream_open(out->device, TSRI_STREAM_COMPUTE, &out->compute));
    CHECK_OK(tsri_stream_open(out->device, TSRI_STREAM_GATHER, &out->gather));
    CHECK_OK(tsri_group_open(out->device, ranks, info.size, info.rank, 1, "all", out->compute,
                             &out->on_compute));
    CHECK_OK(tsri_group_open(out->device, ranks, info.size, info.rank, 1, "all", out->gather,
                             &out->on_gather));
    return out->on_gather != NULL;
}

static void rig_close(rig *it)
{
    tsri_group_close(&it->on_compute);
    tsri_group_close(&it->on_gather);
    tsri_stream_close(&it->compute);
    tsri_stream_close(&it->gather);
    tsri_device_close(&it->device);
}

/* ---- values ---- */

static double value_of(int rank, int item, int64_t element)
{
    uint64_t mixed =
        ((uint64_t)element * 2654435761U) + ((uint64_t)item * 40503U) + ((uint64_t)rank * 7919U);

    return (double)((mixed >> 7) % 13); /* 8 * 12 = 96 is exact in bf16 and fits u8 */
}

static void put(tsr_dtype dtype, void *at, int64_t i, double value)
{
    float narrow = (float)value;

    switch (dtype) {
    case TSR_F64:
        ((double *)at)[i] = value;
        break;
    case TSR_I32:
        ((int32_t *)at)[i] = (int32_t)value;
        break;
    case TSR_I64:
        ((int64_t *)at)[i] = (int64_t)value;
        break;
    case TSR_U8:
        ((uint8_t *)at)[i] = (uint8_t)value;
        break;
    case TSR_BF16:
    case TSR_F16:
        tsri_cpu_narrow(dtype, &narrow, (uint16_t *)at + i, 1);
        break;
    case TSR_F32:
    case TSR_DTYPE_DEFAULT:
        ((float *)at)[i] = narrow;
        break;
    }
}

static double get(tsr_dtype dtype, const void *at, int64_t i)
{
    float wide = 0;

    switch (dtype) {
    case TSR_F64:
        return ((const double *)at)[i];
    case TSR_I32:
        return ((const int32_t *)at)[i];
    case TSR_I64:
        return (double)((const int64_t *)at)[i];
    case TSR_U8:
        return ((const uint8_t *)at)[i];
    case TSR_BF16:
    case TSR_F16:
        tsri_cpu_widen(dtype, (const uint16_t *)at + i, &wide, 1);
        return (double)wide;
    case TSR_F32:
    case TSR_DTYPE_DEFAULT:
        break;
    }
    return (double)((const float *)at)[i];
}

/* ---- one case ---- */

typedef struct trial {
    tsri_coll_kind kind;
    tsr_dtype dtype;
    tsri_reduce_op op;
    bool in_place;
    int root, item_count;
    int64_t counts[MAX_ITEMS];
    tsr_buffer *in[MAX_ITEMS];
    tsr_buffer *out[MAX_ITEMS];
} trial;

static bool many_inputs(tsri_coll_kind kind)
{
    return kind == TSRI_REDUCE_SCATTER || kind == TSRI_ALL_TO_ALL;
}

static int64_t in_count(const trial *t, int item)
{
    return t->counts[item] * (many_inputs(t->kind) ? tsr_test_size() : 1);
}

static int64_t out_count(const trial *t, int item)
{
    bool pieces = t->kind == TSRI_ALL_GATHER || t->kind == TSRI_ALL_TO_ALL;

    return t->counts[item] * (pieces ? tsr_test_size() : 1);
}

/* What rank should find at out[i] of item. */
static double expected(const trial *t, int item, int64_t i)
{
    int64_t count = t->counts[item];
    int rank = tsr_test_rank();
    int64_t at = t->kind == TSRI_REDUCE_SCATTER ? (rank * count) + i : i;
    double result = 0;

    switch (t->kind) {
    case TSRI_ALL_GATHER:
        return value_of((int)(i / count), item, i % count);
    case TSRI_ALL_TO_ALL:
        return value_of((int)(i / count), item, (rank * count) + (i % count));
    case TSRI_BROADCAST:
        return value_of(t->root, item, i);
    case TSRI_REDUCE_SCATTER:
    case TSRI_ALL_REDUCE:
    case TSRI_COLL_COUNT:
        break;
    }
    for (int r = 0; r < tsr_test_size(); r++) {
        double value = value_of(r, item, at);
        result = t->op == TSRI_SUM ? result + value : (value > result ? value : result);
    }
    return result;
}

/* Byte offset of the input in its buffer: 64 in from the start, or where in place puts it. */
static void offsets(const trial *t, int item, size_t *in, size_t *out)
{
    size_t piece = (size_t)t->counts[item] * tsr_dtype_size(t->dtype);

    *in = 64;
    *out = 64;
    if (t->in_place && t->kind == TSRI_ALL_GATHER) {
        *in += (size_t)tsr_test_rank() * piece;
    }
    if (t->in_place && t->kind == TSRI_REDUCE_SCATTER) {
        *out += (size_t)tsr_test_rank() * piece;
    }
}

static void prepare(tsr_device *device, trial *t, tsri_coll_item *items)
{
    size_t unit = tsr_dtype_size(t->dtype);

    for (int i = 0; i < t->item_count; i++) {
        size_t in_bytes = 64 + ((size_t)in_count(t, i) * unit);
        size_t out_bytes = 64 + ((size_t)out_count(t, i) * unit);
        tsri_coll_item *item = &items[i];
        *item = (tsri_coll_item){.count = t->counts[i]};
        if (t->in_place) {
            in_bytes = in_bytes > out_bytes ? in_bytes : out_bytes;
        } else {
            CHECK_OK(tsri_buffer_alloc(device, out_bytes, TSRI_MEM_OTHER, "out", &t->out[i]));
        }
        CHECK_OK(tsri_buffer_alloc(device, in_bytes, TSRI_MEM_OTHER, "in", &t->in[i]));
        item->in = t->in[i];
        item->out = t->in_place ? t->in[i] : t->out[i];
        offsets(t, i, &item->in_offset, &item->out_offset);
        unsigned char *at = (unsigned char *)item->in->address + item->in_offset;
        for (int64_t e = 0; e < in_count(t, i); e++) {
            put(t->dtype, at, e, value_of(tsr_test_rank(), i, e));
        }
    }
}

static int64_t count_wrong(const trial *t, const tsri_coll_item *items)
{
    int64_t wrong = 0;

    for (int i = 0; i < t->item_count; i++) {
        const unsigned char *at =
            (const unsigned char *)items[i].out->address + items[i].out_offset;
        for (int64_t e = 0; e < out_count(t, i); e++) {
            wrong += get(t->dtype, at, e) == expected(t, i, e) ? 0 : 1;
        }
    }
    return wrong;
}

static void run_trial(tsr_device *device, tsr_group *group, tsr_stream *stream, trial *t)
{
    tsri_coll_item items[MAX_ITEMS];
    tsri_coll coll = {.kind = t->kind,
                      .dtype = t->dtype,
                      .op = t->op,
                      .root = t->root,
                      .items = items,
                      .item_count = t->item_count,
                      .label = "trial"};

    prepare(device, t, items);
    CHECK_OK(tsri_collective(group, &coll, stream));
    CHECK_OK(tsri_stream_sync(stream));
    int64_t wrong = count_wrong(t, items);
    if (wrong > 0) {
        (void)fprintf(stderr, "%s of %s, op %d, in place %d, %d items\n", tsri_coll_name(t->kind),
                      tsr_dtype_name(t->dtype), (int)t->op, (int)t->in_place, t->item_count);
    }
    CHECK_EQ(wrong, 0);
    for (int i = 0; i < t->item_count; i++) {
        tsri_buffer_release(&t->in[i]);
        tsri_buffer_release(&t->out[i]);
    }
}

/* ---- the matrix ---- */

/* Lists: one small, uneven small, one above a cell, uneven large with slack, more than a call. */
static void fill_counts(trial *t, int list)
{
    static const int64_t uneven[] = {1, 17, 0, 333, 64, 5};

    t->item_count = list == 1 || list == 3 ? 6 : 1;
    for (int i = 0; i < 6; i++) {
        t->counts[i] = list == 1 ? uneven[i] : uneven[i] * 41 + (i == 2 ? 0 : 5003);
    }
    if (list == 0) {
        t->counts[0] = 3;
    }
    if (list == 2) {
        t->counts[0] = 40009;
    }
    for (int i = 0; list >= 2 && many_inputs(t->kind) && i < t->item_count; i++) {
        t->counts[i] = (t->counts[i] / tsr_test_size()) + (t->counts[i] > 0 ? 1 : 0);
    }
    if (list == 4) {
        t->item_count = MAX_ITEMS;
        for (int i = 0; i < MAX_ITEMS; i++) {
            t->counts[i] = (i * 7) % 23;
        }
    }
}

static void run_kind(rig *it, tsri_coll_kind kind, tsr_dtype dtype, int list)
{
    bool reduces = kind == TSRI_REDUCE_SCATTER || kind == TSRI_ALL_REDUCE;

    for (int variant = 0; variant < 8; variant++) {
        trial t = {.kind = kind,
                   .dtype = dtype,
                   .op = (variant & 1) != 0 ? TSRI_MAX : TSRI_SUM,
                   .in_place = (variant & 2) != 0,
                   .root = tsr_test_size() - 1};
        bool queued = (variant & 4) != 0;
        if ((t.op == TSRI_MAX && !reduces) || (t.in_place && kind == TSRI_ALL_TO_ALL)) {
            continue;
        }
        fill_counts(&t, list);
        run_trial(it->device, queued ? it->on_gather : it->on_compute,
                  queued ? it->gather : it->compute, &t);
    }
}

/* lists: a bit per list. */
static void run_lists(rig *it, tsr_dtype dtype, unsigned lists)
{
    for (int kind = 0; kind < TSRI_COLL_COUNT; kind++) {
        for (int list = 0; list < 5; list++) {
            if ((lists >> list & 1U) != 0) {
                run_kind(it, (tsri_coll_kind)kind, dtype, list);
            }
        }
    }
}

static void run_matrix(const char *transport, size_t mpi_bytes, const tsr_dtype *dtypes,
                       int dtype_count, unsigned lists)
{
    rig it;

    REQUIRE(rig_open(&it, transport));
    if (mpi_bytes > 0) {
        ((tsri_cpu_device *)it.device)->mpi_bytes = mpi_bytes;
    }
    for (int d = 0; d < dtype_count; d++) {
        run_lists(&it, dtypes[d], lists);
    }
    rig_close(&it);
}

static const tsr_dtype types[] = {TSR_F32, TSR_BF16, TSR_F16, TSR_F64, TSR_I32, TSR_I64, TSR_U8};

static void test_memory(void)
{
    run_matrix("auto", 0, types, 7, 0x1F);
}

static void test_mpi(void)
{
    run_matrix("mpi", 0, types, 7, 0x12);
    run_matrix("mpi", 0, types, 4, 0x04);
}

/* Every large piece takes several rounds, and more chunks than go round a ring at a time. */
static void test_mpi_in_rounds(void)
{
    run_matrix("mpi", (size_t)1 << 13, types, 2, 0x0C);
}

/* ---- rounding: the order of ranks, the same bits everywhere ---- */

static float rough(int rank, int64_t i)
{
    return 1.0F / (float)(1 + ((i * 31 + rank * 17) % 1009)) * (rank % 2 == 0 ? 1.0F : -0.37F);
}

static float ordered_sum(tsr_dtype dtype, int64_t i)
{
    float sum = 0;

    for (int r = 0; r < tsr_test_size(); r++) {
        float term = rough(r, i);
        if (dtype == TSR_BF16) {
            uint16_t half = 0;
            tsri_cpu_narrow(TSR_BF16, &term, &half, 1);
            tsri_cpu_widen(TSR_BF16, &half, &term, 1);
        }
        sum = r == 0 ? term : sum + term;
    }
    if (dtype == TSR_BF16) {
        uint16_t half = 0;
        tsri_cpu_narrow(TSR_BF16, &sum, &half, 1);
        tsri_cpu_widen(TSR_BF16, &half, &sum, 1);
    }
    return sum;
}

static void check_order(rig *it, tsr_dtype dtype, int64_t count)
{
    tsr_buffer *buffer = NULL;
    int64_t wrong = 0;

    REQUIRE_OK(tsri_buffer_alloc(it->device, (size_t)count * tsr_dtype_size(dtype), TSRI_MEM_OTHER,
                                 "rough", &buffer));
    for (int64_t i = 0; i < count; i++) {
        put(dtype, buffer->address, i, (double)rough(tsr_test_rank(), i));
    }
    tsri_coll_item item = {buffer, 0, buffer, 0, count};
    CHECK_OK(tsri_collective(it->on_gather,
                             &(tsri_coll){.kind = TSRI_ALL_REDUCE,
                                          .dtype = dtype,
                                          .items = &item,
                                          .item_count = 1,
                                          .label = "rough"},
                             it->gather));
    CHECK_OK(tsri_stream_sync(it->gather));
    for (int64_t i = 0; i < count; i++) {
        wrong += get(dtype, buffer->address, i) == (double)ordered_sum(dtype, i) ? 0 : 1;
    }
    CHECK_EQ(wrong, 0);
    tsri_buffer_release(&buffer);
}

static void test_order_of_sums(void)
{
    rig it;

    REQUIRE(rig_open(&it, "auto"));
    for (int64_t count = 1; count < 300000; count = (count * 5) + 2) {
        check_order(&it, TSR_F32, count);
        check_order(&it, TSR_BF16, count);
    }
    rig_close(&it);
}

/* The maximum of anything and NaN is NaN, whichever rank has it. */
static void test_max_keeps_nan(void)
{
    rig it;
    tsr_buffer *buffer = NULL;
    int size = tsr_test_size();

    REQUIRE(rig_open(&it, "auto"));
    REQUIRE_OK(tsri_buffer_alloc(it.device, 64, TSRI_MEM_OTHER, "nan", &buffer));
    float *at = buffer->address;
    for (int i = 0; i <= size; i++) {
        at[i] = i == tsr_test_rank() ? (float)__builtin_nan("") : 1.0F;
    }
    tsri_coll_item item = {buffer, 0, buffer, 0, size + 1};
    CHECK_OK(tsri_collective(it.on_compute,
                             &(tsri_coll){.kind = TSRI_ALL_REDUCE,
                                          .dtype = TSR_F32,
                                          .op = TSRI_MAX,
                                          .items = &item,
                                          .item_count = 1},
                             it.compute));
    for (int i = 0; i < size; i++) {
        CHECK(at[i] != at[i]);
    }
    CHECK(at[size] == 1.0F);
    tsri_buffer_release(&buffer);
    rig_close(&it);
}

/* Groups of neighbours beside the world's group, each with its own members. */
static void test_groups_of_two(void)
{
    rig it;
    tsr_group *pair = NULL;
    tsr_buffer *buffer = NULL;
    int first = tsr_test_rank() / 2 * 2;
    int ranks[] = {first, first + 1};
    int size = first + 1 < tsr_test_size() ? 2 : 1;
    double sum = size == 2 ? (double)(first + first + 1) : (double)first;

    for (int mpi = 0; mpi < 2; mpi++) {
        REQUIRE(rig_open(&it, mpi ? "mpi" : "auto"));
        REQUIRE_OK(tsri_group_open(it.device, ranks, size, tsr_test_rank() - first, 2, "pair",
                                   it.compute, &pair));
        REQUIRE_OK(tsri_buffer_alloc(it.device, 8, TSRI_MEM_OTHER, "x", &buffer));
        tsri_coll_item item = {buffer, 0, buffer, 0, 1};
        tsri_coll coll = {
            .kind = TSRI_ALL_REDUCE, .dtype = TSR_F64, .items = &item, .item_count = 1};
        *(double *)buffer->address = tsr_test_rank();
        CHECK_OK(tsri_collective(pair, &coll, it.compute));
        CHECK_NEAR(*(double *)buffer->address, sum, 0);
        CHECK_OK(tsri_collective(it.on_compute, &coll, it.compute));
        tsri_group_close(&pair);
        tsri_buffer_release(&buffer);
        rig_close(&it);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"memory", test_memory},
    {"mpi", test_mpi},
    {"mpi_in_rounds", test_mpi_in_rounds},
    {"order_of_sums", test_order_of_sums},
    {"max_keeps_nan", test_max_keeps_nan},
    {"groups_of_two", test_groups_of_two},
    {NULL, NULL},
};
