/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Models by description, and the presets.
 *
 * llama-20b is a shape of ours: 48 layers of dim 5632 with 44 heads of 128, 4 kv heads, ffn 19712,
 * vocabulary 128256: 20.75e9 parameters. */
#include "nn/model.h"

#include "decoder_priv.h"

#include "base/base.h"

#include <string.h>

/* ---- presets ---- */

typedef struct preset {
    const char *name;
    tsri_model_spec spec;
} preset;

static const preset presets[] = {
    {"llama-tiny",
     {.arch = TSRI_ARCH_LLAMA,
      .layers = 4,
      .dim = 256,
      .heads = 8,
      .kv_heads = 4,
      .ffn = 704,
      .vocab = 256}},
    {"llama-25m",
     {.arch = TSRI_ARCH_LLAMA,
      .layers = 8,
      .dim = 512,
      .heads = 8,
      .kv_heads = 4,
      .ffn = 1408,
      .vocab = 256}},
    {"gpt2-124m",
     {.arch = TSRI_ARCH_GPT2,
      .tied = true,
      .layers = 12,
      .dim = 768,
      .heads = 12,
      .ffn = 3072,
      .vocab = 50257,
      .positions = 1024}},
    {"gpt2-xl",
     {.arch = TSRI_ARCH_GPT2,
      .tied = true,
      .layers = 48,
      .dim = 1600,
      .heads = 25,
      .ffn = 6400,
      .vocab = 50257,
      .positions = 1024}},
    {"llama3-8b",
     {.arch = TSRI_ARCH_LLAMA,
      .layers = 32,
      .dim = 4096,
      .heads = 32,
      .kv_heads = 8,
      .ffn = 14336,
      .vocab = 128256,
      .rope_theta = 500000.0}},
    {"llama-20b",
     {.arch = TSRI_ARCH_LLAMA,
      .layers = 48,
      .dim = 5632,
      .heads = 44,
      .kv_heads = 4,
      .ffn = 19712,
      .vocab = 128256,
      .rope_theta = 500000.0}},
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

/* ---- architectures ---- */

const tsri_arch_info *tsri_arch_get(tsri_arch arch)
{
    static const tsri_arch_info *const rows[TSRI_ARCH_COUNT] = {
        [TSRI_ARCH_LLAMA] = &tsri_arch_llama,
        [TSRI_ARCH_GPT2] = &tsri_arch_gpt2,
    };

    return rows[arch];
}

const char *tsri_model_arch_name(const tsri_model_spec *spec)
{
    return tsri_arch_get(spec->arch)->name;
}

bool tsri_model_has(const tsri_model_spec *spec, tsri_model_size size)
{
    return (tsri_arch_get(spec->arch)->sizes & (unsigned)size) != 0;
}

/* ---- modules ---- */

tsr_status tsri_model_create(tsr_comm *comm, const tsri_model_spec *spec, tsr_module **out)
{
    TSR_TRY(tsri_arch_get(spec->arch)->create(comm, spec, out));
    return TSR_OK;
}

tsr_module *tsri_model_layer(tsr_module *model, int index)
{
    return tsri_decoder_layer(model, index);
}

/* A tied weight is the root's, which is gathered for the whole pass and so holds else but a norm.
 */
tsr_module *tsri_model_unit(const tsri_model_spec *spec, tsr_module *model, int index)
{
    static const char *const ends[] = {"embed", "head"};

    if (index < spec->layers) {
        return tsri_model_layer(model, index);
    }
    index -= spec->layers;
    return !spec->tied && index < 2 ? tsr_module_find(model, ends[index]) : NULL;
}

/* ---- sizes ---- */

int tsri_model_kv_heads(const tsri_model_spec *spec)
{
    return spec->kv_heads > 0 ? spec->kv_heads : spec->heads;
}

int64_t tsri_model_head_dim(const tsri_model_spec *spec)
{
    return spec->head_dim > 0 ? spec->head_dim : spec->dim / spec->heads;
}

int64_t tsri_model_param_count(const tsri_model_spec *spec)
{
    const tsri_arch_info *arch = tsri_arch_get(spec->arch);
    const int64_t dim = spec->dim;
    const int64_t q = spec->heads * tsri_model_head_dim(spec);
    const int64_t kv = tsri_model_kv_heads(spec) * tsri_model_head_dim(spec);
    const int64_t gates = arch->gated ? 2 : 1;
    const int64_t norm = arch->biased ? 2 * dim : dim;
    const int64_t attn_bias = spec->attention_bias || arch->biased ? q + 2 * kv + dim : 0;
    const int64_t mlp_bias = spec->mlp_bias || arch->biased ? gates * spec->ffn + dim : 0;
    const int64_t layer = 2 * dim * q + 2 * dim * kv + attn_bias + (gates + 1) * dim * spec->ffn +
                          mlp_bias + 2 * norm;
    const int64_t tables = (spec->vocab * (spec->tied ? 1 : 2) + spec->positions) * dim;

    return tables + spec->layers * layer + norm;
}
