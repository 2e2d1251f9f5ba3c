/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file heap.c
 * Buffers as page ranges of one sparse memfd segment.
 *
 * The segment is larger than the machine's memory and holds pages only where somebody wrote, so
 * its address range is never short; pages of a released buffer go back to the system at once, and
 * with them zeros come back. One segment rather than one per buffer: peers map it once, descriptors
 * are offsets, and thousands of parameters do not need thousands of file descriptors.
 *
 * The free extents are kept sorted and never touch each other, hence at most one more than live
 * buffers (two per alignment gap): room for them is made when a buffer is taken, so giving back
 * cannot fail.
 */
#include "backend/cpu/cpu_priv.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define LEAST     ((size_t)1 << 30)
/* All heaps that one process maps, within the 128 TiB that a process can address. */
#define MOST ((size_t)64 << 40)

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t round_up(size_t value, size_t step)
{
    return (value + step - 1) / step * step;
}

static size_t physical_bytes(void)
{
    return (size_t)sysconf(_SC_PHYS_PAGES) * page_bytes();
}

static size_t wanted_bytes(int local_ranks)
{
    struct rlimit limit;
    size_t bytes = 2 * physical_bytes();

    if (bytes > MOST / (size_t)local_ranks) {
        bytes = MOST / (size_t)local_ranks;
    }
    /* Growing a file past this limit would raise SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
        bytes = limit.rlim_cur;
    }
    return bytes / HUGE_PAGE * HUGE_PAGE;
}

tsr_status tsri_cpu_heap_open(tsri_cpu_heap *heap, int local_ranks)
{
    tsr_status status = TSR_OK;
    void *base = MAP_FAILED;
    size_t bytes = wanted_bytes(local_ranks);

    heap->fd = memfd_create("tessera-heap", MFD_CLOEXEC);
    if (heap->fd < 0) {
        return TSR_RAISE(TSR_ERR_NOMEM, "memfd_create: %s", strerror(errno));
    }
    if (ftruncate(heap->fd, (off_t)bytes) != 0) {
        status =
            TSR_RAISE(TSR_ERR_NOMEM, "a heap segment of %zu bytes: %s", bytes, strerror(errno));
        goto close_fd;
    }
    /* A limit on address space (ulimit -v) leaves room for less. */
    for (; bytes >= LEAST; bytes = bytes / 2 / HUGE_PAGE * HUGE_PAGE) {
        base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, heap->fd, 0);
        if (base != MAP_FAILED) {
            break;
        }
    }
    if (base == MAP_FAILED) {
        status = TSR_RAISE(TSR_ERR_NOMEM, "no address space for a heap of %zu bytes: %s", LEAST,
                           strerror(errno));
        goto close_fd;
    }
    TSR_TRY_GOTO(status, tsri_grow(&heap->free, &heap->free_capacity, 4, sizeof *heap->free),
                 unmap);
    heap->base = base;
    heap->bytes = bytes;
    heap->free[0] = (tsri_cpu_extent){0, bytes};
    heap->free_count = 1;
    return TSR_OK;

unmap:
    (void)munmap(base, bytes);
close_fd:
    (void)close(heap->fd);
    heap->fd = -1;
    return status;
}

void tsri_cpu_heap_close(tsri_cpu_heap *heap)
{
    if (heap->base != NULL) {
        (void)munmap(heap->base, heap->bytes);
        (void)close(heap->fd);
    }
    tsri_free(&heap->free);
    *heap = (tsri_cpu_heap){.fd = -1};
}

static void insert_extent(tsri_cpu_heap *heap, int at, tsri_cpu_extent extent)
{
    memmove(&heap->free[at + 1], &heap->free[at],
            (size_t)(heap->free_count - at) * sizeof *heap->free);
    heap->free[at] = extent;
    heap->free_count++;
}

static void remove_extent(tsri_cpu_heap *heap, int at)
{
    heap->free_count--;
    memmove(&heap->free[at], &heap->free[at + 1],
            (size_t)(heap->free_count - at) * sizeof *heap->free);
}

/* Cut [begin, begin + bytes) out of extent at. */
static void cut(tsri_cpu_heap *heap, int at, size_t begin, size_t bytes)
{
    tsri_cpu_extent whole = heap->free[at];
    size_t end = begin + bytes;
    tsri_cpu_extent before = {whole.offset, begin - whole.offset};
    tsri_cpu_extent after = {end, whole.offset + whole.bytes - end};

    remove_extent(heap, at);
    if (after.bytes > 0) {
        insert_extent(heap, at, after);
    }
    if (before.bytes > 0) {
        insert_extent(heap, at, before);
    }
}

