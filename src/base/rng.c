/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file rng.c
 * Philox4x32-10, and normals by the inverse distribution function (Wichura, AS 241, PPND16).
 *
 * Invariant: only integer arithmetic, + - * / and sqrt in IEEE double, compiled without
 * contraction, so that the bits are the same wherever this runs. That is why the logarithm is ours.
 */
#include "base/rng.h"

#include <math.h>
#include <string.h>

void tsri_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0];
    uint32_t c1 = counter[1];
    uint32_t c2 = counter[2];
    uint32_t c3 = counter[3];
    uint32_t k0 = key[0];
    uint32_t k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53U * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57U * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9U;
        k1 += 0xBB67AE85U;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static uint32_t low(uint64_t x)
{
    return (uint32_t)x;
}

static uint32_t high(uint64_t x)
{
    return (uint32_t)(x >> 32);
}

uint64_t tsri_rng_key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c)
{
    const uint32_t key[2] = {low(seed), high(seed)};
    uint32_t word[4] = {low(a), high(a), low(b), high(b)};

    tsri_philox(word, key, word);
    word[0] ^= low(c);
    word[1] ^= high(c);
    tsri_philox(word, key, word);
    return (uint64_t)word[1] << 32 | word[0];
}

uint32_t tsri_rng_word(uint64_t key, uint64_t index)
{
    const uint64_t block = index / 4;
    const uint32_t counter[4] = {low(block), high(block), 0, 0};
    const uint32_t halves[2] = {low(key), high(key)};
    uint32_t word[4];

    tsri_philox(counter, halves, word);
    return word[index % 4];
}

float tsri_rng_uniform(uint64_t key, uint64_t index)
{
    return (float)(tsri_rng_word(key, index) >> 8) * 0x1p-24F;
}

/* Natural logarithm of a positive normal number: x = m 2^e with m in [sqrt(1/2), sqrt(2)), and
 * log m = 2 atanh(s), s = (m - 1) / (m + 1). s^2 <= 0.0295, so 12 terms reach 2^-53. */
static double plain_log(double x)
{
    uint64_t bits = 0;
    double m = 0;
    double s = 0;
    double sum = 0;
    int exponent = 0;

    memcpy(&bits, &x, sizeof(bits));
    exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL;
    memcpy(&m, &bits, sizeof(m));
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        exponent++;
    }
    s = (m - 1.0) / (m + 1.0);
    for (int k = 11; k >= 0; k--) {
        sum = sum * (s * s) + 1.0 / (2 * k + 1);
    }
    /* ln 2 in two parts, the first exact when multiplied by any exponent */
    return exponent * 6.93147180369123816490e-01 +
           (2.0 * s * sum + exponent * 1.90821492927058770002e-10);
}

static double ratio(const double *numerator, const double *denominator, double r)
{
    double n = numerator[7];
    double d = denominator[7];

    for (int i = 6; i >= 0; i--) {
        n = n * r + numerator[i];
        d = d * r + denominator[i];
    }
    return n / d;
}

double tsri_normal_quantile(double p)
{
    static const double a[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                3.3430575583588128105e+4, 2.5090809287301226727e+3};
    static const double b[8] = {1.0,
                                4.2313330701600911252e+1,
                                6.8718700749205790830e+2,
                                5.3941960214247511077e+3,
                                2.1213794301586595867e+4,
                                3.9307895800092710610e+4,
                                2.8729085735721942674e+4,
                                5.2264952788528545610e+3};
    static const double c[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                5.76949722146069140550e0,  3.64784832476320460504e0,
                                1.27045825245236838258e0,  2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[8] = {1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
    static const double e[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                1.78482653991729133580e0,  2.96560571828504891230e-1,
                                2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double f[8] = {1.0,
                                5.99832206555887937690e-1,
                                1.36929880922735805310e-1,
                                1.48753612908506148525e-2,
                                7.86869131145613259100e-4,
                                1.84631831751005468180e-5,
                                1.42151175831644588870e-7,
                                2.04426310338993978564e-15};
    double q = p - 0.5;
    double r = 0;
    double x = 0;

    if (q >= -0.425 && q <= 0.425) {
        return q * ratio(a, b, 0.180625 - q * q);
    }
    r = sqrt(-plain_log(q < 0 ? p : 1.0 - p));
    x = r <= 5.0 ? ratio(c, d, r - 1.6) : ratio(e, f, r - 5.0);
    return q < 0 ? -x : x;
}

float tsri_rng_normal(uint64_t key, uint64_t index)
{
    return (float)tsri_normal_quantile(((double)tsri_rng_word(key, index) + 0.5) * 0x1p-32);
}
