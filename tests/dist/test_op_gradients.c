/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 */
/**
 * @file test_op_gradients.c
 * Every operation's gradient against central differences of the loss, through the whole tape.
 */
#include "base/base.h"

#include <float.h>
#include <math.h>

#include "support/op_cases.h"
#include "support/tape_rig.h"

/* Fourth-order differences over this step: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h. */
static const double step = 0.0625;

typedef struct bench {
    rig r;
    tsr_layout layouts[OP_CASE_MAX_IN];
    float values[OP_CASE_MAX_IN][OP_CASE_MAX_ELEMENTS];
    float *value[OP_CASE_MAX_IN];
    op_result base, shifted;
} bench;

static tsr_status loss_at(bench *b, const op_case *c, int i, int64_t e, double shift, double *out)
{
    const float kept = b->values[i][e];
    tsr_status status = TSR_OK;

    b->values[i][e] = (float)((double)kept + shift);
    status = op_case_run(&b->r, c, b->layouts, b->value, false, &b->shifted);
    b->values[i][e] = kept;
    *out = b->shifted.loss;
    TSR_TRY(status);
    return TSR_OK;
}

static tsr_status difference(bench *b, const op_case *c, int i, int64_t e, double *out)
{
    double near_up = 0.0;
    double near_down = 0.0;
    double far_up = 0.0;
    double far_down = 0.0;

    TSR_TRY(loss_at(b, c, i, e, step, &near_up));
    TSR_TRY(loss_at(b, c, i, e, -step, &near_down));
    TSR_TRY(loss_at(b, c, i, e, 2.0 * step, &far_up));
    TSR_TRY(loss_at(b, c, i, e, -2.0 * step, &far_down));
    *out = (8.0 * (near_up - near_down) - (far_up - far_down)) / (12.0 * step);
    return TSR_OK;
}

/* Rounding: each loss is a sum of up to y_count terms of |y| <= Y, so it is off by up to
 * y_count Y eps (its own evaluation included by a factor 4), and 1.5 of it goes over h. Truncation:
 * h^4 / 30 times a fifth derivative, taken as 60 at most for functions of (-1, 1). */
static double tolerance_of(const op_result *base)
{
    double largest = 1.0;

    for (int64_t e = 0; e < base->y_count; e++) {
        largest = fmax(largest, fabs(base->y[e]));
    }
    return 1.5 * 4.0 * (double)FLT_EPSILON * (double)base->y_count * largest / step +
           2.0 * step * step * step * step;
}

static void check_case(bench *b, const op_case *c)
{
    double tolerance = 0.0;

    for (int i = 0; i < c->in_count; i++) {
        int32_t ids[OP_CASE_MAX_ELEMENTS];

        b->value[i] = b->values[i];
        op_case_values(c, i, b->values[i], ids);
        REQUIRE_OK(tsr_layout_init(b->r.mesh, c->in[i].shape, c->in[i].ndim, &b->layouts[i]));
    }
    REQUIRE_OK(op_case_run(&b->r, c, b->layouts, b->value, true, &b->base));
    tolerance = tolerance_of(&b->base);
    for (int i = 0; i < c->in_count; i++) {
        const int64_t count = op_input_count(&c->in[i]);
        double size = 0.0;

        if (c->in[i].kind == OP_INPUT_IDS) {
            continue;
        }
        for (int64_t e = 0; e<count; e += count> 64 ? 5 : 1) {
            double expected = 0.0;

            REQUIRE_OK(difference(b, c, i, e, &expected));
            REQUIRE_NEAR(b->base.grad[i][e], expected, tolerance);
            size = fmax(size, fabs(expected));
        }
        /* The differences tell a gradient from none. */
        CHECK(size > 8.0 * tolerance);
    }
}

static void test_central_differences(void)
{
    const tsr_mesh_axis axes[] = {{"data", 1}, {"tp", 1}};
    bench *b = NULL;

    REQUIRE_OK(tsri_alloc(1, sizeof(*b), &b));
    REQUIRE_OK(rig_open(&b->r, "cpu", axes, 2, 0));
    for (int k = 0; k < op_case_count; k++) {
        (void)fprintf(stderr, "  %s\n", op_cases[k].name);
        check_case(b, &op_cases[k]);
    }
    rig_close(&b->r);
    tsri_free(&b);
}

const tsr_test_case tsr_test_cases[] = {{"central differences", test_central_differences},
                                        {NULL, NULL}};
