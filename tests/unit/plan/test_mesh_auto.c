/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_mesh_auto.c
 * The mesh of a job that names none.
 */
#include "base/base.h"

#include <string.h>

#include "config/config.h"
#include "job/from_config.h"
#include "plan/fit.h"
#include "plan/mesh_auto.h"
#include "support/tsr_test.h"

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
}

static void tp_takes_ranks_of_a_host(void)
{
    check_mesh((tsri_mesh_facts){.ranks = 16, .hosts = 2, .tp = 1}, "replicate=2,shard=8", "hosts");
    check_mesh((tsri_mesh_facts){.ranks = 16, .hosts = 2, .tp = 2}, "replicate=2,shard=4,tp=2",
               "tp 2");
    check_mesh((tsri_mesh_facts){.ranks = 8, .hosts = 1, .tp = 4}, "shard=2,tp=4", "tp 4");
}

enum {
    RANKS = 4
};

static tsri_config *load(const char *mesh)
{
    const char *const words[] = {"model.preset=llama-tiny", "train.batch=8", "train.seq=64",
                                 "parallel.preset=ddp", mesh};
    tsri_config *config = NULL;

    CHECK_OK(tsri_config_load(NULL, words, 5, &config));
    return config;
}

/* What a rank needs with tp of that size, by a dry run. */
static size_t needs(int tp)
{
    char mesh[64];
    tsri_job_options options;
    tsri_step_memory plan = {.total_bytes = 0};
    tsr_world *world = NULL;
    tsri_job *job = NULL;

    if (tp > 1) {
        (void)snprintf(mesh, sizeof(mesh), "mesh={shard: %d, tp: %d}", RANKS / tp, tp);
    } else { /* an axis tp of one rank has scalars of its own */
        (void)snprintf(mesh, sizeof(mesh), "mesh={shard: %d}", RANKS);
    }
    tsri_config *config = load(mesh);

    CHECK_OK(tsri_config_fit(config, RANKS, 1, NULL));
    tsri_job_from_config(config, false, &options);
    options.dry_threads = 1;
    CHECK_OK(tsri_job_dry_run(&options, 0, RANKS, &world, &job));
    tsri_job_summarize(job, &plan);
    tsri_job_close(&job);
    tsr_world_close(&world);
    tsri_config_free(&config);
    return plan.total_bytes;
}

static void check_tp(size_t device_bytes, int island, int tp)
{
    const tsri_config_memory memory = {.device_bytes = device_bytes, .island = island};
    tsri_config *config = load("mesh=auto");

    CHECK_OK(tsri_config_fit(config, RANKS, 1, &memory));
    CHECK_EQ(config->mesh.count, tp > 1 ? 2 : 1);
    CHECK_STR(config->mesh.names[0], "shard");
    CHECK_EQ(config->mesh.axes[0].size, RANKS / tp);
    CHECK((strstr(config->mesh_reason, "memory") != NULL) == (tp > 1));
    tsri_config_free(&config);
}

/* ddp, of which tp alone divides the states. */
static void tp_follows_memory(void)
{
    const size_t two = needs(2);
    const size_t four = needs(4);
    const size_t one = needs(1);

    REQUIRE(four < two && two < one);
    check_tp(0, 0, 1);
    check_tp(one, 0, 1);
    check_tp(one - 1, 0, 2);
    check_tp(two, 0, 2);
    check_tp(two - 1, 0, 4);
    check_tp(two - 1, 2, 1); /* no legal size is enough: what does not fit is told later */
    check_tp(two, 2, 2);
    check_tp(four - 1, 0, 1);
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

    CHECK(tsri_mesh_auto(&(tsri_mesh_facts){.ranks = 7, .hosts = 0}, &mesh, reason,
                         sizeof(reason)) == TSR_ERR_INVALID);
    CHECK(strstr(tsr_error_message(), "mesh=shard=7") != NULL); /* unequal hosts: by hand */
    tsr_error_clear();
    CHECK_STATUS(TSR_ERR_INVALID, tsri_mesh_auto(&(tsri_mesh_facts){.ranks = 7, .hosts = 2}, &mesh,
                                                 reason, sizeof(reason)));
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsri_mesh_auto(&(tsri_mesh_facts){.ranks = 8, .hosts = 2, .tp = 3}, &mesh, reason,
                                sizeof(reason)));
    CHECK_EQ(mesh.count, 0);
}

const tsr_test_case tsr_test_cases[] = {
    {"axes_follow_hosts", axes_follow_hosts},
    {"tp_takes_ranks_of_a_host", tp_takes_ranks_of_a_host},
    {"tp_follows_memory", tp_follows_memory},
    {"hosts_are_counted", hosts_are_counted},
    {"facts_are_checked", facts_are_checked},
    {NULL, NULL},
};
