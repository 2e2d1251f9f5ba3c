/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file main_unit.c
 * Runs a table of cases in one process.
 */
#include "support/tsr_test.h"

static int only_mine(int mine)
{
    return mine;
}

int main(int argc, char **argv)
{
    tsr_test_begin(0, 1);
    return tsr_test_run(argc, argv, only_mine);
}
