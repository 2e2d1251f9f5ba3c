/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file peers.c
 * Meeting the other ranks of the node: exchange process and descriptor numbers, map, agree.
 *
 * A peer's segment is opened through /proc/<pid>/fd/<fd>. In another pid namespace that number
 * means another process or none, and the nonce in the segment tells. Whatever the reason, one
 * failed mapping turns the whole node to MPI, so that all ranks take the same path.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the link of a segment's descriptor begins with. */
#define SEGMENT "/memfd:tessera-"

typedef struct hello {
    int32_t wants_mpi;
    int32_t node, pid, control_fd, heap_fd;
    uint64_t nonce, heap_bytes;
} hello;

static tsr_status make_segments(tsri_cpu_device *device, int local_ranks)
{
    void *control = MAP_FAILED;

    device->control_fd = memfd_create("tessera-control", MFD_CLOEXEC);
    if (device->control_fd < 0) {
        return TSR_RAISE(TSR_ERR_NOMEM, "memfd_create: %s", strerror(errno));
    }
    if (ftruncate(device->control_fd, (off_t)sizeof(tsri_cpu_control)) == 0) {
        control = mmap(NULL, sizeof(tsri_cpu_control), PROT_READ | PROT_WRITE, MAP_SHARED,
                       device->control_fd, 0);
    }
    if (control == MAP_FAILED) {
        return TSR_RAISE(TSR_ERR_NOMEM, "a control segment of %zu bytes: %s",
                         sizeof(tsri_cpu_control), strerror(errno));
    }
    device->control = control;
    if (getrandom(&device->control->nonce, sizeof device->control->nonce, 0) < 0) {
        device->control->nonce = (uint64_t)getpid() ^ (uint64_t)(tsri_now_s() * 1e9);
    }
    return tsri_cpu_heap_open(&device->heap, local_ranks);
}

static void *map_peer(int pid, int fd, size_t bytes)
{
    char path[64];
    char target[64];
    struct stat facts;
    void *base = MAP_FAILED;

    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    /* The number may mean another process here: open nothing but a segment. */
    ssize_t length = readlink(path, target, sizeof target);
    if (length < (ssize_t)strlen(SEGMENT) || strncmp(target, SEGMENT, strlen(SEGMENT)) != 0) {
        return NULL;
    }
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return NULL;
    }
    if (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && (size_t)facts.st_size >= bytes) {
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    }
    (void)close(file);
    return base == MAP_FAILED ? NULL : base;
}

static bool meet_peer(tsri_cpu_peer *peer, const hello *their)
{
    tsri_cpu_control *control = map_peer(their->pid, their->control_fd, sizeof *control);

    if (control == NULL) {
        return false;
    }
    peer->control = control;
    peer->pid = their->pid;
    peer->heap_bytes = their->heap_bytes;
    if (control->nonce != their->nonce) {
        errno = ESRCH;
        return false;
    }
    peer->heap = map_peer(their->pid, their->heap_fd, their->heap_bytes);
    peer->pidfd = (int)syscall(SYS_pidfd_open, their->pid, 0);
    return peer->heap != NULL;
}

static void leave_peer(tsri_cpu_peer *peer)
{
    if (peer->control != NULL) {
        (void)munmap(peer->control, sizeof *peer->control);
    }
    if (peer->heap != NULL) {
        (void)munmap(peer->heap, peer->heap_bytes);
    }
    if (peer->pidfd >= 0) {
        (void)close(peer->pidfd);
    }
    peer->control = NULL;
    peer->heap = NULL;
    peer->pidfd = -1;
}

static void leave_peers(tsri_cpu_device *device)
{
    for (int r = 0; device->peer != NULL && r < device->world; r++) {
        if (r != device->rank) {
            leave_peer(&device->peer[r]);
        }
    }
}

