/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hostile_coll.h
 * Groups and collectives of the hostile backend, by MPI calls that do not block.
 */
#pragma once

#include "support/hostile_stream.h"

typedef struct hostile_coll hostile_coll;

/** One part of the collective, or a look whether the other ranks have come. *moved_out: something
 *  happened; *over_out: it is done. A failure breaks the group. */
tsr_status hostile_coll_step(hostile_coll *coll, bool *moved_out, bool *over_out);
/** Outputs are poisoned and inputs not read yet. */
bool hostile_coll_has_begun(const hostile_coll *coll);
/** For how long it has waited for other ranks, if it does; else forever. */
double hostile_coll_waits_s(const hostile_coll *coll);
/** Whether that is longer than the device allows; text says of what. */
bool hostile_coll_is_late(const hostile_coll *coll, char *text, size_t size);
/** Also one that is under way: its memory is then left to MPI. */
void hostile_coll_free(hostile_coll **coll);

tsr_status hostile_group_open(tsr_device *device, const int *world_ranks, int size, int index,
                              tsr_stream *stream, const char *name, tsr_group **out);
void hostile_group_close(tsr_group *group);
tsr_status hostile_collective(tsr_group *group, const tsri_coll *coll, tsr_stream *stream);