tsr_status tsri_cpu_heap_take(tsri_cpu_heap *heap, size_t bytes, void **out)
{
    size_t step = bytes >= HUGE_PAGE ? HUGE_PAGE : page_bytes();

    if (bytes > heap->bytes || heap->live_bytes + bytes > physical_bytes()) {
        return TSR_RAISE(TSR_ERR_NOMEM,
                         "a buffer of %zu bytes beside %zu in use: the machine has %zu, the heap's "
                         "range %zu",
                         bytes, heap->live_bytes, physical_bytes(), heap->bytes);
    }
    /* Aligned buffers can leave a gap before and after them. */
    TSR_TRY(tsri_grow(&heap->free, &heap->free_capacity, (2 * heap->live) + 6, sizeof *heap->free));
    bytes = round_up(bytes == 0 ? 1 : bytes, page_bytes());
    for (int i = 0; i < heap->free_count; i++) {
        size_t begin = round_up(heap->free[i].offset, step);
        if (begin + bytes > heap->free[i].offset + heap->free[i].bytes) {
            continue;
        }
        cut(heap, i, begin, bytes);
        heap->live++;
        heap->live_bytes += bytes;
        *out = heap->base + begin;
        if (step == HUGE_PAGE) {
            /* Advice: where the system offers no huge pages for shared memory it changes nothing.
             */
            (void)madvise(*out, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
        }
        return TSR_OK;
    }
    return TSR_RAISE(TSR_ERR_NOMEM, "no free range of %zu bytes: %zu of the heap's %zu are in use",
                     bytes, heap->live_bytes, heap->bytes);
}

void tsri_cpu_heap_give(tsri_cpu_heap *heap, void *address, size_t bytes)
{
    size_t begin = (size_t)((unsigned char *)address - heap->base);
    int at = 0;

    bytes = round_up(bytes == 0 ? 1 : bytes, page_bytes());
    if (madvise(address, bytes, MADV_REMOVE) != 0) {
        memset(address, 0, bytes);
    }
    while (at < heap->free_count && heap->free[at].offset < begin) {
        at++;
    }
    insert_extent(heap, at, (tsri_cpu_extent){begin, bytes});
    if (at + 1 < heap->free_count && begin + bytes == heap->free[at + 1].offset) {
        heap->free[at].bytes += heap->free[at + 1].bytes;
        remove_extent(heap, at + 1);
    }
    if (at > 0 && heap->free[at - 1].offset + heap->free[at - 1].bytes == begin) {
        heap->free[at - 1].bytes += heap->free[at].bytes;
        remove_extent(heap, at);
    }
    heap->live--;
    heap->live_bytes -= bytes;
}

tsr_status tsri_cpu_alloc(tsr_device *device, size_t bytes, tsr_buffer **out)
{
    tsri_cpu_device *cpu = (tsri_cpu_device *)device;
    tsr_buffer *buffer = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof *buffer, &buffer));
    buffer->device = device;
    buffer->bytes = bytes;
    TSR_TRY_GOTO(status, tsri_cpu_heap_take(&cpu->heap, bytes, &buffer->address), free_buffer);
    *out = buffer;
    return TSR_OK;

free_buffer:
    tsri_free(&buffer);
    return status;
}

void tsri_cpu_release(tsr_buffer *buffer)
{
    tsri_cpu_device *cpu = (tsri_cpu_device *)buffer->device;

    tsri_cpu_heap_give(&cpu->heap, buffer->address, buffer->bytes);
    tsri_free(&buffer);
}

void tsri_cpu_touched(tsri_cpu_device *device, tsri_cpu_peer *peer, size_t bytes)
{
    size_t total = 0;

    (void)atomic_fetch_add_explicit(&peer->touched, bytes, memory_order_relaxed);
    for (int r = 0; r < device->world; r++) {
        total += atomic_load_explicit(&device->peer[r].touched, memory_order_relaxed);
    }
    if (total < TSRI_CPU_PEER_BYTES) {
        return;
    }
    /* Another thread may be reading there: it faults the same pages in again. */
    for (int r = 0; r < device->world; r++) {
        tsri_cpu_peer *other = &device->peer[r];
        if (atomic_exchange_explicit(&other->touched, 0, memory_order_relaxed) > 0) {
            (void)madvise(other->heap, other->heap_bytes, MADV_DONTNEED);
        }
    }
}
