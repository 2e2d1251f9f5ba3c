/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The hostile backend's table, devices and memory.
 *
 * Behind a buffer, and in it once it is released, lies poison: who reads it computes with NaN, who
 * writes it is found when the buffer is released and when its memory, which is kept for a while, is
 * given back to the system. */
#include "support/hostile.h"

#include "backend/boot/boot.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/hostile_coll.h"
#include "support/hostile_stream.h"

#define ALIGN      ((size_t)256)
#define KEPT_BYTES ((size_t)32 << 20)

typedef struct hostile_block {
    struct hostile_block *next;
    unsigned char *data;
    size_t bytes;
    char label[48]; /* a copy: whose it was may be gone by then */
} hostile_block;

typedef struct hostile_buffer {
    tsr_buffer head;
    hostile_block *block; /* made with the buffer, so that a release cannot fail */
} hostile_buffer;

/* ---- what tests set ---- */

hostile_state *hostile_get_state(void)
{
    static hostile_state state;

    if (!state.is_set) {
        const char *seed = getenv("TSR_HOSTILE_SEED");

        state.is_set = true;
        state.options.seed = seed == NULL ? 1 : strtoull(seed, NULL, 10);
    }
    return &state;
}

void hostile_set(const hostile_options *options)
{
    hostile_state *state = hostile_get_state();
    const uint64_t generation = state->generation + 1;

    *state = (hostile_state){.generation = generation, .is_set = options != NULL};
    state = hostile_get_state();
    if (options != NULL) {
        state->options = *options;
    }
}

int hostile_wait_count(void)
{
    return hostile_get_state()->waits;
}

int64_t hostile_overtaken(void)
{
    return hostile_get_state()->overtaken;
}

int hostile_fault_count(void)
{
    return hostile_get_state()->faults;
}

/* ---- memory ---- */

static tsr_status alloc(tsr_device *device, size_t bytes, tsr_buffer **out)
{
    const size_t size = bytes == 0 ? 0 : (bytes + ALIGN - 1) / ALIGN * ALIGN + ALIGN;
    hostile_buffer *buffer = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*buffer), &buffer));
    TSR_TRY_GOTO(status, tsri_alloc(1, sizeof(*buffer->block), &buffer->block), free_buffer);
    if (size > 0) {
        buffer->block->data = aligned_alloc(ALIGN, size);
        if (buffer->block->data == NULL) {
            status = TSR_RAISE(TSR_ERR_NOMEM, "no %zu bytes for a buffer", size);
            goto free_block;
        }
        memset(buffer->block->data, 0, bytes);
        memset(buffer->block->data + bytes, HOSTILE_POISON, size - bytes);
    }
    buffer->block->bytes = size;
    buffer->head.device = device;
    buffer->head.bytes = bytes;
    buffer->head.address = buffer->block->data;
    *out = &buffer->head;
    return TSR_OK;
free_block:
    tsri_free(&buffer->block);
free_buffer:
    tsri_free(&buffer);
    return status;
}

/* All of block from byte `from` on is poison, or somebody wrote what was not his. */
static void check_poison(const hostile_block *block, size_t from, const char *where)
{
    size_t at = from;

    while (at < block->bytes && block->data[at] == HOSTILE_POISON) {
        at++;
    }
    if (at < block->bytes) {
        (void)fprintf(stderr, "a buffer (%s) was written to %s, at byte %zu\n", block->label, where,
                      at);
        hostile_get_state()->faults++;
    }
}

static void give_oldest_back(hostile_device *device)
{
    hostile_block *block = device->freed;

    check_poison(block, 0, "after its release");
    device->freed = block->next;
    device->freed_bytes -= block->bytes;
    free(block->data);
    tsri_free(&block);
}

