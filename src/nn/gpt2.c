/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* GPT-2: the decoder with learned positions, layernorm, gelu and biases. */
#include "tessera/gpt2.h"

#include "decoder_priv.h"

#include "base/base.h"

#include <math.h>

tsr_status tsr_gpt2_create(tsr_comm *comm, const tsr_gpt2_config *config, tsr_module **out)
{
    TSRI_WANT(comm, config, out);
    TSRI_WANT_NUMBER(config->init_std);
    TSRI_WANT_NUMBER(config->norm_eps);

    const double std = config->init_std > 0.0 ? config->init_std : 0.02;
    decoder_config c = {.what = "gpt2",
                        .layers = config->layers,
                        .heads = config->heads,
                        .kv_heads = config->heads,
                        .dim = config->dim,
                        .ffn = config->ffn,
                        .vocab = config->vocab,
                        .positions = config->positions,
                        .norm = NORM_LAYER,
                        .norm_eps = config->norm_eps > 0.0 ? config->norm_eps : 1e-5,
                        .dropout = config->dropout,
                        .init_std = std,
                        .attention_bias = true,
                        .mlp_bias = true,
                        .tied = !config->untied};

    if (config->positions < 1) {
        return TSR_RAISE(TSR_ERR_INVALID, "gpt2 with %lld positions, wants at least 1",
                         (long long)config->positions);
    }
    if (config->heads > 0 && config->dim % config->heads == 0) {
        c.head_dim = config->dim / config->heads;
    }
    /* Radford et al.: residual projections shrink with depth, two per block. */
    c.residual_init_std = config->layers > 0 ? std / sqrt(2.0 * config->layers) : std;
    TSR_TRY(tsri_decoder_create(comm, &c, out));
    return TSR_OK;
}

tsr_module *tsr_gpt2_layer(tsr_module *model, int index)
{
    TSRI_WANT_OR(model, NULL);
    return tsri_decoder_layer(model, index);
}

/* ---- its row of the table ---- */

static tsr_status create_gpt2(tsr_comm *comm, const tsri_model_spec *spec, tsr_module **out)
{
    const tsr_gpt2_config config = {.layers = spec->layers,
                                    .heads = spec->heads,
                                    .dim = spec->dim,
                                    .ffn = spec->ffn,
                                    .vocab = spec->vocab,
                                    .positions = spec->positions,
                                    .norm_eps = spec->norm_eps,
                                    .dropout = spec->dropout,
                                    .untied = !spec->tied,
                                    .init_std = spec->init_std};

    TSR_TRY(tsr_gpt2_create(comm, &config, out));
    return TSR_OK;
}

static const tsri_split_rule splits[] = {
    {.modules = "embed", .split = TSRI_SPLIT_VOCAB, .begins_stream = true},
    {.modules = "layers.*.attn.{q,k,v}", .split = TSRI_SPLIT_COLUMN},
    {.modules = "layers.*.attn.o", .split = TSRI_SPLIT_ROW},
    {.modules = "layers.*.mlp.up", .split = TSRI_SPLIT_COLUMN},
    {.modules = "layers.*.mlp.down", .split = TSRI_SPLIT_ROW},
    {.modules = "head", .split = TSRI_SPLIT_COLUMN, .is_head = true},
    {.modules = NULL},
};

/* Linear weights are stored [in, out] (Conv1D); q, k, v are one tensor. */
static const tsri_file_name root_names[] = {
    {"embed", "transformer.wte", false, 0, 1},
    {"pos", "transformer.wpe", false, 0, 1},
    {"norm", "transformer.ln_f", false, 0, 1},
    {"head", "lm_head", false, 0, 1},
    {NULL, NULL, false, 0, 0},
};
static const tsri_file_name block_names[] = {
    {"norm1", "ln_1", false, 0, 1},
    {"attn.q", "attn.c_attn", true, 0, 3},
    {"attn.k", "attn.c_attn", true, 1, 3},
    {"attn.v", "attn.c_attn", true, 2, 3},
    {"attn.o", "attn.c_proj", true, 0, 1},
    {"norm2", "ln_2", false, 0, 1},
    {"mlp.up", "mlp.c_fc", true, 0, 1},
    {"mlp.down", "mlp.c_proj", true, 0, 1},
    {NULL, NULL, false, 0, 0},
};

const tsri_arch_info tsri_arch_gpt2 = {
    .name = "gpt2",
    .sizes = TSRI_SIZE_POSITIONS | TSRI_SIZE_DROPOUT,
    .defaults = {.arch = TSRI_ARCH_GPT2, .tied = true},
    .biased = true,
    .splits = splits,
    .block_name = "transformer.h",
    .root_names = root_names,
    .block_names = block_names,
    .create = create_gpt2,
};
