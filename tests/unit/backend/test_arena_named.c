/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Steps of several names over one memory, and steps within steps: what is planned how often, where
 * ranges lie, and who waits for whom. */
#include "backend/dispatch.h"
#include "base/base.h"
#include "base/rng.h"

#include "support/arena_rig.h"
#include "support/tsr_test.h"

/* As random_step, in live[base ..]; behind every inner_every-th range a step called "eval" stands
 * within it, which shares no byte with what is held then. */
static tsr_status named_step(arena_rig *f, const char *name, uint64_t key, int length,
                             int inner_every, arena_held *live,
                             int base) // NOLINT(misc-no-recursion)
{
    int count = base;
    uint64_t draw = 0;
    TSR_TRY(tsri_arena_step_begin(f->arena, name, 0));
    for (int i = 0; i < length; i++) {
        const uint32_t word = tsri_rng_word(key, draw++);
        if (inner_every > 0 && i % inner_every == inner_every - 1) {
            TSR_TRY(named_step(f, "eval", key + 7, length / 3, 0, live, count));
        }
        if (count - base < ARENA_MAX_LIVE && (count == base || word % 5 < 3)) {
            TSR_TRY(arena_rig_add(f, live, &count, key, &draw));
            continue;
        }
        const int at = base + (int)(word / 8 % (uint32_t)(count - base));
        TSR_TRY(
            arena_rig_give(f, live[at].stream, (int)(word / 512 % ARENA_STREAMS), &live[at].mem));
        live[at] = live[--count];
    }
    while (count > base) {
        count--;
        TSR_TRY(arena_rig_give(f, live[count].stream, (live[count].stream + 1) % ARENA_STREAMS,
                               &live[count].mem));
    }
    TSR_TRY(tsri_arena_step_end(f->arena));
    return TSR_OK;
}

/* Bytes that steps of one name need by themselves. */
static size_t bytes_alone(uint64_t key, int length)
{
    arena_held live[2 * ARENA_MAX_LIVE];
    tsri_arena_stats stats = {0};
    arena_rig f;
    CHECK_OK(arena_rig_open(&f, false));
    CHECK_OK(named_step(&f, "train", key, length, 0, live, 0));
    tsri_arena_get_stats(f.arena, &stats);
    arena_rig_close(&f);
    return stats.planned_bytes;
}

static void test_names_alternate_over_one_memory(void)
{
    for (uint64_t key = 1; key <= 10; key++) {
        const size_t train = bytes_alone(key, 150);
        const size_t eval = bytes_alone(key + 500, 60 + 20 * (int)key); /* some are larger */
        arena_held live[2 * ARENA_MAX_LIVE];
        tsri_arena_stats stats;
        arena_rig f;
        REQUIRE_OK(arena_rig_open(&f, false));
        for (int i = 0; i < 5; i++) {
            CHECK_OK(named_step(&f, "train", key, i == 3 ? 90 : 150, 0, live, 0));
            CHECK_OK(named_step(&f, "eval", key + 500, 60 + 20 * (int)key, 0, live, 0));
            CHECK_OK(named_step(&f, "eval", key + 500, 60 + 20 * (int)key, 0, live, 0));
            tsri_arena_get_stats(f.arena, &stats);
            CHECK_EQ(stats.plans_made, 2);
            CHECK_EQ(stats.departures, 0);
            CHECK_EQ(f.device->bytes_now, train > eval ? train : eval);
        }
        arena_rig_close(&f);
    }
}

static void test_steps_within_steps(void)
{
    for (uint64_t key = 1; key <= 10; key++) {
        arena_held live[2 * ARENA_MAX_LIVE];
        tsri_arena_stats stats;
        int plans = 0;
        size_t bytes = 0;
        arena_rig f;
        REQUIRE_OK(arena_rig_open(&f, false));
        for (int i = 0; i < 6; i++) {
            /* The first step has no plan, the second one plans what stands within. */
            CHECK_OK(named_step(&f, "train", key, 150, 40, live, 0));
            CHECK_OK(named_step(&f, "train", key, 150, i % 2 == 0 ? 0 : 40, live, 0));
            CHECK_OK(named_step(&f, "eval", key + 7, 50, 0, live, 0));
            tsri_arena_get_stats(f.arena, &stats);
            CHECK_EQ(stats.departures, 0);
            if (i == 1) {
                plans = stats.plans_made;
                bytes = f.device->bytes_now;
            }
        }
        CHECK_EQ(plans, 2 + 3);
        CHECK_EQ(stats.plans_made, plans);
        CHECK_EQ(f.device->bytes_now, bytes);
        arena_rig_close(&f);
    }
}

/* What is taken within a step is gone when that is over, and the step around goes on. */
static void test_ranges_of_an_inner_step_are_stale_behind_it(void)
{
    arena_rig f;
    tsri_mem outer;
    tsri_mem inner;
    REQUIRE_OK(arena_rig_open(&f, false));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tsri_arena_step_begin(f.arena, "train", 0));
        CHECK_OK(arena_rig_take(&f, 0, 512, &outer));
        CHECK_OK(tsri_arena_step_begin(f.arena, "eval", 0));
        CHECK_OK(arena_rig_take(&f, 0, 512, &inner));
        CHECK(!tsri_arena_is_stale(f.arena, &outer) && !tsri_arena_is_stale(f.arena, &inner));
        const tsri_mem kept = inner;
        if (i == 1) {
            CHECK_STATUS(TSR_ERR_STATE, tsri_arena_step_end(f.arena)); /* still held */
        } else {
            CHECK_OK(arena_rig_give(&f, 0, 1, &inner));
            CHECK_OK(tsri_arena_step_end(f.arena));
        }
        CHECK(!tsri_arena_is_stale(f.arena, &outer) && tsri_arena_is_stale(f.arena, &kept));
        CHECK_OK(arena_rig_give(&f, 0, 1, &outer));
        CHECK_OK(tsri_arena_step_end(f.arena));
    }
    CHECK_STATUS(TSR_ERR_STATE, tsri_arena_step_end(f.arena));
    arena_rig_close(&f);
}

const tsr_test_case tsr_test_cases[] = {
    {"names_alternate_over_one_memory", test_names_alternate_over_one_memory},
    {"steps_within_steps", test_steps_within_steps},
    {"ranges_of_an_inner_step_are_stale_behind_it",
     test_ranges_of_an_inner_step_are_stale_behind_it},
    {NULL, NULL},
};
