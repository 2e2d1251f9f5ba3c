/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Dispatch on sim: what is refused, what is counted, and how lists are cut. */
#include "backend/dispatch.h"
#include "backend/recorder.h"
#include "backend/sim/sim.h"
#include "base/base.h"

#include <string.h>

#include "support/tsr_test.h"

typedef struct fixture {
    tsr_device *device;
    tsr_stream *compute, *gather;
    tsr_group *four, *one;
    tsr_buffer *buffer; /* 64 KiB */
} fixture;

static tsr_status open_on(const tsr_backend *backend, fixture *f)
{
    const int ranks[] = {0, 2, 4, 6};
    const tsri_device_options options = {.world_rank = 2, .world_size = 8, .threads = 1};
    memset(f, 0, sizeof(*f));
    TSR_TRY(tsri_device_open(backend, &options, &f->device));
    TSR_TRY(tsri_stream_open(f->device, TSRI_STREAM_COMPUTE, &f->compute));
    TSR_TRY(tsri_stream_open(f->device, TSRI_STREAM_GATHER, &f->gather));
    TSR_TRY(tsri_group_open(f->device, ranks, 4, 1, 2U, "shard", f->gather, &f->four));
    TSR_TRY(tsri_group_open(f->device, ranks + 1, 1, 0, 0U, "none", f->gather, &f->one));
    TSR_TRY(tsri_buffer_alloc(f->device, 65536, TSRI_MEM_OTHER, "test", &f->buffer));
    TSR_TRY(tsri_recorder_attach(f->device, &(tsri_recorder_options){.ledger = true}));
    return TSR_OK;
}

static void close_all(fixture *f)
{
    tsri_buffer_release(&f->buffer);
    tsri_group_close(&f->four);
    tsri_group_close(&f->one);
    tsri_stream_close(&f->compute);
    tsri_stream_close(&f->gather);
    tsri_device_close(&f->device);
}

static void test_devices(void)
{
    tsr_device *device = NULL;
    tsr_backend other = tsri_backend_sim;
    other.abi = TSR_BACKEND_ABI + 1;
    CHECK_STATUS(TSR_ERR_INVALID, tsri_device_open(&other, NULL, &device));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_device_open(&tsri_backend_sim,
                                  &(tsri_device_options){.world_rank = 2, .world_size = 2},
                                  &device));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_device_open(&tsri_backend_sim, &(tsri_device_options){.sim_target = "abacus"},
                                  &device));
    CHECK_STATUS(
        TSR_ERR_INVALID,
        tsri_device_open(&tsri_backend_sim, &(tsri_device_options){.sim_target = "sim"}, &device));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_device_open(&tsri_backend_sim,
                                                   &(tsri_device_options){.threads = -1}, &device));
    CHECK(device == NULL);
    REQUIRE_OK(tsri_device_open(&tsri_backend_sim, NULL, &device));
    CHECK_EQ(device->threads, 1);
    CHECK(device->kernels == tsrk_table_cpu());
    tsri_device_close(&device);
    CHECK(device == NULL);
    tsri_device_close(&device);
}

static void test_memory_is_counted(void)
{
    fixture f;
    tsr_buffer *a = NULL;
    tsr_buffer *empty = NULL;
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    CHECK_EQ(f.device->bytes_now, 65536);
    REQUIRE_OK(tsri_buffer_alloc(f.device, 1000, TSRI_MEM_PARAM, "a", &a));
    REQUIRE_OK(tsri_buffer_alloc(f.device, 0, TSRI_MEM_PARAM, "empty", &empty));
    CHECK_EQ(f.device->bytes_now, 66536);
    CHECK_EQ(f.device->bytes_kind[TSRI_MEM_PARAM], 1000);
    CHECK(a->id != empty->id);
    CHECK_STR(a->label, "a");
    tsri_buffer_release(&a);
    CHECK(a == NULL);
    CHECK_EQ(f.device->bytes_now, 65536);
    CHECK_EQ(f.device->bytes_peak, 66536);
    CHECK_EQ(f.device->bytes_kind[TSRI_MEM_PARAM], 0);
    CHECK_STATUS(TSR_ERR_INVALID, tsri_buffer_alloc(f.device, 1, TSRI_MEM_COUNT, "bad", &a));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_buffer_alloc(f.device, SIZE_MAX, TSRI_MEM_PARAM, "bad", &a));
    tsri_buffer_release(&empty);
    close_all(&f);
}

