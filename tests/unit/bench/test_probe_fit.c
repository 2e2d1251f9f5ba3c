/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The probe's least squares find the machine that made the times, and never a negative figure. */
#include "bench/probe_priv.h"

#include "base/base.h"

#include "support/tsr_test.h"

enum {
    ROWS = 9
};

typedef struct times {
    double rows[ROWS][TSRI_PROBE_UNKNOWNS];
    double s[ROWS];
} times;

/* Collectives of three sizes and three numbers of hops on a machine of x. */
static times make(const double *x)
{
    times t;

    for (int i = 0; i < ROWS; i++) {
        t.rows[i][0] = 1.0 + i % 3;
        t.rows[i][1] = i / 3 == 0 ? 1e3 : i / 3 == 1 ? 1e5 : 1e7;
        t.rows[i][2] = 1.0;
        t.s[i] = t.rows[i][0] * x[0] + t.rows[i][1] * x[1] + t.rows[i][2] * x[2];
    }
    return t;
}

static void check_found(const double *wanted)
{
    const times t = make(wanted);
    double x[TSRI_PROBE_UNKNOWNS];

    tsri_probe_fit((const double(*)[TSRI_PROBE_UNKNOWNS])t.rows, t.s, ROWS, 3, x);
    for (int u = 0; u < TSRI_PROBE_UNKNOWNS; u++) {
        /* Normal equations lose half of the 16 digits where columns are alike, as here. */
        CHECK_NEAR(x[u], wanted[u], 1e-7 * (wanted[u] + 1e-7));
    }
}

static void test_times_give_their_machine(void)
{
    check_found((const double[]){5e-6, 1e-9, 2e-5});
    check_found((const double[]){5e-6, 1e-9, 0.0});
    check_found((const double[]){0.0, 4e-8, 1e-5});
    check_found((const double[]){0.0, 4e-8, 0.0});
}

static void test_noise_makes_nothing_negative(void)
{
    times t = make((const double[]){1e-6, 1e-9, 1e-6});
    double x[TSRI_PROBE_UNKNOWNS];

    for (int i = 0; i < ROWS; i++) { /* by up to a factor of two: more hops, less time */
        t.s[i] *= i % 3 == 0 ? 2.0 : 1.0 / (i % 3);
    }
    tsri_probe_fit((const double(*)[TSRI_PROBE_UNKNOWNS])t.rows, t.s, ROWS, 3, x);
    for (int u = 0; u < TSRI_PROBE_UNKNOWNS; u++) {
        CHECK(x[u] >= 0.0);
    }
    CHECK(x[1] > 0.5e-9 && x[1] < 2e-9);
}

const tsr_test_case tsr_test_cases[] = {
    {"times_give_their_machine", test_times_give_their_machine},
    {"noise_makes_nothing_negative", test_noise_makes_nothing_negative},
    {NULL, NULL},
};
