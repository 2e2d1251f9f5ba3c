/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Memory of parameters and gradients by preset and option, against its bounds; docs/memory.md shows
 * the table that this prints. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "support/tsr_test.h"
#include "train/job.h"

enum {
    LAYERS = 6,
    MAX_UNITS = LAYERS + 1
};

/* S: parameters at rest on this rank; U: the largest unit but the root, gathered; N: the root. */
typedef struct sizes {
    size_t s, u, n, all;          /* all: every unit gathered */
    size_t grad;                  /* gradients at rest */
    size_t slot_param, slot_grad; /* most that was gathered, and that waited for reduction */
} sizes;

static tsr_status measure(const tsri_job_options *options, sizes *out)
{
    tsr_unit_info units[MAX_UNITS];
    tsri_arena_stats stats;
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    int count = 0;

    memset(out, 0, sizeof(*out));
    TSR_TRY(tsri_job_dry_run(options, 0, 8, &world, &job));
    count = tsr_fsdp_units(job->model, units, MAX_UNITS);
    for (int i = 0; i < count; i++) {
        out->s += units[i].shard_bytes;
        out->all += units[i].gathered_bytes;
        if (units[i].path[0] == '\0') {
            out->n = units[i].gathered_bytes;
        } else if (units[i].gathered_bytes > out->u) {
            out->u = units[i].gathered_bytes;
        }
    }
    tsri_arena_get_stats(tsri_comm_arena(job->comm), &stats);
    out->grad = tsri_comm_device(job->comm)->bytes_kind[TSRI_MEM_GRAD];
    out->slot_param = stats.kind_peak[TSRI_MEM_SLOT_PARAM];
    out->slot_grad = stats.kind_peak[TSRI_MEM_SLOT_GRAD];
    tsri_job_close(&job);
    tsr_world_close(&world);
    return TSR_OK;
}

static tsri_job_options job_options(const char *preset)
{
    tsri_job_options o = {.axes = {{"replicate", 2}, {"shard", 4}},
                          .axis_count = 2,
                          .preset = preset,
                          .batch = 8,
                          .seq = 64,
                          .seed = 1};

    o.model = (tsri_model_spec){
        .arch = TSRI_ARCH_LLAMA,
        .llama = {
            .layers = LAYERS, .dim = 256, .heads = 8, .kv_heads = 4, .ffn = 704, .vocab = 256}};
    return o;
}

static double mib(size_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void print_row(const char *what, const sizes *m)
{
    printf("# %-28s S %6.2f  U %5.2f  N %5.2f | gathered %6.2f of %6.2f | gradients %6.2f of "
           "%6.2f | at rest %6.2f\n",
           what, mib(m->s), mib(m->u), mib(m->n), mib(m->slot_param), mib(2 * m->u + m->n),
           mib(m->slot_grad), mib(2 * m->u + m->n), mib(m->grad));
}

/* Forward S + 2U + N of parameters, backward as much again for gradients. */
static void sharded_presets_keep_two_units(void)
{
    static const char *const presets[] = {"fsdp", "hsdp", "hfsdp"};

    for (int i = 0; i < 3; i++) {
        const tsri_job_options o = job_options(presets[i]);
        sizes m;

        REQUIRE_OK(measure(&o, &m));
        print_row(presets[i], &m);
        CHECK(m.slot_param > 0);
        CHECK(m.slot_param <= 2 * m.u + m.n);
        CHECK(m.slot_grad <= 2 * m.u + m.n);
        CHECK(m.grad <= m.s);
        CHECK(m.s + m.grad + m.slot_param + m.slot_grad <= 2 * m.s + 4 * m.u + 2 * m.n);
    }
}

static void whole_presets_gather_nothing(void)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2"};

    for (int i = 0; i < 3; i++) {
        const tsri_job_options o = job_options(presets[i]);
        sizes m;

        REQUIRE_OK(measure(&o, &m));
        print_row(presets[i], &m);
        CHECK_EQ(m.slot_param, 0);
        CHECK(i == 2 ? m.slot_grad > 0 : m.slot_grad == 0);
    }
}

static void options_have_their_price(void)
{
    for (int ahead = 0; ahead <= 2; ahead++) {
        tsri_job_options o = job_options("hsdp");
        char what[40];
        sizes m;

        o.fsdp.prefetch_depth = ahead + 1;
        o.fsdp.reshard_after_forward = TSR_RESHARD_ALWAYS;
        REQUIRE_OK(measure(&o, &m));
        (void)snprintf(what, sizeof(what), "hsdp, %d ahead, always", ahead);
        print_row(what, &m);
        CHECK(m.slot_param <= (size_t)(ahead + 1) * m.u + m.n); /* running, and those ahead */
    }
    for (int micro = 1; micro <= 2; micro++) {
        tsri_job_options o = job_options("hsdp");
        char what[40];
        sizes m;

        o.fsdp.reshard_after_forward = TSR_RESHARD_NEVER;
        o.micro_batches = micro;
        REQUIRE_OK(measure(&o, &m));
        (void)snprintf(what, sizeof(what), "hsdp, never, %d micro-batches", micro);
        print_row(what, &m);
        CHECK_EQ(m.slot_param, m.all);
        CHECK(m.slot_grad <= 2 * m.u + m.n);
    }
}

static void half_types_halve_what_is_gathered(void)
{
    tsri_job_options o = job_options("hsdp");
    sizes f32;
    sizes bf16;

    REQUIRE_OK(measure(&o, &f32));
    o.fsdp.param_dtype = TSR_BF16;
    REQUIRE_OK(measure(&o, &bf16));
    print_row("hsdp, bf16 parameters", &bf16);
    /* The arena rounds each range up to 256 bytes. */
    CHECK_NEAR((double)bf16.slot_param, 0.5 * (double)f32.slot_param, 3 * 256.0);
    CHECK_EQ(bf16.s, f32.s);
}

const tsr_test_case tsr_test_cases[] = {
    {"sharded_presets_keep_two_units", sharded_presets_keep_two_units},
    {"whole_presets_gather_nothing", whole_presets_gather_nothing},
    {"options_have_their_price", options_have_their_price},
    {"half_types_halve_what_is_gathered", half_types_halve_what_is_gathered},
    {NULL, NULL},
};
