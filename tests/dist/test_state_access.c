/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 8 */
/**
 * @file test_state_access.c
 * Reading and writing the state: ranges that ranks speak for tile each tensor, gradients are read
 * and written during a step, one rank may write alone, and misuse is told.
 */
#include "base/base.h"

#include "tessera/llama.h"
#include "tessera/state.h"
#include "tessera/unit.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "support/parity.h"
#include "support/state_rig.h"
#include "support/tsr_test.h"

enum {
    MOST_ENTRIES = 256
};

static const tsr_world_options cpu = {.backend = "cpu"};

/* ---- ranges ---- */

/* What read leaves and writes, beside the whole; returns the elements that this rank speaks for. */
static int64_t check_ranges(tsr_state *state, int index)
{
    tsr_state_entry e;
    float *whole = NULL;
    float *mine = NULL;
    int64_t spoken = 0;
    int64_t wrong = 0;
    int64_t at = 0;

    CHECK_OK(tsr_state_get(state, index, &e));
    CHECK_OK(tsri_alloc((size_t)e.count, sizeof(float), &whole));
    CHECK_OK(tsri_alloc((size_t)e.count, sizeof(float), &mine));
    for (int64_t i = 0; i < e.count; i++) {
        mine[i] = -77.0F;
    }
    CHECK_OK(tsr_state_gather(state, e.name, 0, e.count, whole));
    CHECK_OK(tsr_state_read(state, e.name, 0, e.count, mine));
    for (int64_t r = 0; r < e.range_count; r++) {
        int64_t first = 0;
        int64_t count = 0;
        float part[3] = {0};

        CHECK_OK(tsr_state_range(state, index, r, &first, &count));
        CHECK(first >= at && count > 0 && first + count <= e.count);
        for (; at < first; at++) {
            wrong += mine[at] != -77.0F;
        }
        for (; at < first + count; at++) {
            wrong += mine[at] != whole[at];
        }
        CHECK_OK(tsr_state_read(state, e.name, first, tsri_min64(count, 3), part));
        wrong += memcmp(part, whole + first, (size_t)tsri_min64(count, 3) * sizeof(float)) != 0;
        spoken += e.speaks ? count : 0;
    }
    for (; at < e.count; at++) {
        wrong += mine[at] != -77.0F;
    }
    CHECK_EQ(wrong, 0);
    tsri_free(&whole);
    tsri_free(&mine);
    return spoken;
}

static void ranges_tile_each_tensor(void)
{
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    for (int i = 0; i < state_layout_count; i++) {
        int64_t mine[MOST_ENTRIES] = {0};
        int64_t all[8][MOST_ENTRIES];
        tsri_job *job = NULL;
        tsr_state *state = NULL;
        tsri_step_result step;

        if (!state_fits(&state_layouts[i])) {
            continue;
        }
        job = state_open_job(world, &state_layouts[i], 3);
        REQUIRE(job != NULL);
        CHECK_OK(state_run(job, 0, 1, &step));
        CHECK_OK(tsr_state_open(job->model, job->optimizer, job->tape, &state));
        for (int k = 0; k < tsr_state_count(state); k++) {
            tsr_state_entry e;

            CHECK_OK(tsr_state_get(state, k, &e));
            mine[k] = e.kind == TSR_STATE_GRAD || e.dtype != TSR_F32
                          ? (e.speaks ? e.count : 0) * (e.kind != TSR_STATE_GRAD)
                          : check_ranges(state, k);
        }
        CHECK_OK(tsri_comm_exchange(job->comm, "a test", mine, sizeof(mine), all));
        for (int k = 0; k < tsr_state_count(state); k++) {
            tsr_state_entry e;
            int64_t sum = 0;

            CHECK_OK(tsr_state_get(state, k, &e));
            for (int r = 0; r < tsr_test_size(); r++) {
                sum += all[r][k];
            }
            CHECK_EQ(sum, e.kind == TSR_STATE_GRAD ? 0 : e.count);
        }
        tsr_state_close(&state);
        tsri_job_close(&job);
    }
    tsr_world_close(&world);
}

/* ---- gradients ---- */

