/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Hosts of a job that is still to be started. */
#include "base/base.h"

#include "cli/commands.h"
#include "plan/mesh_auto.h"

tsr_status tsri_cli_count_hosts(const tsri_cli *cli, int *out)
{
    int *node_of = NULL;

    *out = 1;
    if (cli->hosts == NULL) {
        return TSR_OK;
    }
    TSR_TRY(tsri_alloc((size_t)cli->ranks, sizeof(int), &node_of));
    tsri_cli_place(cli, node_of);
    *out = tsri_mesh_hosts(node_of, cli->ranks);
    tsri_free(&node_of);
    return TSR_OK;
}
