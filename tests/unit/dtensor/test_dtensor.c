/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_dtensor.c
 * Life of dtensors and their memory on a simulated rank: owners, views, borrowed memory, errors.
 */
#include "base/base.h"

#include <string.h>

#include "dtensor/dtensor.h"
#include "support/tsr_test.h"

#define S(d) ((tsr_placement){.kind = TSR_SHARD, .dim = (d)})

typedef struct job {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
} job;

/* Rank rank of 4, mesh data=2 tp=2. */
static job job_open_with(int rank, bool record)
{
    const tsr_mesh_axis axes[] = {{"data", 2}, {"tp", 2}};
    const tsr_world_options options = {.backend = "sim", .sim_rank = rank, .sim_size = 4};
    job j = {0};

    CHECK_OK(tsr_world_open(NULL, NULL, &options, &j.world));
    CHECK_OK(tsr_mesh_create(4, axes, 2, NULL, &j.mesh));
    CHECK_OK(tsr_comm_open(j.world, j.mesh,
                           &(tsr_comm_options){.record = record, .race_check = record}, &j.comm));
    return j;
}

static job job_open(int rank)
{
    return job_open_with(rank, true);
}

static void job_close(job *j)
{
    tsr_comm_release(&j->comm);
    tsr_mesh_release(&j->mesh);
    tsr_world_close(&j->world);
}

static size_t device_bytes(const job *j)
{
    size_t now = 0;
    size_t peak = 0;

    tsr_comm_memory(j->comm, &now, &peak);
    return now;
}

/* [rows, 6], rows over tp, the rest replicated. */
static tsr_layout rows_layout(const job *j, int64_t rows)
{
    const int64_t shape[] = {rows, 6};
    tsr_layout layout;

    CHECK_OK(tsr_layout_init(j->mesh, shape, 2, &layout));
    CHECK_OK(tsr_layout_place(&layout, "tp", S(0)));
    return layout;
}

static void create_and_release(void)
{
    job j = job_open(1);
    tsr_layout layout = rows_layout(&j, 5);
    tsr_dtensor *tensor = NULL;
    tsr_dtensor *same = NULL;
    float host[12];
    char label[] = "weight";
    size_t before = device_bytes(&j);

    CHECK_OK(tsr_dtensor_create(j.comm, &layout, TSR_F32, label, &tensor));
    label[0] = 'x';
    CHECK_STR(tensor->label, "weight");
    CHECK_EQ(tsr_dtensor_dtype(tensor), TSR_F32);
    CHECK_EQ(tsr_dtensor_local_shape(tensor)[0], 2);
    CHECK_EQ(tsr_dtensor_local_shape(tensor)[1], 6);
    CHECK_EQ(tsr_dtensor_local_count(tensor), 12);
    CHECK_EQ(tensor->local_offset[0], 3);
    CHECK_EQ(tsri_dtensor_bytes(tensor), sizeof(host));
    CHECK(tsr_layout_equal(tsr_dtensor_layout(tensor), &layout));
    CHECK_EQ(device_bytes(&j) - before, sizeof(host));
    CHECK_EQ(tensor->node, -1);
    memset(host, 1, sizeof(host));
    CHECK_OK(tsr_dtensor_write(tensor, host));
    CHECK_OK(tsr_dtensor_read(tensor, host));
    CHECK_EQ(host[11], 0); /* sim has no bytes */
    same = tsr_dtensor_retain(tensor);
    CHECK(same == tensor);
    tsr_dtensor_release(&same);
    CHECK(same == NULL);
    CHECK_EQ(device_bytes(&j) - before, sizeof(host));
    tsr_dtensor_release(&tensor);
    CHECK_EQ(device_bytes(&j), before);
    tsr_dtensor_release(&tensor);
    tsr_dtensor_release(NULL);
    job_close(&j);
}

static void empty_pieces(void)
{
    job j = job_open(3);
    const int64_t rows[] = {0, 1};
    tsr_dtensor *tensor = NULL;

    for (int i = 0; i < 2; i++) {
        tsr_layout layout = rows_layout(&j, rows[i]);

        CHECK_OK(tsr_dtensor_create(j.comm, &layout, TSR_BF16, NULL, &tensor));
        CHECK_EQ(tsr_dtensor_local_count(tensor), 0);
        CHECK_OK(tsr_dtensor_write(tensor, NULL));
        CHECK_OK(tsr_dtensor_read(tensor, NULL));
        tsr_dtensor_release(&tensor);
        CHECK_OK(
            tsri_dtensor_acquire(j.comm, &layout, TSR_F32, TSRI_MEM_ACTIVATION, "x", 0, &tensor));
        tsr_dtensor_release(&tensor);
    }
    {
        tsr_layout scalar;

        CHECK_OK(tsr_layout_init(j.mesh, NULL, 0, &scalar));
        CHECK_OK(tsr_dtensor_create(j.comm, &scalar, TSR_F32, "loss", &tensor));
        CHECK_EQ(tsr_dtensor_local_count(tensor), 1);
        tsr_dtensor_release(&tensor);
    }
    job_close(&j);
}

