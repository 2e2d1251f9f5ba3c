/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_cpu_copy.c
 * Copies of a collective: every byte arrives and no other changes, in both ways of storing.
 */
#include "backend/cpu/cpu_priv.h"

#include <string.h>

#include "support/tsr_test.h"

enum {
    MOST = 400, /* some lines, with ends before and after them */
    LINE = 64,
    GUARD = 0xA5
};

static bool copies(size_t to_at, size_t from_at, size_t bytes, bool past_cache)
{
    static _Alignas(LINE) unsigned char to[LINE + MOST + LINE];
    static _Alignas(LINE) unsigned char from[LINE + MOST + LINE];

    for (size_t i = 0; i < sizeof(from); i++) {
        from[i] = (unsigned char)(i * 7 % 251);
    }
    memset(to, GUARD, sizeof(to));
    tsri_cpu_copy(to + to_at, from + from_at, bytes, past_cache);
    for (size_t i = 0; i < sizeof(to); i++) {
        bool inside = i >= to_at && i < to_at + bytes;
        unsigned char want = inside ? from[from_at + i - to_at] : GUARD;

        if (to[i] != want) {
            return false;
        }
    }
    return true;
}

static bool copies_all_sizes(size_t to_at, bool past_cache)
{
    for (size_t bytes = 0; bytes <= MOST; bytes += bytes < 140 ? 1 : 29) {
        if (!copies(to_at, to_at * 5 % LINE, bytes, past_cache)) {
            return false;
        }
    }
    return true;
}

static void test_every_byte(void)
{
    for (size_t to_at = 0; to_at < LINE; to_at += 3) {
        CHECK(copies_all_sizes(to_at, false));
        CHECK(copies_all_sizes(to_at, true));
    }
}

static void test_share(void)
{
    CHECK(tsri_cpu_cache_share(1) > 0);
    /* A rank's share is rounded down. */
    CHECK(tsri_cpu_cache_share(4) * 4 <= tsri_cpu_cache_share(1));
    CHECK(tsri_cpu_cache_share(4) >= tsri_cpu_cache_share(1) / 4);
}

const tsr_test_case tsr_test_cases[] = {
    {"every_byte", test_every_byte},
    {"share", test_share},
    {NULL, NULL},
};
