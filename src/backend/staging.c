/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Host memory through which the program's bytes go, so that it need not wait for a stream.
 *
 * Writes take ranges of a ring in turn, which come back in turn, each when its stream is past the
 * write. Readings take slots of one size, which their owners keep as long as they like. */
#include "backend/backend_priv.h"

#include "base/base.h"

#include <time.h>

enum {
    RING_BYTES = 4 << 20,
    RANGES = 256, /* at a time */
    ALIGN = 64,
    SLOTS = 64 /* of a block: bits of a word */
};

_Static_assert(RING_BYTES >= 2 * (int)TSRI_STAGE_MOST, "a write always finds room in the end");

typedef struct stage_range {
    size_t begin, end;
    tsr_event passed; /* no stream: it is free */
} stage_range;

typedef struct slot_block {
    struct slot_block *next;
    unsigned char *memory;
    uint64_t taken;
} slot_block;

struct tsri_staging {
    unsigned char *ring; /* NULL until the first write */
    stage_range ranges[RANGES];
    int first, count; /* from the oldest */
    slot_block *blocks;
};

static tsr_status take_memory(tsr_device *device, size_t bytes, unsigned char **out)
{
    void *memory = NULL;

    if (device->backend->stage_alloc == NULL) {
        TSR_TRY(tsri_alloc(bytes, 1, &memory));
    } else {
        TSR_TRY(device->backend->stage_alloc(device, bytes, &memory));
    }
    *out = memory;
    return TSR_OK;
}

static void give_memory(tsr_device *device, unsigned char **memory)
{
    if (*memory != NULL && device->backend->stage_free != NULL) {
        device->backend->stage_free(device, *memory);
        *memory = NULL;
    }
    tsri_free(memory);
}

static tsr_status open_staging(tsr_device *device)
{
    if (device->staging == NULL) {
        TSR_TRY(tsri_alloc(1, sizeof(*device->staging), &device->staging));
    }
    return TSR_OK;
}

/* ---- the ring ---- */

static stage_range *range_at(struct tsri_staging *s, int i)
{
    return &s->ranges[(s->first + i) % RANGES];
}

/* Where bytes fit behind the newest range, or -1. */
static int64_t find_room(struct tsri_staging *s, size_t bytes)
{
    if (s->count == 0) {
        return 0;
    }
    const size_t begin = range_at(s, 0)->begin;
    const size_t end = range_at(s, s->count - 1)->end;

    if (s->count == RANGES) {
        return -1;
    }
    if (range_at(s, s->count - 1)->begin < begin) { /* it has come round */
        return end + bytes <= begin ? (int64_t)end : -1;
    }
    if (end + bytes <= RING_BYTES) {
        return (int64_t)end;
    }
    return bytes <= begin ? 0 : -1;
}

void tsri_event_outlast(tsr_event event)
{
    const struct timespec nap = {.tv_nsec = 20000};

    while (!tsri_event_done(event)) {
        (void)nanosleep(&nap, NULL);
    }
}

static void await_oldest(struct tsri_staging *s)
{
    tsri_event_outlast(range_at(s, 0)->passed);
    s->first = (s->first + 1) % RANGES;
    s->count--;
}

tsr_status tsri_stage_take(tsr_device *device, size_t bytes, void **out)
{
    const size_t size = (bytes + ALIGN - 1) / ALIGN * ALIGN;

    TSR_TRY(open_staging(device));
    struct tsri_staging *s = device->staging;

    if (s->ring == NULL) {
        TSR_TRY(take_memory(device, RING_BYTES, &s->ring));
    }
    int64_t at = find_room(s, size);

    while (at < 0) {
        await_oldest(s);
        at = find_room(s, size);
    }
    s->count++;
    *range_at(s, s->count - 1) = (stage_range){.begin = (size_t)at, .end = (size_t)at + size};
    *out = s->ring + at;
    return TSR_OK;
}

void tsri_stage_until(tsr_device *device, tsr_event event)
{
    struct tsri_staging *s = device->staging;

    range_at(s, s->count - 1)->passed = event;
}

/* ---- slots ---- */

static tsr_status add_block(tsr_device *device, slot_block **out)
{
    slot_block *block = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*block), &block));
    TSR_TRY_GOTO(status, take_memory(device, (size_t)SLOTS * TSRI_READING_MOST, &block->memory),
                 free_block);
    block->next = device->staging->blocks;
    device->staging->blocks = block;
    *out = block;
    return TSR_OK;
free_block:
    tsri_free(&block);
    return status;
}

tsr_status tsri_stage_slot(tsr_device *device, void **out)
{
    int i = 0;

    TSR_TRY(open_staging(device));
    slot_block *block = device->staging->blocks;

    while (block != NULL && block->taken == UINT64_MAX) {
        block = block->next;
    }
    if (block == NULL) {
        TSR_TRY(add_block(device, &block));
    }
    while ((block->taken >> i & 1U) != 0) {
        i++;
    }
    block->taken |= (uint64_t)1 << i;
    *out = block->memory + (size_t)i * TSRI_READING_MOST;
    return TSR_OK;
}

void tsri_stage_give(tsr_device *device, void *slot)
{
    for (slot_block *b = device->staging->blocks; b != NULL; b = b->next) {
        for (int i = 0; i < SLOTS; i++) {
            if (b->memory + (size_t)i * TSRI_READING_MOST == (unsigned char *)slot) {
                b->taken &= ~((uint64_t)1 << i);
                return;
            }
        }
    }
}

/* ---- ends ---- */

void tsri_stage_forget(const tsr_stream *stream)
{
    struct tsri_staging *s = stream->device->staging;

    for (int i = 0; s != NULL && i < s->count; i++) {
        if (range_at(s, i)->passed.stream == stream) {
            range_at(s, i)->passed = (tsr_event){0};
        }
    }
}

void tsri_stage_free(tsr_device *device)
{
    struct tsri_staging *s = device->staging;

    if (s == NULL) {
        return;
    }
    while (s->blocks != NULL) {
        slot_block *block = s->blocks;

        s->blocks = block->next;
        give_memory(device, &block->memory);
        tsri_free(&block);
    }
    give_memory(device, &s->ring);
    tsri_free(&device->staging);
}
