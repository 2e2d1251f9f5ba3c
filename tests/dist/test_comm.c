/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 6 8 */
/**
 * @file test_comm.c
 * Opening a mesh, groups over every set of axes, data axes, and what ranks must agree on.
 */
#include "base/base.h"

#include "tessera/mesh_algebra.h"

#include <string.h>

#include "comm/comm.h"
#include "support/tsr_test.h"

enum {
    COUNT = 37 /* elements reduced: no multiple of any group size */
};

/* The world's ranks as up to three axes, whatever their number. */
static int axes_of(int size, tsr_mesh_axis *axes)
{
    static const int sizes[9][3] = {{0},       {1, 1, 1}, {1, 2, 1}, {3, 1, 1}, {2, 1, 2},
                                    {5, 1, 1}, {3, 1, 2}, {7, 1, 1}, {2, 2, 2}};
    static const char *const names[3] = {"replicate", "shard", "tp"};

    for (int i = 0; i < 3; i++) {
        axes[i] = (tsr_mesh_axis){names[i], sizes[size][i]};
    }
    return 3;
}

typedef struct bench {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
} bench;

static bench open_bench(const tsr_comm_options *options)
{
    tsr_mesh_axis axes[3];
    int count = axes_of(tsr_test_size(), axes);
    bench b = {0};

    CHECK_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &b.world));
    CHECK_OK(tsr_mesh_create(tsr_test_size(), axes, count, NULL, &b.mesh));
    CHECK_OK(tsr_comm_open(b.world, b.mesh, options, &b.comm));
    return b;
}

static void close_bench(bench *b)
{
    tsr_comm_release(&b->comm);
    tsr_mesh_release(&b->mesh);
    tsr_world_close(&b->world);
}

static bool message_has(const char *words)
{
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
        return false;
    }
    return true;
}

static void test_open(void)
{
    int64_t before = tsri_alloc_live();
    bench b = open_bench(NULL);
    int coord[TSR_MESH_MAX_AXES];
    size_t now = 1;
    size_t peak = 0;

    REQUIRE(b.comm != NULL);
    CHECK(tsr_comm_mesh(b.comm) == b.mesh);
    CHECK(tsr_comm_world(b.comm) == b.world);
    CHECK_EQ(tsr_comm_rank(b.comm), tsr_test_rank());
    REQUIRE_OK(tsr_mesh_coord(b.mesh, tsr_test_rank(), coord));
    for (int axis = 0; axis < 3; axis++) {
        CHECK_EQ(tsr_comm_coord(b.comm, axis), coord[axis]);
    }
    CHECK_EQ(tsr_comm_coord(b.comm, 3), 0);
    for (int kind = 0; kind < TSRI_STREAM_COUNT; kind++) {
        const tsr_stream *stream = tsri_comm_stream(b.comm, (tsri_stream_kind)kind);

        REQUIRE(stream != NULL);
        CHECK_EQ(stream->kind, kind);
        CHECK(stream->device == tsri_comm_device(b.comm));
    }
    CHECK(tsri_comm_arena(b.comm) != NULL);
    tsr_comm_memory(b.comm, &now, &peak);
    CHECK(peak >= now);
    CHECK(tsr_comm_retain(b.comm) == b.comm);
    tsr_comm_release(&(tsr_comm *){b.comm});
    close_bench(&b);
    CHECK(b.comm == NULL);
    tsr_comm_release(&b.comm);
    CHECK_EQ(tsri_alloc_live(), before);
}

/* Of masks that differ on axes of size 1 alone, a smaller one has opened the group. */
static bool is_open(const bench *b, unsigned mask)
{
    for (int axis = 0; axis < 3; axis++) {
        if (tsr_mesh_axis_size(b->mesh, axis) == 1 && (mask >> axis & 1U) != 0) {
            return true;
        }
    }
    return false;
}

static void test_group_cache(void)
{
    bench b = open_bench(NULL);

    REQUIRE(b.comm != NULL);
    for (unsigned mask = 0; mask < 8; mask++) {
        tsr_group *first = NULL;
        tsr_group *again = NULL;
        tsr_group *other = NULL;

        const bool open = is_open(&b, mask);

        if (!open) {
            CHECK_STATUS(TSR_ERR_STATE, tsri_comm_group(b.comm, mask, TSRI_STREAM_GATHER, &first));
        }
        REQUIRE_OK(tsri_comm_open_group(b.comm, mask, TSRI_STREAM_GATHER, &first));
        REQUIRE_OK(tsri_comm_group(b.comm, mask, TSRI_STREAM_GATHER, &again));
        REQUIRE_OK(tsri_comm_group(b.comm, mask, TSRI_STREAM_COMPUTE, &other));
        CHECK(first == again);
        CHECK(first != other);
        CHECK_EQ(first->stream_kind, TSRI_STREAM_GATHER);
        CHECK_EQ(other->stream_kind, TSRI_STREAM_COMPUTE);
        CHECK_EQ(first->world_ranks[first->index], tsr_test_rank());
    }
    close_bench(&b);
}

