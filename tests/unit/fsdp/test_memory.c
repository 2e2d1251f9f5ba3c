/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Memory of parameters and gradients by preset and option, forward and backward, against its
 * bounds; docs/memory.md shows the table that this prints. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "job/job.h"
#include "support/tsr_test.h"

enum {
    LAYERS = 6,
    MAX_UNITS = LAYERS + 3,
    MAX_MICRO = 2
};

/* S: parameters at rest on this rank; U: the largest unit but the root, gathered; N: the root. */
typedef struct sizes {
    size_t s, u, n, all;                /* all: every unit gathered */
    size_t slot_param, slot_grad, grad; /* most that was gathered, that waited, that was reduced */
    size_t forward, backward;           /* most of parameters and gradients in all */
} sizes;

/* Where forward passes end, as moments of the step's arena. */
typedef struct border {
    int moment[MAX_MICRO];
} border;

static tsr_status forward_ends(void *context, tsri_job *job, int micro_batch, tsr_dtensor *logits)
{
    border *b = context;

    (void)logits;
    b->moment[micro_batch] = tsri_arena_moment(tsri_comm_arena(job->comm));
    return TSR_OK;
}

static void read_units(const tsri_job *job, sizes *out)
{
    tsr_unit_info units[MAX_UNITS];
    const int count = tsr_fsdp_units(job->model, units, MAX_UNITS);

    for (int i = 0; i < count; i++) {
        out->s += units[i].shard_bytes;
        out->all += units[i].gathered_bytes;
        if (units[i].path[0] == '\0') {
            out->n = units[i].gathered_bytes;
        } else if (units[i].gathered_bytes > out->u) {
            out->u = units[i].gathered_bytes;
        }
    }
}

static tsr_status run_step(tsri_job *job, sizes *out)
{
    static const unsigned kinds =
        1u << TSRI_MEM_GRAD | 1u << TSRI_MEM_SLOT_PARAM | 1u << TSRI_MEM_SLOT_GRAD;
    const tsri_arena *arena = tsri_comm_arena(job->comm);
    border ends = {{0}};
    const tsri_step_hooks hooks = {.logits = forward_ends, .context = &ends};
    size_t rests = 0;
    tsri_arena_stats stats;
    tsri_step_result result;

    TSR_TRY(tsri_job_step(job, 0, 1e-3, 1.0, &hooks, &result));
    tsri_arena_get_stats(arena, &stats);
    out->slot_param = stats.kind_peak[TSRI_MEM_SLOT_PARAM];
    out->slot_grad = stats.kind_peak[TSRI_MEM_SLOT_GRAD];
    out->grad = stats.kind_peak[TSRI_MEM_GRAD];
    CHECK_EQ(tsri_comm_device(job->comm)->bytes_kind[TSRI_MEM_GRAD], 0); /* nothing rests */
    rests = tsri_comm_device(job->comm)->bytes_kind[TSRI_MEM_PARAM];
    out->forward = rests + tsri_arena_peak_between(arena, kinds, 0, ends.moment[0]);
    out->backward =
        rests + tsri_arena_peak_between(arena, kinds, ends.moment[0], stats.interval_count);
    return TSR_OK;
}

static tsr_status measure(const tsri_job_options *options, sizes *out)
{
    const tsr_world_options sim = {.backend = "sim", .sim_rank = 0, .sim_size = 8};
    tsr_world *world = NULL;
    tsri_job *job = NULL;
    tsr_status status = TSR_OK;

    memset(out, 0, sizeof(*out));
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &world));
    TSR_TRY_GOTO(status, tsri_job_open(world, options, &job), close_world);
    read_units(job, out);
    status = run_step(job, out);
    tsri_job_close(&job);
close_world:
    tsr_world_close(&world);
    return status;
}

static tsri_job_options job_options(const char *preset)
{
    tsri_job_options o = {.axes = {{"replicate", 2}, {"shard", 4}},
                          .axis_count = 2,
                          .preset = preset,
                          .batch = 8,
                          .seq = 64,
                          .seed = 1};

    o.model = (tsri_model_spec){.arch = TSRI_ARCH_LLAMA,

                                .layers = LAYERS,
                                .dim = 256,
                                .heads = 8,
                                .kv_heads = 4,
                                .ffn = 704,
                                .vocab = 256};
    return o;
}

static double mib(size_t bytes)
{
    return (double)bytes / 1048576.0;
}

