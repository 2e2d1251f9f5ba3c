/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file test_hf.c
 * Hugging Face configs of both styles, names of parameters, and blocks of their tensors.
 */
#include "base/base.h"
#include "base/file.h"

#include "tessera/world.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/hf.h"
#include "support/golden.h"
#include "support/tsr_test.h"

/* ---- config.json ---- */

static tsr_status parse(const char *text, tsri_model_spec *out)
{
    const char *path = tsr_test_scratch_path("config.json");

    CHECK_OK(tsri_file_write(path, text, strlen(text)));
    return tsri_hf_read_config(path, out, NULL);
}

static void check_refused(const char *text, tsr_status status, const char *words)
{
    tsri_model_spec spec;

    CHECK_EQ(parse(text, &spec), status);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
}

static void golden_configs(void)
{
    tsri_model_spec s;

    REQUIRE_OK(tsri_hf_read_config(tsr_test_golden_path("train/gpt2-tiny"), &s, NULL));
    CHECK_EQ(s.arch, TSRI_ARCH_GPT2);
    CHECK_EQ(s.layers, 3);
    CHECK_EQ(s.heads, 4);
    CHECK_EQ(s.dim, 48);
    CHECK_EQ(s.ffn, 192);
    CHECK_EQ(s.vocab, 257);
    CHECK_EQ(s.positions, 64);
    CHECK(s.norm_eps == 1e-5 && s.init_std == 0.02 && s.dropout == 0.0);
    CHECK(s.tied);
    REQUIRE_OK(
        tsri_hf_read_config(tsr_test_golden_path("train/llama-accum3/config.json"), &s, NULL));
    CHECK_EQ(s.arch, TSRI_ARCH_LLAMA);
    CHECK_EQ(s.kv_heads, 2);
    CHECK_EQ(s.head_dim, 10);
    CHECK(s.rope_theta == 10000.0 && s.norm_eps == 1e-5);
    CHECK(!s.tied && !s.attention_bias && !s.mlp_bias);
    REQUIRE_OK(tsri_hf_read_config(tsr_test_golden_path("train/llama-tied"), &s, NULL));
    CHECK(s.tied && s.norm_eps == 1e-6);
    CHECK_EQ(s.head_dim, 8);
}

#define LLAMA \
    "{\"model_type\":\"llama\",\"num_hidden_layers\":2,\"num_attention_heads\":6," \
    "\"hidden_size\":48,\"intermediate_size\":100,\"vocab_size\":32"
#define GPT2 \
    "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":16,\"n_positions\":8," \
    "\"vocab_size\":11"

static void llama_styles(void)
{
    tsri_model_spec s;

    REQUIRE_OK(parse(LLAMA "}", &s));
    CHECK_EQ(s.kv_heads, 6);
    CHECK_EQ(s.head_dim, 8);
    CHECK(s.rope_theta == 10000.0 && s.norm_eps == 1e-6);
    REQUIRE_OK(parse(LLAMA ",\"head_dim\":null,\"num_key_value_heads\":null,"
                           "\"rope_scaling\":null,\"rope_theta\":5e5}",
                     &s));
    CHECK_EQ(s.kv_heads, 6);
    CHECK_EQ(s.head_dim, 8);
    CHECK(s.rope_theta == 5e5);
    REQUIRE_OK(parse(LLAMA ",\"head_dim\":16,\"num_key_value_heads\":2,\"attention_bias\":true,"
                           "\"mlp_bias\":true,\"tie_word_embeddings\":true,"
                           "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7}}",
                     &s));
    CHECK_EQ(s.kv_heads, 2);
    CHECK_EQ(s.head_dim, 16);
    CHECK(s.rope_theta == 7.0);
    CHECK(s.attention_bias && s.mlp_bias && s.tied);
    REQUIRE_OK(parse(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":1},"
                           "\"hidden_act\":\"swish\",\"initializer_range\":0,"
                           "\"attention_bias\":null,\"pad_token_id\":null,\"x\":{\"y\":[]}}",
                     &s));
    REQUIRE_OK(parse("\xEF\xBB\xBF" LLAMA ",\"vocab_size\":33}", &s)); /* twice: the last */
    CHECK_EQ(s.vocab, 33);
    REQUIRE_OK(parse(LLAMA ",\"rope_scaling\":{\"type\":\"default\"},\"rope_theta\":9}", &s));
    CHECK(s.rope_theta == 9.0);
}

