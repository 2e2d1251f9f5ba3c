/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_topo.c
 * Reading machines: the pitfalls of records one by one, what is refused, recorded machines.
 *
 * What whole machines look like is in test_topo_golden.c.
 */
#include "base/base.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/machine.h"
#include "support/topo_cases.h"
#include "support/tsr_test.h"
#include "topo/mapping.h"

/* ---- links ---- */

/* Merging ports succeeds on a switched machine, and only then is the closure taken. */
static void switches_are_closed(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/nvswitch8.desc");

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
    tsri_topo *topo = tsr_topo_described("package\nnuma 4 1 8\nhost 0000:10\n"
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
        tsri_topo *topo = tsr_topo_described(text);
        tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

        CHECK_EQ(plan->island_count, more ? 1 : 2);
        CHECK_EQ(plan->rule, TSRI_TOPO_RULE_LINKS);
        tsri_topo_mapping_free(&plan);
        tsri_topo_free(&topo);
    }
}

/* ---- what records lack ---- */

static void numa_may_be_unknown(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/numa_unknown.desc");
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

    for (int i = 0; i < 4; i++) {
        CHECK_EQ(topo->gpus[i].at.numa, -1);
        CHECK_EQ(topo->gpus[i].at.package, -1);
        CHECK_EQ(plan->places[i].nic, 0);
    }
    tsr_topo_check_cores(topo, plan);
    CHECK(tsr_topo_noted(plan, "islands", "neither links"));
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

static void bridges_may_be_missing(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/no_bridges.desc");
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->bridge_count, 0);
    CHECK_EQ(plan->rule, TSRI_TOPO_RULE_NUMA);
    CHECK_EQ(plan->island_count, 2);
    CHECK_STATUS(
        TSR_ERR_INVALID,
        tsri_topo_mapping_create(topo, &(tsri_topo_ask){.islands = TSRI_TOPO_RULE_SWITCH}, &plan));
    CHECK_STATUS(
        TSR_ERR_INVALID,
        tsri_topo_mapping_create(topo, &(tsri_topo_ask){.islands = TSRI_TOPO_RULE_LINKS}, &plan));
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

static void hidden_gpus_get_no_rank(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/hidden.desc");
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->gpu_count, 4);
    CHECK_EQ(tsri_topo_visible(topo), 3);
    CHECK_EQ(plan->place_count, 3);
    for (int i = 0; i < 3; i++) {
        CHECK(plan->places[i].gpu != 1);
    }
    CHECK(tsr_topo_noted(plan, "gpus", "1 of 4 GPUs"));
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

/* Where no library has named a GPU, all on the bus are taken for visible. */
static void plain_pci_is_enough(void)
{
    tsri_topo *topo = tsr_topo_described("package\nnuma 4 1 8\nhost 0000:10\n"
                                         "gpu 0000:11:00.0\ngpu 0000:12:00.0\n");

    CHECK_EQ(tsri_topo_visible(topo), 2);
    CHECK_EQ(topo->gpus[0].device, -1);
    CHECK(topo->links == NULL);
    tsri_topo_free(&topo);
}

static void device_numbers_follow_the_gpu(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/swapped.desc");
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

    CHECK_STR(topo->gpus[0].at.busid, "0000:12:00.0");
    CHECK_EQ(topo->gpus[0].device, 3);
    CHECK_EQ(topo->gpus[2].device, 0);
    CHECK(tsr_topo_noted(plan, "gpus", "not numbered in PCI order"));
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

static void cpusets_may_be_smaller(void)
{
    tsri_topo *topo = tsr_topo_golden("topo/small_cpuset.desc");
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->core_total, 16);
    CHECK_EQ(topo->core_count, 8);
    CHECK_EQ(topo->gpus[0].at.numa, 0); /* found, though its node's cores are not ours */
    CHECK_EQ(topo->numas[0].core_count, 0);
    tsr_topo_check_cores(topo, plan);
    CHECK(tsr_topo_noted(plan, "cores", "8 of the machine's 16 cores"));
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
    topo = tsr_topo_golden("topo/few_cores.desc");
    plan = tsr_topo_planned(topo, (tsri_topo_ask){0});
    tsr_topo_check_cores(topo, plan);
    CHECK_EQ(plan->places[0].core_count, 0);
    tsri_topo_mapping_free(&plan);
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

#ifdef __SANITIZE_ADDRESS__
    /* hwloc's PCI plugin leaks, and is unloaded before anybody could tell whose leak it is. */
    (void)setenv("HWLOC_COMPONENTS", "-pci", 1);
#endif
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
        tsri_topo_mapping *plan = NULL;

        tsri_alloc_fail_at(n);
        status = tsri_topo_read(TSRI_TOPO_XML_TEXT, xml, &topo);
        if (status == TSR_OK) {
            status = tsri_topo_mapping_create(topo, &(tsri_topo_ask){0}, &plan);
        }
        tsri_alloc_fail_at(0);
        tsri_topo_mapping_free(&plan);
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
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

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
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
}

static void recorded_power8(void)
{
    tsri_topo *topo = NULL;

    if (!recorded("power8-4xp100.xml", &topo)) {
        return;
    }
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

    CHECK_EQ(topo->gpu_count, 4);
    CHECK(!topo->link_switched);
    for (int i = 0; i < 16; i++) { /* pairs; packages in the matrix are no GPUs */
        CHECK_NEAR(topo->links[i], i / 4 != i % 4 && i / 8 == i % 4 / 2 ? 40.0 : 0.0, 0.0);
    }
    CHECK_EQ(plan->island_count, 2);
    CHECK_EQ(tsri_topo_island_divisor(plan), 2);
    tsr_topo_check_cores(topo, plan);
    tsri_topo_mapping_free(&plan);
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
    {"sources_are_refused", sources_are_refused},
    {"this_machine_is_read", this_machine_is_read},
    {"memory_may_run_out", memory_may_run_out},
    {"recorded_dgx2", recorded_dgx2},
    {"recorded_power8", recorded_power8},
    {NULL, NULL},
};
