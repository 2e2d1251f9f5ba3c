/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "support/arena_rig.h"

#include "backend/dispatch.h"
#include "backend/recorder.h"
#include "base/base.h"
#include "base/rng.h"

#include <string.h>

#include "support/tsr_test.h"

tsr_status arena_rig_open(arena_rig *f, bool ledger)
{
    const tsri_recorder_options recorder = {.ledger = ledger, .race_check = true};
    memset(f, 0, sizeof(*f));
    TSR_TRY(tsri_device_open(&tsri_backend_sim, NULL, &f->device));
    TSR_TRY(tsri_recorder_attach(f->device, &recorder));
    for (int s = 0; s < ARENA_STREAMS; s++) {
        TSR_TRY(tsri_stream_open(f->device, (tsri_stream_kind)s, &f->streams[s]));
    }
    TSR_TRY(tsri_arena_create(f->device, &f->arena));
    return TSR_OK;
}

void arena_rig_close(arena_rig *f)
{
    if (f->device != NULL) {
        tsri_arena_destroy(&f->arena);
        CHECK_EQ(f->device->bytes_now, 0);
        CHECK_EQ(tsri_recorder_race_count(f->device), 0);
    }
    for (int s = 0; s < ARENA_STREAMS; s++) {
        tsri_stream_close(&f->streams[s]);
    }
    tsri_device_close(&f->device);
}

tsr_status arena_rig_touch(tsr_stream *stream, const tsri_mem *mem, bool is_write)
{
    const tsrk_zero args = {.bytes = 0};
    tsri_call call = {.stream = stream, .label = "touch"};
    if (is_write) {
        (void)tsri_arg_out(&call, mem->buffer, mem->offset, mem->bytes);
    } else {
        (void)tsri_arg_in(&call, mem->buffer, mem->offset, mem->bytes);
    }
    TSR_TRY(TSRI_LAUNCH(&call, ZERO, &args));
    return TSR_OK;
}

tsr_status arena_rig_take(arena_rig *f, int stream, size_t bytes, tsri_mem *out)
{
    TSR_TRY(tsri_arena_acquire(f->arena, bytes, TSRI_MEM_ACTIVATION, "x", f->streams[stream], out));
    TSR_TRY(arena_rig_touch(f->streams[stream], out, true));
    return TSR_OK;
}

tsr_status arena_rig_give(arena_rig *f, int writer, int reader, tsri_mem *mem)
{
    TSR_TRY(tsri_stream_wait(f->streams[reader], tsri_event_record(f->streams[writer])));
    TSR_TRY(arena_rig_touch(f->streams[reader], mem, false));
    tsri_arena_release(f->arena, mem, tsri_event_record(f->streams[reader]));
    return TSR_OK;
}

bool arena_rig_shares(const tsri_mem *x, const tsri_mem *y)
{
    return x->buffer == y->buffer && x->offset < y->offset + y->bytes &&
           y->offset < x->offset + x->bytes;
}

tsr_status arena_rig_add(arena_rig *f, arena_held *live, int *count, uint64_t key, uint64_t *draw)
{
    arena_held *added = &live[*count];
    const uint32_t word = tsri_rng_word(key, (*draw)++);
    added->stream = (int)(word % ARENA_STREAMS);
    TSR_TRY(
        arena_rig_take(f, added->stream, word / 16 % 11 == 0 ? 0 : word / 256 % 5000, &added->mem));
    for (int i = 0; i < *count; i++) {
        if (arena_rig_shares(&live[i].mem, &added->mem)) {
            return TSR_RAISE(TSR_ERR_INTERNAL, "ranges %d and %d share bytes", live[i].mem.interval,
                             added->mem.interval);
        }
    }
    if (added->mem.offset % 256 != 0 ||
        added->mem.offset + added->mem.bytes > added->mem.buffer->bytes) {
        return TSR_RAISE(TSR_ERR_INTERNAL, "range at %zu", added->mem.offset);
    }
    (*count)++;
    return TSR_OK;
}
