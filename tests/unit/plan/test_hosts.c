/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Bytes between hosts by the ring rule, on made-up ledgers: each number is counted by hand. */
#include "base/base.h"

#include "plan/hosts.h"
#include "support/tsr_test.h"

enum {
    REPLICATE = 1,
    SHARD = 2,
    BOTH = 3
};

static tsr_mesh *two_by_two(void)
{
    static const tsr_mesh_axis axes[] = {{"replicate", 2}, {"shard", 2}};
    tsr_mesh *mesh = NULL;

    CHECK_OK(tsr_mesh_create(4, axes, 2, NULL, &mesh));
    return mesh;
}

static void count(const tsri_entry *entries, int entry_count, const int *nodes, int rank,
                  double rank_bytes, double host_bytes)
{
    tsr_mesh *mesh = two_by_two();
    tsri_host_bytes found = {-1.0, -1.0};

    CHECK_OK(tsri_host_bytes_count(entries, entry_count, mesh, nodes, rank, &found));
    CHECK_NEAR(found.rank, rank_bytes, 0);
    CHECK_NEAR(found.host, host_bytes, 0);
    tsr_mesh_release(&mesh);
}

static tsri_entry call(tsri_coll_kind kind, unsigned mask, size_t sent)
{
    return (tsri_entry){
        .kind = TSRI_ENTRY_COLLECTIVE, .op = (int)kind, .axis_mask = mask, .sent_bytes = sent};
}

/* Ranks 0, 1 | 2, 3: shard groups lie inside, every replicate group crosses with both members. */
static void shards_inside(void)
{
    static const int nodes[] = {0, 0, 1, 1};
    const tsri_entry shard[] = {call(TSRI_ALL_GATHER, SHARD, 100)};
    const tsri_entry replicate[] = {call(TSRI_ALL_REDUCE, REPLICATE, 10)};
    const tsri_entry mixed[] = {call(TSRI_ALL_GATHER, SHARD, 100),
                                call(TSRI_ALL_REDUCE, REPLICATE, 10),
                                call(TSRI_ALL_REDUCE, REPLICATE, 7)};

    count(shard, 1, nodes, 0, 0, 0);
    count(replicate, 1, nodes, 0, 10, 20);
    count(replicate, 1, nodes, 3, 10, 20);
    count(mixed, 3, nodes, 1, 17, 34);
}

/* One ring over all four: 0 > 1 > 2 > 3 > 0 leaves the hosts after 1 and after 3. */
static void one_ring_over_all(void)
{
    static const int nodes[] = {0, 0, 1, 1};
    const tsri_entry both[] = {call(TSRI_REDUCE_SCATTER, BOTH, 30)};

    count(both, 1, nodes, 0, 0, 30);
    count(both, 1, nodes, 1, 30, 30);
    count(both, 1, nodes, 2, 0, 30);
    count(both, 1, nodes, 3, 30, 30);
}

/* Two of the three that an all-to-all sends to are elsewhere. */
static void all_to_all_goes_everywhere(void)
{
    static const int nodes[] = {0, 0, 1, 1};
    const tsri_entry all[] = {call(TSRI_ALL_TO_ALL, BOTH, 30), call(TSRI_ALL_GATHER, BOTH, 3)};

    count(all, 1, nodes, 0, 20, 40);
    count(all, 2, nodes, 0, 20, 43);
    count(all, 2, nodes, 1, 23, 43);
}

/* Hosts of one rank, of all ranks, and of unequal size. */
static void other_hosts(void)
{
    static const int alone[] = {0, 1, 2, 3};
    static const int together[] = {5, 5, 5, 5};
    static const int uneven[] = {0, 1, 1, 1};
    const tsri_entry e[] = {call(TSRI_ALL_GATHER, SHARD, 100), call(TSRI_ALL_GATHER, REPLICATE, 10),
                            call(TSRI_ALL_GATHER, BOTH, 1)};

    count(e, 3, alone, 2, 111, 111);
    count(e, 3, together, 2, 0, 0);
    count(e, 3, NULL, 2, 0, 0);
    count(e, 3, uneven, 0, 111, 111);
    /* 1 sends to 0 along shard, 2 to 0 along replicate, 3 to 0 along both. */
    count(e, 3, uneven, 1, 100, 111);
    count(e, 3, uneven, 2, 10, 111);
    count(e, 3, uneven, 3, 1, 111);
}

/* What is no collective sends nothing. */
static void other_entries(void)
{
    static const int nodes[] = {0, 0, 1, 1};
    tsri_entry e[] = {call(TSRI_ALL_GATHER, REPLICATE, 10)};

    e[0].kind = TSRI_ENTRY_KERNEL;
    count(e, 1, nodes, 0, 0, 0);
    count(e, 0, nodes, 0, 0, 0);
}

const tsr_test_case tsr_test_cases[] = {
    {"shards_inside", shards_inside},
    {"one_ring_over_all", one_ring_over_all},
    {"all_to_all_goes_everywhere", all_to_all_goes_everywhere},
    {"other_hosts", other_hosts},
    {"other_entries", other_entries},
    {NULL, NULL},
};
