/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file main_mpi.c
 * Runs a table of cases on every rank of MPI_COMM_WORLD; all ranks exit alike.
 *
 * MPI is started here, before the library could, and so ended here. Leaks are looked for just
 * before that: afterwards LeakSanitizer would report the unloaded parts of MPI instead.
 */
#include <mpi.h>

#include "support/tsr_test.h"

static int over_ranks(int mine)
{
    int all = 0;

    (void)MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    int provided = 0;
    int rank = 0;
    int size = 1;
    int result = 0;
    int finalized = 0;

    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
        return 98;
    }
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    tsr_test_begin(rank, size);
    result = tsr_test_run(argc, argv, over_ranks);
    (void)MPI_Finalized(&finalized);
    if (finalized) {
        (void)fprintf(stderr, "[rank %d] a case ended MPI, which is not its own\n", rank);
        return 1;
    }
    if (over_ranks(tsr_test_leaked() ? 1 : 0) > 0) {
        result = 1;
    }
    (void)MPI_Finalize();
    return result;
}
