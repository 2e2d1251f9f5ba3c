/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file arena_rig.h
 * An arena on sim, with the race check watching every range that it hands out.
 */
#pragma once

#include "backend/arena.h"

enum {
    ARENA_STREAMS = 3,
    ARENA_MAX_LIVE = 24
};

typedef struct arena_rig {
    tsr_device *device;
    tsr_stream *streams[ARENA_STREAMS]; /* compute, gather, reduce */
    tsri_arena *arena;
} arena_rig;

/** A range and the stream that wrote it. */
typedef struct arena_held {
    tsri_mem mem;
    int stream;
} arena_held;

tsr_status arena_rig_open(arena_rig *f, bool ledger);
/** Memory that was released is gone, and nothing was freed under work in flight. */
void arena_rig_close(arena_rig *f);
tsr_status arena_rig_touch(tsr_stream *stream, const tsri_mem *mem, bool is_write);
/** Acquire on stream and write there. */
tsr_status arena_rig_take(arena_rig *f, int stream, size_t bytes, tsri_mem *out);
/** Read on another stream after the writer's event, and release there. */
tsr_status arena_rig_give(arena_rig *f, int writer, int reader, tsri_mem *mem);
/** Have x and y a byte in common? */
bool arena_rig_shares(const tsri_mem *x, const tsri_mem *y);
/** Take a range drawn from key into live[*count], which shares no byte with those before. */
tsr_status arena_rig_add(arena_rig *f, arena_held *live, int *count, uint64_t key, uint64_t *draw);
