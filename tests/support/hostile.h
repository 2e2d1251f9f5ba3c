/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hostile.h
 * A backend "hostile" for tests: all that the contract of backend.h allows, in the worst order.
 *
 * Nothing runs when it is enqueued, on no stream. Work runs when the host must have it, in an order
 * that a seed draws among all that waits allow: mostly one stream runs as far as it may before
 * another moves. Step memory is filled with NaN when it is acquired, other memory when it is
 * released, and so is what a collective leaves unspecified. Sums are those of cpu, bit by bit.
 *
 * A test that includes this header can open worlds of backend "hostile". In one whose first lines
 * say "hostile: N" it also stands in for cpu, in a case on N ranks. TSR_HOSTILE_SEED is the seed
 * where no test sets one; TSR_KERNELS=ref takes the plain kernels.
 *
 * Threads: as a device, one at a time.
 */
#pragma once

#include "backend/backend.h"

typedef struct hostile_options {
    uint64_t seed;
    bool ignore_waits; /* of streams for each other */
    int drop_wait;     /* ignore the n-th (1-based) of them from now on; 0: none */
} hostile_options;

/** For all devices, from now on; NULL: as at the start of the process. */
void hostile_set(const hostile_options *options);
/** Waits enqueued since hostile_set. */
int hostile_wait_count(void);
/** Operations that ran before an older one of another stream, since hostile_set. */
int64_t hostile_overtaken(void);
/** Buffers that were written to behind their end or after their release, as far as it shows, since
 *  hostile_set. Each is told on stderr. */
int hostile_fault_count(void);
