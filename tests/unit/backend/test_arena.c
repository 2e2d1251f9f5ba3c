/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The arena on sim, with the race check watching every range it hands out: replay, waits across
 * streams and steps, departures, short and abandoned steps, adoption, and allocation failures. */
#include "backend/arena_priv.h"

#include "backend/dispatch.h"
#include "backend/recorder.h"
#include "base/base.h"
#include "base/rng.h"

#include <string.h>

#include "support/arena_rig.h"
#include "support/tsr_test.h"

/* ---- random steps ---- */

/* The steps of one key are the same; length cuts them short, extra adds a range at the end. */
static tsr_status random_step(arena_rig *f, uint64_t key, int length, bool extra)
{
    arena_held live[ARENA_MAX_LIVE + 1];
    int count = 0;
    uint64_t draw = 0;
    TSR_TRY(tsri_arena_step_begin(f->arena, "train", 0));
    for (int i = 0; i < length; i++) {
        const uint32_t word = tsri_rng_word(key, draw++);
        if (count < ARENA_MAX_LIVE && (count == 0 || word % 5 < 3)) {
            TSR_TRY(arena_rig_add(f, live, &count, key, &draw));
            continue;
        }
        const int at = (int)(word / 8 % (uint32_t)count);
        TSR_TRY(
            arena_rig_give(f, live[at].stream, (int)(word / 512 % ARENA_STREAMS), &live[at].mem));
        live[at] = live[--count];
    }
    if (extra) {
        TSR_TRY(arena_rig_add(f, live, &count, key, &draw));
    }
    while (count > 0) {
        count--;
        TSR_TRY(arena_rig_give(f, live[count].stream, (live[count].stream + 1) % ARENA_STREAMS,
                               &live[count].mem));
    }
    TSR_TRY(tsri_arena_step_end(f->arena));
    return TSR_OK;
}

static void test_random_steps_are_free_of_races(void)
{
    for (uint64_t key = 1; key <= 25; key++) {
        arena_rig f;
        tsri_arena_stats stats;
        REQUIRE_OK(arena_rig_open(&f, false));
        CHECK_OK(random_step(&f, key, 150, false));
        tsri_arena_get_stats(f.arena, &stats);
        const size_t planned = stats.planned_bytes;
        CHECK(planned >= stats.live_peak_bytes && planned > 0);
        CHECK_EQ(f.device->bytes_now, planned);
        for (int i = 0; i < 3; i++) {
            CHECK_OK(random_step(&f, key, 150, false));
            CHECK_EQ(f.device->bytes_now, planned);
        }
        /* Steps that end early leave memory to carry over, not a new plan. Each ends what is still
         * alive in its own order, but acquires as planned. */
        const int lengths[] = {90, 30, 150, 60, 150, 150};
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            CHECK_OK(random_step(&f, key, lengths[i], false));
        }
        tsri_arena_get_stats(f.arena, &stats);
        CHECK_EQ(stats.departures, 0);
        CHECK_OK(random_step(&f, key + 1000, 150, true));
        tsri_arena_get_stats(f.arena, &stats);
        CHECK_EQ(stats.departures, 1);
        CHECK_OK(random_step(&f, key + 1000, 150, true));
        CHECK_OK(random_step(&f, key, 150, false));
        tsri_arena_get_stats(f.arena, &stats);
        CHECK_EQ(stats.departures, 2);
        arena_rig_close(&f);
    }
}

/* ---- replay ---- */

static void test_replay_gives_the_same_places_and_allocates_nothing(void)
{
    arena_rig f;
    tsri_mem first[3] = {{.interval = -1}};
    tsri_mem mem[3];
    int count = 0;
    REQUIRE_OK(arena_rig_open(&f, true));
    for (int step = 0; step < 4; step++) {
        CHECK_OK(tsri_arena_step_begin(f.arena, "train", 0));
        CHECK_OK(arena_rig_take(&f, 0, 1000, &mem[0]));
        CHECK_OK(arena_rig_take(&f, 0, 300, &mem[1]));
        if (step == 1) {
            memcpy(first, mem, sizeof(first));
            tsri_recorder_clear(f.device);
        }
        if (step > 1) {
            CHECK(mem[0].buffer == first[0].buffer && mem[0].offset == first[0].offset);
            CHECK(mem[1].buffer == first[1].buffer && mem[1].offset == first[1].offset);
        }
        CHECK_OK(arena_rig_give(&f, 0, 0, &mem[0]));
        CHECK_OK(arena_rig_take(&f, 0, 1000, &mem[2]));
        CHECK(step == 0 || (mem[2].offset == first[0].offset && mem[2].interval == 2));
        CHECK_OK(arena_rig_give(&f, 0, 0, &mem[1]));
        CHECK_OK(arena_rig_give(&f, 0, 0, &mem[2]));
        CHECK_OK(tsri_arena_step_end(f.arena));
    }
    const tsri_entry *entries = tsri_recorder_entries(f.device, &count);
    for (int i = 0; i < count; i++) {
        CHECK_EQ(entries[i].kind, TSRI_ENTRY_KERNEL); /* no allocation, and on one stream no wait */
    }
    tsri_arena_stats stats;
    tsri_arena_get_stats(f.arena, &stats);
    CHECK_EQ(stats.planned_bytes, 1024 + 512);
    CHECK_EQ(stats.live_peak_bytes, 1024 + 512);
    CHECK_EQ(stats.kind_at_peak[TSRI_MEM_ACTIVATION], 1024 + 512);
    CHECK_EQ(stats.interval_count, 3);
    CHECK_STR(stats.peak_label, "x");
    arena_rig_close(&f);
}

