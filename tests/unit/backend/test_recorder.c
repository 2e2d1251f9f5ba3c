/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The ledger's entries, bytes and times, and recorders that come and go. */
#include "backend/dispatch.h"
#include "backend/recorder.h"
#include "base/base.h"

#include <string.h>

#include "support/tsr_test.h"

typedef struct fixture {
    tsr_device *device;
    tsr_stream *compute, *reduce;
    tsr_group *group; /* index 1 of 3 on reduce */
    tsr_buffer *buffer;
} fixture;

static void check_opening(const tsri_entry *entry)
{
    CHECK_EQ(entry->kind, TSRI_ENTRY_GROUP);
    CHECK_EQ(entry->stream, TSRI_STREAM_REDUCE);
    CHECK_STR(entry->group, "tp");
    CHECK_EQ(entry->axis_mask, 4);
    CHECK_EQ(entry->group_size, 3);
}

static tsr_status open_all(fixture *f)
{
    int count = 0;
    const int ranks[] = {0, 1, 2};
    const tsri_device_options options = {.world_rank = 1, .world_size = 3};
    const tsri_recorder_options recorder = {.ledger = true, .race_check = true};
    memset(f, 0, sizeof(*f));
    TSR_TRY(tsri_device_open(&tsri_backend_sim, &options, &f->device));
    TSR_TRY(tsri_recorder_attach(f->device, &recorder));
    TSR_TRY(tsri_stream_open(f->device, TSRI_STREAM_COMPUTE, &f->compute));
    TSR_TRY(tsri_stream_open(f->device, TSRI_STREAM_REDUCE, &f->reduce));
    TSR_TRY(tsri_group_open(f->device, ranks, 3, 1, 4U, "tp", f->reduce, &f->group));
    check_opening(tsri_recorder_entries(f->device, &count));
    CHECK_EQ(count, 1);
    tsri_recorder_clear(f->device);
    TSR_TRY(tsri_buffer_alloc(f->device, 4096, TSRI_MEM_GRAD, "grads", &f->buffer));
    return TSR_OK;
}

static void close_all(fixture *f)
{
    tsri_group_close(&f->group);
    tsri_stream_close(&f->compute);
    tsri_stream_close(&f->reduce);
    tsri_buffer_release(&f->buffer);
    tsri_device_close(&f->device);
}

static tsr_status zero(tsr_stream *stream, tsr_buffer *buffer, size_t offset, const char *label)
{
    tsrk_zero args = {.bytes = 16};
    tsri_call call = {.stream = stream, .label = label};
    args.out = tsri_arg_out(&call, buffer, offset, 16);
    TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    return TSR_OK;
}

static tsr_status collect(fixture *f, tsri_coll_kind kind, int64_t count)
{
    const tsri_coll_item item = {f->buffer, 0, f->buffer, 2048, count};
    const tsri_coll coll = {
        .kind = kind, .dtype = TSR_F32, .items = &item, .item_count = 1, .label = "unit"};
    TSR_TRY(tsri_collective(f->group, &coll, f->reduce));
    return TSR_OK;
}

static void check_collective_entry(const tsri_entry *entry)
{
    CHECK_EQ(entry->kind, TSRI_ENTRY_COLLECTIVE);
    CHECK_EQ(entry->op, TSRI_REDUCE_SCATTER);
    CHECK_EQ(entry->group_size, 3);
    CHECK_EQ(entry->axis_mask, 4);
    CHECK_STR(entry->group, "tp");
    CHECK_EQ(entry->seq, 1);
    CHECK_EQ(entry->bytes, 120);
    CHECK_EQ(entry->sent_bytes, 80);
}

