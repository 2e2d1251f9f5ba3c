/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Offloading on the sim backend: which copies run when, and what lies in either pool. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

#include "job/job.h"
#include "support/tsr_test.h"

enum {
    LAYERS = 3,
    UNITS = LAYERS + 3 /* the root, embedding and head */
};

static tsri_job_options small_job(void)
{
    return (tsri_job_options){.model = {.arch = TSRI_ARCH_LLAMA,
                                        .layers = LAYERS,
                                        .dim = 40,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .ffn = 100,
                                        .vocab = 131},
                              .axes = {{"replicate", 2}, {"shard", 2}},
                              .axis_count = 2,
                              .batch = 8,
                              .seq = 16,
                              .seed = 1,
                              .comm = {.record = true, .race_check = true}};
}

typedef struct rig {
    tsr_world *world;
    tsri_job *job;
} rig;

static tsr_status open_rig(const tsri_job_options *options, rig *out)
{
    const tsr_world_options sim = {.backend = "sim", .sim_rank = 1, .sim_size = 4};

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

static tsr_device *device_of(const rig *r)
{
    return tsri_comm_device(r->job->comm);
}

static tsr_status step(rig *r, int64_t number)
{
    tsri_step_result result;

    TSR_TRY(tsri_job_step(r->job, number, 1e-3, 1.0, NULL, &result));
    return TSR_OK;
}

/* Copies (x) and the units' collectives of one step in host order, repeats as one. */
static const char *trace(const rig *r, char *text, size_t size)
{
    static const char letter[TSRI_STREAM_COUNT] = {'c', 'g', 's', 'a', 'x'};
    char last[64] = "";
    char now[64];
    int count = 0;
    const tsri_entry *e = tsri_recorder_entries(device_of(r), &count);
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < count; i++) {
        const bool copies = (e[i].kind == TSRI_ENTRY_KERNEL || e[i].kind == TSRI_ENTRY_COPY) &&
                            e[i].stream == TSRI_STREAM_COPY;
        const bool moves = e[i].kind == TSRI_ENTRY_COLLECTIVE && e[i].stream != TSRI_STREAM_COMPUTE;

        if (!copies && !moves) {
            continue;
        }
        (void)snprintf(now, sizeof(now), "%c:%.48s", letter[e[i].stream], e[i].label);
        if (strcmp(now, last) != 0 && used < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? " " : "", now);
            (void)snprintf(last, sizeof(last), "%s", now);
        }
    }
    return text;
}

static void check_trace(bool params, bool grads, int micro_batches, const char *want)
{
    tsri_job_options o = small_job();
    char text[4096];
    rig r;

    o.model.layers = 2;
    o.fsdp.offload_params = params;
    o.fsdp.offload_grads = grads;
    o.micro_batches = micro_batches;
    REQUIRE_OK(open_rig(&o, &r));
    tsri_recorder_clear(device_of(&r));
    CHECK_OK(step(&r, 0));
    CHECK_STR(trace(&r, text, sizeof(text)), want);
    CHECK_OK(step(&r, 1));
    CHECK_EQ(tsri_recorder_race_count(device_of(&r)), 0);
    close_rig(&r);
}

static void parameters_are_copied_before_each_gather(void)
{
    check_trace(true, false, 1,
                "x: g: x:embed g:embed x:layers.0 g:layers.0 x:layers.1 g:layers.1 x:head g:head "
                "x:layers.1 g:layers.1 s:head a:head x:layers.0 g:layers.0 s:layers.1 a:layers.1 "
                "x:embed g:embed s:layers.0 a:layers.0 s:embed a:embed s: a:");
}

static void gradients_are_copied_behind_their_reduction(void)
{
    check_trace(false, true, 1,
                "g: g:embed g:layers.0 g:layers.1 g:head g:layers.1 s:head a:head x:head "
                "g:layers.0 s:layers.1 a:layers.1 x:layers.1 "
                "g:embed s:layers.0 a:layers.0 x:layers.0 s:embed a:embed x:embed s: a: x:");
}