static void llama_refusals(void)
{
    check_refused(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
                  TSR_ERR_UNSUPPORTED, "rope_scaling has rope_type \"linear\"");
    check_refused(LLAMA ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":5e5,"
                        "\"factor\":8.0}}",
                  TSR_ERR_UNSUPPORTED, "rope_parameters has rope_type \"llama3\"");
    check_refused(LLAMA ",\"rope_scaling\":2}", TSR_ERR_FORMAT, "rope_scaling wants an object");
    check_refused(LLAMA ",\"hidden_act\":\"gelu\"}", TSR_ERR_UNSUPPORTED,
                  "hidden_act is \"gelu\", only \"silu\"");
    check_refused(LLAMA ",\"head_dim\":-8}", TSR_ERR_FORMAT, "head_dim is -8, wants 1 to");
    check_refused(LLAMA ",\"head_dim\":0}", TSR_ERR_FORMAT, "head_dim is 0");
    check_refused(LLAMA ",\"rope_theta\":null}", TSR_ERR_FORMAT, "\"rope_theta\" is null");
    check_refused(LLAMA ",\"rope_theta\":0}", TSR_ERR_FORMAT, "rope_theta is 0, wants 1 to");
    check_refused(LLAMA ",\"rope_theta\":-1e4}", TSR_ERR_FORMAT, "rope_theta is -10000");
    check_refused(LLAMA ",\"rms_norm_eps\":1e308}", TSR_ERR_FORMAT, "rms_norm_eps is 1e+308");
    check_refused(LLAMA ",\"rms_norm_eps\":1e-320}", TSR_ERR_FORMAT, "wants 1e-30 to 1");
    check_refused(LLAMA ",\"initializer_range\":-0.02}", TSR_ERR_FORMAT, "initializer_range");
    check_refused(LLAMA ",\"vocab_size\":null}", TSR_ERR_FORMAT, "vocab_size");
    check_refused(LLAMA ",\"partial_rotary_factor\":0.5}", TSR_ERR_UNSUPPORTED,
                  "partial_rotary_factor is 0.5");
    check_refused(LLAMA ",\"head_dim\":3}", TSR_ERR_FORMAT, "head_dim 3 is odd");
    check_refused("{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"num_attention_heads\":4,"
                  "\"num_key_value_heads\":3}",
                  TSR_ERR_FORMAT, "num_key_value_heads 3 does not divide num_attention_heads 4");
    check_refused("{\"model_type\":\"llama\",\"num_hidden_layers\":4294967296}", TSR_ERR_FORMAT,
                  "num_hidden_layers is 4294967296, wants 1 to 1024");
    check_refused(LLAMA ",\"rms_norm_eps\":0}", TSR_ERR_FORMAT, "rms_norm_eps is 0");
    check_refused(LLAMA ",\"tie_word_embeddings\":1}", TSR_ERR_FORMAT, "tie_word_embeddings");
    check_refused("{\"model_type\":\"llama\",\"num_hidden_layers\":0}", TSR_ERR_FORMAT,
                  "num_hidden_layers is 0");
    check_refused("{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"num_attention_heads\":3,"
                  "\"hidden_size\":16,\"intermediate_size\":8,\"vocab_size\":4}",
                  TSR_ERR_FORMAT, "hidden_size 16 over 3 heads");
    check_refused("{\"model_type\":\"mistral\"}", TSR_ERR_UNSUPPORTED,
                  "model_type is \"mistral\", known are \"llama\" and \"gpt2\"");
    check_refused("{}", TSR_ERR_FORMAT, "model_type");
    check_refused("[]", TSR_ERR_FORMAT, "config.json");
}