static void release(tsr_buffer *buffer)
{
    hostile_device *device = (hostile_device *)buffer->device;
    hostile_buffer *mine = (hostile_buffer *)buffer;
    hostile_block *block = mine->block;

    hostile_enter(device);
    (void)snprintf(block->label, sizeof(block->label), "%s",
                   buffer->label == NULL ? "?" : buffer->label);
    check_poison(block, buffer->bytes, "behind its end");
    if (block->bytes > 0) {
        memset(block->data, HOSTILE_POISON, block->bytes);
    }
    if (device->freed == NULL) {
        device->freed = block;
    } else {
        device->freed_last->next = block;
    }
    device->freed_last = block;
    device->freed_bytes += block->bytes;
    while (device->freed_bytes > KEPT_BYTES) {
        give_oldest_back(device);
    }
    hostile_leave(device);
    tsri_free(&mine);
}

/* ---- devices ---- */

static void device_close(tsr_device *device)
{
    hostile_device *mine = (hostile_device *)device;

    hostile_driver_stop(mine);
    while (mine->freed != NULL) {
        give_oldest_back(mine);
    }
    (void)pthread_mutex_destroy(&mine->lock);
    tsri_free(&mine);
}

/* As cpu, so that plans made for cpu hold. */
static int default_threads(const tsri_device_options *options)
{
    return tsri_cpu_default_threads(options->world_size > 1 ? tsri_boot_get_info()->local_size : 1);
}

static tsr_status kernels(const tsri_kernel_table **out)
{
    const char *name = getenv("TSR_KERNELS");

    *out = name != NULL && strcmp(name, "ref") == 0 ? tsrk_table_ref() : tsrk_table_cpu();
    return TSR_OK;
}

static tsr_status device_open(const tsri_device_options *options, tsr_device **out)
{
    tsri_team *team = options->team != NULL ? options->team : tsri_boot_job();
    hostile_device *device = NULL;

    if (options->world_size > 1 && (team == NULL || tsri_team_size(team) != options->world_size)) {
        return TSR_RAISE(TSR_ERR_STATE, "rank %d of %d, but the team has %d", options->world_rank,
                         options->world_size, team == NULL ? 0 : tsri_team_size(team));
    }
    TSR_TRY(tsri_alloc(1, sizeof(*device), &device));
    (void)kernels(&device->head.kernels);
    device->head.threads = options->threads > 0 ? options->threads : default_threads(options);
    device->head.timeout_s = options->timeout_s > 0 ? options->timeout_s : TSRI_TIMEOUT_S;
    device->head.scribbles = true;
    device->team = team;
    device->rank = options->world_rank;
    device->generation = UINT64_MAX;
    (void)pthread_mutex_init(&device->lock, NULL);
    if (options->world_size > 1) {
        const tsr_status status = hostile_driver_start(device);

        if (status != TSR_OK) {
            device_close(&device->head);
            return tsr_error_pass(status, __FILE__, __LINE__, __func__);
        }
    }
    *out = &device->head;
    return TSR_OK;
}

static const tsr_backend table = {
    .abi = TSR_BACKEND_ABI,
    .caps = TSR_CAP_EXECUTES | TSR_CAP_ASYNC | TSR_CAP_HOST | TSR_CAP_WIDE_SUMS,
    .name = "hostile",
    .kernels = kernels,
    .device_open = device_open,
    .device_close = device_close,
    .alloc = alloc,
    .release = release,
    .stream_open = hostile_stream_open,
    .stream_close = hostile_stream_close,
    .stream_wait = hostile_stream_wait,
    .stream_sync = hostile_stream_sync,
    .poll = hostile_poll,
    .abort = hostile_abort,
    .event_record = hostile_event_record,
    .event_done = hostile_event_done,
    .event_sync = hostile_event_sync,
    .event_elapsed = hostile_event_elapsed,
    .launch = hostile_launch,
    .write = hostile_write,
    .read = hostile_read,
    .copy = hostile_copy,
    .group_open = hostile_group_open,
    .group_close = hostile_group_close,
    .collective = hostile_collective,
};

const tsr_backend *tsri_backend_of_test(const char *name)
{
    const char *asked = name == NULL ? "auto" : name;
    const bool is_cpus = strcmp(asked, "cpu") == 0 || strcmp(asked, "auto") == 0;

    if (strcmp(asked, "hostile") == 0 || (is_cpus && getenv("TSR_HOSTILE_AS_CPU") != NULL)) {
        return &table;
    }
    return NULL;
}
