/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file numbers.c
 * Numbers of a job's ranks: host by host, and in a host by where they are bound.
 *
 * A mesh is row-major over numbers, so neighbours in number are neighbours on the fastest axes.
 * Launchers may deal ranks round-robin over hosts, or bind them to processors in any order; then
 * tensor parallelism would go over the network. So numbers follow from the machine instead.
 */
#include "boot_priv.h"

#include "base/base.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct seat {
    int host;      /* the launcher's number of the host's first rank */
    int numa, cpu; /* the first that the rank is bound to; 0 where it is not bound */
    int rank;      /* the launcher's */
} seat;

static int numa_of(int cpu)
{
    char path[64];
    const struct dirent *entry = NULL;
    int numa = 0;

    (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d", cpu);
    DIR *folder = opendir(path);
    /* NOLINTNEXTLINE(concurrency-mt-unsafe): a folder of its own */
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (sscanf(entry->d_name, "node%d", &numa) == 1) { // NOLINT(cert-err34-c): a kernel's name
            break;
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return numa;
}

static void find_binding(seat *out)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0 ||
        CPU_COUNT(&set) >= (int)sysconf(_SC_NPROCESSORS_ONLN)) {
        return;
    }
    while (out->cpu < CPU_SETSIZE - 1 && !CPU_ISSET((size_t)out->cpu, &set)) {
        out->cpu++;
    }
    out->numa = numa_of(out->cpu);
}

static tsr_status find_host(MPI_Comm comm, seat *out)
{
    MPI_Comm node = MPI_COMM_NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_boot_check(MPI_Comm_rank(comm, &out->rank), "MPI_Comm_rank"));
    TSR_TRY(tsri_boot_check(
        MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, out->rank, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type"));
    out->host = out->rank;
    status = tsri_boot_check(MPI_Bcast(&out->host, 1, MPI_INT, 0, node), "MPI_Bcast");
    (void)MPI_Comm_free(&node);
    return status;
}

static int nearer(const void *a, const void *b)
{
    const seat *x = a;
    const seat *y = b;
    const int difference[] = {x->host - y->host, x->numa - y->numa, x->cpu - y->cpu,
                              x->rank - y->rank};
    int at = 0;

    while (at < 3 && difference[at] == 0) {
        at++;
    }
    return difference[at];
}

/* This rank's place in the order, or -1 where that is the launcher's. */
static int place_of(int rank, seat *all, int size)
{
    bool changed = false;
    int place = 0;

    qsort(all, (size_t)size, sizeof *all, nearer);
    for (int i = 0; i < size; i++) {
        changed = changed || all[i].rank != i;
        place = all[i].rank == rank ? i : place;
    }
    return changed ? place : -1;
}

static tsr_status renumber(MPI_Comm *comm, int place)
{
    MPI_Comm ordered = MPI_COMM_NULL;

    TSR_TRY(tsri_boot_check(MPI_Comm_split(*comm, 0, place, &ordered), "MPI_Comm_split"));
    (void)MPI_Comm_free(comm);
    *comm = ordered;
    return TSR_OK;
}

tsr_status tsri_boot_number(MPI_Comm *comm, bool *changed_out)
{
    tsr_status status = TSR_OK;
    seat mine = {0};
    seat *all = NULL;
    int size = 0;
    int place = -1;

    TSR_TRY(tsri_boot_check(MPI_Comm_size(*comm, &size), "MPI_Comm_size"));
    find_binding(&mine);
    TSR_TRY(find_host(*comm, &mine));
    TSR_TRY(tsri_alloc((size_t)size, sizeof *all, &all));
    TSR_TRY_GOTO(status,
                 tsri_boot_check(
                     MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, *comm),
                     "MPI_Allgather"),
                 free_all);
    place = place_of(mine.rank, all, size);
    *changed_out = place >= 0;
    if (place >= 0) {
        TSR_TRY_GOTO(status, renumber(comm, place), free_all);
    }

free_all:
    tsri_free(&all);
    return status;
}
