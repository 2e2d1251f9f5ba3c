/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "support/hostile_habits.h"

enum {
    MOST_QUEUED = 2048,
    FOREVER = 1 << 30
};

/* A stream that goes before others waits for other ranks for so long before others may go on. On a
 * busy machine ranks need more than a moment to come; mostly that is not what matters. */
static const double short_s = 0.004;
static const double long_s = 0.06;

/* splitmix64 */
uint64_t hostile_draw(hostile_device *device, uint64_t below)
{
    uint64_t z = device->random += 0x9E3779B97F4A7C15ULL;

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return (z ^ (z >> 31)) % below;
}

void hostile_shuffle(hostile_device *device)
{
    for (int i = TSRI_STREAM_COUNT - 1; i > 0; i--) {
        const int k = (int)hostile_draw(device, (uint64_t)i + 1);
        const int other = device->order[k];

        device->order[k] = device->order[i];
        device->order[i] = other;
    }
}

void hostile_draw_habits(hostile_device *device)
{
    device->alternates = hostile_draw(device, 4) == 0;
    device->quantum = hostile_draw(device, 3) == 0 ? FOREVER : 1 << hostile_draw(device, 9);
    device->starved =
        hostile_draw(device, 2) == 0 ? -1 : (int)hostile_draw(device, TSRI_STREAM_COUNT);
    device->lingers = hostile_draw(device, 2) == 0;
    device->stubborn = hostile_draw(device, 2) == 0;
    device->room = hostile_draw(device, 3) == 0 ? 1 << hostile_draw(device, 7) : MOST_QUEUED;
    hostile_shuffle(device);
    device->grace_s = hostile_draw(device, 4) == 0 ? long_s : short_s;
}
