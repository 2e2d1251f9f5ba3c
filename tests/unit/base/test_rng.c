/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_rng.c
 * Philox against its published vectors; normals against known quantiles and their moments.
 */
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "support/tsr_test.h"

/* Known-answer vectors of Random123 for philox4x32 with 10 rounds. */
static void philox_gives_known_answers(void)
{
    static const struct {
        uint32_t counter[4];
        uint32_t key[2];
        uint32_t out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };

    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        tsri_philox(known[i].counter, known[i].key, out);
        for (int j = 0; j < 4; j++) {
            CHECK_EQ(out[j], known[i].out[j]);
        }
    }
}

static void words_are_the_blocks_words(void)
{
    const uint64_t key = 0x299f31d0a4093822ULL;
    const uint32_t halves[2] = {0xa4093822, 0x299f31d0};
    const uint64_t block = 0x123456789ULL;
    const uint32_t counter[4] = {0x23456789, 0x1, 0, 0};
    uint32_t out[4];

    tsri_philox(counter, halves, out);
    for (uint64_t i = 0; i < 4; i++) {
        CHECK_EQ(tsri_rng_word(key, block * 4 + i), out[i]);
    }
}

static void keys_depend_on_every_part(void)
{
    const uint64_t key = tsri_rng_key(1, 2, 3, 4);

    CHECK(key == tsri_rng_key(1, 2, 3, 4));
    CHECK(key != tsri_rng_key(2, 2, 3, 4));
    CHECK(key != tsri_rng_key(1, 3, 3, 4));
    CHECK(key != tsri_rng_key(1, 3, 2, 4));
    CHECK(key != tsri_rng_key(1, 2, 4, 3));
    CHECK(key != tsri_rng_key(1, 2, 3, 4ULL << 32));
}

/* The constants are exact to 16 digits, as AS 241 is; p itself is rounded, which moves x by
 * rounding / density. */
static void quantiles_are_known(void)
{
    static const struct {
        double p;
        double x;
    } known[] = {
        {0.5, 0.0},
        {0.25, -0.67448975019608171},
        {0.001, -3.0902323061678132},
        {0.975, 1.9599639845400545},
        {0.9999, 3.7190164854556806},
        {1e-20, -9.2623400897984080},
    };

    for (int i = 0; i < 6; i++) {
        double x = known[i].x;
        double density = exp(-x * x / 2) / sqrt(2 * acos(-1.0));
        CHECK_NEAR(tsri_normal_quantile(known[i].p), x,
                   4 * DBL_EPSILON * fmax(1.0, fabs(x)) +
                       (known[i].p > 0.5 ? DBL_EPSILON / 2 / density : 0.0));
    }
}

/* P(X <= quantile(p)) = p, by the C library's erfc, over the range that words can reach. */
static void quantile_inverts_the_distribution(void)
{
    for (int i = 1; i < 4000; i++) {
        double p = i < 2000 ? ldexp(0.5, -i / 60) * (1.0 + i % 60 / 60.0) / 2 : i / 4000.0;
        double x = tsri_normal_quantile(p);
        double back = 0.5 * erfc(-x / sqrt(2.0));
        /* in the tail p changes by density * dx, which relative to p is about x * dx */
        CHECK_NEAR(back, p, (8 + 4 * x * x) * DBL_EPSILON * p);
    }
}

static void moments_are_normal(void)
{
    enum {
        COUNT = 200000
    };
    const uint64_t key = tsri_rng_key(7, 1, 2, 3);
    double sum[5] = {0};

    for (uint64_t i = 0; i < COUNT; i++) {
        double x = (double)tsri_rng_normal(key, i);
        double power = 1;
        for (int k = 0; k < 5; k++) {
            sum[k] += power;
            power *= x;
        }
    }
    /* five standard errors: the variance of x^k is (2k-1)!! - m_k^2, for k = 1..4: 1, 2, 15, 96 */
    CHECK_NEAR(sum[1] / COUNT, 0.0, 5 * sqrt(1.0 / COUNT));
    CHECK_NEAR(sum[2] / COUNT, 1.0, 5 * sqrt(2.0 / COUNT));
    CHECK_NEAR(sum[3] / COUNT, 0.0, 5 * sqrt(15.0 / COUNT));
    CHECK_NEAR(sum[4] / COUNT, 3.0, 5 * sqrt(96.0 / COUNT));
}

static void uniforms_fill_the_unit_interval(void)
{
    enum {
        COUNT = 100000
    };
    double sum = 0;

    for (uint64_t i = 0; i < COUNT; i++) {
        float u = tsri_rng_uniform(99, i);
        CHECK(u >= 0.0F && u < 1.0F);
        sum += (double)u;
    }
    CHECK_NEAR(sum / COUNT, 0.5, 5 * sqrt(1.0 / 12 / COUNT)); /* five standard errors */
}

/* The bits themselves, so that another machine or compiler that differs is found out. */
static void bits_of_normals_are_fixed(void)
{
    uint32_t folded = 0;

    for (uint64_t i = 0; i < 10000; i++) {
        float x = tsri_rng_normal(42, i);
        uint32_t bits = 0;
        memcpy(&bits, &x, sizeof(bits));
        folded = folded * 31 + bits;
    }
    CHECK_EQ(folded, 2419261984U);
}

const tsr_test_case tsr_test_cases[] = {
    {"philox_gives_known_answers", philox_gives_known_answers},
    {"words_are_the_blocks_words", words_are_the_blocks_words},
    {"keys_depend_on_every_part", keys_depend_on_every_part},
    {"quantiles_are_known", quantiles_are_known},
    {"quantile_inverts_the_distribution", quantile_inverts_the_distribution},
    {"moments_are_normal", moments_are_normal},
    {"uniforms_fill_the_unit_interval", uniforms_fill_the_unit_interval},
    {"bits_of_normals_are_fixed", bits_of_normals_are_fixed},
    {NULL, NULL},
};