/* Axes of size 1 do not make another group, and are in neither its name nor its mask. */
static void test_group_names(void)
{
    bench b = open_bench(NULL);
    tsr_group *all = NULL;
    tsr_group *none = NULL;
    tsr_group *bad = NULL;
    char text[64];
    unsigned used = 0;
    int size = 1;

    REQUIRE(b.comm != NULL);
    for (int axis = 0; axis < 3; axis++) {
        used |= tsr_mesh_axis_size(b.mesh, axis) > 1 ? 1U << axis : 0U;
        size *= tsr_mesh_axis_size(b.mesh, axis);
    }
    REQUIRE_OK(tsri_comm_open_group(b.comm, 7U, TSRI_STREAM_REDUCE, &all));
    REQUIRE_OK(tsri_comm_open_group(b.comm, 7U & ~used, TSRI_STREAM_REDUCE, &none));
    CHECK_EQ(all->size, size);
    CHECK_EQ(all->axis_mask, used);
    CHECK_STR(all->name, tsri_comm_mask_name(b.comm, used, text, sizeof(text)));
    CHECK_EQ(none->size, 1);
    CHECK_EQ(none->axis_mask, 0);
    CHECK_STR(tsri_comm_mask_name(b.comm, 0, text, sizeof(text)), "none");
    CHECK_STR(tsri_comm_mask_name(b.comm, 5U, text, sizeof(text)), "replicate+tp");
    CHECK_STR(tsri_comm_mask_name(b.comm, 7U, text, 12), "replicate+s");
    CHECK_STATUS(TSR_ERR_INVALID, tsri_comm_group(b.comm, 8U, TSRI_STREAM_REDUCE, &bad));
    close_bench(&b);
}

static float element(int rank, int i)
{
    return (float)((rank + 1) * 100 + i); /* sums of up to 8 are exact in f32 */
}

/* Sum (or maximum) over the axes of mask, against the ranks' values added up here. */
static void check_reduce(const bench *b, unsigned mask, tsri_reduce_op op)
{
    tsr_stream *stream = tsri_comm_stream(b->comm, TSRI_STREAM_COMPUTE);
    size_t bytes = COUNT * sizeof(float);
    tsr_buffer *buffer = NULL;
    float data[COUNT];
    int ranks[8];
    int size = 0;
    int index = 0;

    REQUIRE_OK(tsr_mesh_flat_ranks(b->mesh, mask, tsr_test_rank(), ranks, &size, &index));
    REQUIRE_OK(tsri_comm_buffer(b->comm, 64 + bytes, TSRI_MEM_OTHER, "test", &buffer));
    for (int i = 0; i < COUNT; i++) {
        data[i] = element(tsr_test_rank(), i);
    }
    CHECK_OK(tsri_write(buffer, 64, data, bytes, stream));
    CHECK_OK(tsri_comm_all_reduce(b->comm, mask, buffer, 64, COUNT, TSR_F32, op, "test"));
    memset(data, 0, sizeof(data));
    CHECK_OK(tsri_read(buffer, 64, data, bytes, stream));
    for (int i = 0; i < COUNT; i++) {
        float want = op == TSRI_SUM ? 0.0F : element(ranks[size - 1], i);

        for (int k = 0; k < size && op == TSRI_SUM; k++) {
            want += element(ranks[k], i);
        }
        CHECK_NEAR(data[i], want, 0.0); /* whole numbers below 2^24 */
    }
    tsri_buffer_release(&buffer);
}

static void test_all_reduce(void)
{
    bench b = open_bench(&(tsr_comm_options){.race_check = true});

    REQUIRE(b.comm != NULL);
    for (unsigned mask = 0; mask < 8; mask++) {
        check_reduce(&b, mask, TSRI_SUM);
        check_reduce(&b, mask, TSRI_MAX);
    }
    close_bench(&b);
}

