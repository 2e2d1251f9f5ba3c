/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The FSDP engine on the sim backend: order and bytes of collectives, memory by preset, events. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "job/job.h"
#include "optim/optim.h"
#include "support/tsr_test.h"

enum {
    LAYERS = 3,
    UNITS = LAYERS + 3 /* the root, embedding and head */
};

static tsri_job_options small_job(int replicate, int shard, int tp)
{
    tsri_job_options o = {.model = {.arch = TSRI_ARCH_LLAMA,
                                    .layers = LAYERS,
                                    .dim = 40,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .ffn = 100,
                                    .vocab = 131},
                          .axes = {{"replicate", replicate}, {"shard", shard}, {"tp", tp}},
                          .axis_count = 3,
                          .batch = 8,
                          .seq = 16,
                          .seed = 1,
                          .comm = {.record = true, .race_check = true}};

    return o;
}

typedef struct rig {
    tsr_world *world;
    tsri_job *job;
} rig;

static tsr_status open_rig(const tsri_job_options *options, int rank, rig *out)
{
    tsr_world_options sim = {.backend = "sim", .sim_rank = rank, .sim_size = 1};

    for (int i = 0; i < options->axis_count; i++) {
        sim.sim_size *= options->axes[i].size;
    }
    *out = (rig){0};
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &out->world));
    TSR_TRY(tsri_job_open(out->world, options, &out->job));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsri_job_close(&r->job);
    tsr_world_close(&r->world);
}

static tsr_status step(rig *r, int64_t number)
{
    tsri_step_result result;

    TSR_TRY(tsri_job_step(r->job, number, 1e-3, 1.0, NULL, &result));
    return TSR_OK;
}

/* "g:layers.0 s:layers.1 a:layers.1 ..." of the units' collectives of one step. */
static const char *trace(const rig *r, char *text, size_t size)
{
    int count = 0;
    const tsri_entry *e = tsri_recorder_entries(tsri_comm_device(r->job->comm), &count);
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        static const char letter[TSRI_STREAM_COUNT] = {'c', 'g', 's', 'a', 'x'};

        if (e[i].kind == TSRI_ENTRY_COLLECTIVE && e[i].stream != TSRI_STREAM_COMPUTE &&
            used < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%c:%s", used > 0 ? " " : "",
                                     letter[e[i].stream], e[i].label);
        }
    }
    return text;
}

static void collectives_follow_the_schedule(void)
{
    const tsri_job_options o = small_job(2, 2, 1);
    char text[1024];
    rig r;

    REQUIRE_OK(open_rig(&o, 0, &r));
    tsri_recorder_clear(tsri_comm_device(r.job->comm));
    CHECK_OK(step(&r, 0));
    CHECK_STR(trace(&r, text, sizeof(text)),
              "g: g:embed g:layers.0 g:layers.1 g:layers.2 g:head " /* forward, one ahead */
              "g:layers.2 s:head a:head "                           /* the last unit was kept */
              "g:layers.1 s:layers.2 a:layers.2 g:layers.0 s:layers.1 a:layers.1 "
              "g:embed s:layers.0 a:layers.0 s:embed a:embed s: a:");
    close_rig(&r);
}

static void replicas_meet_once_a_step(void)
{
    tsri_job_options o = small_job(2, 2, 1);
    int gathers = 0;
    int scatters = 0;
    int reduces = 0;
    int count = 0;
    const tsri_entry *e = NULL;
    rig r;

    o.micro_batches = 3;
    o.batch = 4;
    REQUIRE_OK(open_rig(&o, 3, &r));
    tsri_recorder_clear(tsri_comm_device(r.job->comm));
    CHECK_OK(step(&r, 0));
    e = tsri_recorder_entries(tsri_comm_device(r.job->comm), &count);
    for (int i = 0; i < count; i++) {
        if (e[i].kind == TSRI_ENTRY_COLLECTIVE) {
            gathers += e[i].stream == TSRI_STREAM_GATHER;
            scatters += e[i].stream == TSRI_STREAM_REDUCE;
            reduces += e[i].stream == TSRI_STREAM_REPLICATE;
        }
    }
    CHECK_EQ(gathers, 3 * (UNITS + (UNITS - 2)));
    CHECK_EQ(scatters, 3 * UNITS);
    CHECK_EQ(reduces, UNITS);
    close_rig(&r);
}

