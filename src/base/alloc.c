/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file alloc.c
 * Host memory: sizes checked for overflow, zeroed, counted, and made to fail on request.
 *
 * Pointers travel through memcpy because the caller's pointer may be of any type.
 */
#include "base/base_priv.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static bool fails_now(void)
{
    int left = atomic_load(&tsri_g_process.fail_in);

    while (left > 0) {
        if (atomic_compare_exchange_weak(&tsri_g_process.fail_in, &left, left - 1)) {
            return left == 1;
        }
    }
    return false;
}

tsr_status tsri_alloc(size_t count, size_t size, void *out)
{
    size_t bytes = 0;
    void *memory = NULL;

    if (__builtin_mul_overflow(count, size, &bytes)) {
        return TSR_RAISE(TSR_ERR_NOMEM, "%zu elements of %zu bytes exceed the address space", count,
                         size);
    }
    if (!fails_now()) {
        memory = calloc(1, bytes > 0 ? bytes : 1);
    }
    if (memory == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for %zu bytes", bytes);
    }
    (void)atomic_fetch_add(&tsri_g_process.live, 1);
    memcpy(out, &memory, sizeof(memory));
    return TSR_OK;
}

void tsri_free(void *pointer)
{
    void *memory = NULL;

    memcpy(&memory, pointer, sizeof(memory));
    if (memory != NULL) {
        (void)atomic_fetch_sub(&tsri_g_process.live, 1);
        free(memory);
        memory = NULL;
        memcpy(pointer, &memory, sizeof(memory));
    }
}

void tsri_retire(void *pointer)
{
    void *memory = NULL;
    void *oldest = NULL;

    memcpy(&memory, pointer, sizeof(memory));
    if (memory != NULL) {
        const unsigned place = atomic_fetch_add(&tsri_g_process.retired, 1) % TSRI_RETIRED;

        (void)atomic_fetch_sub(&tsri_g_process.live, 1);
        oldest = atomic_exchange(&tsri_g_process.retirees[place], memory);
        free(oldest);
        memory = NULL;
        memcpy(pointer, &memory, sizeof(memory));
    }
}

tsr_status tsri_grow(void *array, int *capacity, int need, size_t element_bytes)
{
    int grown = *capacity;
    void *before = NULL;
    void *after = NULL;

    if (need <= *capacity) {
        return TSR_OK;
    }
    while (grown < need) {
        grown = grown > INT_MAX / 2 ? INT_MAX : (grown > 0 ? grown * 2 : 8);
    }
    TSR_TRY(tsri_alloc((size_t)grown, element_bytes, &after));
    memcpy(&before, array, sizeof(before));
    if (before != NULL) {
        memcpy(after, before, (size_t)*capacity * element_bytes);
    }
    tsri_free(&before);
    memcpy(array, &after, sizeof(after));
    *capacity = grown;
    return TSR_OK;
}

tsr_status tsri_strdup(const char *text, char **out)
{
    size_t bytes = strlen(text) + 1;
    char *copy = NULL;

    TSR_TRY(tsri_alloc(bytes, 1, &copy));
    memcpy(copy, text, bytes);
    *out = copy;
    return TSR_OK;
}

void tsri_alloc_fail_at(int n)
{
    atomic_store(&tsri_g_process.fail_in, n);
}

int64_t tsri_alloc_live(void)
{
    return atomic_load(&tsri_g_process.live);
}

tsr_status tsri_to_int(int64_t value, const char *what, int *out)
{
    if (value < INT_MIN || value > INT_MAX) {
        return TSR_RAISE(TSR_ERR_INVALID, "%s %lld does not fit an int", what, (long long)value);
    }
    *out = (int)value;
    return TSR_OK;
}
