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
