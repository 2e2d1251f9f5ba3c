/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_topo.c
 * The pitfalls of machine records one by one, every refusal, and the properties of a plan.
 *
 * What whole machines look like is in test_topo_golden.c.
 */
#include "base/base.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/machine.h"
#include "support/tsr_test.h"
#include "topo/mesh.h"
#include "topo/plan.h"

/* ---- machines ---- */

static tsri_topo *described(const char *text)
{
    char *xml = NULL;
    tsri_topo *topo = NULL;

    CHECK_OK(tsr_machine_xml(text, "test", &xml));
    if (xml != NULL) {
        CHECK_OK(tsri_topo_read(TSRI_TOPO_XML_TEXT, xml, &topo));
    }
    tsri_free(&xml);
    return topo;
}

static tsri_topo *golden(const char *name)
{
    char *text = NULL;
    size_t bytes = 0;
    tsri_topo *topo = NULL;

    CHECK_OK(tsri_file_read(tsr_test_golden_path(name), &text, &bytes));
    if (text != NULL) {
        topo = described(text);
    }
    tsri_free(&text);
    return topo;
}

static tsri_topo_plan *planned(const tsri_topo *topo, tsri_topo_ask ask)
{
    tsri_topo_plan *plan = NULL;

    CHECK_OK(tsri_topo_plan_create(topo, &ask, &plan));
    return plan;
}

static bool noted(const tsri_topo_plan *plan, const char *subject, const char *words)
{
    for (int i = 0; i < plan->notes.count; i++) {
        if (strcmp(plan->notes.at[i].subject, subject) == 0 &&
            strstr(plan->notes.at[i].text, words) != NULL) {
            return true;
        }
    }
    return false;
}

/* Every core at most once, none that may not be used, and whole shares. */
static void check_cores(const tsri_topo *topo, const tsri_topo_plan *plan)
{
    int *users = NULL;
    int least = topo->core_count;

    REQUIRE_OK(tsri_alloc((size_t)topo->core_count, sizeof(int), &users));
    for (int i = 0; i < plan->place_count; i++) {
        const tsri_topo_place *p = &plan->places[i];

        least = p->core_count < least ? p->core_count : least;
        for (int k = 0; k < p->core_count; k++) {
            const int core = plan->cores[p->core_first + k];

            CHECK(core >= 0 && core < topo->core_count);
            CHECK_EQ(++users[core], 1);
        }
    }
    CHECK_EQ(least > 0, topo->core_count >= plan->place_count);
    tsri_free(&users);
}

/* ---- links ---- */

/* Merging ports succeeds on a switched machine, and only then is the closure taken. */
static void switches_are_closed(void)
{
    tsri_topo *topo = golden("topo/nvswitch8.desc");

    REQUIRE(topo != NULL);
    CHECK(topo->link_switched);
    CHECK_EQ(topo->gpu_count, 8);
    for (int a = 0; a < 8; a++) {
        for (int b = 0; b < 8; b++) {
            CHECK_NEAR(tsri_topo_link(topo, a, b), a == b ? 0.0 : 450.0, 0.0);
        }
    }
    tsri_topo_free(&topo);
}

/* The closure would erase the direct links of a machine without switches. */
static void direct_links_are_kept(void)
{
    tsri_topo *topo = described("package\nnuma 4 1 8\nhost 0000:10\n"
                                "gpu 0000:11:00.0\ngpu 0000:12:00.0\ngpu 0000:13:00.0\n"
                                "link 0 1 40\nlink 1 2 20\n");

    REQUIRE(topo != NULL);
    CHECK(!topo->link_switched);
    CHECK_NEAR(tsri_topo_link(topo, 0, 1), 40.0, 0.0);
    CHECK_NEAR(tsri_topo_link(topo, 2, 1), 20.0, 0.0);
    CHECK_NEAR(tsri_topo_link(topo, 0, 2), 0.0, 0.0);
    tsri_topo_free(&topo);
}

static void weak_links_do_not_join(void)
{
    static const char *const machine = "package\nnuma 4 1 8\nhost 0000:10\n"
                                       "gpu 0000:11:00.0\ngpu 0000:12:00.0\n"
                                       "gpu 0000:13:00.0\ngpu 0000:14:00.0\n"
                                       "link 0 1 100\nlink 2 3 100\n";
    char text[512];

    /* A quarter of the largest does not count, a little more does. */
    for (int more = 0; more < 2; more++) {
        (void)snprintf(text, sizeof(text), "%slink 1 2 %g\n", machine, more ? 25.1 : 25.0);
        tsri_topo *topo = described(text);
        tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

        CHECK_EQ(plan->island_count, more ? 1 : 2);
        CHECK_EQ(plan->rule, TSRI_TOPO_RULE_LINKS);
        tsri_topo_plan_free(&plan);
        tsri_topo_free(&topo);
    }
}