static size_t forward_bound(const sizes *m)
{
    return m->s + 2 * m->u + m->n;
}

static size_t backward_bound(const sizes *m)
{
    return 2 * m->s + 4 * m->u + 2 * m->n;
}

static void print_row(const char *what, const sizes *m)
{
    printf("# %-28s S %5.2f  U %5.2f  N %5.2f | gathered %5.2f, slots %5.2f, gradients %5.2f | "
           "forward %5.2f of %5.2f | backward %5.2f of %5.2f\n",
           what, mib(m->s), mib(m->u), mib(m->n), mib(m->slot_param), mib(m->slot_grad),
           mib(m->grad), mib(m->forward), mib(forward_bound(m)), mib(m->backward),
           mib(backward_bound(m)));
}

/* Forward S + 2U + N of parameters and gradients, backward as much again for gradients. */
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
        CHECK(m.slot_grad > 0);
        CHECK(m.slot_grad <= 2 * m.u + m.n);
        /* The arena rounds each range up to 256 bytes. */
        CHECK_NEAR(m.grad, m.s, MAX_UNITS * 256.0);
        CHECK(m.forward <= forward_bound(&m));
        CHECK(m.backward <= backward_bound(&m));
    }
}

/* Forward S alone, backward S more where gradients are whole. */
static void whole_presets_gather_nothing(void)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2"};

    for (int i = 0; i < 3; i++) {
        const tsri_job_options o = job_options(presets[i]);
        const int part = i == 2 ? 8 : 1;
        sizes m;

        REQUIRE_OK(measure(&o, &m));
        print_row(presets[i], &m);
        CHECK_EQ(m.slot_param, 0);
        CHECK(i == 2 ? m.slot_grad > 0 : m.slot_grad == 0);
        CHECK_EQ(m.forward, m.s);
        /* The arena rounds each range up to 256 bytes. */
        CHECK_NEAR((double)m.grad, (double)m.s / part, MAX_UNITS * 256.0);
        CHECK(m.backward <= m.s + m.grad + m.slot_grad);
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
        CHECK(m.forward <= m.s + (size_t)(ahead + 1) * m.u + m.n);
    }
    for (int micro = 1; micro <= MAX_MICRO; micro++) {
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
        CHECK_EQ(m.forward, m.s + m.all);
    }
}

/* Sums of earlier micro-batches are there in the forward passes of later ones: that is what adding
 * up means. The first forward and the bound of backward do not change. */
static void sums_stay_between_micro_batches(void)
{
    tsri_job_options o = job_options("hsdp");
    sizes one;
    sizes two;

    REQUIRE_OK(measure(&o, &one));
    o.micro_batches = MAX_MICRO;
    REQUIRE_OK(measure(&o, &two));
    print_row("hsdp, 2 micro-batches", &two);
    CHECK_EQ(two.forward, one.forward);
    CHECK(two.backward > one.backward);
    CHECK(two.backward <= backward_bound(&two));
    CHECK_EQ(two.grad, one.grad);
}

/* On the device two units' sums are left of offloaded gradients, and none of them in forward. */
static void offloaded_gradients_pass_through(void)
{
    tsri_job_options o = job_options("hsdp");
    sizes plain;
    sizes away;

    REQUIRE_OK(measure(&o, &plain));
    o.fsdp.offload_grads = true;
    REQUIRE_OK(measure(&o, &away));
    print_row("hsdp, gradients offloaded", &away);
    CHECK(away.grad > 0);
    CHECK(away.grad < plain.grad / 2);
    CHECK(away.forward <= forward_bound(&away));
    CHECK(away.backward < plain.backward);
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
    CHECK(bf16.forward <= forward_bound(&bf16));
    /* Gradients are f32 all the same. */
    CHECK(bf16.backward <= forward_bound(&bf16) + forward_bound(&f32));
    CHECK_EQ(bf16.s, f32.s);
}

const tsr_test_case tsr_test_cases[] = {
    {"sharded_presets_keep_two_units", sharded_presets_keep_two_units},
    {"whole_presets_gather_nothing", whole_presets_gather_nothing},
    {"options_have_their_price", options_have_their_price},
    {"sums_stay_between_micro_batches", sums_stay_between_micro_batches},
    {"offloaded_gradients_pass_through", offloaded_gradients_pass_through},
    {"half_types_halve_what_is_gathered", half_types_halve_what_is_gathered},
    {NULL, NULL},
};
