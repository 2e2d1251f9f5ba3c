/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file mesh_text.h
 * A mesh as people write it: "replicate=2,shard=2,tp=2", where one size may be -1, what is left.
 *
 * Threads: pure functions.
 */
#pragma once

#include "tessera/mesh.h"

/** Axes with room for their names. Moving one breaks its axes' names: they point inside. */
typedef struct tsri_mesh_text {
    char names[TSR_MESH_MAX_AXES][TSR_MESH_NAME_BYTES];
    tsr_mesh_axis axes[TSR_MESH_MAX_AXES];
    int count;
} tsri_mesh_text;

/** Add an axis of name[length]; size -1 stands for what is left. TSR_ERR_INVALID. */
tsr_status tsri_mesh_text_add(tsri_mesh_text *mesh, const char *name, size_t length, long size);

/** Read text; axes are separated by commas or blanks. TSR_ERR_INVALID says what is wrong where. */
tsr_status tsri_mesh_parse(const char *text, tsri_mesh_text *out);

/** Fill in a size of -1, and check that the sizes multiply to ranks. TSR_ERR_INVALID. */
tsr_status tsri_mesh_fit(tsri_mesh_text *mesh, int ranks);
