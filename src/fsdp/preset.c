/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Presets: a level for the inner data axis, and one for the others. Which axes these are depends on
 * what else the mesh is used for, and is settled with the units (settle.c). */
#include "fsdp_priv.h"

#include "base/base.h"

#include <string.h>

#include "fsdp/fsdp.h"

typedef struct preset {
    const char *name;
    tsr_level inner, outer;
} preset;

#define TSRI_PRESET_ROW(name, inner, outer) {name, TSR_LEVEL_##inner, TSR_LEVEL_##outer},

static const preset presets[] = {TSRI_PRESETS(TSRI_PRESET_ROW, TSRI_PRESET_ROW)};

_Static_assert(sizeof(presets) / sizeof(presets[0]) == TSRI_PRESET_COUNT, "count the presets");

const char *tsri_preset_at(int index)
{
    return index >= 0 && index < TSRI_PRESET_COUNT ? presets[index].name : NULL;
}

tsr_status tsri_preset_find(const char *name, int *out)
{
    const char *names[TSRI_PRESET_COUNT];
    const char *near = NULL;

    for (int i = 0; i < TSRI_PRESET_COUNT; i++) {
        names[i] = presets[i].name;
        if (strcmp(names[i], name) == 0) {
            *out = i;
            return TSR_OK;
        }
    }
    near = tsri_nearest(name, names, TSRI_PRESET_COUNT);
    return TSR_RAISE(TSR_ERR_INVALID, "preset \"%s\": wants one of " TSRI_PRESET_NAMES "%s%s", name,
                     near != NULL ? "; the nearest is " : "", near != NULL ? near : "");
}

tsr_status tsr_fsdp_preset(const tsr_comm *comm, const char *name, tsr_fsdp_options *options)
{
    TSRI_WANT_AS("comm, preset, options", comm, name, options);

    int index = 0;

    TSR_TRY(tsri_preset_find(name, &index));
    memset(options->levels, 0, sizeof(options->levels));
    options->levels[0] = (tsr_axis_level){TSR_AXIS_INNER, presets[index].inner};
    options->levels[1] = (tsr_axis_level){TSR_AXIS_OTHERS, presets[index].outer};
    return TSR_OK;
}

const char *tsri_preset_name(tsr_level inner, tsr_level outer)
{
    for (int i = 0; i < TSRI_PRESET_COUNT; i++) {
        if (presets[i].inner == inner && presets[i].outer == outer) {
            return presets[i].name;
        }
    }
    return NULL;
}
