/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file custom.c
 * custom: run(args), a function of the user's own on host addresses; the host is this device.
 */
#include "kernels/cpu/cpu_priv.h"

void tsrk_cpu_custom(const tsrk_custom *args)
{
    args->run(args->args);
}
