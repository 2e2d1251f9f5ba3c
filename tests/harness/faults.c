/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file faults.c
 * Cases that go wrong in each way the harness must report; CTest expects every one to fail.
 */
#include "base/base.h"

#include <mpi.h>

#include <stdlib.h>

#include "support/tsr_test.h"

static tsr_status broken(void)
{
    return TSR_RAISE(TSR_ERR_COMM, "told to fail with %d", 3);
}

static bool is_last(void)
{
    return tsr_test_rank() == tsr_test_size() - 1;
}

static void check_fails_on_one_rank(void)
{
    if (is_last()) {
        CHECK_EQ(1 + 1, 3);
    }
}

static void status_fails_on_one_rank(void)
{
    if (is_last()) {
        CHECK_OK(broken());
    }
}

static void not_a_number_is_near_nothing(void)
{
    volatile double zero = 0;
    CHECK_NEAR(zero / zero, zero, 1e9);
}

static void require_leaves_the_case(void)
{
    REQUIRE_EQ(1, 2);
    abort();
}

static void rank_spins(void)
{
    volatile bool forever = true;
    while (tsr_test_rank() == 0 && forever) {
    }
}

static void rank_waits_alone(void)
{
    if (tsr_test_rank() == 0) {
        (void)MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void rank_dies(void)
{
    if (is_last()) {
        abort();
    }
}

static void memory_leaks(void)
{
    char *lost = NULL;
    CHECK_OK(tsri_alloc(77, 1, &lost));
}

static void nothing_goes_wrong(void)
{
    CHECK(tsr_test_size() >= 1);
}

const tsr_test_case tsr_test_cases[] = {
    {"check_fails_on_one_rank", check_fails_on_one_rank},
    {"status_fails_on_one_rank", status_fails_on_one_rank},
    {"not_a_number_is_near_nothing", not_a_number_is_near_nothing},
    {"require_leaves_the_case", require_leaves_the_case},
    {"rank_spins", rank_spins},
    {"rank_waits_alone", rank_waits_alone},
    {"rank_dies", rank_dies},
    {"memory_leaks", memory_leaks},
    {"nothing_goes_wrong", nothing_goes_wrong},
    {NULL, NULL},
};