static void test_streams_and_events(void)
{
    fixture f;
    tsr_stream *second = NULL;
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    CHECK_STATUS(TSR_ERR_STATE, tsri_stream_open(f.device, TSRI_STREAM_COMPUTE, &second));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_stream_open(f.device, TSRI_STREAM_COUNT, &second));
    REQUIRE_OK(tsri_write(f.buffer, 0, "abcd", 4, f.compute));
    REQUIRE_OK(tsri_write(f.buffer, 0, "abcd", 0, f.compute));
    const tsr_event event = tsri_event_record(f.compute);
    CHECK_EQ(event.seq, 1);
    CHECK_OK(tsri_stream_wait(f.gather, event));
    CHECK_EQ(f.gather->enqueued, 0);
    CHECK_OK(tsri_stream_wait(f.gather, (tsr_event){.seq = 7}));
    CHECK_OK(tsri_stream_wait(f.compute, (tsr_event){.stream = f.compute, .seq = 7}));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_stream_wait(f.gather, (tsr_event){.stream = f.compute, .seq = 2}));
    CHECK_EQ(tsri_recorder_wait_count(f.device), 1);
    close_all(&f);
}

static void test_launch_checks_ranges(void)
{
    fixture f;
    fixture other;
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    REQUIRE_OK(open_on(&tsri_backend_sim, &other));
    tsrk_zero args = {.bytes = 16};
    tsri_call call = {.stream = f.compute, .label = "layers.0"};
    args.out = tsri_arg_out(&call, f.buffer, 65536 - 16, 16);
    CHECK(args.out == NULL);
    CHECK_OK(TSRI_LAUNCH(&call, ZERO, &args));
    CHECK_EQ(f.compute->enqueued, 1);

    call = (tsri_call){.stream = f.compute, .label = "layers.0"};
    (void)tsri_arg_out(&call, f.buffer, 65536 - 15, 16);
    CHECK_STATUS(TSR_ERR_INVALID, TSRI_LAUNCH(&call, ZERO, &args));
    call = (tsri_call){.stream = f.compute};
    (void)tsri_arg_in(&call, f.buffer, SIZE_MAX, 2);
    CHECK_STATUS(TSR_ERR_INVALID, TSRI_LAUNCH(&call, ZERO, &args));
    call = (tsri_call){.stream = f.compute};
    (void)tsri_arg_inout(&call, other.buffer, 0, 16);
    CHECK_STATUS(TSR_ERR_INVALID, TSRI_LAUNCH(&call, ZERO, &args));
    call = (tsri_call){.stream = f.compute};
    (void)tsri_arg_in(&call, NULL, 0, 1);
    CHECK_STATUS(TSR_ERR_INVALID, TSRI_LAUNCH(&call, ZERO, &args));
    call = (tsri_call){.stream = f.compute};
    CHECK(tsri_arg_in(&call, NULL, 0, 0) == NULL);
    CHECK_EQ(call.access_count, 0);
    for (int i = 0; i <= TSRI_LAUNCH_MAX_ACCESSES; i++) {
        (void)tsri_arg_in(&call, f.buffer, 0, 1);
    }
    CHECK_STATUS(TSR_ERR_INVALID, TSRI_LAUNCH(&call, ZERO, &args));
    call = (tsri_call){.stream = f.compute};
    CHECK_STATUS(TSR_ERR_INVALID, tsri_launch(&call, TSRK_COUNT, &args));
    CHECK_EQ(f.compute->enqueued, 1);
    close_all(&other);
    close_all(&f);
}