static void test_takers_wait_for_the_last_use(void)
{
    arena_rig f;
    tsri_mem mem;
    REQUIRE_OK(arena_rig_open(&f, true));
    for (int step = 0; step < 3; step++) {
        int count = 0;
        tsri_recorder_clear(f.device);
        REQUIRE_OK(tsri_arena_step_begin(f.arena, "train", 0));
        for (int i = 0; i < 2; i++) {
            REQUIRE_OK(arena_rig_take(&f, 1, 4096, &mem)); /* gather writes, compute reads */
            REQUIRE_OK(arena_rig_give(&f, 1, 0, &mem));
        }
        REQUIRE_OK(tsri_arena_step_end(f.arena));
        if (step == 0) {
            continue;
        }
        /* gather waits for compute before each write; across the step boundary too, except that
         * the sync which made the plan already ordered the first replay's first taker. */
        const tsri_entry *e = tsri_recorder_entries(f.device, &count);
        int waits = 0;
        for (int i = 0; i < count; i++) {
            waits += e[i].kind == TSRI_ENTRY_WAIT && e[i].stream == TSRI_STREAM_GATHER &&
                     e[i].op == TSRI_STREAM_COMPUTE;
        }
        CHECK_EQ(waits, step == 1 ? 1 : 2);
    }
    arena_rig_close(&f);
}

/* Without the arena's waits the race check objects: every wait is needed. */
static tsr_status three_steps(int drop_wait, int *waits_out)
{
    arena_rig f;
    tsri_mem mem;
    const tsri_recorder_options recorder = {.race_check = true, .drop_wait = drop_wait};
    tsr_status status = arena_rig_open(&f, false);
    if (status == TSR_OK) {
        status = tsri_recorder_attach(f.device, &recorder);
    }
    for (int step = 0; step < 3 && status == TSR_OK; step++) {
        status = tsri_arena_step_begin(f.arena, "train", 0);
        for (int i = 0; i < 3 && status == TSR_OK; i++) {
            status = arena_rig_take(&f, 1, 4096, &mem);
            status = status == TSR_OK ? arena_rig_give(&f, 1, 0, &mem) : status;
        }
        status = status == TSR_OK ? tsri_arena_step_end(f.arena) : status;
    }
    *waits_out = tsri_recorder_wait_count(f.device);
    tsri_recorder_detach(f.device);
    arena_rig_close(&f);
    return status;
}

static void test_dropped_waits_are_found(void)
{
    int waits = 0;
    int ignored = 0;
    REQUIRE_OK(three_steps(0, &waits));
    /* step 0: 3 + 2, step 1: 3 + 2, step 2: 3 + 3 */
    REQUIRE_EQ(waits, 16);
    for (int n = 1; n <= waits; n++) {
        CHECK_STATUS(TSR_ERR_INTERNAL, three_steps(n, &ignored));
    }
}