/* ---- what records lack ---- */

static void numa_may_be_unknown(void)
{
    tsri_topo *topo = golden("topo/numa_unknown.desc");
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    for (int i = 0; i < 4; i++) {
        CHECK_EQ(topo->gpus[i].at.numa, -1);
        CHECK_EQ(topo->gpus[i].at.package, -1);
        CHECK_EQ(plan->places[i].nic, 0);
    }
    check_cores(topo, plan);
    CHECK(noted(plan, "islands", "neither links"));
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

static void bridges_may_be_missing(void)
{
    tsri_topo *topo = golden("topo/no_bridges.desc");
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->bridge_count, 0);
    CHECK_EQ(plan->rule, TSRI_TOPO_RULE_NUMA);
    CHECK_EQ(plan->island_count, 2);
    CHECK_STATUS(
        TSR_ERR_INVALID,
        tsri_topo_plan_create(topo, &(tsri_topo_ask){.islands = TSRI_TOPO_RULE_SWITCH}, &plan));
    CHECK_STATUS(
        TSR_ERR_INVALID,
        tsri_topo_plan_create(topo, &(tsri_topo_ask){.islands = TSRI_TOPO_RULE_LINKS}, &plan));
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

static void hidden_gpus_get_no_rank(void)
{
    tsri_topo *topo = golden("topo/hidden.desc");
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->gpu_count, 4);
    CHECK_EQ(tsri_topo_visible(topo), 3);
    CHECK_EQ(plan->place_count, 3);
    for (int i = 0; i < 3; i++) {
        CHECK(plan->places[i].gpu != 1);
    }
    CHECK(noted(plan, "gpus", "1 of 4 GPUs"));
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

/* Where no library has named a GPU, all on the bus are taken for visible. */
static void plain_pci_is_enough(void)
{
    tsri_topo *topo = described("package\nnuma 4 1 8\nhost 0000:10\n"
                                "gpu 0000:11:00.0\ngpu 0000:12:00.0\n");

    CHECK_EQ(tsri_topo_visible(topo), 2);
    CHECK_EQ(topo->gpus[0].device, -1);
    CHECK(topo->links == NULL);
    tsri_topo_free(&topo);
}

static void device_numbers_follow_the_gpu(void)
{
    tsri_topo *topo = golden("topo/swapped.desc");
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    CHECK_STR(topo->gpus[0].at.busid, "0000:12:00.0");
    CHECK_EQ(topo->gpus[0].device, 3);
    CHECK_EQ(topo->gpus[2].device, 0);
    CHECK(noted(plan, "gpus", "not numbered in PCI order"));
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

static void cpusets_may_be_smaller(void)
{
    tsri_topo *topo = golden("topo/small_cpuset.desc");
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->core_total, 16);
    CHECK_EQ(topo->core_count, 8);
    CHECK_EQ(topo->gpus[0].at.numa, 0); /* found, though its node's cores are not ours */
    CHECK_EQ(topo->numas[0].core_count, 0);
    check_cores(topo, plan);
    CHECK(noted(plan, "cores", "8 of the machine's 16 cores"));
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
    topo = golden("topo/few_cores.desc");
    plan = planned(topo, (tsri_topo_ask){0});
    check_cores(topo, plan);
    CHECK_EQ(plan->places[0].core_count, 0);
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

/* ---- NICs ---- */

/* All NICs are equally near; nearest-first would give every GPU the first one. */
static void nics_are_matched_not_taken(void)
{
    tsri_topo *topo = golden("topo/nic_ties.desc");
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});
    int load[4] = {0};

    for (int i = 0; i < 4; i++) {
        load[plan->places[i].nic]++;
    }
    CHECK_EQ(load[0] + load[1] + load[2], 4);
    CHECK(load[0] >= 1 && load[1] >= 1 && load[2] >= 1);
    CHECK_EQ(load[3], 0); /* a network interface beside OpenFabrics devices */
    tsri_topo_plan_free(&plan);
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
    return described(text);
}

static int load_of(const tsri_topo_plan *plan, int nic)
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
        tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

        for (int i = 0; topo->nic_count > 0 && i < plan->place_count; i++) {
            const tsri_topo_place *p = &plan->places[i];

            REQUIRE(p->nic >= 0);
            for (int n = 0; n < topo->nic_count; n++) {
                const int near = tsri_topo_near(&topo->gpus[p->gpu].at, &topo->nics[n].at);

                CHECK(near <= p->nic_near);
                CHECK(near < p->nic_near || load_of(plan, n) + 1 >= load_of(plan, p->nic));
            }
        }
        tsri_topo_plan_free(&plan);
        tsri_topo_free(&topo);
    }
}

/* ---- plans ---- */

