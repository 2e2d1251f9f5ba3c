/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_topo_plan.c
 * Plans: NICs, rank order, islands, meshes that fit and that do not, hosts that must be alike.
 */
#include "base/base.h"

#include <string.h>

#include "support/topo_cases.h"
#include "support/tsr_test.h"
#include "topo/mapping.h"
#include "topo/mesh.h"

/* ---- NICs ---- */

/* All NICs are equally near; nearest-first would give every GPU the first one. */
static void nics_are_matched_not_taken(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/nic_ties.desc");
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});
    int load[4] = {0};

    for (int i = 0; i < 4; i++) {
        load[plan->places[i].nic]++;
    }
    CHECK_EQ(load[0] + load[1] + load[2], 4);
    CHECK(load[0] >= 1 && load[1] >= 1 && load[2] >= 1);
    CHECK_EQ(load[3], 0); /* a network interface beside OpenFabrics devices */
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

/* Hosts with one to three GPUs and none to two NICs each. */
static tsri_topo *drawn(int seed)
{
    const int hosts = 1 + seed % 3;
    char text[2048];
    size_t used = (size_t)snprintf(text, sizeof(text), "package\nnuma 8 1 8\n");

    for (int h = 1; h <= hosts; h++) {
        const int gpus = 1 + (seed * 7 + h * 3) % 3;
        const int nics = (seed * 5 + h) % 3;

        used += (size_t)snprintf(text + used, sizeof(text) - used, "host 0000:%d0\n", h);
        for (int i = 1; i <= gpus; i++) {
            used +=
                (size_t)snprintf(text + used, sizeof(text) - used, "gpu 0000:%d%d:00.0\n", h, i);
        }
        for (int i = 5; i < 5 + nics; i++) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "nic 0000:%d%d:00.0 n%d%d\n",
                                     h, i, h, i);
        }
    }
    return tsr_topo_described(text);
}

static int load_of(const tsri_topo_mapping *plan, int nic)
{
    int load = 0;

    for (int i = 0; i < plan->place_count; i++) {
        load += plan->places[i].nic == nic;
    }
    return load;
}

/* No GPU has a nearer NIC, and moving one to an equally near NIC would not even out the loads. */
static void matching_is_even(void)
{
    for (int seed = 1; seed < 40; seed++) {
        tsri_topo *topo = drawn(seed);
        tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

        for (int i = 0; topo->nic_count > 0 && i < plan->place_count; i++) {
            const tsri_topo_place *p = &plan->places[i];

            REQUIRE(p->nic >= 0);
            for (int n = 0; n < topo->nic_count; n++) {
                const int near = tsri_topo_near(&topo->gpus[p->gpu].at, &topo->nics[n].at);

                CHECK(near <= p->nic_near);
                CHECK(near < p->nic_near || load_of(plan, n) + 1 >= load_of(plan, p->nic));
            }
        }
        tsri_topo_mapping_free(&plan);
        tsri_topo_free(&topo);
    }
}

/* ---- plans ---- */

static void few_ranks_stay_in_one_island(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/two_islands.desc");

    for (int ranks = 1; ranks <= 8; ranks++) {
        tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){.ranks = ranks});

        CHECK_EQ(plan->place_count, ranks);
        CHECK_EQ(plan->island_count, ranks <= 4 ? 1 : 2);
        for (int i = 1; i < ranks; i++) { /* islands are runs */
            CHECK(plan->places[i].island >= plan->places[i - 1].island);
            for (int k = 0; k < i; k++) {
                CHECK(plan->places[i].gpu != plan->places[k].gpu);
            }
        }
        tsr_topo_check_cores(topo, plan);
        tsri_topo_mapping_free(&plan);
    }
    tsri_topo_mapping *crowd = tsr_topo_planned(topo, (tsri_topo_ask){.ranks = 9});

    CHECK_EQ(crowd->places[8].gpu, -1);
    CHECK(tsr_topo_noted(crowd, "islands", "9 ranks, but 8 GPUs"));
    tsri_topo_mapping_free(&crowd);
    tsri_topo_free(&topo);
}

