/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 */
/* What the probe finds is a whole machine, alike on all ranks, and survives its cluster file. */
#include "backend/boot/boot.h"
#include "base/base.h"

#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "plan/cluster.h"
#include "support/tsr_test.h"

static tsr_world *open_world(void)
{
    tsr_world *world = NULL;

    CHECK_OK(tsr_world_open(NULL, NULL, NULL, &world));
    return world;
}

static tsri_job_options small_job(tsri_mesh_text *mesh, const char *axes, int ranks)
{
    const tsri_bench_step_options step = {
        .model = "llama-tiny", .mesh = axes, .batch = 4, .seq = 16};
    tsri_job_options job = {0};

    CHECK_OK(tsri_bench_step_job(&step, ranks, mesh, &job));
    return job;
}

static void check_machine(const tsri_machine *m, int ranks)
{
    CHECK(m->kernel_rate[TSRK_MATMUL] > 0.0 && isfinite(m->kernel_rate[TSRK_MATMUL]));
    CHECK(m->kernel_rate[TSRK_ATTENTION] > 0.0 && m->kernel_rate[TSRK_ADAMW] > 0.0);
    CHECK(m->flops[TSRI_MACHINE_F32] > 0.0 && m->bytes_per_s > 0.0 && m->host_bytes_per_s > 0.0);
    CHECK(m->launch_s > 0.0 && m->launch_s < 1.0);
    CHECK(m->inline_compute && m->memory_bytes > 0.0);
    CHECK_EQ(m->tier_count, 1); /* all ranks on one host */
    CHECK_EQ(m->tiers[0].span, 0);
    CHECK(m->tiers[0].bytes_per_s > 0.0 && isfinite(m->tiers[0].bytes_per_s));
    CHECK(ranks == 1 || m->call_s + m->tiers[0].hop_s > 0.0);
}

/* The file holds six digits of each figure. */
static void check_file(const tsri_probe_report *r)
{
    tsri_text text = {0};
    tsri_cluster cluster;

    tsri_probe_text(r, "here", &text);
    CHECK_OK(tsri_text_status(&text));
    CHECK_OK(tsri_cluster_parse(text.data, (size_t)text.length, "probe", &cluster));
    CHECK_EQ(cluster.hash, tsri_hash(text.data, (size_t)text.length, 0));
    for (int id = 0; id < TSRK_COUNT; id++) {
        CHECK_NEAR(cluster.machine.kernel_rate[id], r->machine.kernel_rate[id],
                   5.1e-6 * r->machine.kernel_rate[id]);
    }
    CHECK_NEAR(cluster.machine.tiers[0].bytes_per_s, r->machine.tiers[0].bytes_per_s,
               5.1e-6 * r->machine.tiers[0].bytes_per_s);
    CHECK_NEAR(cluster.machine.tiers[0].busy_s, r->machine.tiers[0].busy_s,
               5.1e-6 * r->machine.tiers[0].busy_s);
    CHECK_NEAR(cluster.machine.launch_s, r->machine.launch_s, 5.1e-6 * r->machine.launch_s);
    tsri_text_free(&text);
}

static void check_alike(tsr_world *world, const tsri_machine *machine)
{
    const uint64_t mine = tsri_hash(machine, sizeof(*machine), 0);

    CHECK_OK(tsr_world_check_same(world, "the machine", &mine, sizeof(mine)));
}

static void test_machine(void)
{
    static tsri_probe_report report;
    const int ranks = tsr_test_size();
    tsri_mesh_text mesh;
    tsr_world *world = open_world();

    REQUIRE(world != NULL);
    const tsri_job_options job = small_job(&mesh, "shard=-1", ranks);

    CHECK_OK(tsri_probe(world, &job, 0.3, &report));
    CHECK_EQ(report.ranks, ranks);
    CHECK_EQ(report.hosts, 1);
    CHECK_EQ(report.rows, 4 / ranks);
    CHECK_EQ(report.row_count, ranks == 1 ? 0 : 9);
    check_machine(&report.machine, ranks);
    check_file(&report);
    check_alike(world, &report.machine);
    tsr_world_close(&world);
}

/* A rank of tp has its share of the widths: the small job multiplies as much less. */
static void test_tensor_parallel_widths(void)
{
    static tsri_probe_report whole, part;
    const int ranks = tsr_test_size();
    tsri_mesh_text mesh;
    tsr_world *world = open_world();

    REQUIRE(world != NULL);
    tsri_job_options job = small_job(&mesh, "tp=-1", ranks);

    CHECK_OK(tsri_probe(world, &job, 0.2, &part));
    CHECK_EQ(part.rows, 4);
    job.no_tp = true; /* now tp carries data */
    job.batch = 4 * ranks;
    CHECK_OK(tsri_probe(world, &job, 0.2, &whole));
    CHECK_EQ(whole.rows, 4);
    /* All products of a llama but none have one of the shared widths; work is rate x time. */
    CHECK_NEAR(part.machine.kernel_rate[TSRK_MATMUL] * part.kernel_s[TSRK_MATMUL] * ranks,
               whole.machine.kernel_rate[TSRK_MATMUL] * whole.kernel_s[TSRK_MATMUL],
               1e-9 * whole.machine.kernel_rate[TSRK_MATMUL] * whole.kernel_s[TSRK_MATMUL]);
    tsr_world_close(&world);
}

static void test_axes(void)
{
    tsri_machine declared = {.tiers = {{.name = "x", .bytes_per_s = 8e9, .hop_s = 3e-6}},
                             .tier_count = 1};
    tsri_probe_axis axes[TSR_MESH_MAX_AXES];
    const int ranks = tsr_test_size();
    const tsr_mesh_axis spec[2] = {{"replicate", 1}, {"shard", ranks}};
    tsr_world *world = open_world();
    tsr_mesh *mesh = NULL;
    int count = 0;

    REQUIRE(world != NULL);
    CHECK_OK(tsr_mesh_create(ranks, spec, 2, NULL, &mesh));
    CHECK_OK(tsri_probe_axes(world, mesh, &declared, 0.1, axes, &count));
    CHECK_EQ(count, ranks > 1 ? 1 : 0);
    if (count == 1) {
        CHECK_STR(axes[0].name, "shard");
        CHECK_EQ(axes[0].ranks, ranks);
        CHECK_EQ(axes[0].hosts, 1);
        CHECK(axes[0].bytes_per_s > 0.0 && axes[0].hop_s >= 0.0);
        CHECK(axes[0].declared_bytes_per_s == 8e9);
        CHECK_NEAR(axes[0].declared_hop_s, 3e-6, 1e-15);
    }
    tsr_mesh_release(&mesh);
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"machine", test_machine},
    {"tensor_parallel_widths", test_tensor_parallel_widths},
    {"axes", test_axes},
    {NULL, NULL},
};