/* With more micro-batches what is there comes back first, but for the first. */
static void sums_come_back_before_more_is_added(void)
{
    check_trace(false, true, 2,
                "g: g:embed g:layers.0 g:layers.1 g:head g:layers.1 s:head x:head "
                "g:layers.0 s:layers.1 x:layers.1 g:embed s:layers.0 x:layers.0 s:embed x:embed "
                "s: x: g: g:embed g:layers.0 g:layers.1 g:head "
                "g:layers.1 x:head s:head a:head x:head "
                "g:layers.0 x:layers.1 s:layers.1 a:layers.1 x:layers.1 "
                "g:embed x:layers.0 s:layers.0 a:layers.0 x:layers.0 "
                "x:embed s:embed a:embed x:embed x: s: a: x:");
}

/* What rests in the host pool is what the device has less of, and step memory grows by no more than
 * a unit's parameters. */
static void pools_hold_what_they_say(void)
{
    tsri_job_options o = small_job();
    tsri_step_memory plain;
    tsri_step_memory moved;
    tsr_unit_info units[UNITS];
    size_t host[TSRI_MEM_COUNT];
    size_t gradients = 0;
    size_t largest = 0;
    rig r;

    REQUIRE_OK(open_rig(&o, &r));
    CHECK_OK(step(&r, 0));
    tsri_job_summarize(r.job, &plain);
    memcpy(host, device_of(&r)->bytes_kind, sizeof(host));
    REQUIRE_EQ(tsr_fsdp_units(r.job->model, units, UNITS), UNITS);
    for (int i = 0; i < UNITS; i++) {
        gradients += units[i].grad_bytes;
        largest = units[i].grad_bytes > largest ? units[i].grad_bytes : largest;
    }
    /* On the device gradients are there for part of the step; in the host pool they rest. */
    CHECK_EQ(host[TSRI_MEM_GRAD], 0);
    host[TSRI_MEM_GRAD] = gradients;
    CHECK_EQ(device_of(&r)->host_peak, 0);
    close_rig(&r);

    o.fsdp.offload_params = true;
    o.fsdp.offload_grads = true;
    o.optim.offload = true;
    REQUIRE_OK(open_rig(&o, &r));
    CHECK_OK(step(&r, 0));
    tsri_job_summarize(r.job, &moved);
    for (int kind = TSRI_MEM_PARAM; kind <= TSRI_MEM_OPTIM; kind++) {
        CHECK(host[kind] > 0);
        CHECK_EQ(device_of(&r)->host_kind[kind], host[kind]);
        CHECK_EQ(device_of(&r)->bytes_kind[kind], 0);
    }
    CHECK_EQ(device_of(&r)->host_now,
             host[TSRI_MEM_PARAM] + host[TSRI_MEM_GRAD] + host[TSRI_MEM_OPTIM]);
    CHECK_EQ(device_of(&r)->host_peak, device_of(&r)->host_now);
    CHECK(moved.kind_most[TSRI_MEM_GRAD] <= 2 * largest + 512);
    CHECK(moved.arena_bytes <= plain.arena_bytes + 2 * largest);
    CHECK(moved.total_bytes < plain.total_bytes);
    close_rig(&r);
}

/* Inputs of a block go down behind it, and come up while the one above is run again; those of the
 * last have not left yet. */
