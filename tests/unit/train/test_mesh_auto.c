/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_mesh_auto.c
 * The mesh of a job that names none.
 */
#include "base/base.h"

#include <string.h>

#include "support/tsr_test.h"
#include "train/mesh_auto.h"

static void check_mesh(tsri_mesh_facts facts, const char *expected, const char *why)
{
    tsri_mesh_text mesh = {.count = 0};
    char reason[192] = "";
    char text[96] = "";
    size_t used = 0;

    REQUIRE_OK(tsri_mesh_auto(&facts, &mesh, reason, sizeof(reason)));
    for (int i = 0; i < mesh.count; i++) {
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s=%d", i > 0 ? "," : "",
                                 mesh.names[i], mesh.axes[i].size);
    }
    CHECK_STR(text, expected);
    CHECK(strstr(reason, why) != NULL);
    CHECK_OK(tsri_mesh_fit(&mesh, facts.ranks));
}

static void axes_follow_hosts(void)
{
    check_mesh((tsri_mesh_facts){.ranks = 1, .hosts = 1}, "shard=1", "its 1 rank");
    check_mesh((tsri_mesh_facts){.ranks = 8, .hosts = 1}, "shard=8", "one host");
    check_mesh((tsri_mesh_facts){.ranks = 8, .hosts = 2}, "replicate=2,shard=4", "the 2 hosts");
    check_mesh((tsri_mesh_facts){.ranks = 4, .hosts = 4}, "replicate=4,shard=1", "the 4 hosts");
    check_mesh((tsri_mesh_facts){.ranks = 7, .hosts = 0}, "shard=7", "unequal");
}

static void tp_follows_memory(void)
{
    check_mesh((tsri_mesh_facts){.ranks = 16, .hosts = 2, .needed_bytes = 100, .device_bytes = 100},
               "replicate=2,shard=8", "hosts");
    check_mesh((tsri_mesh_facts){.ranks = 16, .hosts = 2, .needed_bytes = 150, .device_bytes = 100},
               "replicate=2,shard=4,tp=2", "tp 2");
    check_mesh(
        (tsri_mesh_facts){
            .ranks = 8, .hosts = 1, .tp_divisor = 4, .needed_bytes = 1000, .device_bytes = 100},
        "shard=2,tp=4", "tp 4");
    CHECK_EQ(tsri_mesh_tp_for_memory(0, 100, 8), 1);
    CHECK_EQ(tsri_mesh_tp_for_memory(100, 0, 8), 1);
    CHECK_EQ(tsri_mesh_tp_for_memory(301, 100, 6), 6);
    CHECK_EQ(tsri_mesh_tp_for_memory(300, 100, 6), 3);
}

static void hosts_are_counted(void)
{
    CHECK_EQ(tsri_mesh_hosts(NULL, 5), 1);
    CHECK_EQ(tsri_mesh_hosts((int[]){0, 0, 0, 0}, 4), 1);
    CHECK_EQ(tsri_mesh_hosts((int[]){0, 0, 1, 1}, 4), 2);
    CHECK_EQ(tsri_mesh_hosts((int[]){0, 1, 2}, 3), 3);
    CHECK_EQ(tsri_mesh_hosts((int[]){0, 0, 0, 1}, 4), 0); /* unequal */
    CHECK_EQ(tsri_mesh_hosts((int[]){0, 0, 1}, 3), 0);
    CHECK_EQ(tsri_mesh_hosts((int[]){0, 1, 0, 1}, 4), 0); /* not host by host */
}

static void facts_are_checked(void)
{
    tsri_mesh_text mesh = {.count = 0};
    char reason[64];

    CHECK_STATUS(TSR_ERR_INVALID, tsri_mesh_auto(&(tsri_mesh_facts){.ranks = 7, .hosts = 2}, &mesh,
                                                 reason, sizeof(reason)));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_mesh_auto(&(tsri_mesh_facts){.ranks = 8, .hosts = 2, .tp_divisor = 3}, &mesh,
                                reason, sizeof(reason)));
    CHECK_EQ(mesh.count, 0);
}

const tsr_test_case tsr_test_cases[] = {
    {"axes_follow_hosts", axes_follow_hosts},
    {"tp_follows_memory", tp_follows_memory},
    {"hosts_are_counted", hosts_are_counted},
    {"facts_are_checked", facts_are_checked},
    {NULL, NULL},
};
