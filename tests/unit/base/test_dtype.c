/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Widening to f32: every bf16 and f16, by what their bits mean. */
#include "base/base.h"

#include <math.h>
#include <string.h>

#include "support/tsr_test.h"

/* (-1)^s * 1.f * 2^(e - bias), without the 1 where e is 0; exact in double for both types. */
static double meaning(unsigned bits, int exponent_bits)
{
    const int fraction_bits = 15 - exponent_bits;
    const int exponent = (int)(bits >> fraction_bits & ((1U << exponent_bits) - 1U));
    const int fraction = (int)(bits & ((1U << fraction_bits) - 1U));
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;

    if (exponent == (1 << exponent_bits) - 1) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    return sign * (exponent == 0
                       ? ldexp(fraction, 1 - bias - fraction_bits)
                       : ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits));
}

static int wrong_halves(tsr_dtype dtype, int exponent_bits)
{
    int wrong = 0;

    for (unsigned bits = 0; bits <= UINT16_MAX; bits++) {
        const uint16_t half = (uint16_t)bits;
        const double want = meaning(bits, exponent_bits);
        float have = 0.0F;

        tsri_widen(&half, dtype, 1, &have);
        wrong += isnan(want) ? !isnan(have)
                             : !((double)have == want && !signbit(have) == !signbit(want));
    }
    return wrong;
}

static void halves_widen_exactly(void)
{
    CHECK_EQ(wrong_halves(TSR_F16, 5), 0);
    CHECK_EQ(wrong_halves(TSR_BF16, 8), 0);
    CHECK(wrong_halves(TSR_BF16, 5) > 0);
}

static void others_widen_in_turn(void)
{
    const float single[] = {1.5F, -0x1p-149F};
    const double wide[] = {1.0 / 3.0, -0x1p200, 0x1p-1074};
    float have[3] = {0.0F};

    tsri_widen(single, TSR_F32, 2, have);
    CHECK(have[0] == single[0] && have[1] == single[1]);
    tsri_widen(wide, TSR_F64, 3, have);
    CHECK(have[0] == (float)wide[0] && isinf(have[1]) && have[1] < 0.0F && have[2] == 0.0F);
}

const tsr_test_case tsr_test_cases[] = {
    {"halves_widen_exactly", halves_widen_exactly},
    {"others_widen_in_turn", others_widen_in_turn},
    {NULL, NULL},
};
