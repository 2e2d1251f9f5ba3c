/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file preset_list.h
 * Presets as the option --presets lists them.
 */
#pragma once

#include "cli/cli.h"
#include "fsdp/fsdp.h"

enum {
    TSRI_CLI_MOST_PRESETS = 16
};

/**
 * Read "fsdp,hsdp" or "all" of --presets, or text where it is not given, into out[*count_out] as
 * indices (tsri_preset_at); one may come twice. TSR_ERR_INVALID.
 */
tsr_status tsri_cli_presets(const tsri_cli *cli, const char *text, int out[TSRI_CLI_MOST_PRESETS],
                            int *count_out);
