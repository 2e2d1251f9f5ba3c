/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file custom.c
 * custom: run(args), a function of the user's own on host addresses; the host is this device.
 */
#include "kernels/cpu/cpu_priv.h"

tsr_status tsrk_cpu_custom(const tsrk_custom *args, const tsrk_context *context)
{
    omp_set_num_threads(context->threads); /* of what the function may run in parallel */
    return args->run(args->args);
}
