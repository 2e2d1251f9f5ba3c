/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_hostile.c
 * Training on a backend that runs nothing in the order in which it was enqueued has the bits of
 * cpu; without the waits of streams for each other it has not. tests/long has more of both.
 */
#include "support/hostile.h"
#include "support/hostile_rig.h"
#include "support/tsr_test.h"

enum {
    SEEDS = 3,
    LAWLESS_SEEDS = 2,
    MICRO_BATCHES = 2
};

static void any_order_has_the_bits_of_cpu(void)
{
    int64_t overtaken = 0;
    int lawless_count = 0;
    int wrong = 0;

    for (const parity_case *c = hostile_cases(); c->name != NULL; c++) {
        hostile_rig rig;
        char text[HOSTILE_TEXT];

        REQUIRE_OK(hostile_rig_open(c, MICRO_BATCHES, &rig));
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            CHECK_EQ(hostile_rig_run(&rig, &(hostile_options){.seed = seed}, text), 0);
            CHECK_STR(text, "");
            overtaken += hostile_overtaken();
        }
        for (uint64_t seed = 1; seed <= LAWLESS_SEEDS && tsr_test_size() > 1; seed++) {
            const hostile_options lawless = {.seed = seed, .ignore_waits = true};

            lawless_count++;
            wrong += hostile_rig_run(&rig, &lawless, text) > 0;
        }
        hostile_rig_close(&rig);
    }
    CHECK(overtaken > 0);
    /* Nearly all are wrong (test_hostile_long); when depends on how long ranks wait. */
    CHECK(2 * wrong > lawless_count || tsr_test_size() == 1);
}

const tsr_test_case tsr_test_cases[] = {
    {"any_order_has_the_bits_of_cpu", any_order_has_the_bits_of_cpu},
    {NULL, NULL},
};