static void gpt2_variants(void)
{
    tsri_model_spec s;

    REQUIRE_OK(parse(GPT2 ",\"n_inner\":null,\"reorder_and_upcast_attn\":true}", &s));
    CHECK_EQ(s.ffn, 64);
    REQUIRE_OK(parse(GPT2 ",\"n_inner\":24,\"activation_function\":\"gelu_pytorch_tanh\","
                          "\"tie_word_embeddings\":false,\"layer_norm_epsilon\":1e-3}",
                     &s));
    CHECK_EQ(s.ffn, 24);
    CHECK(!s.tied && s.norm_eps == 1e-3);
    REQUIRE_OK(parse("{\"model_type\":\"gpt2\",\"num_hidden_layers\":2,"
                     "\"num_attention_heads\":2,\"hidden_size\":16,\"n_embd\":16,"
                     "\"max_position_embeddings\":8,\"vocab_size\":11}",
                     &s));
    CHECK_EQ(s.layers, 2);
    CHECK_EQ(s.positions, 8);
    check_refused(GPT2 ",\"hidden_size\":32}", TSR_ERR_FORMAT,
                  "n_embd is 16 and hidden_size is 32, which mean the same");
    check_refused(GPT2 ",\"tie_word_embeddings\":null}", TSR_ERR_FORMAT, "tie_word_embeddings");
    check_refused(GPT2 ",\"activation_function\":\"gelu\"}", TSR_ERR_UNSUPPORTED,
                  "activation_function is \"gelu\"");
    check_refused("{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":3,\"n_embd\":16}",
                  TSR_ERR_FORMAT, "n_head 3 does not divide n_embd 16");
    check_refused(GPT2 ",\"scale_attn_weights\":false}", TSR_ERR_UNSUPPORTED,
                  "scale_attn_weights is false");
    check_refused(GPT2 ",\"scale_attn_by_inverse_layer_idx\":true}", TSR_ERR_UNSUPPORTED,
                  "scale_attn_by_inverse_layer_idx is true");
    check_refused(GPT2 ",\"add_cross_attention\":true}", TSR_ERR_UNSUPPORTED,
                  "add_cross_attention is true");
}

/* ---- names ---- */

static void check_place(tsri_arch arch, const char *param, const char *name, bool transposed,
                        int part, int parts)
{
    const tsri_model_spec spec = {.arch = arch};
    tsri_hf_place place;

    REQUIRE_OK(tsri_hf_locate(&spec, param, &place));
    CHECK_STR(place.name, name);
    CHECK_EQ(place.transposed, transposed);
    CHECK_EQ(place.part, part);
    CHECK_EQ(place.parts, parts);
}

static void places(void)
{
    const tsri_model_spec llama = {.arch = TSRI_ARCH_LLAMA};
    const tsri_model_spec gpt2 = {.arch = TSRI_ARCH_GPT2};
    tsri_hf_place place;

    check_place(TSRI_ARCH_LLAMA, "embed.weight", "model.embed_tokens.weight", false, 0, 1);
    check_place(TSRI_ARCH_LLAMA, "head.weight", "lm_head.weight", false, 0, 1);
    check_place(TSRI_ARCH_LLAMA, "layers.12.attn.k.bias", "model.layers.12.self_attn.k_proj.bias",
                false, 0, 1);
    check_place(TSRI_ARCH_LLAMA, "layers.0.norm2.weight",
                "model.layers.0.post_attention_layernorm.weight", false, 0, 1);
    check_place(TSRI_ARCH_GPT2, "pos.weight", "transformer.wpe.weight", false, 0, 1);
    check_place(TSRI_ARCH_GPT2, "layers.2.attn.v.weight", "transformer.h.2.attn.c_attn.weight",
                true, 2, 3);
    check_place(TSRI_ARCH_GPT2, "layers.2.attn.k.bias", "transformer.h.2.attn.c_attn.bias", false,
                1, 3);
    check_place(TSRI_ARCH_GPT2, "layers.2.mlp.down.weight", "transformer.h.2.mlp.c_proj.weight",
                true, 0, 1);
    CHECK_STATUS(TSR_ERR_INVALID, tsri_hf_locate(&llama, "pos.weight", &place));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_hf_locate(&llama, "weight", &place));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_hf_locate(&llama, "layers.0", &place));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_hf_locate(&llama, "layers.0.attn.qq.weight", &place));
    CHECK_STATUS(TSR_ERR_INVALID, tsri_hf_locate(&gpt2, "layers.0.mlp.gate.weight", &place));
}

