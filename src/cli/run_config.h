/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file run_config.h
 * The life of a command that works by a configuration on a world.
 */
#pragma once

#include "tessera/world.h"

#include "cli/cli.h"
#include "config/config.h"

/** The work; config is NULL where loaded is a failure, which it tells on the world. */
typedef tsr_status (*tsri_cli_config_work)(const tsri_cli *cli, tsr_world *world,
                                           tsri_config *config, tsr_status loaded);

/** Open the world that config asks for, do the work, close it, free config; returns the exit
 *  status. */
int tsri_cli_run_config(const tsri_cli *cli, tsri_config *config, tsr_status loaded,
                        tsri_cli_config_work work);
