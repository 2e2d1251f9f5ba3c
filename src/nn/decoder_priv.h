/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* The decoder that GPT-2 and Llama share: pre-norm blocks of attention and mlp. */
#pragma once

#include "tessera/layers.h"

#include "nn/model.h"

typedef enum norm_kind {
    NORM_LAYER,
    NORM_RMS
} norm_kind;

/* What distinguishes the decoders. */
typedef struct decoder_config {
    const char *what; /* "gpt2", "llama": for messages */
    int layers, heads, kv_heads;
    int64_t dim, ffn, vocab, head_dim;
    int64_t positions; /* learned positions; 0: none */
    double rope_theta; /* rotary positions; 0: none */
    norm_kind norm;
    double norm_eps, dropout, init_std, residual_init_std;
    bool attention_bias, mlp_bias, gated, tied;
} decoder_config;

tsr_status tsri_decoder_create(tsr_comm *comm, const decoder_config *config, tsr_module **out);
tsr_module *tsri_decoder_layer(tsr_module *model, int index);

extern const tsri_arch_info tsri_arch_gpt2, tsri_arch_llama;