/* An all-reduce of n floats over W ranks sends 2 (W - 1) / W of their bytes, and nothing alone. */
static void test_sent_bytes(void)
{
    bench b = open_bench(&(tsr_comm_options){.record = true});
    const int size = tsr_mesh_axis_size(b.mesh, 0) * tsr_mesh_axis_size(b.mesh, 2);
    size_t before = 0;
    size_t after = 0;

    REQUIRE(b.comm != NULL);
    REQUIRE_OK(tsr_comm_sent_bytes(b.comm, "replicate+tp", &before));
    check_reduce(&b, 1U << 0 | 1U << 2, TSRI_SUM);
    REQUIRE_OK(tsr_comm_sent_bytes(b.comm, "replicate+tp", &after));
    CHECK_EQ(after - before, 2 * COUNT * sizeof(float) * (size_t)(size - 1) / (size_t)size);
    CHECK_STATUS(TSR_ERR_INVALID, tsr_comm_sent_bytes(b.comm, "tp+replicate", &after));
    close_bench(&b);
    b = open_bench(NULL);
    CHECK_STATUS(TSR_ERR_STATE, tsr_comm_sent_bytes(b.comm, "tp", &after));
    close_bench(&b);
}

static void test_record(void)
{
    bench b = open_bench(&(tsr_comm_options){.record = true});
    tsr_buffer *buffer = NULL;
    size_t whole = 4 * sizeof(float);
    size_t pieces = (size_t)tsr_test_size();
    unsigned used = 0;

    REQUIRE(b.comm != NULL);
    for (int axis = 0; axis < 3; axis++) {
        used |= tsr_mesh_axis_size(b.mesh, axis) > 1 ? 1U << axis : 0U;
    }
    REQUIRE_OK(tsri_comm_buffer(b.comm, whole, TSRI_MEM_OTHER, "test", &buffer));
    CHECK_OK(tsri_comm_all_reduce(b.comm, 7U, buffer, 0, 4, TSR_F32, TSRI_SUM, "test"));
    CHECK_OK(tsri_stream_sync(tsri_comm_stream(b.comm, TSRI_STREAM_COMPUTE)));
    if (tsr_test_size() > 1) {
        CHECK_NEAR(tsri_recorder_sent_bytes(tsri_comm_device(b.comm), used),
                   2.0 * (double)((pieces - 1) * whole) / (double)pieces, 1.0); /* whole bytes */
    }
    tsri_buffer_release(&buffer);
    close_bench(&b);
}

static void test_mesh_disagrees(void)
{
    bool odd = tsr_test_rank() == tsr_test_size() - 1;
    tsr_mesh_axis axes[2] = {{odd ? "shard" : "replicate", tsr_test_size()}, {"tp", 1}};
    tsr_comm *comm = NULL;
    bench b = open_bench(NULL);

    REQUIRE(b.comm != NULL);
    tsr_mesh_release(&b.mesh);
    REQUIRE_OK(tsr_mesh_create(tsr_test_size(), axes, 2, NULL, &b.mesh));
    if (tsr_test_size() > 1) {
        CHECK_EQ(tsr_comm_open(b.world, b.mesh, NULL, &comm), TSR_ERR_DISAGREE);
        (void)message_has("the mesh differs between ranks 0 and ");
        (void)message_has("replicate=");
        tsr_error_clear();
    }
    CHECK(comm == NULL);
    close_bench(&b);
}

static void test_order_disagrees(void)
{
    tsr_mesh_axis axis = {"shard", tsr_test_size()};
    int order[8];
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;
    bench b = open_bench(NULL);

    REQUIRE(b.comm != NULL);
    for (int i = 0; i < tsr_test_size(); i++) {
        order[i] = tsr_test_rank() == 0 ? i : tsr_test_size() - 1 - i;
    }
    REQUIRE_OK(tsr_mesh_create(tsr_test_size(), &axis, 1, &(tsr_mesh_options){.rank_order = order},
                               &mesh));
    if (tsr_test_size() > 1) {
        CHECK_EQ(tsr_comm_open(b.world, mesh, NULL, &comm), TSR_ERR_DISAGREE);
        (void)message_has("the mesh's rank order differs between ranks 0 and 1");
        tsr_error_clear();
    }
    tsr_mesh_release(&mesh);
    close_bench(&b);
}

static void test_mesh_of_another_size(void)
{
    tsr_mesh_axis axis = {"shard", tsr_test_size() + 1};
    tsr_mesh *mesh = NULL;
    tsr_comm *comm = NULL;
    bench b = open_bench(NULL);

    REQUIRE(b.comm != NULL);
    REQUIRE_OK(tsr_mesh_create(tsr_test_size() + 1, &axis, 1, NULL, &mesh));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_comm_open(b.world, mesh, NULL, &comm));
    tsr_mesh_release(&mesh);
    close_bench(&b);
}

