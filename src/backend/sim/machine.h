/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file machine.h
 * What a simulated machine costs: a roofline per kernel, and alpha-beta links in tiers.
 *
 * Ranks are numbered so that neighbours are near. A tier joins blocks of `span` consecutive ranks;
 * what it joins are blocks of the tier below (single ranks, in the first), and its rate is what one
 * of those sends through it, one way. So for nodes of 8 devices: tier "nvlink" of span 8 with the
 * rate of a device, tier "nic" of span 0 (all) with the rate of a node's interfaces together.
 *
 * Collectives are rings (a tensor of M bytes over W ranks): every block sends M (W-1)/W through
 * each tier that the ring crosses, twice that for an all-reduce, whatever the number of its members
 * is, because members within a block pass pieces on below that tier (Thakur, Rabenseifner, Gropp
 * 2005). Groups that lie side by side in the same blocks run at the same time and share the rate.
 * Time = hops + the slowest tier's bytes / rate, with one hop's latency for every step of the ring,
 * each at the tier that it crosses.
 */
#pragma once

#include "kernels/kernels.h"

enum {
    TSRI_MACHINE_MAX_TIERS = 4,
    TSRI_MACHINE_NAME_BYTES = 48
};

typedef enum tsri_machine_type {
    TSRI_MACHINE_F32 = 0,
    TSRI_MACHINE_HALF, /* bf16 and f16 */
    TSRI_MACHINE_TYPES
} tsri_machine_type;

typedef struct tsri_tier {
    char name[TSRI_MACHINE_NAME_BYTES];
    int span;           /* consecutive ranks that it joins; 0: all */
    double bytes_per_s; /* one way, of one block of the tier below */
    double hop_s;       /* latency of a step of a ring across it */
    double busy_s;      /* that a collective whose slowest tier this is takes longer when it begins
                           while the rank computes, but no longer than until compute waits: the
                           thread that moves it wants a core (cpu) */
} tsri_tier;

typedef struct tsri_machine {
    char name[TSRI_MACHINE_NAME_BYTES];
    bool inline_compute; /* kernels run on the host thread that enqueues them (cpu) */
    double memory_bytes; /* of a device; 0: unknown */
    double peak_flops[TSRI_MACHINE_TYPES];   /* of a device, by its maker; 0: unknown */
    double flops[TSRI_MACHINE_TYPES];        /* that matrix products reach */
    double bytes_per_s;                      /* that other kernels reach */
    double kernel_rate[TSRK_COUNT];          /* of single kernels, flops or bytes per second; 0: as
                                                above */
    double launch_s;                         /* least time of a kernel */
    double call_s;                           /* of a collective besides its hops */
    double host_bytes_per_s;                 /* between device and host memory */
    tsri_tier tiers[TSRI_MACHINE_MAX_TIERS]; /* from the nearest */
    int tier_count;
} tsri_machine;

/** Seconds of a kernel that touches bytes and computes flops in type. */
double tsri_machine_kernel_s(const tsri_machine *machine, tsrk_id kernel, double bytes,
                             double flops, tsr_dtype type);

/** How a group of ranks lies on a machine. */
typedef struct tsri_reach {
    int top;                               /* slowest tier that its ring crosses; -1: none */
    int hops[TSRI_MACHINE_MAX_TIERS];      /* steps of the ring by the tier they cross */
    double shared[TSRI_MACHINE_MAX_TIERS]; /* groups that share a block's rate; 0: not crossed */
    int blocks[TSRI_MACHINE_MAX_TIERS];    /* blocks of the tier below that the ring joins */
} tsri_reach;

/** members[size] are world ranks in the ring's order; size >= 1. */
void tsri_machine_reach(const tsri_machine *machine, const int *members, int size, tsri_reach *out);

/** Bytes that each block of tier's tier below sends through it for one collective of `bytes` over
 * size ranks, by the ring; 0 if the ring does not cross it. */
double tsri_machine_crossing(const tsri_reach *reach, int tier, int kind, double bytes, int size);

/** Seconds of a collective (tsri_coll_kind) of `bytes` in all over size ranks of that reach.
 *  *tier_out: the tier that it keeps busy. */
double tsri_machine_collective_s(const tsri_machine *machine, const tsri_reach *reach, int kind,
                                 double bytes, int size, int *tier_out);