static void test_copies(void)
{
    fixture f;
    char got[6];
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    memset(got, 'x', sizeof(got));
    CHECK_OK(tsri_read(f.buffer, 8, got, 6, f.compute));
    CHECK(memcmp(got, "\0\0\0\0\0\0", 6) == 0);
    CHECK_OK(tsri_sim_set_read(f.device, "abcd", 4));
    CHECK_OK(tsri_read(f.buffer, 8, got, 6, f.compute));
    CHECK(memcmp(got, "abcdab", 6) == 0);
    CHECK_OK(tsri_sim_set_read(f.device, NULL, 0));
    CHECK_OK(tsri_read(f.buffer, 8, got, 2, f.compute));
    CHECK(memcmp(got, "\0\0cdab", 6) == 0);
    CHECK_STATUS(TSR_ERR_INVALID, tsri_read(f.buffer, 65535, got, 2, f.compute));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_write(f.buffer, 65537, got, 0, f.compute));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_write(f.buffer, 0, NULL, 1, f.compute));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_write(NULL, 0, got, 1, f.compute));
    CHECK_EQ(f.compute->enqueued, 3);
    close_all(&f);
}

static void test_groups(void)
{
    fixture f;
    tsr_group *group = NULL;
    const int ranks[] = {0, -1};
    char name[] = "axis";
    int members[] = {3, 5};
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_group_open(f.device, ranks, 2, 0, 1U, "x", f.gather, &group));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_group_open(f.device, ranks, 1, 1, 1U, "x", f.gather, &group));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_group_open(f.device, ranks, 0, 0, 1U, "x", f.gather, &group));
    REQUIRE_OK(tsri_group_open(f.device, members, 2, 1, 5U, name, f.gather, &group));
    memset(name, 'z', 4);
    memset(members, 0, sizeof(members));
    CHECK_STR(group->name, "axis");
    CHECK_EQ(group->world_ranks[1], 5);
    CHECK_EQ(group->index, 1);
    CHECK_EQ(group->axis_mask, 5);
    CHECK_EQ(group->stream_kind, TSRI_STREAM_GATHER);
    tsri_group_close(&group);
    close_all(&f);
}

/* One item; in and out in f.buffer. */
static tsr_status collect(fixture *f, tsr_group *group, tsri_coll_kind kind, size_t in, size_t out,
                          int64_t count)
{
    const tsri_coll_item item = {f->buffer, in, f->buffer, out, count};
    const tsri_coll coll = {
        .kind = kind, .dtype = TSR_F32, .items = &item, .item_count = 1, .label = "w"};
    TSR_TRY(tsri_collective(group, &coll, f->gather));
    return TSR_OK;
}

static void test_collective_arguments(void)
{
    fixture f;
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    const tsri_coll_item item = {f.buffer, 0, f.buffer, 0, 4};
    tsri_coll coll = {.kind = TSRI_ALL_REDUCE, .dtype = TSR_F32, .items = &item, .item_count = 1};
    CHECK_OK(tsri_collective(f.four, &coll, f.gather));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_collective(f.four, &coll, f.compute));
    coll.dtype = TSR_DTYPE_DEFAULT;
    CHECK_STATUS(TSR_ERR_INVALID, tsri_collective(f.four, &coll, f.gather));
    coll.dtype = TSR_F32;
    coll.kind = TSRI_COLL_COUNT;
    CHECK_STATUS(TSR_ERR_INVALID, tsri_collective(f.four, &coll, f.gather));
    coll.kind = TSRI_BROADCAST;
    coll.root = 4;
    CHECK_STATUS(TSR_ERR_INVALID, tsri_collective(f.four, &coll, f.gather));
    coll.root = 0;
    coll.item_count = -1;
    CHECK_STATUS(TSR_ERR_INVALID, tsri_collective(f.four, &coll, f.gather));
    coll.item_count = 0;
    CHECK_OK(tsri_collective(f.four, &coll, f.gather));
    CHECK_STATUS(TSR_ERR_INVALID, collect(&f, f.four, TSRI_ALL_REDUCE, 0, 0, -1));
    CHECK_STATUS(TSR_ERR_INVALID, collect(&f, f.four, TSRI_ALL_GATHER, 0, 0, INT64_MAX / 2));
    /* 4 * 4096 floats fill the buffer. */
    CHECK_OK(collect(&f, f.four, TSRI_ALL_GATHER, 16384, 0, 4096));
    CHECK_STATUS(TSR_ERR_INVALID, collect(&f, f.four, TSRI_ALL_GATHER, 16388, 0, 4097));
    CHECK_EQ(f.gather->enqueued, 2);
    CHECK_EQ(f.four->seq, 2);
    close_all(&f);
}

