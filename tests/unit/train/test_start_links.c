/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What is warned of at the start of a run: links unlike the declared ones, gathers over the
 * network.
 */
#include <string.h>

#include "support/tsr_test.h"
#include "train/start_groups.h"
#include "train/start_links.h"

enum {
    DDP = 0,
    FSDP = 3,
    HSDP = 4
};

/* replicate of 2 between hosts at 1 GB/s, shard of 2 inside at 8 GB/s; declared as measured. */
static tsri_start_links two_by_two(void)
{
    return (tsri_start_links){.axes = {{.name = "replicate",
                                        .ranks = 2,
                                        .hosts = 2,
                                        .bytes_per_s = 1e9,
                                        .hop_s = 2e-3,
                                        .declared_bytes_per_s = 1e9},
                                       {.name = "shard",
                                        .ranks = 2,
                                        .hosts = 1,
                                        .bytes_per_s = 8e9,
                                        .hop_s = 5e-6,
                                        .declared_bytes_per_s = 8e9}},
                              .count = 2,
                              .seconds = 0.1};
}

/* The warnings, one after the other. */
static int count_warnings(const tsri_start_links *links, int preset, const char *reason, char *text,
                          size_t size)
{
    static tsri_config config;
    size_t used = 0;
    int count = 0;
    char one[320];

    memset(&config, 0, sizeof(config));
    config.parallel.preset = preset;
    (void)snprintf(config.mesh_reason, sizeof(config.mesh_reason), "%s", reason);
    text[0] = '\0';
    while (tsri_start_links_warning(links, &config, count, one, sizeof(one))) {
        used += (size_t)snprintf(text + used, size - used, "%s\n", one);
        count++;
    }
    return count;
}

static void test_links_unlike_declared_ones(void)
{
    tsri_start_links links = two_by_two();
    char text[1024];

    CHECK_EQ(count_warnings(&links, HSDP, "", text, sizeof(text)), 0);
    links.axes[0].declared_bytes_per_s = 1.9e9;
    links.axes[1].declared_bytes_per_s = 4.1e9;
    CHECK_EQ(count_warnings(&links, HSDP, "", text, sizeof(text)), 0);
    links.axes[0].declared_bytes_per_s = 4e9; /* wrong by 4 */
    CHECK_EQ(count_warnings(&links, HSDP, "", text, sizeof(text)), 1);
    CHECK(
        strstr(text, "axis \"replicate\" sends 1 GB/s a rank, run.cluster says 4: a factor 4.0") !=
        NULL);
    links.axes[1].declared_bytes_per_s = 2e9; /* and the other way */
    CHECK_EQ(count_warnings(&links, HSDP, "", text, sizeof(text)), 2);
    CHECK(strstr(text, "axis \"shard\" sends 8 GB/s a rank, run.cluster says 2: a factor 4.0") !=
          NULL);
    links.seconds = 0.0; /* nothing was measured */
    CHECK_EQ(count_warnings(&links, HSDP, "", text, sizeof(text)), 0);
    links = two_by_two();
    links.axes[0].declared_bytes_per_s = 0.0; /* nothing was declared */
    CHECK_EQ(count_warnings(&links, HSDP, "", text, sizeof(text)), 0);
}

static void test_gathers_over_the_network(void)
{
    tsri_start_links links = two_by_two();
    char text[1024];

    links.seconds = 0.0; /* it needs no measuring */
    links.axes[1].hosts = 2;
    links.axes[1].ranks = 4;
    CHECK_EQ(count_warnings(&links, HSDP, "", text, sizeof(text)), 1);
    CHECK(strstr(text, "axis \"shard\" lies on 2 hosts") != NULL);
    CHECK(strstr(text, "replicate=2,shard=2") != NULL);
    CHECK_EQ(count_warnings(&links, FSDP, "", text, sizeof(text)), 0); /* asked for */
    CHECK_EQ(count_warnings(&links, FSDP, "ranks lie irregularly", text, sizeof(text)), 1);
    CHECK_EQ(count_warnings(&links, DDP, "", text, sizeof(text)), 0);
    (void)snprintf(links.axes[1].name, sizeof(links.axes[1].name), "dp"); /* the last axis counts */
    CHECK_EQ(count_warnings(&links, HSDP, "", text, sizeof(text)), 1);
    CHECK(strstr(text, "axis \"dp\"") != NULL);
}

static void test_text(void)
{
    tsri_start_links links = two_by_two();
    char text[512];

    tsri_start_links_text(&links, text, sizeof(text));
    CHECK_STR(text, "replicate of 2 ranks between hosts 1 GB/s, 2 ms a hop; "
                    "shard of 2 ranks 8 GB/s, 5 us a hop");
    links.seconds = 0.0;
    tsri_start_links_text(&links, text, sizeof(text));
    CHECK_STR(text, "");
}

/* replicate x shard of 8 ranks on hosts of 4: as numbered by host, and dealt out in turn. */
static void test_groups(void)
{
    const tsr_mesh_axis axes[] = {{"replicate", 2}, {"shard", 4}};
    const int by_host[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    const int in_turn[8] = {0, 1, 0, 1, 0, 1, 0, 1};
    const char *const names[2] = {"alpha", "beta"};
    const char *hosts[8];
    char text[256];
    char cut[16];
    tsr_mesh *mesh = NULL;

    CHECK_OK(tsr_mesh_create(8, axes, 2, NULL, &mesh));
    for (int r = 0; r < 8; r++) {
        hosts[r] = names[by_host[r]];
    }
    CHECK_OK(tsri_start_groups_text(mesh, by_host, hosts, text, sizeof(text)));
    CHECK_STR(text, "replicate alpha:0 beta:0 | alpha:1 beta:1 | alpha:2 beta:2 | alpha:3 beta:3; "
                    "shard alpha:0-3 | beta:0-3");
    CHECK_OK(tsri_start_groups_text(mesh, by_host, hosts, cut, sizeof(cut)));
    CHECK_STR(cut, "replicate alpha");
    for (int r = 0; r < 8; r++) {
        hosts[r] = names[in_turn[r]];
    }
    CHECK_OK(tsri_start_groups_text(mesh, in_turn, hosts, text, sizeof(text)));
    CHECK_STR(text, "replicate alpha:0,2 | beta:0,2 | alpha:1,3 | beta:1,3; "
                    "shard alpha:0 beta:0 alpha:1 beta:1 | alpha:2 beta:2 alpha:3 beta:3");
    tsr_mesh_release(&mesh);
}

const tsr_test_case tsr_test_cases[] = {
    {"links_unlike_declared_ones", test_links_unlike_declared_ones},
    {"gathers_over_the_network", test_gathers_over_the_network},
    {"text", test_text},
    {"groups", test_groups},
    {NULL, NULL},
};
