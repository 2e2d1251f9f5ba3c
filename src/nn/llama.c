/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Llama: the decoder with rotary positions, rmsnorm, grouped queries and a silu gate. */
#include "tessera/llama.h"

#include "decoder_priv.h"

#include "base/base.h"

tsr_status tsr_llama_create(tsr_comm *comm, const tsr_llama_config *config, tsr_module **out)
{
    TSRI_WANT(comm, config, out);
    TSRI_WANT_COUNT(config->kv_heads);
    TSRI_WANT_COUNT(config->head_dim);
    TSRI_WANT_NUMBER(config->init_std);
    TSRI_WANT_NUMBER(config->norm_eps);
    TSRI_WANT_NUMBER(config->rope_theta);

    const double std = config->init_std > 0.0 ? config->init_std : 0.02;
    decoder_config c = {.what = "llama",
                        .layers = config->layers,
                        .heads = config->heads,
                        .kv_heads = config->kv_heads != 0 ? config->kv_heads : config->heads,
                        .dim = config->dim,
                        .ffn = config->ffn,
                        .vocab = config->vocab,
                        .head_dim = config->head_dim,
                        .rope_theta = config->rope_theta > 0.0 ? config->rope_theta : 10000.0,
                        .norm = NORM_RMS,
                        .norm_eps = config->norm_eps > 0.0 ? config->norm_eps : 1e-5,
                        .init_std = std,
                        .residual_init_std = std,
                        .attention_bias = config->attention_bias,
                        .mlp_bias = config->mlp_bias,
                        .gated = true,
                        .tied = config->tied};

    if (c.head_dim == 0 && config->heads > 0 && config->dim % config->heads == 0) {
        c.head_dim = config->dim / config->heads;
    }
    TSR_TRY(tsri_decoder_create(comm, &c, out));
    return TSR_OK;
}

tsr_module *tsr_llama_layer(tsr_module *model, int index)
{
    TSRI_WANT_OR(model, NULL);
    return tsri_decoder_layer(model, index);
}

/* ---- its row of the table ---- */

static tsr_status create_llama(tsr_comm *comm, const tsri_model_spec *spec, tsr_module **out)
{
    const tsr_llama_config config = {.layers = spec->layers,
                                     .heads = spec->heads,
                                     .kv_heads = spec->kv_heads,
                                     .dim = spec->dim,
                                     .ffn = spec->ffn,
                                     .vocab = spec->vocab,
                                     .head_dim = spec->head_dim,
                                     .rope_theta = spec->rope_theta,
                                     .norm_eps = spec->norm_eps,
                                     .attention_bias = spec->attention_bias,
                                     .mlp_bias = spec->mlp_bias,
                                     .tied = spec->tied,
                                     .init_std = spec->init_std};

    TSR_TRY(tsr_llama_create(comm, &config, out));
    return TSR_OK;
}

static const tsri_split_rule splits[] = {
    {.modules = "embed", .split = TSRI_SPLIT_VOCAB, .begins_stream = true},
    {.modules = "layers.*.attn.{q,k,v}", .split = TSRI_SPLIT_COLUMN},
    {.modules = "layers.*.attn.o", .split = TSRI_SPLIT_ROW},
    {.modules = "layers.*.mlp.{gate,up}", .split = TSRI_SPLIT_COLUMN},
    {.modules = "layers.*.mlp.down", .split = TSRI_SPLIT_ROW},
    {.modules = "head", .split = TSRI_SPLIT_COLUMN, .is_head = true},
    {.modules = NULL},
};

static const tsri_file_name root_names[] = {
    {"embed", "model.embed_tokens", false, 0, 1},
    {"norm", "model.norm", false, 0, 1},
    {"head", "lm_head", false, 0, 1},
    {NULL, NULL, false, 0, 0},
};
static const tsri_file_name block_names[] = {
    {"norm1", "input_layernorm", false, 0, 1},   {"attn.q", "self_attn.q_proj", false, 0, 1},
    {"attn.k", "self_attn.k_proj", false, 0, 1}, {"attn.v", "self_attn.v_proj", false, 0, 1},
    {"attn.o", "self_attn.o_proj", false, 0, 1}, {"norm2", "post_attention_layernorm", false, 0, 1},
    {"mlp.gate", "mlp.gate_proj", false, 0, 1},  {"mlp.up", "mlp.up_proj", false, 0, 1},
    {"mlp.down", "mlp.down_proj", false, 0, 1},  {NULL, NULL, false, 0, 0},
};

const tsri_arch_info tsri_arch_llama = {
    .name = "llama",
    .sizes = TSRI_SIZE_KV_HEADS | TSRI_SIZE_HEAD_DIM | TSRI_SIZE_ROPE | TSRI_SIZE_BIASES,
    .defaults = {.arch = TSRI_ARCH_LLAMA},
    .gated = true,
    .splits = splits,
    .block_name = "model.layers",
    .root_names = root_names,
    .block_names = block_names,
    .create = create_llama,
};
