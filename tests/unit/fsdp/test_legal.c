/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Legal combinations: each rule has a case that breaks it, the message names the rule, and the
 * document is what the table says. */
#include "fsdp/fsdp_priv.h"

#include "base/base.h"

#include "tessera/llama.h"
#include "tessera/tp.h"
#include "tessera/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/tsr_test.h"

typedef struct rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *model;
} rig;

static tsr_status open_rig(rig *r)
{
    const tsr_world_options sim = {.backend = "sim", .sim_rank = 0, .sim_size = 16};
    const tsr_mesh_axis axes[] = {{"replicate", 2}, {"node", 2}, {"shard", 2}, {"tp", 2}};
    const tsr_llama_config config = {
        .layers = 2, .dim = 8, .heads = 2, .kv_heads = 2, .ffn = 12, .vocab = 10};
    static const tsr_tp_rule plan[] = {{"head", {.kind = TSR_TP_COLUMN}}};

    *r = (rig){0};
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &r->world));
    TSR_TRY(tsr_mesh_create(16, axes, 4, NULL, &r->mesh));
    TSR_TRY(tsr_comm_open(r->world, r->mesh, NULL, &r->comm));
    TSR_TRY(tsr_llama_create(r->comm, &config, &r->model));
    TSR_TRY(tsr_tp_apply(r->model, "tp", plan, 1));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_module_release(&r->model);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
    tsr_world_close(&r->world);
}

static const char *const nobody[] = {"layers.7.**"};
static const tsr_shard_dim beyond[] = {{"norm.weight", 1}};
static const tsr_shard_dim columns[] = {{"layers.0.attn.q.weight", 1}};

/* Options that break one rule; NULL id: none. */
static const struct {
    const char *id;
    tsr_status status;
    tsr_fsdp_options options;
} cases[] = {
    {"axis-known", TSR_ERR_INVALID, {.levels = {{"shrad", TSR_LEVEL_PARAMS}}}},
    {"axis-once",
     TSR_ERR_INVALID,
     {.levels = {{"shard", TSR_LEVEL_PARAMS}, {"shard", TSR_LEVEL_OPTIM}}}},
    {"level", TSR_ERR_INVALID, {.levels = {{"shard", (tsr_level)5}}}},
    {"dtype", TSR_ERR_UNSUPPORTED, {.reduce_dtype = TSR_I32}},
    {"prefetch-depth", TSR_ERR_INVALID, {.prefetch_depth = -1}},
    {"choice", TSR_ERR_INVALID, {.backward_prefetch = (tsr_prefetch)9}},
    {"group-reshards",
     TSR_ERR_INVALID,
     {.reshard_group = 2, .reshard_after_forward = TSR_RESHARD_NEVER}},
    {"group-rows",
     TSR_ERR_INVALID,
     {.reshard_group = 2, .shard_dims = columns, .shard_dim_count = 1}},
    {"divisor", TSR_ERR_INVALID, {.gradient_divisor = -2.0}},
    {"pattern", TSR_ERR_INVALID, {.ignored = nobody, .ignored_count = 1}},
    {"shard-dim", TSR_ERR_INVALID, {.shard_dims = beyond, .shard_dim_count = 1}},
    {"axis-data", TSR_ERR_INVALID, {.levels = {{"tp", TSR_LEVEL_PARAMS}}}},
    {"group-axes", TSR_ERR_INVALID, {.reshard_group = 3}},
    {"group-axes", TSR_ERR_INVALID, {.reshard_group = 2}}, /* all of "shard" */
    {NULL, TSR_OK, {.levels = {{"node", TSR_LEVEL_PARAMS}}, .reshard_group = 2}},
    {NULL, TSR_OK, {.shard_dims = columns, .shard_dim_count = 1, .gradient_divisor = 3.0}},
};

static tsr_status apply(rig *r, const tsr_fsdp_options *options)
{
    TSR_TRY(tsr_fully_shard(r->model, options));
    TSR_TRY(tsr_module_materialize(r->model, 1));
    return TSR_OK;
}

static bool message_names(const char *id)
{
    char wanted[64];

    (void)snprintf(wanted, sizeof(wanted), "[%s]", id);
    return strstr(tsr_error_message(), wanted) != NULL;
}

