/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_topo_rates.c
 * What axes are promised, what cards carry, and lists that are not cut.
 */
#include "topo/topo_priv.h"

#include "base/base.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "support/topo_cases.h"
#include "support/tsr_test.h"
#include "topo/mesh.h"

/* Of the first axis of a mesh on a golden machine. */
static double rate(const char *name, int nodes, const tsr_mesh_axis *axes, int axis_count)
{
    tsri_topo *topo = tsr_topo_golden(name);
    tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});
    tsri_topo_mesh *mesh = NULL;
    double gb_s = -1.0;

    CHECK_OK(tsri_topo_mesh_create(topo, plan, nodes, axes, axis_count, &mesh));
    if (mesh != NULL) {
        gb_s = mesh->axes[0].gb_s;
    }
    tsri_topo_mesh_free(&mesh);
    tsri_topo_mapping_free(&plan);
    tsri_topo_free(&topo);
    return gb_s;
}

/* Figures are sums and quotients of a few numbers of the record. */
#define TOLERANCE 1e-6

/* Every hop of the ring over the cube has 50, though many pairs have no link at all. */
static void an_axis_has_its_ring(void)
{
    CHECK_NEAR(rate("topo/cube_mesh.desc", 1, (tsr_mesh_axis[]){{"shard", 8}}, 1), 50.0, TOLERANCE);
    /* Four of them: 0, 3, 2, 1 and 5, 6, 7, 4; the last hop of each has 25. */
    CHECK_NEAR(rate("topo/cube_mesh.desc", 1, (tsr_mesh_axis[]){{"shard", 4}, {"tp", 2}}, 2), 25.0,
               TOLERANCE);
    /* Pairs of GPUs that have no link at all. */
    CHECK_NEAR(rate("topo/weak_links.desc", 1, (tsr_mesh_axis[]){{"shard", 4}, {"tp", 2}}, 2),
               31.507692, TOLERANCE);
}

/* One card of 12.5 GB/s for eight groups, or for one ring of all ranks. */
static void groups_share_a_nic(void)
{
    const tsr_mesh_axis eight[] = {{"replicate", 2}, {"shard", 8}};

    CHECK_NEAR(rate("topo/nic_shared.desc", 2, eight, 2), 12.5 / 8, TOLERANCE);
    CHECK_NEAR(rate("topo/nic_shared.desc", 2, (tsr_mesh_axis[]){{"shard", 16}}, 1), 12.5,
               TOLERANCE);
    /* Two ports of one card, of which each could carry 12.5. */
    CHECK_NEAR(rate("topo/nic_ports.desc", 2, (tsr_mesh_axis[]){{"replicate", 2}, {"shard", 2}}, 2),
               15.753846 / 2, TOLERANCE);
    /* Four NICs, but what they carry comes off one GPU. */
    CHECK_NEAR(rate("topo/nic_four.desc", 2, (tsr_mesh_axis[]){{"replicate", 2}, {"shard", 4}}, 2),
               31.507692, TOLERANCE);
}

static void write_line(const char *folder, const char *below, const char *name, const char *line)
{
    char path[256];
    char *at = path + snprintf(path, sizeof(path), "%s", folder);

    (void)snprintf(at, sizeof(path) - (size_t)(at - path), "%s", below);
    for (char *c = at + 1; *c != '\0'; c++) {
        if (*c == '/') {
            *c = '\0';
            (void)mkdir(path, 0700);
            *c = '/';
        }
    }
    (void)mkdir(path, 0700);
    (void)snprintf(path, sizeof(path), "%s%s/%s", folder, below, name);
    CHECK_OK(tsri_file_write(path, line, strlen(line)));
}

