/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Modules: names, ownership, order of parameters, errors; and the models' shapes. */
#include "base/base.h"

#include "tessera/fsdp.h"
#include "tessera/layers.h"

#include <string.h>

#include "nn/model.h"
#include "support/tsr_test.h"

typedef struct rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
} rig;

static tsr_status open_rig(rig *out)
{
    const tsr_world_options sim = {.backend = "sim"};
    const tsr_mesh_axis axes[] = {{"shard", 1}};

    *out = (rig){0};
    TSR_TRY(tsr_world_open(NULL, NULL, &sim, &out->world));
    TSR_TRY(tsr_mesh_create(1, axes, 1, NULL, &out->mesh));
    TSR_TRY(tsr_comm_open(out->world, out->mesh, NULL, &out->comm));
    return TSR_OK;
}

static void close_rig(rig *r)
{
    tsr_comm_release(&r->comm);
    tsr_mesh_release(&r->mesh);
    tsr_world_close(&r->world);
}

static void names_follow_the_tree(void)
{
    const tsr_linear_options linear = {.in = 4, .out = 6, .bias = true};
    tsr_module *root = NULL;
    tsr_module *inner = NULL;
    tsr_module *leaf = NULL;
    tsr_param *const *params = NULL;
    int count = 0;
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(tsr_sequential_create(r.comm, &root));
    REQUIRE_OK(tsr_sequential_create(r.comm, &inner));
    REQUIRE_OK(tsr_linear_create(r.comm, &linear, &leaf));
    CHECK_OK(tsr_module_add_child(inner, "proj", leaf));
    CHECK_OK(tsr_module_add_child(root, "layers.0", inner)); /* renames what is below */
    CHECK_STR(tsr_module_path(leaf), "layers.0.proj");
    CHECK(tsr_module_find(root, "layers.0.proj") == leaf);
    CHECK(tsr_module_find(root, "layers.0.pro") == NULL);
    CHECK(tsr_module_find(root, "layers") == NULL);
    REQUIRE_OK(tsr_module_params(root, &params, &count));
    REQUIRE_EQ(count, 2);
    CHECK_STR(tsr_param_name(params[0]), "layers.0.proj.weight");
    CHECK_STR(tsr_param_name(params[1]), "layers.0.proj.bias");
    CHECK_EQ(tsr_param_count(params[0]), 24);
    tsr_module_release(&root);
    CHECK(root == NULL);
    close_rig(&r);
}

static void bad_names_are_refused(void)
{
    const tsr_param_spec spec = {.shape = {3}, .ndim = 1};
    tsr_module *m = NULL;
    tsr_module *child = NULL;
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(tsr_sequential_create(r.comm, &m));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_module_add_param(m, "", &spec, NULL));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_module_add_param(m, "a.b", &spec, NULL));
    CHECK_OK(tsr_module_add_param(m, "a", &spec, NULL));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_module_add_param(m, "a", &spec, NULL));
    REQUIRE_OK(tsr_sequential_create(r.comm, &child));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_module_add_child(m, "a", child)); /* and child is released */
    CHECK(tsr_module_value(m, "b") == NULL);
    tsr_module_release(&m);
    close_rig(&r);
}

static void models_have_the_parameters_that_arithmetic_says(void)
{
    static const char *const presets[] = {"llama-tiny", "llama-25m", "gpt2-124m",
                                          "gpt2-xl",    "llama3-8b", "llama-20b"};
    /* gpt2-124m and gpt2-xl: counts published with the models; llama3-8b: 8.03e9. */
    static const int64_t known[] = {0, 0, 124439808, 1557611200, 8030261248, 0};
    rig r;

    REQUIRE_OK(open_rig(&r));
    for (int i = 0; i < 6; i++) {
        tsri_model_spec spec;
        tsr_module *model = NULL;
        tsr_param *const *params = NULL;
        int64_t sum = 0;
        int count = 0;

        REQUIRE_OK(tsri_model_preset(presets[i], &spec));
        REQUIRE_OK(tsri_model_create(r.comm, &spec, &model));
        REQUIRE_OK(tsr_module_params(model, &params, &count));
        for (int k = 0; k < count; k++) {
            sum += tsr_param_count(params[k]);
        }
        CHECK_EQ(sum, tsri_model_param_count(&spec));
        if (known[i] != 0) {
            CHECK_EQ(sum, known[i]);
        }
        CHECK(strstr(tsri_model_preset_names(), presets[i]) != NULL);
        tsr_module_release(&model);
    }
    close_rig(&r);
}

