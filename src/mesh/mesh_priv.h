/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file mesh_priv.h
 * A mesh as its own files see it: factors, which are sizes with strides over the root's cells.
 */
#pragma once

#include "base/base.h"

#include "tessera/mesh.h"

#include <stdatomic.h>

/** Factors are of size 2 at least and their product is an int. */
#define TSRI_MESH_MAX_FACTORS 31

/** The ranks of a root mesh, shared by all meshes made of it. */
typedef struct tsri_mesh_root {
    atomic_int owners;
    int world_size;
    int cell_count;
    int *rank_of; /* [cell_count] */
    int *cell_of; /* [world_size]; -1: the rank is outside */
} tsri_mesh_root;

typedef struct tsri_mesh_factor {
    int size;   /* >= 2 */
    int stride; /* of one step, in root cells */
} tsri_mesh_factor;

/** Factors first[axis] .. first[axis + 1] make up axis, the slowest first; an axis of one rank has
 *  none. The ranges [stride, stride * size) of different factors never overlap, which is what
 *  makes a cell decide all its digits. */
struct tsr_mesh {
    atomic_int owners;
    tsri_mesh_root *root; /* retained */
    int base;             /* root cell at coordinate 0 */
    int axis_count;
    int cell_count;
    int size[TSR_MESH_MAX_AXES];
    char name[TSR_MESH_MAX_AXES][TSR_MESH_NAME_BYTES];
    int first[TSR_MESH_MAX_AXES + 1];
    tsri_mesh_factor factor[TSRI_MESH_MAX_FACTORS];
};

/** Names and sizes of a mesh to be; *cells_out is the product of the sizes. */
tsr_status tsri_mesh_check_axes(const tsr_mesh_axis *axes, int axis_count, int *cells_out);
/** "a=2 b=3" into text. */
void tsri_mesh_format_axes(const tsr_mesh_axis *axes, int axis_count, char *text, size_t size);
/** A mesh of root (retained) with nothing but its owner set. */
tsr_status tsri_mesh_new(tsri_mesh_root *root, tsr_mesh **out);
/** Append an axis with its factors; name is checked and fits. */
void tsri_mesh_append(tsr_mesh *mesh, const char *name, const tsri_mesh_factor *factors, int count);
/** The digit of every factor at root cell into digit[]; false if the cell is not of the mesh. */
bool tsri_mesh_digits(const tsr_mesh *mesh, int cell, int *digit);