/* On a device that scribbles, a range is written when it is acquired, before and with a plan. */
static void test_ranges_are_scribbled_on(void)
{
    arena_rig f;
    tsri_mem mem;
    tsri_mem none;
    REQUIRE_OK(arena_rig_open(&f, true));
    for (int step = 0; step < 4; step++) { /* the first makes the plan */
        int count = 0;
        int writes = 0;
        f.device->scribbles = step % 2 == 1;
        tsri_recorder_clear(f.device);
        REQUIRE_OK(tsri_arena_step_begin(f.arena, "train", 0));
        REQUIRE_OK(tsri_arena_acquire(f.arena, 1000, TSRI_MEM_WORKSPACE, "r", f.streams[1], &mem));
        REQUIRE_OK(tsri_arena_acquire(f.arena, 0, TSRI_MEM_WORKSPACE, "r", f.streams[1], &none));
        const tsri_entry *e = tsri_recorder_entries(f.device, &count);
        for (int i = 0; i < count; i++) {
            writes += e[i].kind == TSRI_ENTRY_COPY && e[i].op == TSRI_COPY_WRITE &&
                      e[i].stream == TSRI_STREAM_GATHER && e[i].bytes == 1000;
        }
        CHECK_EQ(writes, step % 2);
        tsri_arena_release(f.arena, &mem, tsri_event_record(f.streams[1]));
        tsri_arena_release(f.arena, &none, tsri_event_record(f.streams[1]));
        REQUIRE_OK(tsri_arena_step_end(f.arena));
    }
    arena_rig_close(&f);
}

/* ---- departures ---- */

static tsr_status two_ranges(arena_rig *f, size_t bytes, tsri_mem_kind kind, int stream,
                             bool release_late)
{
    tsri_mem a;
    tsri_mem b;
    tsr_stream *s = f->streams[stream];
    TSR_TRY(tsri_arena_step_begin(f->arena, "train", 0));
    TSR_TRY(arena_rig_take(f, 0, 512, &a));
    if (!release_late) {
        TSR_TRY(arena_rig_give(f, 0, 0, &a));
    }
    TSR_TRY(tsri_arena_acquire(f->arena, bytes, kind, "second", s, &b));
    TSR_TRY(arena_rig_touch(s, &b, true));
    if (release_late) {
        if (arena_rig_shares(&a, &b)) {
            return TSR_RAISE(TSR_ERR_INTERNAL, "live ranges share bytes at %zu", a.offset);
        }
        TSR_TRY(arena_rig_give(f, 0, 0, &a));
    }
    TSR_TRY(arena_rig_give(f, stream, stream, &b));
    TSR_TRY(tsri_arena_step_end(f->arena));
    return TSR_OK;
}

static void test_departures(void)
{
    const struct {
        size_t bytes;
        tsri_mem_kind kind;
        int stream;
        bool late;
        size_t planned;
    } cases[] = {
        {513, TSRI_MEM_ACTIVATION, 0, false, 768},
        {512, TSRI_MEM_WORKSPACE, 0, false, 512},
        {512, TSRI_MEM_ACTIVATION, 1, false, 512},
        {512, TSRI_MEM_ACTIVATION, 0, true, 1024},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        arena_rig f;
        tsri_arena_stats stats;
        REQUIRE_OK(arena_rig_open(&f, false));
        REQUIRE_OK(two_ranges(&f, 512, TSRI_MEM_ACTIVATION, 0, false));
        REQUIRE_OK(two_ranges(&f, 512, TSRI_MEM_ACTIVATION, 0, false));
        tsri_arena_get_stats(f.arena, &stats);
        CHECK_EQ(stats.planned_bytes, 512);
        CHECK_EQ(stats.departures, 0);
        CHECK(stats.departure_label == NULL);
        for (int again = 0; again < 3; again++) {
            REQUIRE_OK(
                two_ranges(&f, cases[i].bytes, cases[i].kind, cases[i].stream, cases[i].late));
            tsri_arena_get_stats(f.arena, &stats);
            CHECK_EQ(stats.departures, 1);
            CHECK_STR(stats.departure_label, "second");
            CHECK_EQ(stats.planned_bytes, cases[i].planned);
            CHECK_EQ(f.device->bytes_now, cases[i].planned);
        }
        arena_rig_close(&f);
    }
}

/* ---- states ---- */

