/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file rng.h
 * Counter-based random numbers: a value depends on (key, index) alone, never on who computes it.
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Initial
 * weights use key = tsri_rng_key(seed, hash of the parameter's name) and the global element index;
 * dropout uses key = tsri_rng_key(seed, step, module path, call) and (global row, position).
 * Uniforms are exact integers scaled by a power of two; normals use one scalar formula of ours in
 * double with plain + - * / and sqrt only (no libm), compiled without contraction, so every
 * machine gives the same bits.
 */
#pragma once

#include <stdint.h>

/** The raw block function: 4 words from a 128-bit counter and a 64-bit key. */
void tsri_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/** Mix parts into a key. */
uint64_t tsri_rng_key(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
/** Word number index of the stream of key. */
uint32_t tsri_rng_word(uint64_t key, uint64_t index);
/** Uniform in [0, 1): word / 2^32, as float with 24 bits. */
float tsri_rng_uniform(uint64_t key, uint64_t index);
/** Standard normal by the inverse of its distribution function (Wichura, AS 241). */
float tsri_rng_normal(uint64_t key, uint64_t index);
/** The normal distribution's inverse: x with P(X <= x) = p, for 0 < p < 1. */
double tsri_normal_quantile(double p);
