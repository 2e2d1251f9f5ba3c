/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file cluster.h
 * Cluster files: a machine's rates and links as YAML, built in for common machines.
 *
 * Every figure is what a step can reach but for peak_tflops, which is the maker's and only MFU
 * uses. A figure is a number, or three: at the slow end, usual, at the fast end. Units: GB are 10^9
 * bytes, GiB 2^30. clusters/README.md describes the keys.
 */
#pragma once

#include "base/growing_text.h"

#include "plan/machine.h"

/** How far off the ends of all rates are where a file gives none. */
#define TSRI_CLUSTER_ASSUMED 0.2

typedef struct tsri_cluster {
    tsri_machine machine;    /* at the rates that it usually reaches */
    tsri_machine slow, fast; /* at the ends of what the file says; no tiers: nothing is known */
    bool assumed;            /* the file gives no ranges: the ends are a guess */
    int devices;   /* ranks of a node: the span of the last tier but one; 0: one node holds all */
    uint64_t hash; /* of the file's text */
} tsri_cluster;

/**
 * Read a cluster: the built-in one called name, or else the file at that path.
 *
 * TSR_ERR_IO: neither is there; names the nearest built-in. TSR_ERR_FORMAT, TSR_ERR_INVALID: the
 * message begins with FILE:LINE and names the nearest key, or the right value of one that no
 * machine has (another unit, a rate above the peak).
 */
tsr_status tsri_cluster_load(const char *name, tsri_cluster *out);
/** The same from bytes characters; name stands for the file in messages. */
tsr_status tsri_cluster_parse(const char *text, size_t bytes, const char *name, tsri_cluster *out);
/** machine as a cluster file; sources: lines that begin with "  - ". */
void tsri_cluster_print(const tsri_machine *machine, const char *sources, tsri_text *text);
/** Names of the built-in clusters, "a, b, c". */
const char *tsri_cluster_names(void);
/** TSR_ERR_INVALID: machine, read from file, has a value that none has, most often because of its
 *  unit; the message names the nearest right one. */
tsr_status tsri_cluster_check(const tsri_machine *machine, const char *file);

/**
 * Local. Whether a device multiplies bf16 faster than f32, which decides what param_dtype auto is:
 * the one place that plans, checks and runs ask. The processor at hand; a cluster's machine says it
 * of its own.
 */
bool tsri_here_computes_bf16(void);
