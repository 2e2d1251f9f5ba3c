/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Presets: which level each axis gets, whether tensor parallelism takes its axis before or after
 * the preset is asked for and units are made. */
#include "tessera/fsdp.h"
#include "tessera/llama.h"
#include "tessera/tp.h"
#include "tessera/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

static const tsr_tp_rule plan[] = {{"head", {.kind = TSR_TP_COLUMN}}};

typedef struct preset_case {
    const char *preset;
    tsr_mesh_axis axes[3]; /* up to the first without a name; "tp" is what tp claims */
    const char *levels;    /* as tsr_plan_print says it */
} preset_case;

static const preset_case cases[] = {
    {"hsdp", {{"replicate", 2}, {"shard", 2}, {"tp", 2}}, "levels replicate:0 shard:3;"},
    {"hfsdp", {{"replicate", 2}, {"shard", 2}, {"tp", 2}}, "levels replicate:1 shard:3;"},
    {"fsdp", {{"replicate", 2}, {"shard", 2}, {"tp", 2}}, "levels replicate:3 shard:3;"},
    {"zero1", {{"tp", 2}, {"shard", 2}, {"replicate", 2}}, "levels shard:1 replicate:1;"},
    {"hsdp", {{"node", 2}, {"dp", 2}, {"tp", 2}}, "levels node:0 dp:3;"},
    {"hsdp", {{"dp", 2}, {"tp", 2}}, "levels dp:3;"},
    {"ddp", {{"dp", 2}, {"tp", 1}}, "levels dp:0;"},
    {"hfsdp", {{"node", 2}, {"dp", 2}}, "levels node:1 dp:3;"},
};

typedef struct rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *model;
} rig;

static tsr_status open_rig(const tsr_mesh_axis *axes, rig *r)
{
    const tsr_llama_config config = {
        .layers = 1, .dim = 8, .heads = 2, .kv_heads = 2, .ffn = 12, .vocab = 10};
    tsr_world_options sim = {.backend = "sim", .sim_size = 1};
    int count = 0;

    *r = (rig){0};
    while (count < 3 && axes[count].name != NULL) {
        sim.sim_size *= axes[count++].size;
    }
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &r->world));
    TSR_TRY(tsr_mesh_create(sim.sim_size, axes, count, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(r->world, r->mesh, NULL, &r->comm));
    TSR_TRY(tsr_llama_create(r->comm, &config, &r->model));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_module_release(&r->model);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
    tsr_world_close(&r->world);
}

typedef enum moment {
    BEFORE_PRESET,
    AFTER_PRESET,
    AFTER_UNITS,
    MOMENTS
} moment;

static tsr_status maybe_tp(rig *r, moment when, moment now)
{
    if (when == now && tsr_mesh_axis_find(r->mesh, "tp") >= 0) {
        TSR_TRY(tsr_tp_apply(r->model, "tp", plan, 1));
    }
    return TSR_OK;
}

static tsr_status make_units(rig *r, const preset_case *c, moment tp)
{
    tsr_fsdp_options options = {0};

    TSR_TRY(maybe_tp(r, tp, BEFORE_PRESET));
    TSR_TRY(tsr_fsdp_preset(r->comm, c->preset, &options));
    TSR_TRY(maybe_tp(r, tp, AFTER_PRESET));
    TSR_TRY(tsr_fully_shard(tsr_llama_layer(r->model, 0), &options));
    TSR_TRY(tsr_fully_shard(r->model, &options));
    TSR_TRY(maybe_tp(r, tp, AFTER_UNITS));
    TSR_TRY(tsr_module_materialize(r->model, 1));
    return TSR_OK;
}

/* Units of which tsr_plan_print says words. */
static int units_with(const rig *r, const char *words)
{
    char *text = NULL;
    size_t bytes = 0;
    int count = 0;
    FILE *stream = open_memstream(&text, &bytes);

    if (stream == NULL) {
        return -1;
    }
    CHECK_OK(tsr_plan_print(r->model, NULL, stream));
    (void)fclose(stream);
    for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words)) {
        count++;
    }
    free(text);
    return count;
}

static void tp_comes_before_or_after(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (moment tp = BEFORE_PRESET; tp < MOMENTS; tp++) {
            rig r;

            REQUIRE_OK(open_rig(cases[i].axes, &r));
            REQUIRE_OK(make_units(&r, &cases[i], tp));
            CHECK_EQ(units_with(&r, cases[i].levels), 2);
            close_rig(&r);
        }
    }
}

/* What is named itself is not one of the others, wherever it stands. */
static void names_go_before_words(void)
{
    static const struct {
        tsr_fsdp_options options;
        const char *levels;
    } named[] = {
        {{.levels = {{TSR_AXIS_OTHERS, TSR_LEVEL_GRADS}, {"node", TSR_LEVEL_REPLICATE}}},
         "levels node:0 shard:3 last:2;"},
        {{.levels = {{"shard", TSR_LEVEL_OPTIM}, {TSR_AXIS_INNER, TSR_LEVEL_GRADS}}},
         "levels node:0 shard:1 last:0;"},
        {{.levels = {{TSR_AXIS_INNER, TSR_LEVEL_GRADS}}}, "levels node:0 shard:2 last:0;"},
    };
    const tsr_mesh_axis axes[3] = {{"node", 2}, {"shard", 2}, {"last", 2}};

    for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++) {
        rig r;

        REQUIRE_OK(open_rig(axes, &r));
        REQUIRE_OK(tsr_fully_shard(r.model, &named[i].options));
        REQUIRE_OK(tsr_module_materialize(r.model, 1));
        CHECK_EQ(units_with(&r, named[i].levels), 1);
        close_rig(&r);
    }
}

const tsr_test_case tsr_test_cases[] = {
    {"tp_comes_before_or_after", tp_comes_before_or_after},
    {"names_go_before_words", names_go_before_words},
    {NULL, NULL},
};