static void data_layout(void)
{
    job j = job_open(2);
    tsr_layout layout;
    char text[64];

    CHECK_OK(tsri_comm_claim_axis(j.comm, "tp", "tp"));
    CHECK_OK(tsr_layout_data(j.comm, (int64_t[]){8, 16}, 2, &layout));
    CHECK_STR(tsr_layout_format(&layout, text, sizeof(text)), "[8, 16] data:S(0) tp:R");
    CHECK_STATUS(TSR_ERR_SHAPE, tsr_layout_data(j.comm, NULL, 0, &layout));
    job_close(&j);
}

static void arena_memory_and_slack(void)
{
    job j = job_open(0);
    tsr_layout layout = rows_layout(&j, 4);
    tsri_arena *arena = tsri_comm_arena(j.comm);
    tsri_arena_stats stats;
    tsr_dtensor *tensor = NULL;
    tsr_dtensor *view = NULL;

    CHECK_OK(tsri_arena_step_begin(arena, "train", 0));
    CHECK_OK(
        tsri_dtensor_acquire(j.comm, &layout, TSR_F32, TSRI_MEM_ACTIVATION, "x", 100, &tensor));
    CHECK_EQ(tensor->storage->mem.bytes, 48 + 100);
    CHECK_OK(tsri_dtensor_view(tensor, &layout, 100, &view));
    CHECK_STATUS(TSR_ERR_STATE, tsri_arena_step_end(arena)); /* still held */
    tsr_dtensor_release(&tensor);
    tsr_dtensor_release(&view);
    CHECK_OK(tsri_arena_step_begin(arena, "train", 0));
    CHECK_OK(
        tsri_dtensor_acquire(j.comm, &layout, TSR_F32, TSRI_MEM_ACTIVATION, "x", 100, &tensor));
    CHECK_OK(tsri_dtensor_view(tensor, &layout, 0, &view));
    tsr_dtensor_release(&tensor);
    tsr_dtensor_release(&view);
    CHECK_OK(tsri_arena_step_end(arena));
    tsri_arena_get_stats(arena, &stats);
    CHECK_EQ(stats.interval_count, 1);
    job_close(&j);
}

static void views(void)
{
    job j = job_open(0);
    tsr_layout layout = rows_layout(&j, 8);
    tsr_layout half = rows_layout(&j, 4);
    const size_t row_bytes = 6 * sizeof(float);
    tsr_dtensor *tensor = NULL;
    tsr_dtensor *view = NULL;
    tsr_dtensor *inner = NULL;
    size_t before = device_bytes(&j);

    CHECK_OK(tsr_dtensor_create(j.comm, &layout, TSR_F32, "w", &tensor)); /* 4 rows here */
    CHECK_OK(tsri_dtensor_view(tensor, &half, row_bytes, &view));         /* 2 rows */
    CHECK(tsri_dtensor_buffer(view) == tsri_dtensor_buffer(tensor));
    CHECK_EQ(tsri_dtensor_buffer_offset(view) - tsri_dtensor_buffer_offset(tensor), row_bytes);
    CHECK_OK(tsri_dtensor_view(view, &half, row_bytes, &inner));
    CHECK_EQ(tsri_dtensor_buffer_offset(inner) - tsri_dtensor_buffer_offset(tensor), 2 * row_bytes);
    tsr_dtensor_release(&inner);
    CHECK_STATUS(TSR_ERR_SHAPE, tsri_dtensor_view(view, &half, 2 * row_bytes, &inner));
    CHECK_STATUS(TSR_ERR_SHAPE, tsri_dtensor_view(view, &half, 9 * row_bytes, &inner));
    tsr_dtensor_release(&tensor);
    CHECK(device_bytes(&j) > before); /* the view holds the memory */
    tsr_dtensor_release(&view);
    CHECK_EQ(device_bytes(&j), before);
    job_close(&j);
}

