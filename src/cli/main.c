/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file main.c
 * The program's commands, in the order in which --help lists them.
 */
#include "cli/commands.h"

static const tsri_cli_command *const g_commands[] = {
#define TSRI_COMMAND_ENTRY(name) &tsri_command_##name,
    TSRI_COMMAND_MAP(TSRI_COMMAND_ENTRY)
#undef TSRI_COMMAND_ENTRY
        NULL,
};

int main(int argc, char **argv)
{
    return tsri_cli_main(g_commands, argc, argv);
}