static void test_entries(void)
{
    fixture f;
    int count = 0;
    float value = 1.0F;
    REQUIRE_OK(open_all(&f));
    tsri_recorder_set_step(f.device, 5);
    CHECK_OK(zero(f.compute, f.buffer, 0, "layers.0"));
    CHECK_OK(tsri_stream_wait(f.reduce, tsri_event_record(f.compute)));
    CHECK_OK(collect(&f, TSRI_REDUCE_SCATTER, 10));
    CHECK_OK(tsri_write(f.buffer, 1024, &value, sizeof(value), f.compute));
    CHECK_OK(tsri_stream_sync(f.reduce));
    CHECK_OK(tsri_read(f.buffer, 1024, &value, sizeof(value), f.compute));
    tsri_buffer_release(&f.buffer);
    const tsri_entry *e = tsri_recorder_entries(f.device, &count);
    REQUIRE_EQ(count, 7);
    CHECK_EQ(e[0].kind, TSRI_ENTRY_ALLOC);
    CHECK_EQ(e[0].op, TSRI_MEM_GRAD);
    CHECK_EQ(e[0].bytes, 4096);
    CHECK_STR(e[0].label, "grads");
    CHECK_EQ(e[0].step, 0);
    CHECK_EQ(e[1].kind, TSRI_ENTRY_KERNEL);
    CHECK_EQ(e[1].op, TSRK_ZERO);
    CHECK_EQ(e[1].seq, 1);
    CHECK_EQ(e[1].step, 5);
    CHECK_EQ(e[1].stream, TSRI_STREAM_COMPUTE);
    CHECK_STR(e[1].label, "layers.0");
    CHECK(e[1].group == NULL);
    CHECK_EQ(e[2].kind, TSRI_ENTRY_WAIT);
    CHECK_EQ(e[2].stream, TSRI_STREAM_REDUCE);
    CHECK_EQ(e[2].op, TSRI_STREAM_COMPUTE);
    CHECK_EQ(e[2].seq, 1);
    check_collective_entry(&e[3]);
    CHECK_EQ(e[4].kind, TSRI_ENTRY_COPY);
    CHECK_EQ(e[4].op, TSRI_COPY_WRITE);
    CHECK_EQ(e[4].bytes, 4);
    CHECK_EQ(e[4].seq, 2);
    CHECK_EQ(e[5].op, TSRI_COPY_READ);
    CHECK_EQ(e[6].kind, TSRI_ENTRY_RELEASE);
    CHECK_EQ(e[6].bytes, 4096);
    CHECK_STR(e[6].label, "grads");
    CHECK_EQ(tsri_recorder_race_count(f.device), 0);
    close_all(&f);
}

static void test_collective_bytes(void)
{
    const struct {
        tsri_coll_kind kind;
        size_t bytes, sent;
    } expected[] = {
        /* 6 floats in a group of 3: pieces of 24 bytes */
        {TSRI_ALL_GATHER, 72, 48}, {TSRI_REDUCE_SCATTER, 72, 48}, {TSRI_ALL_REDUCE, 24, 32},
        {TSRI_ALL_TO_ALL, 72, 48}, {TSRI_BROADCAST, 24, 16},
    };
    fixture f;
    size_t sent = 0;
    REQUIRE_OK(open_all(&f));
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        int count = 0;
        REQUIRE_OK(collect(&f, expected[i].kind, 6));
        const tsri_entry *e = tsri_recorder_entries(f.device, &count);
        CHECK_EQ(e[count - 1].bytes, expected[i].bytes);
        CHECK_EQ(e[count - 1].sent_bytes, expected[i].sent);
        sent += expected[i].sent;
    }
    CHECK_EQ(tsri_recorder_sent_bytes(f.device, 4U), sent);
    CHECK_EQ(tsri_recorder_sent_bytes(f.device, 6U), 0);
    close_all(&f);
}

static void test_times_find_their_entry(void)
{
    fixture f;
    int count = 0;
    REQUIRE_OK(open_all(&f));
    for (int i = 0; i < 100; i++) {
        REQUIRE_OK(zero(f.compute, f.buffer, 0, "a"));
        REQUIRE_OK(zero(f.reduce, f.buffer, 1024, "b"));
    }
    for (uint64_t seq = 1; seq <= 100; seq++) {
        tsri_record_time(f.device, TSRI_STREAM_COMPUTE, seq, (double)seq, (double)seq + 0.5);
        tsri_record_time(f.device, TSRI_STREAM_REDUCE, seq, -(double)seq, 0);
    }
    tsri_record_time(f.device, TSRI_STREAM_COMPUTE, 101, 7, 7);
    tsri_record_time(f.device, TSRI_STREAM_COPY, 1, 7, 7);
    const tsri_entry *e = tsri_recorder_entries(f.device, &count);
    REQUIRE_EQ(count, 201);
    for (int i = 1; i < count; i++) {
        const double seq = (double)e[i].seq;
        CHECK_EQ(e[i].begin_s == (e[i].stream == TSRI_STREAM_COMPUTE ? seq : -seq), 1);
        CHECK_EQ(e[i].end_s == (e[i].stream == TSRI_STREAM_COMPUTE ? seq + 0.5 : 0), 1);
    }
    tsri_recorder_clear(f.device);
    (void)tsri_recorder_entries(f.device, &count);
    CHECK_EQ(count, 0);
    REQUIRE_OK(zero(f.compute, f.buffer, 0, "c"));
    tsri_record_time(f.device, TSRI_STREAM_COMPUTE, 100, 3, 4); /* forgotten */
    tsri_record_time(f.device, TSRI_STREAM_COMPUTE, 101, 1, 2);
    e = tsri_recorder_entries(f.device, &count);
    REQUIRE_EQ(count, 1);
    CHECK(e[0].begin_s == 1 && e[0].end_s == 2);
    close_all(&f);
}

