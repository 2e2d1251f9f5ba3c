/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Colouring: nothing alive together shares a byte, the takers are right, and the result is close
 * to the lower bound for steps that look like training. */
#include "backend/arena_priv.h"

#include "base/base.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

enum {
    MAX_INTERVALS = 6000
};

/* A step being written down. */
typedef struct trace {
    tsri_interval *intervals;
    int count, tick;
} trace;

static int acquire(trace *t, size_t bytes, tsri_mem_kind kind)
{
    const size_t size = (bytes + TSRI_ARENA_ALIGN - 1) / TSRI_ARENA_ALIGN * TSRI_ARENA_ALIGN;
    t->intervals[t->count] = (tsri_interval){.bytes = bytes,
                                             .size = size,
                                             .kind = kind,
                                             .label = "x",
                                             .birth = t->tick++,
                                             .death = INT32_MAX};
    return t->count++;
}

static void release(trace *t, int interval)
{
    t->intervals[interval].death = t->tick++;
}

static bool alive_together(const tsri_interval *x, const tsri_interval *y)
{
    return x->birth < y->death && y->birth < x->death;
}

static bool share_bytes(const tsri_interval *x, const tsri_interval *y)
{
    return x->size > 0 && y->size > 0 && x->offset < y->offset + y->size &&
           y->offset < x->offset + x->size;
}

static void check_plan(const tsri_arena_plan *plan)
{
    size_t top = 0;
    size_t peak = 0;
    for (int i = 0; i < plan->count; i++) {
        const tsri_interval *x = &plan->intervals[i];
        size_t live = 0;
        CHECK_EQ(x->offset % TSRI_ARENA_ALIGN, 0);
        top = x->offset + x->size > top ? x->offset + x->size : top;
        for (int j = 0; j < plan->count; j++) {
            const tsri_interval *y = &plan->intervals[j];
            if (j < i && alive_together(x, y) && share_bytes(x, y)) {
                CHECK(!"two live intervals share bytes");
                return;
            }
            live += y->birth <= x->birth && y->death > x->birth ? y->size : 0;
        }
        peak = live > peak ? live : peak;
    }
    CHECK_EQ(plan->live_peak_bytes, peak);
    CHECK(plan->bytes >= top && plan->bytes >= peak);
    size_t kinds = 0;
    for (int k = 0; k < TSRI_MEM_COUNT; k++) {
        kinds += plan->kind_at_peak[k];
    }
    CHECK_EQ(kinds, peak);
}

/* Byte by byte (in units of the alignment): who had each unit of interval i before it? */
static void check_before(const tsri_arena_plan *plan)
{
    const size_t units = plan->bytes / TSRI_ARENA_ALIGN;
    int *owner = NULL;
    bool *expected = NULL;
    REQUIRE_OK(tsri_alloc(units, sizeof(int), &owner));
    REQUIRE_OK(tsri_alloc((size_t)plan->count, sizeof(bool), &expected));
    for (int n = 0; n < 2 * plan->count; n++) {
        const int i = n % plan->count;
        const tsri_interval *x = &plan->intervals[i];
        const size_t first = x->offset / TSRI_ARENA_ALIGN;
        int expected_count = 0;
        memset(expected, 0, (size_t)plan->count * sizeof(bool));
        for (size_t u = first; u < first + x->size / TSRI_ARENA_ALIGN; u++) {
            if (n >= plan->count && !expected[owner[u]]) {
                expected[owner[u]] = true;
                expected_count++;
            }
            owner[u] = i;
        }
        if (n < plan->count) {
            continue;
        }
        CHECK_EQ(plan->before_first[i + 1] - plan->before_first[i], expected_count);
        for (int k = plan->before_first[i]; k < plan->before_first[i + 1]; k++) {
            CHECK(expected[plan->before[k]]);
        }
    }
    tsri_free(&owner);
    tsri_free(&expected);
}

static void test_random_traces(void)
{
    double worst = 1;
    for (uint64_t key = 1; key <= 60; key++) {
        trace t = {0};
        int live[64];
        int live_count = 0;
        uint64_t draw = 0;
        tsri_arena_plan *plan = NULL;
        REQUIRE_OK(tsri_alloc(MAX_INTERVALS, sizeof(tsri_interval), &t.intervals));
        const int count = 1 + (int)(tsri_rng_word(key, draw++) % 300);
        while (t.count < count || live_count > 0) {
            const uint32_t word = tsri_rng_word(key, draw++);
            if (t.count < count && live_count < 64 && (word % 5 < 3 || live_count == 0)) {
                const size_t bytes = word / 8 % 9 == 0 ? 0 : word / 64 % 9000;
                live[live_count++] = acquire(&t, bytes, (tsri_mem_kind)(word % TSRI_MEM_COUNT));
            } else {
                const int at = (int)(word / 8 % (uint32_t)live_count);
                release(&t, live[at]);
                live[at] = live[--live_count];
            }
        }
        REQUIRE_OK(tsri_arena_plan_create(t.intervals, t.count, &plan));
        check_plan(plan);
        check_before(plan);
        if (plan->live_peak_bytes > 0) {
            const double ratio = (double)plan->bytes / (double)plan->live_peak_bytes;
            worst = ratio > worst ? ratio : worst;
        }
        tsri_arena_plan_destroy(&plan);
        tsri_free(&t.intervals);
    }
    /* Lifetimes without structure are the hard case; the orders tried stay within 15 %. */
    CHECK(worst < 1.15);
}

/* ---- a training step ---- */

typedef struct shape {
    size_t tokens, dim, ffn, heads, vocab, unit_bytes;
    int layers, micro_batches;
    bool recompute;
} shape;

enum {
    SAVED = 9
};

