/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file start_links.h
 * The axes of a job's mesh before it starts: measured, and what about them is worth a line.
 *
 * Threads: one thread at a time.
 */
#pragma once

#include "bench/probe.h"
#include "config/config.h"
#include "plan/cluster.h"

typedef struct tsri_start_links {
    tsri_probe_axis axes[TSR_MESH_MAX_AXES]; /* those of more than one rank */
    int count;
    double seconds;   /* that measuring took; 0: nothing was measured */
    char groups[512]; /* where the axes' groups lie */
} tsri_start_links;

/**
 * List the axes and their groups of a fitted configuration's job and, with run.probe, time
 * collectives along each: well below a second. Collective over the world, which has several ranks.
 * Blocks.
 *
 * @param declared  What run.cluster says, or NULL.
 */
tsr_status tsri_start_links_find(tsr_world *world, const tsri_config *config,
                                 const tsri_job_options *options, const tsri_cluster *declared,
                                 tsri_start_links *out);

/** "shard of 2 ranks 5.1 GB/s, 20 us a hop; ..." or, of nothing measured, "". */
void tsri_start_links_text(const tsri_start_links *links, char *text, size_t size);

/** Local. The index-th thing to warn of, from 0 on; false: there are no more. An axis whose
 * measured bandwidth is more than twice or less than half the declared one; a shard axis that
 * crosses hosts though the mesh was left to us, or though the preset keeps gathers inside hosts. */
bool tsri_start_links_warning(const tsri_start_links *links, const tsri_config *config, int index,
                              char *text, size_t size);
