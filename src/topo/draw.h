/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file draw.h
 * A machine and its groups, for people: text of 100 columns, and a drawing.
 *
 * Threads: pure functions; the stream is the caller's. Errors of the stream are left to it.
 */
#pragma once

#include <stdio.h>

#include "topo/mapping.h"
#include "topo/mesh.h"

/** The machine as a tree, its links, the ranks' places, and the reasons. */
tsr_status tsri_topo_draw_text(const tsri_topo *topo, const tsri_topo_mapping *mapping, FILE *to);
/** The axes of a mesh and why. */
void tsri_topo_draw_mesh(const tsri_topo_mesh *mesh, FILE *to);
/** Notes, one paragraph each. */
void tsri_topo_draw_notes(const tsri_topo_notes *notes, FILE *to);
/** A self-contained SVG; mesh may be NULL. */
tsr_status tsri_topo_draw_svg(const tsri_topo *topo, const tsri_topo_mapping *mapping,
                              const tsri_topo_mesh *mesh, FILE *to);
/** "0-3,8-11": the system's numbers of the threads of place rank into text; returns text. */
const char *tsri_topo_threads_text(const tsri_topo *topo, const tsri_topo_mapping *mapping,
                                   int rank, char *text, size_t size);
