/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Tensor-parallel plans: placements by pattern, and every way to get one wrong. */
#include "tessera/tp.h"

#include <string.h>

#include "nn/model.h"
#include "support/tsr_test.h"

typedef struct rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *model;
} rig;

static tsr_status open_rig(int tp, const tsr_llama_config *config, rig *out)
{
    const tsr_world_options sim = {.backend = "sim", .sim_size = 2 * tp};
    const tsr_mesh_axis axes[] = {{"shard", 2}, {"tp", tp}};

    *out = (rig){0};
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &out->world));
    TSR_TRY(tsr_mesh_create(2 * tp, axes, 2, NULL, &out->mesh));
    TSR_TRY(tsr_comm_open(out->world, out->mesh, NULL, &out->comm));
    TSR_TRY(tsr_llama_create(out->comm, config, &out->model));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_module_release(&r->model);
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
    tsr_world_close(&r->world);
}

static const tsr_llama_config config = {.layers = 2,
                                        .dim = 40,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .ffn = 100,
                                        .vocab = 131,
                                        .attention_bias = true,
                                        .mlp_bias = true};

static const tsr_llama_config grouped = {
    .layers = 1, .dim = 48, .heads = 6, .kv_heads = 2, .ffn = 12, .vocab = 12};

static const tsr_tp_rule plan[] = {
    {"embed", {.kind = TSR_TP_VOCAB}},
    {"layers.*.attn.{q,k,v}", {.kind = TSR_TP_COLUMN}},
    {"layers.*.attn.o", {.kind = TSR_TP_ROW}},
    {"layers.*.mlp.{gate,up}", {.kind = TSR_TP_COLUMN}},
    {"layers.*.mlp.down", {.kind = TSR_TP_ROW}},
    {"head", {.kind = TSR_TP_COLUMN}},
};

static tsr_placement placed(const rig *r, const char *module, const char *param)
{
    tsr_module *m = tsr_module_find(r->model, module);

    return tsr_dtensor_layout(tsr_module_value(m, param))->place[1];
}

static void a_plan_places_weights_and_biases(void)
{
    rig r;

    REQUIRE_OK(open_rig(2, &config, &r));
    CHECK_OK(tsr_tp_apply(r.model, "tp", plan, 6));
    CHECK_EQ(placed(&r, "embed", "weight").kind, TSR_SHARD);
    CHECK_EQ(placed(&r, "layers.1.attn.q", "weight").kind, TSR_SHARD);
    CHECK_EQ(placed(&r, "layers.1.attn.q", "weight").dim, 0);
    CHECK_EQ(placed(&r, "layers.1.attn.q", "bias").kind, TSR_SHARD);
    CHECK_EQ(placed(&r, "layers.0.attn.o", "weight").dim, 1);
    CHECK_EQ(placed(&r, "layers.0.attn.o", "bias").kind, TSR_REPLICATE);
    CHECK_EQ(placed(&r, "layers.0.norm1", "weight").kind, TSR_REPLICATE);
    close_rig(&r);
}

static void a_parameter_is_matched_by_its_name(void)
{
    static const tsr_tp_rule rules[] = {{"layers.*.mlp.up.weight", {.kind = TSR_TP_COLUMN}}};
    rig r;

    REQUIRE_OK(open_rig(2, &config, &r));
    CHECK_OK(tsr_tp_apply(r.model, "tp", rules, 1));
    CHECK_EQ(placed(&r, "layers.0.mlp.up", "weight").kind, TSR_SHARD);
    CHECK_EQ(placed(&r, "layers.0.mlp.up", "bias").kind, TSR_REPLICATE);
    close_rig(&r);
}

static void kv_heads_fewer_than_ranks_are_replicated(void)
{
    rig r;

    REQUIRE_OK(open_rig(4, &config, &r));
    CHECK_OK(tsr_tp_apply(r.model, "tp", plan, 6));
    CHECK_EQ(placed(&r, "layers.0.attn.q", "weight").kind, TSR_SHARD);
    CHECK_EQ(placed(&r, "layers.0.attn.k", "weight").kind, TSR_REPLICATE);
    close_rig(&r);
}

