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
