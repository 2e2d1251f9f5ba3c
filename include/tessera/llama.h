/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file llama.h
 * Llama (Touvron et al. 2023): rotary positions, rmsnorm, grouped-query attention, silu-gated mlp.
 *
 * Parameters: embed.weight, layers.N.{norm1,norm2}.weight, layers.N.attn.{q,k,v,o}.weight,
 * layers.N.mlp.{gate,up,down}.weight (and their .bias where configured), norm.weight, and
 * head.weight unless tied.
 *
 * Threads: one thread at a time per comm.
 */
#pragma once

#include "tessera/module.h"

TSR_BEGIN_DECLS

typedef struct tsr_llama_config {
    int layers;
    int heads, kv_heads; /**< kv_heads 0: as many as heads. */
    int64_t dim, ffn, vocab;
    int64_t head_dim;    /**< 0: dim / heads. */
    double rope_theta;   /**< 0: 10000. */
    double norm_eps;     /**< 0: 1e-5. */
    bool attention_bias; /**< Biases of q, k, v, o. */
    bool mlp_bias;       /**< Biases of gate, up, down. */
    bool tied;           /**< The head is the embedding. */
    double init_std;     /**< 0: 0.02. */
} tsr_llama_config;

/**
 * Local. The model by shapes alone. Its call takes ids I32 [batch, seq] to logits [batch, seq,
 * vocab].
 *
 * @retval TSR_ERR_INVALID  a size that is not positive, or kv_heads that do not divide heads.
 */
TSR_CHECKED tsr_status tsr_llama_create(tsr_comm *comm, const tsr_llama_config *config,
                                        tsr_module **out);

/** Local. Block @p index of the model, or NULL; borrowed. */
TSR_API tsr_module *tsr_llama_layer(tsr_module *model, int index);

TSR_END_DECLS
