/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file copy.c
 * Copies of a collective, past the caches when they could not keep the result anyway.
 *
 * An ordinary store first reads the line that it writes. Where all ranks together write more than
 * the last-level cache holds, that line comes from memory and goes back there before anybody reads
 * it; stores that go around the caches move two thirds of the bytes. memcpy does so too, but only
 * for copies above a size that the steps of a collective never have.
 */
#include "backend/cpu/cpu_priv.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#    include <emmintrin.h>
#endif

#define LINE 64
/* Where the system does not know its cache: that of a small server. */
#define USUAL_CACHE ((size_t)16 << 20)
#define MOST_KIB    (1UL << 30)

/* Not sysconf: on some processors it adds up caches of all cores. */
static size_t last_cache_bytes(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    char text[32] = "";
    unsigned long kib = 0;

    if (file != NULL) {
        kib = fgets(text, sizeof text, file) != NULL ? strtoul(text, NULL, 10) : 0; /* "32768K" */
        (void)fclose(file);
    }
    return kib > 0 && kib < MOST_KIB ? (size_t)kib << 10 : USUAL_CACHE;
}

size_t tsri_cpu_cache_share(int local_ranks)
{
    return last_cache_bytes() / 2 / (size_t)local_ranks; /* half: inputs want to stay too */
}

#if defined(__x86_64__)

/* to is a multiple of LINE. */
static void stream_lines(unsigned char *to, const unsigned char *from, size_t lines)
{
    for (size_t i = 0; i < lines; i++) {
        const __m128i *in = (const __m128i *)(const void *)(from + (i * LINE));
        __m128i *out = (__m128i *)(void *)(to + (i * LINE));
        __m128i a = _mm_loadu_si128(in);
        __m128i b = _mm_loadu_si128(in + 1);
        __m128i c = _mm_loadu_si128(in + 2);
        __m128i d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
    _mm_sfence(); /* before anybody is told that the bytes are there */
}

#endif

void tsri_cpu_copy(void *to, const void *from, size_t bytes, bool past_cache)
{
#if defined(__x86_64__)
    size_t head = (LINE - ((uintptr_t)to % LINE)) % LINE;

    if (past_cache && bytes >= head + LINE) {
        size_t lines = (bytes - head) / LINE;
        size_t done = head + (lines * LINE);
        memcpy(to, from, head);
        stream_lines((unsigned char *)to + head, (const unsigned char *)from + head, lines);
        memcpy((unsigned char *)to + done, (const unsigned char *)from + done, bytes - done);
        return;
    }
#else
    (void)past_cache;
#endif
    memcpy(to, from, bytes);
}
