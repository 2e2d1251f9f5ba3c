/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/**
 * @file test_boot.c
 * Joining the job: facts, exchanges, and that whoever started MPI ends it.
 */
#include "backend/boot/boot.h"
#include "base/base.h"

#include <mpi.h>

#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

static void test_before_init(void)
{
    int x = 0;

    CHECK_STATUS(TSR_ERR_STATE, tsri_team_barrier(tsri_boot_job(), "a test"));
    CHECK_STATUS(TSR_ERR_STATE,
                 tsri_team_broadcast(tsri_boot_job(), "a test", TSR_OK, &x, sizeof x, 0));
    CHECK_STATUS(TSR_ERR_STATE,
                 tsri_team_all_gather(tsri_boot_job(), "a test", TSR_OK, &x, sizeof x, &x));
}

static void test_facts(void)
{
    tsri_boot_info info = {0};

    REQUIRE_OK(tsri_boot_init(NULL, NULL, NULL, &info));
    CHECK_EQ(info.rank, tsr_test_rank());
    CHECK_EQ(info.size, tsr_test_size());
    /* Tests run on one host. */
    CHECK_EQ(info.node, 0);
    CHECK_EQ(info.node_count, 1);
    CHECK_EQ(info.local_rank, info.rank);
    CHECK_EQ(info.local_size, info.size);
    CHECK(strlen(info.host) > 0);
    CHECK_EQ(tsri_boot_get_info()->rank, info.rank);
    CHECK_EQ(tsri_boot_get_info()->cpus, info.cpus);
    CHECK_EQ(info.launcher_rank, info.rank); /* dealt out host by host already */
    CHECK(!info.renumbered);
    CHECK_EQ(tsri_rank(), info.rank);
    CHECK_EQ(tsri_size(), info.size);
}

static void test_exchanges(void)
{
    int64_t mine[3] = {tsr_test_rank(), tsr_test_rank() * 10, -1};
    int64_t all[3 * 64] = {0};
    char word[16] = "";
    int root = tsr_test_size() - 1;

    REQUIRE_OK(tsri_team_all_gather(tsri_boot_job(), "a test", TSR_OK, mine, sizeof mine, all));
    for (int r = 0; r < tsr_test_size(); r++) {
        CHECK_EQ(all[3 * r], r);
        CHECK_EQ(all[(3 * r) + 1], r * 10);
        CHECK_EQ(all[(3 * r) + 2], -1);
    }
    if (tsr_test_rank() == root) {
        (void)strcpy(word, "from the root");
    }
    CHECK_OK(tsri_team_broadcast(tsri_boot_job(), "a test", TSR_OK, word, sizeof word, root));
    CHECK_STR(word, "from the root");
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_team_broadcast(tsri_boot_job(), "a test", TSR_OK, word,
                                                      (size_t)1 << 40, root));
}

static void test_finalize_leaves_the_programs_mpi(void)
{
    int over = 1;
    tsri_boot_info info = {0};

    tsri_boot_finalize();
    REQUIRE(MPI_Finalized(&over) == MPI_SUCCESS);
    CHECK(!over);
    CHECK_STATUS(TSR_ERR_STATE, tsri_team_barrier(tsri_boot_job(), "a test"));
    CHECK_OK(tsri_boot_init(NULL, NULL, NULL, &info));
    CHECK_OK(tsri_team_barrier(tsri_boot_job(), "a test"));
    tsri_boot_finalize();
}

static void test_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "MPI_LOCALRANKID", "SLURM_PROCID"};

    CHECK(tsri_boot_launched()); /* this test runs under mpirun */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        REQUIRE(unsetenv(names[i]) == 0);
    }
    CHECK(!tsri_boot_launched());
    REQUIRE(setenv("SLURM_PROCID", "0", 1) == 0);
    REQUIRE(setenv("SLURM_STEP_NUM_TASKS", "1", 1) == 0);
    CHECK(!tsri_boot_launched()); /* a batch script, or an interactive shell */
    REQUIRE(setenv("SLURM_STEP_NUM_TASKS", "4", 1) == 0);
    CHECK(tsri_boot_launched());
}

const tsr_test_case tsr_test_cases[] = {
    {"before_init", test_before_init},
    {"facts", test_facts},
    {"exchanges", test_exchanges},
    {"finalize_leaves_the_programs_mpi", test_finalize_leaves_the_programs_mpi},
    {"launched", test_launched},
    {NULL, NULL},
};