static void test_rank_order(void)
{
    tsr_mesh_axis axis = {"shard", tsr_test_size()};
    int order[8];
    bench b = open_bench(NULL);

    REQUIRE(b.comm != NULL);
    for (int i = 0; i < tsr_test_size(); i++) {
        order[i] = tsr_test_size() - 1 - i;
    }
    tsr_comm_release(&b.comm);
    tsr_mesh_release(&b.mesh);
    REQUIRE_OK(tsr_mesh_create(tsr_test_size(), &axis, 1, &(tsr_mesh_options){.rank_order = order},
                               &b.mesh));
    REQUIRE_OK(tsr_comm_open(b.world, b.mesh, NULL, &b.comm));
    CHECK_EQ(tsr_comm_coord(b.comm, 0), tsr_test_size() - 1 - tsr_test_rank());
    check_reduce(&b, 1U, TSRI_SUM);
    close_bench(&b);
}

/* Axes made of axes have groups like any other: each rank's part of a sum comes from its group. */
static void check_made_mesh(tsr_world *world, tsr_mesh *mesh)
{
    bench made = {.world = world, .mesh = mesh};

    REQUIRE_OK(tsr_comm_open(world, mesh, NULL, &made.comm));
    for (unsigned mask = 1; mask < 1U << tsr_mesh_axis_count(mesh); mask++) {
        check_reduce(&made, mask, TSRI_SUM);
    }
    tsr_comm_release(&made.comm);
}

static void test_mesh_algebra(void)
{
    const char *const names[] = {"tp", "replicate"};
    tsr_mesh_axis axes[3];
    const int count = axes_of(tsr_test_size(), axes);
    tsr_world *world = NULL;
    tsr_mesh *mesh = NULL;
    tsr_mesh *made = NULL;
    tsr_comm *comm = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "cpu"}, &world));
    REQUIRE_OK(tsr_mesh_create(tsr_test_size(), axes, count, NULL, &mesh));
    REQUIRE_OK(tsr_mesh_flatten(mesh, names, 2, "both", &made));
    check_made_mesh(world, made);
    tsr_mesh_release(&made);
    REQUIRE_OK(tsr_mesh_split(mesh, "replicate",
                              (tsr_mesh_axis[]){{"one", 1}, {"rest", axes[0].size}}, 2, &made));
    check_made_mesh(world, made);
    tsr_mesh_release(&made);
    REQUIRE_OK(tsr_mesh_slice(mesh, names, 2, tsr_test_rank(), &made));
    if (tsr_mesh_cell_count(made) < tsr_test_size()) {
        CHECK_STATUS(TSR_ERR_INVALID, tsr_comm_open(world, made, NULL, &comm));
    } else {
        check_made_mesh(world, made);
    }
    tsr_mesh_release(&made);
    tsr_mesh_release(&mesh);
    tsr_world_close(&world);
}

static void check_rejected(tsr_status status, const char *words)
{
    CHECK_EQ(status, TSR_ERR_INVALID);
    (void)message_has(words);
    tsr_error_clear();
}

static void test_claims(void)
{
    bench b = open_bench(NULL);

    REQUIRE(b.comm != NULL);
    CHECK_EQ(tsri_comm_batch_axes(b.comm), 7U);
    CHECK_EQ(tsri_comm_sum_axes(b.comm), 7U);
    CHECK_OK(tsri_comm_check_axes(b.comm));
    CHECK_OK(tsri_comm_claim_axis(b.comm, "tp", "tp_plan"));
    CHECK_OK(tsri_comm_claim_axis(b.comm, "tp", "tp_plan"));
    CHECK_EQ(tsri_comm_batch_axes(b.comm), 3U);
    CHECK_EQ(tsri_comm_sum_axes(b.comm), 3U);
    CHECK_OK(tsri_comm_check_axes(b.comm));
    check_rejected(tsri_comm_claim_axis(b.comm, "tp", "other"), "is claimed by tp_plan, other");
    check_rejected(tsri_comm_claim_axis(b.comm, "shrad", "tp_plan"),
                   "the mesh has: replicate, shard, tp; nearest: shard");
    check_rejected(tsri_comm_set_data_axes(b.comm, (const char *[]){"tp"}, 1),
                   "axis \"tp\", which tp_plan claimed");
    CHECK_EQ(tsri_comm_batch_axes(b.comm), 3U);
    CHECK_EQ(tsri_comm_sum_axes(b.comm), 3U);
    close_bench(&b);
}

