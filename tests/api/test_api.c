/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* ranks: 1 2 */
/* Each public function with each argument wrong, and then with all of them right: the cases are
 * made by generate.awk. */
#include "tessera/tessera.h"

#include "api_cases.h"
