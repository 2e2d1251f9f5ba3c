/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The spread of own times, and when a rank counts as slow. */
#include "support/tsr_test.h"
#include "train/stragglers.h"

static void spread(void)
{
    static const double own[] = {2.0, 5.0, 1.0, 3.0};
    static const int ranks[] = {0, 1, 2, 3};
    static const int turned[] = {3, 1, 0, 2};
    static const double equal[] = {4.0, 4.0, 4.0};
    tsri_spread s = tsri_spread_of(own, ranks, 4);

    CHECK_NEAR(s.min_s, 1.0, 0);
    CHECK_NEAR(s.max_s, 5.0, 0);
    CHECK_NEAR(s.others_s, 2.0, 0);
    CHECK_EQ(s.slowest, 1);
    CHECK_EQ(tsri_spread_of(own, turned, 4).slowest, 1);
    CHECK_EQ(tsri_spread_of(equal, turned, 3).slowest, 0);
    CHECK_NEAR(tsri_spread_of(equal, ranks, 3).others_s, 4.0, 0);
    s = tsri_spread_of(own, ranks, 1);
    CHECK_EQ(s.slowest, 0);
    CHECK_NEAR(s.others_s, 2.0, 0);
}

/* Follow rows of one rank at a share of the others' time; the number of those that told. */
static int follow(tsri_straggler *straggler, int rank, double share, int rows)
{
    const tsri_spread s = {1.0, share, 1.0, rank};
    int told = 0;

    for (int i = 0; i < rows; i++) {
        told += tsri_straggler_follow(straggler, &s) ? 1 : 0;
    }
    return told;
}

static void the_tenth_row_tells(void)
{
    tsri_straggler s = {0};

    CHECK_EQ(follow(&s, 0, 1.3, TSRI_STRAGGLER_ROWS - 1), 0);
    CHECK_EQ(follow(&s, 0, 1.3, 1), 1);
    CHECK_EQ(follow(&s, 0, 1.3, 100), 0); /* once per period */
    CHECK_EQ(follow(&s, 0, 1.19, 1), 0);
    CHECK_EQ(follow(&s, 0, 1.21, TSRI_STRAGGLER_ROWS), 1);
}

static void only_the_same_rank_counts(void)
{
    tsri_straggler s = {0};

    for (int i = 0; i < 40; i++) {
        CHECK_EQ(follow(&s, i % 2, 2.0, TSRI_STRAGGLER_ROWS - 1), 0);
    }
    CHECK_EQ(follow(&s, 1, 2.0, 1), 1);
    CHECK_EQ(follow(&s, 3, 2.0, TSRI_STRAGGLER_ROWS), 1);
    CHECK_EQ(follow(&s, 3, 1.1, 100), 0);
}

/* One rank has nobody to be slower than. */
static void alone(void)
{
    static const double own[] = {2.0};
    static const int ranks[] = {0};
    tsri_straggler straggler = {0};
    const tsri_spread s = tsri_spread_of(own, ranks, 1);

    for (int i = 0; i < 50; i++) {
        CHECK(!tsri_straggler_follow(&straggler, &s));
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"spread", spread},
    {"the_tenth_row_tells", the_tenth_row_tells},
    {"only_the_same_rank_counts", only_the_same_rank_counts},
    {"alone", alone},
    {NULL, NULL},
};