/* Saved by one block: norm input, normed, q, k, v, attention, lse, gate, up. */
static void block_forward(trace *t, const shape *s, int *saved)
{
    const size_t row = s->tokens * 2;
    const size_t sizes[SAVED] = {row * s->dim,
                                 row * s->dim,
                                 row * s->dim,
                                 row * s->dim / 4,
                                 row * s->dim / 4,
                                 row * s->dim,
                                 s->tokens * s->heads * 4,
                                 row * s->ffn,
                                 row * s->ffn};
    for (int i = 0; i < SAVED; i++) {
        saved[i] = acquire(t, sizes[i], TSRI_MEM_ACTIVATION);
        if (i % 3 == 2) {
            release(t, acquire(t, 4 * s->dim * 512, TSRI_MEM_WORKSPACE));
        }
    }
    const int product = acquire(t, row * s->ffn, TSRI_MEM_ACTIVATION);
    release(t, acquire(t, row * s->dim, TSRI_MEM_ACTIVATION));
    release(t, product);
}

/* Gradients flow back through the saved values, last first. */
static void block_backward(trace *t, const shape *s, const int *saved, int *flowing)
{
    for (int i = SAVED - 1; i >= 0; i--) {
        const int gradient = acquire(t, t->intervals[saved[i]].bytes, TSRI_MEM_ACTIVATION);
        const int scratch = acquire(t, 4 * s->dim * 256, TSRI_MEM_WORKSPACE);
        release(t, *flowing);
        release(t, scratch);
        release(t, saved[i]);
        *flowing = gradient;
    }
}

static void step(trace *t, const shape *s)
{
    int saved[64][SAVED];
    int inputs[65];
    int slot[2] = {-1, -1};
    for (int micro = 0; micro < s->micro_batches; micro++) {
        inputs[0] = acquire(t, s->tokens * s->dim * 2, TSRI_MEM_ACTIVATION);
        for (int i = 0; i < s->layers; i++) {
            if (slot[i % 2] >= 0) {
                release(t, slot[i % 2]);
            }
            slot[i % 2] = acquire(t, s->unit_bytes, TSRI_MEM_SLOT_PARAM);
            block_forward(t, s, saved[i]);
            inputs[i + 1] = acquire(t, s->tokens * s->dim * 2, TSRI_MEM_ACTIVATION);
            for (int k = SAVED - 1; s->recompute && k >= 0; k--) {
                release(t, saved[i][k]);
            }
        }
        const int logits = acquire(t, s->tokens * s->vocab * 2, TSRI_MEM_ACTIVATION);
        int flowing = acquire(t, s->tokens * s->dim * 2, TSRI_MEM_ACTIVATION);
        release(t, logits);
        int grads[2] = {-1, -1};
        for (int i = s->layers - 1; i >= 0; i--) {
            release(t, slot[i % 2]);
            slot[i % 2] = acquire(t, s->unit_bytes, TSRI_MEM_SLOT_PARAM);
            if (grads[i % 2] >= 0) {
                release(t, grads[i % 2]);
            }
            grads[i % 2] = acquire(t, 2 * s->unit_bytes, TSRI_MEM_SLOT_GRAD);
            if (s->recompute) {
                block_forward(t, s, saved[i]);
            }
            block_backward(t, s, saved[i], &flowing);
            release(t, inputs[i + 1]);
        }
        release(t, inputs[0]);
        release(t, flowing);
        for (int k = 0; k < 2; k++) {
            release(t, grads[k]);
            release(t, slot[k]);
            slot[k] = -1;
        }
    }
}

static void test_training_steps_are_near_the_bound(void)
{
    const shape shapes[] = {
        {2048, 1024, 2816, 16, 32000, 25 << 20, 12, 1, false},
        {2048, 1024, 2816, 16, 32000, 25 << 20, 12, 1, true},
        {512, 4096, 11008, 32, 32000, 400 << 20, 32, 1, false},
        {4096, 768, 3072, 12, 50257, 14 << 20, 12, 4, false},
        {64, 64, 176, 4, 256, 100 << 10, 4, 3, false},
        {1000, 333, 1001, 9, 777, 1 << 20, 8, 2, true},
        {4096, 2048, 5632, 32, 32000, 88 << 20, 24, 2, false},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        trace t = {0};
        tsri_arena_plan *plan = NULL;
        REQUIRE_OK(tsri_alloc(MAX_INTERVALS, sizeof(tsri_interval), &t.intervals));
        step(&t, &shapes[i]);
        REQUIRE_OK(tsri_arena_plan_create(t.intervals, t.count, &plan));
        check_plan(plan);
        const double ratio = (double)plan->bytes / (double)plan->live_peak_bytes;
        CHECK_NEAR(ratio, 1.0, 0.02); /* the aim: 2 % over what no plan can avoid */
        tsri_arena_plan_destroy(&plan);
        tsri_free(&t.intervals);
    }
}

static void test_degenerate_steps(void)
{
    tsri_interval intervals[2] = {{.death = 1}, {.birth = 2, .death = 3}};
    tsri_arena_plan *plan = NULL;
    REQUIRE_OK(tsri_arena_plan_create(intervals, 0, &plan));
    CHECK_EQ(plan->bytes, 0);
    tsri_arena_plan_destroy(&plan);
    REQUIRE_OK(tsri_arena_plan_create(intervals, 2, &plan));
    CHECK_EQ(plan->bytes, 0);
    CHECK_EQ(plan->before_first[2], 0);
    CHECK_STR(plan->peak_label, "");
    tsri_arena_plan_destroy(&plan);
}

const tsr_test_case tsr_test_cases[] = {
    {"random_traces", test_random_traces},
    {"training_steps_are_near_the_bound", test_training_steps_are_near_the_bound},
    {"degenerate_steps", test_degenerate_steps},
    {NULL, NULL},
};
