/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Presets: one level for each data axis. */
#include "fsdp_priv.h"

#include "base/base.h"

#include <string.h>

typedef struct preset {
    const char *name;
    tsr_level inner, outer; /* of the shard axis; of the other data axes */
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

/* The axis called "shard" if it carries data, else the last data axis. */
static int inner_axis(const tsr_comm *comm)
{
    const tsr_mesh *mesh = tsr_comm_mesh(comm);
    const unsigned data = tsri_comm_data_mask(comm);
    const int named = tsr_mesh_axis_find(mesh, "shard");
    int axis = tsr_mesh_axis_count(mesh) - 1;

    if (named >= 0 && (data >> named & 1u) != 0) {
        return named;
    }
    while (axis >= 0 && (data >> axis & 1u) == 0) {
        axis--;
    }
    return axis;
}

tsr_status tsr_fsdp_preset(const tsr_comm *comm, const char *name, tsr_fsdp_options *options)
{
    TSRI_WANT_AS("comm, preset, options", comm, name, options);

    const tsr_mesh *mesh = tsr_comm_mesh(comm);
    const preset *p = find_preset(name);
    const int inner = inner_axis(comm);
    int count = 0;

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
    for (int axis = 0; axis < tsr_mesh_axis_count(mesh); axis++) {
        if ((tsri_comm_data_mask(comm) >> axis & 1u) != 0) {
            options->levels[count++] = (tsr_axis_level){tsr_mesh_axis_name(mesh, axis),
                                                        axis == inner ? p->inner : p->outer};
        }
    }
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