static void test_states(void)
{
    arena_rig f;
    tsri_mem mem;
    tsri_mem outside;
    tsri_arena_stats stats;
    REQUIRE_OK(arena_rig_open(&f, false));
    CHECK_STATUS(TSR_ERR_STATE, tsri_arena_step_end(f.arena));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_arena_acquire(f.arena, 1, TSRI_MEM_COUNT, "x", f.streams[0], &mem));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_arena_acquire(f.arena, 1, TSRI_MEM_OTHER, "x", NULL, &mem));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_arena_acquire(f.arena, SIZE_MAX, TSRI_MEM_OTHER, "x", f.streams[0], &mem));
    CHECK_OK(tsri_arena_step_begin(f.arena, "train", 0));
    CHECK_OK(tsri_arena_step_begin(f.arena, "eval", 0)); /* within, and nothing within that */
    CHECK_STATUS(TSR_ERR_STATE, tsri_arena_step_begin(f.arena, "train", 0));
    CHECK_OK(tsri_arena_step_end(f.arena));
    CHECK_STATUS(TSR_ERR_STATE, tsri_arena_adopt(f.arena, f.arena));
    CHECK_OK(arena_rig_take(&f, 0, 100, &mem));
    CHECK_STATUS(TSR_ERR_STATE, tsri_arena_step_end(f.arena));
    tsri_arena_get_stats(f.arena, &stats);
    CHECK_EQ(stats.planned_bytes, 0);
    /* The range went with its step; a late release is harmless. */
    tsri_arena_release(f.arena, &mem, tsri_event_record(f.streams[0]));
    CHECK(mem.buffer == NULL && mem.interval == -1);
    tsri_arena_release(f.arena, &mem, tsri_event_record(f.streams[0]));
    CHECK_STATUS(TSR_ERR_STATE, tsri_arena_adopt(f.arena, f.arena));
    CHECK_EQ(f.device->bytes_now, 0);

    /* Outside steps ranges are buffers of their own, reused after their last use, and may live
     * across steps. */
    CHECK_OK(arena_rig_take(&f, 0, 700, &outside));
    CHECK_OK(arena_rig_take(&f, 0, 700, &mem));
    CHECK(mem.buffer != outside.buffer);
    const tsr_buffer *before = mem.buffer;
    CHECK_OK(arena_rig_give(&f, 0, 1, &mem));
    CHECK_OK(arena_rig_take(&f, 2, 690, &mem));
    CHECK(mem.buffer == before);
    CHECK_OK(arena_rig_give(&f, 2, 1, &mem));
    CHECK_OK(tsri_arena_step_begin(f.arena, "train", 0));
    CHECK_EQ(f.device->bytes_now, 768);
    CHECK_OK(arena_rig_give(&f, 0, 1, &outside));
    CHECK_OK(tsri_arena_step_end(f.arena));
    CHECK_EQ(f.device->bytes_now, 0);
    arena_rig_close(&f);
}

static void test_abandoned_steps(void)
{
    arena_rig f;
    tsri_mem mem;
    tsri_arena_stats stats;
    REQUIRE_OK(arena_rig_open(&f, false));
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(random_step(&f, 7, 100, false));
        REQUIRE_OK(tsri_arena_step_begin(f.arena, "train", 0));
        REQUIRE_OK(arena_rig_take(&f, 0, i % 2 == 0 ? 100 : 0, &mem));
        REQUIRE_OK(arena_rig_take(&f, 1, 5000, &mem));
        tsri_arena_step_abort(f.arena);
        tsri_arena_step_abort(f.arena);
    }
    REQUIRE_OK(random_step(&f, 7, 100, false));
    tsri_arena_get_stats(f.arena, &stats);
    CHECK_EQ(f.device->bytes_now, stats.planned_bytes);
    arena_rig_close(&f);
}

static void test_adoption(void)
{
    arena_rig dry;
    arena_rig real;
    tsri_arena_stats planned;
    tsri_arena_stats stats;
    REQUIRE_OK(arena_rig_open(&dry, false));
    REQUIRE_OK(arena_rig_open(&real, true));
    CHECK_OK(random_step(&dry, 11, 120, false));
    tsri_arena_get_stats(dry.arena, &planned);
    CHECK_STATUS(TSR_ERR_STATE, tsri_arena_adopt(dry.arena, real.arena));
    CHECK_OK(tsri_arena_adopt(real.arena, dry.arena));
    arena_rig_close(&dry);
    CHECK_EQ(real.device->bytes_now, planned.planned_bytes);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(random_step(&real, 11, 120, false));
    }
    tsri_arena_get_stats(real.arena, &stats);
    CHECK_EQ(stats.departures, 0);
    CHECK_EQ(stats.planned_bytes, planned.planned_bytes);
    CHECK_EQ(stats.live_peak_bytes, planned.live_peak_bytes);
    CHECK_EQ(stats.interval_count, planned.interval_count);
    CHECK_STR(stats.peak_label, "x");
    CHECK_EQ(real.device->bytes_peak, planned.planned_bytes);
    /* Adopting again replaces the plan, also while the old one's memory was just in use. */
    REQUIRE_OK(arena_rig_open(&dry, false));
    CHECK_OK(random_step(&dry, 12, 120, false));
    CHECK_OK(tsri_arena_adopt(real.arena, dry.arena));
    CHECK_OK(random_step(&real, 12, 120, false));
    arena_rig_close(&dry);
    arena_rig_close(&real);
}

