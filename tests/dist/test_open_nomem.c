/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 4 */
/**
 * @file test_open_nomem.c
 * One rank alone runs out of memory while a job opens, at its first allocation, its second, ...:
 * every rank fails, with that rank's message, at once; and the next attempt is well.
 */
#include "base/base.h"

#include <string.h>

#include "job/job.h"
#include "support/tsr_test.h"

enum {
    MOST_ALLOCATIONS = 20000,
    TIMEOUT_S = 20 /* a rank that waits for one that left says so then, and not as it should */
};

static tsri_job_options options_of(int size)
{
    tsri_job_options o = {.model = {.arch = TSRI_ARCH_LLAMA,
                                    .layers = 1,
                                    .heads = 2,
                                    .kv_heads = 2,
                                    .dim = 16,
                                    .ffn = 32,
                                    .vocab = 32},
                          .axes = {{"shard", 2}, {"tp", size / 2}},
                          .axis_count = 2,
                          .preset = "fsdp",
                          .seed = 1,
                          .batch = size,
                          .seq = 4};

    return o;
}

/* Every rank has the same verdict; who did not fail itself knows who did, and of what. */
static void check_verdict(tsr_world *world, tsr_status status, int victim, int n)
{
    if (tsr_test_rank() == victim) {
        CHECK_EQ(status, TSR_ERR_NOMEM);
    } else {
        char words[64];

        (void)snprintf(words, sizeof(words), "rank %d on ", victim);
        CHECK_EQ(status, TSR_ERR_REMOTE);
        if (strstr(tsr_error_message(), words) == NULL ||
            strstr(tsr_error_message(), "ERR_NOMEM: no memory for") == NULL) {
            (void)fprintf(stderr, "allocation %d: %s\n", n, tsr_error_message());
            CHECK(false);
        }
    }
    CHECK_EQ(tsri_error_teller(status), victim);
    tsr_error_clear();
    REQUIRE_OK(tsr_world_agree(world, TSR_OK)); /* they are together again */
}

static void fail_each(int victim)
{
    const tsr_world_options options = {.backend = "cpu", .timeout_s = TIMEOUT_S};
    const tsri_job_options o = options_of(tsr_test_size());
    tsr_world *world = NULL;
    tsr_status status = TSR_ERR_NOMEM;
    int failures = 0;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &options, &world));
    for (int n = 1; n < MOST_ALLOCATIONS && status != TSR_OK; n += 1 + n / 40) {
        tsri_job *job = NULL;

        if (tsr_test_rank() == victim) {
            tsri_alloc_fail_at(n);
        }
        status = tsri_job_open(world, &o, &job);
        tsri_alloc_fail_at(0);
        if (status != TSR_OK) {
            CHECK(job == NULL);
            check_verdict(world, status, victim, n);
            failures++;
        }
        tsri_job_close(&job);
    }
    CHECK_OK(status);
    CHECK(failures > 20);
    tsr_world_close(&world);
}

static void test_last(void)
{
    fail_each(tsr_test_size() - 1);
}

/* The one that collects the others' letters. */
static void test_first(void)
{
    fail_each(0);
}

const tsr_test_case tsr_test_cases[] = {
    {"last", test_last},
    {"first", test_first},
    {NULL, NULL},
};
