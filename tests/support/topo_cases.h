/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file topo_cases.h
 * Machines and plans for tests of topology; failures are checks of the running case.
 */
#pragma once

#include <stdbool.h>

#include "topo/mapping.h"

/** The machine that text describes, see machine.h. */
tsri_topo *tsr_topo_described(const char *text);
/** The machine of a .desc file of tests/golden. */
tsri_topo *tsr_topo_golden(const char *name);
tsri_topo_mapping *tsr_topo_planned(const tsri_topo *topo, tsri_topo_ask ask);
/** Is there a note on subject that holds words? */
bool tsr_topo_noted(const tsri_topo_mapping *plan, const char *subject, const char *words);
/** Every core at most once, none that may not be used, and at least one for each rank or none. */
void tsr_topo_check_cores(const tsri_topo *topo, const tsri_topo_mapping *plan);
