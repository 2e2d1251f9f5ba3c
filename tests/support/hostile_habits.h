/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hostile_habits.h
 * What a seed draws: the order in which a device's streams move, and how long that lasts.
 */
#pragma once

#include "support/hostile_stream.h"

/** A number below `below`. */
uint64_t hostile_draw(hostile_device *device, uint64_t below);
void hostile_shuffle(hostile_device *device);
/** Habits for the next operations. */
void hostile_draw_habits(hostile_device *device);