static void inputs_go_down_and_come_up(void)
{
    tsri_job_options o = small_job();
    char text[4096];
    size_t host = 0;
    rig r;

    o.recompute.every = 1;
    o.recompute.offload = true;
    REQUIRE_OK(open_rig(&o, &r));
    tsri_recorder_clear(device_of(&r));
    CHECK_OK(step(&r, 0));
    CHECK_STR(trace(&r, text, sizeof(text)),
              "g: g:embed g:layers.0 g:layers.1 x:layers.0 g:layers.2 x:layers.1 g:head x:layers.2 "
              "g:layers.2 s:head a:head g:layers.1 x:layers.1 s:layers.2 a:layers.2 "
              "g:layers.0 x:layers.0 s:layers.1 a:layers.1 g:embed s:layers.0 a:layers.0 "
              "s:embed a:embed s: a:");
    host = device_of(&r)->host_peak;
    CHECK_EQ(host, (size_t)LAYERS * 2 * 16 * 40 * sizeof(float)); /* [8 / 4, 16, 40] of each */
    CHECK_OK(step(&r, 1));
    CHECK_OK(step(&r, 2));
    CHECK_EQ(tsri_recorder_race_count(device_of(&r)), 0);
    CHECK_EQ(device_of(&r)->host_peak, host); /* nothing new after the first step */
    close_rig(&r);
}

static int launches(const rig *r, tsrk_id kernel)
{
    int count = 0;
    int found = 0;
    const tsri_entry *e = tsri_recorder_entries(device_of(r), &count);

    for (int i = 0; i < count; i++) {
        found += e[i].kind == TSRI_ENTRY_KERNEL && e[i].op == (int)kernel;
    }
    return found;
}

/* A named operation runs once per block, the others twice, and its results take memory. */
static void named_operations_run_once(void)
{
    static const char *const names[] = {"attention", "rmsnorm"};
    int attention[3];
    int norms[3];
    size_t peak[3];

    for (int kept = 0; kept <= 2; kept++) {
        tsri_job_options o = small_job();
        tsri_arena_stats stats;
        rig r;

        o.seq = 64;
        o.recompute.every = 1;
        o.recompute.keep.count = kept;
        o.recompute.keep.at[0] = names[0];
        o.recompute.keep.at[1] = names[1];
        REQUIRE_OK(open_rig(&o, &r));
        tsri_recorder_clear(device_of(&r));
        CHECK_OK(step(&r, 0));
        attention[kept] = launches(&r, TSRK_ATTENTION);
        norms[kept] = launches(&r, TSRK_RMSNORM);
        CHECK_OK(step(&r, 1));
        tsri_arena_get_stats(tsri_comm_arena(r.job->comm), &stats);
        CHECK_EQ(stats.departures, 0);
        CHECK_EQ(tsri_recorder_race_count(device_of(&r)), 0);
        peak[kept] = stats.kind_peak[TSRI_MEM_ACTIVATION];
        close_rig(&r);
    }
    CHECK_EQ(attention[0], 2 * LAYERS);
    CHECK_EQ(attention[1], LAYERS);
    CHECK_EQ(attention[2], LAYERS);
    CHECK_EQ(norms[0], 2 * 2 * LAYERS + 1); /* two per block, and the last one */
    CHECK_EQ(norms[1], norms[0]);
    CHECK_EQ(norms[2], 2 * LAYERS + 1);
    CHECK(peak[0] < peak[1] && peak[1] < peak[2]);
}

static void activations_at_peak(int layers, int64_t seq, bool offload, size_t *out)
{
    tsri_job_options o = small_job();
    tsri_arena_stats stats;
    rig r;

    o.model.layers = layers;
    o.seq = seq;
    o.recompute.every = 1;
    o.recompute.offload = offload;
    REQUIRE_OK(open_rig(&o, &r));
    CHECK_OK(step(&r, 0));
    CHECK_OK(step(&r, 1));
    tsri_arena_get_stats(tsri_comm_arena(r.job->comm), &stats);
    CHECK_EQ(stats.departures, 0);
    *out = stats.kind_peak[TSRI_MEM_ACTIVATION];
    close_rig(&r);
}

/* Of n blocks' inputs two are on the device at the peak, where the last block is run again: its own
 * and the next one's. */
