/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file team.c
 * Teams: a communicator of their own, hosts by shared memory, and room for exchanges.
 */
#include "boot_priv.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What every rank keeps for exchanges. */
static tsr_status make_room(tsri_team *team)
{
    const size_t size = (size_t)team->size;

    TSR_TRY(tsri_alloc(size, sizeof *team->id, &team->id));
    TSR_TRY(tsri_alloc(size, sizeof *team->places, &team->places));
    TSR_TRY(tsri_alloc(size, sizeof *team->came, &team->came));
    TSR_TRY(tsri_alloc(2 * size + 1, sizeof(MPI_Request), &team->requests));
    for (size_t i = 0; i < 2 * size + 1; i++) {
        team->requests[i] = MPI_REQUEST_NULL;
    }
    TSR_TRY(tsri_alloc(team->rank == 0 ? size : 1, sizeof *team->letters, &team->letters));
    return TSR_OK;
}

static void destroy(tsri_team *team)
{
    tsri_free(&team->id);
    tsri_free(&team->places);
    tsri_free(&team->came);
    tsri_free(&team->requests);
    tsri_free(&team->letters);
    tsri_free(&team);
}

/* Numbers in the job; of ranks that are not in it, and while there is none, those in the team. */
static tsr_status find_ids(tsri_team *team)
{
    const tsri_team *job = tsri_boot_job();
    tsr_status status = TSR_OK;
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group mine = MPI_GROUP_NULL;
    int *ranks = NULL;

    TSR_TRY(tsri_alloc((size_t)team->size, sizeof *ranks, &ranks));
    for (int i = 0; i < team->size; i++) {
        ranks[i] = i;
        team->id[i] = i;
    }
    if (job == NULL) {
        goto free_ranks;
    }
    TSR_TRY_GOTO(status, tsri_boot_check(MPI_Comm_group(job->comm, &all), "MPI_Comm_group"),
                 free_ranks);
    TSR_TRY_GOTO(status, tsri_boot_check(MPI_Comm_group(team->comm, &mine), "MPI_Comm_group"),
                 free_all);
    TSR_TRY_GOTO(status,
                 tsri_boot_check(MPI_Group_translate_ranks(mine, team->size, ranks, all, team->id),
                                 "MPI_Group_translate_ranks"),
                 free_mine);
    for (int i = 0; i < team->size; i++) {
        team->id[i] = team->id[i] == MPI_UNDEFINED ? i : team->id[i];
    }

free_mine:
    (void)MPI_Group_free(&mine);
free_all:
    (void)MPI_Group_free(&all);
free_ranks:
    tsri_free(&ranks);
    return status;
}