static void test_in_place_rules(void)
{
    fixture f;
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    /* This rank is index 1 of 4; 16 floats are 64 bytes. */
    CHECK_OK(collect(&f, f.four, TSRI_ALL_GATHER, 1024 + 64, 1024, 16));
    CHECK_STATUS(TSR_ERR_INVALID, collect(&f, f.four, TSRI_ALL_GATHER, 1024, 1024, 16));
    CHECK_OK(collect(&f, f.four, TSRI_ALL_GATHER, 960, 1024, 16));
    CHECK_STATUS(TSR_ERR_INVALID, collect(&f, f.four, TSRI_ALL_GATHER, 964, 1024, 16));
    CHECK_OK(collect(&f, f.four, TSRI_REDUCE_SCATTER, 1024, 1024 + 64, 16));
    CHECK_STATUS(TSR_ERR_INVALID, collect(&f, f.four, TSRI_REDUCE_SCATTER, 1024, 1024, 16));
    CHECK_OK(collect(&f, f.four, TSRI_ALL_REDUCE, 1024, 1024, 16));
    CHECK_STATUS(TSR_ERR_INVALID, collect(&f, f.four, TSRI_ALL_REDUCE, 1024, 1028, 16));
    CHECK_STATUS(TSR_ERR_INVALID, collect(&f, f.four, TSRI_ALL_TO_ALL, 1024, 1024, 16));
    CHECK_OK(collect(&f, f.four, TSRI_ALL_TO_ALL, 1024, 2048, 16));
    CHECK_OK(collect(&f, f.one, TSRI_ALL_TO_ALL, 1024, 1024, 16));
    close_all(&f);
}

static void test_broadcast_needs_in_on_the_root_only(void)
{
    fixture f;
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    const tsri_coll_item item = {NULL, 0, f.buffer, 0, 4};
    tsri_coll coll = {.kind = TSRI_BROADCAST,
                      .dtype = TSR_F32,
                      .root = 2,
                      .items = &item,
                      .item_count = 1,
                      .label = "w"};
    CHECK_OK(tsri_collective(f.four, &coll, f.gather));
    coll.root = 1;
    CHECK_STATUS(TSR_ERR_INVALID, tsri_collective(f.four, &coll, f.gather));
    close_all(&f);
}

static void test_long_lists_are_split(void)
{
    enum {
        ITEMS = 2 * TSRI_COLL_MAX_ITEMS + 3,
        EMPTY = 3
    };
    fixture f;
    tsri_coll_item items[ITEMS];
    int count = 0;
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    for (int i = 0; i < ITEMS; i++) {
        items[i] = (tsri_coll_item){f.buffer, (size_t)i * 4, f.buffer, (size_t)i * 4, i >= EMPTY};
    }
    const tsri_coll coll = {.kind = TSRI_ALL_REDUCE,
                            .dtype = TSR_F32,
                            .items = items,
                            .item_count = ITEMS,
                            .label = "w"};
    CHECK_OK(tsri_collective(f.four, &coll, f.gather));
    CHECK_EQ(f.gather->enqueued, 2);
    const tsri_entry *entries = tsri_recorder_entries(f.device, &count);
    REQUIRE_EQ(count, 2);
    CHECK_EQ(entries[0].bytes, 4 * TSRI_COLL_MAX_ITEMS);
    CHECK_EQ(entries[1].bytes, 4 * TSRI_COLL_MAX_ITEMS);
    close_all(&f);
}

static void test_group_of_one_copies(void)
{
    fixture f;
    int count = 0;
    REQUIRE_OK(open_on(&tsri_backend_sim, &f));
    for (int kind = 0; kind < TSRI_COLL_COUNT; kind++) {
        CHECK_OK(collect(&f, f.one, (tsri_coll_kind)kind, 0, 4096, 16));
        CHECK_OK(collect(&f, f.one, (tsri_coll_kind)kind, 4096, 4096, 16));
        CHECK_OK(collect(&f, f.one, (tsri_coll_kind)kind, 0, 4096, 0));
    }
    const tsri_entry *entries = tsri_recorder_entries(f.device, &count);
    REQUIRE_EQ(count, TSRI_COLL_COUNT);
    for (int i = 0; i < count; i++) {
        CHECK_EQ(entries[i].kind, TSRI_ENTRY_KERNEL);
        CHECK_EQ(entries[i].op, TSRK_COPY_BLOCKS);
        CHECK_EQ(entries[i].stream, TSRI_STREAM_GATHER);
    }
    close_all(&f);
}