static void borrowed_memory(void)
{
    job j = job_open(0);
    tsr_layout layout = rows_layout(&j, 8);
    tsr_dtensor *tensor = NULL;
    tsr_dtensor *view = NULL;
    tsr_buffer *buffer = NULL;
    tsri_call call = {.stream = tsri_comm_stream(j.comm, TSRI_STREAM_COMPUTE), .label = "zero"};
    float host[24] = {0};

    CHECK_OK(tsri_comm_buffer(j.comm, sizeof(host) + 32, TSRI_MEM_PARAM, "slot", &buffer));
    CHECK_OK(tsri_dtensor_bare(j.comm, &layout, TSR_F32, "w", &tensor));
    CHECK(tsri_dtensor_buffer(tensor) == NULL);
    CHECK_STATUS(TSR_ERR_STATE, tsr_dtensor_write(tensor, host));
    CHECK_STATUS(TSR_ERR_STATE, tsr_dtensor_read(tensor, host));
    CHECK_STATUS(TSR_ERR_STATE, tsri_dtensor_view(tensor, &layout, 0, &view));
    CHECK_STATUS(TSR_ERR_SHAPE, tsri_dtensor_attach(tensor, buffer, 33));
    CHECK_STATUS(TSR_ERR_SHAPE, tsri_dtensor_attach(tensor, buffer, 1000));
    CHECK_OK(tsri_dtensor_attach(tensor, buffer, 16));
    CHECK_EQ(tsri_dtensor_buffer_offset(tensor), 16);
    CHECK_OK(tsri_dtensor_attach(tensor, buffer, 32));
    CHECK_EQ(tsri_dtensor_buffer_offset(tensor), 32);
    CHECK_OK(tsr_dtensor_write(tensor, host));
    (void)tsri_in(&call, tensor);
    (void)tsri_out(&call, tensor);
    (void)tsri_inout(&call, tensor);
    CHECK_EQ(call.access_count, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(call.access[i].offset, 32);
        CHECK_EQ(call.access[i].bytes, sizeof(host));
        CHECK_EQ(call.access[i].write, i > 0);
    }
    CHECK_OK(tsri_dtensor_view(tensor, &layout, 0, &view));
    CHECK_OK(tsri_dtensor_attach(tensor, NULL, 0));
    CHECK(tsri_dtensor_buffer(tensor) == NULL);
    CHECK(tsri_dtensor_buffer(view) == buffer);
    tsr_dtensor_release(&tensor);
    tsr_dtensor_release(&view);
    CHECK_OK(tsri_stream_sync(call.stream));
    tsri_buffer_release(&buffer);
    job_close(&j);
}

static void errors(void)
{
    job j = job_open(0);
    tsr_mesh *other = NULL;
    tsr_layout layout = rows_layout(&j, 8);
    tsr_layout bad = layout;
    tsr_dtensor *tensor = NULL;

    CHECK_OK(tsr_mesh_create(4, (tsr_mesh_axis[]){{"data", 2}, {"tp", 2}}, 2, NULL, &other));
    bad.mesh = other;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_dtensor_create(j.comm, &bad, TSR_F32, "w", &tensor));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_dtensor_create(NULL, &layout, TSR_F32, "w", &tensor));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_dtensor_create(j.comm, NULL, TSR_F32, NULL, &tensor));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsr_dtensor_create(j.comm, &layout, TSR_DTYPE_DEFAULT, "w", &tensor));
    bad = layout;
    bad.place[0] = S(5);
    CHECK_STATUS(TSR_ERR_PLACEMENT, tsr_dtensor_create(j.comm, &bad, TSR_F32, "w", &tensor));
    CHECK(tensor == NULL);
    CHECK_OK(tsr_dtensor_create(j.comm, &layout, TSR_F32, "w", &tensor));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_dtensor_write(tensor, NULL));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_dtensor_read(tensor, NULL));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_dtensor_redistribute(tensor, &layout, NULL));
    tsr_dtensor_release(&tensor);
    tsr_mesh_release(&other);
    job_close(&j);
}

/* Fail the first, second, ... host allocation until the whole succeeds; nothing is left each time.
 * Nothing is recorded, for a ledger's growth would look like a leak. */
static void out_of_memory(void)
{
    job j = job_open_with(0, false);
    tsr_layout layout = rows_layout(&j, 5);
    tsr_layout columns = rows_layout(&j, 5);
    tsr_status status = TSR_ERR_NOMEM;
    int tries = 0;

    CHECK_OK(tsr_layout_place(&columns, "tp", S(1)));
    for (; status == TSR_ERR_NOMEM && tries < 200; tries++) {
        int64_t live = tsri_alloc_live();
        size_t bytes = device_bytes(&j);
        tsr_dtensor *tensor = NULL;
        tsr_dtensor *moved = NULL;

        tsri_alloc_fail_at(tries + 1);
        status = tsr_dtensor_create(j.comm, &layout, TSR_F32, "w", &tensor);
        if (status == TSR_OK) {
            status = tsr_dtensor_redistribute(tensor, &columns, &moved);
        }
        tsri_alloc_fail_at(0);
        CHECK(status == TSR_OK || status == TSR_ERR_NOMEM);
        CHECK((moved != NULL) == (status == TSR_OK));
        tsr_dtensor_release(&moved);
        tsr_dtensor_release(&tensor);
        CHECK_EQ(device_bytes(&j), bytes);
        CHECK_EQ(tsri_alloc_live(), live);
    }
    CHECK_EQ(status, TSR_OK);
    CHECK(tries > 10);
    tsr_error_clear();
    job_close(&j);
}

const tsr_test_case tsr_test_cases[] = {
    {"create_and_release", create_and_release},
    {"empty_pieces", empty_pieces},
    {"data_layout", data_layout},
    {"arena_memory_and_slack", arena_memory_and_slack},
    {"views", views},
    {"borrowed_memory", borrowed_memory},
    {"errors", errors},
    {"out_of_memory", out_of_memory},
    {NULL, NULL},
};
