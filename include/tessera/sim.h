/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file sim.h
 * Finding a hang before there is one: a program run as every rank of a simulated world.
 *
 * Ranks hang for two reasons: members of a group whose calls differ, or orders of calls that go
 * round between groups. Both can be seen from what each rank would call, so no rank has to wait:
 * the program runs as rank 0, 1, 2, ... in turn, in this process, with sizes but no bytes, and the
 * calls are then played against each other.
 *
 * Threads: one thread at a time.
 */
#pragma once

#include "tessera/world.h"

#include <stdio.h>

TSR_BEGIN_DECLS

/**
 * What a rank does with its world: opens comms, trains a step or two, and releases what it opened.
 * It must not close the world. Values that it reads back (a loss) are zeros.
 */
typedef tsr_status (*tsr_sim_program)(tsr_world *world, void *context);

/**
 * Run @p program as each rank of a simulated world of @p size, and see whether every collective and
 * every opening of a group would meet its members.
 *
 * Local. Each comm that the program opens is checked by itself: the n-th of one rank against the
 * n-th of the others. The host is taken to run the compute stream itself, as on the cpu backend;
 * what passes then passes on devices that run by themselves too. A collective whose label (unit or
 * module) differs between ranks fails as well where sizes agree: it would mix their data. Labels
 * and sizes of all ranks are kept until the end: some 150 bytes per kernel, collective, wait and
 * allocation.
 *
 * @param size     Ranks, >= 1.
 * @param context  Handed to @p program; NULL or the caller's.
 * @param report   Where the whole finding is written, a line; NULL: nowhere. The message of the
 *                 error trail is its beginning.
 * @retval TSR_ERR_DISAGREE  the ranks would hang or mix data; the message names ranks, operation,
 *                           unit, axes, bytes, and which call it is.
 * @retval TSR_ERR_STATE     the program returned with a comm open.
 * @retval TSR_ERR_INVALID   size is not positive.
 * @return Otherwise TSR_OK, or the status of the first rank whose program failed.
 */
TSR_CHECKED tsr_status tsr_sim_check(int size, tsr_sim_program program, void *context,
                                     FILE *report);

TSR_END_DECLS
