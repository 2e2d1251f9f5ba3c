/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_topo_bind.c
 * Binding this process: shares fit together, and nothing happens where it should not.
 */
#include "base/base.h"

#include <sched.h>
#include <string.h>

#include "support/tsr_test.h"
#include "topo/bind.h"
#include "topo/topo.h"

static cpu_set_t mask(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CHECK_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    return set;
}

static void restore(const cpu_set_t *set)
{
    CHECK_EQ(sched_setaffinity(0, sizeof(*set), set), 0);
}

static int core_count(void)
{
    tsri_topo *topo = NULL;
    int count = 0;

    CHECK_OK(tsri_topo_read(TSRI_TOPO_LIVE_CORES, NULL, &topo));
    if (topo != NULL) {
        count = topo->core_count;
    }
    tsri_topo_free(&topo);
    return count;
}

/* Tests may run under a launcher's or a shell's mask: then nothing can be bound, as it should be.
 */
static bool is_free(const cpu_set_t *set)
{
    tsri_topo *topo = NULL;
    bool result = true;

    CHECK_OK(tsri_topo_read(TSRI_TOPO_LIVE_CORES, NULL, &topo));
    for (int i = 0; topo != NULL && i < topo->pu_count; i++) {
        result = result && CPU_ISSET((size_t)topo->pus[i], set);
    }
    tsri_topo_free(&topo);
    if (!result) {
        (void)printf("skipped: this process is bound already\n");
    }
    return result;
}

static void shares_tile_the_cores(void)
{
    const cpu_set_t before = mask();
    const int cores = core_count();
    cpu_set_t all;

    CPU_ZERO(&all);
    if (!is_free(&before) || cores < 2) {
        return;
    }
    for (int rank = 0; rank < cores; rank++) {
        tsri_topo_binding binding;
        cpu_set_t both;

        REQUIRE_OK(tsri_topo_bind(rank, cores, true, &binding));
        const cpu_set_t mine = mask();

        restore(&before);
        CHECK(binding.bound);
        CHECK_EQ(binding.core_count, 1);
        CHECK(strstr(binding.text, "has 1 whole core of its own") != NULL);
        CPU_AND(&both, &all, &mine);
        CHECK_EQ(CPU_COUNT(&both), 0);
        CPU_OR(&all, &all, &mine);
    }
    CPU_AND(&all, &all, &before);
    CHECK_EQ(CPU_COUNT(&all), CPU_COUNT(&before));
}

static void check_unbound(int local_size, const char *reason)
{
    const cpu_set_t before = mask();
    tsri_topo_binding binding;

    REQUIRE_OK(tsri_topo_bind(0, local_size, true, &binding));
    const cpu_set_t after = mask();

    CHECK(!binding.bound);
    CHECK(strstr(binding.text, reason) != NULL);
    CHECK(CPU_EQUAL(&before, &after));
}

static void too_many_ranks_are_left_alone(void)
{
    check_unbound(core_count() + 1, " ranks on ");
    check_unbound(2 * core_count(), " ranks on ");
}

static void one_rank_is_left_alone(void)
{
    check_unbound(1, "the machine for itself");
}

static void a_launcher_is_left_alone(void)
{
    const cpu_set_t before = mask();
    cpu_set_t one;

    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
        if (CPU_ISSET(i, &before)) {
            CPU_SET(i, &one);
        }
    }
    if (core_count() < 2) {
        return;
    }
    restore(&one);
    check_unbound(2, "the launcher has bound it");
    restore(&before);
}

static void ranks_are_checked(void)
{
    tsri_topo_binding binding;

    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_bind(2, 2, true, &binding));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_bind(-1, 2, true, &binding));
}

const tsr_test_case tsr_test_cases[] = {
    {"shares_tile_the_cores", shares_tile_the_cores},
    {"too_many_ranks_are_left_alone", too_many_ranks_are_left_alone},
    {"one_rank_is_left_alone", one_rank_is_left_alone},
    {"a_launcher_is_left_alone", a_launcher_is_left_alone},
    {"ranks_are_checked", ranks_are_checked},
    {NULL, NULL},
};