/* DESIGN 10: bytes per step and axis = sum over units and micro-steps of (gathers w + r) elements
 * (g - 1) / g, and the all-reduce 2 (g - 1) / g of the shard once. */
static void bytes_follow_the_formula(void)
{
    tsri_job_options o = small_job(2, 4, 1);
    tsr_unit_info units[UNITS];
    size_t shard_axis = 0;
    size_t replicate_axis = 0;
    int mesh_shard = 1;
    rig r;

    o.micro_batches = 2;
    REQUIRE_OK(open_rig(&o, 5, &r));
    REQUIRE_EQ(tsr_fsdp_units(r.job->model, units, UNITS), UNITS);
    tsri_recorder_clear(tsri_comm_device(r.job->comm));
    CHECK_OK(step(&r, 0));
    for (int i = 0; i < UNITS; i++) {
        const bool root = units[i].path[0] == '\0';
        const bool once = root || strcmp(units[i].path, "head") == 0; /* the last is kept */
        size_t items = 0; /* f32 of the chunks, without alignment */
        const size_t gathers = once ? 1 : 2;

        for (int k = 0; k < r.job->param_count; k++) {
            const tsr_param *p = r.job->params[k];
            const tsr_param_spec *s = tsr_param_get_spec(p);
            const char *path = root ? "norm" : units[i].path;
            const bool mine = strncmp(tsr_param_name(p), path, strlen(path)) == 0;

            if (mine) {
                items +=
                    (size_t)(tsri_ceil_div(s->shape[0], 4) * (s->ndim == 2 ? s->shape[1] : 1)) *
                    sizeof(float);
            }
        }
        shard_axis += 2 * (gathers + 1) * 3 * items;
        replicate_axis += units[i].shard_bytes; /* 2 (g - 1) / g with g = 2 */
    }
    mesh_shard = tsr_mesh_axis_find(r.job->mesh, "shard");
    CHECK_EQ(tsri_recorder_sent_bytes(tsri_comm_device(r.job->comm), 1u << mesh_shard), shard_axis);
    /* The replicate axis also carries one gradient-free scalar a step: none; the data axes' token
     * count, loss and norm go over both axes and are counted under both together. */
    CHECK_EQ(tsri_recorder_sent_bytes(tsri_comm_device(r.job->comm), 1u << 0), replicate_axis);
    close_rig(&r);
}

static size_t kind_bytes(const rig *r, tsri_mem_kind kind)
{
    return tsri_comm_device(r->job->comm)->bytes_kind[kind];
}

static void presets_hold_what_they_say(void)
{
    /* Parts of parameters, gradients (at their most) and optimizer state that a rank holds on
     * replicate 2 x shard 4, as divisors of 4, 4 and 8 bytes a parameter. */
    static const struct {
        const char *preset;
        int param, grad, optim;
    } rows[] = {{"ddp", 1, 1, 1},  {"zero1", 1, 1, 8}, {"zero2", 1, 8, 8},
                {"fsdp", 8, 8, 8}, {"hsdp", 4, 4, 4},  {"hfsdp", 4, 4, 8}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tsri_job_options o = small_job(2, 4, 1);
        const double n = (double)tsri_model_param_count(&o.model);
        tsri_step_memory summary;
        double slack = 0.0;
        rig r;

        o.preset = rows[i].preset;
        REQUIRE_OK(open_rig(&o, 0, &r));
        /* Ceil rule: at most one row more per parameter and split; alignment: 16 elements per
         * parameter and 16 x 8 per unit. The widest row here has 100 elements. */
        slack = 4.0 * (r.job->param_count * (100.0 + 16.0) + UNITS * 16.0 * 8.0);
        CHECK_NEAR((double)kind_bytes(&r, TSRI_MEM_PARAM), 4.0 * n / rows[i].param, slack);
        CHECK_EQ(kind_bytes(&r, TSRI_MEM_GRAD), 0);
        CHECK_NEAR((double)kind_bytes(&r, TSRI_MEM_OPTIM), 8.0 * n / rows[i].optim, 2.0 * slack);
        CHECK_OK(step(&r, 0));
        tsri_job_summarize(r.job, &summary);
        /* The arena rounds each range up to 256 bytes. */
        CHECK_NEAR((double)summary.kind_most[TSRI_MEM_GRAD], 4.0 * n / rows[i].grad,
                   slack + 256.0 * UNITS);
        CHECK_EQ(kind_bytes(&r, TSRI_MEM_GRAD), 0);
        close_rig(&r);
    }
}

