/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file main_unit.c
 * Runs a table of cases in one process.
 */
#include "base/base.h"

#include <stdlib.h>

#include "support/tsr_test.h"

enum {
    SKIPPED = 77
};

static int only_mine(int mine)
{
    return mine;
}

int main(int argc, char **argv)
{
    tsri_isa isa;

    if (tsri_isa_choose(getenv("TSR_CPU_ISA"), &isa) == TSR_ERR_UNSUPPORTED) {
        return SKIPPED;
    }
    tsr_test_begin(0, 1);
    return tsr_test_run(argc, argv, only_mine);
}
