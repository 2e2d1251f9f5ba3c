/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file main.c
 * A program of somebody else's: public headers and the installed library alone.
 */
#include <stdio.h>
#include <string.h>
#include <tessera/dtype.h>
#include <tessera/version.h>

int main(void)
{
    tsr_dtype dtype = TSR_DTYPE_DEFAULT;

    if (tsr_dtype_parse("bf16", &dtype) != TSR_OK || tsr_dtype_size(dtype) != 2 ||
        strcmp(tsr_version(), TSR_VERSION_TEXT) != 0) {
        tsr_error_print(stderr);
        return 1;
    }
    printf("tessera %s\n", tsr_version());
    return 0;
}
