/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 2 3 4 */
/**
 * @file test_ops.c
 * Every operation, its inputs laid out at random, against the same with everything replicated.
 *
 * Replicated on every axis, an operation computes on each rank what one rank alone would; that is
 * checked against differences in test_op_gradients.c. The race check is on.
 */
#include "base/base.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "support/op_cases.h"
#include "support/tape_rig.h"

enum {
    DRAWS = 24,       /* layouts per operation */
    LEAST_LEGAL = 12, /* of which so many at least are no refused split of heads */
    MAX_AXES = 2
};

typedef struct bench {
    rig r;
    tsr_layout layouts[OP_CASE_MAX_IN];
    float values[OP_CASE_MAX_IN][OP_CASE_MAX_ELEMENTS];
    float *value[OP_CASE_MAX_IN];
    op_result whole, split;
    uint64_t draws;
} bench;

/* The same number on every rank. */
static int draw(bench *b, int below)
{
    return (int)(tsri_rng_word(2024, b->draws++) % (uint32_t)below);
}

static void draw_layout(bench *b, const op_input *in, tsr_layout *layout)
{
    const int axis_count = tsr_mesh_axis_count(b->r.mesh);

    for (int axis = 0; axis < axis_count; axis++) {
        const int kinds = in->ndim + (in->kind == OP_INPUT_VALUE ? 3 : 2);
        const int pick = draw(b, kinds);

        if (pick < in->ndim) {
            layout->place[axis] = (tsr_placement){.kind = TSR_SHARD, .dim = pick};
        } else if (pick == in->ndim + 2) {
            layout->place[axis].kind = TSR_PARTIAL;
        }
    }
    if (axis_count == MAX_AXES && draw(b, 2) == 1) {
        layout->order[0] = 1;
        layout->order[1] = 0;
    }
}

/* Both sides sum the same up to y_count + 64 terms, in another order: each term, of the size of the
 * largest result or 1, may round differently by eps, and the shares of a Partial input once more.
 */
static bool agree(const double *a, const double *b, int64_t count, int64_t terms, const char *what,
                  const char *layouts)
{
    double largest = 1.0;

    for (int64_t e = 0; e < count; e++) {
        largest = fmax(largest, fabs(b[e]));
    }
    for (int64_t e = 0; e < count; e++) {
        const double tolerance = 4.0 * (double)FLT_EPSILON * (double)(terms + 64) * largest;

        if (!(fabs(a[e] - b[e]) <= tolerance)) {
            (void)fprintf(stderr, "%s: element %lld of %s\n", layouts, (long long)e, what);
            CHECK_NEAR(a[e], b[e], tolerance);
            return false;
        }
    }
    return true;
}

static bool compare(const bench *b, const op_case *c, const char *layouts)
{
    const int64_t terms = b->whole.y_count;
    bool same = agree(&b->split.loss, &b->whole.loss, 1, terms, "loss", layouts);

    same = same && agree(b->split.y, b->whole.y, b->whole.y_count, terms, "y", layouts);
    for (int i = 0; same && i < c->in_count; i++) {
        same = agree(b->split.grad[i], b->whole.grad[i], op_input_count(&c->in[i]), terms,
                     i == 0   ? "gradient 0"
                     : i == 1 ? "gradient 1"
                              : "gradient 2",
                     layouts);
    }
    return same;
}

static void check_case(bench *b, const op_case *c)
{
    int legal = 0;

    for (int i = 0; i < c->in_count; i++) {
        int32_t ids[OP_CASE_MAX_ELEMENTS];

        b->value[i] = b->values[i];
        op_case_values(c, i, b->values[i], ids);
        REQUIRE_OK(tsr_layout_init(b->r.mesh, c->in[i].shape, c->in[i].ndim, &b->layouts[i]));
    }
    REQUIRE_OK(op_case_run(&b->r, c, b->layouts, b->value, true, &b->whole));
    for (int k = 0; k < DRAWS; k++) {
        char text[512] = "";
        tsr_status status = TSR_OK;

        (void)snprintf(text, sizeof(text), "%s", c->name);
        for (int i = 0; i < c->in_count; i++) {
            char one[128];

            REQUIRE_OK(tsr_layout_init(b->r.mesh, c->in[i].shape, c->in[i].ndim, &b->layouts[i]));
            draw_layout(b, &c->in[i], &b->layouts[i]);
            (void)tsr_layout_format(&b->layouts[i], one, sizeof(one));
            (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), " | %s", one);
        }
        status = op_case_run(&b->r, c, b->layouts, b->value, true, &b->split);
        if (status == TSR_ERR_PLACEMENT) {
            tsr_error_clear();
            continue;
        }
        if (status != TSR_OK) {
            (void)fprintf(stderr, "%s\n", text);
        }
        REQUIRE_OK(status);
        legal++;
        REQUIRE(compare(b, c, text));
    }
    CHECK(legal >= LEAST_LEGAL);
}

static void check_mesh(const tsr_mesh_axis *axes, int axis_count)
{
    bench *b = NULL;

    REQUIRE_OK(tsri_alloc(1, sizeof(*b), &b));
    REQUIRE_OK(rig_open(&b->r, "cpu", axes, axis_count, 0));
    for (int k = 0; k < op_case_count; k++) {
        check_case(b, &op_cases[k]);
    }
    rig_close(&b->r);
    tsri_free(&b);
}

static void test_one_axis(void)
{
    const tsr_mesh_axis axes[] = {{"tp", tsr_test_size()}};

    check_mesh(axes, 1);
}

static void test_two_axes(void)
{
    const int size = tsr_test_size();
    const tsr_mesh_axis axes[] = {{"data", size == 4 ? 2 : size}, {"tp", size == 4 ? 2 : 1}};

    check_mesh(axes, 2);
}

const tsr_test_case tsr_test_cases[] = {
    {"one axis", test_one_axis}, {"two axes", test_two_axes}, {NULL, NULL}};