static void test_reopened_stream_counts_anew(void)
{
    fixture f;
    int count = 0;
    REQUIRE_OK(open_all(&f));
    REQUIRE_OK(zero(f.compute, f.buffer, 0, "old"));
    tsri_stream_close(&f.compute);
    REQUIRE_OK(tsri_stream_open(f.device, TSRI_STREAM_COMPUTE, &f.compute));
    REQUIRE_OK(zero(f.compute, f.buffer, 0, "new"));
    tsri_record_time(f.device, TSRI_STREAM_COMPUTE, 1, 1, 2);
    const tsri_entry *e = tsri_recorder_entries(f.device, &count);
    REQUIRE_EQ(count, 3);
    CHECK(e[1].begin_s == 0 && e[2].begin_s == 1);
    CHECK_EQ(tsri_recorder_race_count(f.device), 0);
    close_all(&f);
}

static void test_without_recorder(void)
{
    fixture f;
    int count = -1;
    REQUIRE_OK(open_all(&f));
    REQUIRE_OK(zero(f.compute, f.buffer, 0, "a"));
    tsri_recorder_detach(f.device);
    CHECK(f.buffer->race == NULL);
    REQUIRE_OK(zero(f.compute, f.buffer, 0, "a"));
    CHECK(tsri_recorder_entries(f.device, &count) == NULL);
    CHECK_EQ(count, 0);
    CHECK_EQ(tsri_recorder_wait_count(f.device), 0);
    CHECK_EQ(tsri_recorder_sent_bytes(f.device, 4U), 0);
    tsri_recorder_set_step(f.device, 1);
    tsri_recorder_clear(f.device);
    tsri_record_time(f.device, TSRI_STREAM_COMPUTE, 1, 1, 2);
    /* Attached late: the stream's next seq is 3. */
    REQUIRE_OK(tsri_recorder_attach(f.device, &(tsri_recorder_options){.ledger = true}));
    REQUIRE_OK(tsri_recorder_attach(f.device, &(tsri_recorder_options){.ledger = true}));
    REQUIRE_OK(zero(f.compute, f.buffer, 0, "late"));
    tsri_record_time(f.device, TSRI_STREAM_COMPUTE, 3, 1, 2);
    const tsri_entry *e = tsri_recorder_entries(f.device, &count);
    REQUIRE_EQ(count, 1);
    CHECK(e[0].seq == 3 && e[0].end_s == 2);
    close_all(&f);
}

static tsr_status whole_life(void)
{
    fixture f;
    tsr_status status = open_all(&f);
    for (int i = 0; i < 40 && status == TSR_OK; i++) {
        status = zero(f.compute, f.buffer, (size_t)(i % 7) * 24, "a");
        if (status == TSR_OK) {
            status = tsri_stream_wait(f.reduce, tsri_event_record(f.compute));
        }
        if (status == TSR_OK) {
            status = zero(f.reduce, f.buffer, 2048, "b");
        }
    }
    close_all(&f);
    return status;
}

static void test_out_of_memory_leaks_nothing(void)
{
    const int64_t live = tsri_alloc_live();
    tsr_status status = TSR_ERR_NOMEM;
    int n = 1;
    for (; n < 1000 && status != TSR_OK; n++) {
        tsri_alloc_fail_at(n);
        status = whole_life();
        tsri_alloc_fail_at(0);
        CHECK(status == TSR_OK || status == TSR_ERR_NOMEM);
        CHECK_EQ(tsri_alloc_live(), live);
        tsr_error_clear();
    }
    CHECK_EQ(status, TSR_OK);
    CHECK(n > 10);
}