static void the_system_knows_rates(void)
{
    tsri_topo *topo = tsr_topo_described("package\nnuma 4 1 8\nhost 0000:10\n"
                                         "nic 0000:11:00.0 mlx5_0 id=15b3:1013\n"
                                         "nic 0000:12:00.0 eth0 net id=8086:0001\n"
                                         "nic 0000:13:00.0 eth1 net id=8086:0001\n"
                                         "nic 0000:14:00.0 mlx5_1 id=15b3:1013\n");
    char folder[] = "/tmp/tsr_rates_XXXXXX";
    char command[64];

    REQUIRE(topo != NULL && mkdtemp(folder) != NULL);
    CHECK_NEAR(topo->nics[0].gb_s, 12.5, TOLERANCE); /* of the card's number */
    CHECK_NEAR(topo->nics[1].gb_s, 0.0, 0.0);
    write_line(folder, "/class/infiniband/mlx5_0/ports/1", "rate", "56 Gb/sec (4X FDR)\n");
    write_line(folder, "/class/net/eth0", "speed", "25000\n");
    write_line(folder, "/class/net/eth1", "speed", "-1\n");
    tsri_topo_ask_rates(folder, topo);
    CHECK_NEAR(topo->nics[0].gb_s, 7.0, TOLERANCE);
    CHECK_NEAR(topo->nics[1].gb_s, 3.125, TOLERANCE);
    CHECK_NEAR(topo->nics[2].gb_s, 0.0, 0.0);
    CHECK_NEAR(topo->nics[3].gb_s, 12.5, TOLERANCE);
    tsri_topo_free(&topo);
    (void)snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK_EQ(system(command), 0); /* NOLINT(cert-env33-c): a folder of this test */
}

static void check_ranges(const int *values, int count, size_t size, const char *expected)
{
    char text[64];

    CHECK_STR(tsri_topo_ranges(values, count, text, size), expected);
}

static void lists_are_not_cut(void)
{
    check_ranges((int[]){0, 1, 2, 3, 6}, 5, 64, "0-3,6");
    check_ranges((int[]){0, 2, 4, 6}, 4, 64, "0,2,4,6");
    check_ranges((int[]){0, 2, 4, 6, 8, 9, 10}, 7, 64, "0-8:2,9-10");
    check_ranges((int[]){0, 3, 2, 1, 5, 6, 7, 4}, 8, 64, "0,3,2,1,5-7,4");
    check_ranges((int[]){7}, 1, 64, "7");
    check_ranges(NULL, 0, 64, "");
    /* What does not fit says so. */
    check_ranges((int[]){100, 200, 400, 700, 900}, 5, 16, "100,200,400,...");
}

/* Nobody is advised to set what another maker's programs read. */
static void settings_are_the_makers(void)
{
    static const struct {
        const char *line, *words;
    } cases[] = {{"gpu 0000:11:00.0", "CUDA_DEVICE_ORDER"},
                 {"amd 0000:11:00.0", "ROCR_VISIBLE_DEVICES"},
                 {"gpu 0000:11:00.0 opencl=0 id=8086:0bd5 class=0380", "ZE_AFFINITY_MASK"},
                 {"gpu 0000:11:00.0 opencl=0 id=1ed5:0222 class=0300", "their library"}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256];

        (void)snprintf(text, sizeof(text), "package\nnuma 4 1 8\nhost 0000:10\n%s\n",
                       cases[i].line);
        tsri_topo *topo = tsr_topo_described(text);
        tsri_topo_mapping *plan = tsr_topo_planned(topo, (tsri_topo_ask){0});

        CHECK_EQ(tsri_topo_visible(topo), 1);
        CHECK(tsr_topo_noted(plan, "gpus", cases[i].words));
        CHECK(i == 0 || !tsr_topo_noted(plan, "gpus", "CUDA"));
        tsri_topo_mapping_free(&plan);
        tsri_topo_free(&topo);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"an_axis_has_its_ring", an_axis_has_its_ring},
    {"groups_share_a_nic", groups_share_a_nic},
    {"the_system_knows_rates", the_system_knows_rates},
    {"lists_are_not_cut", lists_are_not_cut},
    {"settings_are_the_makers", settings_are_the_makers},
    {NULL, NULL},
};