/* Read, doubled, written back: the norm doubles, whatever the layout. */
static tsr_status double_gradients(void *context, tsri_job *job)
{
    double *before = context;
    tsr_state *state = NULL;

    TSR_TRY(tsr_clip_grad_norm(job->optimizer, job->tape, 0.0));
    TSR_TRY(tsr_grad_norm_read(job->optimizer, before, NULL));
    TSR_TRY(tsr_state_open(job->model, job->optimizer, job->tape, &state));
    for (int i = 0; i < tsr_state_count(state); i++) {
        tsr_state_entry e;
        float *host = NULL;

        TSR_TRY(tsr_state_get(state, i, &e));
        if (e.kind != TSR_STATE_GRAD) {
            continue;
        }
        TSR_TRY(tsri_alloc((size_t)e.count, sizeof(float), &host));
        TSR_TRY(tsr_state_read(state, e.name, 0, e.count, host));
        for (int64_t k = 0; k < e.count; k++) {
            host[k] *= 2.0F;
        }
        TSR_TRY(tsr_state_write(state, e.name, 0, e.count, host));
        tsri_free(&host);
    }
    CHECK_STATUS(TSR_ERR_STATE, tsr_state_write(state, "layers.0.mlp.up.weight", 0, 0, before));
    tsr_state_close(&state);
    return TSR_OK;
}

static void gradients_are_read_and_written(void)
{
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    for (int i = 0; i < state_layout_count; i++) {
        tsri_step_result result;
        double before = 0.0;
        const tsri_step_hooks hooks = {.gradients = double_gradients, .context = &before};
        tsri_job *job = NULL;

        if (!state_fits(&state_layouts[i])) {
            continue;
        }
        job = state_open_job(world, &state_layouts[i], 3);
        REQUIRE(job != NULL);
        CHECK_OK(parity_write_step(job, 0));
        CHECK_OK(tsri_job_step(job, 0, state_lr, 0.0, &hooks, &result));
        CHECK_NEAR(result.grad_norm, 2.0 * before, 4.0 * DBL_EPSILON * before);
        tsri_job_close(&job);
    }
    tsr_world_close(&world);
}

/* ---- misuse ---- */

static bool says(const char *words)
{
    const bool found = strstr(tsr_error_message(), words) != NULL;

    if (!found) {
        (void)fprintf(stderr, "  wants \"%s\" in \"%s\"\n", words, tsr_error_message());
    }
    tsr_error_clear();
    return found;
}

static void misuse_is_told(void)
{
    const int ranks = tsr_test_size();
    const state_layout l = {{"zero1", "zero1", 1, ranks, 1, ranks > 1, false}, SCALED};
    const int64_t counts[] = {-1};
    const float no_scale = -1.0F;
    float value[4] = {0};
    tsri_step_result result;
    tsr_world *world = NULL;
    tsr_state *state = NULL;
    tsri_job *job = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    job = state_open_job(world, &l, 3);
    REQUIRE(job != NULL);
    CHECK_OK(tsr_state_open(job->model, job->optimizer, job->tape, &state));
    CHECK_EQ(tsr_state_read(state, "layers.1.mlp.upp.weight", 0, 1, value), TSR_ERR_INVALID);
    CHECK(says("nearest: \"layers.1.mlp.up.weight\""));
    CHECK_EQ(tsr_state_read(state, "layers.1.mlp.up.weight", 21 * 13 - 1, 2, value),
             TSR_ERR_INVALID);
    CHECK(says("which has 273"));
    CHECK_EQ(tsr_state_read(state, "layers.1.mlp.up.weight", INT64_MAX, INT64_MAX, value),
             TSR_ERR_INVALID);
    CHECK_EQ(tsr_state_gather(state, "layers.1.mlp.up.weight.grad", 0, 1, value), TSR_ERR_STATE);
    CHECK(says("no gradient"));
    CHECK_EQ(tsr_state_write(state, "optimizer.updates", 0, 1, counts), TSR_ERR_INVALID);
    CHECK(says("0 or more"));
    CHECK_EQ(tsr_state_write(state, "loss_scale", 0, 1, &no_scale), TSR_ERR_INVALID);
    CHECK(says("above 0"));
    /* Not before all have said so. */
    CHECK_OK(tsr_state_write(state, "layers.1.mlp.up.weight", 0, 0, value));
    CHECK_OK(parity_write_step(job, 0));
    CHECK_EQ(tsri_job_step(job, 0, state_lr, 1.0, NULL, &result), TSR_ERR_STATE);
    CHECK(says("tsr_state_commit"));
    /* Another state will do. */
    tsr_state_close(&state);
    CHECK_OK(tsr_state_open(job->model, job->optimizer, job->tape, &state));
    CHECK_OK(tsr_state_commit(state, TSR_OK));
    CHECK_OK(tsri_job_step(job, 1, state_lr, 1.0, NULL, &result));
    tsr_state_close(&state);
    tsri_job_close(&job);
    tsr_world_close(&world);
}

