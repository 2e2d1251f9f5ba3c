/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Between the files of compare: the steps of one preset. */
#pragma once

#include "compare/compare.h"

/** Step job, which records and has nothing behind it, and fill row's measured part; its planned
 * bytes become those of the rank with the most. Collective over the world. Blocks. */
tsr_status tsri_compare_measure(tsri_job *job, int hosts, int steps, tsri_compare_row *row);