/* ---- blocks ---- */

typedef struct model {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_module *module;
    tsr_param *const *params;
    int count;
} model;

/* The shapes of a model alone, on one simulated rank. */
static bool open_model(const tsri_model_spec *spec, model *m)
{
    const tsr_mesh_axis axis = {"shard", 1};

    memset(m, 0, sizeof(*m));
    CHECK_OK(tsr_world_open(NULL, NULL, &(tsr_world_options){.backend = "sim"}, &m->world));
    CHECK_OK(tsr_mesh_create(1, &axis, 1, NULL, &m->mesh));
    CHECK_OK(tsr_comm_open(m->world, m->mesh, NULL, &m->comm));
    CHECK_OK(tsri_model_create(m->comm, spec, &m->module));
    CHECK_OK(tsr_module_params(m->module, &m->params, &m->count));
    return m->count > 0;
}

static void close_model(model *m)
{
    tsr_module_release(&m->module);
    tsr_comm_release(&m->comm);
    tsr_mesh_release(&m->mesh);
    tsr_world_close(&m->world);
}

/* Every element of a block against its index in the file's tensor. */
static void check_block(tsri_safetensors *st, const tsr_golden *golden, const tsri_hf_place *place,
                        const tsri_safetensors_tensor *t, const tsri_block *b)
{
    const float *file = tsr_golden_tensor(golden, t->name, NULL, NULL, NULL);
    const int64_t width = place->transposed ? place->parts * b->global_rows : b->global_cols;
    float *have = NULL;
    int wrong = 0;

    REQUIRE(file != NULL);
    REQUIRE_OK(tsri_alloc((size_t)(b->rows * b->cols), sizeof(*have), &have));
    CHECK_OK(tsri_hf_read_block(st, t, place, b, have));
    for (int64_t r = 0; r < b->rows; r++) {
        for (int64_t c = 0; c < b->cols; c++) {
            const int64_t row = place->part * b->global_rows + b->first_row + r;
            const int64_t col = b->first_col + c;
            const int64_t at = place->transposed ? col * width + row : row * width + col;

            wrong += have[r * b->cols + c] != file[at];
        }
    }
    CHECK_EQ(wrong, 0);
    tsri_free(&have);
}

static void blocks(void)
{
    const char *path = tsr_test_golden_path("train/gpt2-tiny/model.safetensors");
    tsr_golden *golden = tsr_golden_open(path);
    tsri_safetensors *st = NULL;
    tsri_model_spec spec;
    model m;

    REQUIRE_OK(tsri_hf_read_config(tsr_test_golden_path("train/gpt2-tiny"), &spec, NULL));
    REQUIRE(open_model(&spec, &m));
    REQUIRE_OK(tsri_safetensors_open(path, &st));
    CHECK_OK(tsri_hf_check(st, &spec, m.params, m.count, NULL));
    for (int i = 0; i < m.count; i++) {
        const tsr_param_spec *s = tsr_param_get_spec(m.params[i]);
        const int64_t cols = s->ndim == 2 ? s->shape[1] : 1;
        const tsri_safetensors_tensor *t = NULL;
        tsri_block b = {
            .rows = s->shape[0], .cols = cols, .global_rows = s->shape[0], .global_cols = cols};
        tsri_hf_place place;

        REQUIRE_OK(tsri_hf_locate(&spec, tsr_param_name(m.params[i]), &place));
        REQUIRE_OK(tsri_hf_find(st, "", &place, m.params[i], &t));
        check_block(st, golden, &place, t, &b);
        b.first_row = s->shape[0] / 3;
        b.rows = s->shape[0] / 2;
        b.first_col = cols / 4;
        b.cols = tsri_ceil_div(cols, 3);
        check_block(st, golden, &place, t, &b);
        b.rows = 0;
        check_block(st, golden, &place, t, &b);
    }
    tsri_safetensors_close(&st);
    tsr_golden_close(golden);
    close_model(&m);
}