static void every_rule_has_its_message(void)
{
    const char *seen[32] = {"unit-once", "bottom-up", "forward"};
    int seen_count = 3;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tsr_status status = TSR_OK;
        bool named = true;
        rig r;

        REQUIRE_OK(open_rig(&r));
        status = apply(&r, &cases[i].options);
        if (cases[i].id != NULL) {
            named = message_names(cases[i].id);
            seen[seen_count++] = cases[i].id;
            tsr_error_clear();
        }
        CHECK_EQ(status, cases[i].status);
        CHECK(named);
        close_rig(&r);
    }
    for (int k = 0; k < tsri_legal_rule_count(); k++) {
        bool has_case = false;

        for (int i = 0; i < seen_count; i++) {
            has_case = has_case || strcmp(seen[i], tsri_legal_rule_id(k)) == 0;
        }
        if (!has_case) {
            CHECK_STR(tsri_legal_rule_id(k), "a rule with a case");
        }
    }
}

static void modules_that_cannot_be_units(void)
{
    tsr_module *box = NULL;
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(tsr_module_create(r.comm, NULL, NULL, NULL, &box));
    CHECK_EQ(tsr_fully_shard(box, NULL), TSR_ERR_INVALID);
    CHECK(message_names("forward"));
    tsr_error_clear();
    CHECK_OK(tsr_fully_shard(r.model, NULL));
    CHECK_EQ(tsr_fully_shard(r.model, NULL), TSR_ERR_STATE);
    CHECK(message_names("unit-once"));
    tsr_error_clear();
    CHECK_EQ(tsr_fully_shard(tsr_llama_layer(r.model, 1), NULL), TSR_ERR_STATE);
    CHECK(message_names("bottom-up"));
    tsr_error_clear();
    tsr_module_release(&box);
    close_rig(&r);
}

/* Groups of k ranks are whole axes, and the message says which k there are. */
static void legal_groups_are_listed(void)
{
    tsr_fsdp_options o = {.levels = {{"replicate", TSR_LEVEL_PARAMS}, {"node", TSR_LEVEL_PARAMS}},
                          .reshard_group = 3};
    rig r;

    REQUIRE_OK(open_rig(&r));
    CHECK_EQ(apply(&r, &o), TSR_ERR_INVALID);
    CHECK(strstr(tsr_error_message(), "groups of 3 within 8 ranks of level 3, where 2, 4 fits"));
    tsr_error_clear();
    close_rig(&r);
    REQUIRE_OK(open_rig(&r));
    o.levels[0].axis = NULL;
    CHECK_EQ(apply(&r, &o), TSR_ERR_INVALID);
    CHECK(strstr(tsr_error_message(), "groups of 3 within 2 ranks of level 3, where none fits"));
    tsr_error_clear();
    close_rig(&r);
}

/* Every pair of levels on two axes, and other levels for each unit. */
static void levels_combine_freely(void)
{
    for (int a = 0; a < 16; a++) {
        const tsr_fsdp_options layer = {
            .levels = {{"replicate", (tsr_level)(a / 4 + 1)}, {"shard", (tsr_level)(a % 4 + 1)}}};
        const tsr_fsdp_options root = {.levels = {{"replicate", (tsr_level)(a % 4 + 1)},
                                                  {"node", (tsr_level)((a + 1) % 4 + 1)}}};
        rig r;

        REQUIRE_OK(open_rig(&r));
        CHECK_OK(tsr_fully_shard(tsr_llama_layer(r.model, 0), &layer));
        CHECK_OK(apply(&r, &root));
        close_rig(&r);
    }
}

static void document_is_the_table(void)
{
    const char *path = tsr_test_source_path("../docs/legal-combinations.md");
    char *wanted = NULL;
    char *have = NULL;
    size_t bytes = 0;
    size_t got = 0;
    FILE *stream = open_memstream(&wanted, &bytes);

    REQUIRE(stream != NULL);
    tsri_legal_write(stream);
    (void)fclose(stream);
    if (getenv("TSR_UPDATE_GOLDEN") != NULL) {
        stream = fopen(path, "w");
        REQUIRE(stream != NULL);
        CHECK_EQ(fwrite(wanted, 1, bytes, stream), bytes);
        (void)fclose(stream);
    }
    stream = fopen(path, "r");
    REQUIRE(stream != NULL);
    REQUIRE_OK(tsri_alloc(bytes + 2, 1, &have));
    got = fread(have, 1, bytes + 1, stream);
    (void)fclose(stream);
    CHECK_EQ(got, bytes);
    CHECK_STR(have, wanted);
    tsri_free(&have);
    free(wanted);
}

const tsr_test_case tsr_test_cases[] = {
    {"every_rule_has_its_message", every_rule_has_its_message},
    {"modules_that_cannot_be_units", modules_that_cannot_be_units},
    {"legal_groups_are_listed", legal_groups_are_listed},
    {"levels_combine_freely", levels_combine_freely},
    {"document_is_the_table", document_is_the_table},
    {NULL, NULL},
};