/* First ranks of hosts, by rank; nodes are numbered in their order. */
static tsr_status find_nodes(tsri_team *team, int *leaders)
{
    tsr_status status = TSR_OK;
    MPI_Comm node = MPI_COMM_NULL;
    int leader = team->rank;

    TSR_TRY(tsri_boot_check(
        MPI_Comm_split_type(team->comm, MPI_COMM_TYPE_SHARED, team->rank, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type"));
    TSR_TRY_GOTO(status, tsri_boot_check(MPI_Comm_rank(node, &team->local_rank), "MPI_Comm_rank"),
                 free_node);
    TSR_TRY_GOTO(status, tsri_boot_check(MPI_Comm_size(node, &team->local_size), "MPI_Comm_size"),
                 free_node);
    TSR_TRY_GOTO(status, tsri_boot_check(MPI_Bcast(&leader, 1, MPI_INT, 0, node), "MPI_Bcast"),
                 free_node);
    TSR_TRY_GOTO(
        status,
        tsri_boot_check(MPI_Allgather(&leader, 1, MPI_INT, leaders, 1, MPI_INT, team->comm),
                        "MPI_Allgather"),
        free_node);

free_node:
    (void)MPI_Comm_free(&node);
    return status;
}

/* Names and numbers of hosts: gathered here, where the guard stands, as all that follows names
 * ranks by them. */
static tsr_status find_places(tsri_team *team)
{
    tsri_boot_place mine = {.node = 0};
    int *leaders = NULL;
    tsr_status status = TSR_OK;

    if (gethostname(mine.host, sizeof mine.host - 1) != 0) {
        (void)strcpy(mine.host, "unknown");
    }
    TSR_TRY(tsri_alloc((size_t)team->size, sizeof *leaders, &leaders));
    TSR_TRY_GOTO(status, find_nodes(team, leaders), free_leaders);
    TSR_TRY_GOTO(status,
                 tsri_boot_check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, team->places,
                                               sizeof mine, MPI_BYTE, team->comm),
                                 "MPI_Allgather"),
                 free_leaders);
    for (int r = 0; r < team->size; r++) {
        team->places[r].node = leaders[r] == r ? team->node_count++ : team->places[leaders[r]].node;
    }

free_leaders:
    tsri_free(&leaders);
    return status;
}

static tsr_status fill(tsri_team *team)
{
    TSR_TRY(tsri_boot_check(MPI_Comm_set_errhandler(team->comm, MPI_ERRORS_RETURN),
                            "MPI_Comm_set_errhandler"));
    TSR_TRY(tsri_boot_check(MPI_Comm_rank(team->comm, &team->rank), "MPI_Comm_rank"));
    TSR_TRY(tsri_boot_check(MPI_Comm_size(team->comm, &team->size), "MPI_Comm_size"));
    TSR_TRY(make_room(team));
    TSR_TRY(find_ids(team));
    TSR_TRY(find_places(team));
    return TSR_OK;
}

tsr_status tsri_team_create(MPI_Comm comm, tsri_team **out)
{
    tsr_status status = TSR_OK;
    tsri_team *team = NULL;

    TSR_TRY_GOTO(status, tsri_alloc(1, sizeof *team, &team), free_comm);
    team->comm = comm;
    TSR_TRY_GOTO(status, fill(team), free_team);
    *out = team;
    return TSR_OK;

free_team:
    destroy(team);
free_comm:
    (void)MPI_Comm_free(&comm);
    return status;
}

static tsr_status need_job(void)
{
    if (tsri_boot_self()->users == 0) {
        return TSR_RAISE(TSR_ERR_STATE, "tsri_boot_init has not run in this process");
    }
    return TSR_OK;
}

/* Calls of the same ranks are told apart by MPI. */
enum {
    OPEN_TAG = 77
};

static int by_number(const void *a, const void *b)
{
    const int *x = a;
    const int *y = b;

    return (*x > *y) - (*x < *y);
}

/* The members in ascending order, whatever order this rank names them in: so ranks that name
 * different orders still meet. */
static tsr_status create_ascending(const tsri_team *of, const int *ranks, int count, MPI_Comm *out)
{
    tsr_status status = TSR_OK;
    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;
    int *sorted = NULL;

    TSR_TRY(tsri_alloc((size_t)count, sizeof *sorted, &sorted));
    (void)memcpy(sorted, ranks, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_number);
    TSR_TRY_GOTO(status, tsri_boot_check(MPI_Comm_group(of->comm, &all), "MPI_Comm_group"),
                 free_sorted);
    TSR_TRY_GOTO(status,
                 tsri_boot_check(MPI_Group_incl(all, count, sorted, &members), "MPI_Group_incl"),
                 free_all);
    TSR_TRY_GOTO(status,
                 tsri_boot_check(MPI_Comm_create_group(of->comm, members, OPEN_TAG, out),
                                 "MPI_Comm_create_group"),
                 free_members);

free_members:
    (void)MPI_Group_free(&members);
free_all:
    (void)MPI_Group_free(&all);
free_sorted:
    tsri_free(&sorted);
    return status;
}

static tsr_status create_comm(const tsri_team *of, const int *ranks, int count, MPI_Comm *out)
{
    MPI_Comm ascending = MPI_COMM_NULL;
    tsr_status status = TSR_OK;
    int place = 0;

    while (ranks[place] != of->rank) {
        place++;
    }
    TSR_TRY(create_ascending(of, ranks, count, &ascending));
    status = tsri_boot_check(MPI_Comm_split(ascending, 0, place, out), "MPI_Comm_split");
    (void)MPI_Comm_free(&ascending);
    return status;
}

tsr_status tsri_team_open(tsri_team *of, const int *ranks, int count, tsri_team **out)
{
    MPI_Comm comm = MPI_COMM_NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(need_job());
    tsri_boot_guard("opening a team of ranks");
    status = create_comm(of, ranks, count, &comm);
    if (status == TSR_OK) {
        status = tsri_team_create(comm, out);
    }
    tsri_boot_guard_done();
    return status == TSR_OK ? TSR_OK : tsr_error_pass(status, __FILE__, __LINE__, __func__);
}

tsr_status tsri_team_adopt(const void *mpi_comm, tsri_team **out)
{
    const MPI_Comm *of = mpi_comm;
    MPI_Comm comm = MPI_COMM_NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(need_job());
    tsri_boot_guard("opening a team of a communicator's ranks");
    status = tsri_boot_check(MPI_Comm_dup(*of, &comm), "MPI_Comm_dup");
    if (status == TSR_OK) {
        status = tsri_team_create(comm, out);
    }
    tsri_boot_guard_done();
    return status == TSR_OK ? TSR_OK : tsr_error_pass(status, __FILE__, __LINE__, __func__);
}

void tsri_team_close(tsri_team **team)
{
    int over = 0;
    tsri_team *old = *team;

    *team = NULL;
    if (old == NULL) {
        return;
    }
    if (old->lost) {
        return; /* messages that do not end may still use its memory */
    }
    if (MPI_Finalized(&over) == MPI_SUCCESS && !over) {
        tsri_boot_guard("closing a team of ranks");
        (void)MPI_Comm_free(&old->comm);
        tsri_boot_guard_done();
    }
    destroy(old);
}

int tsri_team_rank(const tsri_team *team)
{
    return team->rank;
}

int tsri_team_size(const tsri_team *team)
{
    return team->size;
}

static bool has(const tsri_team *team, int rank)
{
    return team != NULL && rank >= 0 && rank < team->size;
}

const char *tsri_team_host(const tsri_team *team, int rank)
{
    return has(team, rank) ? team->places[rank].host : "?";
}

int tsri_team_node(const tsri_team *team, int rank)
{
    return has(team, rank) ? team->places[rank].node : -1;
}

int tsri_team_id(const tsri_team *team, int rank)
{
    return has(team, rank) ? team->id[rank] : rank;
}

const void *tsri_team_mpi(const tsri_team *team)
{
    return &team->comm;
}
