/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file program_words.h
 * A program as text, for whoever has to find what fails in it.
 */
#pragma once

#include <stdio.h>

#include "support/program.h"

void program_print(const program *p, FILE *stream);