/* Map the peers of this node; every rank of the world learns which nodes succeeded. */
static tsr_status meet(tsri_cpu_device *device, const hello *all)
{
    int32_t reached = 1;
    int32_t *everywhere = NULL;
    const hello *mine = &all[device->rank];

    tsr_status status = tsri_alloc((size_t)device->world, sizeof *everywhere, &everywhere);
    for (int r = 0; r < device->world && reached && status == TSR_OK; r++) {
        if (r == device->rank || all[r].node != mine->node) {
            continue;
        }
        if (mine->wants_mpi) {
            reached = 0;
        } else if (!meet_peer(&device->peer[r], &all[r])) {
            tsri_log(TSRI_LOG_INFO, "memory of rank %d cannot be mapped (%s): collectives by mpi",
                     r, strerror(errno));
            reached = 0;
        }
    }
    TSR_TRY_GOTO(status,
                 tsri_team_all_gather(device->team, "mapping the memory of the host's ranks",
                                      status, &reached, sizeof reached, everywhere),
                 out);
    for (int r = 0; r < device->world && everywhere != NULL; r++) {
        device->peer[r].node = all[r].node;
        for (int q = 0; q < device->world; q++) {
            if (all[q].node == all[r].node && !everywhere[q]) {
                device->peer[r].node = -1;
            }
        }
    }
    device->shared = device->peer[device->rank].node >= 0;
    if (!device->shared) {
        leave_peers(device);
    }

out:
    tsri_free(&everywhere);
    return status;
}

static tsr_status transport(const char *asked, int32_t *wants_mpi_out)
{
    const char *text = asked != NULL ? asked : getenv("TSR_CPU_TRANSPORT");

    *wants_mpi_out = 0;
    if (text == NULL || *text == '\0' || strcmp(text, "auto") == 0) {
        return TSR_OK;
    }
    if (strcmp(text, "mpi") != 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s is \"%s\", not auto or mpi",
                         asked != NULL ? "transport" : "TSR_CPU_TRANSPORT", text);
    }
    *wants_mpi_out = 1;
    return TSR_OK;
}

static void fill_self(tsri_cpu_device *device)
{
    tsri_cpu_peer *self = &device->peer[device->rank];

    self->control = device->control;
    self->heap = device->heap.base;
    self->heap_bytes = device->heap.bytes;
    self->pid = getpid();
}

static tsr_status exchange(tsri_cpu_device *device, const char *asked)
{
    hello *all = NULL;
    hello mine = {.node = tsri_team_node(device->team, device->rank), .pid = getpid()};

    tsr_status status = transport(asked, &mine.wants_mpi);
    if (status == TSR_OK) {
        status = make_segments(device, tsri_boot_get_info()->local_size);
    }
    if (status == TSR_OK) {
        status = tsri_alloc((size_t)device->world, sizeof *all, &all);
    }
    mine.control_fd = device->control_fd;
    mine.heap_fd = device->heap.fd;
    mine.heap_bytes = device->heap.bytes;
    mine.nonce = device->control == NULL ? 0 : device->control->nonce;
    TSR_TRY_GOTO(
        status,
        tsri_team_all_gather(device->team, "opening a device", status, &mine, sizeof mine, all),
        free_all);
    fill_self(device);
    if (all != NULL) {
        TSR_TRY_GOTO(status, meet(device, all), free_all);
    }

free_all:
    tsri_free(&all);
    return status;
}

tsr_status tsri_cpu_peers_open(tsri_cpu_device *device, const char *asked)
{
    int32_t wants_mpi = 0;

    for (int r = 0; r < device->world; r++) {
        device->peer[r].pidfd = -1;
    }
    if (device->world > 1) {
        return exchange(device, asked);
    }
    TSR_TRY(transport(asked, &wants_mpi));
    TSR_TRY(make_segments(device, 1));
    fill_self(device);
    device->shared = true;
    return TSR_OK;
}

void tsri_cpu_peers_close(tsri_cpu_device *device)
{
    leave_peers(device);
    if (device->control != NULL) {
        atomic_store(&device->control->closed, 1);
        (void)munmap(device->control, sizeof *device->control);
    }
    if (device->control_fd >= 0) {
        (void)close(device->control_fd);
    }
    tsri_cpu_heap_close(&device->heap);
}

bool tsri_cpu_peer_alive(const tsri_cpu_peer *peer)
{
    if (peer->pidfd < 0) {
        return kill(peer->pid, 0) == 0 || errno != ESRCH;
    }
    /* Readable from the moment the process ended, before its parent has taken notice. */
    struct pollfd end = {.fd = peer->pidfd, .events = POLLIN};
    return poll(&end, 1, 0) <= 0;
}
