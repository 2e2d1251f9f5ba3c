/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* That the hostile backend is: nothing runs when it is enqueued, streams overtake each other where
 * no wait forbids it, and writes to memory that is not the writer's are found. */
#include "backend/dispatch.h"
#include "base/base.h"

#include <string.h>

#include "support/hostile.h"
#include "support/tsr_test.h"

enum {
    SEEDS = 20,
    HOPS = 40
};

typedef struct fixture {
    tsr_device *device;
    tsr_stream *streams[TSRI_STREAM_COUNT];
    tsr_buffer *buffer; /* 100 bytes */
} fixture;

static tsr_status open_all(fixture *f)
{
    const tsr_backend *backend = NULL;

    memset(f, 0, sizeof(*f));
    TSR_TRY(tsri_backend_find("hostile", &backend));
    TSR_TRY(tsri_device_open(backend, NULL, &f->device));
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        TSR_TRY(tsri_stream_open(f->device, (tsri_stream_kind)s, &f->streams[s]));
    }
    TSR_TRY(tsri_buffer_alloc(f->device, 100, TSRI_MEM_OTHER, "bytes", &f->buffer));
    return TSR_OK;
}

static void close_all(fixture *f)
{
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        tsri_stream_close(&f->streams[s]);
    }
    tsri_buffer_release(&f->buffer);
    tsri_device_close(&f->device);
}

static void nothing_runs_when_it_is_enqueued(void)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const unsigned char one = 1;
        fixture f;

        hostile_set(&(hostile_options){.seed = seed});
        REQUIRE_OK(open_all(&f));
        const unsigned char *at = f.buffer->address;
        for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
            CHECK_OK(tsri_write(f.buffer, (size_t)s, &one, 1, f.streams[s]));
        }
        CHECK_EQ(at[TSRI_STREAM_COMPUTE], 0);
        CHECK_OK(tsri_stream_sync(f.streams[TSRI_STREAM_COMPUTE]));
        CHECK_EQ(at[TSRI_STREAM_COMPUTE], 1);
        /* Who asks often enough has others done too. */
        const tsr_event event = tsri_event_record(f.streams[TSRI_STREAM_COPY]);
        int asked = 0;
        while (asked < 100 && !tsri_event_done(event)) {
            asked++;
        }
        CHECK_EQ(at[TSRI_STREAM_COPY], 1);
        close_all(&f);
    }
}

/* Each stream in turn writes its number; the last should win. */
static tsr_status last_writer(const hostile_options *options, unsigned char *out)
{
    fixture f;

    hostile_set(options);
    TSR_TRY(open_all(&f));
    for (int hop = 0; hop < HOPS; hop++) {
        const unsigned char number = (unsigned char)hop;
        const int s = hop % TSRI_STREAM_COUNT;

        if (hop > 0) {
            tsr_stream *before = f.streams[(hop - 1) % TSRI_STREAM_COUNT];
            TSR_TRY(tsri_stream_wait(f.streams[s], tsri_event_record(before)));
        }
        TSR_TRY(tsri_write(f.buffer, 0, &number, 1, f.streams[s]));
    }
    for (int s = 0; s < TSRI_STREAM_COUNT; s++) {
        TSR_TRY(tsri_stream_sync(f.streams[s]));
    }
    memcpy(out, f.buffer->address, 1);
    close_all(&f);
    return TSR_OK;
}

static void waits_alone_order_streams(void)
{
    int wrong = 0;
    int overtaken = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        unsigned char last = 0;

        CHECK_OK(last_writer(&(hostile_options){.seed = seed}, &last));
        CHECK_EQ(last, HOPS - 1);
        CHECK_EQ(hostile_wait_count(), HOPS - 1);
        CHECK_EQ(hostile_overtaken(), 0);
        CHECK_OK(last_writer(&(hostile_options){.seed = seed, .ignore_waits = true}, &last));
        wrong += last != HOPS - 1;
        overtaken += hostile_overtaken() > 0;
    }
    CHECK(wrong > SEEDS / 2);
    CHECK(overtaken > SEEDS / 2);
}

static void writes_to_others_memory_are_found(void)
{
    fixture f;

    hostile_set(&(hostile_options){.seed = 1});
    REQUIRE_OK(open_all(&f));
    if (f.buffer == NULL) {
        return;
    }
    unsigned char *at = f.buffer->address;
    at[99] = 1;
    tsri_buffer_release(&f.buffer);
    CHECK_EQ(hostile_fault_count(), 0);
    CHECK_EQ(at[99], 0xFF);
    at[3] = 1;
    REQUIRE_OK(tsri_buffer_alloc(f.device, 100, TSRI_MEM_OTHER, "bytes", &f.buffer));
    if (f.buffer == NULL) {
        return;
    }
    at = f.buffer->address;
    CHECK_EQ(at[0], 0);
    CHECK_EQ(at[100], 0xFF);
    at[100] = 1;
    tsri_buffer_release(&f.buffer);
    CHECK_EQ(hostile_fault_count(), 1);
    close_all(&f);
    CHECK_EQ(hostile_fault_count(), 2);
}

const tsr_test_case tsr_test_cases[] = {
    {"nothing_runs_when_it_is_enqueued", nothing_runs_when_it_is_enqueued},
    {"waits_alone_order_streams", waits_alone_order_streams},
    {"writes_to_others_memory_are_found", writes_to_others_memory_are_found},
    {NULL, NULL},
};
