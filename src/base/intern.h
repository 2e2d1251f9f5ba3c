/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file intern.h
 * One copy of every byte string that was asked for.
 *
 * Threads: one thread at a time per set.
 */
#pragma once

#include "tessera/status.h"

typedef struct tsri_intern tsri_intern;

tsr_status tsri_intern_create(tsri_intern **out);
void tsri_intern_destroy(tsri_intern **pointer);
/** The set's copy of data [bytes], aligned for any type; it lives as long as the set. */
tsr_status tsri_intern_keep(tsri_intern *set, const void *data, size_t bytes, const void **out);