static void check_order(const char *text, const int *expected)
{
    tsri_topo *topo = tsr_topo_described(text);
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

    for (int i = 0; i < plan->place_count; i++) {
        CHECK_EQ(plan->places[i].gpu, expected[i]);
    }
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

/* NUMA nodes before larger links, those before PCI order. */
static void near_ranks_are_near(void)
{
    check_order("package\nnuma 4 1 8\nhost 0000:10\ngpu 0000:11:00.0\ngpu 0000:12:00.0\n"
                "package\nnuma 4 1 8\nhost 0000:20\ngpu 0000:21:00.0\ngpu 0000:22:00.0\n"
                "link 0 1 25\nlink 0 2 50\nlink 1 3 50\nlink 2 3 25\n",
                (const int[]){0, 1, 3, 2});
    /* PCI addresses that alternate between the nodes. */
    check_order("package\nnuma 4 1 8\nhost 0000:10\ngpu 0000:11:00.0\ngpu 0000:31:00.0\n"
                "package\nnuma 4 1 8\nhost 0000:20\ngpu 0000:21:00.0\ngpu 0000:41:00.0\n"
                "link 0 1 25\nlink 0 2 25\nlink 0 3 25\nlink 1 2 25\nlink 1 3 25\nlink 2 3 25\n",
                (const int[]){0, 2, 1, 3});
    /* Pairs of double links inside a node. */
    check_order("package\nnuma 4 1 8\nhost 0000:10\ngpu 0000:11:00.0\ngpu 0000:12:00.0\n"
                "gpu 0000:13:00.0\ngpu 0000:14:00.0\n"
                "link 0 1 25\nlink 0 3 50\nlink 1 2 50\nlink 2 3 25\n",
                (const int[]){0, 3, 2, 1});
}

static void islands_can_be_chosen(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/two_islands.desc");
    static const int expected[] = {2, 2, 4, 2, 2, 1};

    for (int rule = 0; rule < TSRI_TOPO_RULE_COUNT; rule++) {
        tsri_topo_mapping *plan =
            tsr_topo_planned(topo, (tsri_topo_ask){.islands = (tsri_topo_rule)rule});
        tsri_topo_rule parsed = TSRI_TOPO_RULE_AUTO;

        CHECK_EQ(plan->island_count, expected[rule]);
        CHECK_OK(tsri_topo_rule_parse(tsri_topo_rule_name((tsri_topo_rule)rule), &parsed));
        CHECK_EQ(parsed, rule);
        tsri_topo_mapping_free(&plan);
    }
    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_rule_parse("nmua", &(tsri_topo_rule){0}));
    tsri_topo_free(&topo);
}

static void meshes_are_refused(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/two_islands.desc");
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});
    tsri_topo_mesh *mesh = NULL;
    tsr_mesh_axis axes[3];
    int count = 0;
    tsri_topo_shard shard = {0};
    tsri_topo_notes notes = {0};

    /* tp over both islands; the legal sizes are said. */
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_topo_mesh_create(topo, plan, 1, (tsr_mesh_axis[]){{"tp", 8}}, 1, &mesh));
    CHECK_EQ(tsri_topo_propose(plan, 1, 8, shard, axes, &count, &notes), TSR_ERR_INVALID);
    CHECK(strstr(tsr_error_message(), "legal sizes are 1, 2, 4") != NULL);
    tsr_error_clear();
    /* A legal size on an axis that is not the last. */
    CHECK_EQ(
        tsri_topo_mesh_create(topo, plan, 1, (tsr_mesh_axis[]){{"tp", 4}, {"shard", 2}}, 2, &mesh),
        TSR_ERR_INVALID);
    CHECK(strstr(tsr_error_message(), "tp as the last axis") != NULL);
    tsr_error_clear();
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_topo_mesh_create(topo, plan, 1, (tsr_mesh_axis[]){{"shard", 7}}, 1, &mesh));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_mesh_create(topo, plan, 1 << 20,
                                                        (tsr_mesh_axis[]){{"shard", 8}}, 1, &mesh));
    shard.nodes = 2;
    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_propose(plan, 3, 1, shard, axes, &count, &notes));
    shard = (tsri_topo_shard){.nodes = 1, .part = 3};
    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_propose(plan, 1, 1, shard, axes, &count, &notes));
    for (size_t i = 0; i < 5; i++) {
        static const char *const bad[] = {"", "0", "2/3", "nodes", "1/0"};

        CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_shard_parse(bad[i], &shard));
    }
    CHECK(mesh == NULL);
    CHECK_EQ(notes.count, 0);
    tsri_topo_notes_free(&notes);
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

