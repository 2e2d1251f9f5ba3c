/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file gpt2.h
 * GPT-2 (Radford et al. 2019): learned positions, layernorm before each part, gelu, biases.
 *
 * Parameters: embed.weight, pos.weight, layers.N.{norm1,norm2}.{weight,bias},
 * layers.N.attn.{q,k,v,o}.{weight,bias}, layers.N.mlp.{up,down}.{weight,bias}, norm.{weight,bias},
 * and head.weight unless tied. Linear weights are [out, in].
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/module.h"

TSR_BEGIN_DECLS

typedef struct tsr_gpt2_config {
    int layers;
    int heads;
    int64_t dim, ffn, vocab, positions;
    double norm_eps; /**< 0: 1e-5. */
    double dropout;  /**< After embedding, attention and mlp; 0: none. */
    bool untied;     /**< A head of its own instead of the embedding. */
    double init_std; /**< 0: 0.02; projections into the residual get / sqrt(2 layers). */
} tsr_gpt2_config;

/**
 * Local. The model by shapes alone. Its call takes ids I32 [batch, seq] to logits [batch, seq,
 * vocab].
 *
 * @retval TSR_ERR_INVALID  a size that is not positive, or heads that do not divide dim.
 */
TSR_CHECKED tsr_status tsr_gpt2_create(tsr_comm *comm, const tsr_gpt2_config *config,
                                       tsr_module **out);

/** Local. Block @p index of the model, or NULL; borrowed. */
TSR_API tsr_module *tsr_gpt2_layer(tsr_module *model, int index);

TSR_END_DECLS
