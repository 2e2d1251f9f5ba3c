/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file registry.c
 * Backends by name. The one place that knows which are built in.
 */
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "base/base.h"

#include <string.h>

tsr_status tsri_backend_find(const char *name, const tsr_backend **out)
{
    const tsr_backend *const known[] = {tsri_cpu_backend(), &tsri_backend_sim};
    const char *names[] = {known[0]->name, known[1]->name, "auto"};
    const char *near = NULL;

    const tsr_backend *of_test = tsri_backend_of_test == NULL ? NULL : tsri_backend_of_test(name);

    if (of_test != NULL) {
        *out = of_test;
        return TSR_OK;
    }
    if (name == NULL || strcmp(name, "auto") == 0) {
        *out = known[0];
        return TSR_OK;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i]->name, name) == 0) {
            *out = known[i];
            return TSR_OK;
        }
    }
    near = tsri_nearest(name, names, 3);
    return TSR_RAISE(TSR_ERR_INVALID,
                     "backend \"%s\" is not built in, there are: cpu, sim, auto%s%s", name,
                     near == NULL ? "" : "; nearest: ", near == NULL ? "" : near);
}
