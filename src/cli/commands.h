/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file commands.h
 * The list of commands. A row X(train) is cmd_train.c, which defines tsri_command_train.
 */
#pragma once

#include "cli/cli.h"

#define TSRI_COMMAND_MAP(X) X(train) X(plan) X(compare) X(verify) X(bench) X(topo) X(config)

#define TSRI_COMMAND_DECLARE(name) extern const tsri_cli_command tsri_command_##name;
TSRI_COMMAND_MAP(TSRI_COMMAND_DECLARE)
#undef TSRI_COMMAND_DECLARE

/** For check(): hosts of the ranks to come, as the launcher will place them: it fills the hosts of
 *  --hosts one by one. 0: with different numbers of ranks (tsri_mesh_hosts). */
tsr_status tsri_cli_count_hosts(const tsri_cli *cli, int *out);