static void few_ranks_stay_in_one_island(void)
{
    tsri_topo *topo = golden("topo/two_islands.desc");

    for (int ranks = 1; ranks <= 8; ranks++) {
        tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){.ranks = ranks});

        CHECK_EQ(plan->place_count, ranks);
        CHECK_EQ(plan->island_count, ranks <= 4 ? 1 : 2);
        for (int i = 1; i < ranks; i++) { /* islands are runs */
            CHECK(plan->places[i].island >= plan->places[i - 1].island);
            for (int k = 0; k < i; k++) {
                CHECK(plan->places[i].gpu != plan->places[k].gpu);
            }
        }
        check_cores(topo, plan);
        tsri_topo_plan_free(&plan);
    }
    tsri_topo_plan *crowd = planned(topo, (tsri_topo_ask){.ranks = 9});

    CHECK_EQ(crowd->places[8].gpu, -1);
    CHECK(noted(crowd, "islands", "9 ranks, but 8 GPUs"));
    tsri_topo_plan_free(&crowd);
    tsri_topo_free(&topo);
}

static void check_order(const char *text, const int *expected)
{
    tsri_topo *topo = described(text);
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    for (int i = 0; i < plan->place_count; i++) {
        CHECK_EQ(plan->places[i].gpu, expected[i]);
    }
    tsri_topo_plan_free(&plan);
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
    tsri_topo *topo = golden("topo/two_islands.desc");
    static const int expected[] = {2, 2, 4, 2, 1};

    for (int rule = 0; rule < TSRI_TOPO_RULE_COUNT; rule++) {
        tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){.islands = (tsri_topo_rule)rule});
        tsri_topo_rule parsed = TSRI_TOPO_RULE_AUTO;

        CHECK_EQ(plan->island_count, expected[rule]);
        CHECK_OK(tsri_topo_rule_parse(tsri_topo_rule_name((tsri_topo_rule)rule), &parsed));
        CHECK_EQ(parsed, rule);
        tsri_topo_plan_free(&plan);
    }
    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_rule_parse("nmua", &(tsri_topo_rule){0}));
    tsri_topo_free(&topo);
}

static void meshes_are_refused(void)
{
    tsri_topo *topo = golden("topo/two_islands.desc");
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});
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
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

