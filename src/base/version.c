/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file version.c
 * The version that the library was built as; a header may be of another build.
 */
#include "tessera/version.h"

const char *tsr_version(void)
{
    return TSR_VERSION_TEXT;
}