/* Each wait of compute on another stream, and of another stream on compute, is there for a reason:
 * without it the race check must find two calls in conflict. */
static void every_dropped_edge_is_a_race(void)
{
    const tsri_job_options o = small_job(2, 2, 2);
    int waits = 0;
    int found = 0;
    rig r;

    REQUIRE_OK(open_rig(&o, 0, &r));
    CHECK_OK(step(&r, 0));
    CHECK_OK(step(&r, 1));
    waits = tsri_recorder_wait_count(tsri_comm_device(r.job->comm));
    close_rig(&r);
    CHECK(waits > 2 * LAYERS);
    for (int n = 1; n <= waits; n++) {
        const tsri_recorder_options drop = {.ledger = true, .race_check = true, .drop_wait = n};
        tsr_status status = TSR_OK;

        REQUIRE_OK(open_rig(&o, 0, &r));
        REQUIRE_OK(tsri_recorder_attach(tsri_comm_device(r.job->comm), &drop));
        status = step(&r, 0);
        if (status == TSR_OK) {
            status = step(&r, 1);
        }
        found += status != TSR_OK;
        tsr_error_clear();
        close_rig(&r);
    }
    printf("# %d of %d dropped waits are races\n", found, waits);
    CHECK(found >= waits / 2);
}

/* Units whose gather is enqueued before the first kernel of the first block. */
static int gathers_before_first_block(const rig *r)
{
    int count = 0;
    int gathers = 0;
    const tsri_entry *e = tsri_recorder_entries(tsri_comm_device(r->job->comm), &count);

    for (int i = 0; i < count; i++) {
        if (e[i].kind == TSRI_ENTRY_COLLECTIVE && e[i].stream == TSRI_STREAM_GATHER) {
            gathers++;
        }
        if (e[i].kind == TSRI_ENTRY_KERNEL && e[i].stream == TSRI_STREAM_COMPUTE &&
            e[i].label != NULL && strncmp(e[i].label, "layers.0", 8) == 0) {
            return gathers;
        }
    }
    return -1;
}

static void prefetch_depth_is_kept(void)
{
    for (int ahead = 0; ahead <= 2; ahead++) {
        tsri_job_options o = small_job(2, 2, 1);
        rig r;

        o.fsdp.prefetch_depth = ahead + 1; /* stored plus one */
        REQUIRE_OK(open_rig(&o, 0, &r));
        tsri_recorder_clear(tsri_comm_device(r.job->comm));
        CHECK_OK(step(&r, 0));
        CHECK_EQ(gathers_before_first_block(&r), 3 + ahead); /* root, embed, layers.0, and ahead */
        close_rig(&r);
    }
}

/* What a job's patterns say, and to the units that they match in alone. */
static void patterns_reach_their_units(void)
{
    tsri_job_options o = small_job(2, 2, 1);
    int split = 0;
    int frozen = 0;
    rig r;

    o.split_cols.at[0] = "layers.*.mlp.down.weight";
    o.split_cols.count = 1;
    o.ignored.at[0] = "layers.1.attn.o.weight";
    o.ignored.count = 1;
    REQUIRE_OK(open_rig(&o, 0, &r));
    for (int i = 0; i < r.job->param_count; i++) {
        const tsr_param *p = r.job->params[i];

        split += p->master.layout.shard_dim;
        frozen += p->spec.frozen;
        CHECK_EQ(p->master.layout.shard_dim == 1, strstr(tsr_param_name(p), "mlp.down") != NULL);
        CHECK_EQ(p->spec.frozen, strcmp(tsr_param_name(p), "layers.1.attn.o.weight") == 0);
    }
    CHECK_EQ(split, LAYERS);
    CHECK_EQ(frozen, 1);
    CHECK_OK(step(&r, 0));
    close_rig(&r);
    o.ignored.at[0] = "layers.7.*";
    CHECK_STATUS(TSR_ERR_INVALID, open_rig(&o, 0, &r));
    close_rig(&r);
}

