/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file device.c
 * The cpu backend's table, and opening a device: this process's share of the machine.
 */
#include "backend/cpu/cpu_priv.h"

#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_S 600.0

static int cores(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}

/* Of the whole host's ranks together: before this one was bound to a share. */
static int cores_of_ranks(void)
{
    const int joined = tsri_boot_get_info()->cpus;

    return joined > 0 ? joined : cores();
}

int tsri_cpu_default_threads(int local_ranks)
{
    const int share = cores_of_ranks() / local_ranks;
    const int threads = share < cores() ? share : cores();

    return threads > 0 ? threads : 1;
}

static tsr_status pick_kernels(const tsri_kernel_table **out)
{
    const char *name = getenv("TSR_KERNELS");
    tsri_isa isa;

    TSR_TRY(tsri_isa_choose(getenv("TSR_CPU_ISA"), &isa));
    if (name == NULL || *name == '\0' || strcmp(name, "cpu") == 0) {
        *out = tsrk_table_cpu();
    } else if (strcmp(name, "ref") == 0) {
        *out = tsrk_table_ref();
    } else {
        return TSR_RAISE(TSR_ERR_INVALID, "TSR_KERNELS is \"%s\", not cpu or ref", name);
    }
    return TSR_OK;
}

static tsri_team *team_of(const tsri_device_options *options)
{
    return options->team != NULL ? options->team : tsri_boot_job();
}

static tsr_status check_options(const tsri_device_options *options)
{
    if (options->world_size < 1 || options->world_rank < 0 ||
        options->world_rank >= options->world_size || options->threads < 0 ||
        options->timeout_s < 0) {
        return TSR_RAISE(TSR_ERR_INVALID, "rank %d of %d, %d threads, timeout %g s",
                         options->world_rank, options->world_size, options->threads,
                         options->timeout_s);
    }
    if (options->device != NULL) {
        return TSR_RAISE(TSR_ERR_INVALID,
                         "backend cpu has one device, this process's share of the host, found a "
                         "choice of device \"%s\"",
                         options->device);
    }
    const tsri_team *team = team_of(options);
    if (options->world_size > 1 && (team == NULL || tsri_team_size(team) != options->world_size ||
                                    tsri_team_rank(team) != options->world_rank)) {
        return TSR_RAISE(TSR_ERR_STATE, "rank %d of %d, but this process is rank %d of %d",
                         options->world_rank, options->world_size,
                         team == NULL ? 0 : tsri_team_rank(team),
                         team == NULL ? 1 : tsri_team_size(team));
    }
    return TSR_OK;
}

static void destroy(tsri_cpu_device *device)
{
    tsri_cpu_progress_stop(device);
    tsri_cpu_peers_close(device);
    (void)pthread_mutex_destroy(&device->lock);
    tsri_free(&device->peer);
    tsri_free(&device);
}

static tsr_status device_open(const tsri_device_options *options, tsr_device **out)
{
    tsri_cpu_device *device = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(check_options(options));
    int local = options->world_size > 1 ? tsri_boot_get_info()->local_size : 1;
    TSR_TRY(tsri_alloc(1, sizeof *device, &device));
    device->head.backend = tsri_cpu_backend();
    device->head.threads =
        options->threads > 0 ? options->threads : tsri_cpu_default_threads(local);
    device->head.timeout_s = options->timeout_s > 0 ? options->timeout_s : DEFAULT_TIMEOUT_S;
    device->rank = options->world_rank;
    device->team = team_of(options);
    device->world = options->world_size;
    device->spin_s = local > cores_of_ranks() ? 0 : TSRI_CPU_SPIN_S;
    device->cache_bytes = tsri_cpu_cache_share(local);
    device->mpi_bytes = TSRI_CPU_MPI_BYTES;
    device->control_fd = -1;
    device->heap.fd = -1;
    (void)pthread_mutex_init(&device->lock, NULL);
    TSR_TRY_GOTO(status, pick_kernels(&device->head.kernels), fail);
    TSR_TRY_GOTO(
        status, tsri_alloc((size_t)options->world_size, sizeof *device->peer, &device->peer), fail);
    TSR_TRY_GOTO(status, tsri_cpu_peers_open(device, options->transport), fail);
    *out = &device->head;
    return TSR_OK;

fail:
    destroy(device);
    return status;
}

static void device_close(tsr_device *device)
{
    destroy((tsri_cpu_device *)device);
}

static double exposed_s(const tsr_device *device)
{
    return ((const tsri_cpu_device *)device)->exposed_s;
}

#define CPU_CAPS (TSR_CAP_EXECUTES | TSR_CAP_ASYNC | TSR_CAP_HOST | TSR_CAP_WIDE_SUMS)

#define CPU_TABLE(capability_bits) \
    { \
        .abi = TSR_BACKEND_ABI, .caps = (capability_bits), .name = "cpu", .kernels = pick_kernels, \
        .device_open = device_open, .device_close = device_close, .alloc = tsri_cpu_alloc, \
        .release = tsri_cpu_release, .stream_open = tsri_cpu_stream_open, \
        .stream_close = tsri_cpu_stream_close, .stream_wait = tsri_cpu_stream_wait, \
        .stream_sync = tsri_cpu_stream_sync, .poll = tsri_cpu_poll, .abort = tsri_cpu_abort, \
        .event_record = tsri_cpu_event_record, .event_done = tsri_cpu_event_done, \
        .event_sync = tsri_cpu_event_sync, .event_elapsed = tsri_cpu_event_elapsed, \
        .exposed_s = exposed_s, .launch = tsri_cpu_launch, .write = tsri_cpu_write, \
        .read = tsri_cpu_read, .copy = tsri_cpu_copy_buffer, .group_open = tsri_cpu_group_open, \
        .group_close = tsri_cpu_group_close, .collective = tsri_cpu_collective, \
    }

const tsr_backend tsri_backend_cpu = CPU_TABLE(CPU_CAPS);
static const tsr_backend with_bf16 = CPU_TABLE(CPU_CAPS | TSR_CAP_BF16);

const tsr_backend *tsri_cpu_backend(void)
{
    return tsri_isa_has_bf16() ? &with_bf16 : &tsri_backend_cpu;
}
