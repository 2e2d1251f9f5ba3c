/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
#include "cli/run_config.h"

#include "base/base.h"

int tsri_cli_run_config(const tsri_cli *cli, tsri_config *config, tsr_status loaded,
                        tsri_cli_config_work work)
{
    tsr_world_options options = {0};
    tsr_world *world = NULL;
    tsr_status status = TSR_OK;

    if (config != NULL) {
        options.backend = config->run.backend == 1 ? "cpu" : "auto";
        options.threads = (int)config->run.threads;
        options.timeout_s = config->run.timeout_s;
        options.rank_order =
            config->run.rank_order == 1 ? TSR_RANKS_AS_LAUNCHED : TSR_RANKS_BY_HOST;
    }
    TSR_TRY_GOTO(status, tsr_world_open(NULL, NULL, &options, &world), finish);
    TSR_TRY_GOTO(status, work(cli, world, config, loaded), close_world);
close_world:
    tsr_world_close(&world);
finish:
    tsri_config_free(&config);
    return tsri_cli_finish(status);
}
