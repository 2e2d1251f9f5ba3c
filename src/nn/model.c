/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Models by description, and the presets.
 *
 * llama-20b is a shape of ours: 48 layers of dim 5632 with 44 heads of 128, 4 kv heads, ffn 19712,
 * vocabulary 128256: 20.75e9 parameters. */
#include "nn/model.h"

#include "base/base.h"

#include <string.h>

typedef struct preset {
    const char *name;
    tsri_model_spec spec;
} preset;

static const preset presets[] = {
    {"llama-tiny",
     {.arch = TSRI_ARCH_LLAMA,
      .llama = {.layers = 4, .dim = 256, .heads = 8, .kv_heads = 4, .ffn = 704, .vocab = 256}}},
    {"llama-25m",
     {.arch = TSRI_ARCH_LLAMA,
      .llama = {.layers = 8, .dim = 512, .heads = 8, .kv_heads = 4, .ffn = 1408, .vocab = 256}}},
    {"gpt2-124m",
     {.arch = TSRI_ARCH_GPT2,
      .gpt2 =
          {.layers = 12, .dim = 768, .heads = 12, .ffn = 3072, .vocab = 50257, .positions = 1024}}},
    {"gpt2-xl",
     {.arch = TSRI_ARCH_GPT2,
      .gpt2 = {.layers = 48,
               .dim = 1600,
               .heads = 25,
               .ffn = 6400,
               .vocab = 50257,
               .positions = 1024}}},
    {"llama3-8b",
     {.arch = TSRI_ARCH_LLAMA,
      .llama = {.layers = 32,
                .dim = 4096,
                .heads = 32,
                .kv_heads = 8,
                .ffn = 14336,
                .vocab = 128256,
                .rope_theta = 500000.0}}},
    {"llama-20b",
     {.arch = TSRI_ARCH_LLAMA,
      .llama = {.layers = 48,
                .dim = 5632,
                .heads = 44,
                .kv_heads = 4,
                .ffn = 19712,
                .vocab = 128256,
                .rope_theta = 500000.0}}},
};

enum {
    PRESET_COUNT = (int)(sizeof(presets) / sizeof(presets[0]))
};

const char *tsri_model_preset_names(void)
{
    return "llama-tiny, llama-25m, gpt2-124m, gpt2-xl, llama3-8b, llama-20b";
}

tsr_status tsri_model_preset(const char *name, tsri_model_spec *out)
{
    const char *names[PRESET_COUNT];
    const char *near = NULL;

    for (int i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *out = presets[i].spec;
            return TSR_OK;
        }
        names[i] = presets[i].name;
    }
    near = tsri_nearest(name, names, PRESET_COUNT);
    return TSR_RAISE(TSR_ERR_INVALID, "model preset \"%s\": known are %s%s%s", name,
                     tsri_model_preset_names(), near != NULL ? "; the nearest is " : "",
                     near != NULL ? near : "");
}

tsr_status tsri_model_create(tsr_comm *comm, const tsri_model_spec *spec, tsr_module **out)
{
    if (spec->arch == TSRI_ARCH_GPT2) {
        TSR_TRY(tsr_gpt2_create(comm, &spec->gpt2, out));
    } else {
        TSR_TRY(tsr_llama_create(comm, &spec->llama, out));
    }
    return TSR_OK;
}

int tsri_model_layers(const tsri_model_spec *spec)
{
    return spec->arch == TSRI_ARCH_GPT2 ? spec->gpt2.layers : spec->llama.layers;
}

tsr_module *tsri_model_layer(const tsri_model_spec *spec, tsr_module *model, int index)
{
    return spec->arch == TSRI_ARCH_GPT2 ? tsr_gpt2_layer(model, index)
                                        : tsr_llama_layer(model, index);
}

int64_t tsri_model_vocab(const tsri_model_spec *spec)
{
    return spec->arch == TSRI_ARCH_GPT2 ? spec->gpt2.vocab : spec->llama.vocab;
}

int64_t tsri_model_max_seq(const tsri_model_spec *spec)
{
    return spec->arch == TSRI_ARCH_GPT2 ? spec->gpt2.positions : 0;
}

static int64_t gpt2_params(const tsr_gpt2_config *c)
{
    const int64_t attn = 4 * (c->dim * c->dim + c->dim);
    const int64_t mlp = 2 * c->dim * c->ffn + c->ffn + c->dim;
    const int64_t tables = (c->vocab * (c->untied ? 2 : 1) + c->positions) * c->dim;

    return tables + c->layers * (attn + mlp + 4 * c->dim) + 2 * c->dim;
}

static int64_t llama_params(const tsr_llama_config *c)
{
    const int64_t head_dim = c->head_dim > 0 ? c->head_dim : c->dim / c->heads;
    const int64_t q = c->heads * head_dim;
    const int64_t kv = (c->kv_heads > 0 ? c->kv_heads : c->heads) * head_dim;
    const int64_t attn_bias = c->attention_bias ? q + 2 * kv + c->dim : 0;
    const int64_t mlp_bias = c->mlp_bias ? 2 * c->ffn + c->dim : 0;
    const int64_t layer =
        2 * c->dim * q + 2 * c->dim * kv + 3 * c->dim * c->ffn + 2 * c->dim + attn_bias + mlp_bias;

    return c->vocab * c->dim * (c->tied ? 1 : 2) + c->layers * layer + c->dim;
}

int64_t tsri_model_param_count(const tsri_model_spec *spec)
{
    return spec->arch == TSRI_ARCH_GPT2 ? gpt2_params(&spec->gpt2) : llama_params(&spec->llama);
}
