/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_bind.c
 * Ranks of one host bind themselves: to different cores, and their threads are counted once.
 */
#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <sched.h>

#include "support/tsr_test.h"
#include "topo/bind.h"

static void shares_are_apart(void)
{
    enum {
        MAX_RANKS = 8
    };
    tsri_boot_info info;
    tsri_topo_binding binding;
    cpu_set_t mine;
    cpu_set_t all[MAX_RANKS];

    REQUIRE_OK(tsri_boot_init(NULL, NULL, NULL, &info));
    REQUIRE(info.size <= MAX_RANKS);
    const int before = tsri_cpu_default_threads(info.local_size);

    CHECK(info.cpus >= 1);
    CHECK_EQ(before, info.cpus > info.local_size ? info.cpus / info.local_size : 1);
    CHECK_OK(tsri_topo_bind(info.local_rank, info.local_size, true, &binding));
    CPU_ZERO(&mine);
    CHECK_EQ(sched_getaffinity(0, sizeof(mine), &mine), 0);
    CHECK_OK(tsri_team_all_gather(tsri_boot_job(), "a test", TSR_OK, &mine, sizeof(mine), all));
    const int after = tsri_cpu_default_threads(info.local_size);

    /* The share of before, unless whole cores left this rank less. */
    CHECK_EQ(after, before < CPU_COUNT(&mine) ? before : CPU_COUNT(&mine));
    for (int r = 0; r < info.size && binding.bound; r++) {
        cpu_set_t both;

        CPU_AND(&both, &mine, &all[r]);
        CHECK_EQ(CPU_COUNT(&both), r == info.rank ? CPU_COUNT(&mine) : 0);
    }
    if (!binding.bound) {
        CHECK_EQ(CPU_COUNT(&mine), info.cpus);
        CHECK_EQ(after, before);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"shares_are_apart", shares_are_apart},
    {NULL, NULL},
};