static void check_refused(int tp, const tsr_llama_config *c, const tsr_tp_rule *rules, int count,
                          tsr_status status, const char *needle)
{
    tsr_status got = TSR_OK;
    rig r;

    REQUIRE_OK(open_rig(tp, c, &r));
    got = tsr_tp_apply(r.model, "tp", rules, count);
    CHECK_EQ(got, status);
    CHECK(strstr(tsr_error_message(), needle) != NULL);
    tsr_error_clear();
    close_rig(&r);
}

static void mistakes_are_named(void)
{
    static const tsr_tp_rule nothing[] = {{"layers.*.atn.q", {.kind = TSR_TP_COLUMN}}};
    static const tsr_tp_rule twice[] = {{"head", {.kind = TSR_TP_COLUMN}},
                                        {"{head,embed}", {.kind = TSR_TP_VOCAB}}};
    static const tsr_tp_rule container[] = {{"layers.*.attn", {.kind = TSR_TP_COLUMN}}};
    rig r;

    check_refused(3, &config, plan, 6, TSR_ERR_PLACEMENT, "4 heads; legal sizes are 1, 2, 4");
    /* Sizes that suit all parameters: 6 heads allow 6 by copies of the 2 kv heads, 3 not. */
    check_refused(3, &grouped, plan, 6, TSR_ERR_PLACEMENT, "2 kv heads; legal sizes are 1, 2, 6");
    check_refused(2, &config, nothing, 1, TSR_ERR_INVALID, "the nearest is \"layers.0.attn.q");
    check_refused(2, &config, twice, 2, TSR_ERR_INVALID, "two tp rules");
    check_refused(2, &config, container, 1, TSR_ERR_INVALID, "no parameters of its own");
    REQUIRE_OK(open_rig(2, &config, &r));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_tp_apply(r.model, "pt", plan, 6)); /* no such axis */
    close_rig(&r);
}

static void a_plan_counts_from_its_module(void)
{
    static const tsr_tp_rule part[] = {{"attn.q", {.kind = TSR_TP_COLUMN}},
                                       {"**.up", {.kind = TSR_TP_COLUMN}}};
    rig r;

    REQUIRE_OK(open_rig(2, &config, &r));
    CHECK_OK(tsr_tp_apply(tsr_module_find(r.model, "layers.1"), "tp", part, 2));
    CHECK_EQ(placed(&r, "layers.1.attn.q", "weight").kind, TSR_SHARD);
    CHECK_EQ(placed(&r, "layers.1.mlp.up", "weight").kind, TSR_SHARD);
    CHECK_EQ(placed(&r, "layers.0.attn.q", "weight").kind, TSR_REPLICATE);
    CHECK_STATUS(TSR_ERR_INVALID,
                 tsr_tp_apply(tsr_module_find(r.model, "layers.0"), "tp", plan + 1, 1));
    close_rig(&r);
}

/* The axis still carries data, and no weight has moved. */
static void a_plan_that_is_refused_changes_nothing(void)
{
    static const tsr_tp_rule wrong[] = {{"layers.*.attn.q", {.kind = TSR_TP_COLUMN}},
                                        {"layers.*.attn.x", {.kind = TSR_TP_COLUMN}}};
    const int64_t shape[] = {8, 2};
    tsr_layout layout;
    rig r;

    REQUIRE_OK(open_rig(2, &config, &r));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_tp_apply(r.model, "tp", wrong, 2));
    CHECK_EQ(placed(&r, "layers.0.attn.q", "weight").kind, TSR_REPLICATE);
    CHECK_OK(tsr_layout_data(r.comm, shape, 2, &layout));
    CHECK_EQ(layout.place[1].kind, TSR_SHARD);
    CHECK_OK(tsr_tp_apply(r.model, "tp", wrong, 1));
    CHECK_OK(tsr_layout_data(r.comm, shape, 2, &layout));
    CHECK_EQ(layout.place[1].kind, TSR_REPLICATE);
    close_rig(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"a_plan_places_weights_and_biases", a_plan_places_weights_and_biases},
    {"a_parameter_is_matched_by_its_name", a_parameter_is_matched_by_its_name},
    {"kv_heads_fewer_than_ranks_are_replicated", kv_heads_fewer_than_ranks_are_replicated},
    {"mistakes_are_named", mistakes_are_named},
    {"a_plan_counts_from_its_module", a_plan_counts_from_its_module},
    {"a_plan_that_is_refused_changes_nothing", a_plan_that_is_refused_changes_nothing},
    {NULL, NULL},
};