static void impossible_models_are_refused(void)
{
    const tsr_llama_config base = {
        .layers = 1, .dim = 8, .heads = 2, .kv_heads = 1, .ffn = 8, .vocab = 8};
    tsr_llama_config c = base;
    tsr_gpt2_config g = {.layers = 1, .heads = 3, .dim = 8, .ffn = 8, .vocab = 8, .positions = 8};
    tsri_model_spec spec;
    tsr_module *model = NULL;
    rig r;

    REQUIRE_OK(open_rig(&r));
    c.kv_heads = 3;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_llama_create(r.comm, &c, &model));
    c = base;
    c.heads = 3;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_llama_create(r.comm, &c, &model)); /* 8 % 3 */
    c = base;
    c.head_dim = 3; /* odd, and rotary */
    CHECK_STATUS(TSR_ERR_INVALID, tsr_llama_create(r.comm, &c, &model));
    c = base;
    c.vocab = 0;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_llama_create(r.comm, &c, &model));
    CHECK_STATUS(TSR_ERR_INVALID, tsr_gpt2_create(r.comm, &g, &model));
    g.heads = 2;
    g.positions = 0;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_gpt2_create(r.comm, &g, &model));
    g.positions = 8;
    g.dropout = 1.0;
    CHECK_STATUS(TSR_ERR_INVALID, tsr_gpt2_create(r.comm, &g, &model));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_model_preset("llama-tinny", &spec));
    close_rig(&r);
}

/* ---- another child in the place of one ---- */

static tsr_status linear(rig *r, tsr_module **out)
{
    const tsr_linear_options options = {.in = 4, .out = 4};

    TSR_TRY(tsr_linear_create(r->comm, &options, out));
    return TSR_OK;
}

static void check_says(tsr_status expected, tsr_status status, const char *words)
{
    CHECK_EQ(status, expected);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

static void a_child_is_replaced(void)
{
    tsr_module *root = NULL;
    tsr_module *first = NULL;
    tsr_module *wrapper = NULL;
    tsr_module *old = NULL;
    tsr_param *const *params = NULL;
    int count = 0;
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(tsr_sequential_create(r.comm, &root));
    REQUIRE_OK(linear(&r, &first));
    REQUIRE_OK(tsr_module_add_child(root, "a.proj", first));
    REQUIRE_OK(tsr_sequential_create(r.comm, &wrapper));
    REQUIRE_OK(tsr_module_params(root, &params, &count)); /* a list that is no longer true */
    REQUIRE_OK(tsr_module_replace_child(root, "a.proj", wrapper, &old));
    CHECK(old == first);
    CHECK_STR(tsr_module_path(old), "");
    CHECK_STR(tsr_module_path(wrapper), "a.proj");
    REQUIRE_OK(tsr_module_params(root, &params, &count));
    CHECK_EQ(count, 0);
    REQUIRE_OK(tsr_module_add_child(wrapper, "base", old));
    REQUIRE_OK(tsr_module_params(root, &params, &count));
    REQUIRE_EQ(count, 1);
    CHECK_STR(tsr_param_name(params[0]), "a.proj.base.weight");
    tsr_module_release(&root);
    close_rig(&r);
}

static void what_cannot_be_replaced_says_so(void)
{
    tsr_module *root = NULL;
    tsr_module *first = NULL;
    tsr_module *other = NULL;
    rig r;

    REQUIRE_OK(open_rig(&r));
    REQUIRE_OK(tsr_sequential_create(r.comm, &root));
    REQUIRE_OK(linear(&r, &first));
    REQUIRE_OK(tsr_module_add_child(root, "proj", first));
    REQUIRE_OK(linear(&r, &other));
    check_says(TSR_ERR_INVALID, tsr_module_replace_child(root, "prox", other, NULL), "\"proj\"");
    check_says(TSR_ERR_INVALID, tsr_module_replace_child(root, "proj", root, NULL), "itself");
    check_says(TSR_ERR_INVALID, tsr_module_replace_child(root, "proj", first, NULL), "elsewhere");
    REQUIRE_OK(tsr_fully_shard(first, NULL));
    REQUIRE_OK(linear(&r, &other));
    check_says(TSR_ERR_STATE, tsr_module_replace_child(root, "proj", other, NULL), "is a unit");
    REQUIRE_OK(tsr_module_materialize(root, 1));
    REQUIRE_OK(linear(&r, &other));
    check_says(TSR_ERR_STATE, tsr_module_replace_child(root, "proj", other, NULL), "materialised");
    tsr_module_release(&root);
    close_rig(&r);
}

const tsr_test_case tsr_test_cases[] = {
    {"names_follow_the_tree", names_follow_the_tree},
    {"bad_names_are_refused", bad_names_are_refused},
    {"models_have_the_parameters_that_arithmetic_says",
     models_have_the_parameters_that_arithmetic_says},
    {"impossible_models_are_refused", impossible_models_are_refused},
    {"a_child_is_replaced", a_child_is_replaced},
    {"what_cannot_be_replaced_says_so", what_cannot_be_replaced_says_so},
    {NULL, NULL},
};
