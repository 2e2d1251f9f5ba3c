/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file boot.c
 * Process start by MPI: one initialisation, and the job as a team.
 *
 * Everything here talks over duplicates of communicators, so a program's own messages never meet
 * ours. Whoever started MPI ends it: a program that called MPI_Init before us keeps it after us.
 */
#include "boot_priv.h"

#include "base/base.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* MPI is one per process and cannot be started twice, hence the one record of it. */
static tsri_boot boot;

tsri_boot *tsri_boot_self(void)
{
    return &boot;
}

tsr_status tsri_boot_check(int code, const char *what)
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

    TSR_TRY(tsri_boot_check(MPI_Initialized(&up), "MPI_Initialized"));
    TSR_TRY(tsri_boot_check(MPI_Finalized(&over), "MPI_Finalized"));
    if (over) {
        return TSR_RAISE(TSR_ERR_STATE, "mpi has ended in this process and cannot start again");
    }
    if (up) {
        TSR_TRY(tsri_boot_check(MPI_Query_thread(&level), "MPI_Query_thread"));
    } else {
        TSR_TRY(tsri_boot_check(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level),
                                "MPI_Init_thread"));
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

static int usable_cpus(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

/* The job's ranks, in the order of their numbers. */
static tsr_status make_comm(const tsri_boot_options *options, bool *renumbered_out, MPI_Comm *out)
{
    const MPI_Comm *of = options->mpi_comm;
    tsr_status status = TSR_OK;
    MPI_Comm comm = MPI_COMM_NULL;

    TSR_TRY(
        tsri_boot_check(MPI_Comm_dup(of != NULL ? *of : MPI_COMM_WORLD, &comm), "MPI_Comm_dup"));
    if (of == NULL && !options->launcher_order) {
        TSR_TRY_GOTO(status, tsri_boot_number(&comm, renumbered_out), free_comm);
    }
    *out = comm;
    return TSR_OK;

free_comm:
    (void)MPI_Comm_free(&comm);
    return status;
}

static tsr_status join(int *argc, char ***argv, const tsri_boot_options *options,
                       tsri_boot_info *info)
{
    MPI_Comm comm = MPI_COMM_NULL;

    TSR_TRY(start_mpi(argc, argv));
    TSR_TRY(make_comm(options, &info->renumbered, &comm));
    TSR_TRY(tsri_boot_check(MPI_Comm_rank(comm, &info->rank), "MPI_Comm_rank"));
    TSR_TRY(tsri_boot_check(MPI_Comm_size(comm, &info->size), "MPI_Comm_size"));
    tsri_set_rank(info->rank, info->size);
    TSR_TRY(tsri_team_create(comm, &boot.job));
    TSR_TRY(tsri_boot_check(MPI_Comm_rank(MPI_COMM_WORLD, &info->launcher_rank), "MPI_Comm_rank"));
    info->local_rank = boot.job->local_rank;
    info->local_size = boot.job->local_size;
    info->node = boot.job->places[info->rank].node;
    info->node_count = boot.job->node_count;
    (void)memcpy(info->host, boot.job->places[info->rank].host, sizeof info->host);
    info->cpus = usable_cpus();
    return TSR_OK;
}

tsr_status tsri_boot_init(int *argc, char ***argv, const tsri_boot_options *options,
                          tsri_boot_info *out)
{
    static const tsri_boot_options defaults = {0};
    const tsri_boot_options *opt = options != NULL ? options : &defaults;
    tsri_boot_info info = {0};
    tsr_status status = TSR_OK;
    int rank = 0;
    int size = 1;

    boot.limit_s = opt->limit_s > 0.0 ? opt->limit_s : TSRI_TIMEOUT_S;
    tsri_boot_watch_limit(boot.watch, boot.limit_s);
    if (boot.users > 0) {
        boot.users++;
        *out = boot.info;
        return TSR_OK;
    }
    /* First who this is, for the message if MPI's start never ends. */
    tsri_boot_told(&rank, &size);
    tsri_set_rank(rank, size);
    if (tsri_boot_launched()) {
        TSR_TRY(tsri_boot_watch_start(boot.limit_s, &boot.watch));
    }
    tsri_boot_guard("the start of MPI (do messages reach the other hosts?)");
    status = join(argc, argv, opt, &info);
    tsri_boot_guard_done();
    if (status != TSR_OK) {
        tsri_boot_watch_stop(&boot.watch);
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    boot.info = info;
    boot.users = 1;
    *out = info;
    return TSR_OK;
}

const tsri_boot_info *tsri_boot_get_info(void)
{
    return &boot.info;
}

tsri_team *tsri_boot_job(void)
{
    return boot.job;
}

void tsri_boot_guard(const char *what)
{
    tsri_boot_watch_arm(boot.watch, what, 0.0);
}

void tsri_boot_guard_done(void)
{
    tsri_boot_watch_disarm(boot.watch);
}

tsr_status tsri_boot_look_add(void (*look)(void *context), void *context)
{
    return tsri_boot_watch_add(boot.watch, look, context);
}

void tsri_boot_look_remove(void (*look)(void *context), void *context)
{
    tsri_boot_watch_remove(boot.watch, look, context);
}

static void *give_up(void *code)
{
    const int *exit_code = code;

    (void)sleep(2);
    _exit(*exit_code);
}

void tsri_boot_abort(int code)
{
    static int exit_code; /* outlives this call */
    pthread_t thread;
    int up = 0;
    int over = 0;

    exit_code = code;
    if (MPI_Initialized(&up) == MPI_SUCCESS && up && MPI_Finalized(&over) == MPI_SUCCESS && !over) {
        /* The launcher may hang or be stopped, and MPI waits for it. */
        if (pthread_create(&thread, NULL, give_up, &exit_code) == 0) {
            (void)MPI_Abort(MPI_COMM_WORLD, code);
        }
    }
    _exit(code);
}

void tsri_boot_finalize(void)
{
    if (boot.users == 0 || --boot.users > 0) {
        return;
    }
    boot.users++; /* still a member, until all leave */
    tsri_boot_take_leave(tsri_error_untold());
    boot.users--;
    tsri_boot_guard("leaving the job");
    tsri_team_close(&boot.job);
    if (boot.started_here && !boot.lost) {
        (void)MPI_Finalize();
    }
    tsri_boot_guard_done();
    boot.started_here = false;
    tsri_boot_watch_stop(&boot.watch);
}

static const char *first_set(const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *value = getenv(names[i]);

        if (value != NULL) {
            return value;
        }
    }
    return NULL;
}

void tsri_boot_told(int *rank_out, int *size_out)
{
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    const char *rank = first_set(ranks, sizeof ranks / sizeof ranks[0]);
    const char *size = first_set(sizes, sizeof sizes / sizeof sizes[0]);

    *rank_out = rank != NULL ? (int)strtol(rank, NULL, 10) : 0;
    *size_out = size != NULL ? (int)strtol(size, NULL, 10) : 1;
    *size_out = *size_out > *rank_out ? *size_out : *rank_out + 1;
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