/* One rank alone writes: all go on with what it wrote. */
static void one_rank_may_write(void)
{
    const int ranks = tsr_test_size();
    const state_layout l = {{"lean", "zero1", 1, ranks, 1, ranks > 1, false}, HALF};
    tsri_step_result steps[2];
    tsr_world *world = NULL;
    tsr_state *state = NULL;
    tsri_job *job = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    job = state_open_job(world, &l, 3);
    REQUIRE(job != NULL);
    CHECK_OK(state_run(job, 0, 1, steps));
    CHECK_OK(tsr_state_open(job->model, job->optimizer, job->tape, &state));
    if (tsr_test_rank() == ranks - 1) {
        for (int i = 0; i < job->param_count; i++) {
            const tsr_param *p = job->params[i];
            float *zeros = NULL;

            REQUIRE_OK(tsri_alloc((size_t)tsr_param_count(p), sizeof(float), &zeros));
            CHECK_OK(tsr_state_write(state, tsr_param_name(p), 0, tsr_param_count(p), zeros));
            tsri_free(&zeros);
        }
    }
    CHECK_OK(tsr_state_commit(state, TSR_OK));
    CHECK_OK(state_run(job, 1, 2, steps));
    CHECK(isfinite(steps[1].loss));
    tsr_state_close(&state);
    tsri_job_close(&job);
    tsr_world_close(&world);
}

/* Halve a block's weights, which are gathered by hand before where asked; then go on. */
static void run_over_halved(tsr_world *world, const char *preset, bool gathered, double *loss_out)
{
    const int ranks = tsr_test_size();
    const state_layout l = {{preset, preset, 1, ranks, 1, ranks > 1, false}, PLAIN};
    static const char *const name = "layers.1.mlp.up.weight";
    tsri_step_result steps[2] = {{0}};
    float weights[21 * 13];
    tsr_state *state = NULL;
    tsri_job *job = state_open_job(world, &l, 3);

    REQUIRE(job != NULL);
    CHECK_OK(state_run(job, 0, 1, steps));
    CHECK_OK(tsr_state_open(job->model, job->optimizer, job->tape, &state));
    CHECK_OK(tsr_state_gather(state, name, 0, 21 * 13, weights));
    if (gathered) {
        CHECK_OK(tsr_unit_unshard(tsr_llama_layer(job->model, 1)));
    }
    for (int i = 0; i < 21 * 13; i++) {
        weights[i] *= 0.5F;
    }
    CHECK_OK(tsr_state_write(state, name, 0, 21 * 13, weights));
    CHECK_OK(tsr_state_commit(state, TSR_OK));
    tsr_state_close(&state);
    CHECK_OK(state_run(job, 1, 2, steps));
    *loss_out = steps[1].loss;
    tsri_job_close(&job);
}

static void what_is_gathered_is_let_go(void)
{
    static const char *const presets[] = {"ddp", "zero1", "zero2", "fsdp"};
    tsr_world *world = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    for (int i = 0; i < 4; i++) {
        double plain = 0.0;
        double gathered = 1.0;

        run_over_halved(world, presets[i], false, &plain);
        run_over_halved(world, presets[i], true, &gathered);
        CHECK(plain == gathered);
    }
    tsr_world_close(&world);
}

/* One rank could not write: none runs, until a commit has succeeded. */
static void a_failed_commit_stops_all(void)
{
    const int ranks = tsr_test_size();
    const state_layout l = {{"fsdp", "fsdp", 1, ranks, 1, ranks > 1, false}, PLAIN};
    const bool fails = tsr_test_rank() == ranks - 1;
    tsri_step_result steps[1];
    tsr_world *world = NULL;
    tsr_state *state = NULL;
    tsri_job *job = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    job = state_open_job(world, &l, 3);
    REQUIRE(job != NULL);
    CHECK_OK(tsr_state_open(job->model, job->optimizer, job->tape, &state));
    CHECK_EQ(tsr_state_commit(state, fails ? TSR_RAISE(TSR_ERR_IO, "no file") : TSR_OK),
             fails ? TSR_ERR_IO : TSR_ERR_REMOTE);
    tsr_error_clear();
    CHECK_EQ(state_run(job, 0, 1, steps), TSR_ERR_STATE);
    CHECK(says("tsr_state_commit"));
    CHECK_OK(tsr_state_commit(state, TSR_OK));
    CHECK_OK(tsri_job_step(job, 1, state_lr, 1.0, NULL, steps));
    tsr_state_close(&state);
    tsri_job_close(&job);
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"ranges_tile_each_tensor", ranges_tile_each_tensor},
    {"gradients_are_read_and_written", gradients_are_read_and_written},
    {"misuse_is_told", misuse_is_told},
    {"what_is_gathered_is_let_go", what_is_gathered_is_let_go},
    {"a_failed_commit_stops_all", a_failed_commit_stops_all},
    {"one_rank_may_write", one_rank_may_write},
    {NULL, NULL},
};