static void check_mismatch(const char *folder, const tsri_model_spec *spec, const char *words)
{
    tsri_safetensors *st = NULL;
    model m;

    REQUIRE_OK(tsri_safetensors_open(tsr_test_golden_path(folder), &st));
    REQUIRE(open_model(spec, &m));
    CHECK_EQ(tsri_hf_check(st, spec, m.params, m.count, NULL), TSR_ERR_FORMAT);
    if (strstr(tsr_error_message(), words) == NULL) {
        CHECK_STR(tsr_error_message(), words);
    }
    tsr_error_clear();
    tsri_safetensors_close(&st);
    close_model(&m);
}

static void mismatches(void)
{
    tsri_model_spec spec;

    REQUIRE_OK(tsri_hf_read_config(tsr_test_golden_path("train/llama-accum3"), &spec, NULL));
    spec.vocab = 130;
    check_mismatch("train/llama-accum3", &spec,
                   "tensor model.embed_tokens.weight has shape [131, 40], the model wants [130, "
                   "40]");
    spec.vocab = 131;
    spec.layers = 4;
    check_mismatch("train/llama-accum3", &spec, "no tensor model.layers.3.");
    REQUIRE_OK(tsri_hf_read_config(tsr_test_golden_path("train/gpt2-tiny"), &spec, NULL));
    spec.ffn = 100;
    check_mismatch("train/gpt2-tiny", &spec,
                   "c_fc.weight has shape [48, 192], the model wants [48, 100]");
    spec.ffn = 192;
    spec.tied = false;
    check_mismatch("train/gpt2-tiny", &spec, "no tensor lm_head.weight of shape [257, 48]");
}

/* A file of the bare model has no "transformer.". */
static void short_names(void)
{
    static const char header[] =
        "{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[11,16],\"data_offsets\":[0,704]},"
        "\"i.wte.weight\":{\"dtype\":\"I32\",\"shape\":[11,16],\"data_offsets\":[704,1408]}}";
    const tsri_model_spec spec = {.arch = TSRI_ARCH_GPT2,
                                  .layers = 1,
                                  .heads = 1,
                                  .dim = 16,
                                  .ffn = 16,
                                  .vocab = 11,
                                  .positions = 4,
                                  .tied = true};
    const char *path = tsr_test_scratch_path("short.safetensors");
    const unsigned char prefix[8] = {sizeof(header) - 1};
    const float zeros[352] = {0};
    const tsri_safetensors_tensor *t = NULL;
    FILE *file = fopen(path, "wb");
    tsri_safetensors *st = NULL;
    tsri_hf_place place;
    model m;

    REQUIRE(file != NULL);
    CHECK_EQ(fwrite(prefix, 1, 8, file), 8);
    CHECK_EQ(fwrite(header, 1, sizeof(header) - 1, file), sizeof(header) - 1);
    CHECK_EQ(fwrite(zeros, 4, 352, file), 352);
    (void)fclose(file);
    REQUIRE_OK(tsri_safetensors_open(path, &st));
    REQUIRE(open_model(&spec, &m));
    REQUIRE_OK(tsri_hf_locate(&spec, "embed.weight", &place));
    CHECK_OK(tsri_hf_find(st, "", &place, m.params[0], &t));
    CHECK(t != NULL && strcmp(t->name, "wte.weight") == 0);
    CHECK_STATUS(TSR_ERR_FORMAT, tsri_hf_find(st, "grad.", &place, m.params[0], &t));
    CHECK_EQ(tsri_hf_find(st, "i.", &place, m.params[0], &t), TSR_ERR_FORMAT);
    CHECK(strstr(tsr_error_message(), "i.wte.weight is I32, wants F32, BF16") != NULL);
    tsr_error_clear();
    tsri_safetensors_close(&st);
    close_model(&m);
}

const tsr_test_case tsr_test_cases[] = {
    {"golden_configs", golden_configs},
    {"llama_styles", llama_styles},
    {"llama_refusals", llama_refusals},
    {"gpt2_variants", gpt2_variants},
    {"places", places},
    {"blocks", blocks},
    {"mismatches", mismatches},
    {"short_names", short_names},
    {NULL, NULL},
};
