/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file mapping.h
 * Where the ranks of one machine go, and why: islands, rank order, NICs, cores.
 *
 * An island is a set of GPUs among which traffic is fastest: a connected part of the link graph,
 * else what one PCI switch joins, else a NUMA node, else a package, else the whole machine. Ranks
 * are numbered island by island, and in an island NUMA node by NUMA node, so that ranks with near
 * numbers are near; the last axes of a mesh, whose ranks are consecutive, are then the nearest.
 * Without GPUs, or with more ranks than GPUs, ranks stand on cores and the machine is one island.
 *
 * Threads: a mapping does not change once made.
 */
#pragma once

#include "topo/topo.h"

typedef enum tsri_topo_rule {
    TSRI_TOPO_RULE_AUTO = 0, /* the first of those below that joins any two GPUs */
    TSRI_TOPO_RULE_LINKS,
    TSRI_TOPO_RULE_SWITCH,
    TSRI_TOPO_RULE_NUMA,
    TSRI_TOPO_RULE_PACKAGE,
    TSRI_TOPO_RULE_NODE,
    TSRI_TOPO_RULE_COUNT
} tsri_topo_rule;

/** Edges above this share of the largest link join GPUs. */
#define TSRI_TOPO_LINK_SHARE 0.25

/** Zero-initialise for defaults. */
typedef struct tsri_topo_ask {
    int ranks;              /* on one machine; 0: one per GPU, without GPUs one per NUMA node */
    tsri_topo_rule islands; /* what makes an island */
    bool cores_only;        /* ranks compute on cores, whatever GPUs there are */
} tsri_topo_ask;

/** A rank's share of the machine. Indices are the description's; -1: none, or unknown. */
typedef struct tsri_topo_place {
    int gpu;
    int island;
    int numa;                   /* of the GPU, or of the cores */
    int nic, nic_near;          /* the first of its NICs; how near all of them are */
    int nic_first, nic_count;   /* in mapping->nics */
    int core_first, core_count; /* in mapping->cores; no cores: the rank is not bound */
} tsri_topo_place;

/** Why something was chosen, or what is wrong with it. */
typedef struct tsri_topo_note {
    char subject[16]; /* "islands", "order", "nic", "cores", "memory", "gpus", "tp", "shard" */
    char *text;
    bool warning;
} tsri_topo_note;

typedef struct tsri_topo_notes {
    tsri_topo_note *at;
    int count, capacity;
} tsri_topo_notes;

typedef struct tsri_topo_mapping {
    tsri_topo_place *places; /* by local rank */
    int place_count;
    int island_count;
    tsri_topo_rule rule; /* never AUTO */
    int *cores;          /* the ranks' cores, rank by rank; indices */
    int core_count;
    int *nics; /* the ranks' NICs, rank by rank; indices */
    tsri_topo_notes notes;
} tsri_topo_mapping;

/** Local. TSR_ERR_INVALID: a rule that the record knows nothing about. Free with
 *  tsri_topo_mapping_free. */
tsr_status tsri_topo_mapping_create(const tsri_topo *topo, const tsri_topo_ask *ask,
                                    tsri_topo_mapping **out);
void tsri_topo_mapping_free(tsri_topo_mapping **pointer);

/** "links", "switch", "numa", "package", "node"; what --islands takes. */
const char *tsri_topo_rule_name(tsri_topo_rule rule);
/** TSR_ERR_INVALID names the nearest. */
tsr_status tsri_topo_rule_parse(const char *text, tsri_topo_rule *out);

/** Ranks of an island. */
int tsri_topo_island_size(const tsri_topo_mapping *mapping, int island);
/** The largest number that divides every island; tp must divide it. */
int tsri_topo_island_divisor(const tsri_topo_mapping *mapping);
/** "1, 2, 4": the divisors of number into text; returns text. */
const char *tsri_topo_divisors(int number, char *text, size_t size);
/** "0-3,6" into text; from five values on that are equally far apart, "0-22:2". Ends in "..." if
 * size is too small. */
const char *tsri_topo_ranges(const int *values, int count, char *text, size_t size);

tsr_status tsri_topo_note_add(tsri_topo_notes *notes, bool warning, const char *subject,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));
void tsri_topo_notes_free(tsri_topo_notes *notes);