static tsr_status whole_life(void)
{
    arena_rig f;
    arena_rig g;
    memset(&g, 0, sizeof(g));
    tsr_status status = arena_rig_open(&f, false);
    status = status == TSR_OK ? random_step(&f, 3, 60, false) : status;
    status = status == TSR_OK ? random_step(&f, 3, 60, false) : status;
    status = status == TSR_OK ? random_step(&f, 4, 60, false) : status;
    status = status == TSR_OK ? arena_rig_open(&g, false) : status;
    status = status == TSR_OK ? tsri_arena_adopt(g.arena, f.arena) : status;
    status = status == TSR_OK ? random_step(&g, 4, 60, false) : status;
    tsri_alloc_fail_at(0);
    arena_rig_close(&g);
    arena_rig_close(&f);
    return status;
}

static void test_out_of_memory_leaks_nothing(void)
{
    const int64_t live = tsri_alloc_live();
    tsr_status status = TSR_ERR_NOMEM;
    int n = 1;
    for (; n < 2000 && status != TSR_OK; n++) {
        tsri_alloc_fail_at(n);
        status = whole_life();
        CHECK(status == TSR_OK || status == TSR_ERR_NOMEM);
        CHECK_EQ(tsri_alloc_live(), live);
        tsr_error_clear();
    }
    CHECK_EQ(status, TSR_OK);
    CHECK(n > 50);
}

/* Ranks that do the same share a plan; one byte more, and they do not. */
static void test_plans_are_shared(void)
{
    tsri_arena_plans *plans = NULL;
    tsri_arena_stats stats[2];
    REQUIRE_OK(tsri_arena_plans_create(&plans));
    for (uint64_t key = 1; key <= 6; key++) {
        for (int rank = 0; rank < 2; rank++) {
            arena_rig f;
            REQUIRE_OK(arena_rig_open(&f, false));
            tsri_arena_share_plans(f.arena, plans);
            for (int step = 0; step < 3; step++) {
                CHECK_OK(random_step(&f, key, 100, false));
            }
            tsri_arena_get_stats(f.arena, &stats[rank]);
            CHECK_EQ(stats[rank].departures, 0);
            arena_rig_close(&f);
        }
        CHECK_EQ(stats[0].planned_bytes, stats[1].planned_bytes);
        CHECK_EQ(stats[0].live_peak_bytes, stats[1].live_peak_bytes);
        CHECK_EQ(stats[0].interval_count, stats[1].interval_count);
    }
    tsri_arena_plans_destroy(&plans);
    CHECK(plans == NULL);
}

static void test_plans_are_of_their_intervals_alone(void)
{
    tsri_interval step[] = {
        {.bytes = 100, .size = 256, .label = "a", .birth = 0, .death = 2},
        {.bytes = 300, .size = 512, .label = "b", .birth = 1, .death = 3},
    };
    tsri_arena_plans *plans = NULL;
    tsri_arena_plan *plan = NULL;
    REQUIRE_OK(tsri_arena_plans_create(&plans));
    for (int i = 0; i < 6; i++) {
        /* 0 makes it, 1 finds it; 2 is another, 3 finds that; 4 and 5 find the first again. */
        step[1].bytes = i == 2 || i == 3 ? 301 : 300;
        REQUIRE_OK(tsri_arena_plans_get(plans, step, 2, &plan));
        CHECK_EQ(plan->intervals[1].bytes, step[1].bytes);
        CHECK_EQ(plan->bytes, 768);
        CHECK_EQ(plan->intervals[0].label != NULL, i == 0 || i == 2); /* copies have no labels */
        tsri_arena_plan_destroy(&plan);
    }
    REQUIRE_OK(tsri_arena_plans_get(plans, step, 1, &plan));
    CHECK_EQ(plan->bytes, 256);
    tsri_arena_plan_destroy(&plan);
    tsri_arena_plans_destroy(&plans);
}

const tsr_test_case tsr_test_cases[] = {
    {"replay_gives_the_same_places_and_allocates_nothing",
     test_replay_gives_the_same_places_and_allocates_nothing},
    {"takers_wait_for_the_last_use", test_takers_wait_for_the_last_use},
    {"dropped_waits_are_found", test_dropped_waits_are_found},
    {"ranges_are_scribbled_on", test_ranges_are_scribbled_on},
    {"random_steps_are_free_of_races", test_random_steps_are_free_of_races},
    {"departures", test_departures},
    {"states", test_states},
    {"abandoned_steps", test_abandoned_steps},
    {"adoption", test_adoption},
    {"plans_are_shared", test_plans_are_shared},
    {"plans_are_of_their_intervals_alone", test_plans_are_of_their_intervals_alone},
    {"out_of_memory_leaks_nothing", test_out_of_memory_leaks_nothing},
    {NULL, NULL},
};
