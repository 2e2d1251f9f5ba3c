/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file hash.c
 * XXH3-64, compiled in from its header so that no library is needed to run.
 */
#include "base/base.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t tsri_hash(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

uint64_t tsri_hash_text(const char *text)
{
    return tsri_hash(text, strlen(text), 0);
}
