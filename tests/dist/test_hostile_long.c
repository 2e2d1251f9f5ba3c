/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 4 */
/* labels: long */
/* timeout: 3600 */
/* watchdog: 900 */
/**
 * @file test_hostile_long.c
 * Many orders of training on the hostile backend, and what they are worth: without any waits of
 * streams for each other nearly every order shows it, and so does some order for nearly every
 * single wait that the race check calls needed. A case whose layout is for other ranks does
 * nothing.
 */
#include <stdio.h>
#include <string.h>

#include "support/hostile.h"
#include "support/hostile_rig.h"
#include "support/tsr_test.h"

enum {
    SEEDS = 50,
    MICRO_BATCHES = 2
};

static bool open_named(const char *name, hostile_rig *rig)
{
    const parity_case *c = hostile_cases();
    tsr_status status = TSR_OK;

    while (c->name != NULL && strcmp(c->name, name) != 0) {
        c++;
    }
    if (c->name == NULL) {
        return false;
    }
    status = hostile_rig_open(c, MICRO_BATCHES, rig);
    CHECK_OK(status);
    return status == TSR_OK;
}

/* 95 of 100. */
static bool nearly_all(int count)
{
    return count * 20 >= SEEDS * 19;
}

static void orders(const char *name)
{
    char text[HOSTILE_TEXT];
    int wrong = 0;
    hostile_rig rig;

    if (!open_named(name, &rig)) {
        return;
    }
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const hostile_options lawless = {.seed = seed, .ignore_waits = true};

        CHECK_EQ(hostile_rig_run(&rig, &(hostile_options){.seed = seed}, text), 0);
        CHECK_STR(text, "");
        wrong += hostile_rig_run(&rig, &lawless, text) > 0;
    }
    if (tsr_test_rank() == 0) {
        printf("# %s: without waits %d of %d orders are wrong\n", name, wrong, SEEDS);
    }
    CHECK(nearly_all(wrong));
    hostile_rig_close(&rig);
}

/* The first seed that shows that rank 0 lacks its n-th wait; 0: none. */
static int seed_that_shows(hostile_rig *rig, int n)
{
    char text[HOSTILE_TEXT];

    for (int seed = 1; seed <= SEEDS; seed++) {
        const hostile_options options = {.seed = (uint64_t)seed,
                                         .drop_wait = tsr_test_rank() == 0 ? n : 0};

        if (hostile_rig_run(rig, &options, text) > 0) {
            return seed;
        }
    }
    return 0;
}

/* Slack behind the rows of the last rank is zeroed and travels, but nobody has it as a value. */
static bool is_of_slack(const char *race)
{
    return strstr(race, "not ordered after zero of") != NULL;
}

static void edges(const char *name)
{
    char race[HOSTILE_RACE];
    int waits = 0;
    int needed = 0;
    int slack = 0;
    int missed = 0;
    int runs = 0;
    hostile_rig rig;

    if (!open_named(name, &rig)) {
        return;
    }
    REQUIRE_OK(hostile_rig_count_waits(&rig, &waits));
    for (int n = 1; n <= waits; n++) {
        REQUIRE_OK(hostile_rig_find_race(&rig, n, race));
        if (race[0] == '\0') {
            continue;
        }
        const int seed = seed_that_shows(&rig, n);

        needed++;
        runs += seed > 0 ? seed : SEEDS;
        slack += seed == 0 && is_of_slack(race);
        if (seed == 0 && !is_of_slack(race)) {
            missed++;
            if (tsr_test_rank() == 0) {
                printf("# %s: no order shows without wait %d: %s\n", name, n, race);
            }
        }
    }
    if (tsr_test_rank() == 0) {
        printf("# %s: %d of %d waits are needed, %d of them for slack alone; %d are missed in "
               "%d runs\n",
               name, needed, waits, slack, missed, runs);
    }
    CHECK(needed > 2 * slack);
    /* An order that shows a wait's lack may want several ranks to move within some milliseconds. */
    CHECK(10 * missed <= needed + 9);
    hostile_rig_close(&rig);
}

static void orders_of_ddp(void)
{
    orders("ddp");
}

static void orders_of_zero2(void)
{
    orders("zero2");
}

static void orders_of_fsdp(void)
{
    orders("fsdp");
}

static void orders_of_hsdp(void)
{
    orders("hsdp");
}

static void orders_of_hfsdp(void)
{
    orders("hfsdp");
}

static void orders_of_tp_fsdp(void)
{
    orders("tp_fsdp");
}

static void orders_of_tp_hsdp(void)
{
    orders("tp_hsdp");
}

static void orders_of_tp_sequence(void)
{
    orders("tp_sequence");
}

static void edges_of_ddp(void)
{
    edges("ddp");
}

static void edges_of_zero2(void)
{
    edges("zero2");
}

static void edges_of_fsdp(void)
{
    edges("fsdp");
}

static void edges_of_hsdp(void)
{
    edges("hsdp");
}

static void edges_of_hfsdp(void)
{
    edges("hfsdp");
}

static void edges_of_tp_fsdp(void)
{
    edges("tp_fsdp");
}

static void edges_of_tp_hsdp(void)
{
    edges("tp_hsdp");
}

static void edges_of_tp_sequence(void)
{
    edges("tp_sequence");
}

const tsr_test_case tsr_test_cases[] = {
    {"orders_of_ddp", orders_of_ddp},
    {"orders_of_zero2", orders_of_zero2},
    {"orders_of_fsdp", orders_of_fsdp},
    {"orders_of_hsdp", orders_of_hsdp},
    {"orders_of_hfsdp", orders_of_hfsdp},
    {"orders_of_tp_fsdp", orders_of_tp_fsdp},
    {"orders_of_tp_hsdp", orders_of_tp_hsdp},
    {"orders_of_tp_sequence", orders_of_tp_sequence},
    {"edges_of_ddp", edges_of_ddp},
    {"edges_of_zero2", edges_of_zero2},
    {"edges_of_fsdp", edges_of_fsdp},
    {"edges_of_hsdp", edges_of_hsdp},
    {"edges_of_hfsdp", edges_of_hfsdp},
    {"edges_of_tp_fsdp", edges_of_tp_fsdp},
    {"edges_of_tp_hsdp", edges_of_tp_hsdp},
    {"edges_of_tp_sequence", edges_of_tp_sequence},
    {NULL, NULL},
};
