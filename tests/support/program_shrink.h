/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_shrink.h
 * Making a program that fails smaller.
 */
#pragma once

#include "support/program.h"

/** Take out of p, one after the other, what it still fails without. fails is asked of each attempt,
 *  on all ranks alike. */
void program_shrink(program *p, bool (*fails)(const program *p, void *context), void *context);
