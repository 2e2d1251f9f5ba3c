/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Times of single operations on a simulated machine. */
#include "plan/machine.h"

#include "backend/backend.h"
#include "base/base.h"

#include <math.h>

/* Of the rate that a ring reaches; NCCL's own model has the same figure (src/graph/tuning.cc). */
static const double tree_efficiency = 0.92;

double tsri_machine_kernel_s(const tsri_machine *machine, tsrk_id kernel, double bytes,
                             double flops, tsr_dtype type)
{
    const double own = machine->kernel_rate[kernel];
    const double product =
        machine->flops[type == TSR_BF16 || type == TSR_F16 ? TSRI_MACHINE_HALF : TSRI_MACHINE_F32];
    const double moved = machine->bytes_per_s > 0.0 ? bytes / machine->bytes_per_s : 0.0;

    if (own > 0.0 && flops <= 0.0) {
        return machine->launch_s + bytes / own;
    }
    /* A rate of its own is that of the fastest type. */
    const bool has_own = own > 0.0 && !(product > 0.0 && product < own);
    const double rate = has_own ? own : product;
    const double multiplied = flops > 0.0 && rate > 0.0 ? flops / rate : 0.0;

    if (!machine->inline_compute) {
        return machine->launch_s + multiplied + moved;
    }
    return machine->launch_s + (own > 0.0 ? multiplied : tsri_max_double(moved, multiplied));
}

/* The block of the tier below tier that rank lies in. */
static int block_of(const tsri_machine *machine, int tier, int rank)
{
    return tier == 0 ? rank : rank / machine->tiers[tier - 1].span;
}

/* The first tier that joins ranks a and b. */
static int tier_between(const tsri_machine *machine, int a, int b)
{
    for (int tier = 0; tier < machine->tier_count; tier++) {
        const int span = machine->tiers[tier].span;

        if (span == 0 || a / span == b / span) {
            return tier;
        }
    }
    return machine->tier_count - 1;
}

/* Members within the block of the first member, and blocks in all, at the tier below `tier`. */
static void count_blocks(const tsri_machine *machine, int tier, const int *members, int size,
                         int *in_first, int *blocks)
{
    *in_first = 0;
    *blocks = 1;
    for (int m = 0; m < size; m++) {
        const int block = block_of(machine, tier, members[m]);

        *in_first += block == block_of(machine, tier, members[0]);
        *blocks += m > 0 && block != block_of(machine, tier, members[m - 1]);
    }
}

void tsri_machine_reach(const tsri_machine *machine, const int *members, int size, tsri_reach *out)
{
    *out = (tsri_reach){.top = -1};
    for (int m = 0; m < size && size > 1 && machine->tier_count > 0; m++) {
        const int tier = tier_between(machine, members[m], members[(m + 1) % size]);

        out->hops[tier]++;
        out->top = tier > out->top ? tier : out->top;
    }
    for (int tier = 0; tier <= out->top; tier++) {
        int in_first = 0;

        count_blocks(machine, tier, members, size, &in_first, &out->blocks[tier]);
        if (out->blocks[tier] > 1) {
            const int ranks = tier == 0 ? 1 : machine->tiers[tier - 1].span;

            out->shared[tier] = (double)ranks / (double)in_first;
        }
    }
}

double tsri_machine_crossing(const tsri_reach *reach, int tier, int kind, double bytes, int size)
{
    const double w = (double)size;
    const double once = bytes * (w - 1.0) / w;

    if (reach->shared[tier] == 0.0) {
        return 0.0;
    }
    if (kind == TSRI_ALL_REDUCE) {
        return 2.0 * once;
    }
    if (kind == TSRI_ALL_TO_ALL) { /* each member sends to every other by itself */
        const double blocks = (double)reach->blocks[tier];

        return bytes * (blocks - 1.0) / blocks * (w / blocks);
    }
    return once;
}

/* Seconds by ring, without the call. */
static double ring_s(const tsri_machine *machine, const tsri_reach *reach, int kind,
                     double moving_s, int size)
{
    const double rounds = kind == TSRI_ALL_REDUCE ? 2.0 : 1.0;
    double hops = 0.0;

    for (int tier = 0; tier <= reach->top; tier++) {
        hops += (double)reach->hops[tier] * machine->tiers[tier].hop_s;
    }
    /* A ring of W steps needs W - 1. */
    return rounds * hops * ((double)size - 1.0) / (double)size + moving_s;
}

/* The same by trees; NAN: the library has none for this. */
static double tree_s(const tsri_machine *machine, const tsri_reach *reach, int kind,
                     double moving_s, int size)
{
    const double levels = ceil(log2((double)reach->blocks[reach->top]));
    const double top_s = levels * machine->tiers[reach->top].hop_s;
    double chain_s = 0.0;

    if (machine->inline_compute || kind == TSRI_ALL_TO_ALL || kind == TSRI_BROADCAST) {
        return NAN;
    }
    for (int tier = 0; tier < reach->top; tier++) {
        const double members = (double)reach->blocks[tier] / (double)reach->blocks[tier + 1];

        chain_s += (members - 1.0) * machine->tiers[tier].hop_s;
    }
    if (kind == TSRI_ALL_REDUCE) {
        return 2.0 * (chain_s + top_s) +
               moving_s * (double)size / ((double)size - 1.0) / tree_efficiency;
    }
    return chain_s > 0.0 || reach->top == 0 ? (double)NAN : top_s + moving_s / tree_efficiency;
}

double tsri_machine_collective_s(const tsri_machine *machine, const tsri_reach *reach, int kind,
                                 double bytes, int size, int *tier_out)
{
    double slowest = 0.0;

    *tier_out = reach->top;
    if (reach->top < 0) {
        return 0.0;
    }
    for (int tier = 0; tier <= reach->top; tier++) {
        const tsri_tier *t = &machine->tiers[tier];
        const double sent =
            tsri_machine_crossing(reach, tier, kind, bytes, size) * reach->shared[tier];
        const double seconds = t->bytes_per_s > 0.0 ? sent / t->bytes_per_s : 0.0;

        if (seconds > slowest) {
            slowest = seconds;
            *tier_out = tier;
        }
    }
    return machine->call_s + fmin(ring_s(machine, reach, kind, slowest, size),
                                  tree_s(machine, reach, kind, slowest, size));
}