static void the_peak_falls_by_all_but_two_inputs(void)
{
    enum {
        SEQ = 64 /* so that a block's own activations are the peak, not the logits */
    };
    const size_t input = (size_t)2 * SEQ * 40 * sizeof(float); /* a multiple of 256 */

    for (int layers = 3; layers <= 9; layers += 3) {
        size_t plain = 0;
        size_t moved = 0;

        activations_at_peak(layers, SEQ, false, &plain);
        activations_at_peak(layers, SEQ, true, &moved);
        printf("# %d blocks: %zu bytes of activations, offloaded %zu, input %zu\n", layers, plain,
               moved, input);
        CHECK_EQ(plain - moved, (size_t)(layers - 2) * input);
    }
}

/* Waits without which two calls conflict, of all that two steps make. */
static void dropped_waits(const tsri_job_options *o, int *waits_out, int *races_out)
{
    rig r;

    *races_out = 0;
    REQUIRE_OK(open_rig(o, &r));
    CHECK_OK(step(&r, 0));
    CHECK_OK(step(&r, 1));
    *waits_out = tsri_recorder_wait_count(device_of(&r));
    close_rig(&r);
    for (int n = 1; n <= *waits_out; n++) {
        const tsri_recorder_options drop = {.ledger = true, .race_check = true, .drop_wait = n};
        tsr_status status = TSR_OK;

        REQUIRE_OK(open_rig(o, &r));
        REQUIRE_OK(tsri_recorder_attach(device_of(&r), &drop));
        status = step(&r, 0);
        if (status == TSR_OK) {
            status = step(&r, 1);
        }
        *races_out += status != TSR_OK;
        tsr_error_clear();
        close_rig(&r);
    }
}

/* The edges to and from the copy stream are there for a reason, as all others are. */
static void dropped_edges_are_races(void)
{
    tsri_job_options o = small_job();
    int plain_waits = 0;
    int plain_races = 0;
    int waits = 0;
    int races = 0;

    dropped_waits(&o, &plain_waits, &plain_races);
    o.fsdp.offload_params = true;
    o.fsdp.offload_grads = true;
    dropped_waits(&o, &waits, &races);
    printf("# %d of %d dropped waits are races; without offload %d of %d\n", races, waits,
           plain_races, plain_waits);
    CHECK(waits > plain_waits);
    CHECK(races - plain_races >= (waits - plain_waits) / 2);
}

/* So are those of inputs: in each of two steps the first copy down (later ones are behind it, and
 * their values too) and each copy up, of all blocks but the last. */
static void dropped_edges_of_inputs_are_races(void)
{
    tsri_job_options o = small_job();
    int plain_waits = 0;
    int plain_races = 0;
    int waits = 0;
    int races = 0;

    o.recompute.every = 1;
    dropped_waits(&o, &plain_waits, &plain_races);
    o.recompute.offload = true;
    dropped_waits(&o, &waits, &races);
    printf("# %d of %d dropped waits are races; without offload %d of %d\n", races, waits,
           plain_races, plain_waits);
    CHECK(races - plain_races >= 2 * (1 + LAYERS - 1));
}

const tsr_test_case tsr_test_cases[] = {
    {"parameters_are_copied_before_each_gather", parameters_are_copied_before_each_gather},
    {"gradients_are_copied_behind_their_reduction", gradients_are_copied_behind_their_reduction},
    {"sums_come_back_before_more_is_added", sums_come_back_before_more_is_added},
    {"inputs_go_down_and_come_up", inputs_go_down_and_come_up},
    {"named_operations_run_once", named_operations_run_once},
    {"the_peak_falls_by_all_but_two_inputs", the_peak_falls_by_all_but_two_inputs},
    {"dropped_edges_are_races", dropped_edges_are_races},
    {"dropped_edges_of_inputs_are_races", dropped_edges_of_inputs_are_races},
    {"pools_hold_what_they_say", pools_hold_what_they_say},
    {NULL, NULL},
};
