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
 *
 * A GPU's library takes a tree instead where that is faster, as NCCL does: an all-reduce goes up
 * and down a pair of binary trees over the blocks of the top tier and a chain within each (Sanders,
 * Speck, Traeff 2009), which takes log2 of the blocks in hops and sends M 2 / 0.92; gathers and
 * reduce-scatters of ranks that are alone in their blocks take log2 W steps (NCCL's PAT).
 *
 * Kernels: of a GPU, seconds = launch + flops / rate + bytes / rate, so that the rate that a
 * product reaches follows from its shape: loading the first tiles and storing the last is not
 * hidden. On a cpu the longer of the two counts, because rates of cpu machines are measured on the
 * shapes of the job at hand. clusters/published.txt has what that was compared with.
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
    bool inline_compute;   /* target cpu: kernels run on the host thread that enqueues them; else a
                              GPU */
    double memory_bytes;   /* of a device; 0: unknown */
    double headroom_bytes; /* of those, what no plan counts: the runtime's context, buffers of
                              communicators, workspaces of libraries */
    double contention; /* seconds that kernels take longer for each second of a collective beside
                          them, below 1 */
    bool native_bf16;  /* multiplies bf16 faster than f32 */
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

/** Seconds of a collective (tsri_coll_kind) of `bytes` in all over size ranks of that reach, by
 * ring or tree. *tier_out: the tier that it keeps busy. */
double tsri_machine_collective_s(const tsri_machine *machine, const tsri_reach *reach, int kind,
                                 double bytes, int size, int *tier_out);