static void check_proposal(const tsri_topo_plan *plan, int nodes, int tp, const char *shard_text,
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
    tsri_topo *topo = golden("topo/two_islands.desc");
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    check_proposal(plan, 1, 0, "node", "shard=8");
    check_proposal(plan, 4, 0, "node", "replicate=4,shard=8");
    check_proposal(plan, 4, 2, "2", "replicate=2,shard=8,tp=2");
    check_proposal(plan, 4, 4, "4", "shard=8,tp=4");
    check_proposal(plan, 2, 2, "1/2", "replicate=4,shard=2,tp=2");
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

/* ---- hosts ---- */

static void hosts_must_be_alike(void)
{
    tsri_topo *a = golden("topo/two_islands.desc");
    tsri_topo *b = golden("topo/hidden.desc");
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
    tsri_topo *topo = golden("topo/two_islands.desc");
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

/* ---- sources ---- */

static void sources_are_refused(void)
{
    tsri_topo *topo = NULL;
    static const struct {
        const char *xml, *words;
    } bad[] = {
        {"<topology version=\"3.0\"><object type=\"Machine\"/></topology>", "version 3.0"},
        {"<system version=\"1\"><cpu numaid=\"0\"/></system>", "of NCCL"},
        {"some text", "no hwloc XML"},
        {"", "no hwloc XML"},
        {"<topology version=\"2.0\">", "damaged"},
        {"<topology version=\"2.0\"></topology>", "damaged"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_EQ(tsri_topo_read(TSRI_TOPO_XML_TEXT, bad[i].xml, &topo), TSR_ERR_FORMAT);
        CHECK(strstr(tsr_error_message(), bad[i].words) != NULL);
        tsr_error_clear();
    }
    CHECK_STATUS(TSR_ERR_IO, tsri_topo_read(TSRI_TOPO_XML, "/nowhere/machine.xml", &topo));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_read(TSRI_TOPO_SYNTHETIC, "package:", &topo));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_topo_read(TSRI_TOPO_SYNTHETIC, "", &topo));
    CHECK(topo == NULL);
}

static void this_machine_is_read(void)
{
    tsri_topo *topo = NULL;

    REQUIRE_OK(tsri_topo_read(TSRI_TOPO_LIVE, NULL, &topo));
    CHECK(topo->core_count >= 1);
    CHECK(topo->pu_count >= topo->core_count);
    CHECK(topo->host[0] != '\0');
    tsri_topo_free(&topo);
}

static void memory_may_run_out(void)
{
    char *text = NULL;
    char *xml = NULL;
    size_t bytes = 0;
    tsr_status status = TSR_ERR_NOMEM;

    REQUIRE_OK(tsri_file_read(tsr_test_golden_path("topo/two_islands.desc"), &text, &bytes));
    REQUIRE_OK(tsr_machine_xml(text, "test", &xml));
    tsri_free(&text);
    const int64_t before = tsri_alloc_live();

    for (int n = 1; status == TSR_ERR_NOMEM && n < 2000; n++) {
        tsri_topo *topo = NULL;
        tsri_topo_plan *plan = NULL;

        tsri_alloc_fail_at(n);
        status = tsri_topo_read(TSRI_TOPO_XML_TEXT, xml, &topo);
        if (status == TSR_OK) {
            status = tsri_topo_plan_create(topo, &(tsri_topo_ask){0}, &plan);
        }
        tsri_alloc_fail_at(0);
        tsri_topo_plan_free(&plan);
        tsri_topo_free(&topo);
        CHECK_EQ(tsri_alloc_live(), before);
        tsr_error_clear();
    }
    CHECK_EQ(status, TSR_OK);
    tsri_free(&xml);
}

/* ---- recorded machines ---- */

/* Where records are: TSR_TOPOLOGIES, or ../shared/topologies beside the checkout. */
static bool recorded(const char *name, tsri_topo **out)
{
    const char *folder = getenv("TSR_TOPOLOGIES");
    char path[1024];

    (void)snprintf(path, sizeof(path), "%s/%s",
                   folder != NULL ? folder : tsr_test_source_path("../../shared/topologies"), name);
    if (access(path, R_OK) != 0) {
        (void)printf("skipped: no %s\n", path);
        return false;
    }
    CHECK_OK(tsri_topo_read(TSRI_TOPO_XML, path, out));
    return *out != NULL;
}

static void recorded_dgx2(void)
{
    tsri_topo *topo = NULL;

    if (!recorded("nvidia-dgx2-16xv100.xml", &topo)) {
        return;
    }
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->gpu_count, 16);
    CHECK(topo->link_switched);
    for (int i = 0; i < 16 * 16; i++) {
        CHECK_NEAR(topo->links[i], i / 16 == i % 16 ? 0.0 : 150.0, 0.0);
    }
    CHECK_EQ(plan->island_count, 1);
    for (int i = 0; i < 16; i++) { /* in PCI order, eight on each NUMA node */
        CHECK_EQ(plan->places[i].gpu, i);
        CHECK_EQ(plan->places[i].numa, i / 8);
    }
    CHECK_EQ(plan->core_count, 0); /* 4 cores in the record */
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

static void recorded_power8(void)
{
    tsri_topo *topo = NULL;

    if (!recorded("power8-4xp100.xml", &topo)) {
        return;
    }
    tsri_topo_plan *plan = planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->gpu_count, 4);
    CHECK(!topo->link_switched);
    for (int i = 0; i < 16; i++) { /* pairs; packages in the matrix are no GPUs */
        CHECK_NEAR(topo->links[i], i / 4 != i % 4 && i / 8 == i % 4 / 2 ? 40.0 : 0.0, 0.0);
    }
    CHECK_EQ(plan->island_count, 2);
    CHECK_EQ(tsri_topo_island_divisor(plan), 2);
    check_cores(topo, plan);
    tsri_topo_plan_free(&plan);
    tsri_topo_free(&topo);
}

const tsr_test_case tsr_test_cases[] = {
    {"switches_are_closed", switches_are_closed},
    {"direct_links_are_kept", direct_links_are_kept},
    {"weak_links_do_not_join", weak_links_do_not_join},
    {"numa_may_be_unknown", numa_may_be_unknown},
    {"bridges_may_be_missing", bridges_may_be_missing},
    {"hidden_gpus_get_no_rank", hidden_gpus_get_no_rank},
    {"plain_pci_is_enough", plain_pci_is_enough},
    {"device_numbers_follow_the_gpu", device_numbers_follow_the_gpu},
    {"cpusets_may_be_smaller", cpusets_may_be_smaller},
    {"nics_are_matched_not_taken", nics_are_matched_not_taken},
    {"matching_is_even", matching_is_even},
    {"few_ranks_stay_in_one_island", few_ranks_stay_in_one_island},
    {"near_ranks_are_near", near_ranks_are_near},
    {"islands_can_be_chosen", islands_can_be_chosen},
    {"meshes_are_refused", meshes_are_refused},
    {"meshes_are_proposed", meshes_are_proposed},
    {"hosts_must_be_alike", hosts_must_be_alike},
    {"packed_machines_are_checked", packed_machines_are_checked},
    {"sources_are_refused", sources_are_refused},
    {"this_machine_is_read", this_machine_is_read},
    {"memory_may_run_out", memory_may_run_out},
    {"recorded_dgx2", recorded_dgx2},
    {"recorded_power8", recorded_power8},
    {NULL, NULL},
};
