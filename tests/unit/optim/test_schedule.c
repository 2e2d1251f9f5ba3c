/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Learning-rate schedules at their corners. */
#include "tessera/optim.h"

#include <math.h>

#include "support/tsr_test.h"

/* A few roundings of doubles near 1. */
static const double tolerance = 1e-15;

static void warmup_is_linear_and_reaches_the_peak(void)
{
    const tsr_schedule s = {.lr = 1.0, .warmup = 4, .steps = 100};

    CHECK_NEAR(tsr_schedule_lr(&s, 0), 0.25, tolerance);
    CHECK_NEAR(tsr_schedule_lr(&s, 3), 1.0, tolerance);
    CHECK_NEAR(tsr_schedule_lr(&s, 4), 1.0, tolerance);
}

static void shapes_end_where_they_should(void)
{
    tsr_schedule s = {.lr = 1.0, .min_lr = 0.1, .steps = 100};

    CHECK_NEAR(tsr_schedule_lr(&s, 0), 1.0, tolerance);
    CHECK_NEAR(tsr_schedule_lr(&s, 50), 0.55, tolerance); /* cosine: half way at half time */
    CHECK_NEAR(tsr_schedule_lr(&s, 100), 0.1, tolerance);
    CHECK_NEAR(tsr_schedule_lr(&s, 1000), 0.1, tolerance);
    s.kind = TSR_SCHEDULE_LINEAR;
    CHECK_NEAR(tsr_schedule_lr(&s, 25), 0.775, tolerance);
    s.kind = TSR_SCHEDULE_CONSTANT;
    CHECK_NEAR(tsr_schedule_lr(&s, 99), 1.0, tolerance);
    s.kind = TSR_SCHEDULE_WSD;
    CHECK_NEAR(tsr_schedule_lr(&s, 80), 1.0, tolerance);
    CHECK_NEAR(tsr_schedule_lr(&s, 90), 0.55, tolerance);
}

/* What cannot be meant is refused by name, and its rate is none that an optimizer takes. */
static void values_are_checked(void)
{
    static const tsr_schedule bad[] = {
        {.lr = -1.0, .steps = 10},
        {.lr = (double)NAN, .steps = 10},
        {.lr = (double)INFINITY, .steps = 10},
        {.lr = 1.0, .min_lr = -0.1, .steps = 10},
        {.lr = 1.0, .min_lr = (double)NAN, .steps = 10},
        {.lr = 1.0, .warmup = -1, .steps = 10},
        {.lr = 1.0, .steps = -10},
        {.lr = 1.0, .kind = (tsr_schedule_kind)9, .steps = 10},
        {.lr = 1.0, .kind = (tsr_schedule_kind)-1, .steps = 10},
    };
    const tsr_schedule good = {.lr = 1.0, .warmup = 4, .steps = 10};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK_STATUS(TSR_ERR_INVALID, tsr_schedule_check(&bad[i]));
        CHECK(isnan(tsr_schedule_lr(&bad[i], 5)));
    }
    CHECK_STATUS(TSR_ERR_INVALID, tsr_schedule_check(NULL));
    CHECK(isnan(tsr_schedule_lr(NULL, 0)));
    CHECK_OK(tsr_schedule_check(&good));
    CHECK(isnan(tsr_schedule_lr(&good, -1)));
    CHECK(tsr_schedule_lr(&good, 0) > 0.0);
}

const tsr_test_case tsr_test_cases[] = {
    {"values_are_checked", values_are_checked},
    {"warmup_is_linear_and_reaches_the_peak", warmup_is_linear_and_reaches_the_peak},
    {"shapes_end_where_they_should", shapes_end_where_they_should},
    {NULL, NULL},
};
