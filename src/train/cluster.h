/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cluster.h
 * Cluster files: a machine's rates and links as YAML, built in for common machines.
 *
 * Every figure is what a step can reach but for peak_tflops, which is the maker's and only MFU
 * uses. Units: GB are 10^9 bytes, GiB 2^30. clusters/README.md describes the keys.
 */
#pragma once

#include "backend/sim/machine.h"

#include "train/text.h"

typedef struct tsri_cluster {
    tsri_machine machine;
    int devices;   /* ranks of a node: the span of the last tier but one; 0: one node holds all */
    uint64_t hash; /* of the file's text */
} tsri_cluster;

/**
 * Read a cluster: the built-in one called name, or else the file at that path.
 *
 * TSR_ERR_IO: neither is there; names the nearest built-in. TSR_ERR_FORMAT, TSR_ERR_INVALID: the
 * message begins with FILE:LINE and names the nearest key.
 */
tsr_status tsri_cluster_load(const char *name, tsri_cluster *out);
/** The same from bytes characters; name stands for the file in messages. */
tsr_status tsri_cluster_parse(const char *text, size_t bytes, const char *name, tsri_cluster *out);
/** machine as a cluster file; sources: lines that begin with "  - ". */
void tsri_cluster_print(const tsri_machine *machine, const char *sources, tsri_text *text);
/** Names of the built-in clusters, "a, b, c". */
const char *tsri_cluster_names(void);