/* Arithmetic alone, so a simulated comm will do on any number of ranks. */
static void test_data_axes(void)
{
    static const tsr_mesh_axis axes[] = {{"replicate", 2}, {"shard", 4}, {"tp", 2}, {"one", 1}};
    tsr_world_options options = {.backend = "sim", .sim_rank = 3, .sim_size = 16};
    bench b = {0};

    REQUIRE_OK(tsr_world_open(NULL, NULL, &options, &b.world));
    REQUIRE_OK(tsr_mesh_create(16, axes, 4, NULL, &b.mesh));
    REQUIRE_OK(tsr_comm_open(b.world, b.mesh, NULL, &b.comm));
    check_rejected(tsri_comm_set_data_axes(b.comm, (const char *[]){"shard", "shard"}, 2),
                   "data_axes names axis \"shard\" twice");
    check_rejected(tsri_comm_set_data_axes(b.comm, (const char *[]){"data"}, 1),
                   "data_axes names axis \"data\", the mesh has: replicate, shard, tp, one");
    CHECK_OK(tsri_comm_set_data_axes(b.comm, (const char *[]){"shard"}, 1));
    CHECK_EQ(tsri_comm_batch_axes(b.comm), 2U);
    CHECK_EQ(tsri_comm_sum_axes(b.comm), 2U);
    check_rejected(tsri_comm_check_axes(b.comm), "axes replicate+tp are neither");
    check_rejected(tsri_comm_claim_axis(b.comm, "shard", "tp"), "is named as a data axis");
    CHECK_OK(tsri_comm_claim_axis(b.comm, "tp", "tp"));
    check_rejected(tsri_comm_check_axes(b.comm), "axes replicate are neither");
    CHECK_OK(tsri_comm_set_data_axes(b.comm, (const char *[]){"shard", "replicate"}, 2));
    CHECK_EQ(tsri_comm_batch_axes(b.comm), 3U);
    CHECK_EQ(tsri_comm_sum_axes(b.comm), 3U);
    CHECK_OK(tsri_comm_check_axes(b.comm));
    close_bench(&b);
}

static void test_simulated(void)
{
    static const tsr_mesh_axis axes[] = {{"replicate", 64}, {"shard", 8}, {"tp", 8}};
    tsr_world_options options = {.backend = "sim", .sim_rank = 1234, .sim_size = 4096};
    tsr_buffer *buffer = NULL;
    bench b = {0};

    REQUIRE_OK(tsr_world_open(NULL, NULL, &options, &b.world));
    REQUIRE_OK(tsr_mesh_create(4096, axes, 3, NULL, &b.mesh));
    REQUIRE_OK(tsr_comm_open(b.world, b.mesh, &(tsr_comm_options){.record = true}, &b.comm));
    CHECK_EQ(tsr_comm_coord(b.comm, 2), 1234 % 8);
    REQUIRE_OK(tsri_comm_buffer(b.comm, 4096, TSRI_MEM_OTHER, "test", &buffer));
    CHECK_OK(tsri_comm_all_reduce(b.comm, 3U, buffer, 0, 1024, TSR_F32, TSRI_SUM, "test"));
    CHECK_NEAR(tsri_recorder_sent_bytes(tsri_comm_device(b.comm), 3U), 2 * 4096 * 511.0 / 512.0,
               1.0);
    tsri_buffer_release(&buffer);
    close_bench(&b);
}

/* A world closed under an open comm says so, and is left when the comm goes. */
static void test_alive(void)
{
    bench b = open_bench(NULL);

    REQUIRE(b.comm != NULL);
    tsr_world_close(&b.world);
    (void)message_has("1 comm(s) still open while the world closes");
    tsr_error_clear();
    check_reduce(&b, 7U, TSRI_SUM);
    close_bench(&b);
}

const tsr_test_case tsr_test_cases[] = {
    {"open", test_open},
    {"group_cache", test_group_cache},
    {"group_names", test_group_names},
    {"all_reduce", test_all_reduce},
    {"sent_bytes", test_sent_bytes},
    {"record", test_record},
    {"mesh_disagrees", test_mesh_disagrees},
    {"order_disagrees", test_order_disagrees},
    {"mesh_of_another_size", test_mesh_of_another_size},
    {"rank_order", test_rank_order},
    {"mesh_algebra", test_mesh_algebra},
    {"claims", test_claims},
    {"data_axes", test_data_axes},
    {"simulated", test_simulated},
    {"alive", test_alive},
    {NULL, NULL},
};
