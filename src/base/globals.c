/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file globals.c
 * Every mutable global of the library: process facts, and each thread's error trail.
 */
#include "base/base_priv.h"

tsri_process tsri_g_process = {.size = 1, .log_level = -1, .isa = -1};
_Thread_local tsri_trail tsri_g_trail;

void tsri_set_rank(int rank, int size)
{
    atomic_store(&tsri_g_process.rank, rank);
    atomic_store(&tsri_g_process.size, size);
}

int tsri_rank(void)
{
    return atomic_load(&tsri_g_process.rank);
}

int tsri_size(void)
{
    return atomic_load(&tsri_g_process.size);
}