static tsr_status gradients_are_there(void *context, tsri_job *job)
{
    int *seen = context;

    for (int i = 0; i < job->param_count; i++) {
        const tsri_rest *grad = NULL;

        TSR_TRY(tsri_param_get_grad(job->params[i], &grad));
        *seen += grad->buffer != NULL;
    }
    return TSR_OK;
}

static void check_no_gradients(rig *r)
{
    const tsri_rest *grad = NULL;
    int64_t steps = 0;
    int64_t steps_after = 0;

    CHECK_OK(tsri_optimizer_get_steps(r->job->optimizer, &steps));
    for (int i = 0; i < r->job->param_count; i++) {
        CHECK_STATUS(TSR_ERR_STATE, tsri_param_get_grad(r->job->params[i], &grad));
    }
    CHECK_STATUS(TSR_ERR_STATE, tsr_clip_grad_norm(r->job->optimizer, r->job->tape, 1.0));
    CHECK_STATUS(TSR_ERR_STATE, tsr_optimizer_step(r->job->optimizer, 1e-3));
    CHECK_OK(tsri_optimizer_get_steps(r->job->optimizer, &steps_after));
    CHECK_EQ(steps_after, steps);
}

/* From backward to the end of the step, and on no preset stale before or after. */
static void gradients_are_of_one_step(void)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp", "hfsdp"};

    for (size_t i = 0; i < 2 * sizeof(presets) / sizeof(presets[0]); i++) {
        tsri_job_options o = small_job(2, 2, 1);
        int seen = 0;
        const tsri_step_hooks hooks = {.gradients = gradients_are_there, .context = &seen};
        tsri_step_result result;
        rig r;

        o.preset = presets[i / 2];
        o.fsdp.offload_grads = i % 2 == 1;
        REQUIRE_OK(open_rig(&o, 0, &r));
        check_no_gradients(&r);
        for (int n = 0; n < 2; n++) {
            CHECK_OK(tsri_job_step(r.job, n, 1e-3, 1.0, &hooks, &result));
            check_no_gradients(&r);
        }
        CHECK_EQ(seen, 2 * r.job->param_count);
        CHECK_EQ(tsri_recorder_race_count(tsri_comm_device(r.job->comm)), 0);
        close_rig(&r);
    }
}

static void misuse_is_named(void)
{
    tsri_job_options o = small_job(2, 2, 2);
    tsr_fsdp_options f = {.levels = {{"shrad", TSR_LEVEL_PARAMS}}};
    tsr_module *model = NULL;
    rig r;

    REQUIRE_OK(open_rig(&o, 0, &r));
    REQUIRE_OK(tsri_model_create(r.job->comm, &o.model, &model));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_fully_shard(model, &f)); /* no such axis */
    f.levels[0].axis = "shard";
    f.levels[1] = f.levels[0];
    CHECK_STATUS(TSR_ERR_INVALID, tsr_fully_shard(model, &f)); /* named twice */
    f.levels[1] = (tsr_axis_level){"tp", TSR_LEVEL_PARAMS};
    CHECK_OK(tsr_fully_shard(model, &f));
    CHECK_STATUS(TSR_ERR_STATE, tsr_fully_shard(model, &f));         /* a unit already */
    CHECK_STATUS(TSR_ERR_INVALID, tsr_module_materialize(model, 1)); /* tp carries no data */
    tsr_module_release(&model);
    CHECK_STATUS(TSR_ERR_STATE, tsr_module_materialize(r.job->model, 1));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_fsdp_preset(r.job->comm, "hdsp", &f));
    close_rig(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"collectives_follow_the_schedule", collectives_follow_the_schedule},
    {"replicas_meet_once_a_step", replicas_meet_once_a_step},
    {"bytes_follow_the_formula", bytes_follow_the_formula},
    {"presets_hold_what_they_say", presets_hold_what_they_say},
    {"every_dropped_edge_is_a_race", every_dropped_edge_is_a_race},
    {"prefetch_depth_is_kept", prefetch_depth_is_kept},
    {"patterns_reach_their_units", patterns_reach_their_units},
    {"gradients_are_of_one_step", gradients_are_of_one_step},
    {"misuse_is_named", misuse_is_named},
    {NULL, NULL},
};
