/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file boot.c
 * Process start by MPI: one initialisation, a communicator of our own, nodes by shared memory.
 *
 * Everything here talks over a duplicate of MPI_COMM_WORLD, so a program's own messages never meet
 * ours. Whoever started MPI ends it: a program that called MPI_Init before us keeps it after us.
 */
#include "backend/boot/boot.h"

#include "base/base.h"

#include <mpi.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* MPI is one per process and cannot be started twice, hence the one record of it. */
static struct {
    tsri_boot_info info;
    MPI_Comm world;
    bool ready;
    bool started_here;
} boot;

static tsr_status check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;

    if (code == MPI_SUCCESS) {
        return TSR_OK;
    }
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) {
        return TSR_RAISE(TSR_ERR_COMM, "%s failed with code %d", what, code);
    }
    return TSR_RAISE(TSR_ERR_COMM, "%s failed: %.*s", what, length, text);
}

static tsr_status start_mpi(int *argc, char ***argv)
{
    int up = 0;
    int over = 0;
    int level = MPI_THREAD_SINGLE;

    TSR_TRY(check(MPI_Initialized(&up), "MPI_Initialized"));
    TSR_TRY(check(MPI_Finalized(&over), "MPI_Finalized"));
    if (over) {
        return TSR_RAISE(TSR_ERR_STATE, "mpi has ended in this process and cannot start again");
    }
    if (up) {
        TSR_TRY(check(MPI_Query_thread(&level), "MPI_Query_thread"));
    } else {
        TSR_TRY(check(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread"));
        boot.started_here = true;
    }
    if (level < MPI_THREAD_MULTIPLE) {
        return TSR_RAISE(TSR_ERR_UNSUPPORTED,
                         "mpi gives thread level %d, MPI_THREAD_MULTIPLE (%d) is needed: %s", level,
                         MPI_THREAD_MULTIPLE,
                         up ? "the program called MPI_Init; MPI_Init_thread asks for a level"
                            : "this mpi was built without threads");
    }
    return TSR_OK;
}

/* Nodes are numbered in the order of their first ranks. */
static tsr_status find_nodes(tsri_boot_info *info)
{
    tsr_status status = TSR_OK;
    MPI_Comm node = MPI_COMM_NULL;
    int leader = info->rank;
    int *leaders = NULL;

    TSR_TRY(check(
        MPI_Comm_split_type(boot.world, MPI_COMM_TYPE_SHARED, info->rank, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type"));
    TSR_TRY_GOTO(status, check(MPI_Comm_rank(node, &info->local_rank), "MPI_Comm_rank"), free_node);
    TSR_TRY_GOTO(status, check(MPI_Comm_size(node, &info->local_size), "MPI_Comm_size"), free_node);
    TSR_TRY_GOTO(status, check(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast"), free_node);
    TSR_TRY_GOTO(status, tsri_alloc((size_t)info->size, sizeof *leaders, &leaders), free_node);
    TSR_TRY_GOTO(
        status,
        check(MPI_Allgather(&leader, 1, MPI_INT, leaders, 1, MPI_INT, boot.world), "MPI_Allgather"),
        free_leaders);
    info->node = 0;
    info->node_count = 0;
    for (int r = 0; r < info->size; r++) {
        if (leaders[r] == r) {
            info->node_count++;
            info->node += r < leader ? 1 : 0;
        }
    }

free_leaders:
    tsri_free(&leaders);
free_node:
    (void)MPI_Comm_free(&node);
    return status;
}

static int usable_cpus(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

tsr_status tsri_boot_init(int *argc, char ***argv, tsri_boot_info *out)
{
    tsri_boot_info info = {0};

    if (boot.ready) {
        *out = boot.info;
        return TSR_OK;
    }
    TSR_TRY(start_mpi(argc, argv));
    /* First who this is, for the message if the first exchange never ends. */
    TSR_TRY(check(MPI_Comm_rank(MPI_COMM_WORLD, &info.rank), "MPI_Comm_rank"));
    TSR_TRY(check(MPI_Comm_size(MPI_COMM_WORLD, &info.size), "MPI_Comm_size"));
    tsri_set_rank(info.rank, info.size);
    TSR_TRY(check(MPI_Comm_dup(MPI_COMM_WORLD, &boot.world), "MPI_Comm_dup"));
    TSR_TRY(
        check(MPI_Comm_set_errhandler(boot.world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    TSR_TRY(find_nodes(&info));
    if (gethostname(info.host, sizeof info.host - 1) != 0) {
        (void)strcpy(info.host, "unknown");
    }
    info.cpus = usable_cpus();
    boot.info = info;
    boot.ready = true;
    *out = info;
    return TSR_OK;
}

const tsri_boot_info *tsri_boot_get_info(void)
{
    return &boot.info;
}

static tsr_status need_ready(void)
{
    if (!boot.ready) {
        return TSR_RAISE(TSR_ERR_STATE, "tsri_boot_init has not run in this process");
    }
    return TSR_OK;
}

tsr_status tsri_boot_all_gather(const void *in, size_t bytes, void *out)
{
    int count = 0;

    TSR_TRY(need_ready());
    TSR_TRY(tsri_to_int((int64_t)bytes, "bytes of an exchange", &count));
    return check(MPI_Allgather(in, count, MPI_BYTE, out, count, MPI_BYTE, boot.world),
                 "MPI_Allgather");
}

tsr_status tsri_boot_broadcast(void *data, size_t bytes, int root)
{
    int count = 0;

    TSR_TRY(need_ready());
    TSR_TRY(tsri_to_int((int64_t)bytes, "bytes of a broadcast", &count));
    return check(MPI_Bcast(data, count, MPI_BYTE, root, boot.world), "MPI_Bcast");
}

tsr_status tsri_boot_barrier(void)
{
    TSR_TRY(need_ready());
    return check(MPI_Barrier(boot.world), "MPI_Barrier");
}

void tsri_boot_abort(int code)
{
    int up = 0;
    int over = 0;

    if (MPI_Initialized(&up) == MPI_SUCCESS && up && MPI_Finalized(&over) == MPI_SUCCESS && !over) {
        (void)MPI_Abort(MPI_COMM_WORLD, code);
    }
    _exit(code);
}

void tsri_boot_finalize(void)
{
    int over = 0;

    if (MPI_Finalized(&over) != MPI_SUCCESS || over) {
        return;
    }
    if (boot.ready) {
        (void)MPI_Comm_free(&boot.world);
        boot.ready = false;
    }
    if (boot.started_here) {
        boot.started_here = false;
        (void)MPI_Finalize();
    }
}

bool tsri_boot_launched(void)
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE", /* Open MPI's mpirun */
        "PMIX_RANK",            /* srun --mpi=pmix, prrte */
        "PMI_RANK",             /* MPICH's hydra, srun --mpi=pmi2 */
        "MPI_LOCALRANKID",      /* Intel MPI */
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (getenv(names[i]) != NULL) {
            return true;
        }
    }
    /* A batch script has SLURM_PROCID too; only a step of several tasks is a launch. */
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    return getenv("SLURM_PROCID") != NULL && tasks != NULL && strtol(tasks, NULL, 10) > 1;
}