static void check_proposal(const tsri_topo_mapping *plan, int nodes, int tp, const char *shard_text,
                           const char *expected)
{
    tsr_mesh_axis axes[3];
    tsri_topo_shard shard = {0};
    tsri_topo_notes notes = {0};
    int count = 0;
    char text[64] = "";
    size_t used = 0;

    REQUIRE_OK(tsri_topo_shard_parse(shard_text, &shard));
    REQUIRE_OK(tsri_topo_propose(plan, nodes, tp, shard, axes, &count, &notes));
    for (int i = 0; i < count; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s=%d", i > 0 ? "," : "",
                                 axes[i].name, axes[i].size);
    }
    CHECK_STR(text, expected);
    tsri_topo_notes_free(&notes);
}

static void meshes_are_proposed(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/two_islands.desc");
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

    check_proposal(plan, 1, 0, "node", "shard=8");
    check_proposal(plan, 4, 0, "node", "replicate=4,shard=8");
    check_proposal(plan, 4, 2, "2", "replicate=2,shard=8,tp=2");
    check_proposal(plan, 4, 4, "4", "shard=8,tp=4");
    check_proposal(plan, 2, 2, "1/2", "replicate=4,shard=2,tp=2");
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

/* ---- hosts ---- */

static void hosts_must_be_alike(void)
{
    tsri_topo *a = tsr_topo_golden("topo/two_islands.desc");
    tsri_topo *b = tsr_topo_golden("topo/hidden.desc");
    static const char *const names[] = {"ada", "bob", "cyd"};

    CHECK_OK(tsri_topo_check_hosts(names, (int[]){8, 8, 8}, (const tsri_topo *[]){a, a, a}, 3));
    CHECK_EQ(tsri_topo_check_hosts(names, (int[]){8, 8, 7}, (const tsri_topo *[]){a, a, a}, 3),
             TSR_ERR_INVALID);
    CHECK_STR(tsr_error_message(), "host cyd has 7 ranks, expected 8 as host ada");
    tsr_error_clear();
    CHECK_EQ(tsri_topo_check_hosts(names, (int[]){8, 8, 8}, (const tsri_topo *[]){a, b, a}, 3),
             TSR_ERR_INVALID);
    CHECK(strstr(tsr_error_message(), "host bob has 1 package") != NULL);
    CHECK(strstr(tsr_error_message(), "3 GPUs") != NULL);
    CHECK(strstr(tsr_error_message(), "8 GPUs (A100), 4 NICs as host ada") != NULL);
    tsr_error_clear();
    tsri_topo_free(&a);
    tsri_topo_free(&b);
}

/* Whatever a sender says, an index outside is refused. */
static void packed_machines_are_checked(void)
{
    static const char *const wrong[][2] = {
        {"\"numa\":0", "\"numa\":7"},       {"\"path\":[1", "\"path\":[99"},
        {"\"package\":1", "\"package\":9"}, {"\"kind\":2", "\"kind\":3"},
        {"\"pus\":[0]", "\"pus\":[-1]"},    {"\"links_gb_s\":[0.0,", "\"links_gb_s\":["},
        {"\"gpus\":", "\"cpus\":"},         {"{", "["},
    };
    tsri_topo *topo = tsr_topo_golden("topo/two_islands.desc");
    tsri_topo *copy = NULL;
    char *text = NULL;

    REQUIRE_OK(tsri_topo_pack(topo, &text));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const char *at = strstr(text, wrong[i][0]);
        const size_t size = strlen(text) + 32;
        char *changed = NULL;

        REQUIRE(at != NULL);
        REQUIRE_OK(tsri_alloc(size, 1, &changed));
        (void)snprintf(changed, size, "%.*s%s%s", (int)(at - text), text, wrong[i][1],
                       at + strlen(wrong[i][0]));
        CHECK_STATUS(TSR_ERR_FORMAT, tsri_topo_unpack(changed, strlen(changed), "ada", &copy));
        tsri_free(&changed);
    }
    CHECK(copy == NULL);
    tsri_free(&text);
    tsri_topo_free(&topo);
}

const tsr_test_case tsr_test_cases[] = {
    {"nics_are_matched_not_taken", nics_are_matched_not_taken},
    {"matching_is_even", matching_is_even},
    {"few_ranks_stay_in_one_island", few_ranks_stay_in_one_island},
    {"near_ranks_are_near", near_ranks_are_near},
    {"islands_can_be_chosen", islands_can_be_chosen},
    {"meshes_are_refused", meshes_are_refused},
    {"meshes_are_proposed", meshes_are_proposed},
    {"hosts_must_be_alike", hosts_must_be_alike},
    {"packed_machines_are_checked", packed_machines_are_checked},
    {NULL, NULL},
};
