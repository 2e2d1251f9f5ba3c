/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 4 8 */
/**
 * @file test_state.c
 * What is saved on one mesh goes on on another as if nothing had been: bit for bit on the same one,
 * within the parity tests' bounds on another; and what is forgotten on the way shows.
 */
#include "base/base.h"

#include "tessera/state.h"

#include <math.h>
#include <string.h>

#include "support/parity.h"
#include "support/state_rig.h"
#include "support/tsr_test.h"

enum {
    SAVED_AFTER = 2,
    STEPS = 4,
    MOST_ENTRIES = 256
};

/* As in the parity tests, which say where they come from. */
static const double tolerance = 2e-5;
static const double eps = 1e-4;

static const tsr_world_options cpu = {.backend = "cpu"};

/* ---- saving and restoring ---- */

typedef struct snapshot {
    tsr_state_entry entry[MOST_ENTRIES];
    char name[MOST_ENTRIES][64];
    unsigned char *host[MOST_ENTRIES];
    int count;
    uint64_t digest;
} snapshot;

static tsr_status save(tsri_job *job, snapshot *out)
{
    tsr_state *state = NULL;

    TSR_TRY(tsr_state_open(job->model, job->optimizer, job->tape, &state));
    out->count = 0;
    for (int i = 0; i < tsr_state_count(state); i++) {
        tsr_state_entry *e = &out->entry[out->count];
        unsigned char *host = NULL;

        TSR_TRY(tsr_state_get(state, i, e));
        if (e->kind == TSR_STATE_GRAD) {
            continue;
        }
        if (out->count == MOST_ENTRIES - 1 || strlen(e->name) >= sizeof(out->name[0])) {
            return TSR_RAISE(TSR_ERR_INTERNAL, "%s has no room here", e->name);
        }
        TSR_TRY(tsri_alloc((size_t)e->count, tsr_dtype_size(e->dtype), &host));
        TSR_TRY(tsr_state_gather(state, e->name, 0, e->count, host));
        (void)snprintf(out->name[out->count], sizeof(out->name[0]), "%s", e->name);
        out->host[out->count++] = host;
    }
    TSR_TRY(tsr_state_digest(state, &out->digest));
    tsr_state_close(&state);
    return TSR_OK;
}

static void drop(snapshot *s)
{
    for (int i = 0; i < s->count; i++) {
        tsri_free(&s->host[i]);
    }
    s->count = 0;
}

