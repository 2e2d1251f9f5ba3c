/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file custom.c
 * custom: run(args), a function of the user's own on host addresses. Whatever it reads, writes and
 * costs is declared by the caller.
 */
#include "kernels/kernels.h"

tsr_status tsrk_ref_custom(const tsrk_custom *args)
{
    return args->run(args->args);
}
