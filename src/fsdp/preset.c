/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Presets: a level for the inner data axis, and one for the others. Which axes these are depends on
 * what else the mesh is used for, and is settled with the units (settle.c). */
#include "fsdp_priv.h"

#include "base/base.h"

#include <string.h>

typedef struct preset {
    const char *name;
    tsr_level inner, outer;
} preset;

static const preset presets[] = {
    {"ddp", TSR_LEVEL_REPLICATE, TSR_LEVEL_REPLICATE}, {"zero1", TSR_LEVEL_OPTIM, TSR_LEVEL_OPTIM},
    {"zero2", TSR_LEVEL_GRADS, TSR_LEVEL_GRADS},       {"fsdp", TSR_LEVEL_PARAMS, TSR_LEVEL_PARAMS},
    {"hsdp", TSR_LEVEL_PARAMS, TSR_LEVEL_REPLICATE},   {"hfsdp", TSR_LEVEL_PARAMS, TSR_LEVEL_OPTIM},
};

enum {
    PRESET_COUNT = (int)(sizeof(presets) / sizeof(presets[0]))
};

static const preset *find_preset(const char *name)
{
    for (int i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            return &presets[i];
        }
    }
    return NULL;
}

tsr_status tsr_fsdp_preset(const tsr_comm *comm, const char *name, tsr_fsdp_options *options)
{
    TSRI_WANT_AS("comm, preset, options", comm, name, options);

    const preset *p = find_preset(name);

    if (p == NULL) {
        const char *names[PRESET_COUNT];
        const char *near = NULL;

        for (int i = 0; i < PRESET_COUNT; i++) {
            names[i] = presets[i].name;
        }
        near = tsri_nearest(name, names, PRESET_COUNT);
        return TSR_RAISE(TSR_ERR_INVALID,
                         "preset \"%s\": wants ddp, zero1, zero2, fsdp, hsdp or hfsdp%s%s", name,
                         near != NULL ? "; the nearest is " : "", near != NULL ? near : "");
    }
    memset(options->levels, 0, sizeof(options->levels));
    options->levels[0] = (tsr_axis_level){TSR_AXIS_INNER, p->inner};
    options->levels[1] = (tsr_axis_level){TSR_AXIS_OTHERS, p->outer};
    return TSR_OK;
}

const char *tsri_preset_name(tsr_level inner, tsr_level outer)
{
    for (int i = 0; i < PRESET_COUNT; i++) {
        if (presets[i].inner == inner && presets[i].outer == outer) {
            return presets[i].name;
        }
    }
    return NULL;
}