/* -1: none. */
static int find(const snapshot *s, const char *name)
{
    for (int i = 0; i < s->count; i++) {
        if (strcmp(s->name[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

static tsr_status write_all(tsr_state *state, const snapshot *s)
{
    for (int i = 0; i < s->count; i++) {
        if (tsr_state_find(state, s->name[i]) >= 0) { /* a loss scale has no place in all */
            TSR_TRY(tsr_state_write(state, s->name[i], 0, s->entry[i].count, s->host[i]));
        }
    }
    return TSR_OK;
}

static tsr_status restore(tsri_job *job, const snapshot *s)
{
    tsr_state *state = NULL;
    uint64_t digest = 0;

    TSR_TRY(tsr_state_open(job->model, job->optimizer, job->tape, &state));
    TSR_TRY(tsr_state_commit(state, write_all(state, s)));
    TSR_TRY(tsr_state_digest(state, &digest));
    if ((tsr_state_find(state, "loss_scale") < 0) == (find(s, "loss_scale") < 0)) {
        CHECK_EQ(digest, s->digest);
    }
    tsr_state_close(&state);
    return TSR_OK;
}

/* ---- going on ---- */

/* A run that was interrupted nowhere. */
typedef struct story {
    tsri_step_result step[STEPS];
    snapshot saved, last;
} story;

static void tell(tsr_world *world, const state_layout *l, story *out)
{
    tsri_job *job = state_open_job(world, l, 11);

    REQUIRE(job != NULL);
    CHECK_OK(state_run(job, 0, SAVED_AFTER, out->step));
    CHECK_OK(save(job, &out->saved));
    CHECK_OK(state_run(job, SAVED_AFTER, STEPS, out->step));
    CHECK_OK(save(job, &out->last));
    tsri_job_close(&job);
}

/* Largest difference of parameters, in units of the bound. */
static double distance(const snapshot *a, const snapshot *b)
{
    double worst = 0.0;

    for (int i = 0; i < a->count; i++) {
        const float *x = (const float *)(const void *)a->host[i];
        const float *y = (const float *)(const void *)b->host[i];

        for (int64_t k = 0; a->entry[i].kind == TSR_STATE_PARAM && k < a->entry[i].count; k++) {
            worst = fmax(worst,
                         fabs((double)x[k] - (double)y[k]) / (STEPS * state_lr * tolerance / eps));
        }
    }
    return worst;
}

static double deviation(const story *want, const tsri_step_result *have)
{
    double worst = 0.0;

    for (int i = SAVED_AFTER; i < STEPS; i++) {
        const tsri_step_result *w = &want->step[i];

        worst = fmax(worst, fabs(have[i].loss - w->loss) / (tolerance * w->loss));
        worst = fmax(worst, fabs(have[i].grad_norm - w->grad_norm) / (tolerance * w->grad_norm));
        CHECK(have[i].tokens == w->tokens);
    }
    return worst;
}

/* Begun from other weights, l goes on where want was saved. */
static void go_on(tsr_world *world, const state_layout *l, const story *want, bool same)
{
    tsri_job *job = state_open_job(world, l, 12);
    tsri_step_result have[STEPS];
    snapshot end = {0};

    REQUIRE(job != NULL);
    CHECK_OK(restore(job, &want->saved));
    CHECK_OK(state_run(job, SAVED_AFTER, STEPS, have));
    CHECK_OK(save(job, &end));
    if (same) {
        CHECK_EQ(end.digest, want->last.digest);
        CHECK_EQ(deviation(want, have), 0.0);
    } else if (end.count > 0) {
        CHECK_NEAR(deviation(want, have), 0.0, 1.0);
        CHECK_NEAR(distance(&want->last, &end), 0.0, 1.0);
    }
    drop(&end);
    tsri_job_close(&job);
}

static bool is_half(const state_layout *l)
{
    return (l->extras & HALF) != 0;
}

/* Another layout after i that this test can run, of the same types; i itself if there is none. */
static int next_layout(int i)
{
    for (int k = 1; k < state_layout_count; k++) {
        const state_layout *l = &state_layouts[(i + k) % state_layout_count];

        if (is_half(l) == is_half(&state_layouts[i]) &&
            (state_fits(l) || state_rank_count(l) == 1)) {
            return (i + k) % state_layout_count;
        }
    }
    return i;
}

static void every_layout_goes_on(bool half)
{
    tsr_world *whole = NULL;
    tsr_world *alone = NULL;

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &whole));
    REQUIRE_OK(tsri_world_open_alone(whole, 1, &alone));
    for (int i = 0; i < state_layout_count; i++) {
        const state_layout *l = &state_layouts[i];
        const state_layout *other = &state_layouts[next_layout(i)];
        story s = {0};

        if (is_half(l) != half || (!state_fits(l) && state_rank_count(l) != 1)) {
            continue;
        }
        tell(state_rank_count(l) == 1 ? alone : whole, l, &s);
        go_on(state_rank_count(l) == 1 ? alone : whole, l, &s, true);
        if (!half && other != l) {
            go_on(state_rank_count(other) == 1 ? alone : whole, other, &s, false);
        }
        drop(&s.saved);
        drop(&s.last);
    }
    tsr_world_close(&alone);
    tsr_world_close(&whole);
}

static void runs_go_on(void)
{
    every_layout_goes_on(false);
}

static void half_runs_go_on(void)
{
    every_layout_goes_on(true);
}

/* ---- what must be noticed ---- */

typedef enum harm {
    NO_MOMENTS,
    ONE_UPDATE_LESS,
    ONE_BIT
} harm;

static void damage(snapshot *s, harm h)
{
    if (h == NO_MOMENTS) {
        for (int i = 0; i < s->count; i++) {
            if (strstr(s->name[i], ".exp_avg") != NULL && strstr(s->name[i], "_sq") == NULL) {
                memset(s->host[i], 0, (size_t)s->entry[i].count * sizeof(float));
            }
        }
    } else if (h == ONE_UPDATE_LESS) {
        const int index = find(s, "optimizer.updates");
        int64_t updates = 0;

        CHECK(index >= 0);
        if (index < 0 || s->host[index] == NULL) {
            return;
        }
        memcpy(&updates, s->host[index], sizeof(updates));
        updates--;
        memcpy(s->host[index], &updates, sizeof(updates));
    } else {
        s->host[find(s, "layers.1.mlp.up.weight")][40] ^= 1;
    }
}

/* The twins of the runs that went on. */
static void what_is_forgotten_shows(void)
{
    tsr_world *world = NULL;
    const int ranks = tsr_test_size();
    const state_layout l = {{"fsdp", "fsdp", 1, ranks, 1, ranks > 1, false}, PLAIN};

    REQUIRE_OK(tsr_world_open(NULL, NULL, &cpu, &world));
    for (int h = NO_MOMENTS; h <= ONE_BIT; h++) {
        tsri_step_result have[STEPS];
        tsri_job *job = NULL;
        tsr_state *state = NULL;
        uint64_t digest = 0;
        story s = {0};

        tell(world, &l, &s);
        damage(&s.saved, (harm)h);
        job = state_open_job(world, &l, 12);
        REQUIRE(job != NULL);
        CHECK_OK(tsr_state_open(job->model, job->optimizer, job->tape, &state));
        CHECK_OK(tsr_state_commit(state, write_all(state, &s.saved)));
        CHECK_OK(tsr_state_digest(state, &digest));
        CHECK(digest != s.saved.digest);
        CHECK_OK(state_run(job, SAVED_AFTER, STEPS, have));
        CHECK(h == ONE_BIT || deviation(&s, have) > 10.0);
        tsr_state_close(&state);
        tsri_job_close(&job);
        drop(&s.saved);
        drop(&s.last);
    }
    tsr_world_close(&world);
}

const tsr_test_case tsr_test_cases[] = {
    {"runs_go_on", runs_go_on},
    {"half_runs_go_on", half_runs_go_on},
    {"what_is_forgotten_shows", what_is_forgotten_shows},
    {NULL, NULL},
};