/* ---- a backend that refuses ---- */

static tsr_status refuse_launch(tsr_stream *stream, tsrk_id kernel, const void *args, size_t bytes)
{
    (void)stream;
    (void)args;
    return TSR_RAISE(TSR_ERR_DEVICE, "kernel %d of %zu bytes refused", (int)kernel, bytes);
}

static tsr_status refuse_collective(tsr_group *group, const tsri_coll *coll, tsr_stream *stream)
{
    (void)coll;
    (void)stream;
    return TSR_RAISE(TSR_ERR_COMM, "collective of %d refused", group->size);
}

static tsr_status refuse_write(tsr_buffer *buffer, size_t offset, const void *host, size_t bytes,
                               tsr_stream *stream)
{
    (void)host;
    (void)stream;
    return TSR_RAISE(TSR_ERR_DEVICE, "write at %zu of %zu to %zu refused", offset, bytes,
                     buffer->bytes);
}

static void test_refused_calls_leave_no_trace(void)
{
    fixture f;
    tsr_backend backend = tsri_backend_sim;
    int count = -1;
    backend.launch = refuse_launch;
    backend.collective = refuse_collective;
    backend.write = refuse_write;
    REQUIRE_OK(open_on(&backend, &f));
    tsrk_zero args = {.bytes = 16};
    tsri_call call = {.stream = f.compute};
    args.out = tsri_arg_out(&call, f.buffer, 0, 16);
    CHECK_STATUS(TSR_ERR_DEVICE, TSRI_LAUNCH(&call, ZERO, &args));
    CHECK_STATUS(TSR_ERR_DEVICE, tsri_write(f.buffer, 0, "a", 1, f.compute));
    CHECK_STATUS(TSR_ERR_COMM, collect(&f, f.four, TSRI_ALL_REDUCE, 0, 0, 16));
    CHECK_EQ(f.compute->enqueued, 0);
    CHECK_EQ(f.gather->enqueued, 0);
    CHECK_EQ(f.four->seq, 0);
    (void)tsri_recorder_entries(f.device, &count);
    CHECK_EQ(count, 0);
    close_all(&f);
}

static void test_names(void)
{
    CHECK_STR(tsri_coll_name(TSRI_REDUCE_SCATTER), "reduce_scatter");
    CHECK_STR(tsri_stream_name(TSRI_STREAM_REPLICATE), "replicate");
    CHECK_STR(tsri_mem_name(TSRI_MEM_SLOT_GRAD), "gradient slots");
    for (int i = 0; i < TSRI_COLL_COUNT; i++) {
        CHECK(tsri_coll_name((tsri_coll_kind)i) != NULL);
    }
    for (int i = 0; i < TSRI_MEM_COUNT; i++) {
        CHECK(tsri_mem_name((tsri_mem_kind)i) != NULL);
    }
    CHECK_STR(tsri_mem_name(TSRI_MEM_COUNT), "?");
    CHECK_STR(tsri_stream_name(TSRI_STREAM_COUNT), "?");
    CHECK_STR(tsri_coll_name(TSRI_COLL_COUNT), "?");
}

const tsr_test_case tsr_test_cases[] = {
    {"devices", test_devices},
    {"memory_is_counted", test_memory_is_counted},
    {"streams_and_events", test_streams_and_events},
    {"launch_checks_ranges", test_launch_checks_ranges},
    {"copies", test_copies},
    {"groups", test_groups},
    {"collective_arguments", test_collective_arguments},
    {"in_place_rules", test_in_place_rules},
    {"broadcast_needs_in_on_the_root_only", test_broadcast_needs_in_on_the_root_only},
    {"long_lists_are_split", test_long_lists_are_split},
    {"group_of_one_copies", test_group_of_one_copies},
    {"refused_calls_leave_no_trace", test_refused_calls_leave_no_trace},
    {"names", test_names},
    {NULL, NULL},
};