/* What a taken ledger borrows may all be gone. */
static tsr_status record_and_forget(tsri_ledger **out)
{
    char label[] = "layers.7";
    const tsri_recorder_options owns = {.ledger = true, .own = true};
    fixture f;
    TSR_TRY(open_all(&f));
    TSR_TRY(tsri_recorder_attach(f.device, &owns));
    for (int i = 0; i < 400; i++) { /* more labels than the first table has slots */
        (void)snprintf(label, sizeof(label), "l%d", i % 300);
        TSR_TRY(zero(f.compute, f.buffer, 0, label));
    }
    TSR_TRY(collect(&f, TSRI_ALL_GATHER, 4));
    TSR_TRY(tsri_recorder_take(f.device, out));
    memset(label, '!', sizeof(label) - 1);
    close_all(&f);
    return TSR_OK;
}

static void test_taken_ledger_owns(void)
{
    const int64_t live = tsri_alloc_live();
    tsri_ledger *ledger = NULL;
    int count = 0;
    REQUIRE_OK(record_and_forget(&ledger));
    const tsri_entry *e = tsri_ledger_entries(ledger, &count);
    REQUIRE_EQ(count, 401);
    CHECK_STR(e[0].label, "l0");
    CHECK_STR(e[299].label, "l299");
    CHECK(e[5].label == e[305].label); /* one copy of each */
    CHECK_EQ(e[0].bytes, 16);
    CHECK_STR(e[400].group, "tp");
    CHECK_EQ(e[400].members[2], 2);
    CHECK_EQ(e[400].dtype, TSR_F32);
    tsri_ledger_destroy(&ledger);
    CHECK_EQ(tsri_alloc_live(), live);
}

/* Calls that members must make alike have equal hashes, and others differ. */
static void test_call_hash(void)
{
    fixture f;
    int count = 0;
    REQUIRE_OK(open_all(&f));
    tsri_recorder_clear(f.device);
    CHECK_OK(collect(&f, TSRI_ALL_GATHER, 4));
    CHECK_OK(collect(&f, TSRI_ALL_GATHER, 4));
    CHECK_OK(collect(&f, TSRI_ALL_GATHER, 5));
    CHECK_OK(collect(&f, TSRI_REDUCE_SCATTER, 4));
    const tsri_entry *e = tsri_recorder_entries(f.device, &count);
    REQUIRE_EQ(count, 4);
    CHECK(e[0].call == e[1].call);
    CHECK(e[0].call != e[2].call);
    CHECK(e[0].call != e[3].call);
    close_all(&f);
}

static void test_flops(void)
{
    const tsrk_matmul m = {.m = 3, .n = 5, .k = 7, .a_type = TSR_BF16, .b_type = TSR_BF16};
    const tsrk_attention a = {
        .batch = 2, .heads = 3, .kv_heads = 1, .seq = 8, .kv_seq = 8, .dim = 4};
    const tsrk_add add = {.n = 100};
    tsr_dtype type = TSR_F32;
    CHECK(tsrk_flops(TSRK_MATMUL, &m, &type) == 2.0 * 3 * 5 * 7);
    CHECK_EQ(type, TSR_BF16);
    CHECK(tsrk_flops(TSRK_ATTENTION, &a, &type) == 4.0 * 2 * 3 * 8 * 8 * 4 / 2);
    tsrk_attention across = a; /* every query with every key */
    across.kv_seq = 5;
    across.full = true;
    CHECK(tsrk_flops(TSRK_ATTENTION, &across, &type) == 4.0 * 2 * 3 * 8 * 5 * 4);
    across.kv_seq = 20; /* the last 8 of 20: all keys before them, and half among themselves */
    across.full = false;
    CHECK(tsrk_flops(TSRK_ATTENTION, &across, &type) == 4.0 * 2 * 3 * 8 * (12 + 4) * 4);
    tsrk_matmul batch = m;
    batch.batch = 6;
    CHECK(tsrk_flops(TSRK_MATMUL, &batch, &type) == 6.0 * 2 * 3 * 5 * 7);
    CHECK(tsrk_flops(TSRK_ADD, &add, &type) == 0.0);
}

const tsr_test_case tsr_test_cases[] = {
    {"taken_ledger_owns", test_taken_ledger_owns},
    {"call_hash", test_call_hash},
    {"flops", test_flops},
    {"entries", test_entries},
    {"collective_bytes", test_collective_bytes},
    {"times_find_their_entry", test_times_find_their_entry},
    {"reopened_stream_counts_anew", test_reopened_stream_counts_anew},
    {"without_recorder", test_without_recorder},
    {"out_of_memory_leaks_nothing", test_out_of_memory_leaks_nothing},
    {NULL, NULL},
};
